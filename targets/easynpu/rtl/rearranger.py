"""The rearranger: the pieces of a reshape word's map, with the destination and lanes of each.

Source: easynpu, Reshape; the meaning of the fields: rearrangement.destination, of which this is the circuit for
one element.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import DIMENSIONS, ORDER, PERMUTATIONS, C, runs_most
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import GROUP, INDEX, WORD
from npuc.targets.easynpu.rtl.sizes import address_bits
from npuc.targets.easynpu.rtl.words import Fields


class Rearranger(wiring.Component):
    """The piece that begins at `lane` in the map's word at `row`, `column`, `group`.

    `piece` is its destination in the map at `target`, `next_lane` the lane after it; `piece.last`: it is the
    word's last. `writes` are the cycles that a result takes behind other words (rearrangement.most_written).
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.bits = address_bits(machine) + GROUP + 1
        super().__init__(
            {
                "word": In(WORD),
                "target": In(layouts.place(machine)),
                "row": In(INDEX),
                "column": In(INDEX),
                "group": In(GROUP),
                "lane": In(GROUP),
                "piece": Out(layouts.piece(machine)),
                "next_lane": Out(GROUP + 1),
                "writes": Out(range(LANES + 1)),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self.fields = Fields(self.word, Reshape)
        self.whole, self.stacked, self.run = Signal(), Signal(), Signal(layouts.held("Ci"))
        self.within = Signal(layouts.held("Ci"))
        self._lengths(m)
        row, column, channel = self._destination(m)
        self._piece(m, row, column, channel)
        self._writes(m)
        return m

    def _split(self, dimension: int) -> tuple[Value, Value, Value, Value]:
        """(parts, onto, minor, insert), as in rearrangement.splits."""
        name = DIMENSIONS[dimension]
        parts, onto, minor, insert = (
            getattr(self.fields, f"{key}_{name}") for key in ("split", "onto", "minor", "insert")
        )
        return parts, onto, minor, insert

    def _lengths(self, m: Module) -> None:
        """The number of channels that stay adjacent (rearrangement.run_length)."""
        parts, _, minor, _ = self._split(C)
        stays = Array(order[C] == C for order in PERMUTATIONS)[self.fields.perm]
        inserted, stacked = Value.cast(0), Value.cast(0)
        for dimension in ORDER:
            count, onto, _, insert = self._split(dimension)
            here = (count > 1) & (onto == C)
            stacked, inserted = stacked | here, inserted | (here & insert)
        apart = ~Value.cast(stays) | (minor & (parts > 1)) | inserted
        m.d.comb += [
            self.stacked.eq(stacked),
            self.whole.eq(~apart & (parts == 1)),
            self.run.eq(Mux(apart, 1, self.fields.Ci // parts)),
        ]

    def _destination(self, m: Module) -> tuple[Value, Value, Value]:
        """Row, column and channel of the result for the first lane of the piece."""
        fields = self.fields
        at = (Value.cast(0), self.row, self.column, (self.group << GROUP) + self.lane)
        sizes = (Value.cast(1), fields.Hi, fields.Wi, fields.Ci)
        index, extents = (self._permuted(m, each, name) for each, name in ((at, "index"), (sizes, "extent")))
        for dimension in ORDER:
            parts, onto, minor, insert = self._split(dimension)
            name = DIMENSIONS[dimension]
            rest, quotient, part, remainder, moved = (
                Signal(self.bits, name=f"{each}_{name}")
                for each in ("rest", "quotient", "part", "remainder", "moved")
            )
            divisor = Mux(minor, parts, rest)
            m.d.comb += [
                rest.eq(extents[dimension] // parts),
                quotient.eq(index[dimension] // divisor),
                remainder.eq(index[dimension] - quotient * divisor),
                part.eq(Mux(minor, remainder, quotient)),
            ]
            if dimension == C:
                m.d.comb += self.within.eq(remainder)
            index[dimension], extents[dimension] = Mux(minor, quotient, remainder), rest
            old, size = Array(index)[onto], Array(extents)[onto]
            m.d.comb += moved.eq(Mux(insert, old * parts + part, part * size + old))
            index = [Mux(onto == each, moved, value) for each, value in enumerate(index)]
            extents = [
                self._narrow(m, Mux(onto == each, value * parts, value)) for each, value in enumerate(extents)
            ]
            index = [self._narrow(m, value) for value in index]
        _, row, column, channel = index
        return row, column, channel

    def _permuted(self, m: Module, values: tuple[Value, ...], name: str) -> list[Value]:
        """The values of N, H, W and C in the order of the permutation."""
        found: list[Value] = []
        for dimension in range(len(values)):
            chosen = Signal(self.bits, name=f"{name}_{DIMENSIONS[dimension]}")
            sources = Array(Value.cast(values[order[dimension]]) for order in PERMUTATIONS)
            m.d.comb += chosen.eq(sources[self.fields.perm])
            found.append(chosen)
        return found

    def _narrow(self, m: Module, value: Value) -> Value:
        kept = Signal(self.bits)
        m.d.comb += kept.eq(value)
        return kept

    def _piece(self, m: Module, row: Value, column: Value, channel: Value) -> None:
        """The piece, up to the end of the run, of the word that is read, or of the word that is written."""
        piece, to = self.piece, Signal(GROUP)
        lanes, left = Signal(range(LANES + 1)), Signal(range(LANES + 1))
        run_left, length = Signal(len(self.run)), Signal(range(LANES + 1))
        last_group = self.group == self.fields.last("Ci") >> GROUP
        m.d.comb += [
            to.eq(channel[:GROUP]),
            lanes.eq(Mux(last_group, self.fields.last("Ci")[:GROUP] + 1, LANES)),
            left.eq(lanes - self.lane),
            run_left.eq(Mux(self.run == 1, 1, self.run - self.within)),
            length.eq(least(least(left, LANES - to), run_left)),
            self.next_lane.eq(self.lane + length),
            piece.last.eq(self.next_lane == lanes),
            piece.target.valid.eq(1),
            piece.target.memory.eq(self.target.memory),
            piece.target.address.eq(self._word(row, column, channel >> GROUP)),
            piece.rotation.eq(self.lane - to),
        ]
        m.d.comb += [piece.lanes[lane].eq((lane >= to) & (lane < to + length)) for lane in range(LANES)]
        unused = self.fields.Co[:GROUP]
        opens_last = (channel >> GROUP == self.fields.last("Co") >> GROUP) & (to == 0) & (unused != 0)
        with m.If(opens_last):
            m.d.comb += [piece.cleared[lane].eq(lane >= unused) for lane in range(LANES)]

    def _word(self, row: Value, column: Value, group: Value) -> Value:
        place, bits = self.target, address_bits(self.machine)
        return (place.base + place.row * row + place.pixel * column + place.group * group)[:bits]

    def _writes(self, m: Module) -> None:
        """The cases of rearrangement.most_written."""
        run, channels = self.run, self.fields.Ci
        lanes = Signal(range(LANES + 1))
        m.d.comb += [lanes.eq(least(channels, LANES)), self.writes.eq(lanes)]
        with m.If(run[:GROUP] == 0):
            m.d.comb += self.writes.eq(1)
        for length in (2, 4, 8):
            with m.Elif(run == length):
                m.d.comb += self.writes.eq(lanes >> (length.bit_length() - 1))
        with m.Elif(self.whole & (run != 1)):
            m.d.comb += self.writes.eq(1 + self.stacked)
        with m.Elif(run > LANES):
            m.d.comb += self.writes.eq(4)
        with m.Elif((run != 1) & ~self.stacked):
            table = Array(runs_most(max(each, 1)) for each in range(LANES))
            m.d.comb += self.writes.eq(least(lanes, table[run[:GROUP]]))


def least(left: Any, right: Any) -> Value:
    """The smaller of two values."""
    return Mux(Value.cast(left) < right, left, right)
