"""The sequencer (PE controller): controls the PEs in every cycle of a step.

The loops are the document's, corrected as in docs/decisions.md; schedule.PadStep and schedule.Sweep describe the
same numerically, cycle for cycle.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import FEEDBACK
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import AHEAD, GROUP, INDEX, stored_bits, value_bits
from npuc.targets.easynpu.rtl.pe import CONTROL, Addend
from npuc.targets.easynpu.rtl.words import address, delay, index_bits, pad_depth, store, tables


def issue(machine: Machine) -> data.StructLayout:
    """What goes through the pipeline with the positions that enter the PEs together."""
    rows, entry = machine.pe_rows, index_bits(machine.parameter_pad_entries)
    return data.StructLayout(
        {
            "valid": 1,
            "control": CONTROL,
            "psum": index_bits(machine.psum_entries),
            "channel": GROUP,
            "broadcast": 1,
            "weight": 1,  # they use the next weight word
            "entry": entry,
            "table": index_bits(tables(machine)),
            "lanes": LANES,
            "result": 1,
            "write": 1,
            "count": range(rows + 1),
            "stage": index_bits(machine.itcm_words),
            "group": GROUP,
            "row": data.ArrayLayout(INDEX, rows),
            "column": data.ArrayLayout(INDEX, rows),
        }
    )


class Sequencer(wiring.Component):
    """Runs a step: `step` is taken over if it is `ready` and no other goes on; its part was `next_part` in an
    earlier cycle. `busy` until its last cycle is over, which `ends` announces.

    `issue` enters the pipeline, `operand_row` is the row whose second operand is read; AHEAD cycles later, `pad`
    are its entries of the ifmap pads, `operand` is the read, and `put` gives the destination of the next result,
    `piece`, which `puts` announces. `blocked`: no sub-ifmap word may be read in this cycle. With one set of
    ifmap pads, `guards`: the loader may only fill entries below `lowest`. If results are scattered, `take` moves
    on to the next piece, `scattered`. `late`: the chain's results wait for the operands of all rows, which are in
    another memory. `moving`: the piece is one of a map that a reshape word reads.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.stages = index_bits(machine.itcm_words)
        guard = {"guards": Out(1), "lowest": Out(index_bits(pad_depth(machine)))}
        super().__init__(
            {
                **(guard if machine.ifmap_pad_sets == 1 else {}),
                "chain": In(layouts.chain(machine)),
                "write": In(1),
                "write_stage": In(self.stages),
                "stage": In(layouts.run_stage(machine)),
                "ready": In(1),
                "step": In(layouts.step(machine)),
                "next_part": In(self.stages),
                "busy": Out(1),
                "ends": Out(1),
                "blocked": Out(1),
                "late": Out(1),
                "issue": Out(issue(machine)),
                "pad": Out(index_bits(pad_depth(machine))).array(machine.pe_rows),
                "operand": Out(layouts.request(machine)),
                "operand_row": Out(range(machine.pe_rows)),
                "piece": Out(layouts.piece(machine)),
                "put": Out(1),
                "puts": Out(1),
                "moving": In(1),
                "scattered": In(layouts.piece(machine)),
                "scattered_writes": In(range(LANES + 1)),
                "take": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self.at, self.moves_on, self.is_last = Signal(self.stages), Signal(), Signal()
        self.running, self.start = Signal(layouts.step(self.machine)), Signal()
        m.d.comb += self.start.eq(self.ready & (self.ends | ~self.busy))
        shape = layouts.run_stage(self.machine)
        stages = store(m, "stages", self.machine.itcm_words, self.write, self.write_stage, self.stage)
        first, fused = stages.read_port(), stages.read_port()
        self.now: Any = Signal(shape, name="now")
        m.d.comb += [first.addr.eq(self.next_part), fused.addr.eq(self.at + 1)]
        self.writes_now, self.apart_now, self.single_now, self.scatters = (Signal() for _ in range(4))
        self.blocks_now, self.from_source, self.free_now = Signal(), Signal(), Signal()
        with m.If(self.start):
            self._enter(m, self.step.part, first.data)
        with m.Elif(self.moves_on):
            self._enter(m, self.at + 1, fused.data)
        self._counters(m)
        self._batch(m)
        self._passes(m)
        self._positions(m)
        self._issue(m)
        if self.machine.ifmap_pad_sets == 1:
            self._guard(m)
        self._operand(m)
        self._piece(m)
        return m

    def _enter(self, m: Module, number: Value, stage: Any) -> None:
        """Enters a word of the chain, with what its last pass needs in the first cycle."""
        is_last = number == self.chain.last_stage
        meets_copy = stage.stored & (stage.copy.memory == stage.operand.memory)
        meets_target = is_last & (self.chain.target.memory == stage.operand.memory)
        apart, scatters = stage.reads & (meets_copy | meets_target), self.chain.scattered & is_last
        writes, from_source = stage.stored | is_last, stage.operand.memory == self.chain.source
        m.d.sync += [
            self.at.eq(number),
            self.now.eq(stage),
            self.is_last.eq(is_last),
            self.writes_now.eq(writes),
            self.from_source.eq(from_source),
            self.blocks_now.eq((writes & ~apart) | (stage.reads & from_source)),
            self.apart_now.eq(apart),
            self.scatters.eq(scatters),
            self.free_now.eq(~writes & ~stage.reads),
            self.single_now.eq(~apart & (~scatters | (self.scattered_writes == 1))),
        ]

    def _counters(self, m: Module) -> None:
        """The loops' counters, and the cycle's position in them."""
        rows, now = self.machine.pe_rows, self.now
        self.own, self.works, self.wait = Signal(), Signal(), Signal(range(FEEDBACK))  # busy: works or waits
        self.kzi, self.hki, self.wki = Signal(GROUP), Signal(len(now.last_hk)), Signal(len(now.last_wk))
        self.ozi = Signal(GROUP)
        self.left, self.first_batch = Signal(len(self.step.positions)), Signal()
        self.psum = Signal(len(self.issue.psum))
        self.last_hk, self.last_wk, self.last_k = Signal(), Signal(), Signal()
        self.cycle = Signal(range(2 * LANES * rows + 2))
        self.last_ozi, self.in_last_ozi, self.last_tap, self.final = Signal(GROUP), Signal(), Signal(), Signal()
        m.d.comb += self.last_ozi.eq(Mux(self.chain.dense, self.chain.last_channel >> GROUP, 0))

    def _batch(self, m: Module) -> None:
        """The number of positions that enter together, and their cycles (schedule.Access.cycles).

        What happens in a batch's first cycle follows from registers of the word and of the pass; what happens in
        another cycle is determined in the cycle before.
        """
        rows, now = self.machine.pe_rows, self.now
        self.count, self.last_batch = Signal(range(rows + 1)), Signal()
        self.reads, self.writes, self.apart = Signal(), Signal(), Signal()
        self.bubble, self.alone, cycles, later = Signal(), Signal(), Signal(len(self.cycle)), self.cycle + 1
        begin, self.end_batch = Signal(len(self.cycle)), Signal()
        results, one = Signal(len(self.cycle)), self.count == 1
        self.pieces = Mux(self.scatters, self.scattered_writes, 1)
        m.d.comb += [
            self.count.eq(Mux(self.last_batch, self.left, rows) if rows > 1 else 1),
            self.reads.eq(self.final & now.reads),
            self.writes.eq(self.final & self.writes_now),
            self.apart.eq(self.writes & self.apart_now),
            self.late.eq(self.is_last & self.reads & ~self.apart),
            begin.eq(Mux(self.apart, self.count, 0)),
            results.eq(Mux(self.writes, self.count * self.pieces, 0)),
            cycles.eq(largest(begin + largest(results, 1 + self.bubble), Mux(self.reads, self.count, 0))),
        ]
        writing, reading = (later >= begin) & (later < begin + results), self.reads & (later < self.count)
        first = {
            "ends": ~self.bubble & (~self.final | self.free_now | (one & self.single_now)),
            "writing": self.writes & ~self.apart_now,
            "reading": self.reads,
            "enters": ~self.reads | (one & ~self.apart),
            "blocks": self.final & self.blocks_now,
        }
        following = {
            "ends": later + 1 == cycles,
            "writing": writing,
            "reading": reading,
            "enters": self.reads & (later == Mux(self.apart, self.count, self.count - 1)),
            "blocks": writing | (reading & self.from_source),
        }
        self.opens, self.does = Signal(init=1), {}
        for name, value in first.items():
            kept = Signal(name=f"{name}_later")
            m.d.sync += kept.eq(following[name])
            self.does[name] = Mux(self.opens, value, kept)
        m.d.comb += self.end_batch.eq(self.does["ends"])

    def _passes(self, m: Module) -> None:
        """Moves from batch to batch, ozi to ozi, pass to pass, word to word."""
        self.end_ozi, self.end_pass = Signal(), Signal()
        m.d.comb += [
            self.end_ozi.eq(self.end_batch & self.last_batch),
            self.end_pass.eq(self.end_ozi & self.in_last_ozi),
        ]
        rows = self.machine.pe_rows
        with m.If(self.busy & ~self.works):
            m.d.sync += [self.wait.eq(self.wait - 1), self.works.eq(self.wait == 1)]
            m.d.comb += self.moves_on.eq(self.wait == 1)
        with m.If(self.works):
            m.d.sync += [self.cycle.eq(Mux(self.end_batch, 0, self.cycle + 1)), self.opens.eq(self.end_batch)]
            with m.If(self.end_batch):
                m.d.sync += [
                    self.first_batch.eq(self.last_batch),
                    self.left.eq(Mux(self.last_batch, self.running.positions, self.left - rows)),
                    self.last_batch.eq(Mux(self.last_batch, self.alone, self.left <= 2 * rows)),
                ]
                m.d.sync += self.psum.eq(Mux(self.end_pass, 0, self.psum + 1))
            with m.If(self.end_ozi):
                m.d.sync += self.ozi.eq(Mux(self.end_pass, 0, self.ozi + 1))
                m.d.sync += self.in_last_ozi.eq(self.last_ozi == Mux(self.in_last_ozi, 0, self.ozi + 1))
            with m.If(self.end_pass):
                self._next_pass(m)
        with m.If(self.start):
            m.d.sync += [self.running.eq(self.step), self.busy.eq(1), self.works.eq(1), self.own.eq(1)]
            m.d.sync += [self.kzi.eq(0), self.hki.eq(0), self.wki.eq(0)]
            m.d.sync += [self.left.eq(self.step.positions), self.first_batch.eq(1)]
            m.d.sync += [self.last_hk.eq(self.step.one_hk), self.last_wk.eq(self.step.one_wk)]
            last_k, alone = self.step.one_channel, self.step.positions <= self.machine.pe_rows
            single = self.last_ozi == 0
            last_tap = self.step.one_hk & self.step.one_wk & last_k
            m.d.sync += [
                self.last_k.eq(last_k),
                self.last_tap.eq(last_tap),
                self.final.eq(self.step.last & last_tap),
            ]
            m.d.sync += [self.last_batch.eq(alone), self.alone.eq(alone), self.in_last_ozi.eq(single)]
            m.d.sync += self.bubble.eq(alone & single & (not self.machine.psum_write_first))

    def _next_pass(self, m: Module) -> None:
        """Moves to the next pass: taps within channels, then the fused words, one pass each."""
        with m.If(self.own & ~self.last_tap):
            steps = (
                (self.wki, self.last_wk, self.now.last_wk),
                (self.hki, self.last_hk, self.now.last_hk),
                (self.kzi, self.last_k, self.running.last_channel),
            )
            carries, last_tap = Const(1), Const(1)
            for index, last, most in steps:
                after = Mux(last, most == 0, index + 1 == most)
                with m.If(carries):
                    m.d.sync += [index.eq(Mux(last, 0, index + 1)), last.eq(after)]
                last_tap = last_tap & Mux(carries, after, last)
                carries = carries & last
            m.d.sync += [self.last_tap.eq(last_tap), self.final.eq(self.running.last & last_tap)]
        with m.Elif(self.running.last & ~self.is_last):
            m.d.sync += [self.own.eq(0), self.final.eq(1)]
            swept = (self.psum + 1) << self.bubble
            with m.If(swept < FEEDBACK):
                m.d.sync += [self.wait.eq(FEEDBACK - swept), self.works.eq(0)]
            with m.Else():
                m.d.comb += self.moves_on.eq(1)
        with m.Else():
            m.d.comb += self.ends.eq(1)
            m.d.sync += [self.busy.eq(0), self.works.eq(0)]

    def _positions(self, m: Module) -> None:
        """The row and column in the tile of the position that each row of PEs takes."""
        rows, width = self.machine.pe_rows, self.running.x
        self.oyi = [Signal(value_bits("y"), name=f"oyi{row}") for row in range(rows)]
        self.oxi = [Signal(value_bits("x"), name=f"oxi{row}") for row in range(rows)]
        down, along = divide_by_width(rows, width)
        for row, (oyi, oxi) in enumerate(zip(self.oyi, self.oxi, strict=True)):
            column = oxi + along
            wraps = column >= width
            with m.If(self.works & self.end_batch):
                m.d.sync += [oyi.eq(oyi + down + wraps), oxi.eq(Mux(wraps, column - width, column))]
                with m.If(self.last_batch):
                    first_down, first_along = divide_by_width(row, width)
                    m.d.sync += [oyi.eq(first_down), oxi.eq(first_along)]
            with m.If(self.start):
                first_down, first_along = divide_by_width(row, self.step.x)
                m.d.sync += [oyi.eq(first_down), oxi.eq(first_along)]

    def _issue(self, m: Module) -> None:
        """The signals that enter the PEs."""
        out, now, running = self.issue, self.now, self.running
        group = Signal(GROUP)
        last = self.chain.last_channel
        m.d.comb += [
            group.eq(Mux(self.chain.dense, self.ozi, running.group)),
            out.valid.eq(self.works & self.does["enters"]),
            out.psum.eq(self.psum),
            out.channel.eq(self.kzi),
            out.broadcast.eq(self.chain.dense),
            out.weight.eq(out.valid & now.weights & self.first_batch),
            out.entry.eq(now.entry + Mux(now.tabulated, 0, group)),
            out.table.eq(now.table),
            out.lanes.eq(Mux(group == last >> GROUP, (2 << last[:GROUP]) - 1, (1 << LANES) - 1)),
            out.result.eq(out.valid & self.final),
            out.write.eq(out.valid & self.writes),
            out.count.eq(self.count),
            out.stage.eq(self.at),
            out.group.eq(group),
        ]
        for row in range(self.machine.pe_rows):
            m.d.comb += out.row[row].eq(running.oy + self.oyi[row])
            m.d.comb += out.column[row].eq(running.ox + self.oxi[row])
            self._pad(m, row)
        self._control(m, out.control)
        self.of_group = group

    def _guard(self, m: Module) -> None:
        """The lowest entry that may still be read; docs/decisions.md, one set of ifmap pads."""
        follows, first = self.last_tap & (self.ozi == self.last_ozi), self._pad_entry(Const(0), Const(0))
        read = Mux(follows, self._pad_entry(self.oyi[0], self.oxi[0]), first)
        m.d.comb += [
            self.guards.eq(self.busy & self.own),
            self.lowest.eq(Mux(self.kzi == self.running.last_channel, read, 0)),
        ]

    def _pad_entry(self, oyi: Value, oxi: Value) -> Value:
        """The entry IF_PAD[sh*oyi + hki*(dh+1)][sw*oxi + wki*(dw+1)] in the step's set of pads."""
        now, bits = self.now, len(self.pad[0])
        y = (now.Sh * oyi + self.hki * now.dilation_h)[:bits]
        x = (now.Sw * oxi + self.wki * now.dilation_w)[:bits]
        return (y * now.xi + x + Mux(self.running.side, self.machine.ifmap_pad_entries, 0))[:bits]

    def _pad(self, m: Module, row: int) -> None:
        """_pad_entry, in AHEAD cycles: products, sums, the product with x', and the sum."""
        now, bits = self.now, len(self.pad[row])
        products = (
            ("y", now.Sh * self.oyi[row]), ("x", now.Sw * self.oxi[row]),
            ("hk", self.hki * now.dilation_h), ("wk", self.wki * now.dilation_w),
        )  # fmt: skip
        y, x, hk, wk = (delay(m, value[:bits], 1, f"pad{row}_{name}") for name, value in products)
        y, x = delay(m, (y + hk)[:bits], 1, f"pad{row}_row"), delay(m, (x + wk)[:bits], 1, f"pad{row}_column")
        xi, side = delay(m, now.xi, 2, f"pad{row}_pitch"), delay(m, self.running.side, 3, f"pad{row}_side")
        y, x = delay(m, (y * xi)[:bits], 1, f"pad{row}_words"), delay(m, x, 1, f"pad{row}_along")
        entry = y + x + Mux(side, self.machine.ifmap_pad_entries, 0)
        m.d.comb += self.pad[row].eq(delay(m, entry[:bits], 1, f"pad{row}_entry"))

    def _control(self, m: Module, control: Any) -> None:
        """The PEs' switches, constant within a word except for the adder's second input."""
        now = self.now
        first = ~self.own | (self.running.first & (Cat(self.kzi, self.hki, self.wki) == 0))
        m.d.comb += [
            control.back.eq(~self.own),
            control.bypass.eq(now.bypass),
            control.factor.eq(now.factor),
            control.addend.eq(Mux(first, now.start.as_value(), Addend.PSUM)),
            control.compare.eq(now.compare),
            control.leaving.eq(now.leaving),
        ]

    def _operand(self, m: Module) -> None:
        """The read of a second operand, one position per cycle."""
        place = self.now.operand
        reading = Signal()
        y, x = self._walk_tile(m, "operand", reading, Const(1))
        m.d.comb += [
            reading.eq(self.works & self.does["reading"]),
            self.operand.valid.eq(delay(m, reading, AHEAD, "reading")),
            self.operand.memory.eq(delay(m, place.memory, AHEAD, "operand_memory")),
            self.operand.address.eq(self._address(m, "operand", place, y, x)),
            self.operand_row.eq(self.cycle),
            self.blocked.eq(self.works & self.does["blocks"]),
        ]

    def _piece(self, m: Module) -> None:
        """The destination of a position's result: whole in one cycle, or scattered over several."""
        target, copy, piece = self.chain.target, self.now.copy, Signal(self.piece.shape(), name="piece_now")
        writing, whole = Signal(), Signal()
        turn, done = Signal(range(LANES)), Signal()
        y, x = self._walk_tile(m, "result", writing, whole)
        moving, scatters = self.moving, self.moving | self.scatters
        m.d.comb += [
            writing.eq(self.works & self.does["writing"]),
            whole.eq(turn + 1 == self.pieces),
            self.puts.eq(moving | (writing & ~done)),
            self.put.eq(delay(m, self.puts, AHEAD, "put")),
            self.take.eq(self.puts & scatters),
            piece.target.valid.eq(self.is_last),
            piece.target.memory.eq(target.memory),
            piece.lanes.eq((1 << LANES) - 1),
            piece.last.eq(1),
        ]
        with m.If(scatters):
            m.d.comb += piece.eq(self.scattered)
        m.d.comb += [
            piece.copy.valid.eq(self.now.stored & (turn == 0) & ~moving),
            piece.copy.memory.eq(copy.memory),
            self.piece.eq(delay(m, piece, AHEAD, "piece")),
            self.piece.copy.address.eq(self._address(m, "copy", copy, y, x)),
        ]
        plain = self._address(m, "target", target, y, x)
        with m.If(~delay(m, scatters, AHEAD, "scatters")):
            m.d.comb += self.piece.target.address.eq(plain)
        with m.If(writing):
            m.d.sync += [turn.eq(turn + 1), done.eq(done | piece.last)]
        with m.If((writing & whole) | self.start):
            m.d.sync += [turn.eq(0), done.eq(0)]

    def _address(self, m: Module, name: str, place: Any, y: Value, x: Value) -> Value:
        terms = (("oy", self.running.oy), ("y", y), ("ox", self.running.ox), ("x", x))
        oy, y, ox, x = (delay(m, each, AHEAD - 3, f"{name}_{part}") for part, each in terms)
        place, group = (
            delay(m, place, AHEAD - 3, f"{name}_place"),
            delay(m, self.of_group, AHEAD - 3, f"{name}_of"),
        )
        return address(m, self.machine, name, place, oy + y, ox + x, group)

    def _walk_tile(self, m: Module, name: str, goes_on: Value, whole: Value) -> tuple[Value, Value]:
        """The row and column in the tile of the position whose word is transferred; rows of PEs take turns."""
        if self.machine.pe_rows == 1:
            return self.oyi[0], self.oxi[0]
        ahead_y, ahead_x = Signal(value_bits("y"), name=f"{name}_oyi"), Signal(value_bits("x"), name=f"{name}_oxi")
        begun = Signal(name=f"{name}_begun")
        y, x = Mux(begun, ahead_y, self.oyi[0]), Mux(begun, ahead_x, self.oxi[0])
        with m.If(goes_on & whole):
            wraps = x + 1 == self.running.x
            m.d.sync += [begun.eq(1), ahead_y.eq(y + wraps), ahead_x.eq(Mux(wraps, 0, x + 1))]
        with m.If(self.end_batch | self.start):
            m.d.sync += begun.eq(0)
        return y, x


def divide_by_width(number: int, width: Value) -> tuple[Value, Value]:
    """Quotient and remainder of a constant by the width of a tile."""
    most = 1 << stored_bits("x")
    table = [(number // each, number % each) if each else (0, 0) for each in range(most + 1)]
    if number == 0:
        return Const(0), Const(0)
    down, along = (Array(Const(each[at], number.bit_length()) for each in table) for at in (0, 1))
    return Value.cast(down[width]), Value.cast(along[width])


def largest(*values: Value | int) -> Value:
    """The largest of some values."""
    result = Value.cast(values[0])
    for value in map(Value.cast, values[1:]):
        result = Mux(value > result, value, result)
    return result
