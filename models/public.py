"""Networks of families that users bring, as their exporters write them: detectors, maps, sequences.

Detectors have heads and decoding: boxes before the suppression of doubles. Networks of maps segment and classify,
with the vision transformers between; those of sequences hear sound, read text in pictures, and foresee series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from npuc.models.builder import Pair
from npuc.models.exported import ExportedBuilder

REPEATED: dict[str, Any] = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}
"""Of a Resize that repeats pixels."""


def centres_of(extent: int, stride: int) -> NDArray[np.float32]:
    """The centres of a square grid's cells, (cells, 2) in pixels: x, y."""
    y, x = np.mgrid[:extent, :extent].reshape(2, -1)
    return ((np.stack([x, y], axis=1) + 0.5) * stride).astype(np.float32)


def _rows(net: ExportedBuilder, x: str, columns: int) -> str:
    """A head's map (N, A * columns, H, W) as rows (N, H * W * A, columns), by PyTorch's permute and view."""
    return net.view(net.op("Transpose", x, perm=[0, 2, 3, 1]), net.size(x, 0), -1, columns)


def _shuffle_block(net: ExportedBuilder, x: str, channels: int, stride: int) -> str:
    """ShuffleNetV2's unit: half of the channels pass, the others are filtered, and both are shuffled."""
    half = channels // 2
    if stride == 1:
        kept = net.op("Slice", x, [0], [half], [1])
        y = net.op("Slice", x, [half], [channels], [1])
    else:
        C = net.shapes[x][1]
        kept = net.layer(net.layer(x, C, 3, stride=2, group=C), half, 1, "Relu")
        y = x
    y = net.layer(net.layer(y, half, 1, "Relu"), half, 3, stride=stride, group=half)
    return net.shuffle(net.concat(kept, net.layer(y, half, 1, "Relu")), 2)


def _shuffle_net(net: ExportedBuilder, x: str, widths: tuple[int, ...], act: str = "Relu") -> list[str]:
    """The maps of stride 8, 16, ... of a ShuffleNetV2."""
    x = net.pool("MaxPool", net.layer(x, 16, 3, act, stride=2), 3, stride=2, pads=(1, 1, 1, 1))
    maps = list[str]()
    for width in widths:
        x = _shuffle_block(net, x, width, 2)
        maps.append(x := _shuffle_block(net, x, width, 1))
    return maps


def shufflenet_detector(seed: int = 0) -> onnx.ModelProto:
    """FastestDet: one map of cells from three scales, spatial pyramid, heads for object, box and class."""
    net = ExportedBuilder("shufflenet_detector", seed)
    fine, middle, coarse = _shuffle_net(net, net.input((1, 3, 160, 160)), (48, 96, 192))
    pooled = net.pool("AveragePool", fine, 3, stride=2, pads=(1, 1, 1, 1))
    x = net.layer(net.concat(pooled, middle, net.resize(coarse, middle, "nearest")), 96, 1, "Relu")
    deep = list[str]()
    for depth in range(1, 4):
        y = x
        for _ in range(depth):
            y = net.layer(y, 96, 5, "Relu", group=96)
        deep.append(y)
    x = net.relu(net.add(x, net.layer(net.concat(*deep), 96, 1)))
    head = [net.conv(net.separable(x, 96, 5, "Relu"), count, 1) for count in (1, 4, 20)]
    score, classes = net.op("Sigmoid", head[0]), net.op("Softmax", head[2], axis=1)
    return net.finish(net.concat(score, head[1], classes))


def nanodet(seed: int = 0) -> onnx.ModelProto:
    """NanoDet: PAN of ghost-like separable convolutions, heads whose distances are expectations over 8 bins."""
    net = ExportedBuilder("nanodet", seed)
    maps = _shuffle_net(net, net.input((1, 3, 128, 128)), (48, 96, 192), "LeakyRelu")
    fine, middle, coarse = (net.layer(each, 48, 1, "LeakyRelu") for each in maps)
    middle = net.separable(net.concat(middle, net.resize(coarse, middle)), 48, 5, "LeakyRelu")
    fine = net.separable(net.concat(fine, net.resize(middle, fine)), 48, 5, "LeakyRelu")
    down = net.separable(fine, 48, 5, "LeakyRelu", stride=2)
    middle = net.separable(net.concat(middle, down), 48, 5, "LeakyRelu")
    scores, boxes = list[str](), list[str]()
    for x, stride in ((fine, 8), (middle, 16), (coarse, 32)):
        y = net.conv(net.separable(x, 48, 5, "LeakyRelu"), 20 + 32, 1)
        scores.append(net.op("Sigmoid", _rows(net, net.op("Slice", y, [0], [20], [1]), 20)))
        bins = net.view(_rows(net, net.op("Slice", y, [20], [52], [1]), 32), 1, -1, 4, 8)
        distance = net.op("MatMul", net.op("Softmax", bins, axis=3), np.arange(8, dtype=np.float32))
        boxes.append(_corners(net, net.op("Mul", distance, float(stride)), centres_of(128 // stride, stride)))
    return net.finish(*(net.op("Concat", *each, axis=1) for each in (scores, boxes)))


def _corners(net: ExportedBuilder, distance: str, centres: NDArray[np.float32]) -> str:
    """Corners from distances (N, cells, 4) to left, top, right and bottom."""
    parts = net.op("Split", distance, [2, 2], results=2, axis=2)
    low, high = net.op("Sub", centres, parts), net.op("Add", centres, f"{parts}_1")
    return net.op("Concat", low, high, axis=2)


def _csp(net: ExportedBuilder, x: str, channels: int, *, add: bool = True) -> str:
    """YOLOv8's C2f: a bottleneck on one half, all halves together."""
    x = net.layer(x, channels, 1, "swish")
    first = net.op("Split", x, [channels // 2] * 2, results=2, axis=1)
    last = f"{first}_1"
    y = net.layer(net.layer(last, channels // 2, 3, "swish"), channels // 2, 3, "swish")
    return net.layer(net.concat(first, last, net.add(last, y) if add else y), channels, 1, "swish")


def _yolo_neck(net: ExportedBuilder, x: str) -> list[str]:
    """Backbone with SPPF, and maps of stride 8, 16 and 32 that have seen one another."""
    x = net.layer(net.layer(x, 16, 3, "swish", stride=2), 32, 3, "swish", stride=2)
    fine = _csp(net, net.layer(_csp(net, x, 32), 48, 3, "swish", stride=2), 48)
    middle = _csp(net, net.layer(fine, 64, 3, "swish", stride=2), 64)
    coarse = _csp(net, net.layer(middle, 96, 3, "swish", stride=2), 96)
    pools = [net.layer(coarse, 48, 1, "swish")]
    for _ in range(3):
        pools.append(net.pool("MaxPool", pools[-1], 5, stride=1, pads=(2, 2, 2, 2)))
    coarse = net.layer(net.concat(*pools), 96, 1, "swish")
    scales = np.array([1, 1, 2, 2], np.float32)
    middle = _csp(net, net.concat(net.op("Resize", coarse, "", scales, **REPEATED), middle), 64, add=False)
    fine = _csp(net, net.concat(net.op("Resize", middle, "", scales, **REPEATED), fine), 48, add=False)
    return [fine, middle, coarse]


def yolov5(seed: int = 0) -> onnx.ModelProto:
    """YOLOv5's head: three anchors, maps as (N, 3, H, W, 5 + classes), boxes by squares of doubled sigmoids."""
    net, outputs = ExportedBuilder("yolov5", seed), list[str]()
    for x, stride in zip(_yolo_neck(net, net.input((1, 3, 96, 96))), (8, 16, 32), strict=True):
        y, extent = net.conv(x, 3 * 13, 1), 96 // stride
        y = net.op(
            "Transpose", net.view(y, net.size(y, 0), 3, 13, net.size(y, 2), net.size(y, 3)), perm=[0, 1, 3, 4, 2]
        )
        place = net.op("Split", net.op("Sigmoid", y), [2, 2, 9], results=3, axis=4)
        grid = (centres_of(extent, 1) - 1).reshape(1, 1, extent, extent, 2)
        anchors = (
            np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1, 1) * stride * np.ones((1, 3, extent, extent, 2))
        ).astype(np.float32)
        xy = net.op("Mul", net.op("Add", net.op("Mul", place, 2.0), grid), float(stride))
        wh = net.op("Mul", net.op("Pow", net.op("Mul", f"{place}_1", 2.0), 2.0), anchors)
        outputs.append(net.view(net.op("Concat", xy, wh, f"{place}_2", axis=4), 1, -1, 13))
    return net.finish(net.op("Concat", *outputs, axis=1))


def yolov8(seed: int = 0) -> onnx.ModelProto:
    """YOLOv8's head: distances as expectations over 16 bins by a 1x1 convolution, boxes by centre and size."""
    net, maps = ExportedBuilder("yolov8", seed), list[str]()
    for x in _yolo_neck(net, net.input((1, 3, 96, 96))):
        heads = [net.layer(net.layer(x, 32, 3, "swish"), 32, 3, "swish") for _ in range(2)]
        y = net.concat(net.conv(heads[0], 64, 1), net.conv(heads[1], 8, 1))
        maps.append(net.op("Reshape", y, [1, 72, -1]))
    return net.finish(yolo_head(net, maps, 8, 96, (8, 16, 32)))


def yolo_head(net: ExportedBuilder, maps: Sequence[str], classes: int, size: int, strides: Sequence[int]) -> str:
    """YOLOv8's boxes by centre and size, above scores, (1, 4 + classes, cells), of maps (1, 64 + classes, cells).

    size: of the image; strides: of the maps.
    """
    head = net.op("Split", net.op("Concat", *maps, axis=2), [64, classes], results=2, axis=1)
    bins = net.op("Transpose", net.op("Reshape", head, [1, 4, 16, -1]), perm=[0, 2, 1, 3])
    w = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)
    distance = net.op("Conv", net.op("Softmax", bins, axis=1), w, kernel_shape=[1, 1])
    distance = net.op("Reshape", distance, [1, 4, -1])
    pixels = np.repeat(np.array(strides, np.float32), [(size // s) ** 2 for s in strides])
    centres = np.concatenate([centres_of(size // s, s) / np.float32(s) for s in strides]).T[None]
    near, far = (net.op("Slice", distance, [a], [a + 2], [1]) for a in (0, 2))
    low, high = net.op("Sub", centres, near), net.op("Add", centres, far)
    middle, extent = net.op("Div", net.op("Add", low, high), 2.0), net.op("Sub", high, low)
    boxes = net.op("Mul", net.op("Concat", middle, extent, axis=1), pixels)
    return net.concat(boxes, net.op("Sigmoid", f"{head}_1"))


def _priors(extents: tuple[int, ...], anchors: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Centres and sizes of anchors as shares of the image, (1, rows, 2) each, in the order of `_rows`."""
    centres = [np.repeat(centres_of(each, 1) / np.float32(each), anchors, axis=0) for each in extents]
    sizes = np.concatenate([np.tile((0.5 + np.arange(anchors)) / each, each * each) for each in extents])
    return np.concatenate(centres)[None].astype(np.float32), np.tile(sizes[None, :, None], 2).astype(np.float32)


def ssd_boxes(net: ExportedBuilder, rows: str, centres: NDArray[Any], sizes: NDArray[Any]) -> str:
    """Corners from offsets (N, rows, 4) to anchors, (1, rows, 2) each, with the variances 0.1 and 0.2."""
    place, growth = (net.op("Slice", rows, [a], [a + 2], [2]) for a in (0, 2))
    middle = net.op("Add", net.op("Mul", net.op("Mul", place, 0.1), sizes), centres)
    half = net.op("Div", net.op("Mul", net.op("Exp", net.op("Mul", growth, 0.2)), sizes), 2.0)
    return net.op("Concat", net.op("Sub", middle, half), net.op("Add", middle, half), axis=2)


def ssd(seed: int = 0) -> onnx.ModelProto:
    """SSD over a MobileNetV2-like backbone: three maps, softmax over classes, boxes from anchors."""
    net = ExportedBuilder("ssd", seed)
    x, scores, boxes = net.layer(net.input((1, 3, 96, 96)), 16, 3, "relu6", stride=2), list[str](), list[str]()
    for depth, (channels, stride) in enumerate(((24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1), (96, 2))):
        wide = 4 * net.shapes[x][1]
        y = net.layer(net.layer(x, wide, 1, "relu6"), wide, 3, "relu6", stride=stride, group=wide)
        y = net.layer(y, channels, 1)
        x = net.add(x, y) if stride == 1 else y
        if depth in (3, 5, 6):
            scores.append(_rows(net, net.conv(x, 4 * 6, 3), 6))
            boxes.append(_rows(net, net.conv(x, 4 * 4, 3), 4))
    score = net.op("Softmax", net.op("Concat", *scores, axis=1), axis=2)
    return net.finish(score, ssd_boxes(net, net.op("Concat", *boxes, axis=1), *_priors((12, 6, 3), 4)))


def rfb(seed: int = 0) -> onnx.ModelProto:
    """Ultra-light face detection: separable convolutions, a block of dilated branches, two classes."""
    net = ExportedBuilder("rfb", seed)
    x, scores, boxes = net.layer(net.input((1, 3, 96, 96)), 16, 3, "Relu", stride=2), list[str](), list[str]()
    for channels, stride in ((32, 1), (32, 2), (32, 1), (64, 2)):
        x = net.separable(x, channels, 3, "Relu", stride=stride)
    branches = list[str]()
    for dilation in (2, 3, 5):
        y = net.layer(net.layer(x, 8, 1), 16, 3, "Relu")
        branches.append(net.layer(y, 16, 3, dilation=dilation))
    y = net.op("Mul", net.layer(net.concat(*branches), 64, 1), 0.5)
    x = net.relu(net.add(y, net.layer(x, 64, 1)))
    for channels in (0, 96, 128):
        x = net.separable(x, channels, 3, "Relu", stride=2) if channels else x
        scores.append(_rows(net, net.conv(net.separable(x, 64, 3, "Relu"), 3 * 2, 1), 2))
        boxes.append(_rows(net, net.conv(net.separable(x, 64, 3, "Relu"), 3 * 4, 1), 4))
    score = net.op("Softmax", net.op("Concat", *scores, axis=1), axis=2)
    return net.finish(score, ssd_boxes(net, net.op("Concat", *boxes, axis=1), *_priors((12, 6, 3), 3)))


def blazeface(seed: int = 0) -> onnx.ModelProto:
    """BlazeFace by tf2onnx: an NHWC input, SAME padding at the end, residuals padded with channels of zeros."""
    net = ExportedBuilder("blazeface", seed)
    x = net.op("Transpose", net.input((1, 128, 128, 3)), perm=[0, 3, 1, 2])
    x = net.layer(x, 24, 5, "Relu", stride=2, pads=(1, 1, 2, 2))
    maps = list[str]()
    for channels, stride in ((24, 1), (28, 1), (32, 2), (36, 1), (48, 2), (64, 1), (96, 2), (96, 1)):
        C = net.shapes[x][1]
        pads = (1, 1, 1, 1) if stride == 1 else (0, 0, 1, 1)
        y = net.layer(net.layer(x, C, 3, stride=stride, group=C, pads=pads), channels, 1)
        x = net.pool("MaxPool", x, 2) if stride == 2 else x
        x = net.op("Pad", x, [0, 0, 0, 0, 0, channels - C, 0, 0], 0.0) if channels > C else x
        maps.append(x := net.relu(net.add(x, y)))
    outputs = [[net.conv(each, count, 1) for each in (maps[5], maps[7])] for count in (2, 2 * 16)]
    wide = [
        [net.op("Reshape", net.op("Transpose", each, perm=[0, 2, 3, 1]), [1, -1, columns]) for each in maps]
        for maps, columns in zip(outputs, (1, 16), strict=True)
    ]
    score, boxes = (net.op("Concat", *each, axis=1) for each in wide)
    return net.finish(boxes, net.op("Sigmoid", net.op("Clip", score, -100.0, 100.0)))


def unet(seed: int = 0) -> onnx.ModelProto:
    """U-Net: enlarged by ConvTranspose and by a bilinear Resize with sizes, padded to the size of the skip."""
    net = ExportedBuilder("unet", seed)
    skips, x = list[str](), net.input((1, 3, 88, 92))
    for channels in (16, 32, 64):
        x = net.layer(net.layer(x, channels, 3, "Relu"), channels, 3, "Relu")
        skips.append(x)
        x = net.pool("MaxPool", x, 2)
    x = net.layer(net.layer(x, 64, 3, "Relu"), 64, 3, "Relu")
    for step, skip in enumerate(reversed(skips)):
        channels = net.shapes[skip][1]
        if step % 2:
            x = net.layer(net.resize(x, skip), channels, 1)
        else:
            x = net.conv_transpose(x, channels, 2)
            missing = [a - b for a, b in zip(net.shapes[skip], net.shapes[x], strict=True)]
            x = net.op("Pad", x, [0, 0, *(m // 2 for m in missing[2:]), 0, 0, *(m - m // 2 for m in missing[2:])])
        x = net.layer(net.layer(net.concat(skip, x), channels, 3, "Relu"), channels, 3, "Relu")
    return net.finish(net.op("Sigmoid", net.conv(x, 1, 1)))


def deeplab(seed: int = 0) -> onnx.ModelProto:
    """DeepLabV3: a dilated backbone, pyramid of rates 6, 12, 18 and of the whole image, classes by ArgMax."""
    net = ExportedBuilder("deeplab", seed)
    image = net.input((1, 3, 96, 96))
    x = net.layer(net.layer(image, 16, 3, "Relu", stride=2), 32, 3, "Relu", stride=2)
    for channels, stride, dilation in ((48, 2, 1), (48, 1, 2), (64, 1, 4)):
        y = net.layer(net.layer(x, channels, 3, "Relu", stride=stride), channels, 3, dilation=dilation)
        x = net.relu(net.add(y, net.layer(x, channels, 1, stride=stride)))
    branches = [net.layer(x, 32, 1, "Relu")]
    branches += [net.layer(x, 32, 3, "Relu", dilation=rate) for rate in (6, 12, 18)]
    pooled = net.layer(net.op("GlobalAveragePool", x), 32, 1, "Relu")
    x = net.layer(net.concat(*branches, net.resize(pooled, x)), 48, 1, "Relu")
    logits = net.resize(net.conv(net.layer(x, 48, 3, "Relu"), 21, 1), image)
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
        y = net.layer(net.layer(x, wide, 1, act), wide, kernel, act, stride=step, group=wide)
        y = net.layer(net.squeeze_excite(y, "hard_sigmoid") if gated else y, channels, 1)
        x = net.add(x, y) if net.shapes[x] == net.shapes[y] else y
    return x


def mobilenet_v3(seed: int = 0) -> onnx.ModelProto:
    """MobileNetV3-small: squeeze and excitation, hard swish spelt out."""
    net = ExportedBuilder("mobilenet_v3", seed)
    x = net.layer(net.input((1, 3, 96, 96)), 16, 3, "hard_swish", stride=2)
    x = net.layer(_mobile(net, x), 288, 1, "hard_swish")
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    return net.finish(net.gemm(net.act(net.gemm(x, 128), "hard_swish"), 100))


def tinyvit(seed: int = 0) -> onnx.ModelProto:
    """TinyViT-like: convolutions in front of two transformer stages, layer normalisation and GELU spelt out."""
    net = ExportedBuilder("tinyvit", seed)
    x = net.layer(net.input((1, 3, 64, 64)), 16, 3, stride=2)
    x = net.layer(net.act(x, "gelu"), 32, 3, stride=2)
    wide = net.act(net.layer(x, 96, 1), "gelu")
    wide = net.act(net.layer(wide, 96, 3, group=96), "gelu")
    x = net.act(net.add(x, net.layer(wide, 32, 1)), "gelu")
    for channels in (48, 64):
        x = net.layer(net.act(net.layer(x, channels, 1), "gelu"), channels, 3, stride=2, group=channels)
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
    x = net.layer(net.input((1, 3, 48, 160)), 16, 3, "hard_swish", stride=2)
    x = _mobile(net, x, ((2, 1), 1, 1, (2, 1), (2, 1), 1))
    x = net.pool("AveragePool", x, (3, 2))
    y = net.layer(net.layer(x, 48, (1, 3), "swish"), 64, 1, "swish")
    batch, C, height, width = net.shapes[y]
    y = net.tokens(y)
    for _ in range(2):
        y = net.transformer(y, 8, "swish", spelt=False)
    y = net.view(net.layer_norm(y, spelt=False), batch, height, width, C)
    y = net.layer(net.op("Transpose", y, perm=[0, 3, 1, 2]), 48, 1, "swish")
    y = net.layer(net.layer(net.concat(x, y), 48, (1, 3), "swish"), 64, 1, "swish")
    y = net.op("Transpose", net.op("Squeeze", y, [2]), perm=[0, 2, 1])
    return net.finish(net.op("Softmax", net.linear(y, 96), axis=2))


def gru_denoiser(seed: int = 0) -> onnx.ModelProto:
    """RNNoise- and NSNet-like: fully connected layers around two GRUs, a gain for every band and frame."""
    net = ExportedBuilder("gru_denoiser", seed)
    x = net.op("Transpose", net.input((1, 20, 64)), perm=[1, 0, 2])
    x = net.relu(net.linear(x, 64))
    for _ in range(2):
        x = net.recurrent("GRU", x, 48)
    x = net.relu(net.linear(net.relu(net.linear(x, 96)), 96))
    return net.finish(net.op("Transpose", net.op("Sigmoid", net.linear(x, 64)), perm=[1, 0, 2]))


def crnn(seed: int = 0) -> onnx.ModelProto:
    """CRNN: a VGG-like network down to one row, two LSTMs of both directions, characters by log-softmax."""
    net = ExportedBuilder("crnn", seed)
    x = net.input((1, 1, 32, 100))
    for channels, pool in ((16, 2), (32, 2), (64, 0), (64, (2, 1)), (96, 0), (96, (2, 1))):
        x = net.layer(x, channels, 3, "Relu")
        x = net.pool("MaxPool", x, pool) if pool else x
    x = net.layer(x, 96, 2, "Relu", pads=(0, 0, 0, 0))
    x = net.op("Transpose", net.op("Squeeze", x, [2]), perm=[2, 0, 1])
    for _ in range(2):
        x = net.linear(net.recurrent("LSTM", x, 32, both=True), 64)
    return net.finish(net.op("LogSoftmax", net.linear(x, 37), axis=2))


def keyword_spotting(seed: int = 0) -> onnx.ModelProto:
    """TC-ResNet by tf2onnx: coefficients as channels of 1-D convolutions, each as a map of height 1."""
    net = ExportedBuilder("keyword_spotting", seed)
    x = net.op("Transpose", net.op("Unsqueeze", net.input((1, 98, 40)), [1]), perm=[0, 3, 1, 2])
    x = net.layer(x, 16, (1, 3), pads=(0, 1, 0, 1))
    for channels in (24, 32, 48):
        y = net.layer(x, channels, (1, 9), "Relu", stride=(1, 2))
        y = net.layer(y, channels, (1, 9))
        x = net.relu(net.add(y, net.layer(x, channels, 1, "Relu", stride=(1, 2))))
    x = net.op("Squeeze", net.op("ReduceMean", x, axes=[2, 3], keepdims=1), [2, 3])
    return net.finish(net.op("Softmax", net.linear(x, 12), axis=-1))


def series_transformer(seed: int = 0) -> onnx.ModelProto:
    """PatchTST-like: each series normalised by its own statistics, overlapping patches as tokens."""
    net = ExportedBuilder("series_transformer", seed)
    x = net.op("Transpose", net.input((1, 96, 4)), perm=[0, 2, 1])
    mean = net.op("ReduceMean", x, axes=[-1], keepdims=1)
    centred = net.op("Sub", x, mean)
    deviation = net.op(
        "Sqrt", net.op("Add", net.op("ReduceMean", net.op("Mul", centred, centred), axes=[-1], keepdims=1), 1e-5)
    )
    x = net.op("Pad", net.op("Div", centred, deviation), [0, 0, 0, 0, 0, 8], mode="edge")
    patches = np.arange(12)[:, None] * 8 + np.arange(16)
    x = net.op("Reshape", net.op("Gather", x, patches, axis=2), [-1, 12, 16])
    x = net.place(net.linear(x, 32))
    for _ in range(2):
        x = net.transformer(x, 4, "gelu", spelt=False)
    x = net.linear(net.op("Reshape", x, [1, 4, -1]), 24)
    x = net.op("Add", net.op("Mul", x, deviation), mean)
    return net.finish(net.op("Transpose", x, perm=[0, 2, 1]))
