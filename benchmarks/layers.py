"""Networks with random weights, built layer by layer in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference


@dataclass
class Layers:
    """Collects the nodes of a network with the input x."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    constants: list[TensorProto] = field(default_factory=list[TensorProto])

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; returns its output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def constant(self, values: Any) -> str:
        """A float32 constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int, *, stride: int = 1, group: int = 1, pad: bool = True
    ) -> str:
        """A convolution from and to these numbers of channels; pad: keep the extents at stride 1."""
        shape = (channels[1], channels[0] // group, kernel, kernel)
        w = self.constant(self.random.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape))
        b = self.constant(self.random.normal(0, 0.1, channels[1]))
        pads = [kernel // 2 * pad] * 4
        return self.node("Conv", x, w, b, kernel_shape=shape[2:], strides=[stride] * 2, pads=pads, group=group)

    def dense(self, x: str, depth: int, width: int) -> str:
        """A fully connected layer."""
        w = self.constant(self.random.normal(0, depth**-0.5, (width, depth)))
        return self.node("Gemm", x, w, self.constant(self.random.normal(0, 0.1, width)), transB=1)

    def limited(self, x: str) -> str:
        """ReLU6."""
        return self.node("Clip", x, self.constant(0), self.constant(6))

    def model(self, shape: Sequence[int], outputs: Sequence[str]) -> onnx.ModelProto:
        """The model with these outputs."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        given = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", [x], given, self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return shape_inference.infer_shapes(made)


BLOCKS = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""EfficientNet-Lite0: expansion, channels, repetitions, stride of the first, kernel."""


def efficientnet_lite0() -> onnx.ModelProto:
    """EfficientNet-Lite0 for 3 x 224 x 224."""
    net = Layers()
    x, channels = net.limited(net.conv("x", (3, 32), 3, stride=2)), 32
    for expansion, width, count, stride, kernel in BLOCKS:
        for at in range(count):
            y, inner = x, channels * expansion
            if expansion > 1:
                y = net.limited(net.conv(y, (channels, inner), 1))
            y = net.limited(net.conv(y, (inner, inner), kernel, stride=1 if at else stride, group=inner))
            y = net.conv(y, (inner, width), 1)
            x, channels = net.node("Add", x, y) if at else y, width
    x = net.limited(net.conv(x, (320, 1280), 1))
    x = net.node("Flatten", net.node("GlobalAveragePool", x), axis=1)
    return net.model([1, 3, 224, 224], [net.dense(x, 1280, 1000)])


def face_network() -> onnx.ModelProto:
    """A face network of the shape of MTCNN's last stage, for 3 x 48 x 48: scores, a box, and landmarks."""
    net = Layers()
    x = "x"
    for before, after, kernel, pool in ((3, 32, 3, 3), (32, 64, 3, 3), (64, 64, 3, 2), (64, 128, 2, 0)):
        x = net.node("Relu", net.conv(x, (before, after), kernel, pad=False))
        if pool:
            x = net.node("MaxPool", x, kernel_shape=[pool] * 2, strides=[2, 2])
    x = net.node("Relu", net.dense(net.node("Flatten", x, axis=1), 128 * 4, 256))
    scores = net.node("Softmax", net.dense(x, 256, 2), axis=1)
    return net.model([1, 3, 48, 48], [scores, net.dense(x, 256, 4), net.dense(x, 256, 10)])
