"""Resize: copies where elements repeat, weighted sums of rows and columns otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npuc.ir import Array, Node
from npuc.ops.attributes import COORDINATES, NEAREST_MODE, RESIZE_MODE, SCALES
from npuc.ops.resize import interpolation
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.kernel import Call, Local, call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Tensor
from npuc.targets.bm1684.machine.local_memory import Dim4


def resize(lo: Lowering, node: Node) -> None:
    """Resize of rows and columns: copies if it repeats elements, else weighted sums of rows, then of columns."""
    shape, result = lo.graph.shape(node.inputs[0]), lo.graph.shape(node.output)
    if whole_repeats(shape, result, node):
        _repeat(lo, node)
        return
    x, factors = lo.load(node.inputs[0]), SCALES(node)
    middle = Dim4(result[0], result[1], result[2], shape[3])
    rows = x if middle == x.shape and factors[2] == 1 else lo.new_tensor(f"{node.output}/rows", middle, x.at.npu)
    if rows != x:
        _interpolate(lo, rows, x, 2, interpolation(node, shape[2], result[2], factors[2]))
    if result[3] == shape[3] and factors[3] == 1:
        lo.define(node.output, rows)
        return
    y = lo.output(node.output, Dim4(*result), x.at.npu)
    _interpolate(lo, y, rows, 3, interpolation(node, shape[3], result[3], factors[3]))
    lo.define(node.output, y)


def _interpolate(lo: Lowering, to: Tensor, x: Tensor, axis: int, taps: tuple[Array, Array]) -> None:
    """Emits weighted sums along rows (2) or columns (3). taps: indices and weights, each (taps, size)."""
    indices, weights = taps
    calls: list[Call] = []
    for first, count, step in _progressions(indices, weights):
        for tap in range(len(indices)):
            start = int(indices[tap, first])
            reach = int(indices[tap, first + step]) - start if count > 1 else 1
            weight = float(weights[tap, first])
            if tap == 0 or weight != 0:
                made = _tap(lo, (to, first, step), (x, start, reach), axis, count)
                calls.append(_weighting_call(made, weight, first=tap == 0))
    lo.emit(*calls)


Cut = tuple[Tensor, int, int]
"""A tensor, its first row (or column) and the distance to the next."""


def _tap(lo: Lowering, to: Cut, x: Cut, axis: int, count: int) -> tuple[Local, Local, Dim4, Dim4, Dim4]:
    """The addresses, shape and strides of some rows or columns of destination and source."""

    def side(cut: Cut) -> tuple[Local, Dim4]:
        tensor, start, step = cut
        stride = tensor.stride(lo.machine)
        along = stride[axis]
        changed = stride._replace(h=along * step) if axis == 2 else stride._replace(w=along * step)
        return tensor.at.shift(ELEMENT * start * along), changed

    shape = to[0].shape._replace(h=count) if axis == 2 else to[0].shape._replace(w=count)
    (a, a_stride), (b, b_stride) = side(to), side(x)
    return a, b, shape, a_stride, b_stride


def _weighting_call(made: tuple[Local, Local, Dim4, Dim4, Dim4], weight: float, *, first: bool) -> Call:
    if first and weight == 1:
        return call("bdc_32bit_cpy", *made)
    to, x, *rest = made
    return call("bdc_mul_C" if first else "bdc_mac_C", to, x, weight, *rest, adds=not first)


def _progressions(indices: Array, weights: Array) -> Iterator[tuple[int, int, int]]:
    """Groups of results with equal weights and evenly spaced indices: (first, count, step)."""
    size = indices.shape[1]
    left = list(range(size))
    while left:
        first = left[0]
        best = max(
            (_count_alike(indices, weights, first, step, set(left)) for step in range(1, 9)),
            key=lambda each: each[1],
        )
        yield best
        taken = {best[0] + at * best[2] for at in range(best[1])}
        left = [each for each in left if each not in taken]


def _count_alike(indices: Array, weights: Array, first: int, step: int, left: set[int]) -> tuple[int, int, int]:
    size, count = indices.shape[1], 1
    reach = indices[:, first + step] - indices[:, first] if first + step < size else None
    while reach is not None and reach.min() > 0 and (reach == reach[0]).all():
        at = first + count * step
        even = at < size and at in left and (weights[:, at] == weights[:, first]).all()
        if not even or (indices[:, at] != indices[:, first] + count * reach).any():
            break
        count += 1
    return first, count, step


def _repeat(lo: Lowering, node: Node) -> None:
    """Repeats every element: one copy for every position in a block of equal elements."""
    shape, result = lo.graph.shape(node.inputs[0]), lo.graph.shape(node.output)
    x = lo.load(node.inputs[0])
    y = lo.output(node.output, Dim4(*result), x.at.npu)
    stride = y.stride(lo.machine)
    rows, columns = result[2] // shape[2], result[3] // shape[3]
    to = stride._replace(h=stride.h * rows, w=columns)
    places = [y.at.shift(ELEMENT * (i * stride.h + j)) for i in range(rows) for j in range(columns)]
    lo.emit(*(call("bdc_32bit_cpy", at, x.at, x.shape, to, None) for at in places))
    lo.define(node.output, y)


def whole_repeats(shape: Sequence[int], result: Sequence[int], node: Node) -> bool:
    """Whether a Resize repeats every element, in blocks of one size."""
    whole = all(b % a == 0 for a, b in zip(shape, result, strict=True))
    return RESIZE_MODE(node) == "nearest" and whole and repeats(node)


def repeats(node: Node) -> bool:
    """Whether a nearest-neighbour Resize by a whole factor repeats every element in a block."""
    mode = COORDINATES(node)
    nearest = NEAREST_MODE(node)
    if mode == "asymmetric":
        return nearest == "floor"
    return mode in ("half_pixel", "pytorch_half_pixel") and nearest.startswith("round")
