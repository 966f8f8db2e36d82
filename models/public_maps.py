"""Networks of maps that users bring: segmentation, classification, and the vision transformers between."""

from __future__ import annotations

import onnx

from npuc.models.builder import Pair
from npuc.models.exported import ExportedBuilder


def unet(seed: int = 0) -> onnx.ModelProto:
    """U-Net: enlarged by ConvTranspose and by a bilinear Resize with sizes, padded to the size of the skip."""
    net = ExportedBuilder("unet", seed)
    skips, x = list[str](), net.input((1, 3, 88, 92))
    for channels in (16, 32, 64):
        x = net.folded(net.folded(x, channels, 3, "Relu"), channels, 3, "Relu")
        skips.append(x)
        x = net.pool("MaxPool", x, 2)
    x = net.folded(net.folded(x, 64, 3, "Relu"), 64, 3, "Relu")
    for step, skip in enumerate(reversed(skips)):
        channels = net.shapes[skip][1]
        if step % 2:
            x = net.folded(net.resize(x, skip), channels, 1)
        else:
            x = net.conv_transpose(x, channels, 2)
            missing = [a - b for a, b in zip(net.shapes[skip], net.shapes[x], strict=True)]
            x = net.op("Pad", x, [0, 0, *(m // 2 for m in missing[2:]), 0, 0, *(m - m // 2 for m in missing[2:])])
        x = net.folded(net.folded(net.concat(skip, x), channels, 3, "Relu"), channels, 3, "Relu")
    return net.finish(net.op("Sigmoid", net.conv(x, 1, 1)))


def deeplab(seed: int = 0) -> onnx.ModelProto:
    """DeepLabV3: a dilated backbone, pyramid of rates 6, 12, 18 and of the whole image, classes by ArgMax."""
    net = ExportedBuilder("deeplab", seed)
    image = net.input((1, 3, 96, 96))
    x = net.folded(net.folded(image, 16, 3, "Relu", stride=2), 32, 3, "Relu", stride=2)
    for channels, stride, dilation in ((48, 2, 1), (48, 1, 2), (64, 1, 4)):
        y = net.folded(net.folded(x, channels, 3, "Relu", stride=stride), channels, 3, dilation=dilation)
        x = net.relu(net.add(y, net.folded(x, channels, 1, stride=stride)))
    branches = [net.folded(x, 32, 1, "Relu")]
    branches += [net.folded(x, 32, 3, "Relu", dilation=rate) for rate in (6, 12, 18)]
    pooled = net.folded(net.op("GlobalAveragePool", x), 32, 1, "Relu")
    x = net.folded(net.concat(*branches, net.resize(pooled, x)), 48, 1, "Relu")
    logits = net.resize(net.conv(net.folded(x, 48, 3, "Relu"), 21, 1), image)
    return net.finish(logits, net.op("ArgMax", logits, axis=1, keepdims=0))


MOBILE = (
    (16, 16, 3, 2, True, "Relu"),
    (72, 24, 3, 2, False, "Relu"),
    (88, 24, 3, 1, False, "Relu"),
    (96, 40, 5, 2, True, "hard_swish"),
    (240, 40, 5, 1, True, "hard_swish"),
    (120, 48, 5, 1, True, "hard_swish"),
)
"""MobileNetV3-small's first blocks: hidden channels, channels, kernel, stride, gates, activation."""


def _mobile(net: ExportedBuilder, x: str, strides: tuple[Pair, ...] = ()) -> str:
    """MobileNetV3's blocks; strides replace the blocks' own."""
    for i, (wide, channels, kernel, stride, gated, act) in enumerate(MOBILE):
        step = strides[i] if strides else stride
        y = net.folded(net.folded(x, wide, 1, act), wide, kernel, act, stride=step, group=wide)
        y = net.folded(net.squeeze_excite(y, "hard_sigmoid") if gated else y, channels, 1)
        x = net.add(x, y) if net.shapes[x] == net.shapes[y] else y
    return x


def mobilenet_v3(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV3-small: squeeze and excitation, hard swish spelt out."""
    net = ExportedBuilder("mobilenet_v3", seed)
    x = net.folded(net.input((1, 3, 96, 96)), 16, 3, "hard_swish", stride=2)
    x = net.folded(_mobile(net, x), 288, 1, "hard_swish")
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    return net.finish(net.gemm(net.act(net.gemm(x, 128), "hard_swish"), 100))


def tinyvit(seed: int = 0) -> onnx.ModelProto:
    """TinyViT-like: convolutions in front of two transformer stages, layer normalisation and GELU spelt out."""
    net = ExportedBuilder("tinyvit", seed)
    x = net.folded(net.input((1, 3, 64, 64)), 16, 3, stride=2)
    x = net.folded(net.act(x, "gelu"), 32, 3, stride=2)
    wide = net.act(net.folded(x, 96, 1), "gelu")
    wide = net.act(net.folded(wide, 96, 3, group=96), "gelu")
    x = net.act(net.add(x, net.folded(wide, 32, 1)), "gelu")
    for channels in (48, 64):
        x = net.folded(net.act(net.folded(x, channels, 1), "gelu"), channels, 3, stride=2, group=channels)
        batch, _, height, width = net.shapes[x]
        y = net.tokens(x)
        for _ in range(2):
            y = net.transformer(y, 4, "gelu")
        x = net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1]), [batch, channels, height, width])
    x = net.layer_norm(net.op("ReduceMean", net.tokens(x), axes=[1], keepdims=0))
    return net.finish(net.gemm(x, 50))


def ppocr_recogniser(seed: int = 0) -> onnx.ModelProto:
    """PP-OCRv4-like: a CNN with gates that halves the height, attention behind it, characters by softmax."""
    net = ExportedBuilder("ppocr_recogniser", seed)
    x = net.folded(net.input((1, 3, 48, 160)), 16, 3, "hard_swish", stride=2)
    x = _mobile(net, x, ((2, 1), 1, 1, (2, 1), (2, 1), 1))
    x = net.pool("AveragePool", x, (3, 2))
    y = net.folded(net.folded(x, 48, (1, 3), "swish"), 64, 1, "swish")
    batch, C, height, width = net.shapes[y]
    y = net.tokens(y)
    for _ in range(2):
        y = net.transformer(y, 8, "swish", spelt=False)
    y = net.view(net.layer_norm(y, spelt=False), batch, height, width, C)
    y = net.folded(net.op("Transpose", y, perm=[0, 3, 1, 2]), 48, 1, "swish")
    y = net.folded(net.folded(net.concat(x, y), 48, (1, 3), "swish"), 64, 1, "swish")
    y = net.op("Transpose", net.op("Squeeze", y, [2]), perm=[0, 2, 1])
    return net.finish(net.op("Softmax", net.linear(y, 96), axis=2))
