"""The loader: loads sub-ifmap after sub-ifmap into the ifmap pads, one step ahead of the PEs.

With two sets of pads it fills the one that the PEs do not read; a single set is refilled behind their reads, as
the sequencer permits.

Source: easynpu, Scheduler; docs/decisions.md, EasyNPU cycles (ifmap prefetch, edge tiles, padding).
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import AHEAD, GROUP, INDEX, TILE
from npuc.targets.easynpu.rtl.words import address, delayed, index_bits, pad_depth


class Loader(wiring.Component):
    """Goes through the steps of a chain and the words of each step's sub-ifmap.

    `start` begins with the first step; a word is loaded in every cycle with `enable` until the sub-ifmap is
    complete. `finished`: it is complete, or will be with this cycle's word; `advance` moves on to the next step.
    `step` is the step whose sub-ifmap is loaded, if it `exists`; none follows `last_step`. This cycle's word
    goes to the pad entry `entry`. `next_part`: that of `step` in the next cycle. AHEAD cycles later, `request`
    is its read; `padding` replaces a read outside the map, with -128 if `lowest`.
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
                "step": Out(layouts.step(machine)),
                "next_part": Out(self.stages),
                "exists": Out(1),
                "last_step": Out(1),
                "finished": Out(1),
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
        self.oy, self.ox = Signal(INDEX), Signal(INDEX)
        self.side, self.complete, self.running = Signal(), Signal(), Signal()
        self.following = Signal(self.stages)
        m.submodules.stages = stages = memory.Memory(
            shape=layouts.load_stage(self.machine), depth=self.machine.itcm_words, init=[]
        )
        write, read = stages.write_port(), stages.read_port()
        m.d.comb += [
            write.en.eq(self.write),
            write.addr.eq(self.write_stage),
            write.data.eq(self.stage),
            read.addr.eq(self.following),
        ]
        self.now = read.data
        self._describe(m)
        self._go_on(m)
        self._sweep(m)
        return m

    def _describe(self, m: Module) -> None:
        """Derives the step from the counters."""
        chain, step, now = self.chain, self.step, self.now
        last_group = now.last_channel >> GROUP
        rest_y, rest_x = chain.last_row - self.oy + 1, chain.last_column - self.ox + 1
        m.d.comb += [
            self.exists.eq(self.running),
            self.last_step.eq(
                (self.part == chain.last_part)
                & (self.group == last_group)
                & (rest_y <= chain.y)
                & (rest_x <= chain.x)
            ),
            step.oy.eq(self.oy),
            step.ox.eq(self.ox),
            step.y.eq(Mux(rest_y < chain.y, rest_y, chain.y)),
            step.x.eq(Mux(rest_x < chain.x, rest_x, chain.x)),
            step.positions.eq(step.y * step.x),
            step.part.eq(self.part),
            step.group.eq(self.group),
            step.side.eq(self.side),
            step.one_hk.eq(now.one_hk),
            step.one_wk.eq(now.one_wk),
            self.next_part.eq(self.following),
            step.last_channel.eq(
                Mux(chain.dense, Mux(self.group == last_group, now.last_channel[:GROUP], (1 << GROUP) - 1), 0)
            ),
            step.first.eq((self.part == 0) & (~chain.dense | (self.group == 0)) & ~chain.takes),
            step.last.eq(
                (self.part == chain.last_part) & (~chain.dense | (self.group == last_group)) & ~chain.leaves
            ),
        ]

    def _go_on(self, m: Module) -> None:
        """Moves to the next step: groups within words, or channel-wise words within groups, within tiles."""
        chain = self.chain
        m.d.comb += self.following.eq(self.part)
        m.d.sync += self.part.eq(self.following)
        more_groups = self.group < self.now.last_channel >> GROUP
        with m.If(self.start):
            m.d.comb += self.following.eq(0)
            m.d.sync += [self.running.eq(1), self.side.eq(0), self.complete.eq(0)]
            m.d.sync += [self.group.eq(0), self.oy.eq(0), self.ox.eq(0)]
        with m.Elif(self.advance):
            m.d.sync += self.complete.eq(0)
            if self.machine.ifmap_pad_sets > 1:
                m.d.sync += self.side.eq(~self.side)
            more_parts = self.part < chain.last_part
            with m.If(chain.dense & more_groups):
                m.d.sync += self.group.eq(self.group + 1)
            with m.Elif(more_parts):
                m.d.comb += self.following.eq(self.part + 1)
                with m.If(chain.dense):
                    m.d.sync += self.group.eq(0)
            with m.Elif(~chain.dense & more_groups):
                m.d.comb += self.following.eq(0)
                m.d.sync += self.group.eq(self.group + 1)
            with m.Else():
                m.d.comb += self.following.eq(0)
                m.d.sync += self.group.eq(0)
                m.d.sync += self.running.eq(next_tile(m, chain, self.oy, self.ox))

    def _sweep(self, m: Module) -> None:
        """Goes through the sub-ifmap that the tile needs, row by row."""
        step, now = self.step, self.now
        row, column = Signal(TILE), Signal(TILE)
        first_entry = Signal(len(self.entry))
        last_row, last_column = Signal(TILE), Signal(TILE)
        fresh, at_end, row_ends = Signal(), Signal(), Signal()
        # in the step's first cycle, only whether there is a single row or column is known
        one_row, one_column = (step.y == 1) & (now.reach_h == 0), (step.x == 1) & (now.reach_w == 0)
        m.d.sync += [
            fresh.eq(self.start | self.advance),
            last_row.eq((step.y - 1) * now.Sh + now.reach_h),
            last_column.eq((step.x - 1) * now.Sw + now.reach_w),
        ]
        m.d.comb += [
            self.loads.eq(self.enable & self.running & ~self.complete),
            row_ends.eq(Mux(fresh, one_column, column == last_column)),
            at_end.eq(row_ends & Mux(fresh, one_row, row == last_row)),
            self.finished.eq(self.complete | ~self.running | (self.loads & at_end)),
        ]
        with m.If(self.loads):
            m.d.sync += column.eq(column + 1)
            with m.If(row_ends):
                m.d.sync += [column.eq(0), row.eq(row + 1), first_entry.eq(first_entry + now.xi)]
            with m.If(at_end & ~self.advance):
                m.d.sync += self.complete.eq(1)
        with m.If(self.start | self.advance):
            m.d.sync += [row.eq(0), column.eq(0), first_entry.eq(0)]
        self._address(m, row, column)
        base = Mux(self.side, self.machine.ifmap_pad_entries, 0)
        m.d.comb += self.entry.eq(base + first_entry + column)

    def _address(self, m: Module, row: Value, column: Value) -> None:
        """The address of the word, if it is inside the map."""
        now, place = self.now, self.now.place
        iy, ix = Signal(signed(INDEX + 6)), Signal(signed(INDEX + 6))
        outside = Signal()
        m.d.comb += [
            iy.eq(now.Sh * self.oy + row - now.Ph),
            ix.eq(now.Sw * self.ox + column - now.Pw),
            outside.eq((iy < 0) | (iy >= now.Hi) | (ix < 0) | (ix >= now.Wi)),
            self.padding.eq(delayed(m, outside, AHEAD, "outside")),
            self.lowest.eq(delayed(m, now.lowest, AHEAD, "lowest")),
            self.request.valid.eq(delayed(m, self.loads & ~outside, AHEAD, "reads")),
            self.request.memory.eq(delayed(m, place.memory, AHEAD, "memory")),
            self.request.address.eq(address(m, self.machine, "word", place, iy, ix, self.group)),
        ]


def next_tile(m: Module, chain: Value, oy: Signal, ox: Signal) -> Signal:
    """Moves to the next tile, row by row; returns whether there is one."""
    exists = Signal()
    column, row = Signal(INDEX + 2), Signal(INDEX + 2)
    m.d.comb += [column.eq(ox + chain.x), row.eq(oy + chain.y), exists.eq(1)]
    with m.If(column <= chain.last_column):
        m.d.sync += ox.eq(column)
    with m.Else():
        m.d.sync += [ox.eq(0), oy.eq(row)]
        m.d.comb += exists.eq(row <= chain.last_row)
    return exists
