"""Local response normalisation by scales: tables of CDP and its output converter."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.quantize.given import Steps
from npuc.targets.nvdla.fixed_point import MOST_CONVERTER_SHIFT, factor
from npuc.targets.nvdla.normalisation import MOST_ENTRY, ResponseTables, tables_of

MOST_MAGNITUDE = 128


def normalised(node: Node, x: Steps, y: Steps) -> tuple[ResponseTables, dict[str, Attr]]:
    """ResponseTables of (bias + alpha / size * sum)^-beta times 2^p, and the attributes of the operator NvLrn."""
    size, alpha, beta = node.integer("size"), node.number("alpha", 1e-4), node.number("beta", 0.75)
    bias = node.number("bias", 1.0)
    unit = alpha / size * x.scale**2

    def power(sums: Array) -> Array:
        return np.maximum(bias + unit * sums, np.finfo(np.float64).tiny) ** -beta

    gain = MOST_ENTRY / float(power(np.array(0.0)))
    most = size * (MOST_MAGNITUDE + abs(x.zero)) ** 2
    tables = tables_of(lambda sums: np.minimum(power(sums) * gain, MOST_ENTRY), most)
    scale, shift = factor(x.scale / (y.scale * gain), MOST_CONVERTER_SHIFT)
    offset = -round(y.zero * 2.0**shift / scale)
    return tables, {
        "size": size,
        "table_steps": (tables.le_step, tables.lo_step),
        "zero": x.zero,
        "converter": (offset, scale, shift),
    }
