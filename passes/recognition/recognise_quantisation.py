"""Pairs of QuantizeLinear and DequantizeLinear become FakeQuantize: a float graph that says where it is rounded.

A quantised model computes in floats between DequantizeLinear and QuantizeLinear and moves integers between
QuantizeLinear and DequantizeLinear. Here data movement joins the float side, so that each pair meets; what is left
of either operator converts an input or an output of the network.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import PAD_MODE, RESIZE_MODE, TO, VALUE, WHOLE
from npuc.passes.rewriting.rules import Draft, rewrite

ONE_INPUT = ("Reshape", "Transpose", "Slice", "Expand", "DepthToSpace", "SpaceToDepth", "MaxPool", "Identity")
"""Operators on integers that give elements of their one input."""
GRIDS = ("int8", "uint8")
MARKS = ("QuantizeLinear", "DequantizeLinear", "FakeQuantize")


def recognise_quantisation(graph: Graph) -> Graph:
    """FakeQuantize in place of QuantizeLinear and DequantizeLinear per tensor, to 8 bits.

    Where both have different scales or zero points, a product and a sum follow. Rounding again what the same
    FakeQuantize has rounded, moved, compared or limited at 0, changes nothing and is left out.
    """
    if not any(node.op in MARKS or WHOLE(node) for node in graph.nodes):
        return graph
    return rewrite(graph, _stay_float, _raise_dequantize, _sink_quantize, _pair, _before_concat, _repeated)


def _parameters(draft: Draft, node: Node | None, op: str) -> tuple[float, int, str] | None:
    """Scale, zero point (0 where none is given) and integer type of a conversion per tensor, to or from 8 bits."""
    if node is None or node.op != op:
        return None
    dtype = draft.types[node.output if op == "QuantizeLinear" else node.inputs[0]].dtype
    given = "".join(node.inputs[2:])
    scale = draft.constants.get(node.inputs[1])
    zero = draft.constants.get(given) if given else np.zeros(1, dtype)
    if scale is None or zero is None or dtype not in GRIDS:
        return None
    if (scale != scale.flat[0]).any() or (zero != zero.flat[0]).any():
        return None
    return float(scale.flat[0]), int(zero.flat[0]), dtype


def _converting(draft: Draft, node: Node, x: str, y: str) -> Node:
    """A conversion per tensor of another tensor, whose axes may be others: scales that are all alike are one."""
    one = {
        name: draft.constant(draft.constants[name].reshape(-1)[:1].reshape(()), f"{name}/one")
        for name in filter(None, node.inputs[1:])
        if draft.constants[name].size > 1
    }
    return replace(node, inputs=(x, *(one.get(name, name) for name in node.inputs[1:])), outputs=(y,), name=y)


def _stay_float(draft: Draft, node: Node) -> bool:
    """Whole numbers that become int32 only to become floats again."""
    cast = draft.producer(node.inputs[0]) if node.op == "Cast" and TO(node) == "float32" else None
    if cast is None or not WHOLE(cast):
        return False
    draft.replace(node, replace(node, op="Identity", inputs=cast.inputs, attrs={}))
    return True


def _raise_dequantize(draft: Draft, node: Node) -> bool:
    """DequantizeLinear of integers that are only moved: they move as floats."""
    found = _parameters(draft, node, "DequantizeLinear")
    moved = draft.producer(node.inputs[0]) if found else None
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
    floats = [draft.fresh(f"{name}/dequantised") for name in moved.inputs[:data]]
    before = [_converting(draft, node, name, x) for name, x in zip(moved.inputs, floats, strict=False)]
    outputs = tuple(
        node.output if name == node.inputs[0] else draft.fresh(f"{name}/float") for name in moved.outputs
    )
    inputs = (*floats, *moved.inputs[data:])
    sources = draft.sources(moved, node)
    after = replace(moved, inputs=inputs, outputs=outputs, attrs=attrs, name=node.name, sources=sources)
    draft.replace(node, *before, after)
    return True


def _sink_quantize(draft: Draft, node: Node) -> bool:
    """Movement of what QuantizeLinear has just made: the floats move instead. A pool stays behind."""
    quantize = draft.producer(node.inputs[0]) if node.op in ONE_INPUT and len(node.outputs) == 1 else None
    if quantize is None or _parameters(draft, quantize, "QuantizeLinear") is None:
        return False
    if node.op == "MaxPool" and node.output not in draft.outputs:
        return False
    moved = draft.fresh(f"{node.output}/float")
    first = replace(node, inputs=(quantize.inputs[0], *node.inputs[1:]), outputs=(moved,))
    draft.replace(node, first, _converting(draft, quantize, moved, node.output))
    return True


def _pair(draft: Draft, node: Node) -> bool:
    """DequantizeLinear of QuantizeLinear."""
    quantize = draft.producer(node.inputs[0]) if node.op == "DequantizeLinear" else None
    made, read = (
        _parameters(draft, quantize, "QuantizeLinear"),
        _parameters(draft, node, "DequantizeLinear"),
    )
    if quantize is None or made is None or read is None:
        return False
    (scale, zero, dtype), (other, other_zero, _) = made, read
    attrs = {"scale": scale, "zero_point": zero, "dtype": dtype}
    rounded = node.output if made == read else draft.fresh(f"{node.output}/rounded")
    new = [Node("FakeQuantize", quantize.inputs[:1], (rounded,), attrs, node.name, draft.sources(quantize, node))]
    if made != read:
        scaled = draft.fresh(f"{node.output}/scaled")
        factor = draft.constant(np.array(other / scale, np.float32), f"{node.output}/factor")
        shift = draft.constant(np.array((zero - other_zero) * other, np.float32), f"{node.output}/shift")
        new.append(Node("Mul", (rounded, factor), (scaled,), {}, f"{node.name}/scaled", node.sources))
        new.append(Node("Add", (scaled, shift), node.outputs, {}, f"{node.name}/shifted", node.sources))
    draft.replace(node, *new)
    return True


def _before_concat(draft: Draft, node: Node) -> bool:
    """FakeQuantize of a concatenation: its operands, which have scales of their own, are rounded instead."""
    concat = draft.private(node.inputs[0]) if node.op == "FakeQuantize" else None
    if concat is None or concat.op != "Concat" or _on_grid(draft, concat.output, node):
        return False
    names = [draft.fresh(f"{name}/{node.output}") for name in concat.inputs]
    rounded = [
        replace(node, inputs=(name,), outputs=(new,), name=f"{node.name}/{new}")
        for name, new in zip(concat.inputs, names, strict=True)
    ]
    sources = draft.sources(concat, node)
    draft.replace(node, *rounded, replace(concat, inputs=tuple(names), outputs=node.outputs, sources=sources))
    return True


def _repeated(draft: Draft, node: Node) -> bool:
    """FakeQuantize of what only has values that it keeps."""
    return node.op == "FakeQuantize" and _on_grid(draft, node.inputs[0], node) and draft.bypass(node)


def _on_grid(draft: Draft, tensor: str, grid: Node) -> bool:
    """Whether every element of the tensor is a multiple that the FakeQuantize node keeps."""
    node = draft.producer(tensor)
    if node is None:
        return False
    if node.op == "FakeQuantize":
        return node.attrs == grid.attrs
    if node.op == "DequantizeLinear":
        keys = ("scale", "zero_point", "dtype")
        return _parameters(draft, node, node.op) == tuple(grid.attrs[key] for key in keys)
    if node.op == "Concat":
        return all(_on_grid(draft, name, grid) for name in node.inputs)
    if node.op == "Pad":
        zero = PAD_MODE(node) != "constant" or VALUE(node) == 0
        return zero and _on_grid(draft, node.inputs[0], grid)
    return node.op in (*ONE_INPUT, "Split", "Relu") and _on_grid(draft, node.inputs[0], grid)
