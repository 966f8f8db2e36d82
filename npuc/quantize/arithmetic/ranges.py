"""The largest accumulator that a node of the integer graph can reach for any int8 inputs: a proof per layer.

The bound is below 2^31 for every node of a program, so no sum wraps; it includes the rounding constant of the
requantisation. Values that exceed int8 after the shift saturate, by design: scales are chosen for it.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.accumulators import accumulator_bound
from npuc.ops.attributes import PADDING, SHIFT

LARGEST = 128
"""The largest magnitude of an int8."""


def bound(graph: Graph, node: Node) -> int | None:
    """The bound of a node's accumulator, rounding included; None for a node without arithmetic.

    If the input is padded with a zero point, the accumulator holds a second sum over the weights.
    """
    match node.op:
        case "IntConv":
            w, bias, shift = (graph.constants[name] for name in node.inputs[1:4])
            sums = accumulator_bound(w, bias)
            if PADDING(node):
                sums = sums + accumulator_bound(w, np.zeros_like(bias))
            return int((sums + (1 << np.maximum(shift.astype(np.int64) - 1, 0))).max())
        case "IntAdd":
            return 2 * LARGEST + _rounding(node)
        case "IntSum":
            factors, bias = (graph.constants[name].astype(np.int64) for name in node.inputs[2:])
            return int(LARGEST * np.abs(factors).sum() + np.abs(bias)) + _rounding(node)
        case "IntMul":
            return LARGEST * LARGEST + _rounding(node)
        case "IntPRelu":
            sides = [[graph.constants[name].astype(np.int64) for name in node.inputs[k : k + 2]] for k in (1, 3)]
            return max(int((LARGEST * np.abs(w) + ((1 << shift) >> 1)).max()) for w, shift in sides)
        case "IntTable":
            starts, a, b = (graph.constants[name].astype(np.int64) for name in node.inputs[1:4])
            ends = np.append(starts[1:] - 1, 127)
            reached = [np.abs(a * edge + b).max(initial=0) for edge in (starts, ends)]
            return int(max(reached)) + _rounding(node)
        case _:
            return None


def _rounding(node: Node) -> int:
    return (1 << SHIFT(node)) >> 1
