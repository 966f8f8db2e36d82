"""Pairs of QuantizeLinear and DequantizeLinear as FakeQuantize: a float graph that shows where it is rounded.

A quantised model computes in floats between DequantizeLinear and QuantizeLinear and moves integers between
QuantizeLinear and DequantizeLinear. Here data movement is transferred to the float part, so that the pairs become
adjacent; any remaining one converts an input or an output of the network.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import PAD_MODE, RESIZE_MODE, TO, VALUE, WHOLE
from npuc.passes.rewriting.rules import Rewriter, rewrite

ONE_INPUT = ("Reshape", "Transpose", "Slice", "Expand", "DepthToSpace", "SpaceToDepth", "MaxPool", "Identity")
"""Operators on integers that select elements of their single input."""
GRIDS = ("int8", "uint8")
MARKS = ("QuantizeLinear", "DequantizeLinear", "FakeQuantize")


def recognise_quantisation(graph: Graph) -> Graph:
    """FakeQuantize in place of QuantizeLinear and DequantizeLinear per tensor, to 8 bits.

    If the two have different scales or zero points, a product and a sum follow. Repeated rounding by the same
    FakeQuantize, after movement, comparison or a limit at 0, changes nothing and is removed.
    """
    if not any(node.op in MARKS or WHOLE(node) for node in graph.nodes):
        return graph
    return rewrite(graph, _stay_float, _raise_dequantize, _sink_quantize, _pair, _before_concat, _drop_repeated)


def _parameters(rewriter: Rewriter, node: Node | None, op: str) -> tuple[float, int, str] | None:
    """Scale, zero point (0 if absent) and integer type of a per-tensor conversion to or from 8 bits."""
    if node is None or node.op != op:
        return None
    dtype = rewriter.types[node.output if op == "QuantizeLinear" else node.inputs[0]].dtype
    given = "".join(node.inputs[2:])
    scale = rewriter.constants.get(node.inputs[1])
    zero = rewriter.constants.get(given) if given else np.zeros(1, dtype)
    if scale is None or zero is None or dtype not in GRIDS:
        return None
    if (scale != scale.flat[0]).any() or (zero != zero.flat[0]).any():
        return None
    return float(scale.flat[0]), int(zero.flat[0]), dtype


def _converting(rewriter: Rewriter, node: Node, x: str, y: str) -> Node:
    """A per-tensor conversion of another tensor, possibly with other axes: equal scales are reduced to one."""
    one = {
        name: rewriter.constant(rewriter.constants[name].reshape(-1)[:1].reshape(()), f"{name}/one")
        for name in filter(None, node.inputs[1:])
        if rewriter.constants[name].size > 1
    }
    return replace(node, inputs=(x, *(one.get(name, name) for name in node.inputs[1:])), outputs=(y,), name=y)


def _stay_float(rewriter: Rewriter, node: Node) -> bool:
    """Removes conversions of whole numbers to int32 and back to float."""
    cast = rewriter.producer(node.inputs[0]) if node.op == "Cast" and TO(node) == "float32" else None
    if cast is None or not WHOLE(cast):
        return False
    rewriter.replace(node, replace(node, op="Identity", inputs=cast.inputs, attrs={}))
    return True


def _raise_dequantize(rewriter: Rewriter, node: Node) -> bool:
    """DequantizeLinear of integers that are only moved: the floats are moved instead."""
    found = _parameters(rewriter, node, "DequantizeLinear")
    moved = rewriter.producer(node.inputs[0]) if found else None
    if found is None or moved is None:
        return False
    resized = moved.op == "Resize" and RESIZE_MODE(moved) == "nearest"
    if not (moved.op in (*ONE_INPUT, "Concat", "Split", "Pad") or resized):
        return False
    scale, zero, _ = found
    attrs = dict(moved.attrs)
    if moved.op == "Pad":
        attrs["value"] = (VALUE(moved) - zero) * scale
    data = len(moved.inputs) if moved.op == "Concat" else 1
    floats = [rewriter.fresh(f"{name}/dequantised") for name in moved.inputs[:data]]
    before = [_converting(rewriter, node, name, x) for name, x in zip(moved.inputs, floats, strict=False)]
    outputs = tuple(
        node.output if name == node.inputs[0] else rewriter.fresh(f"{name}/float") for name in moved.outputs
    )
    inputs = (*floats, *moved.inputs[data:])
    sources = rewriter.sources(moved, node)
    after = replace(moved, inputs=inputs, outputs=outputs, attrs=attrs, name=node.name, sources=sources)
    rewriter.replace(node, *before, after)
    return True


def _sink_quantize(rewriter: Rewriter, node: Node) -> bool:
    """Movement of the result of a QuantizeLinear: the floats are moved instead. A pool stays behind."""
    quantize = rewriter.producer(node.inputs[0]) if node.op in ONE_INPUT and len(node.outputs) == 1 else None
    if quantize is None or _parameters(rewriter, quantize, "QuantizeLinear") is None:
        return False
    if node.op == "MaxPool" and node.output not in rewriter.outputs:
        return False
    moved = rewriter.fresh(f"{node.output}/float")
    first = replace(node, inputs=(quantize.inputs[0], *node.inputs[1:]), outputs=(moved,))
    rewriter.replace(node, first, _converting(rewriter, quantize, moved, node.output))
    return True


def _pair(rewriter: Rewriter, node: Node) -> bool:
    """DequantizeLinear of QuantizeLinear."""
    quantize = rewriter.producer(node.inputs[0]) if node.op == "DequantizeLinear" else None
    made, read = (
        _parameters(rewriter, quantize, "QuantizeLinear"),
        _parameters(rewriter, node, "DequantizeLinear"),
    )
    if quantize is None or made is None or read is None:
        return False
    (scale, zero, dtype), (other, other_zero, _) = made, read
    attrs = {"scale": scale, "zero_point": zero, "dtype": dtype}
    rounded = node.output if made == read else rewriter.fresh(f"{node.output}/rounded")
    new = [
        Node("FakeQuantize", quantize.inputs[:1], (rounded,), attrs, node.name, rewriter.sources(quantize, node))
    ]
    if made != read:
        scaled = rewriter.fresh(f"{node.output}/scaled")
        factor = rewriter.constant(np.array(other / scale, np.float32), f"{node.output}/factor")
        shift = rewriter.constant(np.array((zero - other_zero) * other, np.float32), f"{node.output}/shift")
        new.append(Node("Mul", (rounded, factor), (scaled,), {}, f"{node.name}/scaled", node.sources))
        new.append(Node("Add", (scaled, shift), node.outputs, {}, f"{node.name}/shifted", node.sources))
    rewriter.replace(node, *new)
    return True


def _before_concat(rewriter: Rewriter, node: Node) -> bool:
    """FakeQuantize of a concatenation: its operands, which have scales of their own, are rounded instead."""
    concat = rewriter.private(node.inputs[0]) if node.op == "FakeQuantize" else None
    if concat is None or concat.op != "Concat" or _on_grid(rewriter, concat.output, node):
        return False
    names = [rewriter.fresh(f"{name}/{node.output}") for name in concat.inputs]
    rounded = [
        replace(node, inputs=(name,), outputs=(new,), name=f"{node.name}/{new}")
        for name, new in zip(concat.inputs, names, strict=True)
    ]
    sources = rewriter.sources(concat, node)
    rewriter.replace(node, *rounded, replace(concat, inputs=tuple(names), outputs=node.outputs, sources=sources))
    return True


def _drop_repeated(rewriter: Rewriter, node: Node) -> bool:
    """Removes a FakeQuantize of a tensor whose values it does not change."""
    return node.op == "FakeQuantize" and _on_grid(rewriter, node.inputs[0], node) and rewriter.bypass(node)


def _on_grid(rewriter: Rewriter, tensor: str, grid: Node) -> bool:
    """Whether every element of the tensor is a multiple that the FakeQuantize node does not change."""
    node = rewriter.producer(tensor)
    if node is None:
        return False
    if node.op == "FakeQuantize":
        return node.attrs == grid.attrs
    if node.op == "DequantizeLinear":
        keys = ("scale", "zero_point", "dtype")
        return _parameters(rewriter, node, node.op) == tuple(grid.attrs[key] for key in keys)
    if node.op == "Concat":
        return all(_on_grid(rewriter, name, grid) for name in node.inputs)
    if node.op == "Pad":
        zero = PAD_MODE(node) != "constant" or VALUE(node) == 0
        return zero and _on_grid(rewriter, node.inputs[0], grid)
    return node.op in (*ONE_INPUT, "Split", "Relu") and _on_grid(rewriter, node.inputs[0], grid)
