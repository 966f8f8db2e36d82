"""Every description of a frame, for every target: the program on bytes against the model's floats, and by hand.

The model is one convolution with weights of whole 1/128. Where the mean is a whole number and the deviation a
power of two, for all channels, integers decide the result: sums of pixels less the mean, shifted. Otherwise it is
at most a step from what onnxruntime gives for the floats, which numpy computes from the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

import npuc as api
from npuc.images import yuv
from npuc.images.description import CHANNELS
from npuc.ir import Array
from tests.onnx_models import network

PROCESSORS = (
    ("easynpu", "int8"), ("nvdla-small", "int8"), ("nvdla-large", "int8"), ("nvdla-full", "int8"),
    ("bm1684", "int8"), ("nvdla-full", "int16"), ("nvdla-full", "fp16"), ("bm1684", "fp32"),
)  # fmt: skip
COLOURS = ("rgb", "bgr", "rgba", "bgra", yuv.FULL, *yuv.YUV)
FRAMES = {
    "rgb": COLOURS, "bgr": COLOURS, "rgba": ("rgba", "bgra"), "bgra": ("rgba", "bgra"),
    "gray": ("gray",),
}  # fmt: skip
"""The frames that hold the channels of each order."""
MEANS: dict[str, tuple[Any, Any]] = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "caffe-bgr": ((103.939, 116.779, 123.68), 1.0),
    "tf": (127.5, 127.5), "yolo": (0.0, 255.0), "mtcnn": (127.5, 128.0), "none": (0.0, 1.0),
    "0": (0.0, 64.0), "103.9": (103.9, 64.0), "127.5": (127.5, 64.0), "255": (255.0, 64.0),
}  # fmt: skip
"""Mean and deviation: those of the presets as their sources give them, and those that borders are tried with."""
BEFORE = ("", "Pad", "Identity", "Mul")
"""A node before the convolution."""
SIZE = 8


@dataclass(frozen=True)
class Case:
    """A target, a description, and a model."""

    processor: tuple[str, str]
    order: str
    frame: str
    layout: str
    means: str
    pad: int
    last: bool
    before: str = ""
    bits: int = 8

    def __str__(self) -> str:
        axes = "nhwc" if self.last else "nchw"
        frame, before = f"{self.frame} {self.layout}, {self.bits} bits", f"{self.before}, " if self.before else ""
        model = f"{self.order} {axes}, {self.means}, {before}pad {self.pad}"
        return f"{'/'.join(self.processor)}: {frame}, to {model}"

    @property
    def description(self) -> dict[str, Any]:
        """The keys of the description, without a preset."""
        mean, std = MEANS[self.means]
        axes = {} if self.frame in yuv.YUV else {"layout": self.layout, "bits": self.bits}
        return {"order": self.order, "frame": self.frame, "mean": mean, "std": std, **axes}


def covering(seed: int = 0) -> Iterator[Case]:
    """Every target x order x frame x layout x mean once, with one of the others, which a seed draws."""
    seen = set[tuple[Any, ...]]()
    for each in cases(seed):
        key = each.processor, each.order, each.frame, each.layout, each.means
        if key not in seen:
            seen.add(key)
            yield each


def cases(seed: int = 0) -> Iterator[Case]:
    """All cases, in an order that a seed draws."""
    axes = (PROCESSORS, FRAMES, ("nhwc", "nchw"), MEANS, (0, 1, 3), (False, True), BEFORE, (8, 12))
    every = [
        Case(processor, order, frame, layout, means, pad, last, before, bits)
        for processor, order, layout, means, pad, last, before, bits in product(*axes)
        for frame in FRAMES[order]
        if _is_sound(order, frame, layout, means, bits)
    ]
    for at in np.random.default_rng(seed).permutation(len(every)):
        yield every[at]


def _is_sound(order: str, frame: str, layout: str, means: str, bits: int) -> bool:
    wide = isinstance(MEANS[means][0], tuple)
    fits = frame not in yuv.YUV or layout == "nhwc"
    return (not wide or len(order) == 3) and fits and (bits == 8 or frame not in yuv.ALL)


def check(case: Case, folder: Path) -> str | None:
    """What is wrong with a case; None if nothing is."""
    random = np.random.default_rng(crc32(str(case).encode()))
    channels = 1 if case.order == "gray" else len(case.order)
    weights = random.integers(-127, 128, (4, channels, 3, 3))
    weights[:, 0, 0, 0] = 127
    model = _model(case, folder, weights)
    frames = _frames(case, random)
    exact = _floats(case, frames, model)
    step = 2.0 ** float(np.ceil(np.log2(np.abs(exact).max() / LARGEST.get(case.processor[1], 64))))
    target, precision = case.processor
    table = {"y": {"scale": step}} if precision in LARGEST else {}
    made = api.compile(
        model, target, precision=precision, calibration={"x": frames}, input=case.description, level="0",
        proof="off", **({"scales_in": table} if table else {}),
    )  # fmt: skip
    found = made.run({"x": frames})["y"].reshape(exact.shape)
    return _difference(case, found, exact, step)


LARGEST = {"int8": 64, "int16": 1 << 13}
"""At most so many steps are the largest result: what inputs and weights are rounded by is less than a step."""


def _difference(case: Case, found: Array, exact: Array, step: float) -> str | None:
    """How far results are off, if too far: beyond rounding where integers decide them, otherwise a step more."""
    target, precision = case.processor
    mean, std = MEANS[case.means]
    decided = not isinstance(mean, tuple) and mean.is_integer() and np.log2(std).is_integer()
    decided = decided and case.bits == 8 and case.before != "Mul" and case.frame in ("gray", *CHANNELS)
    decided = decided and not (target == "bm1684" and mean == 255) and precision != "int16"
    if precision in FLOATS:
        step = FLOATS[precision] * float(np.abs(exact).max())
        most = 1.5 if not decided else 0.5 if precision == "fp16" else 0
    else:
        most = 0.5 if decided else 1.5 if case.bits == 8 else 2  # the host gives the deeper ones a sign, too
    off = float(np.abs(found - exact).max()) / step
    return f"{off:.2f} steps" if off > most + 1e-6 else None


FLOATS = {"fp32": 2.0**-20, "fp16": 2.0**-10}
"""A step relative to the largest result: of fp32, that of a sum of some tens."""


def _frames(case: Case, random: np.random.Generator) -> Array:
    """Noise, and frames of one value, which make borders all that differs: (samples, 1, *shape of a frame)."""
    if case.frame in yuv.YUV:
        shape = yuv.frame_shape(case.frame, (SIZE, SIZE))
    else:
        channels = 1 if case.frame == "gray" else len(case.frame)
        shape = (SIZE, SIZE, channels) if case.layout == "nhwc" else (channels, SIZE, SIZE)
    noise = random.integers(0, 256 << (case.bits - 8), (3, 1, *shape))
    plain = np.stack([np.full((1, *shape), value << (case.bits - 8)) for value in (0, 124, 255)])
    return np.concatenate([noise, plain]).astype(np.uint8 if case.bits == 8 else np.uint16)


def _floats(case: Case, frames: Array, model: Path) -> Array:
    """The model's outputs under onnxruntime, its inputs computed in float64, one channel after the other."""
    if case.frame in yuv.YUV:
        planes, letters = np.moveaxis(yuv.to_rgb(frames, case.frame), -1, -3), "rgb"
    elif case.frame == yuv.FULL:
        pixels = frames if case.layout == "nhwc" else np.moveaxis(frames, -3, -1)
        planes, letters = np.moveaxis((pixels - yuv.CENTRE) @ yuv.TO_RGB.T, -1, -3), "rgb"
    else:
        letters = case.frame if case.frame != "gray" else "y"
        planes = (frames if case.layout == "nchw" else np.moveaxis(frames, -1, -3)) / 2 ** (case.bits - 8)
    order = case.order if case.order != "gray" else "y"
    wide = [np.broadcast_to(np.float64(each), len(order)) for each in MEANS[case.means]]
    rows = [(planes[..., letters.index(c), :, :] - m) / s for c, m, s in zip(order, *wide, strict=True)]
    values = np.stack(rows, axis=-1 if case.last else -3).astype(np.float32)
    session = ort.InferenceSession(str(model))
    return np.stack([np.asarray(session.run(None, {"x": each})[0]) for each in values])


def _model(case: Case, folder: Path, weights: Array) -> Path:
    """Perhaps a Transpose, perhaps another node, and the convolution."""
    channels = weights.shape[1]
    shape = (1, SIZE, SIZE, channels) if case.last else (1, channels, SIZE, SIZE)
    constants, nodes, last = {"w": (weights / 128).astype(np.float32)}, list[onnx.NodeProto](), "x"
    if case.last:
        nodes, last = [helper.make_node("Transpose", ["x"], ["t"], "t", perm=[0, 3, 1, 2])], "t"
    if case.before:
        more = {"Pad": np.array([0, 0, 1, 0, 0, 0, 0, 2]), "Mul": np.float32(0.5)}.get(case.before)
        constants |= {} if more is None else {"m": np.asarray(more)}
        nodes.append(helper.make_node(case.before, [last, *(["m"] if more is not None else [])], ["n"], "n"))
        last = "n"
    nodes.append(helper.make_node("Conv", [last, "w"], ["y"], "conv", pads=[case.pad] * 4))
    onnx.save(onnx.shape_inference.infer_shapes(network(nodes, shape, constants)), folder / "net.onnx")
    return folder / "net.onnx"
