"""Networks as Paddle2ONNX writes them: names with p2o, chains of Identity and Cast, everything decomposed."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from npuc.models.builder import Pads, Pair, pair
from npuc.models.families.exporter import Exporter


class Paddle(Exporter):
    """Opset 14, names `p2o.Conv.3`."""

    opset = 14

    def name_of(self, op: str) -> str:
        """As `p2o.Conv.3`."""
        return f"p2o.{op}.{len(self._nodes)}"

    def conv(
        self, x: str, channels: int, kernel: Pair, *, stride: Pair = 1, pads: Pads = "same", dilation: Pair = 1,
        group: int = 1, bias: bool = True,
    ) -> str:  # fmt: skip
        """A signal's convolution becomes one of an image, between unsqueeze2 and squeeze2."""
        if len(self.shapes[x]) == 4:
            return super().conv(
                x, channels, kernel, stride=stride, pads=pads, dilation=dilation, group=group, bias=bias
            )
        axes = np.array([2])
        N, C, L = self.shapes[x]
        wide = self.node("Unsqueeze", [x, self.weight(axes, "axes")], (N, C, 1, L))
        begin, end = (pads[0], pads[1]) if not isinstance(pads, str) else (0, 0)
        around = pads if isinstance(pads, str) else (0, begin, 0, end)
        y = super().conv(
            wide,
            channels,
            (1, *pair(kernel, 1)),
            stride=(1, *pair(stride, 1)),
            pads=around,
            group=group,
            bias=bias,
        )
        outputs, length = self.shapes[y][1], self.shapes[y][3]
        return self.node("Squeeze", [y, self.weight(axes, "axes")], (N, outputs, length))

    def batch_norm(self, x: str) -> str:
        """Batch normalisation between Identities, as dropout and assign leave them."""
        return self.unary("Identity", super().batch_norm(self.unary("Identity", x)))

    def hard_swish(self, x: str) -> str:
        """x * clip(x + 3, 0, 6) / 6."""
        return self.binary("Div", self.binary("Mul", x, self._limited(x)), 6.0)

    def hard_sigmoid(self, x: str) -> str:
        """HardSigmoid with the slope that Paddle writes in four digits."""
        return self.unary("HardSigmoid", x, alpha=0.2, beta=0.5)

    def _limited(self, x: str) -> str:
        return self.clip(self.binary("Add", x, 3.0), 0, 6)

    def gelu(self, x: str) -> str:
        """x * 0.5 * (1 + erf(x / sqrt(2)))."""
        gate = self.binary("Add", self.unary("Erf", self.binary("Div", x, sqrt(2))), 1.0)
        return self.binary("Mul", self.binary("Mul", x, gate), 0.5)

    def layer_norm(self, x: str) -> str:
        """(x - mean) / sqrt(mean((x - mean) ^ 2) + eps) * scale + bias, with Casts around it."""
        scale, bias = self.gain(x), self.offset(x)
        axis, x = len(self.shapes[x]) - 1, self.unary("Cast", x, to=1)
        distance = self.binary("Sub", x, self.mean(x, [axis]))
        variance = self.mean(self.binary("Pow", distance, 2.0), [axis])
        root = self.unary("Sqrt", self.binary("Add", variance, 1e-5))
        normal = self.binary("Div", distance, root)
        return self.unary("Cast", self.binary("Add", self.binary("Mul", normal, scale), bias), to=1)

    def rms_norm(self, x: str) -> str:
        """x / sqrt(mean(x ^ 2) + eps) * scale."""
        scale = self.gain(x)
        power = self.mean(self.binary("Pow", x, 2.0), [len(self.shapes[x]) - 1])
        root = self.unary("Sqrt", self.binary("Add", power, 1e-6))
        return self.binary("Mul", self.binary("Div", x, root), scale)

    def scaled(self, x: str, factor: float) -> str:
        """Paddle's scale operator: x * factor + 0."""
        return self.binary("Add", self.binary("Mul", x, factor), 0.0)

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """To a shape concatenated from the batch, sliced from Shape and cast, and constants."""
        found = self.node("Shape", [x], (len(self.shapes[x]),))
        first = self.slice(found, 0, 0, 1)
        narrow = self.node("Cast", [first], (1,), to=6)
        wide = self.node("Cast", [narrow], (1,), to=7)
        target = self.joined([wide, self.weight(np.array(shape[1:]), "shape")], 0)
        return self.node("Reshape", [x, target], shape)

    def global_pool(self, x: str) -> str:
        """GlobalAveragePool of images."""
        return self.global_average_pool(x) if len(self.shapes[x]) == 4 else super().global_pool(x)

    def recurrent(self, op: str, x: str, features: int) -> str:
        """Initial states from ConstantOfShape through Casts, time first, the direction squeezed."""
        _, T, D = self.shapes[x]
        first = self.transpose(x, (1, 0, 2))
        states = [self._zeros(features) for _ in range(2 if op == "LSTM" else 1)]
        attrs: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
        inputs = [first, *self.gates(op, D, features), "", *states]
        y = self.node(op, inputs, (T, 1, 1, features), hidden_size=features, **attrs)
        flat = self.node("Squeeze", [y, self.weight(np.array([1]), "axes")], (T, 1, features))
        return self.unary("Identity", self.transpose(flat, (1, 0, 2)))

    def _zeros(self, features: int) -> str:
        shape = self.weight(np.array([1, 1, features]), "sizes")
        return self.unary("Cast", self.node("ConstantOfShape", [shape], (1, 1, features)), to=1)
