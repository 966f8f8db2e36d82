"""BC-ResNet for keyword spotting (Kim et al., Broadcasted Residual Learning, Interspeech 2021).

The EasyNPU document sized its memories for this family: the largest map, [16, 20, 61], is the result of the
first convolution over 40 mel bands by 61 frames. Maps are (N, C, bands, frames).
"""

import onnx

from npuc.models.builder import NetworkBuilder

STAGES = ((2, 1), (2, 2), (4, 2), (4, 1))
"""Blocks, and the stride over bands of the first one; stage i dilates 2**i frames."""


def _sub_spectral_norm(net: NetworkBuilder, x: str, sub_bands: int) -> str:
    """Batch normalisation with parameters of its own for every sub-band of every channel."""
    batch, C, bands, frames = shape = net.shapes[x]
    if sub_bands == 1:
        return net.batch_norm(x)
    x = net.reshape(x, (batch, C * sub_bands, bands // sub_bands, frames))
    return net.reshape(net.batch_norm(x), shape)


def _block(net: NetworkBuilder, x: str, channels: int, stride: int, dilation: int, sub_bands: int) -> str:
    """y = x + f2(x) + broadcast(f1(mean over bands of f2(x))); a transition block has no `x +`."""
    transition = net.shapes[x][1] != channels
    y = net.relu(net.batch_norm(net.conv(x, channels, 1, bias=False))) if transition else x
    y = net.depthwise(y, (3, 1), stride=(stride, 1), pads=(1, 0, 1, 0))
    y = _sub_spectral_norm(net, y, sub_bands)
    batch, _, _, frames = net.shapes[y]
    z = net.node("ReduceMean", [y], (batch, channels, 1, frames), axes=[2], keepdims=1)
    z = net.swish(net.batch_norm(net.depthwise(z, (1, 3), dilation=(1, dilation))))
    y = net.add(net.conv(z, channels, 1, bias=False), y)
    return net.relu(y if transition else net.add(y, x))


def build(seed: int = 0, width: int = 8, sub_bands: int = 5) -> onnx.ModelProto:
    """1x1x40x61 -> 1x12 logits; width 8 is BC-ResNet-1. sub_bands = 1 gives plain batch normalisation."""
    net = NetworkBuilder("bc_resnet", seed)
    x = net.input((1, 1, 40, 61))
    x = net.relu(net.batch_norm(net.conv(x, 2 * width, 5, stride=(2, 1), pads=(2, 2, 2, 2), bias=False)))
    for stage, (blocks, stride) in enumerate(STAGES):
        channels = width * (2 + stage) // 2
        for block in range(blocks):
            x = _block(net, x, channels, stride if block == 0 else 1, 2**stage, sub_bands)
    x = net.depthwise(x, 5, pads=(0, 2, 0, 2))
    x = net.relu(net.batch_norm(net.conv(x, 4 * width, 1, bias=False)))
    x = net.conv(net.global_average_pool(x), 12, 1)
    return net.finish(net.flatten(x))
