"""A machine-independent view of the weights of integer convolutions, for code that changes them.

A convolution's sums are integers; the bias is added in units of the sums; a real factor per channel then converts
them to steps of the result. How a target's node encodes this, and how its weights are replaced, is up to the
target (Layers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops.attributes import RELU
from npuc.quantize.arithmetic.weights import ACCUMULATOR_LIMIT
from npuc.quantize.network.construction import Quantised


@frozen
class LayerWeights:
    """w: (Co, ...) int8; bias: (Co,) int64, multiples of `grain` up to `most`; power: (Co,), sums per step."""

    w: Array
    bias: Array
    power: Array
    grain: int = 1
    most: int = ACCUMULATOR_LIMIT - 1

    @property
    def total(self) -> Array:
        """The sum of each output channel's weights, (Co,) int64."""
        return self.w.astype(np.int64).reshape(len(self.w), -1).sum(axis=1)

    def rounded(self, bias: Array) -> Array:
        """The nearest bias that the layer can represent."""
        wanted = np.rint(bias / self.grain).clip(-(self.most // self.grain), self.most // self.grain)
        return wanted.astype(np.int64) * self.grain


@frozen
class IntegerLayer:
    """A float convolution as integers: its result's scale, and the zero point included in the bias.

    source: the result of the float convolution. lowest, largest: the limits of the integer results.
    """

    source: str
    weights: LayerWeights
    scale: float
    zero: int
    lowest: float
    largest: float


class LayerEncoding(Protocol):
    """How a target's nodes encode convolutions."""

    def layer(self, quantised: Quantised, node: Node) -> IntegerLayer | None:
        """The convolution that a node of the integer graph computes; None for other nodes."""
        ...

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """The node's constants with other weights and another bias."""
        ...


class Shifted:
    """IntConv: every channel is requantised by a right shift; the bias includes the zero point of the result."""

    def layer(self, quantised: Quantised, node: Node) -> IntegerLayer | None:
        """The convolution of an IntConv."""
        if node.op != "IntConv":
            return None
        w, bias, shift = (quantised.graph.constants[name] for name in node.inputs[1:4])
        weights = LayerWeights(w, bias.astype(np.int64), np.exp2(shift.astype(np.float64)))
        zero = quantised.zeros.get(node.output, 0)
        lowest, source = 0 if RELU(node) else -128, quantised.sources[node.inputs[1]]
        return IntegerLayer(source, weights, quantised.scales[node.output], zero, lowest, 127)

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """Weights and bias."""
        del quantised
        return {node.inputs[1]: weights.w, node.inputs[2]: weights.bias.astype(np.int32)}


SHIFTED = Shifted()
"""The layers of machines that requantise by shifts only."""
