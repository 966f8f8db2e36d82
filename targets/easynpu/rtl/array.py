"""The rows of 16 PEs and the pipeline from the sequencer to their results."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.layouts import AHEAD, WORD
from npuc.targets.easynpu.rtl.pe import LINE, PARAMETERS, instance
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.sequencer import issue
from npuc.targets.easynpu.rtl.words import delay, index_bits, pad_depth

READ_PADS, SELECT, MULTIPLY, ADD, _SHIFT, _ROUND, RESULT = range(AHEAD + 2, AHEAD + 9)
"""Pipeline stages, in cycles after the sequencer."""


class PeArray(wiring.Component):
    """The PEs of all rows.

    `pad_ahead` comes AHEAD cycles after the issue. In the stage READ_PADS, `pad` addresses the ifmap pads,
    `table` the tables and `address` the parameters. `entry` arrives in SELECT, with the weight word that `take`
    takes, parameters in MULTIPLY, operands in READ_PADS at the latest (`operand_valid`). `results` of `count`
    positions are valid in RESULT, when `leaving` is the issue again.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.layout = issue(machine)
        fields, rows = self.layout.members, machine.pe_rows
        super().__init__(
            {
                "issue": In(self.layout),
                "pad_ahead": In(index_bits(pad_depth(machine))).array(rows),
                "pad": Out(index_bits(pad_depth(machine))).array(rows),
                "writes": Out(RESULT + 1),
                "entry": In(WORD).array(rows),
                "operand_valid": In(1),
                "operand_row": In(range(rows)),
                "operand": In(WORD),
                "take": Out(1),
                "weights": In(WORD),
                "address": Out(fields["entry"]),
                "table": Out(fields["table"]),
                "own": In(PARAMETERS).array(LANES),
                "fed": Out(signed(BYTE)).array(rows * LANES),
                "line": In(LINE).array(rows * LANES),
                "results": Out(WORD).array(rows),
                "leaving": Out(self.layout),
                "empty": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        pipe = [self.issue]
        for depth in range(1, RESULT + 1):
            stage = Signal(self.layout, name=f"issue{depth}")
            m.d.sync += stage.eq(pipe[-1])
            pipe.append(stage)
        m.d.comb += [
            *(
                pad.eq(delay(m, ahead, READ_PADS - AHEAD, "pad"))
                for pad, ahead in zip(self.pad, self.pad_ahead, strict=True)
            ),
            self.writes.eq(Cat(stage.valid & stage.write for stage in pipe)),
            self.take.eq(pipe[SELECT].weight),
            self.address.eq(pipe[READ_PADS].entry),
            self.table.eq(pipe[READ_PADS].table),
            self.leaving.eq(pipe[RESULT]),
            self.empty.eq(~any_of(stage.valid for stage in pipe)),
        ]
        weights = Signal(WORD)
        with m.If(self.take):
            m.d.sync += weights.eq(self.weights)
        for row in range(self.machine.pe_rows):
            self._row(m, row, pipe, weights)
        return m

    def _row(self, m: Module, row: int, pipe: list[Any], weights: Signal) -> None:
        """The inputs of a row and its PEs."""
        selected, computed = pipe[SELECT], pipe[ADD]
        ifmap, operand = Signal(WORD, name=f"ifmap{row}"), Signal(WORD, name=f"operand{row}")
        gathered = Signal(WORD, name=f"gathered{row}")
        entry = self.entry[row]
        one = entry.word_select(selected.channel, BYTE)
        m.d.comb += ifmap.eq(Mux(selected.broadcast, one.replicate(LANES), entry))
        m.d.sync += operand.eq(gathered)
        with m.If(self.operand_valid & (self.operand_row == row)):
            m.d.sync += gathered.eq(self.operand)
        for lane in range(LANES):
            pe, m.submodules[f"pe{row}_{lane}"] = instance(self.machine, f"pe{row}_{lane}")
            number = row * LANES + lane
            m.d.comb += [
                pe.back_address.eq(pipe[READ_PADS].psum),
                pe.back.eq(selected.control.back),
                pe.ifmap.eq(ifmap.word_select(lane, BYTE)),
                self.fed[number].eq(Mux(selected.control.back, pe.kept, entry.word_select(lane, BYTE))),
                pe.control.eq(pipe[MULTIPLY].control),
                pe.weight.eq(weights.word_select(lane, BYTE)),
                pe.operand.eq(operand.word_select(lane, BYTE)),
                pe.line.eq(self.line[number]),
                pe.own.eq(self.own[lane]),
                pe.read_address.eq(pipe[MULTIPLY].psum),
                pe.valid.eq(computed.valid & (row < computed.count)),
                pe.on.eq(computed.lanes[lane]),
                pe.write_address.eq(computed.psum),
                self.results[row].word_select(lane, BYTE).eq(pe.ofmap),
            ]


def any_of(values: Any) -> Value:
    """Whether any of some bits is set."""
    found = Value.cast(0)
    for value in values:
        found = found | value
    return found
