"""Maxima over large windows as maxima over parts of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import KERNEL_SHAPE
from npuc.ops.windows import window_of
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class MaxPoolLimits:
    """The largest pooling that one node may compute."""

    positions: int = 64
    """Of the whole window, from its first to its last tap."""
    extent: int = 64
    """Of the window along one axis."""
    stride: int = 15
    dilation: int = 16


@frozen
class SplitMaxPool:
    """A 2-D MaxPool or GlobalMaxPool over more positions than the limits becomes one over rows, then over columns.

    An axis that is still too long, or has too large a stride, takes two or more: maxima of short windows, then
    maxima of those. Exact, because windows may overlap. If an axis cannot be divided so, the node is left
    unchanged.
    """

    limits: MaxPoolLimits = MaxPoolLimits()
    __name__ = "split_max_pool"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with large windows in parts."""
        return rewrite(graph, partial(_split, self.limits))


split_max_pool = SplitMaxPool()


@frozen
class AxisPool:
    """A MaxPool along one axis. Stride 0: there is only one window."""

    kernel: int
    stride: int = 0
    dilation: int = 1
    begin: int = 0
    end: int = 0

    @property
    def reach(self) -> int:
        """Elements from the first tap to the last, inclusive."""
        return (self.kernel - 1) * self.dilation + 1

    def fits(self, limits: MaxPoolLimits) -> bool:
        """Whether one node may have this axis; padding added for ceil_mode may be as large as the tap count."""
        small = self.stride <= limits.stride and self.dilation <= limits.dilation
        return small and self.reach <= limits.extent and max(self.begin, self.end) < self.kernel


def _split(limits: MaxPoolLimits, rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    if node.op not in ("MaxPool", "GlobalMaxPool") or len(shape) != 4:
        return False
    whole = tuple(_axis(node, axis, shape[2 + axis], rewriter.shape(node.output)[2 + axis]) for axis in (0, 1))
    if whole[0].reach * whole[1].reach <= limits.positions and all(step.fits(limits) for step in whole):
        return False
    found = [division(step, limits) for step in whole]
    if found[0] is None or found[1] is None:
        return False
    pairs = [(step, AxisPool(1)) for step in found[0]] + [(AxisPool(1), step) for step in found[1]]
    pairs = [
        (row, column) for row, column in pairs if max(row.kernel, row.stride, column.kernel, column.stride) > 1
    ]
    names = [rewriter.fresh(f"{node.output}/part_{number}") for number in range(len(pairs) - 1)]
    chain = (node.inputs[0], *names, node.output)
    rewriter.replace(
        node, *(_pool(node, *pair, x, y) for pair, (x, y) in zip(pairs, pairwise(chain), strict=True))
    )
    return True


def _axis(node: Node, axis: int, extent: int, outputs: int) -> AxisPool:
    """The node along one axis, with the padding that its last window needs."""
    if node.op == "GlobalMaxPool":
        return AxisPool(extent)
    window = window_of(node, KERNEL_SHAPE(node))
    stride, reach, begin = window.strides[axis], window.reach[axis], window.begins[axis]
    missing = (outputs - 1) * stride + reach - begin - extent
    alone = outputs == 1 and missing >= 0
    return AxisPool(window.kernel[axis], 0 if alone else stride, window.dilations[axis], begin, max(missing, 0))


def division(whole: AxisPool, limits: MaxPoolLimits = split_max_pool.limits) -> list[AxisPool] | None:
    """Pools that together compute the whole one, in order and with the least work; None if there are none.

    A window of K elements is n windows of `a`, each `t` after the previous one: K = a + (n - 1) * t, t <= a.
    """
    if whole.fits(limits):
        return [whole]
    if whole.dilation > 1:
        return None
    options = [
        [first, *rest]
        for first, second in _halves(whole, limits)
        if first.fits(limits) and (rest := division(second, limits))
    ]
    return min(options, key=lambda steps: (len(steps), _work(steps)), default=None)


def _halves(whole: AxisPool, limits: MaxPoolLimits) -> Iterator[tuple[AxisPool, AxisPool]]:
    """Pairs of pools: the first strided if t divides the stride, otherwise the second dilated.

    The first pool's windows are as short as possible (but longer than the padding, since no maximum may be over
    padding only); before a dilated pool, as long as possible.
    """
    padding = max(whole.begin, whole.end)
    for t in range(2 if limits.dilation > 1 else 1, max(limits.dilation, limits.stride) + 1):
        strided = whole.stride % t == 0
        spare = max(t, padding + 1) if strided and t > 1 else limits.extent
        n = (whole.kernel - spare) // t + 1 if strided else -(-(whole.kernel - spare) // t) + 1
        a = whole.kernel - (n - 1) * t
        if n < 2 or a < t or (not strided and t > limits.dilation):
            continue
        first = AxisPool(a, t if strided else 1, 1, whole.begin, whole.end)
        yield first, AxisPool(n, whole.stride // t) if strided else AxisPool(n, whole.stride, t)


def _work(steps: list[AxisPool]) -> float:
    """Taps per element before the first pool."""
    total, density = 0.0, 1.0
    for step in steps:
        density /= step.stride or 1
        total += density * step.kernel
    return total


def _pool(node: Node, row: AxisPool, column: AxisPool, x: str, y: str) -> Node:
    attrs: dict[str, Attr] = {
        "kernel_shape": (row.kernel, column.kernel),
        "strides": (max(row.stride, 1), max(column.stride, 1)),
        "pads": (row.begin, column.begin, row.end, column.end),
        "dilations": (row.dilation, column.dilation),
    }
    name = node.name if y == node.output else y
    return replace(node, op="MaxPool", inputs=(x,), outputs=(y,), attrs=attrs, name=name)
