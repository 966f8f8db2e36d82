"""The weight stream: the blocks of a chain, once per tile, through a circular FIFO of weight pads.

Source: easynpu, Weight scheduler; docs/decisions.md, EasyNPU cycles (weight pads).
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import layouts
from npuc.targets.easynpu.rtl.layouts import GROUP, WORD
from npuc.targets.easynpu.rtl.loader import Tile
from npuc.targets.easynpu.rtl.words import index_bits, store

UNDER_WAY = 6
"""Words between request and pads, for which there is room in addition to the pads."""


class WeightStream(wiring.Component):
    """Fetches the blocks of a chain for every tile, channel-wise for each group, and keeps the pads full.

    `clear` removes the blocks of the last chain, `write` adds one, `start` begins. `read` and `address` go to the
    weight DTCM, whose `word` follows a cycle later. `weights` is the next word to use; `take` moves on. `starved`
    is set permanently if a word is ever taken before it has arrived.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.depth = machine.weight_pad_entries + UNDER_WAY
        super().__init__(
            {
                "chain": In(layouts.chain(machine)),
                "clear": In(1),
                "write": In(1),
                "block": In(layouts.weight_block(machine)),
                "start": In(1),
                "read": Out(1),
                "address": Out(index_bits(machine.weight_words)),
                "word": In(WORD),
                "take": In(1),
                "weights": Out(WORD),
                "starved": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        self._pads(m)
        bits = index_bits(self.machine.itcm_words)
        count, at, following = Signal(bits + 1), Signal(bits), Signal(bits)
        read = store(m, "blocks", self.machine.itcm_words, self.write, count, self.block).read_port()
        m.d.comb += [read.addr.eq(following), following.eq(at)]
        m.d.sync += at.eq(following)
        with m.If(self.clear):
            m.d.sync += count.eq(0)
        with m.Elif(self.write):
            m.d.sync += count.eq(count + 1)
        self._fetch(m, read.data, count, at, following)
        return m

    def _pads(self, m: Module) -> None:
        """The FIFO, with room for the words in transit."""
        m.submodules.pads = pads = fifo.SyncFIFOBuffered(width=WORD, depth=self.depth)
        self.free = Signal()
        self.requests, asked, arriving, starved = Signal(), Signal(), Signal(), Signal()
        m.d.sync += [asked.eq(self.requests), self.read.eq(asked), arriving.eq(self.read)]
        m.d.comb += [
            pads.w_en.eq(arriving),
            pads.w_data.eq(self.word),
            pads.r_en.eq(self.take),
            self.weights.eq(pads.r_data),
            self.free.eq(pads.level + arriving + self.read + asked < self.depth - 1),
            self.starved.eq(starved),
        ]
        with m.If(self.take & ~pads.r_rdy):
            m.d.sync += starved.eq(1)

    def _fetch(self, m: Module, block: Any, count: Signal, at: Signal, following: Signal) -> None:
        """Fetches a word per cycle while there is room."""
        chain, running = self.chain, Signal()
        within, group = Signal(len(block.count)), Signal(GROUP)
        tile = Tile(chain)
        first, skipped = Signal(len(self.address)), Signal(len(self.address))
        m.d.comb += self.requests.eq(running & self.free)
        m.d.sync += [
            first.eq(block.base + within),
            skipped.eq(Mux(chain.dense, 0, group * block.count)),
            self.address.eq(first + skipped),
        ]
        with m.If(self.start):
            m.d.comb += following.eq(0)
            m.d.sync += [running.eq(count != 0), within.eq(0), group.eq(0)]
            tile.begin(m)
        with m.Elif(self.requests):
            m.d.sync += within.eq(within + 1)
            with m.If(within + 1 == block.count):
                m.d.sync += within.eq(0)
                with m.If(at + 1 != count):
                    m.d.comb += following.eq(at + 1)
                with m.Else():
                    m.d.comb += following.eq(0)
                    with m.If(~chain.dense & (group < chain.last_channel >> GROUP)):
                        m.d.sync += group.eq(group + 1)
                    with m.Else():
                        m.d.sync += group.eq(0)
                        m.d.sync += running.eq(tile.follows)
                        tile.advance(m)
