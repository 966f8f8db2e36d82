"""A detector as after training, and the scenes that it is fitted to.

The scenes are images of red discs and blue blocks of several sizes and contrasts. Backgrounds have a colour, three
gratings and noise; grey discs and blocks, lighter or darker, are part of the background, too. Boxes are (class,
x1, y1, x2, y2) in pixels; class 0 is a disc, 1 a block.

No gradients are needed. The trunk has colour and edge filters, then random ones, each channel normalised to the
statistics of training images as batch normalisation would. Neck and heads are fitted to the objects' boxes in
closed form: by ridge regression, the scores by a few Newton steps of logistic regression. The same numpy and BLAS
give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from npuc.models.builder import NetworkBuilder, explicit_pads

Array = NDArray[Any]

SIZE = 64
CLASSES = 2
KINDS = 3
"""Discs, blocks, and grey things of either shape."""
HUES = np.array([[1.0, -0.5, -0.5], [-0.5, -0.5, 1.0], [0.9, 0.9, 0.9]])
SIDES, CONTRASTS = (10, 29), (0.3, 0.9)
MOST_THINGS, ATTEMPTS, GAP = 4, 40, 3
NOISE = 0.04


@dataclass(frozen=True)
class Scenes:
    """pixels: (images, 3, size, size) float32, about -1 to 1; boxes: (objects, 5) for each image."""

    pixels: Array
    boxes: tuple[Array, ...]


def scenes(count: int, seed: Sequence[int], size: int = SIZE, sides: tuple[int, int] = SIDES) -> Scenes:
    """Images drawn from a seed. sides: the least side of a thing, and one more than the largest."""
    random = np.random.default_rng(seed)
    found = [_scene(random, size, sides) for _ in range(count)]
    return Scenes(np.stack([image for image, _ in found]).astype(np.float32), tuple(boxes for _, boxes in found))


def _scene(random: np.random.Generator, size: int, sides: tuple[int, int]) -> tuple[Array, Array]:
    """One image and its boxes."""
    colour = random.uniform(-0.3, 0.3) + random.normal(0, 0.05, (3, 1, 1))
    image = colour + sum(_grating(random, size) for _ in range(3))
    things: list[tuple[int, ...]] = []
    wanted = random.integers(1, MOST_THINGS + 1)
    for _ in range(ATTEMPTS):
        if len(things) < wanted:
            kind, box, mask = _thing(random, size, sides)
            if all(_has_gap(box, other[1:]) for other in things):
                hue = HUES[kind] * random.uniform(*CONTRASTS) * (random.choice((-1, 1)) if kind == CLASSES else 1)
                image = np.where(mask, (image + colour) / 2 + hue[:, None, None], image)
                things.append((kind, *box))
    objects = [each for each in things if each[0] < CLASSES]
    return image + random.normal(0, NOISE, image.shape), np.array(objects, np.float64).reshape(-1, 5)


def _grating(random: np.random.Generator, size: int) -> Array:
    """A grey wave over the whole image with a little colour, (3, size, size)."""
    rows, columns = np.mgrid[:size, :size]
    across, down = random.normal(0, 0.3, 2)
    height = random.normal(0, 0.12) + random.normal(0, 0.02, (3, 1, 1))
    return height * np.sin(across * columns + down * rows + random.uniform(0, 2 * np.pi))


def _thing(
    random: np.random.Generator, size: int, sides: tuple[int, int]
) -> tuple[int, tuple[int, int, int, int], Array]:
    """The kind, box and pixels of a disc or a block somewhere in the image."""
    rows, columns = np.mgrid[:size, :size]
    kind = int(random.integers(KINDS))
    width, height = (int(each) for each in random.integers(*sides, 2))
    disc = random.random() < 0.5 if kind == CLASSES else kind == 0
    height = width if disc else height
    x, y = int(random.integers(size - width + 1)), int(random.integers(size - height + 1))
    across, down = ((columns - x + 0.5) / width - 0.5, (rows - y + 0.5) / height - 0.5)
    inside = np.hypot(across, down) < 0.5 if disc else np.maximum(np.abs(across), np.abs(down)) < 0.5
    return kind, (x, y, x + width, y + height), inside


def _has_gap(box: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two boxes have a gap between them."""
    return any(low[axis] >= high[axis + 2] + GAP for low, high in ((box, other), (other, box)) for axis in (0, 1))


STRIDE = 8
CELLS = SIZE // STRIDE
CENTRES = (np.arange(CELLS) + 0.5) * STRIDE
SURE = 0.25
"""The least score of a detection."""
IMAGES = 400
"""Training images."""
STEPS = 6
"""Newton steps."""
BOX_RIDGE, SCORE_RIDGE = 100.0, 10.0
NECK, THRESHOLDS = 64, 5
"""Channels of the layer before the heads, and how many of them each output of the heads gets."""
CORE = 0.25
"""Cells whose centres are within this share of an object's sides from its centre are positive."""
TRUNK = (16, 32, 64)
"""Channels of the trunk's 3x3 convolutions, each with stride 2 and a ReLU."""


@dataclass(frozen=True)
class ConvWeights:
    """w: (Co, Ci, kernel, kernel); b: (Co,); both float32."""

    w: Array
    b: Array
    stride: int = 1

    def __call__(self, x: Array) -> Array:
        """The results before the activation, (images, Co, height, width); pads as `same`."""
        kernel = self.w.shape[-1]
        pads = explicit_pads(x.shape[2:], (kernel, kernel), (self.stride, self.stride), "same")
        padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
        taps = sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, :: self.stride, :: self.stride]
        return np.moveaxis(np.tensordot(taps, self.w, ((1, 4, 5), (1, 2, 3))) + self.b, 3, 1)

    def normalise(self, x: Array, random: np.random.Generator) -> ConvWeights:
        """Scaled and shifted so that its results on x have means and deviations as after training."""
        results = self(x)
        gain = random.uniform(0.6, 1.5, len(self.w)) / results.std(axis=(0, 2, 3))
        bias = random.normal(-0.2, 0.4, len(self.w)) - results.mean(axis=(0, 2, 3)) * gain
        w = self.w * gain[:, None, None, None]
        return ConvWeights(w.astype(np.float32), bias.astype(np.float32), self.stride)

    def add_to(self, net: NetworkBuilder, x: str) -> str:
        """The name of its result in a network."""
        kernel, stride = self.w.shape[-2:], (self.stride, self.stride)
        pads = explicit_pads(net.shapes[x][2:], kernel, stride, "same")
        extents = (extent // self.stride for extent in net.shapes[x][2:])
        attributes = {"kernel_shape": kernel, "strides": stride, "pads": pads}
        inputs = [x, net.weight(self.w, "w"), net.weight(self.b, "b")]
        return net.node("Conv", inputs, (1, len(self.w), *extents), **attributes)


def detector(bias: float = -6.0, seed: int = 0) -> onnx.ModelProto:
    """A detector as after training: scores near 1 at objects, all others at a bias of -4 to -9 before a Sigmoid.

    1x3xSIZExSIZE -> 1x(4 + CLASSES)xCELLSxCELLS: for every cell the distances from its centre to the box's
    left, top, right and bottom in units of STRIDE, and a score per class.

    bias: the median logit of cells without an object. Training uses scenes(IMAGES, (seed, 0)).
    """
    layers, boxes, scores = train(bias, seed)
    net = NetworkBuilder("detector", seed)
    name = net.input((1, 3, SIZE, SIZE))
    for each in layers:
        name = net.relu(each.add_to(net, name))
    places, logits = boxes.add_to(net, name), scores.add_to(net, name)
    score = net.node("Sigmoid", [logits], net.shapes[logits])
    return net.finish(net.concat(places, score))


@lru_cache(maxsize=4)
def train(bias: float, seed: int) -> tuple[tuple[ConvWeights, ...], ConvWeights, ConvWeights]:
    """The layers up to the neck, and the heads for boxes and for scores."""
    layers, x, truth = body(seed)
    return layers, *_heads(x, truth, bias)


@lru_cache(maxsize=1)
def body(seed: int) -> tuple[tuple[ConvWeights, ...], Array, Truth]:
    """The layers up to the neck, their results on the training images, and what these contain."""
    random = np.random.default_rng(seed)
    seen = scenes(IMAGES, (seed, 0))
    x, layers = seen.pixels, list[ConvWeights]()
    for Co in TRUNK:
        w = random.standard_normal((Co, x.shape[1], 3, 3))
        if not layers:
            w[: len(FILTERS)] = FILTERS
        drawn = ConvWeights(w.astype(np.float32), np.zeros(Co, np.float32), stride=2)
        layers.append(drawn.normalise(x, random))
        x = np.maximum(layers[-1](x), 0)
    truth = Truth.of(seen.boxes)
    layers.append(fit_neck(x, truth, random).normalise(x, random))
    return tuple(layers), np.maximum(layers[-1](x), 0), truth


def _filters() -> Array:
    """Means of red, of blue and of grey, and horizontal and vertical edges, in both signs: (filters, 3, 3, 3)."""
    colours = np.array([[1, -0.5, -0.5], [-0.5, -0.5, 1], [1, 1, 1]])
    edge = np.outer((1, 2, 1), (-1, 0, 1))
    found = [np.tile(colour[:, None, None], (1, 3, 3)) for colour in colours]
    found += [np.tile(each, (3, 1, 1)) for each in (edge, edge.T)]
    return np.concatenate([found, np.negative(found)])


FILTERS = _filters()


@dataclass(frozen=True)
class Truth:
    """What the cells of all images contain.

    objects: (cells, CLASSES), 0 or 1; distances: (cells, 4), where an object is; clear: (cells,), none is near.
    """

    objects: Array
    distances: Array
    clear: Array

    @classmethod
    def of(cls, boxes: Sequence[Array], cells: int = CELLS, stride: int = STRIDE) -> Truth:
        """From the boxes of images, for a grid of cells x cells, stride pixels apart."""
        found = [_cells(each, cells, stride) for each in boxes]
        return cls(*(np.concatenate(column) for column in zip(*found, strict=True)))

    @property
    def positive(self) -> Array:
        """Cells with an object."""
        return self.objects.max(axis=1) > 0

    @property
    def known(self) -> Array:
        """Cells that are learned from: not those at the border of an object."""
        return self.clear | self.positive


def fit_neck(x: Array, truth: Truth, random: np.random.Generator) -> ConvWeights:
    """A 3x3 convolution: THRESHOLDS of its channels approximate each output of the heads, the rest are random."""
    flat, _, deviation = standardise(taps_of(x, 3))
    objects = fit_ridge(flat[truth.known], truth.objects[truth.known])[0]
    distances = fit_ridge(flat[truth.positive], truth.distances[truth.positive])[0]
    w = np.concatenate([distances, objects]) / deviation
    w = np.repeat(w.reshape(-1, x.shape[1], 3, 3), THRESHOLDS, axis=0)
    rest = random.standard_normal((NECK - len(w), *w.shape[1:]))
    return ConvWeights(np.concatenate([w, rest]).astype(np.float32), np.zeros(NECK, np.float32))


def _heads(x: Array, truth: Truth, bias: float) -> tuple[ConvWeights, ConvWeights]:
    """The heads on the neck's results: 3x3 for boxes, 1x1 for scores."""
    flat, mean, deviation = standardise(taps_of(x, 3))
    boxes = fit_ridge(flat[truth.positive], truth.distances[truth.positive])
    first = on_raw(*boxes, mean, deviation, 3)
    flat, mean, deviation = standardise(taps_of(x, 1))
    known, objects = flat[truth.known], truth.objects[truth.known]
    logits = [fit_logistic(known, each, bias) for each in objects.T]
    w, b = (np.stack(column) for column in zip(*logits, strict=True))
    return first, on_raw(w, b, mean, deviation, 1)


def on_raw(w: Array, b: Array, mean: Array, deviation: Array, kernel: int) -> ConvWeights:
    """The convolution that applies weights of standardised inputs to inputs as they are."""
    w = w / deviation
    shape = len(w), -1, kernel, kernel
    return ConvWeights(w.reshape(shape).astype(np.float32), (b - w @ mean).astype(np.float32))


def taps_of(x: Array, kernel: int, which: Array | slice = slice(None)) -> Array:
    """The inputs under windows of a convolution with stride 1, (windows, Ci * kernel * kernel).

    which: a mask of all windows, (images * height * width,); by default all.
    """
    pad = kernel // 2
    taps = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), (kernel, kernel), (2, 3))
    taps = taps.transpose(0, 2, 3, 1, 4, 5)
    if isinstance(which, np.ndarray):
        taps = taps[np.unravel_index(np.flatnonzero(which), taps.shape[:3])]
    return taps.reshape(-1, x.shape[1] * kernel * kernel).astype(np.float64)


def standardise(x: Array) -> tuple[Array, Array, Array]:
    """The columns with mean 0 and deviation 1, their means and deviations."""
    mean, deviation = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    return (x - mean) / deviation, mean, deviation


def _cells(boxes: Array, cells: int, stride: int) -> tuple[Array, Array, Array]:
    """For every cell of an image, what `Truth` has."""
    objects = np.zeros((cells * cells, CLASSES))
    distances, clear = np.zeros((cells * cells, 4)), np.ones(cells * cells, bool)
    centres = (np.arange(cells) + 0.5) * stride
    x, y = np.tile(centres, cells), np.repeat(centres, cells)
    for kind, left, top, right, bottom in boxes:
        away = np.abs(x - (left + right) / 2), np.abs(y - (top + bottom) / 2)
        reach = [max((right - left) * CORE, stride / 2), max((bottom - top) * CORE, stride / 2)]
        core = (away[0] <= reach[0]) & (away[1] <= reach[1])
        clear &= (away[0] >= (right - left) / 2) | (away[1] >= (bottom - top) / 2)
        objects[core, int(kind)] = 1
        distances[core] = np.stack([x - left, y - top, right - x, bottom - y], axis=1)[core] / stride
    return objects, distances, clear


def fit_ridge(x: Array, y: Array) -> tuple[Array, Array]:
    """The weights (outputs, K) and biases of a linear regression from x, of mean 0, to y."""
    centred, middle = x - x.mean(axis=0), y.mean(axis=0)
    w = np.linalg.solve(centred.T @ centred + BOX_RIDGE * np.eye(x.shape[1]), centred.T @ (y - middle)).T
    return w, middle - w @ x.mean(axis=0)


def fit_logistic(x: Array, y: Array, bias: float) -> tuple[Array, Array]:
    """The weights (K,) and bias of a logistic regression, sharpened until the median logit of y = 0 is the bias.

    The place where a detection begins, SURE, stays.
    """
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    w, ridge = np.zeros(x.shape[1]), np.diag([SCORE_RIDGE] * (x.shape[1] - 1) + [0.0])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ w))
        curvature = np.maximum(p * (1 - p), 1e-4)
        w += np.linalg.solve((x * curvature[:, None]).T @ x + ridge, x.T @ (y - p) - ridge @ w)
    edge = np.log(SURE / (1 - SURE))
    gain = (bias - edge) / (np.median(x[y == 0] @ w) - edge)
    return w[:-1] * gain, (w[-1] - edge) * gain + edge
