"""Networks as PyTorch's dynamo exporter writes them: functions of torch_lib, shapes computed from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import onnx.parser

from npuc.models.families.exporter import Exporter

DOMAIN = "pkg.onnxscript.torch_lib"
BODIES = (
    f"""<domain: "{DOMAIN}", opset_import: ["": 18]>
    aten_gelu (self) => (result) {{
        inner = Constant <value: tensor = float {{0.70710677}}> ()
        one = Constant <value: tensor = float {{1.0}}> ()
        half = Constant <value: tensor = float {{0.5}}> ()
        scaled = Mul(self, inner)
        erf = Erf(scaled)
        plus = Add(erf, one)
        phi = Mul(half, plus)
        result = Mul(self, phi)
    }}""",
    f"""<domain: "{DOMAIN}", opset_import: ["": 18]>
    aten_hardswish (self) => (result) {{
        gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (self)
        result = Mul(gate, self)
    }}""",
    f"""<domain: "{DOMAIN}", opset_import: ["": 18]>
    aten_layer_norm (input, weight, bias, axes) => (result) {{
        two = Constant <value: tensor = float {{2.0}}> ()
        eps = Constant <value: tensor = float {{0.00001}}> ()
        mean = ReduceMean <keepdims = 1> (input, axes)
        distance = Sub(input, mean)
        square = Pow(distance, two)
        variance = ReduceMean <keepdims = 1> (square, axes)
        above = Add(variance, eps)
        root = Sqrt(above)
        normal = Div(distance, root)
        product = Mul(normal, weight)
        result = Add(product, bias)
    }}""",
)


class Dynamo(Exporter):
    """Opset 18, names `node_conv_3`, decomposed operators."""

    opset = 18
    functions = tuple(map(onnx.parser.parse_function, BODIES))

    def name_of(self, op: str) -> str:
        """As `node_conv_3`."""
        return f"node_{op.lower()}_{len(self._nodes)}"

    def call(self, function: str, inputs: Sequence[str], shape: Sequence[int]) -> str:
        """A call of one of the model's functions."""
        return self.node(function, inputs, shape, domain=DOMAIN)

    def hard_swish(self, x: str) -> str:
        """x * hardsigmoid(x), in a function."""
        return self.call("aten_hardswish", [x], self.shapes[x])

    def hard_sigmoid(self, x: str) -> str:
        """HardSigmoid with alpha 1/6."""
        return self.unary("HardSigmoid", x, alpha=1 / 6, beta=0.5)

    def gelu(self, x: str) -> str:
        """0.5 * (1 + erf(x / sqrt(2))) * x, in a function."""
        return self.call("aten_gelu", [x], self.shapes[x])

    def layer_norm(self, x: str) -> str:
        """(x - mean) / sqrt(mean((x - mean) ^ 2) + eps) * weight + bias, in a function."""
        axes = self.weight(np.array([-1]), "axes")
        return self.call("aten_layer_norm", [x, self.gain(x), self.offset(x), axes], self.shapes[x])

    def rms_norm(self, x: str) -> str:
        """x * (1 / sqrt(mean(x ^ 2) + eps)) * weight."""
        weight = self.gain(x)
        power = self.mean(self.binary("Pow", x, 2.0), [len(self.shapes[x]) - 1])
        root = self.unary("Reciprocal", self.unary("Sqrt", self.binary("Add", power, 1e-6)))
        return self.binary("Mul", self.binary("Mul", x, root), weight)

    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """To a shape concatenated from the batch, obtained by Shape and Gather, and constants."""
        found = self.node("Shape", [x], (len(self.shapes[x]),))
        batch = self.node("Gather", [found, self.weight(np.array(0), "index")], (), axis=0)
        axes = self.weight(np.array([0]), "axes")
        first = self.node("Unsqueeze", [batch, axes], (1,))
        rest = self.weight(np.array(shape[1:]), "sizes")
        target = self.node("Concat", [first, rest], (len(shape),), axis=0)
        return self.node("Reshape", [x, target], shape, allowzero=1)

    def scaled(self, x: str, factor: float) -> str:
        """Divided by a root that is computed from the size."""
        size = self.node("Cast", [self.weight(np.array(round(1 / factor**2)), "size")], (), to=1)
        return self.binary("Div", x, self.unary("Sqrt", size))

    def dense(self, x: str, features: int) -> str:
        """MatMul with the Transpose of a stored (features, K) weight, and Add; Gemm of rank 2."""
        if len(self.shapes[x]) == 2:
            return self.gemm(x, features)
        K = self.shapes[x][-1]
        stored = self.weight((self._random.standard_normal((features, K)) / sqrt(K)).astype(np.float32), "weight")
        y = self.matmul(x, self.transpose(stored, (1, 0)))
        return self.binary("Add", y, self.weight(self._normal(features, 0, 0.1), "bias"))

    def recurrent(self, op: str, x: str, features: int) -> str:
        """Initial states expanded from zero, time first, the direction squeezed."""
        _, T, D = self.shapes[x]
        first = self.transpose(x, (1, 0, 2))
        states = ["h", "c"][: 2 if op == "LSTM" else 1]
        zeros = [self._zeros(features) for _ in states]
        attrs: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
        inputs = [first, *self.gates(op, D, features), "", *zeros]
        y = self.node(op, inputs, (T, 1, 1, features), hidden_size=features, **attrs)
        flat = self.node("Squeeze", [y, self.weight(np.array([1]), "axes")], (T, 1, features))
        return self.transpose(flat, (1, 0, 2))

    def _zeros(self, features: int) -> str:
        shape = self.weight(np.array([1, 1, features]), "sizes")
        return self.node("Expand", [self.constant(0.0), shape], (1, 1, features))
