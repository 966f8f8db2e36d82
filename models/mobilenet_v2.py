"""MobileNetV2 (Sandler et al. 2018) at width 1: inverted residuals of ReLU6 and a linear bottleneck."""

import onnx

from npuc.models.builder import NetworkBuilder

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repetitions and first stride, as in the paper's table 2."""


def _block(net: NetworkBuilder, x: str, expansion: int, channels: int, stride: int) -> str:
    """Expand, filter each channel, project; a shortcut if the shape stays the same."""
    y = x
    if expansion > 1:
        y = net.relu6(net.batch_norm(net.conv(y, expansion * net.shapes[x][1], 1, bias=False)))
    y = net.relu6(net.batch_norm(net.depthwise(y, 3, stride=stride, pads=(1, 1, 1, 1))))
    y = net.batch_norm(net.conv(y, channels, 1, bias=False))
    return net.add(x, y) if net.shapes[x] == net.shapes[y] else y


def build(seed: int = 0) -> onnx.ModelProto:
    """1x3x224x224 -> 1x1000 logits."""
    net = NetworkBuilder("mobilenet_v2", seed)
    x = net.input((1, 3, 224, 224))
    x = net.relu6(net.batch_norm(net.conv(x, 32, 3, stride=2, pads=(1, 1, 1, 1), bias=False)))
    for expansion, channels, repetitions, stride in STAGES:
        for repetition in range(repetitions):
            x = _block(net, x, expansion, channels, stride if repetition == 0 else 1)
    x = net.relu6(net.batch_norm(net.conv(x, 1280, 1, bias=False)))
    return net.finish(net.gemm(net.flatten(net.global_average_pool(x)), 1000))
