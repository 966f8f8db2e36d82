"""Networks of sequences that users bring: sound, text in pictures, series of measurements."""

from __future__ import annotations

import numpy as np
import onnx

from npuc.models.exported import ExportedBuilder


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
        x = net.folded(x, channels, 3, "Relu")
        x = net.pool("MaxPool", x, pool) if pool else x
    x = net.folded(x, 96, 2, "Relu", pads=(0, 0, 0, 0))
    x = net.op("Transpose", net.op("Squeeze", x, [2]), perm=[2, 0, 1])
    for _ in range(2):
        x = net.linear(net.recurrent("LSTM", x, 32, both=True), 64)
    return net.finish(net.op("LogSoftmax", net.linear(x, 37), axis=2))


def keyword_spotting(seed: int = 0) -> onnx.ModelProto:
    """TC-ResNet by tf2onnx: coefficients as channels of 1-D convolutions, each as a map of height 1."""
    net = ExportedBuilder("keyword_spotting", seed)
    x = net.op("Transpose", net.op("Unsqueeze", net.input((1, 98, 40)), [1]), perm=[0, 3, 1, 2])
    x = net.folded(x, 16, (1, 3), pads=(0, 1, 0, 1))
    for channels in (24, 32, 48):
        y = net.folded(x, channels, (1, 9), "Relu", stride=(1, 2))
        y = net.folded(y, channels, (1, 9))
        x = net.relu(net.add(y, net.folded(x, channels, 1, "Relu", stride=(1, 2))))
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
    x = net.placed(net.linear(x, 32))
    for _ in range(2):
        x = net.transformer(x, 4, "gelu", spelt=False)
    x = net.linear(net.op("Reshape", x, [1, 4, -1]), 24)
    x = net.op("Add", net.op("Mul", x, deviation), mean)
    return net.finish(net.op("Transpose", x, perm=[0, 2, 1]))
