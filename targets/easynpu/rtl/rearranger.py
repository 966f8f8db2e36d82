"""The rearranger: the pieces of a reshape word's map, with the destination and lanes of each.

Source: easynpu, Reshape; the meaning of the fields: rearrangement.destination. Extents are divided one bit a
cycle before a chain starts, once per word. From then on the rearranger goes ahead of the chain over the words of
the map, part by part of adjacent lanes; a part's destination takes a pipeline of products with reciprocals.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import DIMENSIONS, ORDER, PERMUTATIONS, C, H, W, runs_most
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import GROUP, INDEX, TILE, WORD
from npuc.targets.easynpu.rtl.loader import Tile
from npuc.targets.easynpu.rtl.words import Fields, address, address_bits, delay

DEPTH = 32
"""Parts under way: more than the stages of the pipeline."""


class Divider(wiring.Component):
    """A quotient, one bit a cycle, of the numerator and divisor at `start`."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__({"start": In(1), "numerator": In(bits), "divisor": In(bits), "quotient": Out(bits)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit: bits leave the quotient's upper end for the rest, and come in at its lower end."""
        m = Module()
        rest, divisor, ahead = Signal(self.bits), Signal(self.bits), Signal(self.bits + 1)
        left = Signal(range(self.bits + 1))
        m.d.comb += ahead.eq((rest << 1) | self.quotient[-1])
        with m.If(self.start):
            m.d.sync += [
                self.quotient.eq(self.numerator),
                divisor.eq(self.divisor),
                rest.eq(0),
                left.eq(self.bits),
            ]
        with m.Elif(left != 0):
            m.d.sync += [
                left.eq(left - 1),
                rest.eq(Mux(ahead >= divisor, ahead - divisor, ahead)),
                self.quotient.eq((self.quotient << 1) | (ahead >= divisor)),
            ]
        return m


class Rearranger(wiring.Component):
    """The pieces of the map of `word`, which is set up from `start` on, within rearrangement.SETUP cycles.

    They come in the order of the `chain`'s results. `piece` is the next one, with its destination; `take` moves
    on; `piece.last`: it is the last of a word of the map. `writes` are the cycles that a result takes behind
    other words (rearrangement.most_written). `starved` is set permanently if a piece is ever taken before it is
    known.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.bits = address_bits(machine) + GROUP + 1
        super().__init__(
            {
                "word": In(WORD),
                "start": In(1),
                "chain": In(layouts.chain(machine)),
                "take": In(1),
                "piece": Out(layouts.piece(machine)),
                "writes": Out(range(LANES + 1)),
                "starved": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self.fields = Fields(self.word, Reshape)
        sizes = (Value.cast(1), self.fields.Hi, self.fields.Wi, self.fields.Ci)
        self.extents = [Signal(self.bits, name=f"extent_{name}") for name in DIMENSIONS]
        # of a split dimension: indices that stay, divisor of the index, its reciprocal, factor of what is moved
        self.rest, self.divisor, self.factor = (
            [Signal(self.bits, name=f"{each}_{name}") for name in DIMENSIONS]
            for each in ("rest", "divisor", "factor")
        )
        self.reciprocal = [Signal(self.bits + 1, name=f"reciprocal_{name}") for name in DIMENSIONS]
        self.begins = Signal()
        self._divide(m, self._permute(sizes))
        self._lengths(m)
        part = self._walk(m)
        self._cut(m, self._destination(m, part))
        self._writes(m)
        return m

    def _split(self, dimension: int) -> tuple[Value, Value, Value, Value]:
        """(parts, onto, minor, insert), as in rearrangement.splits."""
        name = DIMENSIONS[dimension]
        parts, onto, minor, insert = (
            getattr(self.fields, f"{key}_{name}") for key in ("split", "onto", "minor", "insert")
        )
        return parts, onto, minor, insert

    def _permute(self, values: tuple[Value, ...]) -> list[Value]:
        """The values of N, H, W and C in the order of the permutation."""
        return [
            Value.cast(Array(Value.cast(values[order[each]]) for order in PERMUTATIONS)[self.fields.perm])
            for each in range(len(values))
        ]

    def _divide(self, m: Module, sizes: list[Value]) -> None:
        """Divides extents by parts, dimension by dimension, and, a dimension behind, 2^bits by divisors."""
        m.submodules.extents = extents = Divider(self.bits)
        m.submodules.reciprocals = reciprocals = Divider(self.bits + 1)
        turns = len(ORDER) + 1
        turn, cycle, busy = Signal(turns), Signal(range(self.bits + 5)), Signal()
        first, done, ends, size, moved = (
            Signal(),
            Signal(turns),
            Signal(turns),
            Signal(self.bits),
            Signal(self.bits),
        )
        m.d.comb += [
            extents.start.eq(busy & (cycle == 0)),
            reciprocals.start.eq(extents.start),
            reciprocals.numerator.eq(1 << self.bits),
            self.begins.eq(ends[-1]),
        ]
        m.d.sync += [
            first.eq(self.start),
            done.eq(Mux(cycle == self.bits + 2, turn, 0)),
            ends.eq(Mux(busy, done, 0)),
            moved.eq(size * extents.divisor),
        ]
        with m.If(first):  # the word is there
            m.d.sync += [busy.eq(1), turn.eq(1), cycle.eq(0)]
        with m.Elif(ends.any()):
            m.d.sync += [busy.eq(~turn[-1]), turn.eq(turn << 1), cycle.eq(0)]
        with m.Elif(busy):
            m.d.sync += cycle.eq(cycle + 1)
        onto_ends = [Value.cast(0) for _ in DIMENSIONS]
        for number, dimension in enumerate(ORDER):
            parts, onto, minor, insert = self._split(dimension)
            with m.If(turn[number]):
                m.d.comb += [extents.numerator.eq(self.extents[dimension]), extents.divisor.eq(parts)]
                old = Value.cast(Array(self.extents)[onto])
                m.d.sync += size.eq(Mux(onto == dimension, extents.quotient, old))
            with m.If(done[number]):
                m.d.sync += self.rest[dimension].eq(extents.quotient)
            with m.If(ends[number]):
                m.d.sync += self.divisor[dimension].eq(Mux(minor, parts, self.rest[dimension]))
                m.d.sync += self.factor[dimension].eq(Mux(insert, parts, size))
            with m.If(turn[number + 1]):
                m.d.comb += reciprocals.divisor.eq(self.divisor[dimension])
            with m.If(done[number + 1]):
                m.d.sync += self.reciprocal[dimension].eq(reciprocals.quotient)
            onto_ends = [found | (ends[number] & (onto == at)) for at, found in enumerate(onto_ends)]
        for dimension, extent in enumerate(self.extents):
            with m.If(first):
                m.d.sync += extent.eq(sizes[dimension])
            with m.Elif(onto_ends[dimension]):
                m.d.sync += extent.eq(moved)
            with m.Elif(done[ORDER.index(dimension)]):
                m.d.sync += extent.eq(extents.quotient)

    def _lengths(self, m: Module) -> None:
        """The number of channels that stay adjacent (rearrangement.run_length)."""
        self.run, self.whole, self.stacked = Signal(layouts.value_bits("Ci")), Signal(), Signal()
        parts, _, minor, _ = self._split(C)
        stays = Array(order[C] == C for order in PERMUTATIONS)[self.fields.perm]
        inserted, stacked = Value.cast(0), Value.cast(0)
        for dimension in ORDER:
            count, onto, _, insert = self._split(dimension)
            here = (count > 1) & (onto == C)
            stacked, inserted = stacked | here, inserted | (here & insert)
        apart = ~Value.cast(stays) | (minor & (parts > 1)) | inserted
        m.d.sync += [
            self.stacked.eq(stacked),
            self.whole.eq(~apart & (parts == 1)),
            self.run.eq(Mux(apart, 1, self.rest[C])),
        ]

    def _walk(self, m: Module) -> Any:
        """Goes over the map's words as the chain does, tile by tile, and in a word from run to run."""
        chain, last_group = self.chain, self.chain.last_channel >> GROUP
        running, self.goes, self.under_way = Signal(), Signal(), Signal(range(DEPTH + 1))
        tile, oyi, oxi, group = Tile(chain), Signal(TILE), Signal(TILE), Signal(GROUP)
        lane, within, at_group, after = (Signal(GROUP), *(Signal(len(self.run)) for _ in range(3)))
        lanes, left, length = Signal(range(LANES + 1)), Signal(len(self.run)), Signal(range(LANES + 1))
        row, column, word_ends, row_ends, tile_ends = Signal(INDEX), Signal(INDEX), Signal(), Signal(), Signal()
        rest, ahead = Signal(range(LANES + 1)), Signal(GROUP)
        part = Signal(
            data.StructLayout(
                {
                    "valid": 1,
                    "row": INDEX,
                    "column": INDEX,
                    "group": GROUP,
                    "lane": GROUP,
                    "length": len(length),
                    "last": 1,
                }
            )
        )
        m.d.comb += [
            self.goes.eq(running & (self.under_way < DEPTH - 1)),
            row.eq(tile.rows.at + oyi),
            column.eq(tile.columns.at + oxi),
            ahead.eq(Mux(self.begins | (group == last_group), 0, group + 1)),
            left.eq(self.run - within),
            rest.eq(lanes - lane),
            word_ends.eq(rest <= left),
            length.eq(Mux(word_ends, rest, left)),
            after.eq(Mux(left <= rest, 0, within + length)),
            row_ends.eq(oxi + 1 == tile.columns.extent),
            tile_ends.eq(row_ends & (oyi + 1 == tile.rows.extent)),
        ]
        m.d.sync += [
            part.valid.eq(self.goes),
            part.row.eq(row),
            part.column.eq(column),
            part.group.eq(group),
            part.lane.eq(lane),
            part.length.eq(length),
            part.last.eq(word_ends),
        ]
        with m.If(self.begins | (self.goes & word_ends & tile_ends)):
            m.d.sync += group.eq(ahead)
            m.d.sync += lanes.eq(Mux(ahead == last_group, chain.last_channel[:GROUP] + 1, LANES))
        with m.If(self.begins):
            m.d.sync += [each.eq(0) for each in (oyi, oxi, lane, within, at_group)]
            m.d.sync += running.eq(1)
            tile.begin(m)
        with m.Elif(self.goes):
            m.d.sync += [lane.eq(lane + length), within.eq(after)]
            with m.If(word_ends):
                m.d.sync += [lane.eq(0), within.eq(at_group), oxi.eq(oxi + 1)]
                with m.If(row_ends):
                    m.d.sync += [oxi.eq(0), oyi.eq(oyi + 1)]
                with m.If(tile_ends):
                    m.d.sync += [oyi.eq(0), within.eq(after), at_group.eq(after)]
                    with m.If(group == last_group):
                        m.d.sync += [within.eq(0), at_group.eq(0)]
                        m.d.sync += running.eq(tile.follows)
                        tile.advance(m)
        return part

    def _destination(self, m: Module, part: Any) -> Any:
        """A part's destination: split after split an index is divided, and its part goes to another dimension."""
        at = (Value.cast(0), part.row, part.column, (part.group << GROUP) | part.lane)
        carried = data.StructLayout({"lane": GROUP, "length": len(part.length), "last": 1, "valid": 1})
        rest = Signal(carried, name="carried")
        m.d.comb += [rest[name].eq(part[name]) for name in carried.members]
        index = [
            delay(m, each, 1, f"index_{name}") for name, each in zip(DIMENSIONS, self._permute(at), strict=True)
        ]
        rest = delay(m, rest, 1, "permuted")
        for dimension in ORDER:
            index = self._move_index(m, dimension, index)
            rest = delay(m, rest, 5, f"split_{DIMENSIONS[dimension]}")
        place, channel = self.chain.target, index[C]
        to = Signal(
            data.StructLayout(
                {"address": address_bits(self.machine), "group": GROUP, "to": GROUP, **dict(carried.members)}
            )
        )
        rest = delay(m, rest, 3, "destination")
        m.d.comb += [to[name].eq(rest[name]) for name in carried.members]
        m.d.comb += [
            to.address.eq(address(m, self.machine, "to", place, index[H], index[W], channel[GROUP:])),
            to.group.eq(delay(m, channel[GROUP : 2 * GROUP], 3, "to_group")),
            to.to.eq(delay(m, channel[:GROUP], 3, "to_lane")),
        ]
        return to

    def _move_index(self, m: Module, dimension: int, index: list[Any]) -> list[Any]:
        """The index after a split, 5 cycles later: product, estimate's product, quotient, moved, sum."""
        _, onto, minor, insert = self._split(dimension)
        name, bits, divisor = DIMENSIONS[dimension], self.bits, self.divisor[dimension]
        product = delay(m, index[dimension] * self.reciprocal[dimension], 1, f"reached_{name}")
        index = [delay(m, each, 1, f"{name}_index{at}a") for at, each in enumerate(index)]
        estimate = product[bits:][:bits]  # the quotient, or one less
        taken = delay(m, (estimate * divisor)[:bits], 1, f"taken_{name}")
        estimate = delay(m, estimate, 1, f"estimate_{name}")
        index = [delay(m, each, 1, f"{name}_index{at}b") for at, each in enumerate(index)]
        over = Signal(bits, name=f"over_{name}")
        m.d.comb += over.eq(index[dimension] - taken)
        more = over >= divisor
        quotient = delay(m, (estimate + more)[:bits], 1, f"quotient_{name}")
        remainder = delay(m, Mux(more, over - divisor, over)[:bits], 1, f"remainder_{name}")
        index = [delay(m, each, 1, f"{name}_index{at}c") for at, each in enumerate(index)]
        part = Mux(minor, remainder, quotient)
        index[dimension] = Mux(minor, quotient, remainder)
        old = Array(map(Value.cast, index))[onto]
        words = delay(m, (Mux(insert, old, part) * self.factor[dimension])[:bits], 1, f"words_{name}")
        more = delay(m, Mux(insert, part, old), 1, f"more_{name}")
        index = [delay(m, each[:bits], 1, f"{name}_index{at}d") for at, each in enumerate(index)]
        index = [Mux(onto == at, words + more, each) for at, each in enumerate(index)]
        return [delay(m, each[:bits], 1, f"{name}_index{at}e") for at, each in enumerate(index)]

    def _cut(self, m: Module, to: Any) -> None:
        """Cuts parts at the ends of the words that they go to."""
        m.submodules.parts = parts = fifo.SyncFIFOBuffered(width=to.shape().size, depth=DEPTH)
        part, piece = Signal(to.shape(), name="part_out"), self.piece
        second, goes = Signal(), Signal()
        room, fits, begin, length = Signal(range(LANES + 1)), Signal(), Signal(GROUP), Signal(range(LANES + 1))
        m.d.comb += [
            parts.w_en.eq(to.valid),
            parts.w_data.eq(to),
            part.eq(parts.r_data),
            room.eq(LANES - part.to),
            fits.eq(part.length <= room),
            goes.eq(self.take & (fits | second)),
            parts.r_en.eq(goes),
            begin.eq(Mux(second, 0, part.to)),
            length.eq(Mux(second, part.length - room, Mux(fits, part.length, room))),
            piece.last.eq(part.last & (fits | second)),
            piece.target.valid.eq(1),
            piece.target.memory.eq(self.chain.target.memory),
            piece.target.address.eq(part.address + Mux(second, self.chain.target.group, 0)),
            piece.rotation.eq(part.lane - part.to),
        ]
        with m.If(self.take):
            m.d.sync += second.eq(~goes)
        with m.If(self.take & ~parts.r_rdy):
            m.d.sync += self.starved.eq(1)
        m.d.sync += self.under_way.eq(self.under_way + self.goes - goes)
        m.d.comb += [piece.lanes[lane].eq((lane >= begin) & (lane < begin + length)) for lane in range(LANES)]
        unused = self.fields.Co[:GROUP]
        opens_last = (part.group + second == self.fields.last("Co") >> GROUP) & (begin == 0) & (unused != 0)
        with m.If(opens_last):
            m.d.comb += [piece.cleared[lane].eq(lane >= unused) for lane in range(LANES)]

    def _writes(self, m: Module) -> None:
        """The cases of rearrangement.most_written."""
        run, channels = self.run, self.fields.Ci
        lanes = least(channels, LANES)
        m.d.sync += self.writes.eq(lanes)
        with m.If(run[:GROUP] == 0):
            m.d.sync += self.writes.eq(1)
        for length in (2, 4, 8):
            with m.Elif(run == length):
                m.d.sync += self.writes.eq(lanes >> (length.bit_length() - 1))
        with m.Elif(self.whole & (run != 1)):
            m.d.sync += self.writes.eq(1 + self.stacked)
        with m.Elif(run > LANES):
            m.d.sync += self.writes.eq(4)
        with m.Elif((run != 1) & ~self.stacked):
            table = Array(runs_most(max(each, 1)) for each in range(LANES))
            m.d.sync += self.writes.eq(least(lanes, table[run[:GROUP]]))


def least(left: Any, right: Any) -> Value:
    """The smaller of two values."""
    return Mux(Value.cast(left) < right, left, right)
