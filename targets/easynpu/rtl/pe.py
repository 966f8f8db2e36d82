"""A processing element: multiplier, adder or comparator, psums, and a quantiser.

A position takes five cycles: its ifmap, or the int8 result of the word before, is selected; multiplied; added to
its psum; and requantised in two cycles. Two operations on one psum are therefore two cycles apart, or one with a
write-first psum port (machine.psum_write_first); an operation on a psum's int8 result follows timing.FEEDBACK
cycles after. Source: easynpu, PE; decisions: docs/decisions.md, EasyNPU.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, ClockSignal, Instance, Module, Mux, ResetSignal, Signal, Value, signed
from amaranth.lib import data, enum, memory, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.quantiser import BYTE, PSUM, Quantiser
from npuc.targets.easynpu.rtl.words import index_bits


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
        "back": 1,  # the multiplier takes the int8 result of the psum (Pe_ps_back_en), not the ifmap
        "bypass": 1,  # the multiplier is bypassed (Pe_byp_mul_en)
        "factor": Factor,
        "addend": Addend,
        "compare": 1,  # the adder compares (Pe_maxpool_en)
        "leaving": LEAVING,
    }
)
"""The control of a PE for a position."""
MAXPOOL_START = -128
"""The value that max pooling compares its first input with."""
LINE = data.StructLayout({"b": signed(PSUM), "a": signed(BYTE)})
"""A segment of an activation table: a * x + b."""
SLOPE = data.StructLayout({"factor": signed(BYTE), "scale": signed(BYTE)})
SLOPES = data.StructLayout({"positive": SLOPE, "negative": SLOPE})
"""The slopes for inputs from 0 on, and for negative ones."""
PARAMETERS = data.StructLayout(
    {"bias": data.UnionLayout({"value": signed(PSUM), "slopes": SLOPES}), "scale": signed(BYTE)}
)
"""An entry of the bias and scale pads of one PE: four planes of bias (or slopes), one of scale."""


def chosen_scale(leaving: Any, parameters: Any, negative: Value) -> Value:
    """The scale of an outgoing psum."""
    slopes = parameters.bias.slopes
    slope = Mux(negative, slopes.negative.scale, slopes.positive.scale)
    kept = Mux(leaving.scale == Scale.SLOPE, slope, parameters.scale)
    return Mux(leaving.scale == Scale.NONE, 0, kept)


MODULE = "easynpu_pe"


def ports(machine: Machine) -> dict[str, Any]:
    """The ports of a PE."""
    bits = index_bits(machine.psum_entries)
    return {
        "back_address": In(bits),
        "back": In(1),
        "ifmap": In(signed(BYTE)),
        "kept": Out(signed(BYTE)),
        "control": In(CONTROL),
        "weight": In(signed(BYTE)),
        "operand": In(signed(BYTE)),
        "line": In(LINE),
        "own": In(PARAMETERS),
        "read_address": In(bits),
        "valid": In(1),
        "on": In(1),
        "write_address": In(bits),
        "psum": Out(signed(PSUM)),
        "ofmap": Out(signed(BYTE)),
    }


def instance(machine: Machine, name: str) -> tuple[Any, Instance]:
    """The ports of one more PE, and the instance of the module that all PEs share."""
    members = ports(machine)
    pe: Any = wiring.Signature(members).create(path=(name,))
    connected = {f"{'i' if members[each].flow is In else 'o'}_{each}": getattr(pe, each) for each in members}
    return pe, Instance(MODULE, i_clk=ClockSignal(), i_rst=ResetSignal(), **connected)


class Pe(wiring.Component):
    """One PE of a row.

    Cycle t: `back_address` addresses a psum's int8 result; it is `kept` in t + 1, and taken if `back` is set, else
    the `ifmap` is. Cycle t + 2: `control`, the other inputs, and `read_address` of the psum. Cycle t + 3: `valid`
    and `write_address`; `psum` is the new psum. Cycle t + 6: `ofmap` is its int8 result, 0 unless `on` was set
    with `valid` (PEs beyond the last output channel are off).
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__(ports(machine))

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        # rows share the operand path and gather operands, which leaves no bubble even with a single psum
        first = self.machine.psum_write_first or self.machine.pe_rows > 1
        psums, self.written = self._file(m, "psums", signed(PSUM), first)
        backs, self.fed_back = self._file(m, "backs", signed(BYTE), self.machine.pe_rows > 1)
        m.d.comb += [
            backs.addr.eq(self.back_address),
            self.kept.eq(backs.data),
            psums.addr.eq(self.read_address),
        ]
        self._sum(m, psums.data)
        self._leave(m)
        return m

    def _file(self, m: Module, name: str, shape: Any, first: bool) -> tuple[Any, Any]:
        """The ports of a file with an entry per psum; first: it is written first."""
        m.submodules[name] = file = memory.Memory(shape=shape, depth=self.machine.psum_entries, init=[])
        write = file.write_port()
        return file.read_port(transparent_for=(write,) if first else ()), write

    def _sum(self, m: Module, stored: Value) -> None:
        """Multiplies, then adds to the psum or another addend."""
        fed = Signal(signed(BYTE))
        control, own = self.control, self.own
        slopes, negative = own.bias.slopes, fed < 0
        slope = Mux(negative, slopes.negative.factor, slopes.positive.factor)
        factors = Array([self.weight, self.operand, slope, self.line.a])
        addends = [0, own.bias.value, self.operand, self.line.b, MAXPOOL_START, 0]
        factor, other, addend = Signal(signed(BYTE)), Signal(signed(PSUM)), Signal(signed(PSUM))
        product, later = Signal(signed(2 * BYTE)), Signal(CONTROL)
        self.leaving = later.leaving
        self.scale = Signal(signed(BYTE))
        m.d.comb += factor.eq(factors[control.factor.as_value()])
        m.d.sync += [
            fed.eq(Mux(self.back, self.kept, self.ifmap)),
            product.eq(Mux(control.bypass, fed, fed * factor)),
            other.eq(Array(map(Value.cast, addends))[control.addend.as_value()]),
            later.eq(control),
            self.scale.eq(chosen_scale(control.leaving, own, negative)),
        ]
        m.d.comb += [
            addend.eq(Mux(later.addend == Addend.PSUM, stored, other)),
            self.psum.eq(Mux(later.compare, Mux(product > addend, product, addend), product + addend)),
            self.written.data.eq(self.psum),
            self.written.addr.eq(self.write_address),
            self.written.en.eq(self.valid),
        ]

    def _leave(self, m: Module) -> None:
        """Requantises the new psum, and keeps the result for the word that is fused behind."""
        m.submodules.quantiser = quantiser = Quantiser()
        psum, scale, result = Signal(signed(PSUM)), Signal(signed(BYTE)), Signal(signed(BYTE))
        m.d.sync += [psum.eq(self.psum), scale.eq(self.scale), self.ofmap.eq(result)]
        gives = Signal(data.StructLayout({"valid": 1, "on": 1, "relu": 1, "address": len(self.write_address)}))
        leaves = Signal.like(gives)
        m.d.sync += [
            gives.valid.eq(self.valid),
            gives.on.eq(self.on),
            gives.relu.eq(self.leaving.relu),
            gives.address.eq(self.write_address),
            leaves.eq(gives),
        ]
        m.d.comb += [
            quantiser.psum.eq(psum),
            quantiser.scale.eq(scale),
            result.eq(Mux(~leaves.on | (leaves.relu & (quantiser.result < 0)), 0, quantiser.result)),
            self.fed_back.data.eq(result),
            self.fed_back.addr.eq(leaves.address),
            self.fed_back.en.eq(leaves.valid),
        ]
