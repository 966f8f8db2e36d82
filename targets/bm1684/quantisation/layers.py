"""IntConv of one shift as the convolution that it computes, for whoever improves its weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.ir import Array, Node
from npuc.quantize.network.construction import Quantised
from npuc.quantize.network.layers import LayerWeights, Shifted
from npuc.targets.bm1684.quantisation.builder import MOST_BIAS
from npuc.targets.bm1684.quantisation.operators import UNSIGNED


def chip_bias(w: Array, bias: Array, shift: Array, x_zero: int, y_zero: int) -> Array:
    """The chip's bias (Co,) int64 of an IntConv: its integers are larger by 128 where the zero point is -128."""
    total = w.astype(np.int64).reshape(len(w), -1).sum(axis=1)
    wide = bias.astype(np.int64)
    wide = wide + UNSIGNED * total * (x_zero == UNSIGNED)
    return wide - (np.int64(UNSIGNED) << shift.astype(np.int64)) * (y_zero == UNSIGNED)


class OneShift(Shifted):
    """As EasyNPU's, with biases that the chip's 16 bits hold."""

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """Weights, and the nearest bias there is."""
        zeros = (quantised.zeros.get(node.inputs[0], 0), quantised.zeros.get(node.output, 0))
        shift = quantised.graph.constants[node.inputs[3]]
        own = chip_bias(weights.w, weights.bias, shift, *zeros)
        bias = weights.bias + np.clip(own, -MOST_BIAS - 1, MOST_BIAS) - own
        return {node.inputs[1]: weights.w, node.inputs[2]: bias.astype(np.int32)}


ONE_SHIFT = OneShift()
"""The layers of BM1684."""
