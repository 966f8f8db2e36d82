"""The requantiser of a PE: int8 out of a psum."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

BYTE = 8
PSUM = 32
SHIFT = 5
"""Bits of a shift amount, 0..31."""


def saturate(value: Signal) -> Value:
    """A value of more than 8 bits as int8."""
    high, sign = value[BYTE - 1 :], value[-1]
    return Mux(high.all() | ~high.any(), value[:BYTE], Cat((~sign).replicate(BYTE - 1), sign))


class Quantiser(wiring.Component):
    """A cycle later, result = sat8(round_half_up(psum * 2^scale)); scale -31..31, negative = right shift.

    A right shift n is (psum >> n) + bit n - 1 of psum, as in the author's QNT block. A left shift acts on the
    saturated byte: if its result fits 32 bits, int8 is the same either way.
    """

    def __init__(self) -> None:
        super().__init__({"psum": In(signed(PSUM)), "scale": In(signed(BYTE)), "result": Out(signed(BYTE))})

    def elaborate(self, _platform: object) -> Module:
        """The circuit: shifts, to the left with saturation, then rounds and saturates what went to the right."""
        m = Module()
        left = Signal()
        amount = Signal(SHIFT)
        extended = Signal(signed(PSUM + 1))
        shifted = Signal(signed(PSUM + 1))
        rounded = Signal(signed(PSUM))
        near, lifted = Signal(signed(BYTE)), Signal(signed(BYTE))
        raised = Signal(signed(2 * BYTE))
        reach, lifts = Signal(range(BYTE + 1)), Signal()
        m.d.comb += [
            left.eq(self.scale > 0),
            amount.eq(Mux(left, 0, -self.scale)),
            extended.eq(Cat(0, self.psum)),
            rounded.eq((shifted >> 1) + shifted[0]),
            near.eq(saturate(self.psum)),
            reach.eq(Mux(self.scale >= BYTE, BYTE, self.scale[:4])),
            raised.eq(near << reach),
            self.result.eq(Mux(lifts, lifted, saturate(rounded))),
        ]
        m.d.sync += [shifted.eq(extended >> amount), lifted.eq(saturate(raised)), lifts.eq(left)]
        return m
