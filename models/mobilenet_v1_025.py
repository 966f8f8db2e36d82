"""MobileNetV1 at width 0.25 for 96x96 images: MLPerf Tiny's visual wake words."""

import onnx

from npuc.models.builder import NetworkBuilder

BLOCKS = (
    *((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)),
    *((128, 1),) * 5,
    *((256, 2), (256, 1)),
)
"""Channels and stride of the thirteen depthwise-separable blocks."""


def build(seed: int = 0) -> onnx.ModelProto:
    """1x3x96x96 -> 1x2 logits."""
    net = NetworkBuilder("mobilenet_v1_025", seed)
    x = net.input((1, 3, 96, 96))
    x = net.relu(net.batch_norm(net.conv(x, 8, 3, stride=2, bias=False)))
    for channels, stride in BLOCKS:
        x = net.relu(net.batch_norm(net.depthwise(x, 3, stride=stride)))
        x = net.relu(net.batch_norm(net.conv(x, channels, 1, bias=False)))
    x = net.flatten(net.global_average_pool(x))
    return net.finish(net.gemm(x, 2))
