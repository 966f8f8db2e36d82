"""A processing element: multiplier, adder or comparator, psums, and quantisers at its two outputs.

A position takes three cycles: its psum is addressed; then everything up to the psum's new value is computed
between registers; then the result is requantised. Two operations on one psum are therefore two cycles apart, or
one with a write-first psum port (machine.psum_write_first). Source: easynpu, PE; decisions: docs/decisions.md,
EasyNPU.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, memory, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.quantiser import BYTE, PSUM, Quantiser
from npuc.targets.easynpu.rtl.sizes import index_bits
from npuc.targets.easynpu.simulate.streams import MAXPOOL_START


class Factor(enum.Enum, shape=2):
    """Selects the multiplier's second input."""

    WEIGHT = 0
    OPERAND = 1
    SLOPE = 2
    LINE = 3


class Addend(enum.Enum, shape=3):
    """Selects the adder's second input."""

    PSUM = 0
    BIAS = 1
    OPERAND = 2
    LINE = 3
    LOWEST = 4
    """The start value of max pooling."""
    ZERO = 5


class Scale(enum.Enum, shape=2):
    """Selects the shift of an outgoing psum."""

    PAD = 0
    NONE = 1
    SLOPE = 2
    """The scale of the slope for the input's sign."""


LEAVING = data.StructLayout({"scale": Scale, "relu": 1})
"""How psums of a word become int8."""
CONTROL = data.StructLayout(
    {
        "back": 1,  # the multiplier takes the requantised psum (Pe_ps_back_en), not the ifmap
        "before": LEAVING,  # of the word whose psum is fed back
        "bypass": 1,  # the multiplier is bypassed (Pe_byp_mul_en)
        "factor": Factor,
        "addend": Addend,
        "compare": 1,  # the adder compares (Pe_maxpool_en)
        "leaving": LEAVING,
    }
)
"""The control of a PE for a position."""
LINE = data.StructLayout({"b": signed(PSUM), "a": signed(BYTE)})
"""A segment of an activation table: a * x + b."""
SLOPE = data.StructLayout({"factor": signed(BYTE), "scale": signed(BYTE)})
SLOPES = data.StructLayout({"positive": SLOPE, "negative": SLOPE})
"""The slopes for inputs from 0 on, and for negative ones."""
PARAMETERS = data.StructLayout(
    {"bias": data.UnionLayout({"value": signed(PSUM), "slopes": SLOPES}), "scale": signed(BYTE)}
)
"""An entry of the bias and scale pads of one PE: four planes of bias (or slopes), one of scale."""
STORED = data.StructLayout({"value": signed(PSUM), "negative": 1})
"""A psum; for a product with a slope also the sign of the input, which selects the scale."""


def chosen_scale(leaving: Any, parameters: Any, negative: Value) -> Value:
    """The scale of an outgoing psum."""
    slopes = parameters.bias.slopes
    slope = Mux(negative, slopes.negative.scale, slopes.positive.scale)
    kept = Mux(leaving.scale == Scale.SLOPE, slope, parameters.scale)
    return Mux(leaving.scale == Scale.NONE, 0, kept)


class Pe(wiring.Component):
    """One PE of a row.

    Cycle t: `read_address` addresses the psum. Cycle t + 1: `valid`, `control`, the inputs and `write_address`;
    `fed` is the multiplier's first input, `psum` the new psum. Cycle t + 2: `ofmap` is the int8 result, 0 unless
    `on` was set (PEs beyond the last output channel are off).
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        bits = index_bits(machine.psum_entries)
        super().__init__(
            {
                "read_address": In(bits),
                "valid": In(1),
                "on": In(1),
                "control": In(CONTROL),
                "write_address": In(bits),
                "ifmap": In(signed(BYTE)),
                "weight": In(signed(BYTE)),
                "operand": In(signed(BYTE)),
                "line": In(LINE),
                "own": In(PARAMETERS),
                "before": In(PARAMETERS),
                "fed": Out(signed(BYTE)),
                "psum": Out(signed(PSUM)),
                "ofmap": Out(signed(BYTE)),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        stored = self._psums(m)
        self._feed(m, stored)
        negative = Signal()
        m.d.comb += [negative.eq(self.fed < 0), self.psum.eq(self._sum(m, stored, negative))]
        m.d.comb += [self.written.value.eq(self.psum), self.written.negative.eq(negative)]
        self._leave(m, negative)
        return m

    def _psums(self, m: Module) -> Any:
        """The psum file; returns the addressed psum."""
        m.submodules.psums = file = memory.Memory(shape=STORED, depth=self.machine.psum_entries, init=[])
        write = file.write_port()
        # rows share the operand path and gather operands, which leaves no bubble even with a single psum
        first = self.machine.psum_write_first or self.machine.pe_rows > 1
        read = file.read_port(transparent_for=(write,) if first else ())
        self.written = write.data
        m.d.comb += [read.addr.eq(self.read_address), write.addr.eq(self.write_address), write.en.eq(self.valid)]
        return read.data

    def _feed(self, m: Module, stored: Any) -> None:
        """The multiplier's first input: the ifmap, or the previous word's int8 result."""
        m.submodules.back = back = Quantiser()
        before = self.control.before
        m.d.comb += [
            back.psum.eq(stored.value),
            back.scale.eq(chosen_scale(before, self.before, stored.negative)),
            self.fed.eq(Mux(self.control.back, Mux(before.relu & (back.result < 0), 0, back.result), self.ifmap)),
        ]

    def _sum(self, m: Module, stored: Any, negative: Signal) -> Value:
        """The new psum."""
        slopes = self.own.bias.slopes
        slope = Mux(negative, slopes.negative.factor, slopes.positive.factor)
        factors = Array([self.weight, self.operand, slope, self.line.a])
        addends = [stored.value, self.own.bias.value, self.operand, self.line.b, MAXPOOL_START, 0]
        factor, addend = Signal(signed(BYTE)), Signal(signed(PSUM))
        m.d.comb += factor.eq(factors[self.control.factor.as_value()])
        m.d.comb += addend.eq(Array(map(Value.cast, addends))[self.control.addend.as_value()])
        product = Signal(signed(2 * BYTE))
        m.d.comb += product.eq(Mux(self.control.bypass, self.fed, self.fed * factor))
        return Mux(self.control.compare, Mux(product > addend, product, addend), product + addend)

    def _leave(self, m: Module, negative: Signal) -> None:
        """The result, requantised after a register."""
        m.submodules.out = out = Quantiser()
        leaving = Signal(LEAVING)
        on = Signal()
        scale = Signal(signed(BYTE))
        psum = Signal(signed(PSUM))
        m.d.sync += [
            psum.eq(self.psum),
            scale.eq(chosen_scale(self.control.leaving, self.own, negative)),
            leaving.eq(self.control.leaving),
            on.eq(self.on),
        ]
        m.d.comb += [out.psum.eq(psum), out.scale.eq(scale)]
        nothing = ~on | (leaving.relu & (out.result < 0))
        m.d.comb += self.ofmap.eq(Mux(nothing, 0, out.result))
