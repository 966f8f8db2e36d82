"""The sums of transformed weights in standard ONNX operators, each exact in float32 or double.

Steps: padding; phases as channels; C^T d C as a grouped Conv with stride 2; rounding; a product for each of the 16
positions; A^T m A as one product; tiles back to a map; cropping to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import PADDING
from npuc.ops.integer_onnx import DOUBLE, FLOAT
from npuc.targets.nvdla.arithmetic.attributes import PRA_TRUNCATE
from npuc.targets.nvdla.arithmetic.rounding_onnx import clipped, half_away
from npuc.targets.nvdla.arithmetic.transformed import DATA, RESULT, STEP, around, by_phase, strides
from npuc.targets.nvdla.formats.winograd import TILE, extended_extent

if TYPE_CHECKING:
    from npuc.onnx_files.export import Emitter

POSITIONS = TILE * TILE


def winograd_sums(node: Node, emit: Emitter, u: Array) -> str:
    """The sums (1, K, Ho, Wo) of a node with transformed weights, in double."""
    result = emit.graph.shape(node.output)
    weights = by_phase(u, *strides(node))
    kernels, channels, *_ = weights.shape
    tiles = [(extended_extent(extent) - TILE) // STEP + 1 for extent in result[2:]]
    taps = np.tile(np.einsum("ip,jq->ijpq", DATA, DATA).reshape(POSITIONS, 1, TILE, TILE), (channels, 1, 1, 1))
    taps = emit.constant(taps.astype(np.float32), "taps")
    data = emit.step("Conv", _data(node, emit), taps, group=channels, strides=(STEP, STEP))
    shifted = emit.step("Mul", data, emit.constant(np.float32(2.0 ** -PRA_TRUNCATE(node))))
    limits = np.iinfo(emit.graph.tensors[node.inputs[0]].dtype)
    t = clipped(emit, half_away(emit, shifted, np.float32), limits.min, limits.max, np.float32)
    t = emit.step("Cast", t, to=DOUBLE)
    t = _arranged(emit, t, (channels, POSITIONS, tiles[0] * tiles[1]), (1, 0, 2))
    factors = weights.reshape(kernels, channels, POSITIONS).transpose(2, 0, 1).astype(np.float64)
    products = emit.step("MatMul", emit.constant(factors, "u"), t)
    back = emit.constant(np.kron(RESULT, RESULT).astype(np.float64), "back")
    m = emit.step("MatMul", back, _shaped(emit, products, (POSITIONS, -1)))
    rows = _arranged(emit, m, (STEP, STEP, kernels, *tiles), (2, 3, 0, 4, 1))
    return _cut(emit, _shaped(emit, rows, (1, kernels, *(STEP * each for each in tiles))), result[2:])


def _data(node: Node, emit: Emitter) -> str:
    """The padded data (1, strides * C, H, W) in float32, phases as channels."""
    x, result = emit.graph.shape(node.inputs[0]), emit.graph.shape(node.output)
    (top, bottom), (left, right) = around(node, x, result)
    pads = emit.constant(np.array([0, 0, top, left, 0, 0, bottom, right]), "pads")
    value = emit.constant(np.float32(PADDING(node)), "value")
    padded = emit.step("Pad", emit.step("Cast", node.inputs[0], to=FLOAT), pads, value)
    stride_y, stride_x = strides(node)
    height, width = (extended_extent(extent) for extent in result[2:])
    split = _arranged(emit, padded, (x[1], height, stride_y, width, stride_x), (2, 4, 0, 1, 3))
    return _shaped(emit, split, (1, x[1] * stride_y * stride_x, height, width))


def _shaped(emit: Emitter, x: str, shape: Sequence[int]) -> str:
    return emit.step("Reshape", x, emit.constant(np.array(shape, np.int64), "shape"))


def _arranged(emit: Emitter, x: str, shape: Sequence[int], order: tuple[int, ...]) -> str:
    """x reshaped, with its axes then permuted."""
    return emit.step("Transpose", _shaped(emit, x, shape), perm=order)


def _cut(emit: Emitter, x: str, extents: Sequence[int]) -> str:
    """x cropped to its first rows and columns."""
    limits = ([0, 0], list(extents), [2, 3])
    return emit.step("Slice", x, *(emit.constant(np.array(each, np.int64), "limit") for each in limits))
