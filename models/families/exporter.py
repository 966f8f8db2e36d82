"""Layers of the families' networks, which each exporter expresses in its own nodes.

Images are (N, C, H, W), signals (N, C, L), sequences (N, T, D) with N = 1; each method appends one layer and
returns the name of its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from npuc.models.builder import NetworkBuilder, Pads, Pair

GATES = {"LSTM": 4, "GRU": 3}


class Exporter(NetworkBuilder, ABC):
    """Base class of the exporters, with everything that they write alike."""

    @abstractmethod
    def hard_swish(self, x: str) -> str:
        """x * relu6(x + 3) / 6."""

    @abstractmethod
    def hard_sigmoid(self, x: str) -> str:
        """relu6(x + 3) / 6."""

    @abstractmethod
    def gelu(self, x: str) -> str:
        """x * Phi(x) by the error function, or by tanh."""

    @abstractmethod
    def layer_norm(self, x: str) -> str:
        """Normalisation over the last axis, with scale and bias, in operators that every opset has."""

    @abstractmethod
    def rms_norm(self, x: str) -> str:
        """Division by the root of the mean square over the last axis, with a scale."""

    @abstractmethod
    def reshaped(self, x: str, shape: Sequence[int]) -> str:
        """The same elements in another shape, which a traced network computes at run time from the batch size."""

    @abstractmethod
    def recurrent(self, op: str, x: str, features: int) -> str:
        """An LSTM or GRU over (N, T, D); (N, T, features)."""

    def constant(self, value: Any, role: str = "const") -> str:
        """A float32 constant."""
        return self.weight(np.asarray(value, np.float32), role)

    def binary(self, op: str, x: str, y: str | float) -> str:
        """Add, Sub, Mul, Div or Pow of a tensor and another, or a number."""
        other = y if isinstance(y, str) else self.constant(y)
        return self.node(op, [x, other], np.broadcast_shapes(self.shapes[x], self.shapes[other]))

    def unary(self, op: str, x: str, **attrs: Any) -> str:
        """An operator that keeps the shape."""
        return self.node(op, [x], self.shapes[x], **attrs)

    def mean(self, x: str, axes: Sequence[int]) -> str:
        """The mean over axes, which are kept with extent 1."""
        shape = self.shapes[x]
        reduced = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
        if self.opset < 18:
            return self.node("ReduceMean", [x], reduced, axes=list(axes), keepdims=1)
        return self.node("ReduceMean", [x, self.weight(np.array(axes), "axes")], reduced, keepdims=1)

    def clip(self, x: str, low: float, high: float) -> str:
        """min(max(x, low), high)."""
        return self.node("Clip", [x, self.constant(low, "min"), self.constant(high, "max")], self.shapes[x])

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """The axes in another order."""
        return self.node("Transpose", [x], [self.shapes[x][axis] for axis in order], perm=list(order))

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """The elements start..end-1 of an axis."""
        shape = list(self.shapes[x])
        shape[axis] = end - start
        bounds = [
            self.weight(np.array([each]), role)
            for each, role in ((start, "starts"), (end, "ends"), (axis, "axes"))
        ]
        return self.node("Slice", [x, *bounds], shape)

    def joined(self, xs: Sequence[str], axis: int) -> str:
        """Concatenation of tensors along an axis."""
        shape = list(self.shapes[xs[0]])
        shape[axis] = sum(self.shapes[x][axis] for x in xs)
        return self.node("Concat", list(xs), shape, axis=axis)

    def softmax(self, x: str, axis: int = -1) -> str:
        """Softmax over an axis."""
        return self.node("Softmax", [x], self.shapes[x], axis=axis)

    def conv_norm(self, x: str, channels: int, kernel: Pair, *, stride: Pair = 1, group: int = 1) -> str:
        """A convolution followed by batch normalisation."""
        return self.batch_norm(
            self.conv(x, channels, kernel, stride=stride, pads=self.padding(kernel), group=group, bias=False)
        )

    def padding(self, kernel: Pair) -> Pads:
        """The padding of a convolution that preserves the size: half a kernel on either side."""
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        return tuple(size // 2 for size in sizes) * 2

    def matmul(self, x: str, y: str) -> str:
        """A product of batches of matrices."""
        left, right = self.shapes[x], self.shapes[y]
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        return self.node("MatMul", [x, y], (*batch, left[-2], right[-1]))

    def dense(self, x: str, features: int) -> str:
        """A fully connected layer over the last axis, of any rank: MatMul and Add."""
        K = self.shapes[x][-1]
        w = self.weight((self._random.standard_normal((K, features)) / sqrt(K)).astype(np.float32), "kernel")
        return self.binary("Add", self.matmul(x, w), self.weight(self._normal(features, 0, 0.1), "bias"))

    def global_pool(self, x: str) -> str:
        """(N, C, ...) -> (N, C, 1, ...)."""
        return self.mean(x, range(2, len(self.shapes[x])))

    def gain(self, x: str) -> str:
        """The scale of a normalisation over the last axis."""
        return self.weight(self._normal(self.shapes[x][-1], 1, 0.15), "gamma")

    def offset(self, x: str) -> str:
        """The bias of a normalisation over the last axis."""
        return self.weight(self._normal(self.shapes[x][-1], 0, 0.1), "beta")

    def attention(self, x: str, heads: int) -> str:
        """Multi-head self-attention over (1, T, D)."""
        _, T, D = self.shapes[x]
        q, k, v = (
            self.transpose(self.reshaped(self.dense(x, D), (1, T, heads, D // heads)), (0, 2, 1, 3))
            for _ in range(3)
        )
        scores = self.scaled(self.matmul(q, self.transpose(k, (0, 1, 3, 2))), 1 / sqrt(D // heads))
        context = self.transpose(self.matmul(self.softmax(scores), v), (0, 2, 1, 3))
        return self.dense(self.reshaped(context, (1, T, D)), D)

    def scaled(self, x: str, factor: float) -> str:
        """x * factor."""
        return self.binary("Mul", x, factor)

    def encoder_layer(self, x: str, heads: int) -> str:
        """A transformer layer, normalised before attention and before the two dense layers."""
        x = self.binary("Add", x, self.attention(self.layer_norm(x), heads))
        D = self.shapes[x][-1]
        return self.binary("Add", x, self.dense(self.gelu(self.dense(self.layer_norm(x), 4 * D)), D))

    def gates(self, op: str, D: int, features: int) -> list[str]:
        """W, R and B of a unidirectional recurrent layer."""
        rows = GATES[op] * features
        W = self._random.standard_normal((1, rows, D)) / sqrt(D)
        R = self._random.standard_normal((1, rows, features)) / sqrt(features)
        parts: list[tuple[NDArray[Any], str]] = [
            (W, "W"),
            (R, "R"),
            (self._random.normal(0, 0.1, (1, 2 * rows)), "B"),
        ]
        return [self.weight(value.astype(np.float32), role) for value, role in parts]

    def flat(self, x: str) -> str:
        """(N, ...) -> (N, K)."""
        return self.reshaped(x, (1, prod(self.shapes[x])))

    def estimated(self, y: str, x: str, gain: float) -> str:
        """y, with its mean square estimated as that of x times the gain."""
        self._power[y] = self._power[x] * gain
        return y

    def normal(self, shape: Sequence[int], deviation: float) -> NDArray[Any]:
        """Normal numbers with mean zero."""
        return self._random.normal(0, deviation, tuple(shape))

    def tokens(self, name: str, count: int) -> str:
        """An int64 input of one sequence of tokens."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, (1, count)))
        self.shapes[name], self._power[name] = (1, count), 1.0
        return name

    def enlarged(self, x: str) -> str:
        """An image of twice the size: each pixel is repeated four times."""
        N, C, H, W = self.shapes[x]
        scales = self.constant([1, 1, 2, 2], "scales")
        attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", [x, "", scales], (N, C, 2 * H, 2 * W), mode="nearest", **attrs)
