"""Removes clutter: what depends on constants alone, what is computed twice, and nodes that do or serve nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, AXES, KERNEL_SHAPE, MAX, MIN, PERM, SCALES, STEPS
from npuc.ops.interpreter import evaluate
from npuc.passes.rewriting.patterns import scalar
from npuc.passes.rewriting.rules import Rewriter, rewrite

LARGEST_GROWTH = 1 << 20
"""In elements: a node whose result is larger than this, and than all its inputs, is not evaluated."""


def fold_constants(graph: Graph) -> Graph:
    """Replaces nodes by their results if all inputs are constants.

    Weights that a quantised model stores as integers stay behind their DequantizeLinear, which carries their
    scale; in a model that quantises no activation, DequantizeLinear is only a storage format and is folded.
    """
    quantised = _quantises_activations(graph)
    known: dict[str, Array] = dict(graph.constants)
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = [known[name] for name in node.inputs if name in known]
        stays = quantised and node.op == "DequantizeLinear"
        if stays or len(inputs) < len([*filter(None, node.inputs)]) or _grows(graph, node):
            kept.append(node)
            continue
        empty = np.empty(0, np.float32)
        found = evaluate(node, [known[name] if name else empty for name in node.inputs])
        known.update((name, value) for name, value in zip(node.outputs, found, strict=True) if name)
    return graph if len(kept) == len(graph.nodes) else rebuild(graph, kept, known)


def _quantises_activations(graph: Graph) -> bool:
    quantisers = (node for node in graph.nodes if node.op in ("QuantizeLinear", "DequantizeLinear"))
    return any(graph.constant(node.inputs[0]) is None for node in quantisers)


def _grows(graph: Graph, node: Node) -> bool:
    size = sum(graph.tensors[name].size for name in node.outputs if name)
    return size > max(LARGEST_GROWTH, sum(graph.tensors[name].size for name in node.inputs if name))


Computation = tuple[str, tuple[str, ...], tuple[tuple[str, Attr], ...], tuple[bool, ...]]
"""Operator, inputs, attributes, and which outputs are present."""


def merge_duplicates(graph: Graph) -> Graph:
    """Merges nodes with the same operator, inputs and attributes; graph outputs keep their own.

    Models from TensorFlow transpose a tensor once for every reader.
    """
    rewriter = Rewriter(graph)
    first: dict[Computation, Node] = {}
    for key in rewriter.order():
        node = rewriter.node(key)
        if node is None:
            continue
        given = tuple(bool(name) for name in node.outputs)
        computation = (node.op, node.inputs, tuple(sorted(node.attrs.items())), given)
        same = first.setdefault(computation, node)
        if same is not node and not rewriter.outputs.intersection(node.outputs):
            first[computation] = rewriter.merge(node, same)
    return rewriter.finish()


Test = Callable[[Rewriter, Node], bool]


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without nodes that return their input.

    One stays between a graph input and a graph output, or between two graph outputs, as both names must exist.
    """
    found = rewrite(graph, drop_no_op)
    alive = {name for node in found.nodes for name in node.inputs} | set(found.outputs)
    dead = any(not alive.intersection(node.outputs) for node in found.nodes)
    return rebuild(found, found.nodes) if dead else found


def drop_no_op(rewriter: Rewriter, node: Node) -> bool:
    """Removes the node if its result is its first input, element by element."""
    test = _NO_OPS.get(node.op)
    if test is None or len(node.outputs) != 1 or rewriter.types[node.inputs[0]] != rewriter.types[node.output]:
        return False
    return test(rewriter, node) and rewriter.bypass(node)


def _always(_draft: Rewriter, _node: Node) -> bool:
    return True


def _all_zero(key: str) -> Test:
    return lambda _draft, node: not any(node.integers(key))


def _identity_permutation(_draft: Rewriter, node: Node) -> bool:
    perm = PERM(node)
    return perm == tuple(range(len(perm)))


def _whole_slice(_draft: Rewriter, node: Node) -> bool:
    """If the result has the input's shape, every element is taken once; a step below 0 would reverse them."""
    return all(step > 0 for step in STEPS(node))


def _is_unlimited(_draft: Rewriter, node: Node) -> bool:
    return MIN(node) == float("-inf") and MAX(node) == float("inf")


def _one_tap(_draft: Rewriter, node: Node) -> bool:
    return max(KERNEL_SHAPE(node)) == 1


def _one_element(rewriter: Rewriter, node: Node) -> bool:
    return all(extent == 1 for extent in rewriter.shape(node.inputs[0])[2:])


def _same_size(_draft: Rewriter, node: Node) -> bool:
    return all(scale == 1 for scale in SCALES(node))


def _reduces_ones(rewriter: Rewriter, node: Node) -> bool:
    return all(rewriter.shape(node.inputs[0])[axis] == 1 for axis in AXES(node))


def _neutral(number: float) -> Test:
    """Whether the second operand is this number and there is no fused activation."""

    def test(rewriter: Rewriter, node: Node) -> bool:
        return scalar(rewriter, node.inputs[1]) == number and not ACTIVATION(node)

    return test


_NO_OPS: Mapping[str, Test] = {
    "Identity": _always,
    "Reshape": _always,
    "Expand": _always,
    "Cast": _always,
    "Concat": _always,
    "Split": _always,
    "Pad": _all_zero("pads"),
    "Transpose": _identity_permutation,
    "Slice": _whole_slice,
    "Clip": _is_unlimited,
    "MaxPool": _one_tap,
    "AveragePool": _one_tap,
    "GlobalAveragePool": _one_element,
    "GlobalMaxPool": _one_element,
    "Resize": _same_size,
    "ReduceMean": _reduces_ones,
    "ReduceSum": _reduces_ones,
    "ReduceMax": _reduces_ones,
    "ReduceMin": _reduces_ones,
    "Add": _neutral(0),
    "Sub": _neutral(0),
    "Mul": _neutral(1),
    "Div": _neutral(1),
}
"""Operators with a form that returns the input. Tests may rely on equal types of input and output."""
