"""Operators that move elements without computing with them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import expect_axes, expect_rank, same_type
from npuc.ops.table import Op, bad_node, register

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _concat_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    dtype, axis, first = same_type(node, types), node.integer("axis"), types[0].shape
    expect_axes(node, (axis,), len(first))
    for name, each in zip(node.inputs, types, strict=True):
        if len(each.shape) != len(first) or any(
            a != b for at, (a, b) in enumerate(zip(each.shape, first, strict=True)) if at != axis
        ):
            reason = f"shapes {list(first)} and {list(each.shape)} differ beside axis {axis}"
            raise bad_node(node, reason, tensor=name)
    joined = sum(each.shape[axis] for each in types)
    return (TensorType((*first[:axis], joined, *first[axis + 1 :]), dtype),)


def _split_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, axis, sizes = types[0], node.integer("axis"), node.integers("split")
    expect_axes(node, (axis,), len(x.shape))
    if len(sizes) != len(node.outputs) or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        reason = f"sizes {list(sizes)} for {len(node.outputs)} outputs of {x.shape[axis]} elements"
        raise bad_node(node, reason, tensor=node.inputs[0], limit="one size per output, the sum is the axis")
    return tuple(TensorType((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in sizes)


def _split(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    bounds = np.cumsum(node.integers("split"))[:-1]
    return tuple(np.split(inputs[0], bounds, axis=node.integer("axis")))


def slice_index(node: Node) -> dict[int, slice]:
    """The python slice of each axis that a Slice cuts; an end below 0 stands for "past the first element"."""
    parts = (node.integers(key) for key in ("axes", "starts", "ends", "steps"))
    return {
        axis: slice(start, None if end < 0 else end, step) for axis, start, end, step in zip(*parts, strict=True)
    }


def _slice_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x = types[0]
    expect_axes(node, node.integers("axes"), len(x.shape))
    if 0 in node.integers("steps"):
        raise bad_node(node, "a step is 0")
    cuts = slice_index(node)
    whole = slice(None)
    shape = tuple(len(range(n)[cuts.get(axis, whole)]) for axis, n in enumerate(x.shape))
    return (TensorType(shape, x.dtype),)


def _slice(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    cuts, whole = slice_index(node), slice(None)
    return (inputs[0][tuple(cuts.get(axis, whole) for axis in range(inputs[0].ndim))],)


def _pad_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, pads = types[0], node.integers("pads")
    rank, mode = len(x.shape), node.text("mode", "constant")
    if len(pads) != 2 * rank:
        raise bad_node(node, f"{len(pads)} pads for {rank} dimensions", limit=f"{2 * rank} values")
    if mode not in PAD_MODES:
        raise bad_node(node, f"mode is {mode!r}", limit=", ".join(PAD_MODES))
    shape = tuple(n + b + e for n, b, e in zip(x.shape, pads[:rank], pads[rank:], strict=True))
    if any(extent < 0 for extent in shape):
        raise bad_node(node, f"the pads leave a shape of {list(shape)}")
    for n, b, e in zip(x.shape, pads[:rank], pads[rank:], strict=True):
        left = n + min(b, 0) + min(e, 0)
        if (mode == "reflect" and max(b, e) >= max(left, 1)) or (mode != "constant" and left < 1):
            raise bad_node(node, f"{mode} padding of {max(b, e)} for {left} elements", tensor=node.inputs[0])
    return (TensorType(shape, x.dtype),)


def _pad(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Negative pads cut first, then the positive ones are filled."""
    (x,) = inputs
    pads, mode = node.integers("pads"), node.text("mode", "constant")
    pairs = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    x = x[tuple(slice(max(-b, 0), n + min(e, 0)) for n, (b, e) in zip(x.shape, pairs, strict=True))]
    widths = [(max(b, 0), max(e, 0)) for b, e in pairs]
    if mode == "constant":
        return (np.pad(x, widths, constant_values=node.number("value")),)
    if mode == "reflect":
        return (np.pad(x, widths, mode="reflect"),)
    return (np.pad(x, widths, mode="edge" if mode == "edge" else "wrap"),)


def _reshape_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, shape = types[0], node.integers("shape")
    if prod(shape) != x.size or any(extent < 0 for extent in shape):
        reason = f"shape {list(x.shape)} has {x.size} elements, {list(shape)} has {prod(shape)}"
        raise bad_node(node, reason, tensor=node.inputs[0])
    return (TensorType(shape, x.dtype),)


def _transpose_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, perm = types[0], node.integers("perm")
    if sorted(perm) != list(range(len(x.shape))):
        reason = f"perm {list(perm)} for an input of shape {list(x.shape)}"
        raise bad_node(node, reason, tensor=node.inputs[0], limit="a permutation of all axes")
    return (TensorType(tuple(x.shape[axis] for axis in perm), x.dtype),)


def _transpose(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (inputs[0].transpose(node.integers("perm")),)


def _expand_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, shape = types[0], node.integers("shape")
    aligned = (*(1 for _ in shape[len(x.shape) :]), *x.shape)
    if len(aligned) != len(shape) or any(n not in (1, m) for n, m in zip(aligned, shape, strict=True)):
        reason = f"shape {list(x.shape)} does not broadcast to {list(shape)}"
        raise bad_node(node, reason, tensor=node.inputs[0])
    return (TensorType(shape, x.dtype),)


def _expand(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.broadcast_to(inputs[0], node.integers("shape")),)


def _gather_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, indices = types
    axis = node.integer("axis")
    expect_axes(node, (axis,), len(x.shape))
    if indices.dtype not in ("int32", "int64"):
        raise bad_node(node, f"indices of type {indices.dtype}", tensor=node.inputs[1], limit="int32, int64")
    return (TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)


def _gather(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, indices = inputs
    axis = node.integer("axis")
    extent = x.shape[axis]
    if indices.size and not -extent <= indices.min() <= indices.max() < extent:
        reason = f"an index lies outside the {extent} elements of axis {axis}"
        raise bad_node(node, reason, tensor=node.inputs[1], limit=f"{-extent}..{extent - 1}")
    return (np.asarray(np.take(x, indices, axis=axis)),)


CAST_TYPES = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")


def _cast_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    to = node.text("to")
    if to not in CAST_TYPES:
        raise bad_node(node, f"cast to {to}", limit=", ".join(CAST_TYPES))
    return (TensorType(types[0].shape, to),)


def _cast(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (inputs[0].astype(node.text("to")),)


def _blocks_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, block = types[0], node.integer("blocksize")
    expect_rank(node, x, 4, 4)
    n, c, h, w = x.shape
    if node.op == "SpaceToDepth":
        if block < 1 or h % block or w % block:
            raise bad_node(node, f"blocksize {block} does not divide {h} x {w}", tensor=node.inputs[0])
        return (TensorType((n, c * block * block, h // block, w // block), x.dtype),)
    if block < 1 or c % (block * block):
        raise bad_node(node, f"blocksize {block} squared does not divide {c} channels", tensor=node.inputs[0])
    if node.text("mode", "DCR") not in ("DCR", "CRD"):
        raise bad_node(node, f"mode is {node.text('mode')!r}", limit="DCR, CRD")
    return (TensorType((n, c // (block * block), h * block, w * block), x.dtype),)


def interleaved_extents(extent: int, count: int) -> list[int]:
    """How many elements of an axis each of so many tensors gives, in turns.

    >>> interleaved_extents(5, 2)
    [3, 2]
    """
    return [-(-(extent - number) // count) for number in range(count)]


def _interleave_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    dtype, axis, first = same_type(node, types), node.integer("axis"), types[0].shape
    expect_axes(node, (axis,), len(first))
    extent = sum(each.shape[axis] for each in types)
    for name, each, wanted in zip(node.inputs, types, interleaved_extents(extent, len(types)), strict=True):
        if each.shape != (*first[:axis], wanted, *first[axis + 1 :]):
            reason = f"shapes {list(first)} and {list(each.shape)} do not take turns along axis {axis}"
            raise bad_node(node, reason, tensor=name)
    return (TensorType((*first[:axis], extent, *first[axis + 1 :]), dtype),)


def _interleave(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = node.integer("axis")
    joined = np.concatenate([np.moveaxis(each, axis, 0) for each in inputs])
    result = np.empty_like(joined)
    for number, each in enumerate(inputs):
        result[number :: len(inputs)] = np.moveaxis(each, axis, 0)
    return (np.moveaxis(result, 0, axis),)


def _space_to_depth(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    block, (n, c, h, w) = node.integer("blocksize"), x.shape
    y = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return (y.reshape(n, c * block * block, h // block, w // block),)


def _depth_to_space(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    block, (n, c, h, w) = node.integer("blocksize"), x.shape
    out = c // (block * block)
    if node.text("mode", "DCR") == "DCR":
        y = x.reshape(n, block, block, out, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, out, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return (y.reshape(n, out, h * block, w * block),)


register(
    Op(
        "Concat",
        "The inputs one after the other along an axis.",
        _concat_types,
        lambda node, inputs: (np.concatenate(inputs, axis=node.integer("axis")),),
    ),
    Op("Split", "Pieces of the given sizes along an axis.", _split_types, _split),
    Op("Slice", "Every step-th element between start and end of some axes.", _slice_types, _slice),
    Op("Pad", "Constant, reflected, repeated or wrapped elements around the tensor.", _pad_types, _pad),
    Op(
        "Reshape",
        "The same elements in another shape (also Flatten, Squeeze, Unsqueeze).",
        _reshape_types,
        lambda node, inputs: (inputs[0].reshape(node.integers("shape")),),
    ),
    Op(
        "Transpose",
        "The axes in another order.",
        _transpose_types,
        _transpose,
    ),
    Op(
        "Expand",
        "The tensor broadcast to a shape.",
        _expand_types,
        _expand,
    ),
    Op("Gather", "The slices of an axis that an index tensor names.", _gather_types, _gather),
    Op(
        "Cast",
        "The elements in another type.",
        _cast_types,
        _cast,
    ),
    Op(
        "Interleave",
        "The inputs in turns along an axis, a slice of each after the other; made by passes, not in ONNX.",
        _interleave_types,
        _interleave,
    ),
    Op("SpaceToDepth", "Blocks of pixels moved into channels.", _blocks_types, _space_to_depth),
    Op("DepthToSpace", "Channels moved into blocks of pixels.", _blocks_types, _depth_to_space),
)
