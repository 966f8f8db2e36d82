"""A network of awkward sizes: odd maps, channels 5, 19 and 33, one-sided pads, overlapping pools."""

import onnx

from npuc.models.builder import NetworkBuilder


def build(seed: int = 0) -> onnx.ModelProto:
    """1x3x17x23 -> 1x7 logits."""
    net = NetworkBuilder("residual_awkward", seed)
    x = net.input((1, 3, 17, 23))
    x = net.relu(net.batch_norm(net.conv(x, 5, 3, pads=(0, 1, 2, 1), bias=False)))
    x = net.relu(net.conv(x, 19, (5, 2), stride=2, pads=(1, 0, 2, 1)))
    y = net.relu(net.batch_norm(net.depthwise(x, 3, dilation=2)))
    y = net.conv(y, 19, 1)
    x = net.relu(net.add(x, y))
    x = net.pool("MaxPool", x, 3, stride=2, pads=(1, 1, 0, 1))
    y = net.batch_norm(net.conv(x, 33, 3, stride=(1, 2), pads=(0, 1, 2, 0), bias=False))
    x = net.add(y, net.conv(x, 33, 1, stride=(1, 2)))
    x = net.relu(net.conv(x, 33, (1, 3), dilation=(1, 2), group=3))
    x = net.flatten(net.pool("AveragePool", x, (3, 2), stride=1))
    return net.finish(net.gemm(x, 7))
