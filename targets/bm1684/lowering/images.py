"""A batch, one image after the other: a copy of the network per image, so that local memory holds one image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npuc.ir import Graph, Node, TensorType
from npuc.ops.attributes import AXES, AXIS, PERM, SCALES, SIDES, SIZES
from npuc.targets.bm1684.lowering.elementwise import BINARY
from npuc.targets.bm1684.lowering.functions import RECIPES
from npuc.text.escaping import Names

MOST_NODES = 2000
"""The most nodes of all images together; beyond, loading the calls is no faster than computing."""
SINGLE = {
    *RECIPES, "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
    "BatchNormalization", "InstanceNormalization", "PRelu", "Identity", "DepthToSpace", "SpaceToDepth", "LRN",
}  # fmt: skip
"""Operators that compute each image of their first operand separately, all other operands being constant."""


def apart(graph: Graph) -> Graph | None:
    """The graph with a copy of the network per image; None for one image, too many nodes, or dependent images."""
    batches = {graph.shape(name)[:1] for name in graph.inputs}
    images = next(iter(batches))[0] if len(batches) == 1 and () not in batches else 1
    if images < 2 or images * len(graph.nodes) > MOST_NODES:
        return None
    if not all(_separable(graph, node, images) for node in graph.nodes):
        return None
    nodes, tensors = list[Node](), dict(graph.tensors)
    fresh = graph.names()
    for image in range(images):
        for node, types in _one(graph, image, fresh):
            nodes.append(node)
            tensors |= types
    nodes += [
        Node("Concat", tuple(_name(fresh, name, at) for at in range(images)), (name,), {"axis": 0}, name)
        for name in graph.outputs
    ]
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _separable(graph: Graph, node: Node, images: int) -> bool:
    """Whether each image of the result depends only on the same image of the computed operands."""
    computed = [name for name in node.inputs if name and name not in graph.constants]
    if not computed or any(graph.shape(name)[:1] != (images,) for name in (*computed, *node.outputs) if name):
        return False
    shape = graph.shape(node.inputs[0])
    match node.op:
        case "Concat":
            return AXIS(node) != 0 and len(computed) == len(node.inputs)
        case "Split" | "Softmax":
            return AXIS(node) != 0
        case "Slice" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceSum":
            return all(AXES(node))
        case "Pad":
            return not (SIDES(node)[0] or SIDES(node)[len(shape)]) and computed == [node.inputs[0]]
        case "Resize":
            return SCALES(node)[0] == 1
        case "Reshape":
            return True
        case "Transpose":
            return PERM(node)[0] == 0
        case "Gemm":
            return computed == [node.inputs[0]]
        case "MatMul":
            right = node.inputs[1]
            return node.inputs[0] in computed and len(graph.shape(right)) == (
                len(shape) if right in computed else 2
            )
        case op if op in BINARY:
            return all(_for_all(graph, node, name) for name in node.inputs[:2])
        case op:
            return op in SINGLE and computed == [node.inputs[0]]


def _for_all(graph: Graph, node: Node, name: str) -> bool:
    """Whether an operand is computed, or a constant that is the same for all images."""
    shape = graph.shape(name)
    rank = len(graph.shape(node.output))
    return (len(shape) == rank and (name not in graph.constants or shape[0] == 1)) or (
        name in graph.constants and len(shape) < rank
    )


def _one(graph: Graph, image: int, fresh: Names) -> Iterator[tuple[Node, dict[str, TensorType]]]:
    """The nodes of one image, with the types of their outputs."""

    def named(name: str) -> str:
        return _name(fresh, name, image)

    for name in graph.inputs:
        attrs = {"axes": (0,), "starts": (image,), "ends": (image + 1,), "steps": (1,)}
        cut = named(name)
        yield Node("Slice", (name,), (cut,), attrs, cut), {cut: _type(graph, name)}
    for node in graph.nodes:
        inputs = tuple(name if not name or name in graph.constants else named(name) for name in node.inputs)
        outputs = tuple(name and named(name) for name in node.outputs)
        made = replace(node, inputs=inputs, outputs=outputs, name=outputs[0])
        if node.op == "Reshape":
            made = made.with_attrs(shape=_type(graph, node.output).shape)
        if node.op == "Resize":
            made = made.with_attrs(sizes=(1, *SIZES(node)[1:]))
        yield made, {named(name): _type(graph, name) for name in node.outputs if name}


def _name(fresh: Names, tensor: str, image: int) -> str:
    return fresh.of(f"{tensor}@images{image}:{image + 1}")


def _type(graph: Graph, name: str) -> TensorType:
    each = graph.tensors[name]
    return TensorType((1, *each.shape[1:]), each.dtype)
