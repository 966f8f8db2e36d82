"""The rows of 16 PEs and the pipeline from the sequencer to their results."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.pe import LINE, PARAMETERS, Pe
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.sequencer import issue

READ_PADS, READ_PSUMS, COMPUTE, LEAVE, RESULT = 2, 3, 4, 5, 6
"""Pipeline stages, in cycles after the sequencer."""


class PeArray(wiring.Component):
    """The PEs of all rows.

    For an issue in cycle t: `pad` addresses the ifmap pads in t + 2; `entry` arrives in t + 3, with the weight
    word that `take` takes. `address`, `address_before` and `table` are output in t + 3 for parameters in t + 4.
    Operands arrive in t + 2 at the latest (`operand_valid`). `results` of `count` positions are valid in t + 6,
    when `leaving` is the issue again.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.layout = issue(machine)
        fields, rows = self.layout.members, machine.pe_rows
        super().__init__(
            {
                "issue": In(self.layout),
                "pad": Out(fields["pad"]),
                "entry": In(WORD).array(rows),
                "operand_valid": In(1),
                "operand_row": In(range(rows)),
                "operand": In(WORD),
                "take": Out(1),
                "weights": In(WORD),
                "address": Out(fields["entry"]),
                "address_before": Out(fields["entry"]),
                "table": Out(fields["table"]),
                "own": In(PARAMETERS).array(LANES),
                "before": In(PARAMETERS).array(LANES),
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
            self.pad.eq(pipe[READ_PADS].pad),
            self.take.eq(pipe[READ_PSUMS].weight),
            self.address.eq(pipe[READ_PSUMS].entry),
            self.address_before.eq(pipe[READ_PSUMS].entry_before),
            self.table.eq(pipe[READ_PSUMS].table),
            self.leaving.eq(pipe[RESULT]),
            self.empty.eq(~Value.cast(pipe[0].valid) & ~any_of(stage.valid for stage in pipe[1:])),
        ]
        weights = Signal(WORD)
        with m.If(self.take):
            m.d.sync += weights.eq(self.weights)
        for row in range(self.machine.pe_rows):
            self._row(m, row, pipe, weights)
        return m

    def _row(self, m: Module, row: int, pipe: list[Any], weights: Signal) -> None:
        """The inputs of a row and its PEs."""
        selected, computed = pipe[READ_PSUMS], pipe[COMPUTE]
        ifmap, operand = Signal(WORD, name=f"ifmap{row}"), Signal(WORD, name=f"operand{row}")
        gathered = Signal(WORD, name=f"gathered{row}")
        entry = self.entry[row]
        one = entry.word_select(selected.channel, BYTE)
        m.d.sync += [ifmap.eq(Mux(selected.broadcast, one.replicate(LANES), entry)), operand.eq(gathered)]
        with m.If(self.operand_valid & (self.operand_row == row)):
            m.d.sync += gathered.eq(self.operand)
        result = Signal(WORD, name=f"result{row}")
        for lane in range(LANES):
            m.submodules[f"pe{row}_{lane}"] = pe = Pe(self.machine)
            number = row * LANES + lane
            m.d.comb += [
                pe.read_address.eq(selected.psum),
                pe.valid.eq(computed.valid & (row < computed.count)),
                pe.on.eq(computed.lanes[lane]),
                pe.control.eq(computed.control),
                pe.write_address.eq(computed.psum),
                pe.ifmap.eq(ifmap.word_select(lane, BYTE)),
                pe.weight.eq(weights.word_select(lane, BYTE)),
                pe.operand.eq(operand.word_select(lane, BYTE)),
                pe.line.eq(self.line[number]),
                pe.own.eq(self.own[lane]),
                pe.before.eq(self.before[lane]),
                self.fed[number].eq(pe.fed),
                result.word_select(lane, BYTE).eq(pe.ofmap),
            ]
        m.d.sync += self.results[row].eq(result)


def any_of(values: Any) -> Value:
    """Whether any of some bits is set."""
    found = Value.cast(0)
    for value in values:
        found = found | value
    return found
