"""ResNet-8 of MLPerf Tiny's image classification: three residual stages of 16, 32 and 64 channels."""

import onnx

from npuc.models.builder import NetworkBuilder


def _block(net: NetworkBuilder, x: str, channels: int, stride: int) -> str:
    """Two convolutions 3x3 and a shortcut; a 1x1 projection where the shape changes."""
    y = net.relu(net.batch_norm(net.conv(x, channels, 3, stride=stride, bias=False)))
    y = net.batch_norm(net.conv(y, channels, 3, bias=False))
    if net.shapes[x] != net.shapes[y]:
        x = net.conv(x, channels, 1, stride=stride)
    return net.relu(net.add(x, y))


def build(seed: int = 0) -> onnx.ModelProto:
    """1x3x32x32 -> 1x10 logits. Strided convolutions pad as TensorFlow does: one element, at the end."""
    net = NetworkBuilder("resnet8", seed)
    x = net.input((1, 3, 32, 32))
    x = net.relu(net.batch_norm(net.conv(x, 16, 3, bias=False)))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        x = _block(net, x, channels, stride)
    x = net.flatten(net.pool("AveragePool", x, 8))
    return net.finish(net.gemm(x, 10))
