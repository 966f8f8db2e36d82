"""Resize: repetition as interleaved copies, interpolation by small ratios as convolutions that interleave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import SCALES, SIZES
from npuc.ops.resize import interpolation, source_positions, taps_at
from npuc.passes.rewriting.maps import interleave, phase_nodes, weave
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_SCALE = 8
"""Larger enlargements are done in several steps, since each takes the square of its scale in copies."""
MOST_STRIDE, MOST_KERNEL = 8, 32
"""The largest stride and window of a convolution."""
MOST_PHASES = 64
"""The most phases of both axes together; a Resize that needs more convolutions stays as it is."""
BEYOND = 8
"""How far an interpolation may read beyond either end of the map: copies of the first or last element."""
NEAR = 1e-4
"""The largest deviation of a weight from that of the positions as onnxruntime rounds them."""
NONE = 1e-5
"""A smaller weight is 0 except for the rounding of its position."""


def resize_to_copies(graph: Graph) -> Graph:
    """Resize that repeats every pixel s times each way becomes Concat of s * s times x -> DepthToSpace (DCR).

    The modes do not matter as long as row i of the output is row i // s of the input, and the same holds for
    columns. Other interpolations, and unequal scales, are left unchanged.
    """
    return rewrite(graph, _to_copies)


def _to_copies(rewriter: Rewriter, node: Node) -> bool:
    scale, across = repetitions(rewriter, node)
    if scale < 2 or across != scale:
        return False
    step = next(each for each in (*range(min(scale, MOST_SCALE), 1, -1), scale) if scale % each == 0)
    x = node.inputs[0]
    if step == scale:
        rewriter.replace(node, *interleave(rewriter, node, (x,) * step**2, step))
        return True
    batch, channels, height, width = rewriter.shape(x)
    first = rewriter.fresh(f"{node.output}/{scale // step}x")
    sizes = batch, channels, height * scale // step, width * scale // step
    scales = (1.0, 1.0, scale / step, scale / step)
    modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    before = replace(node.with_attrs(sizes=sizes, scales=scales, **modes), outputs=(first,), name=first)
    after = node.with_attrs(scales=(1.0, 1.0, float(step), float(step)), **modes)
    rewriter.replace(node, before, replace(after, inputs=(first, *node.inputs[1:])))
    return True


def repeats_to_interleaves(graph: Graph) -> Graph:
    """Resize that repeats every row and every column equally often becomes Interleave along H and along W."""
    return rewrite(graph, _to_interleaves)


def _to_interleaves(rewriter: Rewriter, node: Node) -> bool:
    rows, columns = repetitions(rewriter, node)
    if not 1 < rows * columns <= MOST_PHASES:
        return False
    rewriter.replace(node, *weave(rewriter, node, [[node.inputs[0]] * columns] * rows))
    return True


def repetitions(rewriter: Rewriter, node: Node) -> tuple[int, int]:
    """How often a Resize repeats every row and every column; 0 if it does not just repeat them."""
    if node.op != "Resize":
        return 0, 0
    x, y = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)
    if len(x) != 4 or x[:2] != y[:2] or any(large % small for large, small in zip(y, x, strict=True)):
        return 0, 0
    scales = y[2] // x[2], y[3] // x[3]
    for axis, scale in zip((2, 3), scales, strict=True):
        indices, weights = interpolation(node, x[axis], y[axis], SCALES(node)[axis])
        wanted = np.arange(y[axis]) // scale
        if not ((indices == wanted) | (weights == 0)).all():
            return 0, 0
    return scales


@frozen
class ResizedAxis:
    """An axis of the map: outputs phase, phase + phases, .. are one convolution with a stride."""

    kernels: tuple[Array, ...]
    """Taps of each phase, on the map with its copies."""
    stride: int
    before: int
    after: int
    """Copies of the first and of the last element."""


@frozen
class Taps:
    """Elements and weights (taps, phases) of each phase's first output; elements may be outside the map."""

    index: Array
    weight: Array


def interpolation_to_convs(graph: Graph) -> Graph:
    """Resize of a map's rows and columns by p / q becomes Concat -> Convs -> Interleave, q at most 8.

    The positions of outputs p apart are q elements apart, so p depthwise Convs of stride q compute each axis, in
    every mode. The Concats repeat the first and last row and column, as interpolation beyond them does. Zeros in
    the kernels shift their taps, and make a phase end where the output ends. A Resize stays if it repeats all
    elements equally often, has another ratio, or has taps whose weights differ at the border.
    """
    return rewrite(graph, _interpolate)


def _interpolate(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0]) if node.op == "Resize" else ()
    if len(shape) != 4 or shape[:2] != SIZES(node)[:2] or 0 in shape or not only_float(rewriter, node.inputs[0]):
        return False
    if shape == SIZES(node) or SCALES(node)[:2] != (1.0, 1.0) or repetitions(rewriter, node) != (0, 0):
        return False
    rows, columns = (_axis(node, shape[axis], SIZES(node)[axis], SCALES(node)[axis]) for axis in (2, 3))
    if rows is None or columns is None or len(rows.kernels) * len(columns.kernels) > MOST_PHASES:
        return False
    x, made = node.inputs[0], list[Node]()
    for number, axis in ((2, rows), (3, columns)):
        if axis.before or axis.after:
            x = _extend(rewriter, node, x, number, axis, made)
    strides = (rows.stride, columns.stride)

    def conv(row: Array, column: Array, output: str) -> Node:
        return _conv(rewriter, node, x, np.multiply.outer(row, column), strides, output)

    made += phase_nodes(rewriter, node, rows.kernels, columns.kernels, conv)
    rewriter.replace(node, *made)
    return True


def _axis(node: Node, extent: int, size: int, scale: float) -> ResizedAxis | None:
    """The convolutions along an axis, or None if none are small enough."""
    if extent == size and scale == 1:
        return ResizedAxis((np.ones(1, np.float32),), 1, 0, 0)
    positions = source_positions(node, extent, size, scale)
    found = _period(positions)
    if found is None:
        return None
    phases, stride = found
    index, weight = taps_at(node, positions[:phases] + np.float32(BEYOND), extent + 2 * BEYOND)
    taps = Taps(index - BEYOND, np.where(np.abs(weight) > NONE, weight, np.float32(0)))
    return _of_taps(taps, stride, extent, size) if _holds(node, taps, stride, (extent, size, scale)) else None


def _period(positions: Array) -> tuple[int, int] | None:
    """The smallest number of outputs, and of elements, after which positions repeat."""
    size = len(positions)
    step = float(positions[-1] - positions[0]) / (size - 1) if size > 1 else 1.0
    for phases in range(1, min(size - 1, MOST_PHASES) + 1):
        stride = round(phases * step)
        if 1 <= stride <= MOST_STRIDE and abs(phases * step - stride) * size < NEAR * phases:
            return phases, stride
    return (size, MOST_STRIDE) if size <= MOST_PHASES else None


def _holds(node: Node, taps: Taps, stride: int, along: tuple[int, int, float]) -> bool:
    """Whether repeating the taps, on a map with repeated ends, gives the weights of the interpolation."""
    extent, size = along[:2]
    block, phase = np.divmod(np.arange(size), taps.index.shape[1])
    given = np.clip(taps.index[:, phase] + block * stride, 0, extent - 1)
    wanted, share = interpolation(node, *along)
    index, weight = np.concatenate([wanted, given]), np.concatenate([share, -taps.weight[:, phase]])
    left = (weight * (index == index[:, None])).sum(axis=1)  # the sum over all taps on the same element
    return bool(np.abs(left).max() <= NEAR)


def _of_taps(taps: Taps, stride: int, extent: int, size: int) -> ResizedAxis | None:
    """The axis with kernels that start at the first copy; None if a kernel is too large."""
    used = [index[weight != 0] for index, weight in zip(taps.index.T, taps.weight.T, strict=True)]
    counts = [-(-(size - phase) // len(used)) for phase in range(len(used))]
    ends = [each.max() + (count - 1) * stride for each, count in zip(used, counts, strict=True)]
    before, after = max(-min(each.min() for each in used), 0), max(max(ends) - extent + 1, 0)
    kernels: list[Array] = []
    for each, weight, count in zip(used, taps.weight.T, counts, strict=True):
        last = before + extent + after - count * stride  # windows this long leave room for one output more
        kernel = np.zeros(max(each.max() + before, last) + 1, np.float32)
        kernel[each + before] = weight[weight != 0]
        kernels.append(kernel)
    return (
        ResizedAxis(tuple(kernels), stride, int(before), int(after))
        if max(map(len, kernels)) <= MOST_KERNEL
        else None
    )


def _extend(rewriter: Rewriter, node: Node, x: str, number: int, axis: ResizedAxis, made: list[Node]) -> str:
    """The map with copies of its first row or column before it, and of its last one after it."""
    extent = rewriter.shape(node.inputs[0])[number]
    ends = {"first": (0, axis.before), "last": (extent - 1, axis.after)}
    names: dict[str, str] = {}
    for role, (start, count) in ends.items():
        if count:
            attrs: dict[str, Attr] = {"axes": (number,), "starts": (start,), "ends": (start + 1,), "steps": (1,)}
            made.append(rewriter.part(node, "Slice", (x,), f"{node.output}/{role}{number}", **attrs))
            names[role] = made[-1].output
    copies = {role: (names[role],) * count for role, (_, count) in ends.items() if count}
    parts = (*copies.get("first", ()), x, *copies.get("last", ()))
    made.append(rewriter.part(node, "Concat", parts, f"{node.output}/wide{number}", axis=number))
    return made[-1].output


def _conv(rewriter: Rewriter, node: Node, x: str, kernel: Array, strides: tuple[int, int], name: str) -> Node:
    """The Conv of a phase, with the same kernel for every channel."""
    channels = rewriter.shape(node.inputs[0])[1]
    weights = np.ascontiguousarray(np.broadcast_to(kernel, (channels, 1, *kernel.shape)))
    inputs = (x, rewriter.constant(weights, f"{name}/taps"))
    return Node("Conv", inputs, (name,), {"group": channels, "strides": strides}, name, node.sources)
