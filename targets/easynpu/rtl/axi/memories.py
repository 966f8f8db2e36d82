"""The memories behind AXI4: bursts of any kind, byte writes, reads and writes independent of each other."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import port
from npuc.targets.easynpu.rtl.axi import channels as axi
from npuc.targets.easynpu.rtl.axi.channels import DEPTH, ID_BITS, MEMORY_BITS, WORD_SIZE, Burst, Response
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.quantiser import BYTE

FIXED_MOST = 16
"""The most beats of a burst at a fixed address."""
WRAPPING = (2, 4, 8, 16)
"""The numbers of beats that a wrapping burst may have."""


class Beats(wiring.Component):
    """The beats of one burst after the other: while `valid`, `address` is the current beat's, until `step`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__(
            {
                "request": In(axi.request(machine)),
                "requested": In(1),
                "take": Out(1),
                "valid": Out(1),
                "step": In(1),
                "id": Out(ID_BITS),
                "address": Out(port.address_bits(machine) + port.REGION_BITS),
                "mapped": Out(1),
                "legal": Out(1),
                "last": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        burst, left = Signal(axi.request(self.machine)), Signal(8)
        index, memory = burst.addr[WORD_SIZE:-MEMORY_BITS], burst.addr[-MEMORY_BITS:]
        sizes = Array(self.machine.capacity_words(name) for name in port.REGIONS[:-1])
        m.d.comb += [
            self.take.eq(~self.valid),
            self.id.eq(burst.id),
            self.address.eq(Cat(index, memory)),
            self.mapped.eq(index < sizes[memory]),
            self.last.eq(left == 0),
        ]
        with m.If(self.take & self.requested):
            m.d.sync += [burst.eq(self.request), left.eq(self.request.len), self.valid.eq(1)]
            m.d.sync += self.legal.eq(legal(self.request))
        with m.If(self.step):
            m.d.sync += [burst.addr.eq(following(burst)), left.eq(left - 1), self.valid.eq(~self.last)]
        return m


def legal(burst: Any) -> Value:
    """Whether a request is valid AXI4, with beats no wider than a word."""
    beats, kind = burst.len + 1, burst.burst
    wraps = Cat(beats == each for each in WRAPPING).any()
    possible = Array([beats <= FIXED_MOST, Const(1), wraps, Const(0)])
    return possible[Value.cast(kind)] & (burst.size <= WORD_SIZE)


def following(burst: Any) -> Value:
    """The byte address of the next beat; an unaligned one stays unaligned."""
    bits = len(burst.addr)
    step = (Const(1, bits) << burst.size)[:bits]
    window = ((burst.len + 1) << burst.size)[:bits]
    ahead = (burst.addr + step)[:bits]
    wrapped = (burst.addr & ~(window - 1)) | (ahead & (window - 1))
    return Mux(burst.burst == Burst.FIXED, burst.addr, Mux(burst.burst == Burst.WRAP, wrapped, ahead))


class MemoryWrites(wiring.Component):
    """Writes: a whole word takes one cycle, a partial one three; the response to a burst is its first error."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        ports = axi.members(axi.full(machine), "aw", "w", "b")
        super().__init__({**ports, "access": Out(axi.access(machine)), "busy": In(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        m.submodules.beats = beats = Beats(self.machine)
        requests, request = axi.taken(m, "aw_queue", self.aw)
        values, value = axi.taken(m, "w_queue", self.w)
        answers, found = axi.given(m, "b_queue", self.b)
        done, response, error = Signal(), Signal(Response), Signal(Response)
        allowed = beats.legal & ~self.busy
        writes = beats.mapped & allowed & value.strb.any()
        m.d.comb += [
            *(beats.request.eq(request), beats.requested.eq(requests.r_rdy), requests.r_en.eq(beats.take)),
            *(beats.step.eq(done), values.r_en.eq(done)),
            access.address.eq(beats.address),
            access.write.eq(done & writes),
            response.eq(Mux(error == Response.OKAY, axi.answer(beats.mapped, allowed), error)),
            *(answers.w_en.eq(done & beats.last), found.id.eq(beats.id), found.resp.eq(response)),
        ]
        with m.If(done):
            m.d.sync += error.eq(Mux(beats.last, Response.OKAY, response))
        self._merge(m, writes, value, done)
        m.d.comb += access.wanted.eq(beats.valid & values.r_rdy & answers.w_rdy & ~self.reading)
        return m

    def _merge(self, m: Module, writes: Value, value: Any, done: Signal) -> None:
        """Completes a beat when it is granted; a partial one reads the other bytes first."""
        access, merged, ready = self.access, Signal(WORD), Signal()
        self.reading = Signal()
        m.d.comb += [
            access.read.eq(access.granted & writes & ~value.strb.all() & ~ready),
            done.eq(access.granted & ~access.read),
            access.write_data.eq(Mux(ready, merged, value.data)),
        ]
        m.d.sync += self.reading.eq(access.read)
        with m.If(self.reading):
            m.d.sync += ready.eq(1)
            for byte in range(WORD_BYTES):
                source = Mux(
                    value.strb[byte], value.data.word_select(byte, BYTE), access.read_data.word_select(byte, BYTE)
                )
                m.d.sync += merged.word_select(byte, BYTE).eq(source)
        with m.Elif(done):
            m.d.sync += ready.eq(0)


class MemoryReads(wiring.Component):
    """Reads: a word per cycle, with data a cycle later; a refused beat reads as zero."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        ports = axi.members(axi.full(machine), "ar", "r")
        super().__init__({**ports, "access": Out(axi.access(machine)), "busy": In(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        m.submodules.beats = beats = Beats(self.machine)
        requests, request = axi.taken(m, "ar_queue", self.ar)
        answers, found = axi.given(m, "r_queue", self.r)
        asked, last, response, label = Signal(), Signal(), Signal(Response), Signal(ID_BITS)
        allowed = beats.legal & ~self.busy
        m.d.comb += [
            *(beats.request.eq(request), beats.requested.eq(requests.r_rdy), requests.r_en.eq(beats.take)),
            beats.step.eq(access.granted),
            access.wanted.eq(beats.valid & (answers.level < DEPTH - 1)),
            access.address.eq(beats.address),
            access.read.eq(access.granted & beats.mapped & allowed),
            *(answers.w_en.eq(asked), found.id.eq(label), found.last.eq(last), found.resp.eq(response)),
            found.data.eq(Mux(response == Response.OKAY, access.read_data, 0)),
        ]
        m.d.sync += [asked.eq(access.granted), last.eq(beats.last), label.eq(beats.id)]
        m.d.sync += response.eq(axi.answer(beats.mapped, allowed))
        return m
