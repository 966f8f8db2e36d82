"""Detectors of the families that users bring, as after training: YOLOv8-like, SSD-like, and one of text.

They find the discs and blocks of `detector.scenes`, or lines of glyphs, on 96 x 96 pixels. As there, no gradients
are needed: features are random convolutions whose results have the statistics of training images, heads are fitted
in closed form. A layer is computed on the training images when it is appended to the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from npuc.models.detector import (
    CLASSES,
    FILTERS,
    THRESHOLDS,
    Array,
    ConvWeights,
    Scenes,
    Truth,
    fit_logistic,
    fit_ridge,
    on_raw,
    scenes,
    standardise,
    taps_of,
)
from npuc.models.exported import ExportedBuilder
from npuc.models.public import REPEATED, centres_of, ssd_boxes, yolo_head

SIZE, SIDES = 96, (10, 61)
IMAGES = 200
"""Training images."""
STRIDES = (4, 8, 16)
LONGEST = (18, 34, SIZE)
"""The longest side of an object that each level finds."""
RATIO = 8
"""Cells without an object for each with one."""
BIAS = -6.0
"""The median logit of cells without an object."""


def images(count: int, seed: Sequence[int]) -> Scenes:
    """Scenes of the detectors' size."""
    return scenes(count, seed, SIZE, SIDES)


@dataclass(frozen=True)
class Map:
    """A tensor of the network, and its values on the training images, (images, C, height, width)."""

    name: str
    values: Array


class FittedNetwork:
    """A network that is computed on training images while it is built."""

    def __init__(self, name: str, seed: int, draw: Callable[[int, Sequence[int]], Scenes] = images) -> None:
        self.random = np.random.default_rng(seed)
        self.seen = draw(IMAGES, (seed, 0))
        self.net = ExportedBuilder(name, seed)
        self.input = Map(self.net.input((1, 3, SIZE, SIZE)), self.seen.pixels)

    def conv(self, x: Map, weights: ConvWeights) -> Map:
        """A convolution without an activation."""
        return Map(weights.add_to(self.net, x.name), weights(x.values))

    def layer(self, x: Map, weights: ConvWeights, act: str) -> Map:
        """A convolution whose results get the statistics of a trained layer, and an activation, swish or Relu."""
        y = self.conv(x, weights.normalise(x.values, self.random))
        values = y.values / (1 + np.exp(-y.values)) if act == "swish" else np.maximum(y.values, 0)
        return Map(self.net.act(y.name, act), values.astype(np.float32))

    def random_layer(self, x: Map, Co: int, kernel: int, act: str, stride: int = 1) -> Map:
        """The same with random weights, behind the input with filters for colours and edges."""
        w = self.random.standard_normal((Co, x.values.shape[1], kernel, kernel))
        if x is self.input:
            w[: len(FILTERS)] = FILTERS
        return self.layer(x, ConvWeights(w.astype(np.float32), np.zeros(Co, np.float32), stride), act)

    def trunk(self, act: str) -> list[Map]:
        """Maps of the three strides."""
        x, found = self.input, list[Map]()
        for Co in (16, 32, 64, 96):
            x = self.random_layer(x, Co, 3, act, stride=2)
            found.append(x)
        return found[1:]

    def join(self, x: Map, enlarged: Map, act: str = "swish") -> Map:
        """A map and one of half its size, enlarged, as a map of 96 channels."""
        scales = np.array([1, 1, 2, 2], np.float32)
        name = self.net.concat(self.net.op("Resize", enlarged.name, "", scales, **REPEATED), x.name)
        values = np.concatenate([_twice(enlarged.values), x.values], axis=1)
        return self.random_layer(Map(name, values), 96, 1, act)

    def enlarge(self, x: Map, w: Array, b: Array) -> Map:
        """A ConvTranspose that makes four equal pixels of each; w: (Co, Ci), b: (Co,)."""
        taps = np.tile(w.T[:, :, None, None], (1, 1, 2, 2)).astype(np.float32)
        inputs = [x.name, self.net.weight(taps, "w"), self.net.weight(b.astype(np.float32), "b")]
        name = self.net.node("ConvTranspose", inputs, kernel_shape=[2, 2], strides=[2, 2])
        values = np.einsum("dc,nchw->ndhw", w, x.values, optimize=True) + b[:, None, None]
        return Map(name, _twice(values.astype(np.float32)))

    def rows(self, truth: Truth) -> Array:
        """The cells that scores are fitted to: with an object, and RATIO times as many without one."""
        rows, clear = truth.positive.copy(), np.flatnonzero(truth.clear)
        rows[self.random.choice(clear, min(len(clear), RATIO * int(rows.sum())), replace=False)] = True
        return rows

    def shown(self, x: Map) -> tuple[Array, Array]:
        """Whether each pixel of a map is in a line of text, 0.0 or 1.0, and which pixels layers are fitted to."""
        wanted = inside(self.seen.boxes, x.values.shape[2]).astype(np.float64)
        rows = np.zeros(len(wanted), bool)
        rows[self.random.choice(len(wanted), SHOWN, replace=False)] = True
        return wanted, rows

    def truths(self) -> list[Truth]:
        """What the cells of each level contain: objects up to its longest side that are too long for the last."""
        found: list[Truth] = []
        for level, stride in enumerate(STRIDES):
            least = LONGEST[level - 1] if level else 0
            sides = [(boxes[:, 3:] - boxes[:, 1:3]).max(axis=1, initial=0) for boxes in self.seen.boxes]
            own = [
                boxes[(least < longest) & (longest <= LONGEST[level])]
                for boxes, longest in zip(self.seen.boxes, sides, strict=True)
            ]
            found.append(Truth.of(own, SIZE // stride, stride))
        return found


def _twice(x: Array) -> Array:
    """A map of which every pixel becomes four."""
    return x.repeat(2, axis=2).repeat(2, axis=3)


def _neck(x: Map, wanted: Array, rows: Array, channels: int, random: np.random.Generator) -> ConvWeights:
    """A 3x3 convolution: THRESHOLDS of its channels approximate each wanted value, the rest are random."""
    flat, _, deviation = standardise(taps_of(x.values, 3, rows))
    w = fit_ridge(flat, wanted[rows])[0] / deviation
    w = np.repeat(w.reshape(-1, x.values.shape[1], 3, 3), THRESHOLDS, axis=0)
    rest = random.standard_normal((channels - len(w), *w.shape[1:])) * w.std()
    return ConvWeights(np.concatenate([w, rest]).astype(np.float32), np.zeros(channels, np.float32))


def _scores(x: Map, truth: Truth, rows: Array) -> ConvWeights:
    """The 3x3 convolution that gives a logit for each class."""
    flat, mean, deviation = standardise(taps_of(x.values, 3, rows))
    w, b = (
        np.stack(c) for c in zip(*(fit_logistic(flat, each, BIAS) for each in truth.objects[rows].T), strict=True)
    )
    fewer = np.log(truth.clear.sum() / (rows & truth.clear).sum())  # cells without an object than there are
    return on_raw(w, b - fewer, mean, deviation, 3)


def _places(x: Map, truth: Truth, wanted: Array) -> ConvWeights:
    """The 3x3 convolution that gives these values, (cells, outputs), where an object is."""
    flat, mean, deviation = standardise(taps_of(x.values, 3, truth.positive))
    return on_raw(*fit_ridge(flat, wanted[truth.positive]), mean, deviation, 3)


BINS, WIDTH, DEPTH = 16, 0.8, 8.0
"""Bins of a distance; the deviation of a distance among them; how much less likely any bin is, as a logarithm."""


def _in_bins(distances: Array) -> Array:
    """Logits of bins, (cells, 4 * BINS), whose softmax is a narrow distribution around each distance."""
    away = (np.arange(BINS) - distances[:, :, None]) ** 2 / (2 * WIDTH**2)
    return (DEPTH / 2 - np.minimum(away, DEPTH)).reshape(-1, 4 * BINS)


def yolo(seed: int = 0) -> onnx.ModelProto:
    """YOLOv8-like: three levels, decoupled heads, distances as expectations over bins, sigmoid scores.

    1x3x96x96 -> 1x(4 + CLASSES)x756: centre, width and height in pixels, and a score per class.
    """
    fitted = FittedNetwork("yolo", seed)
    fine, middle, coarse = fitted.trunk("swish")
    middle = fitted.join(middle, coarse)
    fine = fitted.join(fine, middle)
    net, maps = fitted.net, list[str]()
    for x, truth in zip((fine, middle, coarse), fitted.truths(), strict=True):
        rows = fitted.rows(truth)
        near = _neck(x, truth.distances, truth.positive, 64, fitted.random)
        seen = _neck(x, truth.objects, rows, 64, fitted.random)
        near, seen = fitted.layer(x, near, "swish"), fitted.layer(x, seen, "swish")
        bins = fitted.conv(near, _places(near, truth, _in_bins(truth.distances)))
        scores = fitted.conv(seen, _scores(seen, truth, rows))
        joined = net.concat(bins.name, scores.name)
        maps.append(net.op("Reshape", joined, [1, 4 * BINS + CLASSES, -1]))
    return net.finish(yolo_head(net, maps, CLASSES, SIZE, STRIDES))


ANCHORS = (13.0, 24.0, 44.0)
"""Sides of the anchor of each level, in pixels."""
VARIANCES = (0.1, 0.2)


def ssd(seed: int = 0) -> onnx.ModelProto:
    """SSD-like: three levels, a softmax over background and classes, boxes from anchors.

    1x3x96x96 -> 1x756x(1 + CLASSES) scores, and 1x756x4 corners as shares of the image.
    """
    fitted = FittedNetwork("ssd", seed)
    net, scores, boxes = fitted.net, list[str](), list[str]()
    for level, (x, truth) in enumerate(zip(fitted.trunk("Relu"), fitted.truths(), strict=True)):
        wide = _neck(
            x, np.concatenate([truth.distances, truth.objects], axis=1), truth.positive, 64, fitted.random
        )
        x = fitted.layer(x, wide, "Relu")
        logits = _scores(x, truth, fitted.rows(truth))
        background = ConvWeights(
            np.concatenate([np.zeros_like(logits.w[:1]), logits.w]), np.concatenate([[0], logits.b]).astype("f4")
        )
        side, stride = ANCHORS[level], STRIDES[level]
        left, top, right, bottom = truth.distances.T * stride
        with np.errstate(divide="ignore"):
            growth = np.log(np.stack([left + right, top + bottom], axis=1) / side) / VARIANCES[1]
        offsets = np.stack([right - left, bottom - top], axis=1) / 2 / side / VARIANCES[0]
        wanted = np.concatenate([offsets, np.where(np.isfinite(growth), growth, 0)], axis=1)
        for made, weights, columns in (
            (scores, background, 1 + CLASSES),
            (boxes, _places(x, truth, wanted), 4),
        ):
            y = net.op("Transpose", fitted.conv(x, weights).name, perm=[0, 2, 3, 1])
            made.append(net.op("Reshape", y, [1, -1, columns]))
    score = net.op("Softmax", net.op("Concat", *scores, axis=1), axis=2)
    extents = [SIZE // stride for stride in STRIDES]
    centres = np.concatenate([centres_of(each, 1) / np.float32(each) for each in extents])[None]
    sides = [np.full((each**2, 2), side / SIZE, np.float32) for each, side in zip(extents, ANCHORS, strict=True)]
    rows = net.op("Concat", *boxes, axis=1)
    return net.finish(score, ssd_boxes(net, rows, centres, np.concatenate(sides)[None]))


LINES, GLYPH = 4, (5, 4)
"""Places for lines in an image, one below the other; rows and columns of a glyph, the last of them empty."""
SHOWN, NECKS = 25_000, 2
"""Pixels that the layers for text are fitted to, and how many layers look for it one behind the other."""


def text_images(count: int, seed: Sequence[int]) -> Scenes:
    """Images with lines of glyphs and with bars among discs and blocks; a box, of class 0, for each line."""
    random = np.random.default_rng(seed)
    pixels, boxes = scenes(count, seed, SIZE, (10, 21)).pixels / 2, list[Array]()
    for image in pixels:
        lines: list[tuple[int, ...]] = []
        for top in range(4, SIZE, SIZE // LINES):
            dot, length, kind = (int(random.integers(*each)) for each in ((2, 4), (3, 8), (0, 3)))
            dots = random.random((GLYPH[0], length, GLYPH[1])) < (0.6, 1.0, 0.0)[kind]
            dots[:, :, -1] &= kind == 1
            shape = dots.reshape(GLYPH[0], -1).repeat(dot, axis=0).repeat(dot, axis=1)
            height, width = shape.shape
            left = int(random.integers(SIZE - width + 1))
            ink = random.choice((-1, 1)) * random.uniform(0.4, 1.0) + random.normal(0, 0.1, (3, 1, 1))
            image[:, top : top + height, left : left + width] += shape * ink
            lines += [(0, left, top, left + width - dot, top + height)] * (kind == 0)
        boxes.append(np.array(lines, np.float64).reshape(-1, 5))
    return Scenes(pixels, tuple(boxes))


def inside(boxes: Sequence[Array], cells: int) -> Array:
    """Which cells of each image, (images * cells * cells,), have their centres in a box."""
    at = (np.arange(cells) + 0.5) * SIZE / cells
    found = np.zeros((len(boxes), cells, cells), bool)
    for image, lines in zip(found, boxes, strict=True):
        for _, left, top, right, bottom in lines:
            image |= ((top <= at) & (at < bottom))[:, None] & (left <= at) & (at < right)
    return found.reshape(-1)


def text(seed: int = 0) -> onnx.ModelProto:
    """Text by segmentation, as DBNet: maps of three strides joined, enlarged by two ConvTranspose, a Sigmoid.

    1x3x96x96 -> 1x1x96x96, the probability of each pixel to be in a line of text.
    """
    fitted = FittedNetwork("text", seed, text_images)
    fine, middle, coarse = fitted.trunk("Relu")
    x = fitted.join(fine, fitted.join(middle, coarse, "Relu"), "Relu")
    for _ in range(NECKS):
        wanted, rows = fitted.shown(x)
        x = fitted.layer(x, _neck(x, wanted[:, None], rows, 64, fitted.random), "Relu")
    y = fitted.enlarge(x, fitted.random.normal(0, 0.2, (32, 64)), fitted.random.normal(0, 0.2, 32))
    x = Map(fitted.net.relu(y.name), np.maximum(y.values, 0))
    wanted, rows = fitted.shown(x)
    flat, mean, deviation = standardise(taps_of(x.values, 1, rows))
    w, b = fit_logistic(flat, wanted[rows], BIAS)
    head = on_raw(w[None], np.array([b]), mean, deviation, 1)
    y = fitted.enlarge(x, head.w[:, :, 0, 0], head.b)
    return fitted.net.finish(fitted.net.op("Sigmoid", y.name))
