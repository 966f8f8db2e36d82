"""Averages over large windows in several stages, for machines that cannot keep partial sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.windows import window_of

MOST_POSITIONS = 64
MOST_STRIDE = 15


@dataclass(frozen=True)
class SplitAveragePool:
    """An average over more than 64 positions becomes its columns' averages, then the average of those along rows.

    An axis of more than 64 positions takes several: averages of pieces that do not overlap, then the average of
    those. Exact in real numbers: the mean of means over equal windows. On int8 each map between is rounded once
    more, by which a result moves at most 1 LSB if there are two stages. Averages that would take more stages, or
    leave padding out of the count, stay as they are.
    """

    most_stages: int | None = 2
    """None: as many as it takes."""
    __name__ = "split_average_pool"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with large averages in stages."""
        nodes: list[Node] = []
        for node in graph.nodes:
            stages = list(_stages(graph, node))
            few = self.most_stages is None or len(stages) <= self.most_stages
            nodes += stages if stages and few else [node]
        return rebuild(graph, nodes) if len(nodes) > len(graph.nodes) else graph


Stage = tuple[int, int, int]
"""(kernel, stride, dilation) along an axis."""


def _stages(graph: Graph, node: Node) -> Iterator[Node]:
    """The stages along columns and along rows; nothing where the node is no large average."""
    if node.op not in ("AveragePool", "GlobalAveragePool") or len(graph.shape(node.output)) != 4:
        return
    if node.op == "GlobalAveragePool":
        node = replace(node, op="AveragePool", attrs={"kernel_shape": graph.shape(node.inputs[0])[2:]})
    height, width = node.integers("kernel_shape")
    window = window_of(node, (height, width))
    padded = any((*window.begins, *window.ends)) or window.ceil_mode
    if window.reach[0] * window.reach[1] <= MOST_POSITIONS or padded:
        return
    axes = zip((height, width), window.strides, window.dilations, graph.shape(node.output)[2:], strict=True)
    rows, columns = (_divided(*axis) for axis in axes)
    steps = [(row, (1, 1, 1)) for row in rows] + [((1, 1, 1), column) for column in columns]
    steps = [pair for pair in steps if pair != ((1, 1, 1), (1, 1, 1))]
    if len(steps) < 2:
        return
    between = [f"{node.output}/{name}" for name in _names(len(rows), len(steps))]
    for number, (pair, (x, y)) in enumerate(
        zip(steps, pairwise((node.inputs[0], *between, node.output)), strict=True)
    ):
        kernel, strides, dilations = zip(*pair, strict=True)
        attrs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
        name = node.name if number == len(steps) - 1 else f"{node.name}/{y.rpartition('/')[2]}"
        yield Node("AveragePool", (x,), (y,), attrs, name, node.sources)


def _names(rows: int, stages: int) -> list[str]:
    """Names of the maps between: the one that holds the columns' averages, and parts before and behind it."""
    return ["columns" if number == rows - 1 else f"part_{number}" for number in range(stages - 1)]


def _divided(kernel: int, stride: int, dilation: int, outputs: int) -> list[Stage]:
    """An axis in stages of at most 64 positions; as it is where that is not needed, or no division fits."""
    if (kernel - 1) * dilation + 1 <= MOST_POSITIONS or dilation > 1:
        return [(kernel, stride, dilation)]
    for piece in range(MOST_STRIDE, 1, -1):
        if kernel % piece == 0 and (outputs == 1 or stride % piece == 0):
            return [(piece, piece, 1), *_divided(kernel // piece, max(stride // piece, 1), 1, outputs)]
    return [(kernel, stride, dilation)]
