"""Local response normalisation: CDP's tables, and the output converter derived from the scales."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npuc.errors import DoesNotFit
from npuc.ir import Array, Attr, Node
from npuc.ops.attributes import LRN_ALPHA, LRN_BETA, LRN_BIAS, SIZE
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.arithmetic.fixed_point import MOST_CONVERTER_SHIFT, factor
from npuc.targets.nvdla.arithmetic.integer import LE_ENTRIES, LO_ENTRIES, TablePlacement, interpolated
from npuc.targets.nvdla.arithmetic.normalisation import (
    LOOKED_AT,
    MOST_ENTRY,
    START,
    ResponseTables,
    tables_of,
    worst,
)
from npuc.targets.nvdla.formats.precision import FP16_MOST
from npuc.targets.nvdla.quantisation.rounding import half

OFFSET_BITS = {8: 25, 16: 32}
"""Bits of the output converter's offset, by those of an element (NVDLA's own assertions)."""


def normalised(node: Node, x: Steps, y: Steps, bits: int = 8) -> tuple[ResponseTables, dict[str, Attr]]:
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
        return worst(sums, interpolated((le, lo), sums, both) - power(sums))

    le = min((TablePlacement(0.0, lo.select - finer) for finer in range(FINEST + 1)), key=error)
    attrs: dict[str, Attr] = {"size": size, "le": le.as_attr(), "lo": lo.as_attr()}
    return entries(le, LE_ENTRIES), entries(lo, LO_ENTRIES), attrs


def _power(node: Node, scale: float) -> Callable[[Array], Array]:
    """(bias + alpha / size * sum)^-beta as a function of sums of squares of quantised inputs."""
    size, alpha, beta = SIZE(node), LRN_ALPHA(node), LRN_BETA(node)
    bias, unit = LRN_BIAS(node), alpha / size * scale**2
    return lambda sums: np.maximum(bias + unit * sums, np.finfo(np.float64).tiny) ** -beta
