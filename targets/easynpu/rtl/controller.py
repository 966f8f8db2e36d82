"""The master controller: fetches words, loads their parameters, and runs chain after chain.

A chain takes a cycle per word, the cycles of loading its parameters, the first weights (dense) and the first
sub-ifmap, those of its steps, and at its end those of the PEs' registers, as timing.chain_cost counts. Source:
easynpu, Master controller; docs/decisions.md, EasyNPU cycles.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.memory import BS_WORDS, SLOPE_WORDS, TABLE_WORDS
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import SETUP
from npuc.targets.easynpu.machine.timing import DRAIN
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.decoder import Block, Decoder, Kind, given_places, roles
from npuc.targets.easynpu.rtl.layouts import GROUP, WORD
from npuc.targets.easynpu.rtl.words import Fields, index_bits, tables

CYCLES = 32
"""Bits of the cycle counter."""


def parameter_write(machine: Machine) -> data.StructLayout:
    """The destination of the word that the weight DTCM outputs in this cycle."""
    return data.StructLayout(
        {
            "planes": BS_WORDS,
            "entry": index_bits(machine.parameter_pad_entries),
            "table_planes": TABLE_WORDS - 1,
            "table": index_bits(tables(machine)),
        }
    )


class Controller(wiring.Component):
    """Runs `count` words from ITCM address 0 after `go`, or until a halt; `busy` until all results are written.

    `pause`: stop after every chain, and continue on `resume`. `failed`: an undefined word ended the run. `word`
    is the ITCM's word at the previous cycle's `fetch`. `quiet`: nothing is in transit to a DTCM. `late`: the last
    results wait for the operands of all rows of PEs. `reshape` is the last reshape word; `divide`: it is the
    next cycle's. While it reads a map (a word in each cycle with `rearranging`), `moving` requests the next
    piece of the word; `moved` marks the last piece, and `map_ends` the last word.

    A chain never waits for the results of the chain before it. A result is written RESULT + 1 cycles after its
    slot in the schedule, a word is read AHEAD + 1 cycles after its slot, and no slot has both in one memory. So
    RESULT - AHEAD cycles without reads follow the last slot, and in them all queued results are written. DRAIN,
    a word and the shortest parameters (slopes of 16 channels) are longer.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.addresses = index_bits(machine.itcm_words)
        self.weights = machine.weight_words.bit_length()
        super().__init__(
            {
                "go": In(1),
                "count": In(self.addresses + 1),
                "pause": In(1),
                "resume": In(1),
                "busy": Out(1),
                "paused": Out(1),
                "failed": Out(1),
                "cycles": Out(CYCLES),
                "chain_ends": Out(1),
                "fetch": Out(self.addresses),
                "word": In(WORD),
                "read_weight": Out(1),
                "weight_address": Out(index_bits(machine.weight_words)),
                "parameters": Out(parameter_write(machine)),
                "chain": Out(layouts.chain(machine)),
                "write_load": Out(1),
                "write_run": Out(1),
                "stage": Out(self.addresses),
                "load": Out(layouts.load_stage(machine)),
                "run": Out(layouts.run_stage(machine)),
                "clear_blocks": Out(1),
                "write_block": Out(1),
                "weight_block": Out(layouts.weight_block(machine)),
                "begin": Out(1),
                "load_enable": Out(1),
                "load_complete": In(1),
                "load_ends": In(1),
                "load_exists": In(1),
                "advance": Out(1),
                "continues": Out(1),
                "step_ready": Out(1),
                "step_busy": In(1),
                "step_ends": In(1),
                "blocked": In(1),
                "reshape": Out(WORD),
                "divide": Out(1),
                "moving": Out(1),
                "rearranging": Out(1),
                "moved": In(1),
                "map_ends": In(1),
                "quiet": In(1),
                "late": In(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self._declare(m)
        with m.FSM(name="state") as fsm:
            self._idle(m)
            self._decode(m)
            self._load_parameters(m)
            self._run(m)
            self._rearrange(m)
            self._end(m)
            m.d.comb += self.paused.eq(fsm.ongoing("PAUSED"))
            m.d.comb += self.rearranging.eq(fsm.ongoing("READ_MAP"))
        self._place_parameters(m)
        return m

    def _declare(self, m: Module) -> None:
        """Declares the state between words."""
        machine = self.machine
        m.submodules.decoder = self.decoder = Decoder(machine)
        m.submodules.translator = self.translator = Decoder(machine)
        self.at, self.current = Signal(self.addresses + 1), Signal(WORD)
        self.low = Signal(init=1)
        self.stream = Signal(self.weights)
        self.places, self.given = Signal(roles(machine)), Signal(given_places())
        self.keeps, self.takes = Signal(), Signal()
        self.sets, self.set_to = Signal(), Signal(self.weights)
        self.stages, self.kept = Signal(self.addresses), Signal()
        self.moves = Signal(init=1)
        self.entries, self.shared = Signal(len(self.run.entry) + 1), Signal(len(self.run.entry))
        self.tables = Signal(len(self.run.table) + 1)
        self.decodes, self.loads = Signal(), Signal()
        self.alone = Signal()
        m.d.comb += [
            self.fetch.eq(self.at + 1),  # `word` is the one behind `current`
            self.decoder.word.eq(self.current),
            self.decoder.places.eq(self.places),
            self.decoder.given.eq(self.given),
            self.decoder.low.eq(self.low),
            self.decoder.first.eq(self.stages == 0),
        ]
        inputs = ("word", "places", "given", "low", "first")
        m.d.sync += [getattr(self.translator, name).eq(getattr(self.decoder, name)) for name in inputs]
        m.d.comb += [self.load.eq(self.translator.load), self.run.eq(self.translator.run)]
        entry, table, target = Signal(len(self.run.entry)), Signal(len(self.run.table)), Signal()
        m.d.sync += [
            entry.eq(Mux(self.kept, self.shared, self.entries)),
            table.eq(self.tables),
            self.stage.eq(self.stages),
            self.write_run.eq(self.decodes),
            self.write_load.eq(self.loads),
            target.eq(self.decodes | self.divide),
        ]
        m.d.comb += [self.run.entry.eq(entry), self.run.table.eq(table)]
        with m.If(target):
            m.d.sync += self.chain.target.eq(self.translator.target)
        with m.If(self.write_load & (self.stage == 0)):
            self._enter_chain(m)

    def _enter_chain(self, m: Module) -> None:
        """What the first word states of the whole chain, a cycle behind its decoding."""
        chain, first = self.chain, Fields(self.translator.word, isa.Layer)
        m.d.sync += [chain.source.eq(self.load.place.memory), chain.dense.eq(self.translator.dense)]
        for last, of_map, of_reshape in (("row", "Ho", "Hi"), ("column", "Wo", "Wi"), ("channel", "Co", "Ci")):
            m.d.sync += chain[f"last_{last}"].eq(Mux(self.alone, first.last(of_reshape), first.last(of_map)))
        m.d.sync += [chain.y.eq(Mux(self.alone, 1, first.y)), chain.x.eq(Mux(self.alone, 1, first.x))]

    def _idle(self, m: Module) -> None:
        with m.State("IDLE"), m.If(self.go):
            m.d.sync += [
                self.busy.eq(1),
                self.at.eq(0),
                self.low.eq(1),
                self.stream.eq(0),
                self.cycles.eq(0),
                self.failed.eq(0),
            ]
            m.d.sync += [self.given.eq(0), self.keeps.eq(0), self.takes.eq(0), self.sets.eq(0)]
            self._new_chain(m)
            m.next = "FETCH"
        with m.State("FETCH"):
            m.d.comb += self.fetch.eq(self.at)
            m.next = "FETCHED"
        with m.State("FETCHED"):
            m.d.sync += self.current.eq(self.word)
            m.next = "DECODE"

    def _new_chain(self, m: Module) -> None:
        m.d.comb += self.clear_blocks.eq(1)
        m.d.sync += [self.stages.eq(0), self.kept.eq(0), self.entries.eq(0), self.tables.eq(0)]

    def _decode(self, m: Module) -> None:
        decoder = self.decoder
        with m.State("DECODE"):
            self._decode_block(m)
            m.d.comb += self.fetch.eq(self.at + 2)
            with m.If((self.at == self.count) | (decoder.kind == Kind.HALT)):
                m.next = "SETTLE"
            with m.Else():
                m.d.sync += [self.at.eq(self.at + 1), self.current.eq(self.word), self.cycles.eq(self.cycles + 1)]
                with m.Switch(decoder.kind):
                    with m.Case(Kind.OPERAND):
                        self._keep_place(m)
                    with m.Case(Kind.CONTROL):
                        control = Fields(self.current, isa.Control)
                        m.d.sync += [self.keeps.eq(control.keep_psum), self.sets.eq(control.set_weights)]
                        m.d.sync += self.takes.eq(control.take_psum)
                        m.d.sync += self.set_to.eq(control.weights)
                    with m.Case(Kind.LAYER):
                        self._decode_layer(m)
                    with m.Case(Kind.RESHAPE):
                        self._decode_reshape(m)
                    with m.Default():
                        m.d.sync += self.failed.eq(1)
                        m.next = "SETTLE"

    def _keep_place(self, m: Module) -> None:
        for role, extension in isa.EXTENSIONS.items():
            if role in given_places().members:
                with m.If(Fields(self.current, isa.Operand).opcode == extension.opcode):
                    m.d.sync += [self.places[role].eq(self.decoder.place), self.given[role].eq(1)]

    def _decode_layer(self, m: Module) -> None:
        decoder, chain, layer = self.decoder, self.chain, Fields(self.current, isa.Layer)
        first = self.stages == 0
        self.fused = Signal()
        leaves = self.keeps & ~self.fused
        m.d.comb += [
            self.fused.eq((layer.opcode & isa.FUSED) != 0),
            self.decodes.eq(1),
            self.loads.eq(first | self.kept),
        ]
        m.d.sync += [
            *(each.eq(0) for each in (self.given, self.keeps, self.takes, self.sets)),
            self.kept.eq(self.keeps),
            self.stages.eq(self.stages + 1),
            chain.last_stage.eq(self.stages),
            chain.scattered.eq(0),
            chain.leaves.eq(leaves),
            self.moves.eq(~self.given["dst"] & ~leaves),
        ]
        with m.If(self.loads):
            m.d.sync += chain.last_part.eq(self.stages)
        with m.If(first):
            m.d.sync += [chain.takes.eq(self.takes), self.alone.eq(0)]
        with m.If(self.sets):
            m.d.sync += self.stream.eq(self.set_to)
        with m.If((decoder.block != Block.NONE) & ~self.kept):
            groups = (layer.last("Co") >> GROUP) + 1
            m.d.sync += self.entries.eq(self.entries + Mux(decoder.block == Block.TABLE, 1, groups))
        with m.If(decoder.loads):
            m.next = "PARAMETERS"
        with m.Elif(~self.fused):
            self._begin(m, chain.dense)

    def _decode_reshape(self, m: Module) -> None:
        """Decodes a reshape: behind other words it ends their chain; alone it reads its map word by word."""
        chain, alone = self.chain, self.stages == 0
        m.d.comb += [self.loads.eq(alone), self.divide.eq(1)]
        m.d.sync += [
            self.given.eq(0),
            chain.scattered.eq(1),
            self.moves.eq(~self.given["dst"]),
            self.alone.eq(alone),
        ]
        m.next = "DIVIDE"
        with m.If(alone):
            m.d.sync += [chain.takes.eq(0), chain.leaves.eq(0), chain.last_part.eq(0)]

    def _decode_block(self, m: Module) -> None:
        """Registers what only the states behind a word's decoding use, whatever the word is.

        The size of its block in the weight stream is computed while parameters are loaded.
        """
        decoder, layer = self.decoder, Fields(self.current, isa.Layer)
        groups = (layer.last("Co") >> GROUP) + 1
        self.block, self.parameter_count = Signal(Block), Signal(len(decoder.parameters))
        self.number = Signal(max(len(decoder.parameters), SETUP.bit_length()))
        self.plane, self.entry = Signal(range(8)), Signal(len(self.shared))
        self.taps, self.size = Signal(self.weights), Signal(self.weights)
        self.channels, self.groups = Signal(layouts.value_bits("Ci")), Signal(GROUP + 1)
        self.has_weights, self.goes_on, self.continued = Signal(), Signal(), Signal()
        entry = Mux(self.kept, self.shared, self.entries)
        m.d.sync += [
            self.reshape.eq(self.current),
            self.block.eq(decoder.block),
            self.parameter_count.eq(decoder.parameters),
            self.number.eq(0),
            self.plane.eq(0),
            self.entry.eq(entry),
            self.taps.eq(layer.Hk * layer.Wk),
            self.channels.eq(Mux(decoder.dense, layer.Ci, 1)),
            self.groups.eq(groups),
            self.has_weights.eq(decoder.run.weights),
            self.goes_on.eq((layer.opcode & isa.FUSED) != 0),
            self.continued.eq(self.kept),
            self.shared.eq(entry),
        ]

    def _load_parameters(self, m: Module) -> None:
        """Loads a word of parameters per cycle, then continues with the chain's next word or starts the chain."""
        with m.State("PARAMETERS"):
            streamed = self.block != Block.NONE
            m.d.comb += [
                self.read_weight.eq(streamed),
                self.weight_address.eq(self.stream + self.number),
                self.weight_block.base.eq(self.stream + self.parameter_count),
                self.weight_block.count.eq(Mux(self.chain.dense, self.size, self.taps)),
            ]
            last_plane = Mux(self.block == Block.SLOPES, SLOPE_WORDS, BS_WORDS) - 1
            wraps = (self.plane == last_plane) & (self.block != Block.TABLE)
            m.d.sync += [
                self.cycles.eq(self.cycles + 1),
                self.number.eq(self.number + 1),
                self.plane.eq(Mux(wraps, 0, self.plane + 1)),
                self.entry.eq(self.entry + wraps),
            ]
            with m.Switch(self.number):
                with m.Case(0):
                    m.d.sync += self.size.eq(self.taps * self.channels)
                with m.Case(1):
                    m.d.sync += self.size.eq(self.size * self.groups)
            with m.If(self.number + 1 == self.parameter_count):
                weights = Mux(self.has_weights, self.size, 0)
                m.d.comb += self.write_block.eq(self.has_weights)
                with m.If(streamed):
                    m.d.sync += self.stream.eq(self.stream + self.parameter_count + weights)
                with m.If(self.block == Block.TABLE):
                    m.d.sync += self.tables.eq(self.tables + 1)
                m.next = "DECODE"
                with m.If(~self.goes_on):
                    self._begin(m, self.chain.dense)

    def _place_parameters(self, m: Module) -> None:
        """Places the word read in the previous cycle: a plane of an entry, or of a table."""
        put: Any = Signal(parameter_write(self.machine))
        table = self.block == Block.TABLE
        scale = 1 << (BS_WORDS - 1)
        # a word that continues on kept psums shares the entries: the bias is the first word's
        planes = Mux(self.continued, (1 << self.plane) & scale, 1 << self.plane)
        m.d.sync += put.eq(0)
        with m.If(self.read_weight):
            m.d.sync += [
                put.entry.eq(self.entry),
                put.table.eq(self.tables),
                put.planes.eq(Mux(table, Mux(self.plane == TABLE_WORDS - 1, scale, 0), planes)),
                put.table_planes.eq(Mux(table, 1 << self.plane, 0)),
            ]
        m.d.comb += self.parameters.eq(put)

    def _begin(self, m: Module, dense: Any) -> None:
        m.d.comb += self.begin.eq(1)
        m.d.sync += self.number.eq(0)
        m.next = "LOAD"
        with m.If(dense):
            m.next = "FIRST_WEIGHTS"

    def _run(self, m: Module) -> None:
        """Loads the first sub-ifmap, then runs steps, each until its end and that of the next sub-ifmap's load."""
        load_finished = self.load_complete | (self.load_ends & self.load_enable)
        with m.State("FIRST_WEIGHTS"):
            m.d.sync += [self.cycles.eq(self.cycles + 1), self.number.eq(self.number + 1)]
            with m.If(self.number == self.chain.last_channel >> GROUP):
                m.next = "LOAD"
        with m.State("LOAD"):
            m.d.sync += self.cycles.eq(self.cycles + 1)
            m.d.comb += [self.load_enable.eq(1), self.continues.eq(1)]
            m.d.comb += self.step_ready.eq(load_finished)
            with m.If(load_finished):
                m.next = "RUN"
        with m.State("RUN"):
            m.d.sync += [self.cycles.eq(self.cycles + 1), self.number.eq(0)]
            m.d.comb += [self.load_enable.eq(~self.blocked), self.continues.eq(self.step_ends | ~self.step_busy)]
            m.d.comb += self.step_ready.eq(load_finished & self.load_exists)
            with m.If(self.continues & load_finished & ~self.load_exists):
                m.next = "DRAIN"

    def _rearrange(self, m: Module) -> None:
        """Reads a word of the map, then writes its pieces, one per cycle."""
        with m.State("DIVIDE"):
            m.d.sync += [self.cycles.eq(self.cycles + 1), self.number.eq(self.number + 1)]
            with m.If(self.number == SETUP - 1):
                self._begin(m, self.chain.dense)
                with m.If(self.alone):
                    m.next = "READ_MAP"
        with m.State("READ_MAP"):
            m.d.sync += self.cycles.eq(self.cycles + 1)
            m.d.comb += self.load_enable.eq(1)
            m.next = "WRITE_PIECES"
        with m.State("WRITE_PIECES"):
            m.d.sync += self.cycles.eq(self.cycles + 1)
            m.d.comb += self.moving.eq(1)
            with m.If(self.moved):
                m.d.comb += self.advance.eq(1)
                m.next = "READ_MAP"
                with m.If(self.map_ends):
                    self._chain_ends(m)

    def _chain_ends(self, m: Module) -> None:
        """Ends a chain; the next one starts at the other end of the Fmap DTCM."""
        m.d.comb += self.chain_ends.eq(1)
        self._new_chain(m)
        with m.If(self.moves):
            m.d.sync += self.low.eq(~self.low)
        m.next = "DECODE"
        with m.If(self.pause):
            m.next = "SETTLE"

    def _end(self, m: Module) -> None:
        with m.State("DRAIN"):
            m.d.sync += [self.cycles.eq(self.cycles + 1), self.number.eq(self.number + 1)]
            with m.If(self.number == DRAIN - 1 + Mux(self.late, self.machine.pe_rows - 1, 0)):
                self._chain_ends(m)
        with m.State("SETTLE"), m.If(self.quiet):
            m.d.sync += self.busy.eq(0)
            m.next = "IDLE"
            ends = self.failed | (self.at == self.count) | (self.decoder.kind == Kind.HALT)
            with m.If(self.pause & ~ends):
                m.next = "PAUSED"
        with m.State("PAUSED"), m.If(self.resume):
            m.d.sync += self.busy.eq(1)
            m.next = "FETCH"
