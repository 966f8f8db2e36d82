"""NVDLA's layers as operators: what convolution, SDP and PDP compute, exact on int8 and int16, and in fp16.

A layer is one pass through SDP: accumulators of a convolution, or the elements of a map, go through two stages
(X1, X2), an optional table, and the output converter. Every right shift rounds half away from zero, then
saturates. Layers in fp16 have the same form without shifts and converter; their tensors are float32 here, as on
the host, and only the functional model has the hardware's rounding.

| operator | inputs |
|--|--|
| NvConv | x, weights (Co, Ci/group, Hk, Wk), operands, table |
| NvElementwise | x, operands, table |
| NvAveragePool | x |
| NvLrn | x, entries of the tables LE and LO |

Operands: X1's adder, X1's multiplier, X2's adder and X2's multiplier, each a 16-bit constant (1, 1, 1), (C, 1, 1)
or (C, H, W), or a tensor (1, C, 1, 1) or (1, C, H, W); the empty string if absent. A table of int8 has a result
for every input; otherwise it contains the entries of LE and LO, which are placed by attributes.

Winograd can transform the weights of a convolution before they are rounded. G g G^T has fractions and a larger
range than g; C^T d C has up to four times the range of d. As integers both must be rounded: the weights G g G^T
with a scale of their own, the data by PRA_TRUNCATE. The result differs from that of rounded weights, so NvConv has
attributes for it: `winograd` = 1, `pra_truncate`, and `kernel_shape` for the window. Its weights are
(K, C, 4 * stride_y, 4 * stride_x): phase by phase, 4x4 positions.

Source: NVDLA's own simulators, which reproduce the golden results of its test programs; Winograd in integers as on
the nv_full RTL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops import OPS
from npuc.ops.attributes import KERNEL_SHAPE, PADDING, SIZE, STRIDES, Attribute
from npuc.ops.integer import convolve
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.normalisation import ResponseTables, square_sums
from npuc.targets.nvdla.formats.precision import fp17_of_bits
from npuc.targets.nvdla.formats.weights import TILE, extend_kernels, extended_extent, transform_kernels
from npuc.targets.nvdla.model.arithmetic import RECIPROCAL_BITS, shift_right

IDENTITY = (0, 1, 0)
"""The converter that changes nothing: offset, scale, shift."""
CONVERTER = Attribute[tuple[int, ...]](
    "converter", "integers", "offset, scale and shift behind the stages", IDENTITY, per="3", internal=True
)
RESULT = Attribute[str]("result", "text", "the number format of the result; empty: that of x", "", internal=True)
LE, LO = (
    Attribute[tuple[float, ...]](name, "numbers", f"where table {name.upper()} lies", (), per="4", internal=True)
    for name in ("le", "lo")
)
WINOGRAD = Attribute[bool]("winograd", "flag", "its weights are transformed", False, internal=True)
TRUNCATE = Attribute[int]("truncate", "integer", "the right shift of sums", 0, 0, internal=True)
PRA_TRUNCATE = Attribute[int](
    "pra_truncate", "integer", "the right shift of transformed data", 0, 0, internal=True
)
SHARING = Attribute[int | None](
    "sharing", "integer", "kernels that share an atom; None: as many as it has lanes", None, 1, internal=True
)
RECIPROCALS = Attribute[tuple[int, ...]](
    "reciprocals", "integers", "what sums are multiplied by, along columns and rows", per="2", internal=True
)
ZERO = Attribute[int]("zero", "integer", "the integer that stands for 0", 0, internal=True)
ALU = ("none", "sum", "max", "min")
INT32 = (-(1 << 31), (1 << 31) - 1)


@frozen
class SdpStage:
    """X1 or X2: adder (or comparison), multiplier, shift, ReLU; all fields are integers, as in attributes."""

    alu: int = 0
    """Index into ALU."""
    alu_shift: int = 0
    """Left shift of the adder's operand."""
    multiply: int = 0
    prelu: int = 0
    """Positive values bypass multiplier and shift."""
    shift: int = 0
    """Right shift after the multiplier."""
    relu: int = 0

    @property
    def idle(self) -> bool:
        """Whether the stage changes nothing."""
        return not (self.alu or self.multiply or self.relu)

    def as_attr(self) -> tuple[int, ...]:
        """The stage as a node's attribute."""
        return (self.alu, self.alu_shift, self.multiply, self.prelu, self.shift, self.relu)

    @classmethod
    def attribute(cls, name: str, meaning: str) -> Attribute[tuple[int, ...]]:
        """The attribute that represents a stage."""
        return Attribute(name, "integers", meaning, astuple(cls()), per=str(len(fields(cls))), internal=True)


IDLE = SdpStage()
X1, X2 = SdpStage.attribute("x1", "the first stage"), SdpStage.attribute("x2", "the second stage")


def stages(node: Node) -> tuple[SdpStage, SdpStage]:
    """X1 and X2 of a node."""
    return SdpStage(*X1(node)), SdpStage(*X2(node))


def converter(node: Node) -> tuple[int, int, int]:
    """Offset, scale and shift of the output converter."""
    offset, scale, shift = CONVERTER(node)
    return offset, scale, shift


def operands(node: Node) -> tuple[str, str, str, str, str]:
    """The names of X1's adder operand and multiplier, X2's, and the table."""
    found = node.inputs[2:] if node.op == "NvConv" else node.inputs[1:]
    first, second, third, fourth, table = (*found, *("",) * (5 - len(found)))
    return first, second, third, fourth, table


LE_ENTRIES, LO_ENTRIES = 65, 257


@frozen
class TablePlacement:
    """The placement of a linear table of EW or CDP: entries at start, start + 2^select, ..; lines outside."""

    start: float
    select: int
    beyond: float = 0.0
    """The slope beyond the last entry times 2^shift; before the first one it is 0."""
    shift: int = 0

    def as_attr(self) -> tuple[float, ...]:
        """The table as a node's attribute."""
        return (self.start, self.select, self.beyond, self.shift)

    def end(self, entries: int) -> float:
        """The input of the last entry."""
        return self.start + (entries - 1) * 2.0**self.select


def tables(node: Node) -> tuple[TablePlacement, TablePlacement] | None:
    """LE and LO of a node whose tables interpolate; None for any other."""
    if not LO(node):
        return None
    le, lo = (
        TablePlacement(start, int(select), beyond, int(shift))
        for start, select, beyond, shift in (LE(node), LO(node))
    )
    return le, lo


def interpolate_tables(placed: tuple[TablePlacement, TablePlacement], x: Array, entries: Array) -> Array:
    """Values of LE in its range, of LO elsewhere: int64 rounded half away from zero, or real."""
    le, lo = (_interpolate_table(*each, x) for each in zip(placed, np.split(entries, [LE_ENTRIES]), strict=True))
    return np.where((x > placed[0].start) & (x < placed[0].end(LE_ENTRIES)), le, lo)


def _interpolate_table(table: TablePlacement, entries: Array, x: Array) -> Array:
    values = np.interp(x, table.start + 2.0**table.select * np.arange(len(entries)), entries.astype(np.float64))
    further = np.maximum(x - table.end(len(entries)), 0) * table.beyond * 2.0**-table.shift
    return values + further if _is_real(x) else _round_half_away(values) + _round_half_away(further)


def _round_half_away(values: Array) -> Array:
    return (np.sign(values) * np.floor(np.abs(values) + 0.5)).astype(np.int64)


def apply_stage(x: Array, stage: SdpStage, alu: Array, mul: Array) -> Array:
    """Values through a stage, int64 or real; operands broadcast against x and are empty if absent."""
    match ALU[stage.alu]:
        case "sum":
            x = x + _shift_operand(alu, stage.alu_shift)
        case "max":
            x = np.maximum(x, _shift_operand(alu, stage.alu_shift))
        case "min":
            x = np.minimum(x, _shift_operand(alu, stage.alu_shift))
        case _:
            pass
    real = _is_real(x)
    if stage.multiply:
        product = x * mul if real else shift_right(x * mul.astype(np.int64), stage.shift)
        x = np.where(x > 0, x, product) if stage.prelu else product
    x = x if real else np.clip(x, *INT32)
    return np.maximum(x, 0) if stage.relu else x


def _is_real(x: Array) -> bool:
    return bool(np.issubdtype(x.dtype, np.floating))


def _shift_operand(operand: Array, shift: int) -> Array:
    if operand.dtype.kind == "f":
        return operand
    return np.clip(operand.astype(np.int64) << shift, *INT32)


def _apply_stages(node: Node, x: Array, inputs: Sequence[Array], dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """The result from accumulators or elements: X1, X2, table, converter."""
    for stage, alu, mul in zip(stages(node), inputs[0:4:2], inputs[1:4:2], strict=True):
        x = apply_stage(x, stage, alu, mul)
    if len(inputs) > 4 and inputs[4].size:
        x = _look_up(node, x, inputs[4])
    if _is_real(x):
        return (x.astype(dtype),)
    offset, scale, shift = converter(node)
    return (_saturate(shift_right((x - offset) * scale, shift), dtype),)


def _look_up(node: Node, x: Array, entries: Array) -> Array:
    placed = tables(node)
    if placed is not None:
        return interpolate_tables(placed, x, entries)
    return entries.astype(np.int64)[np.clip(x, -128, 127) + 128]


def _saturate(x: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(x, limits.min, limits.max).astype(dtype)


def _fill_absent(inputs: Sequence[Array]) -> list[Array]:
    return [*inputs, *[np.empty(0, np.int16)] * (5 - len(inputs))]


def _sums(node: Node, x: Array, w: Array) -> Array:
    if _is_real(x) and WINOGRAD(node):
        return _winograd_sums(node, x, w).astype(x.dtype)
    if _is_real(x):
        (found,) = OPS["Conv"].compute(replace(node, op="Conv", inputs=node.inputs[:2]), [x, w.astype(x.dtype)])
        return found
    summed = _winograd_sums if WINOGRAD(node) else convolve
    return shift_right(summed(node, x, w).astype(np.int64), TRUNCATE(node))


def conv(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The sums of a convolution, and the pass behind it."""
    x, w, *rest = inputs
    return _apply_stages(node, _sums(node, x, w), _fill_absent(rest), x.dtype)


def elementwise(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A map and the pass behind it."""
    x = inputs[0] if _is_real(inputs[0]) else inputs[0].astype(np.int64)
    return _apply_stages(node, x, _fill_absent(inputs[1:]), np.dtype(RESULT(node) or inputs[0].dtype))


def average(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Sums of windows, times both reciprocals."""
    x = inputs[0]
    taps = np.ones((x.shape[1], 1, *KERNEL_SHAPE(node)), np.int8)
    total = _sums(node.with_attrs(group=x.shape[1]), x, taps)
    for reciprocal in RECIPROCALS(node):
        total = (
            total * fp17_of_bits(reciprocal) if _is_real(x) else shift_right(total * reciprocal, RECIPROCAL_BITS)
        )
    return (total.astype(x.dtype) if _is_real(x) else _saturate(total, x.dtype),)


def lrn(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The tables' value at a sum of squares, times the input."""
    if _is_real(inputs[0]):
        placed = tables(node)
        assert placed is not None
        sums = square_sums(inputs[0].astype(np.float64), SIZE(node))
        return (
            (interpolate_tables(placed, sums, np.concatenate(inputs[1:3])) * inputs[0]).astype(inputs[0].dtype),
        )
    centred = inputs[0].astype(np.int64) - ZERO(node)
    product = lrn_tables(node, inputs[1], inputs[2])(square_sums(centred, SIZE(node))) * centred
    offset, scale, shift = converter(node)
    return (_saturate(shift_right((product - offset) * scale, shift), inputs[0].dtype),)


def lrn_tables(node: Node, le: Array, lo: Array) -> ResponseTables:
    """The tables of an integer normalisation."""
    placed = tables(node)
    assert placed is not None
    return ResponseTables(tuple(map(int, le)), tuple(map(int, lo)), placed[0].select, placed[1].select)


DATA_TRANSFORM = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
"""C^T, which transforms the data from both sides."""
RESULT_TRANSFORM = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
"""A^T, which transforms the sums of products back."""
TRANSFORM_GAIN = 4
"""The factor by which mean (at one position) and variance (at every one) of C^T d C exceed those of d."""
TILE_STEP = 2
"""Rows and columns of a tile's results."""


def kernel_extents(node: Node, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of a convolution's kernel, even if its weights are transformed."""
    return KERNEL_SHAPE(node) or weights[2:]


def strides_of(node: Node) -> tuple[int, int]:
    """The strides along rows and columns."""
    along, across = STRIDES(node) or (1, 1)
    return along, across


def transform_weights(w: Array, stride_y: int, stride_x: int) -> Array:
    """G g G^T of every phase of weights (K, C, R, S): float32 (K, C, 4 * stride_y, 4 * stride_x)."""
    kernels, channels, *_ = w.shape
    u = transform_kernels(extend_kernels(w, stride_y, stride_x))
    split = u.reshape(kernels, stride_y, stride_x, channels, TILE, TILE)
    return split.transpose(0, 3, 1, 4, 2, 5).reshape(kernels, channels, stride_y * TILE, stride_x * TILE)


def split_phases(u: Array, stride_y: int, stride_x: int) -> Array:
    """The same weights with phases as channels: (K, strides * C, 4, 4)."""
    kernels, channels, *_ = u.shape
    split = u.reshape(kernels, channels, stride_y, TILE, stride_x, TILE)
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(kernels, -1, TILE, TILE)


def constant_positions(stride_y: int, stride_x: int) -> Array:
    """The positions (4 * stride_y, 4 * stride_x) of the weights that multiply the data's constant part."""
    one = np.zeros((TILE, TILE), bool)
    one[1, 1] = True
    return np.tile(one, (stride_y, stride_x))


def tile_padding(node: Node, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Padding before and after rows and columns of x, so that tiles cover the result y; negative: cropping."""
    window = window_of(node, KERNEL_SHAPE(node))
    before = window.begins
    whole = [extended_extent(count) * stride for count, stride in zip(y[2:], window.strides, strict=True)]
    behind = [size - extent - begin for size, extent, begin in zip(whole, x[2:], before, strict=True)]
    return (before[0], behind[0]), (before[1], behind[1])


def _winograd_sums(node: Node, x: Array, u: Array) -> Array:
    """Sums (N, K, Ho, Wo), int64 or real, of data (N, C, H, W) and transformed weights."""
    stride_y, stride_x = strides_of(node)
    y = window_of(node, KERNEL_SHAPE(node)).extents(node, x.shape[2:])
    rows, columns = tile_padding(node, x.shape, (*x.shape[:2], *y))
    pads = [(0, 0), (0, 0), (rows[0], max(rows[1], 0)), (columns[0], max(columns[1], 0))]
    real = np.issubdtype(x.dtype, np.floating)
    padded = np.pad(x, pads, constant_values=PADDING(node)).astype(np.float64 if real else np.int64)
    height, width = (extended_extent(count) for count in y)
    cut = padded[:, :, : height * stride_y, : width * stride_x]
    split = cut.reshape(len(x), x.shape[1], height, stride_y, width, stride_x).transpose(0, 3, 5, 1, 2, 4)
    tiles = np.lib.stride_tricks.sliding_window_view(
        split.reshape(len(x), -1, height, width), (TILE, TILE), (2, 3)
    )
    d = tiles[:, :, ::TILE_STEP, ::TILE_STEP]
    t = np.einsum("ip,nctupq,jq->nctuij", DATA_TRANSFORM, d, DATA_TRANSFORM, optimize=True)
    if not real:
        limits = np.iinfo(x.dtype)
        t = np.clip(shift_right(t, PRA_TRUNCATE(node)), limits.min, limits.max)
    m = np.einsum("nctuij,kcij->nktuij", t, split_phases(u, stride_y, stride_x).astype(t.dtype), optimize=True)
    results = np.einsum("ai,nktuij,bj->nktaub", RESULT_TRANSFORM, m, RESULT_TRANSFORM, optimize=True)
    whole = results.reshape(len(x), len(u), TILE_STEP * results.shape[2], -1)
    return whole[:, :, : y[0], : y[1]]
