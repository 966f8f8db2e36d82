"""The writer: results, one position a cycle, to the queues in front of the DTCMs."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import LANES
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.array import RESULT
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.sizes import address_bits

MEMORIES = 2


class Writer(wiring.Component):
    """Joins results with the pieces that say where they go.

    `put` queues a piece. `arrive` takes the results of `count` positions. For each of the two memories `write`,
    `address`, `lanes` and `word` are a result for its queue. `empty`: nothing is under way. `lost` is set, and
    stays so, if ever a piece found no room, or results none in front of them.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        bits, rows = address_bits(machine), machine.pe_rows
        super().__init__(
            {
                "put": In(1),
                "piece": In(layouts.piece(machine)),
                "arrive": In(1),
                "count": In(range(rows + 1)),
                "results": In(WORD).array(rows),
                "write": Out(1).array(MEMORIES),
                "address": Out(bits).array(MEMORIES),
                "lanes": Out(LANES).array(MEMORIES),
                "word": Out(WORD).array(MEMORIES),
                "empty": Out(1),
                "lost": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The circuit."""
        m = Module()
        rows = self.machine.pe_rows
        layout = layouts.piece(self.machine)
        depth = 2 * (RESULT + 2) + 2 * rows
        m.submodules.pieces = pieces = fifo.SyncFIFOBuffered(width=layout.size, depth=depth)
        piece, left = Signal(layout), Signal(range(rows + 1))
        words = [Signal(WORD, name=f"held{row}") for row in range(rows)]
        lost, going = Signal(), Signal()
        m.d.comb += [
            pieces.w_en.eq(self.put),
            pieces.w_data.eq(self.piece),
            piece.eq(pieces.r_data),
            going.eq(left != 0),
            pieces.r_en.eq(going),
            self.empty.eq((left == 0) & (pieces.level == 0)),
            self.lost.eq(lost),
        ]
        with m.If((self.put & ~pieces.w_rdy) | (going & ~pieces.r_rdy)):
            m.d.sync += lost.eq(1)
        with m.If(going & piece.last):
            m.d.sync += left.eq(left - 1)
            m.d.sync += [word.eq(after) for word, after in zip(words, words[1:], strict=False)]
        with m.If(self.arrive):
            m.d.sync += left.eq(self.count)
            m.d.sync += [word.eq(result) for word, result in zip(words, self.results, strict=True)]
            with m.If((left > 1) | ((left == 1) & ~piece.last)):
                m.d.sync += lost.eq(1)
        self._deliver(m, going, piece, words[0])
        return m

    def _deliver(self, m: Module, going: Signal, piece: Signal, word: Signal) -> None:
        """A piece of the result, rotated to the lanes that it goes to; the copy as it is."""
        moved = Signal(WORD)
        lanes = [Cat(word.word_select((lane + piece.rotation)[: len(piece.rotation)], BYTE)) for lane in range(LANES)]
        m.d.comb += moved.eq(Cat(*(lane & ~cleared.replicate(BYTE) for lane, cleared in zip(lanes, piece.cleared))))
        for memory in range(MEMORIES):
            target = piece.target.valid & (piece.target.memory == memory)
            copy = piece.copy.valid & (piece.copy.memory == memory)
            m.d.comb += self.write[memory].eq(going & (target | copy))
            m.d.comb += [
                self.address[memory].eq(piece.copy.address),
                self.lanes[memory].eq((1 << LANES) - 1),
                self.word[memory].eq(word),
            ]
            with m.If(target):
                m.d.comb += [
                    self.address[memory].eq(piece.target.address),
                    self.lanes[memory].eq(piece.lanes | piece.cleared),
                    self.word[memory].eq(moved),
                ]
