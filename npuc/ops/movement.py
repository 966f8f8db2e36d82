"""Operators that move elements without computing with them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import (
    AXES,
    AXIS,
    BLOCK_MODE,
    BLOCKSIZE,
    ENDS,
    ON_DEVICE,
    PAD_MODE,
    PERM,
    SHAPE,
    SIDES,
    SPLIT,
    STARTS,
    STEPS,
    TO,
    VALUE,
    WHOLE,
)
from npuc.ops.declaration import ANY, Op, Parameter, bad_node

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


def _alike_beside_the_axis(node: Node, types: Sequence[TensorType]) -> bool:
    """All extents beside the axis are the same."""
    axis, first = AXIS(node), types[0].shape
    others = {(len(each.shape), each.shape[:axis], each.shape[axis + 1 :]) for each in types}
    return others == {(len(first), first[:axis], first[axis + 1 :])}


def _concat_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    axis, first = AXIS(node), types[0]
    extent = sum(each.shape[axis] for each in types)
    return (TensorType((*first.shape[:axis], extent, *first.shape[axis + 1 :]), first.dtype),)


def _concat(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.concatenate(inputs, axis=AXIS(node)),)


def _sizes_add_up(node: Node, types: Sequence[TensorType]) -> bool:
    """There is one size per output, and their sum is the axis."""
    sizes = SPLIT(node)
    return len(sizes) == len(node.outputs) and sum(sizes) == types[0].shape[AXIS(node)]


def _split_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, axis = types[0], AXIS(node)
    return tuple(TensorType((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in SPLIT(node))


def _split(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(np.split(inputs[0], np.cumsum(SPLIT(node))[:-1], axis=AXIS(node)))


def _split_onnx(node: Node, emit: OnnxEmitter) -> None:
    emit.node("Split", [node.inputs[0], emit.integers("split", SPLIT(node))], node.outputs, axis=AXIS(node))


def slice_index(node: Node) -> dict[int, slice]:
    """The Python slice of each axis that a Slice cuts; an end below 0 stands for "past the first element"."""
    parts = zip(AXES(node), STARTS(node), ENDS(node), STEPS(node), strict=True)
    return {axis: slice(start, None if end < 0 else end, step) for axis, start, end, step in parts}


def _cuts_are_whole(node: Node, _types: Sequence[TensorType]) -> bool:
    """Each axis has a start, an end and a step other than 0; only a negative one ends before the first element."""
    ends, steps = ENDS(node), STEPS(node)
    alike = len(AXES(node)) == len(STARTS(node)) == len(ends) == len(steps)
    return alike and all(step and (end >= 0 or step < 0) for end, step in zip(ends, steps, strict=True))


def _slice_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, cuts, whole = types[0], slice_index(node), slice(None)
    shape = tuple(len(range(n)[cuts.get(axis, whole)]) for axis, n in enumerate(x.shape))
    return (TensorType(shape, x.dtype),)


def _slice(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    cuts, whole = slice_index(node), slice(None)
    return (inputs[0][tuple(cuts.get(axis, whole) for axis in range(inputs[0].ndim))],)


def _slice_onnx(node: Node, emit: OnnxEmitter) -> None:
    """An end below 0 means "past the first element"; ONNX would count it from the end."""
    shape, axes = emit.graph.shape(node.inputs[0]), AXES(node)
    ends = [end if end >= 0 else -shape[axis] - 1 for axis, end in zip(axes, ENDS(node), strict=True)]
    parts = {"starts": STARTS(node), "ends": ends, "axes": axes, "steps": STEPS(node)}
    inputs = [emit.integers(stem, values) for stem, values in parts.items()]
    emit.node("Slice", [node.inputs[0], *inputs], node.outputs)


def _sides(node: Node, shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """For each axis: the extent, and the elements added before and after it."""
    pads = SIDES(node)
    return list(zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True))


def _padding_has_a_source(node: Node, types: Sequence[TensorType]) -> bool:
    """What is cut off is there; fewer elements are reflected than there are; other modes repeat at least one."""
    mode = PAD_MODE(node)
    for extent, begin, end in _sides(node, types[0].shape):
        left = extent + min(begin, 0) + min(end, 0)
        if extent + begin + end < 0 or (mode != "constant" and left < 1):
            return False
        if mode == "reflect" and max(begin, end) >= left:
            return False
    return True


def _value_of_the_type(node: Node, types: Sequence[TensorType]) -> bool:
    """The value is one of the element type."""
    limits = None if types[0].dtype == "bool" or types[0].dtype.startswith("float") else np.iinfo(types[0].dtype)
    return limits is None or (VALUE(node) == int(VALUE(node)) and limits.min <= VALUE(node) <= limits.max)


def _pad_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,) = types
    return (TensorType(tuple(map(sum, _sides(node, x.shape))), x.dtype),)


def _pad(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Crops by negative pads first, then fills the positive ones."""
    (x,) = inputs
    mode, sides = PAD_MODE(node), _sides(node, x.shape)
    x = x[tuple(slice(max(-begin, 0), extent + min(end, 0)) for extent, begin, end in sides)]
    widths = [(max(begin, 0), max(end, 0)) for _, begin, end in sides]
    if mode == "constant":
        return (np.pad(x, widths, constant_values=VALUE(node)),)
    if mode == "reflect":
        return (np.pad(x, widths, mode="reflect"),)
    return (np.pad(x, widths, mode="edge" if mode == "edge" else "wrap"),)


def _pad_onnx(node: Node, emit: OnnxEmitter) -> None:
    x, mode = node.inputs[0], PAD_MODE(node)
    if mode == "wrap":
        _pad_by_wrapping(node, emit)
        return
    inputs = [x, emit.integers("pads", SIDES(node))]
    if mode == "constant":
        inputs.append(emit.constant(np.array(VALUE(node), np.dtype(emit.graph.tensors[x].dtype)), "value"))
    emit.node("Pad", inputs, node.outputs, mode=mode)


def _pad_by_wrapping(node: Node, emit: OnnxEmitter) -> None:
    """One Gather per padded axis, as opset 17 has no such mode."""
    name = node.inputs[0]
    for axis, (extent, begin, end) in enumerate(_sides(node, emit.graph.shape(name))):
        if begin or end:
            low, high = max(-begin, 0), extent + min(end, 0)
            index = low + (np.arange(-begin, extent + end, dtype=np.int64) - low) % (high - low)
            padded = emit.fresh(f"axis{axis}")
            emit.node("Gather", [name, emit.constant(index, "indices")], [padded], axis=axis)
            name = padded
    emit.node("Identity", [name], node.outputs)


def _same_elements(node: Node, types: Sequence[TensorType]) -> bool:
    """The new shape has as many elements as the old one."""
    return prod(SHAPE(node)) == types[0].size


def _shape_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(SHAPE(node), types[0].dtype),)


def _reshape(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (inputs[0].reshape(SHAPE(node)),)


def _shape_onnx(node: Node, emit: OnnxEmitter) -> None:
    zeros = {"allowzero": 1} if node.op == "Reshape" and 0 in SHAPE(node) else {}
    emit.node(node.op, [node.inputs[0], emit.integers("shape", SHAPE(node))], node.outputs, **zeros)


def _transpose_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,) = types
    return (TensorType(tuple(x.shape[axis] for axis in PERM(node)), x.dtype),)


def _transpose(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (inputs[0].transpose(PERM(node)),)


def _repeats(node: Node, types: Sequence[TensorType]) -> bool:
    """The input broadcasts to the shape."""
    x, shape = types[0].shape, SHAPE(node)
    aligned = (*(1 for _ in shape[len(x) :]), *x)
    return len(aligned) == len(shape) and all(n in (1, m) for n, m in zip(aligned, shape, strict=True))


def _expand(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.broadcast_to(inputs[0], SHAPE(node)),)


def _gather_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x, indices), axis = types, AXIS(node)
    return (TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype),)


def _gather(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x, indices), axis = inputs, AXIS(node)
    extent = x.shape[axis]
    if indices.size and not -extent <= indices.min() <= indices.max() < extent:
        reason = f"an index lies outside the {extent} elements of axis {axis}"
        raise bad_node(node, reason, tensor=node.inputs[1], limit=f"{-extent}..{extent - 1}")
    return (np.asarray(np.take(x, indices, axis=axis)),)


def _cast_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(types[0].shape, TO(node)),)


def _cast(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (inputs[0].astype(TO(node)),)


def interleaved_extents(extent: int, count: int) -> list[int]:
    """The number of elements along an axis from each of `count` interleaved tensors.

    >>> interleaved_extents(5, 2)
    [3, 2]
    """
    return [-(-(extent - number) // count) for number in range(count)]


def _take_turns(node: Node, types: Sequence[TensorType]) -> bool:
    """Along the axis, an input has as many elements as the one before it, or one less from one input on."""
    extents = [each.shape[AXIS(node)] for each in types]
    return extents == interleaved_extents(sum(extents), len(extents))


def _interleave(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = AXIS(node)
    joined = np.concatenate([np.moveaxis(each, axis, 0) for each in inputs])
    result = np.empty_like(joined)
    for number, each in enumerate(inputs):
        result[number :: len(inputs)] = np.moveaxis(each, axis, 0)
    return (np.moveaxis(result, 0, axis),)


def _interleave_onnx(node: Node, emit: OnnxEmitter) -> None:
    """Concatenates the inputs; Gather then interleaves their elements."""
    axis, joined = AXIS(node), emit.fresh("joined")
    extents = np.cumsum([0, *(emit.graph.shape(name)[axis] for name in node.inputs)])
    indices = np.zeros(extents[-1], np.int64)
    for number, (first, end) in enumerate(pairwise(extents.tolist())):
        indices[number :: len(node.inputs)] = range(first, end)
    emit.node("Concat", node.inputs, [joined], axis=axis)
    emit.node("Gather", [joined, emit.constant(indices, "turns")], node.outputs, axis=axis)


def _space_to_depth(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    block, (n, c, h, w) = BLOCKSIZE(node), x.shape
    y = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return (y.reshape(n, c * block * block, h // block, w // block),)


def _depth_to_space(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    block, (n, c, h, w) = BLOCKSIZE(node), x.shape
    out = c // (block * block)
    if BLOCK_MODE(node) == "DCR":
        y = x.reshape(n, block, block, out, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, out, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return (y.reshape(n, out, h * block, w * block),)


def _blocks_onnx(node: Node, emit: OnnxEmitter) -> None:
    """onnxruntime does not support it for signed integers."""
    emit.through_float(node, "int8", "int16")


X, Y = Parameter("x", ANY), Parameter("y", like="x")
INPUTS = Parameter("inputs", ANY, variadic=True)
DEEP, WIDE = "N blocksize*blocksize*C H W", "N C blocksize*H blocksize*W"

OPERATORS = (
    Op(
        "Concat",
        "The inputs one after the other along an axis.",
        (INPUTS,),
        (Parameter("y", like="inputs"),),
        _concat,
        (AXIS,),
        (_alike_beside_the_axis,),
        _concat_types,
    ),
    Op(
        "Split",
        "Pieces of the given sizes along an axis.",
        (X,),
        (Parameter("outputs", like="x", variadic=True),),
        _split,
        (AXIS, SPLIT),
        (_sizes_add_up,),
        _split_types,
        _split_onnx,
    ),
    Op(
        "Slice",
        "Every step-th element between start and end of some axes.",
        (X,),
        (Y,),
        _slice,
        (AXES, STARTS, ENDS, STEPS),
        (_cuts_are_whole,),
        _slice_types,
        _slice_onnx,
    ),
    Op(
        "Pad",
        "Constant, reflected, repeated or wrapped elements around the tensor.",
        (X,),
        (Y,),
        _pad,
        (SIDES, PAD_MODE, VALUE),
        (_padding_has_a_source, _value_of_the_type),
        _pad_types,
        _pad_onnx,
    ),
    Op(
        "Reshape",
        "The same elements in another shape (also Flatten, Squeeze, Unsqueeze).",
        (X,),
        (Y,),
        _reshape,
        (SHAPE,),
        (_same_elements,),
        _shape_types,
        _shape_onnx,
    ),
    Op("Transpose", "The axes in another order.", (X,), (Y,), _transpose, (PERM,), infer=_transpose_types),
    Op(
        "Expand",
        "The tensor broadcast to a shape.",
        (X,),
        (Y,),
        _expand,
        (SHAPE,),
        (_repeats,),
        _shape_types,
        _shape_onnx,
    ),
    Op(
        "Gather",
        "The slices of an axis that an index tensor names.",
        (X, Parameter("indices", ("int32", "int64"))),
        (Y,),
        _gather,
        (AXIS,),
        infer=_gather_types,
    ),
    Op("Cast", "The elements in another type.", (X,), (Y,), _cast, (TO, WHOLE), infer=_cast_types),
    Op(
        "Interleave",
        "The inputs in turns along an axis, a slice of each after the other.",
        (INPUTS,),
        (Parameter("y", like="inputs"),),
        _interleave,
        (AXIS, ON_DEVICE),
        (_alike_beside_the_axis, _take_turns),
        _concat_types,
        _interleave_onnx,
        origin="passes",
    ),
    Op(
        "SpaceToDepth",
        "Blocks of pixels moved into channels.",
        (Parameter("x", ANY, WIDE),),
        (Parameter("y", ANY, DEEP, "x"),),
        _space_to_depth,
        (BLOCKSIZE,),
        to_onnx=_blocks_onnx,
    ),
    Op(
        "DepthToSpace",
        "Channels moved into blocks of pixels.",
        (Parameter("x", ANY, DEEP),),
        (Parameter("y", ANY, WIDE, "x"),),
        _depth_to_space,
        (BLOCKSIZE, BLOCK_MODE),
        to_onnx=_blocks_onnx,
    ),
)

ONNX_MOVEMENT = ("Reshape", "Transpose", "Concat", "Slice", "Split", "SpaceToDepth", "DepthToSpace", "Identity")
"""The ONNX operators that only move elements."""
MOVEMENT = (*ONNX_MOVEMENT, "Interleave")
"""Operators that only move elements: the same on int8, if all their tensors share one scale."""
KEPT_INTEGERS = (*MOVEMENT, "Pad")
"""Operators whose int8 results are elements of their inputs or, in padding, zeros of the same scale."""
