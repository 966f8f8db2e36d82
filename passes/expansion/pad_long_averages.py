"""Averages along axes that cannot be divided into equal pieces, such as one of 61 columns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import KERNEL_SHAPE
from npuc.ops.windows import window_of
from npuc.passes.expansion.split_average_pool import AverageLimits, PooledAxis
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_STAGES = 2
"""The most stages for one axis."""


@frozen
class PadLongAverages:
    """An average over a single window is padded with zeros if SplitAveragePool cannot divide an axis into stages.

    Averages of pieces come first, the last of them padded; a depthwise Conv then sums them with weights that give
    the mean of the real elements only. Exact in real numbers.
    """

    limits: AverageLimits
    __name__ = "pad_long_averages"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such averages in stages."""
        return rewrite(graph, partial(_divided, self.limits))


def _divided(limits: AverageLimits, rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0]) if node.op in ("AveragePool", "GlobalAveragePool") else ()
    if len(shape) != 4 or rewriter.shape(node.output)[2:] != (1, 1):
        return False
    kernel = KERNEL_SHAPE(node) or shape[2:]
    window = window_of(node, kernel)
    if any((*window.begins, *window.ends)) or window.ceil_mode or max(window.dilations) > 1:
        return False
    along = [axis for axis in (0, 1) if _undivided(kernel[axis], limits)]
    if not along or kernel != shape[2:]:
        return False
    axis = along[-1]
    rest = tuple(1 if at == axis else extent for at, extent in enumerate(kernel))
    inner = node.output if max(rest) == 1 else rewriter.fresh(f"{node.output}/axis_{axis}")
    nodes = _stages(rewriter, replace(node, outputs=(inner,)), axis, kernel[axis], limits)
    if max(rest) > 1:
        nodes.append(Node("AveragePool", (inner,), node.outputs, {"kernel_shape": rest}, node.name, node.sources))
    rewriter.replace(node, *nodes)
    return True


def _undivided(kernel: int, limits: AverageLimits) -> bool:
    """Whether equal pieces of an axis stay too long, or would take more stages than padded ones."""
    stages = PooledAxis(kernel, 1, 1, 1, limits).stages()
    return len(stages) > MOST_STAGES or max(stage[0] for stage in stages) > limits.extent


def _stages(rewriter: Rewriter, node: Node, axis: int, kernel: int, limits: AverageLimits) -> list[Node]:
    """Averages of pieces until few enough are left, and their sum."""
    nodes: list[Node] = []
    x, left, piece, weight = node.inputs[0], kernel, limits.stride, 1.0 / kernel
    while left > limits.extent:
        y = rewriter.fresh(f"{node.output}/pieces")
        along = tuple(piece if at == axis else 1 for at in (0, 1))
        pads = [0, 0, 0, 0]
        pads[2 + axis] = -left % piece
        attrs = {"kernel_shape": along, "strides": along, "pads": tuple(pads), "count_include_pad": 1}
        nodes.append(Node("AveragePool", (x,), (y,), attrs, y, node.sources))
        x, left, weight = y, -(-left // piece), weight * piece
    channels = rewriter.shape(node.inputs[0])[1]
    taps = np.full((channels, 1, *(left if at == axis else 1 for at in (0, 1))), weight, np.float32)
    w = rewriter.constant(taps, f"{node.output}/sum")
    return [*nodes, Node("Conv", (x, w), node.outputs, {"group": channels}, node.name, node.sources)]
