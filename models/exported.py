"""Builder of networks as exporters write them: chains of Shape, layers spelt out, batch normalisation folded.

Every node is run by onnxruntime on one random sample when it is appended: shapes are seen, not computed, and
folded statistics are those of the maps, so that activations have the sizes and means of a trained network.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from npuc.models.builder import IR_VERSION, NetworkBuilder, Pads, Pair, pair

Operand = str | float | list[int] | list[float] | NDArray[Any] | np.generic
"""The name of a tensor, or the value of a constant: float32, or int64 if the list has integers."""


class ExportedBuilder(NetworkBuilder):
    """Layers in the forms of PyTorch's exporter, on maps (N, C, H, W) and on tokens (N, T, C)."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.values: dict[str, NDArray[Any]] = {}

    def input(self, shape: tuple[int, ...], name: str = "input") -> str:
        """A float32 input; its sample is normal with mean 0.3."""
        self.values[name] = self._random.normal(0.3, 1, shape).astype(np.float32)
        return super().input(shape, name)

    def weight(self, value: NDArray[Any], role: str) -> str:
        """A constant of the next layer."""
        name = super().weight(value, role)
        self.values[name] = value
        return name

    def node(
        self, op: str, inputs: Sequence[str], shape: Sequence[int] = (), *, results: int = 1, **attrs: Any
    ) -> str:
        """Any operator; names of results after the first end in _1, _2, ..., a shape is that of the first."""
        name = self.name_of(op)
        names = [name, *(f"{name}_{i}" for i in range(1, results))]
        made = helper.make_node(op, inputs, names, name=name, **attrs)
        found = self._run(made)
        if shape and found[0].shape != tuple(shape):
            raise ValueError(f"{name} has the shape {found[0].shape}, not {tuple(shape)}")
        self._nodes.append(made)
        for key, value in zip(names, found, strict=True):
            self.values[key], self.shapes[key] = value, value.shape
            self.types[key] = helper.np_dtype_to_tensor_dtype(value.dtype)
            self._power[key] = float(np.mean(np.square(value, dtype=np.float64)))
        return name

    def _run(self, node: onnx.NodeProto) -> list[NDArray[Any]]:
        feeds = {name: self.values[name] for name in node.input if name}
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        graph = helper.make_graph([node], "node", inputs, [onnx.ValueInfoProto(name=name) for name in node.output])
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return [np.asarray(each) for each in session.run(None, feeds)]

    def op(self, op: str, *operands: Operand, results: int = 1, **attrs: Any) -> str:
        """A node of tensors and constants."""
        names = [
            each if isinstance(each, str) else self.weight(_constant(each), f"c{i}")
            for i, each in enumerate(operands)
        ]
        return self.node(op, names, results=results, **attrs)

    def layer(
        self, x: str, channels: int, kernel: Pair, act: str = "", *, pads: Pads = (), **geometry: Any
    ) -> str:
        """A convolution with the batch normalisation behind it folded in, and an activation.

        Pads are those of PyTorch, half the kernel on either side, unless given. Statistics are rounded coarsely,
        so that another processor's last bits do not change the weights.
        """
        size = pair(kernel, len(self.shapes[x]) - 2)
        dilation = pair(geometry.get("dilation", 1), len(size))
        half = tuple(k // 2 * d for k, d in zip(size, dilation, strict=True))
        y = self.conv(x, channels, kernel, pads=pads or half * 2, **geometry)
        seen = self.values[y]
        axes = (0, *range(2, seen.ndim))
        deviation = 2 ** (np.round(4 * np.log2(seen.std(axes) + 0.25 * seen.std() + 1e-6)) / 4)
        mean = np.round(8 * seen.mean(axes) / deviation) / 8
        gain = np.exp2(self._normal(channels, 0, 0.3)).astype(np.float32)
        shift = (self._normal(channels, 0.1, 0.4) - gain * mean).astype(np.float32)
        gain = (gain / deviation).astype(np.float32)
        w, b = map(numpy_helper.to_array, self._weights[-2:])
        made = w * gain.reshape(-1, *(1,) * (w.ndim - 1)), b * gain + shift
        names = [each.name for each in self._weights[-2:]]
        self._weights[-2:] = [numpy_helper.from_array(v, name) for v, name in zip(made, names, strict=True)]
        self.values |= dict(zip(names, made, strict=True))
        self.values[y] = self._run(self._nodes[-1])[0]
        return self.act(y, act)

    def separable(self, x: str, channels: int, kernel: int, act: str, *, stride: int = 1) -> str:
        """A depthwise and a pointwise convolution."""
        C = self.shapes[x][1]
        return self.layer(self.layer(x, C, kernel, act, stride=stride, group=C), channels, 1, act)

    def act(self, x: str, kind: str) -> str:
        """An activation by name; '' for none."""
        match kind:
            case "":
                return x
            case "relu6":
                return self.relu6(x)
            case "swish":
                return self.swish(x)
            case "hard_swish":  # as PyTorch's exporter writes it for opsets before 14
                six = self.op("Clip", self.op("Add", x, 3.0), 0.0, 6.0)
                return self.op("Div", self.op("Mul", x, six), 6.0)
            case "hard_sigmoid":
                return self.op("Div", self.op("Clip", self.op("Add", x, 3.0), 0.0, 6.0), 6.0)
            case "gelu":
                gate = self.op("Add", self.op("Erf", self.op("Div", x, sqrt(2))), 1.0)
                return self.op("Mul", self.op("Mul", x, gate), 0.5)
            case "prelu":
                slopes = self._random.uniform(0.05, 0.4, (self.shapes[x][1], 1, 1)).astype(np.float32)
                return self.op("PRelu", x, slopes)
            case _:
                return self.op(kind, x)

    def squeeze_excite(self, x: str, gate: str) -> str:
        """The map scaled by a gate for each channel."""
        C = self.shapes[x][1]
        pooled = self.op("ReduceMean", x, axes=[2, 3], keepdims=1)
        gates = self.conv(self.relu(self.conv(pooled, max(C // 4, 8), 1)), C, 1)
        return self.op("Mul", x, self.act(gates, gate))

    def size(self, x: str, axis: int) -> str:
        """An extent as exporters compute it: (1,) int64."""
        extent = self.op("Gather", self.op("Shape", x), np.int64(axis), axis=0)
        return self.op("Unsqueeze", extent, [0])

    def view(self, x: str, *dims: int | str) -> str:
        """A Reshape to extents that are numbers or were computed by `size`."""
        parts = [each if isinstance(each, str) else self.op("Unsqueeze", np.int64(each), [0]) for each in dims]
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0))

    def shuffle(self, x: str, groups: int) -> str:
        """ShuffleNet's channel shuffle."""
        batch, C, *extents = self.shapes[x]
        x = self.op("Reshape", x, [batch, groups, C // groups, *extents])
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3, 4]), [batch, -1, *extents])

    def resize(self, x: str, like: str, mode: str = "linear") -> str:
        """The map in the height and width of another, by Resize with sizes."""
        ends = [self.op("Slice", self.op("Shape", each), [a], [a + 2], [0]) for each, a in ((x, 0), (like, 2))]
        rule = {"nearest": "asymmetric", "linear": "pytorch_half_pixel"}[mode]
        attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": rule, "nearest_mode": "floor"}
        return self.op("Resize", x, "", "", self.op("Concat", *ends, axis=0), **attrs)

    def linear(self, x: str, features: int) -> str:
        """A fully connected layer of tokens (..., K): MatMul, then Add with the bias in front."""
        K = self.shapes[x][-1]
        w = self._normal(K * features, 0, 1 / sqrt(K)).reshape(K, features)
        return self.op("Add", self._normal(features, 0, 0.1), self.op("MatMul", x, w))

    def place(self, x: str) -> str:
        """Tokens (N, T, C), each with a learned vector for its place added."""
        shape = self.shapes[x][1:]
        return self.op("Add", x, self._normal(prod(shape), 0, 0.3).reshape(shape))

    def layer_norm(self, x: str, *, spelt: bool = True) -> str:
        """Layer normalisation over the last axis, as exporters write it before opset 17 or as one node."""
        C = self.shapes[x][-1]
        scale, bias = self._normal(C, 1, 0.2), self._normal(C, 0, 0.2)
        if not spelt:
            return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1], keepdims=1))
        var = self.op("ReduceMean", self.op("Pow", centred, 2.0), axes=[-1], keepdims=1)
        y = self.op("Div", centred, self.op("Sqrt", self.op("Add", var, 1e-5)))
        return self.op("Add", self.op("Mul", y, scale), bias)

    def attention(self, x: str, heads: int) -> str:
        """Self-attention of tokens (N, T, C): one product for queries, keys and values, taken apart by Gather."""
        batch, T, C = (self.size(x, axis) for axis in range(3))
        width = self.shapes[x][2]
        qkv = self.view(self.linear(x, 3 * width), batch, T, 3, heads, width // heads)
        qkv = self.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
        q, k, v = (self.op("Gather", qkv, np.int64(i), axis=0) for i in range(3))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        weights = self.op("Softmax", self.op("Mul", scores, 1 / sqrt(width // heads)), axis=-1)
        y = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.linear(self.view(y, batch, T, C), width)

    def transformer(self, x: str, heads: int, act: str, *, spelt: bool = True) -> str:
        """An encoder layer with normalisation first, its hidden layer twice as wide."""
        C = self.shapes[x][2]
        x = self.add(x, self.attention(self.layer_norm(x, spelt=spelt), heads))
        hidden = self.act(self.linear(self.layer_norm(x, spelt=spelt), 2 * C), act)
        return self.add(x, self.linear(hidden, C))

    def tokens(self, x: str) -> str:
        """A map (N, C, H, W) as tokens (N, H * W, C)."""
        return self.op("Transpose", self.view(x, self.size(x, 0), self.size(x, 1), -1), perm=[0, 2, 1])

    def recurrent(self, op: str, x: str, hidden: int, *, both: bool = False) -> str:
        """LSTM or GRU over (T, N, K) -> (T, N, D * hidden), with PyTorch's Transpose and Reshape behind it."""
        _, batch, K = self.shapes[x]
        D, gates = 1 + both, {"LSTM": 4, "GRU": 3}[op] * hidden
        shapes = (D, gates, K), (D, gates, hidden), (D, 2 * gates)
        w = [self._random.uniform(-1, 1, each).astype(np.float32) * 1.5 / sqrt(hidden) for each in shapes]
        attrs: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
        if op == "GRU":
            attrs["linear_before_reset"] = 1
        initial = [np.zeros((D, batch, hidden), np.float32)] * (2 if op == "LSTM" else 1)
        y = self.op(op, x, *w, "", *initial, **attrs)
        return self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, -1])


def _constant(value: Any) -> NDArray[Any]:
    made = np.asarray(value)
    return made.astype(np.float32) if made.dtype == np.float64 else made
