"""Contents of tables: functions of one element in EW's, local response normalisation in CDP's.

EW, int8: one entry per input value. int16 and fp16: LO has 257 entries over the range where the function bends, LE
has 65 over the middle of it; the tables interpolate between entries and continue as straight lines outside. CDP's
output converter is derived from the scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Array, Attr, Node
from npuc.ops import OPS
from npuc.ops.attributes import LRN_ALPHA, LRN_BETA, LRN_BIAS, SIZE
from npuc.quantize.arithmetic.tables import wanted_values
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.fixed_point import MOST_CONVERTER_SHIFT, factor
from npuc.targets.nvdla.arithmetic.integer import LE_ENTRIES, LO_ENTRIES, TablePlacement, interpolate_tables
from npuc.targets.nvdla.arithmetic.normalisation import (
    LOOKED_AT,
    MOST_ENTRY,
    START,
    ResponseTables,
    largest_effect,
    tables_of,
)
from npuc.targets.nvdla.formats.precision import FP16_MOST
from npuc.targets.nvdla.quantisation.builder import PassDraft
from npuc.targets.nvdla.quantisation.rounding import half


@frozen
class Shape:
    """Binary logarithms of the steps of LO and LE, both centred on 0; the slope beyond the last entry."""

    lo: int
    le: int
    beyond: float = 0.0


INTERPOLATED: Mapping[str, Shape] = {
    "Sigmoid": Shape(-4, -5),
    "Tanh": Shape(-5, -6),
    "Erf": Shape(-5, -6),
    "HardSwish": Shape(-5, -6, 1.0),
    "Swish": Shape(-3, -4, 1.0),
    "Gelu": Shape(-3, -5, 1.0),
    "Mish": Shape(-3, -5, 1.0),
    "Softplus": Shape(-3, -4, 1.0),
    "Elu": Shape(-4, -5, 1.0),
}
"""Functions that interpolation approximates well (errors: docs/nvdla.md); all are flat before the first entry."""


def every_value(node: Node, x: Steps, y: Steps) -> PassDraft:
    """The pass of a function on int8: results (256,) for the inputs -128..127."""
    with np.errstate(invalid="ignore"):
        wanted = np.rint(wanted_values(node, x.scale, y.scale, x.zero, y.zero))
    if np.isnan(wanted).any():
        wanted = np.nan_to_num(wanted, nan=0.0)
    values: Array = wanted.clip(-128, 127).astype(np.int16)
    return PassDraft(operands={"table": values})


def half_entries(node: Node) -> PassDraft:
    """The pass of a function in fp16."""
    shape = INTERPOLATED[node.op]
    lo, le = _centre(shape.lo, LO_ENTRIES), _centre(shape.le, LE_ENTRIES)
    entries = np.concatenate([_values(node, le, LE_ENTRIES), _values(node, lo, LO_ENTRIES)])
    placed = TablePlacement(lo.start, lo.select, shape.beyond)
    return PassDraft(
        operands={"table": entries.astype(np.float16)}, attrs={"le": le.as_attr(), "lo": placed.as_attr()}
    )


MOST_SELECT = 8
"""LO then covers all of int16."""
MOST_SLOPE_SHIFT = 15


def wide_entries(node: Node, x: Steps, y: Steps) -> PassDraft:
    """The pass of a function on int16: tables no coarser than in fp16, and finer if x has a smaller range."""
    shape = INTERPOLATED[node.op]
    select = int(np.clip(np.rint(shape.lo - np.log2(x.scale)), 0, MOST_SELECT))
    lo, le = _centre(select, LO_ENTRIES), _centre(max(select + shape.le - shape.lo, 0), LE_ENTRIES)
    parts = [_values(node, each, count, x.scale) for each, count in ((le, LE_ENTRIES), (lo, LO_ENTRIES))]
    entries = np.rint(np.concatenate(parts) / y.scale).clip(-32768, 32767).astype(np.int16)
    slope, shift = factor(shape.beyond * x.scale / y.scale, MOST_SLOPE_SHIFT)
    placed = TablePlacement(lo.start, lo.select, slope, shift)
    return PassDraft(operands={"table": entries}, attrs={"le": le.as_attr(), "lo": placed.as_attr()})


def _centre(select: int, entries: int) -> TablePlacement:
    return TablePlacement(-(2.0**select) * (entries // 2), select)


def _values(node: Node, table: TablePlacement, entries: int, scale: float = 1.0) -> Array:
    """The function at a table's entries, whose inputs have a scale."""
    (values,) = OPS[node.op].compute(node, [scale * (table.start + 2.0**table.select * np.arange(entries))])
    return values


OFFSET_BITS = {8: 25, 16: 32}
"""Bits of the output converter's offset, by those of an element (NVDLA's own assertions)."""


def normalisation_tables(node: Node, x: Steps, y: Steps, bits: int = 8) -> tuple[ResponseTables, dict[str, Attr]]:
    """ResponseTables of (bias + alpha / size * sum)^-beta times a gain, and the attributes of NvLrn.

    Raises DoesNotFit (E301) for a zero point of the result that CDP's converter cannot add.
    """
    size, power = SIZE(node), _power(node, x.scale)
    gain = MOST_ENTRY / float(power(np.array(0.0)))
    most = size * (2 ** (bits - 1) + abs(x.zero)) ** 2
    tables = tables_of(lambda sums: np.minimum(power(sums) * gain, MOST_ENTRY), most)
    scale, shift = factor(x.scale / (y.scale * gain), MOST_CONVERTER_SHIFT)
    offset = -round(y.zero * 2.0**shift / scale)
    if abs(offset) >= 2 ** (OFFSET_BITS[bits] - 1):
        limit = f"{OFFSET_BITS[bits]} bits of CDP's converter"
        raise DoesNotFit("E301", f"the zero point {y.zero} is {offset} before the result's scale", limit=limit)
    return tables, {
        "size": size,
        "le": TablePlacement(START, tables.le_step).as_attr(),
        "lo": TablePlacement(START, tables.lo_step).as_attr(),
        "zero": x.zero,
        "converter": (offset, scale, shift),
    }


HEADROOM = 2.0
"""fp16 tables reach this far beyond the largest sample value; they are flat beyond their ends."""
FP17_SQUARES = 2.0**32
"""The largest sum of squares in CDP's fp17."""
FINEST = 16
"""LE's step in fp16 is at least LO's divided by 2^16."""


def normalised_half(node: Node, largest: float) -> tuple[Array, Array, dict[str, Attr]]:
    """The fp16 entries of LE and LO for inputs up to `largest` with headroom, and the attributes of NvLrn.

    Raises DoesNotFit (E301) for values that fp16 cannot represent.
    """
    size, power = SIZE(node), _power(node, 1.0)
    reach = min(HEADROOM * largest or 1.0, FP16_MOST)
    most = min(size * reach**2, FP17_SQUARES)
    lo = TablePlacement(0.0, int(np.ceil(np.log2(most / (LO_ENTRIES - 1)))))
    sums = np.union1d(np.linspace(0, most, LOOKED_AT), np.geomspace(most * 2.0**-30, most, LOOKED_AT))

    def entries(table: TablePlacement, count: int) -> Array:
        return half(power(table.start + 2.0**table.select * np.arange(count)))

    def error(le: TablePlacement) -> float:
        both = np.concatenate([entries(le, LE_ENTRIES), entries(lo, LO_ENTRIES)])
        return largest_effect(sums, interpolate_tables((le, lo), sums, both) - power(sums))

    le = min((TablePlacement(0.0, lo.select - finer) for finer in range(FINEST + 1)), key=error)
    attrs: dict[str, Attr] = {"size": size, "le": le.as_attr(), "lo": lo.as_attr()}
    return entries(le, LE_ENTRIES), entries(lo, LO_ENTRIES), attrs


def _power(node: Node, scale: float) -> Callable[[Array], Array]:
    """(bias + alpha / size * sum)^-beta as a function of sums of squares of quantised inputs."""
    size, alpha, beta = SIZE(node), LRN_ALPHA(node), LRN_BETA(node)
    bias, unit = LRN_BIAS(node), alpha / size * scale**2
    return lambda sums: np.maximum(bias + unit * sums, np.finfo(np.float64).tiny) ** -beta
