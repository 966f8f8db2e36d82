"""What the network makes of a convolution's results: the activation behind them, as far as one layer reads it.

An error counts by what it changes behind the activation: nothing where a ReLU gives 0 or the integers saturate, little
where a HardSwish is flat. The function comes from the operator's declaration, tabulated in fractions of a step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npuc.frozen import frozen
from npuc.interpreter import evaluate
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX, MIN
from npuc.quantize.arithmetic.tables import as_unary

FINENESS = 8
"""Entries of a table per step of a result."""


@frozen
class Behind:
    """A function of a layer's results, both in steps of the layer and without its zero point.

    lowest, largest: the limits of the results. table: its values from `lowest` on, FINENESS per step; None: the results
    themselves within their limits.
    """

    lowest: float
    largest: float
    table: Array | None = None

    def __call__(self, results: Array) -> Array:
        """The values behind these results, of any shape, float32."""
        limited = np.clip(results, np.float32(self.lowest), np.float32(self.largest))
        if self.table is None:
            return limited
        return self.table[np.rint((limited - np.float32(self.lowest)) * FINENESS).astype(np.int32)]

    def slope(self, results: Array) -> Array:
        """How much one step of a result changes what is behind it: the mean over a step to either side."""
        return (self(results + np.float32(1)) - self(results - np.float32(1))) / 2


def behind(graph: Graph, source: Node, scale: float, lowest: float, largest: float) -> Behind:
    """What follows a float convolution: its fused activation, then the function that alone reads its result.

    scale: of its results; lowest, largest: their limits in steps, without the zero point.
    """
    least, most = limits(source)
    lowest, largest = max(lowest, least / scale), min(largest, most / scale)
    function = function_behind(graph, source)
    if function is None or not np.isfinite(largest - lowest):
        return Behind(lowest, largest)
    steps = lowest + np.arange(round((largest - lowest) * FINENESS) + 1) / FINENESS
    (values,) = evaluate(function, [(steps * scale).astype(np.float32)], graph.operators)
    table = (values / scale).astype(np.float32)
    return Behind(lowest, largest, table) if np.isfinite(table).all() else Behind(lowest, largest)


def limits(source: Node) -> tuple[float, float]:
    """The limits that a convolution's fused activation imposes."""
    match ACTIVATION(source):
        case "Relu":
            return 0, np.inf
        case "Clip":
            return MIN(source), MAX(source)
        case _:
            return -np.inf, np.inf


def function_behind(graph: Graph, source: Node) -> Node | None:
    """The function of one element that alone reads a node's result."""
    reader = None if source.output in graph.outputs else graph.only_reader(source.output)
    return None if reader is None else as_unary(graph, reader)
