"""IntConv with one shift as the convolution that it computes, for the improvement of its weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.ir import Array, Node
from npuc.quantize.network.construction import LayerWeights, Quantised, Shifted
from npuc.targets.bm1684.quantisation.operators import UNSIGNED
from npuc.targets.bm1684.quantisation.steps import MOST_BIAS


def chip_bias(w: Array, bias: Array, shift: Array, x_zero: int, y_zero: int) -> Array:
    """The chip's bias (Co,) int64 of an IntConv, for integers larger by 128 where the zero point is -128."""
    total = w.astype(np.int64).reshape(len(w), -1).sum(axis=1)
    wide = bias.astype(np.int64)
    wide = wide + UNSIGNED * total * (x_zero == UNSIGNED)
    return wide - (np.int64(UNSIGNED) << shift.astype(np.int64)) * (y_zero == UNSIGNED)


class OneShift(Shifted):
    """Shifted layers whose biases fit the chip's 16 bits."""

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """The weights, and the nearest bias that fits."""
        zeros = (quantised.zeros.get(node.inputs[0], 0), quantised.zeros.get(node.output, 0))
        shift = quantised.graph.constants[node.inputs[3]]
        own = chip_bias(weights.w, weights.bias, shift, *zeros)
        bias = weights.bias + np.clip(own, -MOST_BIAS - 1, MOST_BIAS) - own
        return {node.inputs[1]: weights.w, node.inputs[2]: bias.astype(np.int32)}


ONE_SHIFT = OneShift()
"""The layer form of BM1684."""
