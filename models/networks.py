"""Networks of the literature and of benchmarks, layer by layer, with random weights."""

import numpy as np
import onnx

from npuc.models.builder import NetworkBuilder


def lenet(seed: int = 0) -> onnx.ModelProto:
    """LeNet-5 for 28x28 digits, with ReLU and max pooling.

    1x1x28x28 -> 1x10 logits: two convolutions 5x5, three fully connected layers.
    """
    net = NetworkBuilder("lenet", seed)
    x = net.input((1, 1, 28, 28))
    x = net.pool("MaxPool", net.relu(net.conv(x, 6, 5)), 2)
    x = net.pool("MaxPool", net.relu(net.conv(x, 16, 5, pads="valid")), 2)
    x = net.flatten(x)
    x = net.relu(net.gemm(x, 120))
    x = net.relu(net.gemm(x, 84))
    return net.finish(net.gemm(x, 10))


def _residual_block(net: NetworkBuilder, x: str, channels: int, stride: int) -> str:
    """Two convolutions 3x3 and a shortcut; a 1x1 projection where the shape changes."""
    y = net.relu(net.batch_norm(net.conv(x, channels, 3, stride=stride, bias=False)))
    y = net.batch_norm(net.conv(y, channels, 3, bias=False))
    if net.shapes[x] != net.shapes[y]:
        x = net.conv(x, channels, 1, stride=stride)
    return net.relu(net.add(x, y))


def resnet8(seed: int = 0) -> onnx.ModelProto:
    """ResNet-8 of MLPerf Tiny's image classification: three residual stages of 16, 32 and 64 channels.

    1x3x32x32 -> 1x10 logits. Strided convolutions pad as TensorFlow does: one element, at the end.
    """
    net = NetworkBuilder("resnet8", seed)
    x = net.input((1, 3, 32, 32))
    x = net.relu(net.batch_norm(net.conv(x, 16, 3, bias=False)))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        x = _residual_block(net, x, channels, stride)
    x = net.flatten(net.pool("AveragePool", x, 8))
    return net.finish(net.gemm(x, 10))


def ds_cnn(seed: int = 0) -> onnx.ModelProto:
    """DS-CNN of MLPerf Tiny's keyword spotting (Zhang et al., Hello Edge, 2017).

    1x1x49x10 (frames, coefficients) -> 1x12 logits: a convolution and four depthwise-separable blocks.
    """
    net = NetworkBuilder("ds_cnn", seed)
    x = net.input((1, 1, 49, 10))
    x = net.relu(net.batch_norm(net.conv(x, 64, (10, 4), stride=2, bias=False)))
    for _ in range(4):
        x = net.relu(net.batch_norm(net.depthwise(x, 3)))
        x = net.relu(net.batch_norm(net.conv(x, 64, 1, bias=False)))
    x = net.flatten(net.pool("AveragePool", x, (25, 5)))
    return net.finish(net.gemm(x, 12))


MOBILENET_V1_BLOCKS = (
    *((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)),
    *((128, 1),) * 5,
    *((256, 2), (256, 1)),
)
"""Channels and stride of the thirteen depthwise-separable blocks."""


def mobilenet_v1_025(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV1 at width 0.25 for 96x96 images: MLPerf Tiny's visual wake words.

    1x3x96x96 -> 1x2 logits.
    """
    net = NetworkBuilder("mobilenet_v1_025", seed)
    x = net.input((1, 3, 96, 96))
    x = net.relu(net.batch_norm(net.conv(x, 8, 3, stride=2, bias=False)))
    for channels, stride in MOBILENET_V1_BLOCKS:
        x = net.relu(net.batch_norm(net.depthwise(x, 3, stride=stride)))
        x = net.relu(net.batch_norm(net.conv(x, channels, 1, bias=False)))
    x = net.flatten(net.global_average_pool(x))
    return net.finish(net.gemm(x, 2))


def autoencoder(seed: int = 0) -> onnx.ModelProto:
    """The fully connected autoencoder of MLPerf Tiny's anomaly detection.

    1x640 -> 1x640: five frames of 128 mel bands through a bottleneck of 8.
    """
    net = NetworkBuilder("autoencoder", seed)
    x = net.input((1, 640))
    for features in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = net.relu(net.batch_norm(net.gemm(x, features)))
    return net.finish(net.gemm(x, 640))


MOBILENET_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repetitions and first stride, as in the paper's table 2."""


def _inverted_residual(net: NetworkBuilder, x: str, expansion: int, channels: int, stride: int) -> str:
    """Expand, filter each channel, project; a shortcut if the shape stays the same."""
    y = x
    if expansion > 1:
        y = net.relu6(net.batch_norm(net.conv(y, expansion * net.shapes[x][1], 1, bias=False)))
    y = net.relu6(net.batch_norm(net.depthwise(y, 3, stride=stride, pads=(1, 1, 1, 1))))
    y = net.batch_norm(net.conv(y, channels, 1, bias=False))
    return net.add(x, y) if net.shapes[x] == net.shapes[y] else y


def mobilenet_v2(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al. 2018) at width 1: inverted residuals of ReLU6 and a linear bottleneck.

    1x3x224x224 -> 1x1000 logits.
    """
    net = NetworkBuilder("mobilenet_v2", seed)
    x = net.input((1, 3, 224, 224))
    x = net.relu6(net.batch_norm(net.conv(x, 32, 3, stride=2, pads=(1, 1, 1, 1), bias=False)))
    for expansion, channels, repetitions, stride in MOBILENET_V2_STAGES:
        for repetition in range(repetitions):
            x = _inverted_residual(net, x, expansion, channels, stride if repetition == 0 else 1)
    x = net.relu6(net.batch_norm(net.conv(x, 1280, 1, bias=False)))
    return net.finish(net.gemm(net.flatten(net.global_average_pool(x)), 1000))


BC_RESNET_STAGES = ((2, 1), (2, 2), (4, 2), (4, 1))
"""Blocks, and the stride over bands of the first one; stage i dilates 2**i frames."""


def _sub_spectral_norm(net: NetworkBuilder, x: str, sub_bands: int) -> str:
    """Batch normalisation with parameters of its own for every sub-band of every channel."""
    batch, C, bands, frames = shape = net.shapes[x]
    if sub_bands == 1:
        return net.batch_norm(x)
    x = net.reshape(x, (batch, C * sub_bands, bands // sub_bands, frames))
    return net.reshape(net.batch_norm(x), shape)


def _broadcast_block(
    net: NetworkBuilder, x: str, channels: int, stride: int, dilation: int, sub_bands: int
) -> str:
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


def bc_resnet(seed: int = 0, width: int = 8, sub_bands: int = 5) -> onnx.ModelProto:
    """BC-ResNet for keyword spotting (Kim et al., Broadcasted Residual Learning, Interspeech 2021).

    The EasyNPU document sized its memories for this family: the largest map, [16, 20, 61], is the result of the
    first convolution over 40 mel bands by 61 frames. Maps are (N, C, bands, frames).

    1x1x40x61 -> 1x12 logits; width 8 is BC-ResNet-1. sub_bands = 1 gives plain batch normalisation.
    """
    net = NetworkBuilder("bc_resnet", seed)
    x = net.input((1, 1, 40, 61))
    x = net.relu(net.batch_norm(net.conv(x, 2 * width, 5, stride=(2, 1), pads=(2, 2, 2, 2), bias=False)))
    for stage, (blocks, stride) in enumerate(BC_RESNET_STAGES):
        channels = width * (2 + stage) // 2
        for block in range(blocks):
            x = _broadcast_block(net, x, channels, stride if block == 0 else 1, 2**stage, sub_bands)
    x = net.depthwise(x, 5, pads=(0, 2, 0, 2))
    x = net.relu(net.batch_norm(net.conv(x, 4 * width, 1, bias=False)))
    x = net.conv(net.global_average_pool(x), 12, 1)
    return net.finish(net.flatten(x))


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


def unet_small(seed: int = 0) -> onnx.ModelProto:
    """A small U-Net: skip connections by concatenation, one level up by ConvTranspose, one by Resize.

    1x1x32x32 -> 1x1x32x32, a mask between 0 and 1.
    """
    net = NetworkBuilder("unet_small", seed)
    full = _convs(net, net.input((1, 1, 32, 32)), 8)
    half = _convs(net, net.pool("MaxPool", full, 2), 16)
    quarter = _convs(net, net.pool("MaxPool", half, 2), 32)
    half = _convs(net, net.concat(half, net.conv_transpose(quarter, 16, 2)), 16)
    full = _convs(net, net.concat(full, net.conv(_upsample(net, half), 8, 1)), 8)
    mask = net.conv(full, 1, 1)
    return net.finish(net.node("Sigmoid", [mask], net.shapes[mask]))


def small_cnn(seed: int = 0) -> onnx.ModelProto:
    """A small residual network that fills 64 processors: BM1684's first benchmark (197 MFLOP).

    1x3x64x64 -> 1x10 logits: convolutions 3-32, 32-64 with stride 2, 64-64 twice and a shortcut; poolings.
    """
    net = NetworkBuilder("small_cnn", seed)
    x = net.relu(net.conv(net.input((1, 3, 64, 64)), 32, 3, pads=(1, 1, 1, 1)))
    x = net.relu(net.conv(x, 64, 3, stride=2, pads=(1, 1, 1, 1)))
    y = net.conv(net.relu(net.conv(x, 64, 3, pads=(1, 1, 1, 1))), 64, 3, pads=(1, 1, 1, 1))
    x = net.pool("MaxPool", net.relu(net.add(x, y)), 2)
    return net.finish(net.gemm(net.flatten(net.global_average_pool(x)), 10))


def residual_awkward(seed: int = 0) -> onnx.ModelProto:
    """A network of awkward sizes: odd maps, channels 5, 19 and 33, one-sided pads, overlapping pools.

    1x3x17x23 -> 1x7 logits.
    """
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
