"""DS-CNN of MLPerf Tiny's keyword spotting (Zhang et al., Hello Edge, 2017)."""

import onnx

from npuc.models.builder import NetworkBuilder


def build(seed: int = 0) -> onnx.ModelProto:
    """1x1x49x10 (frames, coefficients) -> 1x12 logits: a convolution and four depthwise-separable blocks."""
    net = NetworkBuilder("ds_cnn", seed)
    x = net.input((1, 1, 49, 10))
    x = net.relu(net.batch_norm(net.conv(x, 64, (10, 4), stride=2, bias=False)))
    for _ in range(4):
        x = net.relu(net.batch_norm(net.depthwise(x, 3)))
        x = net.relu(net.batch_norm(net.conv(x, 64, 1, bias=False)))
    x = net.flatten(net.pool("AveragePool", x, (25, 5)))
    return net.finish(net.gemm(x, 12))
