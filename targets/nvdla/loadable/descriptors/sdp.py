"""Operations of SDP."""

from __future__ import annotations

from dataclasses import field

from npuc.frozen import frozen
from npuc.targets.nvdla.loadable.descriptors.common import NONE, Converter, Cube
from npuc.targets.nvdla.loadable.structures import number


@frozen(kw_only=True)
class SdpUnit:
    """X1, X2 or Y of an SDP operation."""

    enable: int = number("B")
    alu: int = number("B")
    """0 max, 1 min, 2 sum, 3 equal."""
    use: int = number("B")
    """0 none, 1 multiply, 2 ALU, 3 both."""
    mode: int = number("B")
    """0 per layer, 1 per channel, 2 per element."""
    activation: int = number("B")
    """0 none, 1 ReLU, 2 look-up table, 3 PReLU."""
    shift: int = number("B")
    truncate: int = number("B")
    precision: int = number("B")
    """Of the operand: 0 one byte, otherwise two."""
    alu_operand: int = number("i")
    mul_operand: int = number("i")
    alu_converter: Converter = field(default_factory=Converter)
    mul_converter: Converter = field(default_factory=Converter)


@frozen(kw_only=True)
class Sdp:
    """An operation of SDP."""

    source_precision: int = number("B")
    result_precision: int = number("B")
    lut: int = number("h", NONE)
    out_converter: Converter = field(default_factory=Converter)
    conv_mode: int = number("B")
    batch: int = number("B", 1)
    reserved: int = number("H")
    batch_stride: int = number("I")
    x1: SdpUnit = field(default_factory=SdpUnit)
    x2: SdpUnit = field(default_factory=SdpUnit)
    y: SdpUnit = field(default_factory=SdpUnit)


@frozen(kw_only=True)
class SdpSurfaces:
    """The cubes that SDP reads and writes."""

    source: Cube = field(default_factory=Cube)
    x1: Cube = field(default_factory=Cube)
    x2: Cube = field(default_factory=Cube)
    y: Cube = field(default_factory=Cube)
    result: Cube = field(default_factory=Cube)
