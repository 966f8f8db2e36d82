"""The decoder: translates a layer word for the loader, the sequencer and the loading of its parameters.

Combinational; the opcode table and the fields are those of isa. Source: easynpu, Master controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import BY_MNEMONIC, Layer
from npuc.targets.easynpu.machine.memory import BS_WORDS, SLOPE_WORDS, TABLE_WORDS
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import GROUP, WORD
from npuc.targets.easynpu.rtl.pe import Addend, Factor, Scale
from npuc.targets.easynpu.rtl.words import Fields, address_bits


class Kind(enum.Enum, shape=3):
    """The kind of an instruction word."""

    UNDEFINED = 0
    LAYER = 1
    RESHAPE = 2
    OPERAND = 3
    CONTROL = 4
    HALT = 5


class Block(enum.Enum, shape=2):
    """What precedes a word's weights in the weight stream."""

    NONE = 0
    BIAS_SCALE = 1
    TABLE = 2
    SLOPES = 3


def roles(machine: Machine) -> data.StructLayout:
    """Places of operands, as set by extension words."""
    return data.StructLayout({role: layouts.place(machine) for role in isa.EXTENSIONS if role != "ctl"})


def given_places() -> data.StructLayout:
    """Which places extension words have set."""
    return data.StructLayout({role: 1 for role in isa.EXTENSIONS if role != "ctl"})


class Decoder(wiring.Component):
    """Decodes `word` with the places set before it, for the current end (`low`) of the Fmap DTCM.

    `first`: the word begins a chain. Valid for a layer word (`kind`): `load`, `run`, `dense`, the `parameters`
    (cycles of loading them) of its `block`, if it `loads` any, and `target`, the place of its result unless
    another word follows.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__(
            {
                "word": In(WORD),
                "places": In(roles(machine)),
                "given": In(given_places()),
                "low": In(1),
                "first": In(1),
                "kind": Out(Kind),
                "place": Out(layouts.place(machine)),
                "load": Out(layouts.load_stage(machine)),
                "run": Out(layouts.run_stage(machine)),
                "dense": Out(1),
                "block": Out(Block),
                "loads": Out(1),
                "parameters": Out(range(BS_WORDS * 16 + 1)),
                "target": Out(layouts.place(machine)),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self.layer = Fields(self.word, Layer)
        base = Signal(8)
        m.d.comb += base.eq(self.layer.opcode & ~isa.FLAGS & 0xFF)
        self.base = base
        self._kind(m)
        self._places(m)
        self._load(m)
        self._run(m)
        self._switches(m)
        self._parameters(m)
        return m

    def one_of(self, *mnemonics: str) -> Value:
        """Whether the word is one of these operations."""
        found = Value.cast(0)
        for mnemonic in mnemonics:
            found = found | (self.base == BY_MNEMONIC[mnemonic].opcode)
        return found

    def _kind(self, m: Module) -> None:
        opcode = self.layer.opcode
        with m.Switch(opcode):
            with m.Case(isa.HALT):
                m.d.comb += self.kind.eq(Kind.HALT)
            with m.Case(isa.EXTENSIONS["ctl"].opcode):
                m.d.comb += self.kind.eq(Kind.CONTROL)
            with m.Case(*(each.opcode for role, each in isa.EXTENSIONS.items() if role != "ctl")):
                m.d.comb += self.kind.eq(Kind.OPERAND)
            with m.Case(BY_MNEMONIC["reshape"].opcode):
                m.d.comb += self.kind.eq(Kind.RESHAPE)
            with m.Case(*_with_flags(row.opcode for row in isa.OPERATIONS if row.category != isa.RESHAPE)):
                m.d.comb += self.kind.eq(Kind.LAYER)

    def _places(self, m: Module) -> None:
        """The place in an operand word, and those of the layer's maps: set by earlier words, or implicit."""
        bits = address_bits(self.machine)
        operand = Fields(self.word, isa.Operand)
        m.d.comb += [
            self.place.memory.eq(operand.memory[0]),
            self.place.base.eq(operand.base[:bits]),
            self.place.row.eq(operand.row[:bits]),
            self.place.pixel.eq(operand.pixel[:bits]),
            self.place.group.eq(operand.group[:bits]),
        ]
        layer = self.layer
        inside, outside = (layer.last("Ci"), layer.Wi), (layer.last("Co"), layer.Wo)
        self.source = self._choose_place(m, "src", self._implicit(m, "source", self.low, *inside))
        self.operand = self._choose_place(m, "opb", self._implicit(m, "operand", None, *outside))
        self.copy = self._choose_place(m, "sto", self._implicit(m, "copy", None, *outside))
        m.d.comb += self.target.eq(self._choose_place(m, "dst", self._implicit(m, "target", ~self.low, *outside)))

    def _choose_place(self, m: Module, role: str, implicit: Value) -> Value:
        chosen = Signal(layouts.place(self.machine), name=f"{role}_place")
        m.d.comb += chosen.eq(Mux(self.given[role], Value.cast(self.places[role]), Value.cast(implicit)))
        return chosen

    def _implicit(self, m: Module, name: str, low: Value | None, last_channel: Value, width: Value) -> Any:
        """A place at the low end of the Fmap DTCM, or downwards from its last word; None: in the skip DTCM."""
        place, memory = (
            Signal(layouts.place(self.machine), name=f"{name}_place"),
            "skip" if low is None else "fmap",
        )
        groups = (last_channel >> GROUP) + 1
        m.d.comb += place.memory.eq(isa.MEMORIES.index(memory))
        for part, pitch in (("row", groups * width), ("pixel", groups), ("group", Value.cast(1))):
            m.d.comb += place[part].eq(pitch if low is None else Mux(low, pitch, -pitch))
        if low is not None:
            m.d.comb += place.base.eq(Mux(low, 0, self.machine.fmap_words - 1))
        return place

    def _load(self, m: Module) -> None:
        layer, load, reshape = self.layer, self.load, self.kind == Kind.RESHAPE
        m.d.comb += [
            load.place.eq(self.source),
            load.last_channel.eq(layer.last("Ci")),
            load.bounds.last_group.eq(layer.last("Ci") >> GROUP),
            load.bounds.one_channel.eq(layer.last("Ci")[:GROUP] == 0),
            load.lowest.eq(self.one_of("maxpool")),
            load.bounds.one_hk.eq(reshape | (layer.last("Hk") == 0)),
            load.bounds.one_wk.eq(reshape | (layer.last("Wk") == 0)),
        ]
        m.d.comb += [load.Hi.eq(layer.Hi), load.Wi.eq(layer.Wi)]
        with m.If(reshape):  # its map is read word by word
            m.d.comb += [load.Sh.eq(1), load.Sw.eq(1), load.xi.eq(1)]
        with m.Else():
            m.d.comb += [load[name].eq(getattr(layer, name)) for name in ("Sh", "Sw", "Ph", "Pw", "xi")]
            m.d.comb += load.reach_h.eq(layer.last("Hk") * (layer.Dh + 1))
            m.d.comb += load.reach_w.eq(layer.last("Wk") * (layer.Dw + 1))

    def _run(self, m: Module) -> None:
        layer, run = self.layer, self.run
        weights = (row.mnemonic for row in isa.OPERATIONS if row.weights)
        dense = (row.mnemonic for row in isa.OPERATIONS if row.category == isa.CONV)
        m.d.comb += [
            run.Sh.eq(layer.Sh),
            run.Sw.eq(layer.Sw),
            run.dilation_h.eq(layer.Dh + 1),
            run.dilation_w.eq(layer.Dw + 1),
            run.last_hk.eq(layer.last("Hk")),
            run.last_wk.eq(layer.last("Wk")),
            run.xi.eq(layer.xi),
            run.weights.eq(self.one_of(*weights)),
            run.reads.eq(self.one_of("add", "mul")),
            run.stored.eq((layer.opcode & isa.STORED) != 0),
            run.tabulated.eq(self.one_of("act")),
            run.operand.eq(self.operand),
            run.copy.eq(self.copy),
            self.dense.eq(self.one_of(*dense)),
        ]

    def _switches(self, m: Module) -> None:
        """The PEs' switches in the word's passes."""
        run = self.run
        with m.If(self.one_of("add", "mul")):
            m.d.comb += run.factor.eq(Factor.OPERAND)
        with m.Elif(self.one_of("act")):
            m.d.comb += run.factor.eq(Factor.LINE)
        with m.Elif(self.one_of("prelu")):
            m.d.comb += [run.factor.eq(Factor.SLOPE), run.leaving.scale.eq(Scale.SLOPE)]
        with m.If(self.one_of("relu", "maxpool")):
            m.d.comb += run.leaving.scale.eq(Scale.NONE)
        starts = {
            Addend.LINE: ("act",), Addend.OPERAND: ("add",), Addend.LOWEST: ("maxpool",),
            Addend.ZERO: ("relu", "prelu", "mul"),
        }  # fmt: skip
        m.d.comb += run.start.eq(Addend.BIAS)
        for start, mnemonics in starts.items():
            with m.If(self.one_of(*mnemonics)):
                m.d.comb += run.start.eq(start)
        relu = (row.mnemonic for row in isa.OPERATIONS if row.mnemonic.endswith("_relu"))
        m.d.comb += [
            run.leaving.relu.eq(self.one_of(*relu)),
            run.bypass.eq(self.one_of("relu", "maxpool", "add")),
            run.compare.eq(self.one_of("relu", "maxpool")),
        ]

    def _parameters(self, m: Module) -> None:
        """The block and the cycles of loading it; a chain's first word takes as many without a block."""
        groups = (self.layer.last("Co") >> GROUP) + 1
        quantises = (row.mnemonic for row in isa.OPERATIONS if row.quantises)
        all_planes = sum_of(groups, BS_WORDS)
        m.d.comb += self.loads.eq((self.block != Block.NONE) | self.first)
        with m.If(self.one_of(*quantises)):
            m.d.comb += [self.block.eq(Block.BIAS_SCALE), self.parameters.eq(all_planes)]
        with m.Elif(self.one_of("act")):
            m.d.comb += [self.block.eq(Block.TABLE), self.parameters.eq(TABLE_WORDS)]
        with m.Elif(self.one_of("prelu")):
            m.d.comb += [self.block.eq(Block.SLOPES), self.parameters.eq(sum_of(groups, SLOPE_WORDS))]
        with m.Elif(self.first):
            m.d.comb += self.parameters.eq(all_planes)


def sum_of(value: Value, factor: int) -> Value:
    """A product with a constant, of shifted values: no multiplier."""
    found = Value.cast(0)
    for bit in range(factor.bit_length()):
        if factor >> bit & 1:
            found = found + (value << bit)
    return found


def _with_flags(opcodes: Iterable[int]) -> list[int]:
    """The opcodes with every combination of flags."""
    return [opcode | flags for opcode in opcodes for flags in (0, isa.FUSED, isa.STORED, isa.FLAGS)]
