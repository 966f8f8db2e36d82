"""Frames in place of a model's image inputs: the conversion of pixels as nodes of the model.

A frame of bytes is dequantised, brought into the model's layout and order, and normalised. Where all channels have
one mean, a whole number, this is one DequantizeLinear: a scale and a zero point. Otherwise it gives the distance
from the middle, and passes fold the rest into the first convolution. Where that has padding, which is not
normalised, it is a layer of its own, or machines of integers put a border in place of padding (passes/frames.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from npuc.errors import DataError, Problem
from npuc.images import yuv
from npuc.images.description import CHANNELS, FRAMES, PIXEL, Description
from npuc.ir import Array
from npuc.onnx_files.subgraphs import nodes_in, tensor_names
from npuc.text.escaping import Names

DEQUANTISES = 10
"""The first opset with DequantizeLinear; before it the host converts."""
OF_PAIRS = Problem(
    "E202", "a value of the frame's chroma is for several pixels", limit="RGB, or YUV with as much chroma as luma",
    remedy='a camera that gives frame = "yuv", or RGB; or let the host convert frames (leave out --strict)',
)  # fmt: skip
"""Why the host computes; in 8 bits the matrix would also round luma to twice its steps."""
DEEP = Problem(
    "E202", "the frame's pixels have more than 8 bits: the machine converts bytes", limit="8 bits",
    remedy="let the host convert frames (leave out --strict), or let the camera give 8 bits",
)  # fmt: skip
OLD = Problem(
    "E202", "the model's opset is too old to convert frames", limit=f"opset {DEQUANTISES}",
    remedy="convert the model: onnx.version_converter; or let the host convert frames (leave out --strict)",
)  # fmt: skip
MIDDLE = 128
"""The zero point of frames without a whole mean: rounded weights add up least errors for values around 0."""


def add_frames(model: onnx.ModelProto, images: Sequence[Description]) -> onnx.ModelProto:
    """The model with frames as inputs where descriptions ask for them; it is modified.

    Raises DataError (E405) for an input that is also an output.
    """
    convert_inputs(model, images)
    return model


def convert_inputs(model: onnx.ModelProto, images: Sequence[Description]) -> dict[str, Problem]:
    """Changes a model as `add_frames`; what the host computes of the conversions, by the tensor, and why."""
    return {name: why for each in images if each.fused for name, why in _frame(model, each).items()}


def _frame(model: onnx.ModelProto, described: Description) -> dict[str, Problem]:
    graph = model.graph
    if any(each.name == described.input for each in graph.output):
        reason = "the description of the input: the model gives it as an output"
        raise DataError("E405", reason, tensor=described.input, remedy='let its description say frame = "float"')
    port = next(each for each in graph.input if each.name == described.input)
    elements = helper.np_dtype_to_tensor_dtype(np.dtype(described.frame_type.dtype))
    port.type.CopyFrom(helper.make_tensor_type_proto(elements, described.frame_shape))
    made = _Nodes(described.input, Names(tensor_names(graph)))
    result = made.convert(described, model)
    for node in nodes_in(graph.node):
        node.input[:] = [result if name == described.input else name for name in node.input]
    nodes = [*made.nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(made.constants)
    return made.hosted


def _of_frame(values: Array, places: Sequence[int], channels: int) -> Array:
    """The mean or deviation of each channel of the frame; of one that the model does not read, the first."""
    found = np.full(channels, values[0])
    found[places] = values
    return found


class _Nodes:
    """Nodes behind a frame."""

    def __init__(self, last: str, names: Names) -> None:
        self.stem, self.last, self.names = last, last, names
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.hosted: dict[str, Problem] = {}

    def convert(self, described: Description, model: onnx.ModelProto) -> str:
        """The tensor that the model reads for the frame."""
        channels, unit, full = CHANNELS[described.order], described.unit, described.given == yuv.FULL
        mean, std = (tuple(each * unit for each in values) for values in (described.mean, described.std))
        dequantised = unit == 1 and any(
            each.version >= DEQUANTISES for each in model.opset_import if each.domain in ("", "ai.onnx")
        )
        axis, in_yuv = described.axis, described.given in yuv.YUV
        wide = [np.broadcast_to(np.array(each, np.float64), len(channels)) for each in (mean, std)]
        whole = len(set(wide[0])) == 1 and 0 <= mean[0] <= PIXEL and mean[0].is_integer() and not full
        zero, step = int(mean[0]) if whole else MIDDLE, float(std[0]) if whole and len(set(wide[1])) == 1 else 1.0
        if in_yuv:
            self._from_yuv(described)
            zero, step = 0, 1.0
        elif dequantised:
            self._add("dequantise", "DequantizeLinear", np.float32(1 / step), np.uint8(zero))
        else:
            self._add("cast", "Cast", to=int(TensorProto.FLOAT))
            zero, step = 0, 1.0
            self.hosted[self.last] = DEEP if unit > 1 else OLD
        if full:
            self._from_full(described, zero)
            return self.last
        if (described.layout == "nhwc" and not in_yuv) != (axis == 3):
            self._add("layout", "Transpose", perm=(0, 3, 1, 2) if axis == 1 else (0, 2, 3, 1))
        places = [*range(len(channels))] if in_yuv else described.places
        wide = [_of_frame(each, places, len(channels if in_yuv else FRAMES[described.given])) for each in wide]
        shape = (1, -1, 1, 1) if axis == 1 else (1, 1, 1, -1)
        if (wide[0] != zero).any():
            self._add("centre", "Sub", (wide[0] - zero).astype(np.float32).reshape(shape))
        if set(wide[1]) != {step}:
            self._add("normalise", "Mul", (1 / wide[1]).astype(np.float32).reshape(shape))
        if places != [*range(len(wide[0]))]:
            self._add("order", "Gather", np.array(places, np.int64), axis=axis)
        return self.last

    def _from_full(self, described: Description, zero: int) -> None:
        """What the model reads, of Y, U and V less `zero`: a matrix, with the model's means and deviations."""
        mean, std = (np.broadcast_to(np.array(each), 3) for each in (described.mean, described.std))
        matrix = yuv.TO_RGB[described.places] / std[:, None]
        bias = matrix @ (zero - yuv.CENTRE) - mean / std
        if described.layout == "nhwc":
            self._add("layout", "Transpose", perm=(0, 3, 1, 2))
        self._add("rgb", "Conv", matrix[..., None, None].astype(np.float32), bias.astype(np.float32))
        if described.axis == 3:
            self._add("last", "Transpose", perm=(0, 2, 3, 1))

    def _from_yuv(self, described: Description) -> None:
        """The channels (N, C, H, W) that the model expects, 0..255, of a frame in YUV: the host computes it."""
        form, (height, width), batch = described.given, described.size, described.shape[0]
        self._add("cast", "Cast", to=int(TensorProto.FLOAT))
        frame, planar = self.last, form in yuv.PLANES
        rows, axis = (height // 2, 1) if planar else (height, 3)
        split = height if planar else 1
        luma, chroma = np.arange(split), np.arange(split, height * 3 // 2 if planar else 2)
        if form == "uyvy":
            luma, chroma = chroma, luma
        self._add("luma", "Gather", luma, axis=axis)
        self._add("luma", "Reshape", np.array((batch, 1, height, width)))
        whole, self.last = self.last, frame
        self._add("chroma", "Gather", chroma, axis=axis)
        self._add("chroma", "Reshape", np.array((batch, rows, width // 2, 2)))
        self._add("chroma", "Transpose", perm=(0, 3, 1, 2))
        self._add("chroma", "Reshape", np.array((batch, 2, rows, 1, width // 2, 1)))
        self._add("chroma", "Expand", np.array((batch, 2, rows, height // rows, width // 2, 2)))
        self._add("chroma", "Reshape", np.array((batch, 2, height, width)))
        self._add("yuv", "Concat", before=whole, axis=1)
        swapped = [0, 2, 1] if yuv.PLANES.get(form, False) else [0, 1, 2]
        matrix = yuv.TO_RGB[described.places]
        weights = matrix[:, swapped, None, None].astype(np.float32)
        self._add("rgb", "Conv", weights, (-matrix @ yuv.CENTRE).astype(np.float32))
        self._add("rgb", "Max", np.float32(0))
        self._add("rgb", "Min", np.float32(PIXEL))
        self.hosted = {name: OF_PAIRS for node in self.nodes for name in node.output}

    def _add(
        self, what: str, op: str, *constants: Array | np.generic, before: str | None = None, **attributes: Any
    ) -> None:
        """Adds a node on the last result. before: a tensor that it reads first."""
        names = [self.names.new(f"{self.stem}/{what}/{at}") for at in range(len(constants))]
        self.constants += [
            numpy_helper.from_array(np.asarray(x), name) for x, name in zip(constants, names, strict=True)
        ]
        result = self.names.new(f"{self.stem}/{what}")
        self.nodes.append(
            helper.make_node(
                op, [*([before] if before else []), self.last, *names], [result], result, **attributes
            )
        )
        self.last = result
