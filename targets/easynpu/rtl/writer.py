"""The writer: passes results, one position per cycle, to the queues in front of the DTCMs."""

from __future__ import annotations

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.array import RESULT
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.memories import result
from npuc.targets.easynpu.rtl.quantiser import BYTE

MEMORIES = 2


class Writer(wiring.Component):
    """Joins results with their destinations.

    `put` queues a piece. `arrive` takes the results of `count` positions. For each of the two memories `write`
    puts a `result` in its queue. `empty`: nothing is in transit. `lost` is set
    permanently if a piece, or a second batch of results, ever finds no room.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        rows = machine.pe_rows
        super().__init__(
            {
                "put": In(1),
                "piece": In(layouts.piece(machine)),
                "arrive": In(1),
                "count": In(range(rows + 1)),
                "results": In(WORD).array(rows),
                "write": Out(1).array(MEMORIES),
                "result": Out(result(machine)).array(MEMORIES),
                "empty": Out(1),
                "lost": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        rows = self.machine.pe_rows
        layout = layouts.piece(self.machine)
        depth = 2 * (RESULT + 2) + 2 * rows
        m.submodules.pieces = pieces = fifo.SyncFIFOBuffered(width=layout.size, depth=depth)
        piece, lost, going = Signal(layout), Signal(), Signal()
        self.lefts = Signal(range(rows + 1), name="left"), Signal(range(rows + 1), name="left_behind")
        self.batches = [[Signal(WORD, name=f"{name}{row}") for row in range(rows)] for name in ("held", "behind")]
        left, behind = self.lefts
        done = Signal()
        m.d.comb += [
            pieces.w_en.eq(self.put),
            pieces.w_data.eq(self.piece),
            piece.eq(pieces.r_data),
            going.eq((left != 0) & pieces.r_rdy),
            pieces.r_en.eq(going),
            done.eq((left == 0) | ((left == 1) & going & piece.last)),
            self.empty.eq((left == 0) & (pieces.level == 0)),
            self.lost.eq(lost),
        ]
        overrun = self.arrive & ~done & (behind != 0)
        with m.If((self.put & ~pieces.w_rdy) | overrun):
            m.d.sync += lost.eq(1)
        self._advance(m, going & piece.last, done)
        self._deliver(m, going, piece, self.batches[0][0])
        return m

    def _advance(self, m: Module, whole: Value, done: Value) -> None:
        """Moves from position to position; a batch that arrives during another one waits."""
        (left, behind), (words, words_behind) = self.lefts, self.batches
        with m.If(whole):
            m.d.sync += left.eq(left - 1)
            m.d.sync += [word.eq(after) for word, after in pairwise(words)]
        with m.If(done & (behind != 0)):
            m.d.sync += [left.eq(behind), behind.eq(0)]
            m.d.sync += [word.eq(after) for word, after in zip(words, words_behind, strict=True)]
        with m.If(self.arrive):
            with m.If(done & (behind == 0)):
                m.d.sync += left.eq(self.count)
                m.d.sync += [word.eq(result) for word, result in zip(words, self.results, strict=True)]
            with m.Else():
                m.d.sync += behind.eq(self.count)
                m.d.sync += [word.eq(result) for word, result in zip(words_behind, self.results, strict=True)]

    def _deliver(self, m: Module, going: Signal, piece: Signal, word: Signal) -> None:
        """Outputs a piece of the result, rotated to its destination lanes; the copy is not rotated."""
        moved = Signal(WORD)
        lanes = [
            Cat(word.word_select((lane + piece.rotation)[: len(piece.rotation)], BYTE)) for lane in range(LANES)
        ]
        m.d.comb += moved.eq(
            Cat(*(lane & ~cleared.replicate(BYTE) for lane, cleared in zip(lanes, piece.cleared, strict=True)))
        )
        for memory in range(MEMORIES):
            target = piece.target.valid & (piece.target.memory == memory)
            copy = piece.copy.valid & (piece.copy.memory == memory)
            m.d.comb += [
                self.write[memory].eq(going & (target | copy)),
                self.result[memory].address.eq(Mux(target, piece.target.address, piece.copy.address)),
                self.result[memory].lanes.eq(Mux(target, piece.lanes | piece.cleared, (1 << LANES) - 1)),
                self.result[memory].word.eq(Mux(target, moved, word)),
            ]
