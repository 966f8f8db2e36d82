"""A small residual network that fills 64 processors: BM1684's first benchmark (197 MFLOP)."""

import onnx

from npuc.models.builder import NetworkBuilder


def build(seed: int = 0) -> onnx.ModelProto:
    """1x3x64x64 -> 1x10 logits: convolutions 3-32, 32-64 with stride 2, 64-64 twice and a shortcut; poolings."""
    net = NetworkBuilder("small_cnn", seed)
    x = net.relu(net.conv(net.input((1, 3, 64, 64)), 32, 3, pads=(1, 1, 1, 1)))
    x = net.relu(net.conv(x, 64, 3, stride=2, pads=(1, 1, 1, 1)))
    y = net.conv(net.relu(net.conv(x, 64, 3, pads=(1, 1, 1, 1))), 64, 3, pads=(1, 1, 1, 1))
    x = net.pool("MaxPool", net.relu(net.add(x, y)), 2)
    return net.finish(net.gemm(net.flatten(net.global_average_pool(x)), 10))
