"""The fully connected autoencoder of MLPerf Tiny's anomaly detection."""

import onnx

from npuc.models.builder import NetworkBuilder


def build(seed: int = 0) -> onnx.ModelProto:
    """1x640 -> 1x640: five frames of 128 mel bands through a bottleneck of 8."""
    net = NetworkBuilder("autoencoder", seed)
    x = net.input((1, 640))
    for features in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = net.relu(net.batch_norm(net.gemm(x, features)))
    return net.finish(net.gemm(x, 640))
