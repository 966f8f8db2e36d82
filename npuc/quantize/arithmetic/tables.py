"""Activations as piecewise-linear tables over the 256 int8 inputs.

An integer machine computes a function f of one element by a table: y = sat8(floor((a[k] * x + b[k]) / 2^shift +
1/2)), where segment k is the last that starts at or before x. The table depends on the scales of input and output,
so it is made once these are known, by a search that the target provides (Tabulate): the number of segments and the
widths of a and b are machine-dependent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import OPS
from npuc.ops.attributes import HARD_ALPHA, HARD_BETA, MAX, MIN, SWISH_ALPHA
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS

ANY_SIZE: Mapping[str, float] = {}
INPUTS = np.arange(-128, 128)
"""Every int8 input, ascending."""

TABLE_OPS = (
    "Sigmoid", "HardSigmoid", "Tanh", "HardSwish", "Swish", "Gelu", "Mish", "Softplus", "Softsign", "Elu",
    "LeakyRelu", "Exp", "Erf", "Clip", "Abs", "Neg", "Sqrt",
)  # fmt: skip
"""Operators whose int8 form is a table; a Clip with lower limit 0 is a ReLU instead."""


@frozen
class SegmentTable:
    """starts, a: (segments,) int8; b: (segments,) int32; shift: 0..31; error: its largest error in LSB of y."""

    starts: Array
    a: Array
    b: Array
    shift: int
    error: int


Tabulate = Callable[[Array], SegmentTable]
"""The best table for the values f(x) / y_scale (256,), x ascending from -128; NaN where any result will do."""


def is_relu(node: Node) -> bool:
    """Whether the node is a ReLU, or a Clip from 0 whose upper limit can be left to saturation."""
    return node.op == "Relu" or (node.op == "Clip" and MIN(node) == 0 < MAX(node))


def single_slope(graph: Graph, node: Node) -> float | None:
    """The slope of a PRelu with a single slope; None for others."""
    slope = graph.constants[node.inputs[1]]
    first = float(slope.reshape(-1)[0])
    return first if (slope == first).all() else None


def as_unary(graph: Graph, node: Node) -> Node | None:
    """The unary function that becomes a table, or None if the node is not one."""
    if node.op in CONVERSIONS:
        return Node("Identity", node.inputs, node.outputs)
    if node.op == "PRelu":
        slope = single_slope(graph, node)
        return None if slope is None else Node("LeakyRelu", node.inputs[:1], node.outputs, {"alpha": slope})
    return node if node.op in TABLE_OPS and not is_relu(node) else None


def wanted_values(
    function: Node, x_scale: float, y_scale: float, x_zero: int = 0, y_zero: int = 0, *more: Array
) -> Array:
    """The unrounded integer for f(x), for every int8 x: (256,) float64, infinite or NaN where f is.

    function: by its operator's meaning. x_zero, y_zero: the zero points. more: its inputs behind x.
    """
    with np.errstate(all="ignore"):
        (values,) = OPS[function.op].compute(function, [(INPUTS - x_zero) * x_scale, *more])
        return values.astype(np.float64) / y_scale + y_zero


def domain(function: Node) -> tuple[float, float]:
    """The interval outside which f stays within 1/512 of its limit on that side; infinite without a limit.

    Saturating x outside it costs nothing, so the scale of x need not cover more.
    """
    match function.op:
        case "Sigmoid":
            return -6.25, 6.25
        case "Tanh":
            return -3.5, 3.5
        case "Erf":
            return -2.25, 2.25
        case "HardSigmoid":
            alpha, beta = HARD_ALPHA(function), HARD_BETA(function)
            low, high = sorted((-beta / alpha, (1 - beta) / alpha)) if alpha else (-inf, inf)
            return low, high
        case "Clip":
            return MIN(function), MAX(function)
        case "HardSwish":
            return -3.0, inf
        case "Gelu":
            return -3.5, inf
        case "Elu" | "Softplus":
            return -6.25, inf
        case "Mish":
            return -8.5, inf
        case "Swish" if SWISH_ALPHA(function) > 0:
            return -8.5 / min(SWISH_ALPHA(function), 1.0), inf
        case _:
            return -inf, inf


TO_ZERO = ("Sigmoid", "Softplus", "Swish", "Gelu", "Mish")
"""Functions that tend to 0 at the low end of their domain only: all their results may be small."""
SMALL = 2.0**-8
"""Share of the largest result below which values are at most half a step."""
LOWEST = -64.0
"""e to this power is indistinguishable from 0 at any scale."""


def reached_domain(function: Node, largest: float) -> tuple[float, float]:
    """The domain of a function with results up to `largest`: if all are small, it starts lower."""
    low, high = domain(function)
    if function.op not in TO_ZERO or not np.isfinite(low) or not 0 < largest < 1:
        return low, high
    inputs = np.append(low, np.arange(np.floor(low), LOWEST, -0.25))
    (values,) = OPS[function.op].compute(function, [inputs])
    small = np.abs(values) <= largest * SMALL
    return float(inputs[np.argmax(small)] if small.any() else LOWEST), high


def domains(
    graph: Graph, nodes: Sequence[Node], largest: Mapping[str, float] = ANY_SIZE
) -> dict[str, tuple[float, float]]:
    """For each tensor that only tables among the nodes read: the range of inputs that matters to any of them.

    Its elements may be moved before. largest: the largest magnitudes of results, where known.
    """
    integer = set(nodes)
    functions = {node: function for node in nodes if (function := as_unary(graph, node)) is not None}
    found: dict[str, tuple[float, float]] = {}

    def domain_of(reader: Node) -> tuple[float, float] | None:
        if reader in functions:
            return reached_domain(functions[reader], largest.get(reader.output, inf))
        moves = reader.op in MOVEMENT and reader in integer
        return _union([found.get(name) for name in reader.outputs]) if moves else None

    for name in reversed([each for node in nodes for each in (*node.inputs, *node.outputs) if each]):
        if name not in found and name not in graph.outputs and name not in graph.constants:
            limits = _union([domain_of(reader) for reader in graph.readers[name]])
            if limits is not None:
                found[name] = limits
    return found


def _union(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """The range that includes all of them; None if there are none, or one has no limits."""
    known = [each for each in ranges if each is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)
