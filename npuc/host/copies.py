"""Data movement operators as strided copies: contiguous runs of bytes along axes, with a pitch in each tensor.

The mapping of elements is derived from numpy views; adjacent axes are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import AXIS, BLOCK_MODE, BLOCKSIZE, PERM, SPLIT
from npuc.ops.movement import slice_index


@frozen
class CopyAxis:
    """An extent and the bytes between elements, in the source and in the destination."""

    extent: int
    source: int
    target: int


@frozen
class Copy:
    """Runs of `piece` bytes, the first from byte `source` to byte `target`, along axes, outermost first."""

    piece: int
    source: int
    target: int
    axes: tuple[CopyAxis, ...]


Views = list[tuple[Array, Array]]
"""Pairs of views of the same shape: parts of the inputs, and their places in the outputs."""


def _reshape(_node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    return [(inputs[0].reshape(-1), outputs[0].reshape(-1))]


def _transpose(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    return [(inputs[0].transpose(PERM(node)), outputs[0])]


def _slice(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    cuts = slice_index(node)
    return [(inputs[0][tuple(cuts.get(axis, slice(None)) for axis in range(inputs[0].ndim))], outputs[0])]


def _parts(whole: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    return np.split(whole, np.cumsum(sizes)[:-1], axis=axis)


def _concat(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    axis = AXIS(node)
    return list(zip(inputs, _parts(outputs[0], axis, [each.shape[axis] for each in inputs]), strict=True))


def _split(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    return list(zip(_parts(inputs[0], AXIS(node), SPLIT(node)), outputs, strict=True))


def _blocks(deep: Array, wide: Array, block: int, *, channels_first: bool) -> tuple[Array, Array]:
    """(N, b, b, C, H, W) views of (N, b*b*C, H, W) and of (N, C, H*b, W*b).

    channels_first: the channels of `deep` are ordered (C, b, b) instead of (b, b, C).
    """
    n, c, h, w = wide.shape
    if channels_first:
        channels = deep.reshape(n, c, block, block, h // block, w // block).transpose(0, 2, 3, 1, 4, 5)
    else:
        channels = deep.reshape(n, block, block, c, h // block, w // block)
    return channels, wide.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)


def _space_to_depth(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    deep, wide = _blocks(outputs[0], inputs[0], BLOCKSIZE(node), channels_first=False)
    return [(wide, deep)]


def _depth_to_space(node: Node, inputs: Sequence[Array], outputs: Sequence[Array]) -> Views:
    channels_first = BLOCK_MODE(node) == "CRD"
    return [_blocks(inputs[0], outputs[0], BLOCKSIZE(node), channels_first=channels_first)]


MOVES: Mapping[str, Callable[[Node, Sequence[Array], Sequence[Array]], Views]] = {
    "Reshape": _reshape,
    "Identity": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Concat": _concat,
    "Split": _split,
    "SpaceToDepth": _space_to_depth,
    "DepthToSpace": _depth_to_space,
}


def copies_of(node: Node, types: Mapping[str, TensorType]) -> list[tuple[str, str, Copy]]:
    """The copies that compute a node of MOVES: from an input to an output, by name."""
    inputs, outputs = (
        [np.empty(types[name].shape, types[name].dtype) for name in names] for names in (node.inputs, node.outputs)
    )
    found: list[tuple[str, str, Copy]] = []
    for position, (source, target) in enumerate(MOVES[node.op](node, inputs, outputs)):
        x, y = (min(position, len(each) - 1) for each in (inputs, outputs))
        found.append((node.inputs[x], node.outputs[y], copy_between(source, inputs[x], target, outputs[y])))
    return found


def keeps_order(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether a node gives the elements of its only input in their order, as a Reshape does."""
    if node.op not in MOVES or len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    return copies_of(node, types)[0][2] == Copy(types[node.output].bytes, 0, 0, ())


def _first(view: Array) -> int:
    """The address of a view's first element."""
    return int(view.__array_interface__["data"][0])


def copy_between(source: Array, x: Array, target: Array, y: Array) -> Copy:
    """The copy from a view of x to a view of y, of the same shape."""
    return _merge_axes(source, target, _first(source) - _first(x), _first(target) - _first(y))


def _merge_axes(source: Array, target: Array, first: int, place: int) -> Copy:
    """The copy between two views, with as few axes as possible."""
    axes: list[CopyAxis] = []
    piece = source.itemsize
    for axis in map(CopyAxis, source.shape[::-1], source.strides[::-1], target.strides[::-1]):
        if axis.extent == 1:
            continue
        last = axes[-1] if axes else CopyAxis(piece, 1, 1)
        if (axis.source, axis.target) != (last.extent * last.source, last.extent * last.target):
            axes.append(axis)
        elif axes:
            axes[-1] = CopyAxis(last.extent * axis.extent, last.source, last.target)
        else:
            piece *= axis.extent
    return Copy(piece, first, place, tuple(reversed(axes)))
