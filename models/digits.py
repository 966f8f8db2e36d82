"""A small residual network trained on scikit-learn's 8x8 digits, and its training.

    python -m npuc.models.digits          (needs scikit-learn: pip install npuc[train])

writes the model, and beside it `digits_calibration.npz` (`x`) and `digits_test.npz` (`x`, `y`): grey values 0..16
as uint8 in the input's shape without the batch, to be fed as float32.

The 1,797 images are shuffled with a fixed seed: 500 for the test, the rest for training, of which the first
128 also calibrate. Every epoch sees each training image once, moved by at most one pixel. Convolutions are
matrix products over gathered windows; the gradients are written out layer by layer; Adam with a cosine
schedule. The same numpy and BLAS give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from npuc.models.builder import NetworkBuilder

Array = NDArray[np.float32]
Gradient = Callable[[Array], Array]
"""Maps the loss's gradient by a layer's result to that by its operand; stores those by the parameters."""

FOLDER = Path(__file__).parent
SEED, TEST_IMAGES, CALIBRATION_IMAGES = 7, 500, 128
EPOCHS, BATCH, RATE = 40, 32, 3e-3
LARGEST_GREY = 16.0


def digits() -> onnx.ModelProto:
    """A small residual network trained on scikit-learn's 8x8 digits by `main`.

    1x1x8x8 -> 1x10 logits.
    """
    return onnx.load(FOLDER / "digits.onnx")


@dataclass
class TrainedTensor:
    """A trained tensor with its gradient and Adam's two moments."""

    value: Array
    gradient: Array
    mean: NDArray[Any]
    square: NDArray[Any]

    def step(self, time: int, rate: float) -> None:
        """One step of Adam (Kingma and Ba, 2015) with beta 0.9 and 0.999."""
        self.mean = 0.9 * self.mean + 0.1 * self.gradient
        self.square = 0.999 * self.square + 0.001 * self.gradient**2
        mean, square = self.mean / (1 - 0.9**time), self.square / (1 - 0.999**time)
        self.value = (self.value - rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


def _parameter(value: NDArray[Any]) -> TrainedTensor:
    start = value.astype(np.float32)
    return TrainedTensor(start, np.zeros_like(start), np.zeros_like(start), np.zeros_like(start))


class TrainedLayer:
    """Weights (Co, K) over K = Ci * 3 * 3 or features, and a bias."""

    def __init__(self, random: np.random.Generator, Co: int, K: int) -> None:
        self.w = _parameter(random.standard_normal((Co, K)) * sqrt(2 / K))
        self.b = _parameter(np.zeros(Co))

    def dense(self, x: Array) -> tuple[Array, Gradient]:
        """x (..., K) -> (..., Co)."""

        def gradient(dy: Array) -> Array:
            flat = dy.reshape(-1, dy.shape[-1])
            self.w.gradient = flat.T @ x.reshape(flat.shape[0], -1)
            self.b.gradient = flat.sum(axis=0)
            return dy @ self.w.value

        return x @ self.w.value.T + self.b.value, gradient

    def conv(self, x: Array, stride: int = 1) -> tuple[Array, Gradient]:
        """A convolution 3x3 with one element of padding: x (N, H, W, Ci) -> (N, Ho, Wo, Co)."""
        N, H, W, Ci = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))  # N, H, W, Ci, 3, 3
        windows = windows[:, ::stride, ::stride]
        Ho, Wo = windows.shape[1:3]
        y, dense_gradient = self.dense(windows.reshape(N, Ho, Wo, Ci * 9))

        def gradient(dy: Array) -> Array:
            taps = dense_gradient(dy).reshape(N, Ho, Wo, Ci, 3, 3)
            dx = np.zeros_like(padded)
            for i in range(3):
                for j in range(3):
                    rows = slice(i, i + (Ho - 1) * stride + 1, stride)
                    columns = slice(j, j + (Wo - 1) * stride + 1, stride)
                    dx[:, rows, columns] += taps[..., i, j]
            return dx[:, 1 : H + 1, 1 : W + 1]

        return y, gradient


def _relu(x: Array) -> tuple[Array, Gradient]:
    return np.maximum(x, 0), lambda dy: dy * (x > 0)


def _max_pool(x: Array) -> tuple[Array, Gradient]:
    """Windows 2x2 with stride 2: (N, H, W, C) -> (N, H/2, W/2, C)."""
    N, H, W, C = x.shape
    windows: Array = x.reshape(N, H // 2, 2, W // 2, 2, C)
    y = windows.max(axis=(2, 4), keepdims=True)
    first = (windows == y) / np.maximum((windows == y).sum(axis=(2, 4), keepdims=True), 1)

    def gradient(dy: Array) -> Array:
        spread: Array = first * dy.reshape(y.shape)
        return spread.reshape(x.shape).astype(np.float32)

    return y.reshape(N, H // 2, W // 2, C), gradient


class DigitsNet:
    """conv 16, a residual conv 16, max pool, conv 32, conv 32 with stride 2, fully connected."""

    def __init__(self, random: np.random.Generator) -> None:
        self.stem, self.residual = TrainedLayer(random, 16, 9), TrainedLayer(random, 16, 144)
        self.wide, self.down = TrainedLayer(random, 32, 144), TrainedLayer(random, 32, 288)
        self.head = TrainedLayer(random, 10, 128)

    @property
    def layers(self) -> tuple[TrainedLayer, ...]:
        """The layers in network order."""
        return (self.stem, self.residual, self.wide, self.down, self.head)

    def forward(self, x: Array) -> tuple[Array, Gradient]:
        """x (N, 8, 8, 1) -> logits (N, 10), and the gradient by the logits to all parameters."""
        y, d_stem = self.stem.conv(x)
        skip, d_stem_relu = _relu(y)
        y, d_residual = self.residual.conv(skip)
        y, d_residual_relu = _relu(y + skip)
        y, d_pool = _max_pool(y)
        y, d_wide = self.wide.conv(y)
        y, d_wide_relu = _relu(y)
        y, d_down = self.down.conv(y, stride=2)
        y, d_down_relu = _relu(y)
        logits, d_head = self.head.dense(y.reshape(len(y), -1))

        def gradient(dy: Array) -> Array:
            dy = d_down_relu(d_head(dy).reshape(y.shape))
            dy = d_pool(d_wide(d_wide_relu(d_down(dy))))
            dy = d_residual_relu(dy)
            return d_stem(d_stem_relu(dy + d_residual(dy)))

        return logits, gradient


def _shift(random: np.random.Generator, x: Array) -> Array:
    """Every image moved by -1, 0 or 1 pixels along both axes, filled with background."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    corners = random.integers(0, 3, (len(x), 2))
    return np.stack([image[i : i + 8, j : j + 8] for image, (i, j) in zip(padded, corners.tolist(), strict=True)])


def train(x: Array, y: NDArray[np.int64]) -> DigitsNet:
    """A network trained on images x (N, 8, 8, 1), grey 0..1, with labels y (N)."""
    random = np.random.default_rng(SEED)
    net = DigitsNet(random)
    steps = EPOCHS * (len(x) // BATCH)
    time = 0
    for _ in range(EPOCHS):
        order = random.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            time += 1
            chosen = order[start : start + BATCH]
            logits, gradient = net.forward(_shift(random, x[chosen]))
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            chances[np.arange(BATCH), y[chosen]] -= 1
            gradient(chances / BATCH)
            for layer in net.layers:
                layer.w.step(time, RATE * (1 + cos(pi * time / steps)) / 2)
                layer.b.step(time, RATE * (1 + cos(pi * time / steps)) / 2)
    return net


def export(net: DigitsNet) -> onnx.ModelProto:
    """The network in ONNX, for grey values 0..16: the first convolution's weights absorb the division."""
    onnx_net = NetworkBuilder("digits", SEED)

    def conv(x: str, layer: TrainedLayer, size: int, stride: int = 1, grey: float = 1.0) -> str:
        Co = len(layer.b.value)
        w = (layer.w.value / grey).reshape(Co, -1, 3, 3).astype(np.float32)
        inputs = [x, onnx_net.weight(w, "w"), onnx_net.weight(layer.b.value, "b")]
        geometry = {"kernel_shape": (3, 3), "strides": (stride, stride), "pads": (1, 1, 1, 1)}
        return onnx_net.node("Conv", inputs, (1, Co, size, size), **geometry)

    x = onnx_net.input((1, 1, 8, 8))
    x = onnx_net.relu(conv(x, net.stem, 8, grey=LARGEST_GREY))
    x = onnx_net.relu(onnx_net.add(conv(x, net.residual, 8), x))
    x = onnx_net.relu(conv(onnx_net.pool("MaxPool", x, 2), net.wide, 4))
    x = onnx_net.flatten(onnx_net.relu(conv(x, net.down, 2, stride=2)))
    # trained over (H, W, C), flattened by ONNX as (C, H, W)
    w = np.ascontiguousarray(net.head.w.value.reshape(10, 2, 2, 32).transpose(0, 3, 1, 2)).reshape(10, 128)
    inputs = [x, onnx_net.weight(w, "w"), onnx_net.weight(net.head.b.value, "b")]
    return onnx_net.finish(onnx_net.node("Gemm", inputs, (1, 10), transB=1))


def main() -> None:
    """Trains, prints the test accuracy, and writes the three files."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]  of the extra `train`

    data: Any = load_digits()
    order = np.random.default_rng(SEED).permutation(len(data.target))
    images = data.images[order].astype(np.uint8)
    labels = data.target[order].astype(np.uint8)
    x = (images[..., np.newaxis] / LARGEST_GREY).astype(np.float32)
    net = train(x[TEST_IMAGES:], labels[TEST_IMAGES:].astype(np.int64))
    correct = net.forward(x[:TEST_IMAGES])[0].argmax(axis=1) == labels[:TEST_IMAGES]
    print(f"test accuracy {correct.mean():.4f} on {TEST_IMAGES} images")
    onnx.save(export(net), FOLDER / "digits.onnx")
    maps = images[:, np.newaxis]
    calibration = maps[TEST_IMAGES : TEST_IMAGES + CALIBRATION_IMAGES]
    np.savez_compressed(FOLDER / "digits_calibration.npz", x=calibration)
    np.savez_compressed(FOLDER / "digits_test.npz", x=maps[:TEST_IMAGES], y=labels[:TEST_IMAGES])


if __name__ == "__main__":
    main()
