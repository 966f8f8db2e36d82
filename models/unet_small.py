"""A small U-Net: skip connections by concatenation, one level up by ConvTranspose, one by Resize."""

import numpy as np
import onnx

from npuc.models.builder import NetworkBuilder


def _convs(net: NetworkBuilder, x: str, channels: int) -> str:
    for _ in range(2):
        x = net.relu(net.batch_norm(net.conv(x, channels, 3, bias=False)))
    return x


def _upsample(net: NetworkBuilder, x: str) -> str:
    """Nearest neighbour, twice the height and width."""
    batch, C, height, width = net.shapes[x]
    scales = net.weight(np.array([1, 1, 2, 2], np.float32), "scales")
    attrs = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net.node("Resize", [x, "", scales], (batch, C, 2 * height, 2 * width), **attrs)


def build(seed: int = 0) -> onnx.ModelProto:
    """1x1x32x32 -> 1x1x32x32, a mask between 0 and 1."""
    net = NetworkBuilder("unet_small", seed)
    full = _convs(net, net.input((1, 1, 32, 32)), 8)
    half = _convs(net, net.pool("MaxPool", full, 2), 16)
    quarter = _convs(net, net.pool("MaxPool", half, 2), 32)
    half = _convs(net, net.concat(half, net.conv_transpose(quarter, 16, 2)), 16)
    full = _convs(net, net.concat(full, net.conv(_upsample(net, half), 8, 1)), 8)
    mask = net.conv(full, 1, 1)
    return net.finish(net.node("Sigmoid", [mask], net.shapes[mask]))
