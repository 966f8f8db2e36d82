"""Networks as tf2onnx writes those of TensorFlow: channels last at the interface, Pads, fused names."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from npuc.models.builder import Pads, Pair, explicit_pads, pair
from npuc.models.families.exporter import Exporter

SPELLED = {
    "Conv": "Conv2D",
    "Add": "AddV2",
    "Div": "truediv",
    "Clip": "Relu6",
    "BatchNormalization": "FusedBatchNormV3",
}


class TensorFlow(Exporter):
    """Opset 15, names of a saved model's functions."""

    opset = 15

    def name_of(self, op: str) -> str:
        """As `StatefulPartitionedCall/NET/layer_3/Conv2D`."""
        return f"StatefulPartitionedCall/{self.name}/layer_{len(self._nodes)}/{SPELLED.get(op, op)}"

    def input(self, shape: tuple[int, ...], name: str = "input") -> str:
        """An input with its channels last, transposed to (N, C, ...)."""
        if len(shape) < 3:
            return super().input(shape, name)
        x = super().input((shape[0], *shape[2:], shape[1]), name)
        return self.transpose(x, (0, len(shape) - 1, *range(1, len(shape) - 1)))

    def conv(
        self, x: str, channels: int, kernel: Pair, *, stride: Pair = 1, pads: Pads = "same", dilation: Pair = 1,
        group: int = 1, bias: bool = True,
    ) -> str:  # fmt: skip
        """A convolution along two axes; with a stride its padding is a preceding Pad, as from ZeroPadding2D."""
        if len(self.shapes[x]) == 3:
            return self._conv_1d(x, channels, pair(kernel, 1)[0], pair(stride, 1)[0], group=group, bias=bias)
        if pair(stride) != (1, 1) and max(pair(kernel)) > 1:
            x, pads = self._padded(x, pads, pair(kernel), pair(stride)), "valid"
        return super().conv(
            x, channels, kernel, stride=stride, pads=pads, dilation=dilation, group=group, bias=bias
        )

    def _padded(self, x: str, pads: Pads, size: Sequence[int], strides: Sequence[int]) -> str:
        extents = self.shapes[x][2:]
        top, left, bottom, right = explicit_pads(extents, size, strides, pads)
        shape = (*self.shapes[x][:2], extents[0] + top + bottom, extents[1] + left + right)
        amounts = self.weight(np.array([0, 0, top, left, 0, 0, bottom, right]), "paddings")
        return self.node("Pad", [x, amounts, self.constant(0, "zero")], shape, mode="constant")

    def _conv_1d(self, x: str, channels: int, kernel: int, stride: int, *, group: int, bias: bool) -> str:
        """Conv1D as a Conv2D between ExpandDims and Squeeze."""
        axes = np.array([2])
        N, C, L = self.shapes[x]
        wide = self.node("Unsqueeze", [x, self.weight(axes, "axes")], (N, C, 1, L))
        y = super().conv(wide, channels, (1, kernel), stride=(1, stride), group=group, bias=bias)
        outputs, length = self.shapes[y][1], self.shapes[y][3]
        return self.node("Squeeze", [y, self.weight(axes, "axes")], (N, outputs, length))

    def padding(self, kernel: Pair) -> Pads:  # noqa: ARG002  (as Exporter)
        """As SAME pads: the odd element goes to the end."""
        return "same"

    def hard_swish(self, x: str) -> str:
        """x * (relu6(x + 3) * (1 / 6))."""
        return self.binary("Mul", x, self.hard_sigmoid(x))

    def hard_sigmoid(self, x: str) -> str:
        """relu6(x + 3) * (1 / 6)."""
        return self.binary("Mul", self.clip(self.binary("Add", x, 3.0), 0, 6), 1 / 6)

    def gelu(self, x: str) -> str:
        """0.5 * x * (1 + erf(x / sqrt(2)))."""
        gate = self.binary("Add", self.unary("Erf", self.binary("Div", x, sqrt(2))), 1.0)
        return self.binary("Mul", self.binary("Mul", x, 0.5), gate)

    def layer_norm(self, x: str) -> str:
        """As batchnorm of Keras: x * (rsqrt(var + eps) * gamma) + (beta - mean * that)."""
        axis = len(self.shapes[x]) - 1
        gamma, beta = self.gain(x), self.offset(x)
        mean = self.mean(x, [axis])
        distance = self.binary("Sub", x, mean)
        variance = self.mean(self.binary("Mul", distance, distance), [axis])
        root = self.unary("Sqrt", self.binary("Add", variance, 1e-3))
        scale = self.binary("Mul", self.unary("Reciprocal", root), gamma)
        offset = self.node("Sub", [beta, self.binary("Mul", mean, scale)], self.shapes[scale])
        return self.binary("Add", self.binary("Mul", x, scale), offset)

    def rms_norm(self, x: str) -> str:
        """x * rsqrt(mean(x * x) + eps) * gamma."""
        gamma = self.gain(x)
        power = self.mean(self.binary("Mul", x, x), [len(self.shapes[x]) - 1])
        root = self.unary("Reciprocal", self.unary("Sqrt", self.binary("Add", power, 1e-5)))
        return self.binary("Mul", self.binary("Mul", x, root), gamma)

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """A constant shape with -1 for the batch."""
        return self.node("Reshape", [x, self.weight(np.array([-1, *shape[1:]]), "shape")], shape)

    def global_pool(self, x: str) -> str:
        """The mean over rows and columns of a map whose channels are last, or over a signal's time."""
        rank = len(self.shapes[x])
        last = self.mean(self.transpose(x, (0, *range(2, rank), 1)), range(1, rank - 1))
        return self.transpose(last, (0, rank - 1, *range(1, rank - 1)))

    def recurrent(self, op: str, x: str, features: int) -> str:
        """Time first between two Transposes, and the direction squeezed."""
        _, T, D = self.shapes[x]
        first = self.transpose(x, (1, 0, 2))
        attrs = {"linear_before_reset": 1} if op == "GRU" else {}
        y = self.node(
            op, [first, *self.gates(op, D, features)], (T, 1, 1, features), hidden_size=features, **attrs
        )
        flat = self.node("Squeeze", [y, self.weight(np.array([1]), "axes")], (T, 1, features))
        return self.transpose(flat, (1, 0, 2))
