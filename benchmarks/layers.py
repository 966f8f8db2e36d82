"""Networks with random weights for measurements of time."""

from __future__ import annotations

import onnx

from npuc.models.builder import NetworkBuilder

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
    net = NetworkBuilder("efficientnet_lite0", seed=0)

    def conv(x: str, channels: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        return net.conv(x, channels, kernel, stride=stride, pads=(kernel // 2,) * 4, group=group)

    x, channels = net.relu6(conv(net.input((1, 3, 224, 224), "x"), 32, 3, stride=2)), 32
    for expansion, width, count, stride, kernel in BLOCKS:
        for at in range(count):
            y, inner = x, channels * expansion
            if expansion > 1:
                y = net.relu6(conv(y, inner, 1))
            y = net.relu6(conv(y, inner, kernel, stride=1 if at else stride, group=inner))
            y = conv(y, width, 1)
            x, channels = net.add(x, y) if at else y, width
    x = net.global_average_pool(net.relu6(conv(x, 1280, 1)))
    return net.finish(net.gemm(net.flatten(x), 1000))


def face_network() -> onnx.ModelProto:
    """A face network of the shape of MTCNN's last stage, for 3 x 48 x 48: scores, a box, and landmarks."""
    net = NetworkBuilder("face_network", seed=0)
    x = net.input((1, 3, 48, 48), "x")
    for channels, kernel, pool in ((32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0)):
        x = net.relu(net.conv(x, channels, kernel, pads="valid"))
        if pool:
            x = net.pool("MaxPool", x, pool, stride=2)
    x = net.relu(net.gemm(net.flatten(x), 256))
    scores = net.node("Softmax", [net.gemm(x, 2)], (1, 2), axis=1)
    return net.finish(scores, net.gemm(x, 4), net.gemm(x, 10))
