"""Functions of one element as contents of EW's tables.

int8: one entry per input value. int16 and fp16: LO has 257 entries over the range where the function bends, LE has
65 over the middle of it; the tables interpolate between entries and continue as straight lines outside.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops import OPS
from npuc.quantize.arithmetic.tables import wanted_values
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.fixed_point import factor
from npuc.targets.nvdla.arithmetic.integer import LE_ENTRIES, LO_ENTRIES, TablePlacement
from npuc.targets.nvdla.quantisation.form import PassDraft


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
    lo, le = _centred(shape.lo, LO_ENTRIES), _centred(shape.le, LE_ENTRIES)
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
    lo, le = _centred(select, LO_ENTRIES), _centred(max(select + shape.le - shape.lo, 0), LE_ENTRIES)
    parts = [_values(node, each, count, x.scale) for each, count in ((le, LE_ENTRIES), (lo, LO_ENTRIES))]
    entries = np.rint(np.concatenate(parts) / y.scale).clip(-32768, 32767).astype(np.int16)
    slope, shift = factor(shape.beyond * x.scale / y.scale, MOST_SLOPE_SHIFT)
    placed = TablePlacement(lo.start, lo.select, slope, shift)
    return PassDraft(operands={"table": entries}, attrs={"le": le.as_attr(), "lo": placed.as_attr()})


def _centred(select: int, entries: int) -> TablePlacement:
    return TablePlacement(-(2.0**select) * (entries // 2), select)


def _values(node: Node, table: TablePlacement, entries: int, scale: float = 1.0) -> Array:
    """The function at a table's entries, whose inputs have a scale."""
    (values,) = OPS[node.op].compute(node, [scale * (table.start + 2.0**table.select * np.arange(entries))])
    return values
