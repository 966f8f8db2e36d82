"""Builder of networks, layer by layer, as ONNX models with seeded random weights.

Maps are (N, C, H, W) with N = 1; every method appends one layer and returns the name of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod, sqrt
from typing import Any, ClassVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
"""The newest version that onnxruntime 1.18, the oldest one supported, reads."""

Pair = int | tuple[int, ...]
Pads = str | tuple[int, ...]
"""'valid', 'same' (an extent is ceil(input / stride), the odd element goes to the end), or begin.. end.."""


def pair(value: Pair, rank: int = 2) -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    return (value,) * rank if isinstance(value, int) else value


def explicit_pads(extents: Sequence[int], spans: Sequence[int], strides: Sequence[int], pads: Pads) -> list[int]:
    """The pads in ONNX order (begin.., end..) of windows that span `spans` elements."""
    if not isinstance(pads, str):
        return list(pads)
    if pads == "valid":
        return [0] * (2 * len(extents))
    totals = [
        max((ceil(extent / stride) - 1) * stride + span - extent, 0)
        for extent, span, stride in zip(extents, spans, strides, strict=True)
    ]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


_GAIN = {"Conv": 2.0, "Gemm": 2.0, "ConvTranspose": 2.0, "Relu": 0.5, "Clip": 0.5}
"""Mean square of a result relative to its operand's, for weights drawn by `_he`."""


class NetworkBuilder:
    """Collects nodes, weights and shapes. Two builders with the same seed and calls give the same bytes."""

    opset: ClassVar[int] = OPSET
    functions: ClassVar[tuple[onnx.FunctionProto, ...]] = ()
    """Functions that nodes may call; a model includes those that are called."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}  # of tensors that are not float32
        self._power: dict[str, float] = {}  # an estimate of every result's mean square
        self._random = np.random.default_rng(seed)
        self._inputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def input(self, shape: tuple[int, ...], name: str = "input") -> str:
        """A float32 input of the network."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        self.shapes[name], self._power[name] = shape, 1.0
        return name

    def weight(self, value: NDArray[Any], role: str) -> str:
        """A constant of the next layer."""
        name = f"n{len(self._nodes)}_{role}"
        self._weights.append(numpy_helper.from_array(value, name))
        self.shapes[name] = value.shape
        return name

    def name_of(self, op: str) -> str:
        """The name of the next node and of its result."""
        return f"n{len(self._nodes)}_{op}"

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attrs: Any) -> str:
        """Any operator; `shape` is the shape of its one result."""
        name = self.name_of(op)
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attrs))
        self.shapes[name] = tuple(shape)
        known = [self._power[x] for x in inputs if x in self._power]
        self._power[name] = sum(known) if op in ("Add", "Sum") else max(known, default=1.0) * _GAIN.get(op, 1.0)
        return name

    def _he(self, shape: tuple[int, ...], fan_in: int) -> NDArray[np.float32]:
        """Normal with the variance 2 / fan_in, which preserves the size of maps after ReLUs (He et al., 2015)."""
        return (self._random.standard_normal(shape) * sqrt(2 / fan_in)).astype(np.float32)

    def _normal(self, count: int, mean: float, deviation: float) -> NDArray[np.float32]:
        return self._random.normal(mean, deviation, count).astype(np.float32)

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pads: Pads = "same",
        dilation: Pair = 1,
        group: int = 1,
        bias: bool = True,
    ) -> str:
        """A convolution with `channels` outputs; one without a bias is meant to be followed by batch_norm."""
        batch, Ci, *extents = self.shapes[x]
        size, strides, dilations = (pair(each, len(extents)) for each in (kernel, stride, dilation))
        spans = [(k - 1) * d + 1 for k, d in zip(size, dilations, strict=True)]
        padding = explicit_pads(extents, spans, strides, pads)
        shape = (batch, channels, *windows(extents, spans, strides, padding))
        w = self._he((channels, Ci // group, *size), Ci // group * prod(size))
        inputs = [x, self.weight(w, "w")]
        if bias:
            inputs.append(self.weight(self._normal(channels, 0, 0.1), "b"))
        geometry = {"kernel_shape": size, "strides": strides, "pads": padding, "dilations": dilations}
        return self.node("Conv", inputs, shape, group=group, **geometry)

    def depthwise(self, x: str, kernel: Pair, *, stride: Pair = 1, pads: Pads = "same", dilation: Pair = 1) -> str:
        """A depthwise convolution without bias."""
        C = self.shapes[x][1]
        return self.conv(x, C, kernel, stride=stride, pads=pads, dilation=dilation, group=C, bias=False)

    def conv_transpose(self, x: str, channels: int, factor: int) -> str:
        """The map enlarged by `factor` with a kernel of the same size, so that windows do not overlap."""
        batch, Ci, height, width = self.shapes[x]
        w = self._he((Ci, channels, factor, factor), Ci)
        inputs = [x, self.weight(w, "w"), self.weight(self._normal(channels, 0, 0.1), "b")]
        shape = (batch, channels, height * factor, width * factor)
        return self.node("ConvTranspose", inputs, shape, kernel_shape=pair(factor), strides=pair(factor))

    def gemm(self, x: str, features: int) -> str:
        """A fully connected layer over (N, K)."""
        batch, K = self.shapes[x]
        w = self.weight(self._he((features, K), K), "w")
        b = self.weight(self._normal(features, 0, 0.1), "b")
        return self.node("Gemm", [x, w, b], (batch, features), transB=1)

    def batch_norm(self, x: str) -> str:
        """Batch normalisation over axis 1 as after training: statistics close, but not equal, to those of x."""
        C, power = self.shapes[x][1], self._power[x]
        scale, bias = self._normal(C, 1, 0.15), self._normal(C, 0, 0.1)
        mean = self._normal(C, 0, 0.2 * sqrt(power))
        var = (power * self._random.uniform(0.5, 1.5, C)).astype(np.float32)
        roles = {"scale": scale, "bias": bias, "mean": mean, "var": var}
        inputs = [x, *(self.weight(value, role) for role, value in roles.items())]
        name = self.node("BatchNormalization", inputs, self.shapes[x], epsilon=1e-3)
        self._power[name] = 1.0
        return name

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self.node("Relu", [x], self.shapes[x])

    def relu6(self, x: str) -> str:
        """min(max(x, 0), 6)."""
        low, high = (self.weight(np.array(v, np.float32), role) for v, role in ((0, "low"), (6, "high")))
        return self.node("Clip", [x, low, high], self.shapes[x])

    def swish(self, x: str) -> str:
        """x * sigmoid(x), in the two nodes that exporters write."""
        return self.node("Mul", [x, self.node("Sigmoid", [x], self.shapes[x])], self.shapes[x])

    def add(self, x: str, y: str) -> str:
        """x + y by numpy's broadcasting."""
        return self.node("Add", [x, y], np.broadcast_shapes(self.shapes[x], self.shapes[y]))

    def concat(self, *xs: str) -> str:
        """The maps' channels one after another."""
        batch, _, *extents = self.shapes[xs[0]]
        return self.node("Concat", xs, (batch, sum(self.shapes[x][1] for x in xs), *extents), axis=1)

    def pool(self, op: str, x: str, kernel: Pair, *, stride: Pair | None = None, pads: Pads = "valid") -> str:
        """MaxPool or AveragePool; the stride defaults to the kernel."""
        batch, C, *extents = self.shapes[x]
        size, strides = pair(kernel), pair(kernel if stride is None else stride)
        padding = explicit_pads(extents, size, strides, pads)
        shape = (batch, C, *windows(extents, size, strides, padding))
        return self.node(op, [x], shape, kernel_shape=size, strides=strides, pads=padding)

    def global_average_pool(self, x: str) -> str:
        """(N, C, H, W) -> (N, C, 1, 1)."""
        return self.node("GlobalAveragePool", [x], (*self.shapes[x][:2], 1, 1))

    def reshape(self, x: str, shape: tuple[int, ...]) -> str:
        """The same elements in another shape."""
        return self.node("Reshape", [x, self.weight(np.array(shape, np.int64), "shape")], shape)

    def flatten(self, x: str) -> str:
        """(N, ...) -> (N, K)."""
        batch, *rest = self.shapes[x]
        return self.node("Flatten", [x], (batch, prod(rest)), axis=1)

    def finish(self, *outputs: str) -> onnx.ModelProto:
        """The model with these outputs, checked by onnx."""
        results = [
            helper.make_tensor_value_info(y, self.types.get(y, TensorProto.FLOAT), self.shapes[y]) for y in outputs
        ]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, results, self._weights)
        called = {(node.domain, node.op_type) for node in self._nodes}
        functions = [each for each in self.functions if (each.domain, each.name) in called]
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(name, 1) for name in sorted({each.domain for each in functions})]
        model = helper.make_model(
            graph, producer_name="npuc", opset_imports=opsets, ir_version=IR_VERSION, functions=functions
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def windows(
    extents: Sequence[int], spans: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> tuple[int, ...]:
    """The number of windows that fit along each axis."""
    rank = len(extents)
    return tuple((extents[i] + pads[i] + pads[i + rank] - spans[i]) // strides[i] + 1 for i in range(rank))
