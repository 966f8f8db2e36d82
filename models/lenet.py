"""LeNet-5 for 28x28 digits, with ReLU and max pooling."""

import onnx

from npuc.models.builder import NetworkBuilder


def build(seed: int = 0) -> onnx.ModelProto:
    """1x1x28x28 -> 1x10 logits: two convolutions 5x5, three fully connected layers."""
    net = NetworkBuilder("lenet", seed)
    x = net.input((1, 1, 28, 28))
    x = net.pool("MaxPool", net.relu(net.conv(x, 6, 5)), 2)
    x = net.pool("MaxPool", net.relu(net.conv(x, 16, 5, pads="valid")), 2)
    x = net.flatten(x)
    x = net.relu(net.gemm(x, 120))
    x = net.relu(net.gemm(x, 84))
    return net.finish(net.gemm(x, 10))
