"""Frames in place of a model's image inputs: the conversion of pixels as nodes of the model.

A frame of bytes is dequantised, brought into the model's layout and order, and normalised. Where all channels have
one mean, a whole number, this is one DequantizeLinear: a scale and a zero point. Otherwise it gives the distance
from the middle, and passes fold the rest into the first convolution; where that has padding, which is not
normalised, it is a layer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from npuc.errors import DataError
from npuc.images import yuv
from npuc.images.description import CHANNELS, PIXEL, Description
from npuc.ir import Array
from npuc.onnx_files.subgraphs import nodes_in, tensor_names
from npuc.text.escaping import Names

DEQUANTISES = 10
"""The first opset with DequantizeLinear; before it the host converts."""
OF_YUV = "converts a frame from YUV"
"""The doc string of nodes that the host computes: in 8 bits the matrix would round luma to twice its steps."""
MIDDLE = 128
"""The zero point of frames without a whole mean: rounded weights add up least errors for values around 0."""


def add_frames(model: onnx.ModelProto, images: Sequence[Description]) -> onnx.ModelProto:
    """The model with frames as inputs where descriptions ask for them; it is modified.

    Raises DataError (E405) for an input that is also an output.
    """
    for each in images:
        if each.fused:
            _frame(model, each)
    return model


def _frame(model: onnx.ModelProto, described: Description) -> None:
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


class _Nodes:
    """Nodes behind a frame."""

    def __init__(self, last: str, names: Names) -> None:
        self.stem, self.last, self.names = last, last, names
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def convert(self, described: Description, model: onnx.ModelProto) -> str:
        """The tensor that the model reads for the frame."""
        channels, unit = CHANNELS[described.order], described.unit
        mean, std = (tuple(each * unit for each in values) for values in (described.mean, described.std))
        dequantised = unit == 1 and any(
            each.version >= DEQUANTISES for each in model.opset_import if each.domain in ("", "ai.onnx")
        )
        axis, in_yuv = described.axis, described.given in yuv.YUV
        wide = [np.broadcast_to(np.array(each, np.float64), len(channels)) for each in (mean, std)]
        whole = len(set(wide[0])) == 1 and 0 <= mean[0] <= PIXEL and mean[0].is_integer()
        zero, step = int(mean[0]) if whole else MIDDLE, float(std[0]) if whole and len(set(wide[1])) == 1 else 1.0
        if in_yuv:
            self._from_yuv(described)
            zero, step = 0, 1.0
        elif dequantised:
            self._add("dequantise", "DequantizeLinear", np.float32(1 / step), np.uint8(zero))
        else:
            self._add("cast", "Cast", to=int(TensorProto.FLOAT))
            zero, step = 0, 1.0
        if (described.layout == "nhwc" and not in_yuv) != (axis == 3):
            self._add("layout", "Transpose", perm=(0, 3, 1, 2) if axis == 1 else (0, 2, 3, 1))
        if not in_yuv and described.places != [*range(len(CHANNELS[described.given]))]:
            self._add("order", "Gather", np.array(described.places, np.int64), axis=axis)
        shape = (1, -1, 1, 1) if axis == 1 else (1, 1, 1, -1)
        if (wide[0] != zero).any():
            self._add("centre", "Sub", (wide[0] - zero).astype(np.float32).reshape(shape))
        if set(wide[1]) != {step}:
            self._add("normalise", "Mul", (1 / wide[1]).astype(np.float32).reshape(shape))
        return self.last

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
        for node in self.nodes:
            node.doc_string = OF_YUV

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
