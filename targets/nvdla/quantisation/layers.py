"""NvConv as an integer convolution: weights, a 16-bit bias behind a shift, multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import AVERAGE
from npuc.quantize.network.construction import IntegerLayer, LayerWeights, Quantised
from npuc.targets.nvdla.arithmetic.attributes import WINOGRAD
from npuc.targets.nvdla.arithmetic.fixed_point import FRACTION, MOST_MULTIPLIER
from npuc.targets.nvdla.arithmetic.integer import operands, stages
from npuc.targets.nvdla.quantisation.sums import COLUMN


class Multiplied:
    """NvConv: X1 or both stages give steps of the result, or X1 gives fractions of steps if X2 does more."""

    def layer(self, quantised: Quantised, node: Node) -> IntegerLayer | None:
        """The convolution of an NvConv in int8; None for others, averages, transformed or two-part weights."""
        if node.op != "NvConv" or AVERAGE(node) or WINOGRAD(node):
            return None
        if node.inputs[0] not in quantised.scales:  # every channel twice, as weights have 9 bits
            return None
        if quantised.graph.tensors[node.output].dtype != "int8":
            return None
        first, second = stages(node)
        operand, step = operands(node)[2], quantised.scales[node.output]
        zero = quantised.zeros.get(node.output, 0)
        lowest, largest = -128.0 - zero, 127.0 - zero
        if operand in quantised.scales or second.prelu:
            step = quantised.scales.get(operand, step) * 2.0**-FRACTION
            lowest, largest = -inf, inf
        relu = first.relu or (second.relu and operand not in quantised.scales)
        weights, source = self._weights(quantised, node), quantised.sources[node.inputs[1]]
        return IntegerLayer(source, weights, step, 0, max(lowest, 0) if relu else lowest, largest)

    def _weights(self, quantised: Quantised, node: Node) -> LayerWeights:
        first, second = stages(node)
        constants = quantised.graph.constants
        names = operands(node)[:4]
        upper, multiplier, lower, other = (
            constants[name].ravel().astype(np.int64) if name in constants else None for name in names
        )
        assert upper is not None
        assert multiplier is not None
        w, grain = constants[node.inputs[1]], 1 << first.alu_shift
        if not second.multiply or second.prelu:
            power = 2.0**first.shift / multiplier
            return LayerWeights(w, upper * grain, power, grain, MOST_MULTIPLIER * grain)
        assert lower is not None
        assert other is not None
        bias = upper * grain + np.rint((lower << second.alu_shift) / multiplier).astype(np.int64)
        power = 2.0**second.shift / np.maximum(multiplier * other, 0.5)
        return LayerWeights(w, bias, power, 1, MOST_MULTIPLIER * grain)

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """The weights, and the bias in one or two parts."""
        first, second = stages(node)
        upper, multiplier, lower, _, _ = operands(node)
        grain = 1 << first.alu_shift
        parts = np.rint(weights.bias / grain).astype(np.int64)
        found = {node.inputs[1]: weights.w, upper: parts.astype(np.int16).reshape(COLUMN)}
        if second.multiply and not second.prelu:
            rest = (weights.bias - parts * grain) * quantised.graph.constants[multiplier].ravel()
            limited = np.rint(rest / 2.0**second.alu_shift).clip(-MOST_MULTIPLIER, MOST_MULTIPLIER)
            found[lower] = limited.astype(np.int16).reshape(COLUMN)
        return found
