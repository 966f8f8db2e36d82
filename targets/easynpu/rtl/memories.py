"""The DTCMs: single-port synchronous memories, and the queue of results in front of them."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, fifo, memory, wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.verilog import CONTENTS
from npuc.targets.easynpu.rtl.words import address_bits, index_bits


class SinglePort(wiring.Component):
    """A memory of 16-lane words. One access a cycle: a write of enabled lanes, or a read (data a cycle later).

    contents: the file of its words at the start, in hexadecimal; without, they are 0. filled: the host writes
    words through a port of its own, `fill`, in any cycle.
    """

    def __init__(self, words: int, contents: str | None = None, *, filled: bool = False) -> None:
        self.words, self.filled = words, filled
        self.attributes = {CONTENTS: contents} if contents else {}
        address = index_bits(words)
        fill = {"fill": In(1), "fill_address": In(address), "fill_data": In(WORD)} if filled else {}
        super().__init__(
            {
                "address": In(address),
                "read": In(1),
                "write": In(LANES),
                "write_data": In(WORD),
                "read_data": Out(WORD),
                **fill,
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        m.submodules.words = words = memory.Memory(shape=WORD, depth=self.words, init=[], attrs=self.attributes)
        write, read = words.write_port(granularity=BYTE), words.read_port()
        m.d.comb += [
            write.addr.eq(self.address),
            write.en.eq(self.write),
            write.data.eq(self.write_data),
            read.addr.eq(self.address),
            read.en.eq(self.read),
            self.read_data.eq(read.data),
        ]
        if self.filled:
            fill = words.write_port()
            m.d.comb += [fill.addr.eq(self.fill_address), fill.en.eq(self.fill), fill.data.eq(self.fill_data)]
        return m


def result(machine: Machine) -> data.StructLayout:
    """Lanes of a word for a DTCM."""
    return data.StructLayout({"address": address_bits(machine), "lanes": LANES, "word": WORD})


class ResultQueue(wiring.Component):
    """Results that wait for a DTCM, where reads have priority; one that need not wait passes in the same cycle.

    `full` is set permanently if a result ever finds no room.
    """

    def __init__(self, machine: Machine, depth: int) -> None:
        self.depth = depth
        self.layout = result(machine)
        super().__init__(
            {
                "put": In(1),
                "result": In(self.layout),
                "take": In(1),
                "valid": Out(1),
                "empty": Out(1),
                "next": Out(self.layout),
                "full": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        m.submodules.queue = queue = fifo.SyncFIFO(width=self.layout.size, depth=self.depth)
        lost, passes = Signal(), Signal()
        m.d.comb += [
            self.empty.eq(~queue.r_rdy),
            passes.eq(self.put & self.empty & self.take),
            queue.w_en.eq(self.put & ~passes),
            queue.w_data.eq(self.result),
            queue.r_en.eq(self.take),
            self.next.eq(Mux(queue.r_rdy, queue.r_data, Value.cast(self.result))),
            self.valid.eq(queue.r_rdy | self.put),
            self.full.eq(lost),
        ]
        with m.If(queue.w_en & ~queue.w_rdy):
            m.d.sync += lost.eq(1)
        return m
