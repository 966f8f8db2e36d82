"""Operations of PDP and CDP, and look-up tables."""

from __future__ import annotations

from dataclasses import field

from npuc.frozen import frozen
from npuc.targets.nvdla.loadable.descriptors.common import NONE, Converter, Cube, WindowFields
from npuc.targets.nvdla.loadable.structures import number, numbers


@frozen(kw_only=True)
class Pdp:
    """An operation of PDP; partial widths first, middle, last."""

    partial_in: tuple[int, ...] = numbers("H", 3)
    partial_out: tuple[int, ...] = numbers("H", 3)
    splits: int = number("B", 1)
    method: int = number("B")
    """0 average, 1 maximum, 2 minimum."""
    kernel_width: int = number("B")
    """Minus one."""
    kernel_height: int = number("B")
    """Minus one."""
    window: WindowFields = field(default_factory=WindowFields)
    precision: int = number("B")
    reserved: int = number("B")
    pad_values: tuple[int, ...] = numbers("i", 7)


@frozen(kw_only=True)
class Surfaces:
    """The cubes that PDP, CDP or RUBIK reads and writes."""

    source: Cube = field(default_factory=Cube)
    result: Cube = field(default_factory=Cube)


@frozen(kw_only=True)
class Cdp:
    """An operation of CDP."""

    in_precision: int = number("B")
    out_precision: int = number("B")
    lut: int = number("h", NONE)
    in_converter: Converter = field(default_factory=Converter)
    out_converter: Converter = field(default_factory=Converter)
    local_size: int = number("B")
    """3, 5, 7 or 9."""
    bypass_sum: int = number("B")
    bypass_product: int = number("B")
    reserved: int = number("B")


@frozen(kw_only=True)
class Rubik:
    """An operation of RUBIK."""

    mode: int = number("B")
    """0 contract, 1 split, 2 merge."""
    precision: int = number("B")
    stride_x: int = number("B", 1)
    stride_y: int = number("B", 1)


@frozen(kw_only=True)
class Lut:
    """The tables LE and LO and their registers; offsets: the exponent, or the step's binary logarithm."""

    le: tuple[int, ...] = numbers("h", 65)
    lo: tuple[int, ...] = numbers("h", 257)
    le_offset: int = number("b")
    reserved_le: int = number("B")
    lo_offset: int = number("b")
    reserved_lo: int = number("B")
    le_start: int = number("Q")
    le_end: int = number("Q")
    lo_start: int = number("Q")
    lo_end: int = number("Q")
    le_below: tuple[int, ...] = numbers("h", 2)
    """Scale and shift of the slope; in fp16 the bits of the scale."""
    le_beyond: tuple[int, ...] = numbers("h", 2)
    lo_below: tuple[int, ...] = numbers("h", 2)
    lo_beyond: tuple[int, ...] = numbers("h", 2)
    hybrid_priority: int = number("B")
    underflow_priority: int = number("B")
    overflow_priority: int = number("B")
    method: int = number("B")
    """Of LE: 0 exponential, 1 linear."""
