"""The loader: loads sub-ifmap after sub-ifmap into the ifmap pads, one step ahead of the PEs.

With two sets of pads it fills the one that the PEs do not read; a single set is refilled behind their reads, as
the sequencer permits.

Source: easynpu, Scheduler; docs/decisions.md, EasyNPU cycles (ifmap prefetch, edge tiles, padding).
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import AHEAD, GROUP, INDEX, TILE, value_bits
from npuc.targets.easynpu.rtl.words import address, delay, index_bits, pad_depth, store


class Loader(wiring.Component):
    """Goes through the steps of a chain and the words of each step's sub-ifmap.

    `start` begins with the first step; a word is loaded in every cycle with `enable` until the sub-ifmap is
    complete, as it will be with a word that `ends` it. It then moves on to the next step if the chain
    `continues`; `advance` moves on at any time. `step` is the step whose sub-ifmap is loaded, if it `exists`; none
    follows `last_step`. This cycle's word goes to the pad entry `entry`. `next_part`: that of `step` in the next
    cycle. AHEAD cycles later, `request` is its read; `padding` replaces a read outside the map, with -128 if
    `lowest`.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.stages = index_bits(machine.itcm_words)
        super().__init__(
            {
                "chain": In(layouts.chain(machine)),
                "write": In(1),
                "write_stage": In(self.stages),
                "stage": In(layouts.load_stage(machine)),
                "start": In(1),
                "enable": In(1),
                "advance": In(1),
                "continues": In(1),
                "step": Out(layouts.step(machine)),
                "next_part": Out(self.stages),
                "exists": Out(1),
                "last_step": Out(1),
                "complete": Out(1),
                "ends": Out(1),
                "loads": Out(1),
                "request": Out(layouts.request(machine)),
                "padding": Out(1),
                "lowest": Out(1),
                "entry": Out(index_bits(pad_depth(machine))),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self.part, self.group = Signal(self.stages), Signal(GROUP)
        self.tile = Tile(self.chain)
        self.side, self.whole, self.running = Signal(), Signal(), Signal()
        self.following, self.moves = Signal(self.stages), Signal()
        depth = self.machine.itcm_words
        read = store(m, "stages", depth, self.write, self.write_stage, self.stage).read_port()
        m.d.comb += read.addr.eq(self.following)
        self.now = read.data
        self._register_bounds(m)
        self._describe(m)
        self._go_on(m)
        self._sweep(m)
        return m

    def _register_bounds(self, m: Module) -> None:
        """Registers the ends of the next step, before its other fields: its first cycle needs them."""
        self.bounds: Any = Signal(layouts.BOUNDS)
        self.last_group = Signal()
        self._after(m)
        part, group = (Mux(self.running, each, 0) for each in (self.after_part, self.after_group))
        depth = self.machine.itcm_words
        bounds = store(m, "bounds", depth, self.write, self.write_stage, self.stage.bounds)
        read = bounds.read_port(domain="comb")
        m.d.comb += read.addr.eq(part)
        with m.If(self.moves | ~self.running):
            m.d.sync += [self.bounds.eq(read.data), self.last_group.eq(read.data.last_group == group)]

    def _describe(self, m: Module) -> None:
        """Derives the step from the counters."""
        chain, step, last_group = self.chain, self.step, self.last_group
        m.d.comb += [
            self.exists.eq(self.running),
            self.last_step.eq(self.tile_ends & ~self.tile.follows),
            step.oy.eq(self.tile.rows.at),
            step.ox.eq(self.tile.columns.at),
            step.y.eq(self.tile.rows.extent),
            step.x.eq(self.tile.columns.extent),
            step.positions.eq(step.y * step.x),
            step.part.eq(self.part),
            step.group.eq(self.group),
            step.side.eq(self.side),
            step.one_hk.eq(self.bounds.one_hk),
            step.one_wk.eq(self.bounds.one_wk),
            step.one_channel.eq(~chain.dense | (last_group & self.bounds.one_channel)),
            self.next_part.eq(self.following),
            step.last_channel.eq(Mux(chain.dense, Mux(last_group, self.now.last_channel, (1 << GROUP) - 1), 0)),
            step.first.eq((self.part == 0) & (~chain.dense | (self.group == 0)) & ~chain.takes),
            step.last.eq(~self.more_parts & (~chain.dense | last_group) & ~chain.leaves),
        ]

    def _after(self, m: Module) -> None:
        """The next step: groups within words, or channel-wise words within groups, within tiles."""
        dense, part, group = (
            self.chain.dense,
            Signal(self.stages, name="after_part"),
            Signal(GROUP, name="after_group"),
        )
        self.after_part, self.after_group = part, group  # 0 in the next tile
        self.more_parts, self.tile_ends = Signal(), Signal()
        m.d.comb += [
            self.more_parts.eq(self.part < self.chain.last_part),
            self.tile_ends.eq(self.last_group & ~self.more_parts),
        ]
        with m.If(dense & ~self.last_group):
            m.d.comb += [part.eq(self.part), group.eq(self.group + 1)]
        with m.Elif(self.more_parts):
            m.d.comb += [part.eq(self.part + 1), group.eq(Mux(dense, 0, self.group))]
        with m.Elif(~self.last_group):
            m.d.comb += group.eq(self.group + 1)

    def _go_on(self, m: Module) -> None:
        """Moves to the next step."""
        m.d.comb += self.following.eq(Mux(self.moves, self.after_part, self.part))
        m.d.sync += self.part.eq(self.following)
        with m.If(self.start):
            m.d.sync += self.running.eq(1)
        with m.If(~self.running):
            m.d.sync += [self.side.eq(0), self.whole.eq(0)]
            self.tile.begin(m)
        with m.Elif(self.moves):
            m.d.sync += [self.whole.eq(0), self.group.eq(self.after_group)]
            if self.machine.ifmap_pad_sets > 1:
                m.d.sync += self.side.eq(~self.side)
            with m.If(self.tile_ends):
                m.d.sync += self.running.eq(self.tile.follows)
                self.tile.advance(m)

    def _sweep(self, m: Module) -> None:
        """Goes through the sub-ifmap that the tile needs, row by row."""
        step, now = self.step, self.now
        row, column = Signal(TILE), Signal(TILE)
        first_entry = Signal(len(self.entry))
        last_row, last_column = Signal(TILE), Signal(TILE)
        fresh, row_ends = Signal(), Signal()
        # in the step's first cycle, only whether there are one or two rows or columns is known
        rows, columns = self.tile.rows, self.tile.columns
        one_row, one_column = rows.single & step.one_hk, columns.single & step.one_wk
        two_rows = Mux(step.one_hk, (step.y == 2) & (now.Sh == 1), rows.single & (now.reach_h == 1))
        two_columns = Mux(step.one_wk, (step.x == 2) & (now.Sw == 1), columns.single & (now.reach_w == 1))
        in_last_row, in_last_column = Signal(), Signal()
        m.d.sync += [
            fresh.eq(~self.running | self.moves),
            last_row.eq((step.y - 1) * now.Sh + now.reach_h),
            last_column.eq((step.x - 1) * now.Sw + now.reach_w),
        ]
        m.d.comb += [
            self.complete.eq(self.whole | ~self.running),
            self.moves.eq(
                self.advance | (self.continues & self.running & (self.whole | (self.ends & self.enable)))
            ),
            self.loads.eq(self.enable & ~self.complete),
            row_ends.eq(Mux(fresh, one_column, in_last_column)),
            self.ends.eq(row_ends & Mux(fresh, one_row, in_last_row)),
        ]
        with m.If(fresh):
            m.d.sync += [in_last_row.eq(one_row), in_last_column.eq(one_column)]
        with m.If(self.loads):
            m.d.sync += column.eq(column + 1)
            m.d.sync += in_last_column.eq(Mux(fresh, two_columns, column + 1 == last_column))
            with m.If(row_ends):
                m.d.sync += [column.eq(0), row.eq(row + 1), first_entry.eq(first_entry + now.xi)]
                m.d.sync += in_last_column.eq(one_column)
                m.d.sync += in_last_row.eq(Mux(fresh, two_rows, row + 1 == last_row))
            with m.If(self.ends & ~self.moves):
                m.d.sync += self.whole.eq(1)
        with m.If(~self.running | self.moves):
            m.d.sync += [row.eq(0), column.eq(0), first_entry.eq(0)]
        self._address(m, row, column)
        base = Mux(self.side, self.machine.ifmap_pad_entries, 0)
        m.d.comb += self.entry.eq(base + first_entry + column)

    def _address(self, m: Module, row: Value, column: Value) -> None:
        """The address of the word, if it is inside the map."""
        now, was = self.now, delay(m, self.now, AHEAD - 3, "was")
        terms = (
            ("down", now.Sh * self.tile.rows.at), ("along", now.Sw * self.tile.columns.at),
            ("row", row), ("column", column), ("group", self.group),
        )  # fmt: skip
        down, along, row, column, group = (delay(m, each, AHEAD - 3, f"{name}_was") for name, each in terms)
        iy, ix = Signal(signed(INDEX + 6)), Signal(signed(INDEX + 6))
        outside = Signal()
        m.d.comb += [iy.eq(down + row - was.Ph), ix.eq(along + column - was.Pw)]
        compared = (("y", iy), ("x", ix), ("Hi", was.Hi), ("Wi", was.Wi))
        y, x, Hi, Wi = (delay(m, each, 1, f"compared_{name}") for name, each in compared)
        m.d.comb += [
            outside.eq((y < 0) | (y >= Hi) | (x < 0) | (x >= Wi)),
            self.padding.eq(delay(m, outside, 2, "outside")),
            self.lowest.eq(delay(m, was.lowest, 3, "lowest")),
            self.request.valid.eq(delay(m, delay(m, self.loads, AHEAD - 2, "loading") & ~outside, 2, "reads")),
            self.request.memory.eq(delay(m, was.place.memory, 3, "memory")),
            self.request.address.eq(address(m, self.machine, "word", was.place, iy, ix, group)),
        ]


class Axis:
    """A tile along an axis: its first index `at`, its `extent`, if it is `single`, and if `more` follows."""

    def __init__(self, name: str, last: Value, most: Value) -> None:
        self.at, self.extent = Signal(INDEX, name=f"o{name}"), Signal(value_bits(name), name=f"tile_{name}")
        self.beyond, self.more = Signal(INDEX + 1, name=f"beyond_{name}"), Signal(name=f"more_{name}")
        self.single = Signal(name=f"single_{name}")
        self._last, self._most = last, most

    def begin(self, m: Module) -> None:
        """Begins with the first tile."""
        self._enter(m, Const(0), self._last + 1)

    def advance(self, m: Module) -> None:
        """Moves on to the next tile, of which everything is known."""
        self._enter(m, self.at + self._most, self.beyond)

    def _enter(self, m: Module, at: Value, left: Value) -> None:
        most = self._most
        m.d.sync += [self.at.eq(at), self.extent.eq(Mux(most < left, most, left))]
        m.d.sync += [self.beyond.eq(left - most), self.more.eq(left > most)]
        m.d.sync += self.single.eq((left == 1) | (most == 1))


class Tile:
    """The registers of a tile of a chain's map; tile after tile, row by row, as long as one `follows`."""

    def __init__(self, chain: Any) -> None:
        self.rows, self.columns = Axis("y", chain.last_row, chain.y), Axis("x", chain.last_column, chain.x)
        self.follows = self.rows.more | self.columns.more

    def begin(self, m: Module) -> None:
        """Begins with the first tile."""
        self.rows.begin(m)
        self.columns.begin(m)

    def advance(self, m: Module) -> None:
        """Moves on to the next tile."""
        with m.If(self.columns.more):
            self.columns.advance(m)
        with m.Else():
            self.columns.begin(m)
            self.rows.advance(m)
