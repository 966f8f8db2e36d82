"""The families: one function per network, from an exporter to the model. Small inputs, original structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from npuc.models.families.exporter import Exporter

MOBILE_STAGES = (
    (3, 16, 16, True, "relu", 2),
    (3, 72, 24, False, "relu", 2),
    (3, 88, 24, False, "relu", 1),
    (5, 96, 40, True, "hard_swish", 2),
    (5, 240, 40, True, "hard_swish", 1),
    (5, 240, 40, True, "hard_swish", 1),
    (5, 120, 48, True, "hard_swish", 1),
    (5, 144, 48, True, "hard_swish", 1),
    (5, 288, 96, True, "hard_swish", 2),
    (5, 576, 96, True, "hard_swish", 1),
    (5, 576, 96, True, "hard_swish", 1),
)
"""Kernel, expanded channels, channels, squeeze-and-excite, activation, stride: table 2 of Howard et al. 2019."""


def _hard_swish(net: Exporter, x: str) -> str:
    return net.estimated(net.hard_swish(x), x, 0.4)


def _swish(net: Exporter, x: str) -> str:
    return net.estimated(net.swish(x), x, 0.36)


def mobilenet_v3_small(net: Exporter) -> onnx.ModelProto:
    """MobileNetV3-Small (Howard et al. 2019) at width 1: 3x64x64 -> 100 classes."""
    x = _hard_swish(net, net.conv_norm(net.input((1, 3, 64, 64)), 16, 3, stride=2))
    for kernel, expanded, channels, excite, activation, stride in MOBILE_STAGES:
        function = net.relu if activation == "relu" else partial(_hard_swish, net)
        y = x if expanded == net.shapes[x][1] else function(net.conv_norm(x, expanded, 1))
        y = function(net.conv_norm(y, expanded, kernel, stride=stride, group=expanded))
        y = _excited(net, y) if excite else y
        y = net.conv_norm(y, channels, 1)
        x = net.add(x, y) if net.shapes[x] == net.shapes[y] else y
    x = net.global_pool(_hard_swish(net, net.conv_norm(x, 576, 1)))
    return net.finish(net.dense(_hard_swish(net, net.dense(net.flat(x), 1024)), 100))


def _excited(net: Exporter, x: str) -> str:
    """Squeeze and excite: scales every channel by a hard sigmoid of all channels' means."""
    C = net.shapes[x][1]
    y = net.relu(net.conv(net.global_pool(x), max(8, C // 4 // 8 * 8), 1))
    return net.estimated(net.binary("Mul", x, net.hard_sigmoid(net.conv(y, C, 1))), x, 0.3)


def ocr_recogniser(net: Exporter) -> onnx.ModelProto:
    """Convolutions that keep the width, two layers of attention over columns, classes: 3x32x64 -> 16x40."""
    x = net.relu(net.conv_norm(net.input((1, 3, 32, 64)), 16, 3, stride=2))
    for channels, stride in ((32, (2, 1)), (32, (1, 1)), (48, (2, 2)), (48, (4, 1))):
        x = _hard_swish(net, net.conv_norm(x, net.shapes[x][1], 3, stride=stride, group=net.shapes[x][1]))
        x = _hard_swish(net, net.conv_norm(x, channels, 1))
    _, C, _, W = net.shapes[x]
    tokens = net.transpose(net.reshaped(x, (1, C, W)), (0, 2, 1))
    for _ in range(2):
        tokens = net.encoder_layer(tokens, 4)
    return net.finish(net.softmax(net.dense(net.layer_norm(tokens), 40)))


def vision_transformer(net: Exporter) -> onnx.ModelProto:
    """ViT (Dosovitskiy et al. 2021) with 16 patches and a class token, three layers: 3x32x32 -> 10 classes."""
    x = net.conv(net.input((1, 3, 32, 32)), 48, 8, stride=8, pads="valid")
    tokens = net.transpose(net.reshaped(x, (1, 48, 16)), (0, 2, 1))
    tokens = net.joined([net.constant(net.normal((1, 1, 48), 0.5), "class"), tokens], 1)
    tokens = net.binary("Add", tokens, net.constant(net.normal((1, 17, 48), 0.2), "positions"))
    for _ in range(3):
        tokens = net.encoder_layer(tokens, 4)
    first = net.reshaped(net.slice(net.layer_norm(tokens), 1, 0, 1), (1, 48))
    return net.finish(net.dense(first, 10))


def transformer_encoder(net: Exporter) -> onnx.ModelProto:
    """A text encoder with token embeddings, two layers and an RMSNorm before the end: 16 tokens -> 16x32."""
    ids = net.tokens("input_ids", 16)
    table = net.constant(net.normal((128, 32), 1.0), "embeddings")
    x = net.node("Gather", [table, ids], (1, 16, 32), axis=0)
    x = net.layer_norm(net.binary("Add", x, net.constant(net.normal((1, 16, 32), 0.3), "positions")))
    for _ in range(2):
        x = net.encoder_layer(x, 2)
    return net.finish(net.dense(net.rms_norm(x), 32))


def recurrent(net: Exporter) -> onnx.ModelProto:
    """Two convolutions over a spectrogram, an LSTM and a GRU over its frames: 1x32x40 -> 20x12."""
    x = net.relu(net.conv_norm(net.input((1, 1, 32, 40)), 16, 3, stride=2))
    x = net.relu(net.conv_norm(x, 16, 3, stride=(2, 1)))
    _, C, H, W = net.shapes[x]
    frames = net.transpose(net.reshaped(x, (1, C * H, W)), (0, 2, 1))
    return net.finish(net.dense(net.recurrent("GRU", net.recurrent("LSTM", frames, 32), 32), 12))


def audio(net: Exporter) -> onnx.ModelProto:
    """A one-dimensional network over the wave form, the first stride 16: 1x4096 -> 8 classes."""
    x = net.relu(net.conv_norm(net.input((1, 1, 4096)), 16, (32,), stride=(16,)))
    for channels, stride in ((32, 4), (32, 1), (64, 4)):
        x = net.relu(net.conv_norm(x, channels, (5,), stride=(stride,)))
    return net.finish(net.dense(net.flat(net.global_pool(x)), 8))


BINS = 16
"""Distances that a DFL head distinguishes."""


def dfl_detector(net: Exporter) -> onnx.ModelProto:
    """An anchor-free detector of two scales with a DFL head (Li et al. 2020): 3x64x64 -> 20x(4 + 4 classes).

    A side of a box is the mean of 16 distances, weighted by a Softmax.
    """
    x = _swish(net, net.conv_norm(net.input((1, 3, 64, 64)), 16, 3, stride=2))
    for channels in (32, 48):
        x = _swish(net, net.conv_norm(x, channels, 3, stride=2))
    fine = _cross_stage(net, _swish(net, net.conv_norm(x, 48, 3, stride=2)))
    coarse = _cross_stage(net, _swish(net, net.conv_norm(fine, 64, 3, stride=2)))
    enlarged = net.enlarged(coarse)
    fine = _swish(net, net.conv_norm(net.joined([fine, enlarged], 1), 48, 1))
    heads = [_head(net, each) for each in (fine, coarse)]
    return net.finish(_boxes(net, net.joined(heads, 2), (4, 2), 64))


def _cross_stage(net: Exporter, x: str) -> str:
    """Half of the channels pass through, half go through a residual block; all are concatenated."""
    C = net.shapes[x][1]
    x = _swish(net, net.conv_norm(x, C, 1))
    first, second = net.slice(x, 1, 0, C // 2), net.slice(x, 1, C // 2, C)
    inner = _swish(net, net.conv_norm(_swish(net, net.conv_norm(second, C // 2, 3)), C // 2, 3))
    return _swish(net, net.conv_norm(net.joined([first, second, net.add(second, inner)], 1), C, 1))


def _head(net: Exporter, x: str) -> str:
    """4 * 16 distances and 4 classes a pixel, as (1, 68, H * W)."""
    box = net.conv(_swish(net, net.conv_norm(x, 32, 3)), 4 * BINS, 1)
    classes = net.conv(_swish(net, net.conv_norm(x, 32, 3)), 4, 1)
    joined = net.joined([box, classes], 1)
    return net.reshaped(joined, (1, 4 * BINS + 4, net.shapes[x][2] * net.shapes[x][3]))


def _boxes(net: Exporter, x: str, sides: tuple[int, ...], extent: int) -> str:
    """Boxes in pixels from distances, and the classes' sigmoids."""
    A = net.shapes[x][2]
    box, classes = net.slice(x, 1, 0, 4 * BINS), net.slice(x, 1, 4 * BINS, 4 * BINS + 4)
    bins = net.softmax(net.transpose(net.reshaped(box, (1, 4, BINS, A)), (0, 2, 1, 3)), 1)
    arange = net.constant(np.arange(BINS).reshape(1, BINS, 1, 1), "bins")
    sides_of = net.node("Conv", [bins, arange], (1, 1, 4, A), kernel_shape=[1, 1])
    distances = net.reshaped(sides_of, (1, 4, A))
    centres, strides = _anchors(sides, extent)
    anchors = net.constant(centres, "anchors")
    low = net.binary("Sub", anchors, net.slice(distances, 1, 0, 2))
    high = net.binary("Add", anchors, net.slice(distances, 1, 2, 4))
    middle = net.binary("Div", net.binary("Add", low, high), 2.0)
    whole = net.joined([middle, net.binary("Sub", high, low)], 1)
    return net.joined(
        [net.binary("Mul", whole, net.constant(strides, "strides")), net.unary("Sigmoid", classes)], 1
    )


def _anchors(sides: tuple[int, ...], extent: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Centres of all pixels in units of their stride, (1, 2, A), and their strides, (1, 1, A)."""
    grids = [np.indices((side, side))[::-1].reshape(1, 2, -1) + 0.5 for side in sides]
    strides = [np.full((1, 1, side * side), extent / side) for side in sides]
    return np.concatenate(grids, 2), np.concatenate(strides, 2)


NETWORKS: Mapping[str, Callable[[Exporter], onnx.ModelProto]] = {
    "mobilenet_v3_small": mobilenet_v3_small,
    "ocr_recogniser": ocr_recogniser,
    "vision_transformer": vision_transformer,
    "transformer_encoder": transformer_encoder,
    "recurrent": recurrent,
    "audio": audio,
    "dfl_detector": dfl_detector,
}
"""Name -> network."""
