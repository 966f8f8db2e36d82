"""The scratch pads: ifmap, bias and scale, activation tables. Source: easynpu, Scratch Pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, TABLE_WORDS
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.pe import LINE, PARAMETERS
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.words import index_bits, pad_depth, store, tables


class IfmapPads(wiring.Component):
    """One or two sets of 16 pads, with a read port per row of PEs; a bus word is an entry of all 16 pads.

    The `address` of an entry is side * entries + entry; its data follow a cycle later.
    """

    def __init__(self, machine: Machine) -> None:
        self.depth = pad_depth(machine)
        bits = index_bits(self.depth)
        super().__init__(
            {
                "write": In(1),
                "write_address": In(bits),
                "word": In(WORD),
                "address": In(bits).array(machine.pe_rows),
                "entry": Out(WORD).array(machine.pe_rows),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit: a copy for every read port."""
        m = Module()
        for row, address in enumerate(self.address):
            read = store(m, f"row{row}", self.depth, self.write, self.write_address, self.word).read_port()
            m.d.comb += [read.addr.eq(address), self.entry[row].eq(read.data)]
        return m


class ParameterPads(wiring.Component):
    """Bias and scale of all PEs, written plane by plane: byte planes of the bias (or slopes), then the scale.

    Data follow an address two cycles later.
    """

    def __init__(self, machine: Machine) -> None:
        self.depth = machine.parameter_pad_entries
        bits = index_bits(self.depth)
        super().__init__(
            {
                "write": In(BS_WORDS),
                "write_address": In(bits),
                "word": In(WORD),
                "address": In(bits),
                "own": Out(PARAMETERS).array(LANES),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        shape = data.ArrayLayout(WORD, BS_WORDS)
        m.submodules.pads = pads = memory.Memory(shape=shape, depth=self.depth, init=[])
        write = pads.write_port(granularity=1)
        m.d.comb += [write.en.eq(self.write), write.addr.eq(self.write_address)]
        m.d.comb += [plane.eq(self.word) for plane in write.data]
        read = pads.read_port()
        m.d.comb += read.addr.eq(self.address)
        for lane in range(LANES):
            planes = [plane.word_select(lane, BYTE) for plane in read.data]
            m.d.sync += Value.cast(self.own[lane]).eq(Cat(*planes))
        return m


class Tables(wiring.Component):
    """Activation tables: a lane is a segment, and every PE selects the segment of its input.

    A table is read a cycle after its number is set; the lines follow the inputs a cycle later.
    """

    def __init__(self, machine: Machine) -> None:
        self.depth = tables(machine)
        self.pes = machine.pe_rows * LANES
        bits = index_bits(self.depth)
        super().__init__(
            {
                "write": In(TABLE_WORDS - 1),
                "write_table": In(bits),
                "word": In(WORD),
                "table": In(bits),
                "input": In(signed(BYTE)).array(self.pes),
                "line": Out(LINE).array(self.pes),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit: the number of starts that an input has reached, from comparisons with all of them."""
        m = Module()
        shape = data.ArrayLayout(WORD, TABLE_WORDS - 1)
        m.submodules.tables = stored = memory.Memory(shape=shape, depth=self.depth, init=[])
        write, read = stored.write_port(granularity=1), stored.read_port()
        m.d.comb += [write.en.eq(self.write), write.addr.eq(self.write_table), read.addr.eq(self.table)]
        m.d.comb += [plane.eq(self.word) for plane in write.data]
        *planes, starts = read.data
        lines = [Signal(LINE, name=f"line{k}") for k in range(LANES)]
        bounds = [Signal(signed(BYTE), name=f"start{k}") for k in range(LANES)]
        for k, (line, bound) in enumerate(zip(lines, bounds, strict=True)):
            m.d.sync += Value.cast(line).eq(Cat(*(plane.word_select(k, BYTE) for plane in planes)))
            m.d.comb += bound.eq(starts.word_select(k, BYTE))
        for number, (x, line) in enumerate(zip(self.input, self.line, strict=True)):
            reached = Signal(LANES, name=f"reached{number}")
            m.d.comb += reached.eq(Cat((x >= bound) for bound in bounds))
            found: list[Value] = []
            for step in (8, 4, 2, 1):
                found.append(select_by_halves(list(reached[step :: 2 * step]), found))
            segment = Signal(len(found), name=f"segment{number}")
            m.d.sync += segment.eq(Cat(*found))
            m.d.comb += Value.cast(line).eq(select_by_halves(lines, list(segment)))
        return m


def select_by_halves(choices: Sequence[Any], bits: Sequence[Value]) -> Value:
    """One of 2^n values, selected by n bits, most significant first: a tree of multiplexers."""
    values = [Value.cast(each) for each in choices]
    for bit in reversed(bits):
        values = [Mux(bit, high, low) for low, high in zip(values[::2], values[1::2], strict=True)]
    return values[0]
