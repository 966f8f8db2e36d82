"""The same computation on tensors with permuted axes, or with axes of extent 1 in between.

Elementwise operators and those that refer to axes by number (Concat, Pad, Softmax, ...) can compute in any layout;
Conv, pooling and normalisation cannot: they need the batch first and the channels second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.ops.attributes import AXES, AXIS, KEEPDIMS, RESIZE_MODE, SCALES, SHAPE, SIDES, SIZES, STEPS_AXIS
from npuc.passes.rewriting.rules import Rewriter

Layout = tuple[int | None, ...]
"""For every axis of the new layout its axis in the old one, or None for a new axis of extent 1."""

UNARY = frozenset(
    (
        *(
            "Abs",
            "Cast",
            "Ceil",
            "Clip",
            "Elu",
            "Erf",
            "Exp",
            "FakeQuantize",
            "Floor",
            "Gelu",
            "HardSigmoid",
            "HardSwish",
        ),
        *("Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Softplus"),
        *("Softsign", "Sqrt", "Swish", "Tanh"),
    )
)
"""Unary functions."""

BINARY = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu"))
"""Binary functions, with broadcasting."""

Attrs = dict[str, Attr]


def _position(layout: Layout, axis: int) -> int:
    return layout.index(axis)


def _one_axis(node: Node, layout: Layout) -> Attrs:
    return {"axis": _position(layout, AXIS(node))}


def _some_axes(node: Node, layout: Layout) -> Attrs:
    return {"axes": tuple(_position(layout, axis) for axis in AXES(node))}


def _sorted_axes(node: Node, layout: Layout) -> Attrs:
    return {"axes": tuple(sorted(_position(layout, axis) for axis in AXES(node)))}


def _spread(values: Sequence[int], layout: Layout, default: int) -> tuple[int, ...]:
    return tuple(default if axis is None else values[axis] for axis in layout)


def _pads(node: Node, layout: Layout) -> Attrs:
    pads = SIDES(node)
    rank = len(pads) // 2
    return {"pads": _spread(pads[:rank], layout, 0) + _spread(pads[rank:], layout, 0)}


def _shape(node: Node, layout: Layout) -> Attrs:
    return {"shape": _spread(SHAPE(node), layout, 1)}


def _sizes(node: Node, layout: Layout) -> Attrs:
    scales = SCALES(node)
    moved = tuple(1.0 if axis is None else scales[axis] for axis in layout)
    return {"sizes": _spread(SIZES(node), layout, 1), "scales": moved}


def _quantisation_axis(node: Node, layout: Layout) -> Attrs:
    """Per-tensor forms have an axis attribute too, for a rank that nobody checks."""
    axis = STEPS_AXIS(node)
    return {"axis": _position(layout, axis) if axis in layout else axis}


def _nothing(_node: Node, _layout: Layout) -> Attrs:
    return {}


_MOVED_ATTRS: Mapping[str, Callable[[Node, Layout], Attrs]] = {
    **dict.fromkeys([*UNARY, *BINARY], _nothing),
    **dict.fromkeys(("Concat", "Split", "Softmax", "LogSoftmax", "ArgMax"), _one_axis),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _sorted_axes),
    "Slice": _some_axes,
    "Pad": _pads,
    "Expand": _shape,
    "Resize": _sizes,
    "QuantizeLinear": _quantisation_axis,
    "DequantizeLinear": _quantisation_axis,
}


def moved_inputs(rewriter: Rewriter, node: Node) -> tuple[str, ...] | None:
    """The computed tensors that must move with the node; None if it cannot compute in other layouts.

    Constants are rearranged; scales and zero points are vectors and stay.
    """
    if node.op not in _MOVED_ATTRS or not KEEPDIMS(node):
        return None
    inputs = node.inputs
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        if any(name not in rewriter.constants for name in filter(None, inputs[1:])):
            return None
        inputs = inputs[:1]
    computed = tuple(dict.fromkeys(name for name in inputs if name not in rewriter.constants))
    rank = len(rewriter.shape(node.output))
    same = all(len(rewriter.shape(name)) == rank for name in computed)
    fits = all(len(rewriter.shape(name)) <= rank for name in inputs)
    return computed if computed and same and fits else None


def may_move(rewriter: Rewriter, name: str, layout: Layout) -> bool:
    """Whether a node can exist in another layout: onnxruntime interpolates only along certain axes."""
    node = rewriter.node(name)
    if node is None or node.op != "Resize" or RESIZE_MODE(node) == "nearest":
        return True
    scales = [1.0 if axis is None else SCALES(node)[axis] for axis in layout]
    inner = len(scales) < 4 or scales[:2] == [1.0, 1.0]
    return inner or (RESIZE_MODE(node) == "linear" and len(scales) == 4 and scales[0] == scales[3] == 1.0)


def moved_node(rewriter: Rewriter, node: Node, layout: Layout, names: Mapping[str, str]) -> Node:
    """The node in another layout.

    names: for each moved input and each output the name of its moved form.
    """
    inputs = tuple(
        names[name] if name in names else _moved_constant(rewriter, node, index, layout)
        for index, name in enumerate(node.inputs)
    )
    outputs = tuple(names.get(name, name) for name in node.outputs)
    attrs = {**node.attrs, **_MOVED_ATTRS[node.op](node, layout)}
    return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)


def _moved_constant(rewriter: Rewriter, node: Node, index: int, layout: Layout) -> str:
    name = node.inputs[index]
    whole = node.op in BINARY or node.op == "Concat"
    number = node.op != "Concat" and rewriter.constants[name].size == 1 and rewriter.constants[name].ndim <= 1
    if not whole or number:
        return name
    rank = len(rewriter.shape(node.output))
    value = rewriter.constants[name]
    aligned = value.reshape((1,) * (rank - value.ndim) + value.shape)
    if node.op != "Concat" and all(n == 1 for n in aligned.shape):
        return rewriter.constant(aligned.reshape(()), f"{node.output}/operand{index}")
    return rewriter.constant(laid_out(aligned, layout), f"{node.output}/operand{index}")


def laid_out(value: Array, layout: Layout) -> Array:
    """A constant in the new layout."""
    moved = value.transpose([axis for axis in layout if axis is not None])
    new_axes = [at for at, axis in enumerate(layout) if axis is None]
    return np.ascontiguousarray(np.expand_dims(moved, new_axes) if new_axes else moved)


def compose(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The permutation of a Transpose by `first` followed by one by `second`."""
    return tuple(first[axis] for axis in second)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def moves_nothing(shape: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether a Transpose of a tensor with this shape keeps its elements in the same memory order."""
    wide = [axis for axis in perm if shape[axis] != 1]
    return wide == sorted(wide)
