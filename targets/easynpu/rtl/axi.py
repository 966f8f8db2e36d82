"""AXI: channels and their queues, and the memories behind AXI4.

Bursts may be of any kind and write single bytes; reads and writes are independent of each other.
By the AMBA AXI and ACE Protocol Specification (IHI 0022), AXI4 and AXI4-Lite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, fifo, stream, wiring
from amaranth.lib.wiring import In, Out, Signature

from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import port
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.words import index_bits

ID_BITS = 8
PAGE_BITS = 12
"""Address bits of the registers: 4 KB, the smallest range that an interconnect decodes."""
REGISTER_BITS = 32
REGISTER_BYTES = REGISTER_BITS // 8
WORD_SIZE = index_bits(WORD_BYTES)
"""AxSIZE of a whole word: the logarithm of its bytes."""
MEMORY_BITS = index_bits(len(port.REGIONS) - 1)
"""Bits of an address that select a memory."""
DEPTH = 4
"""Entries of a queue: two sustain a beat per cycle, and each cycle of read latency takes one more."""


class Response(enum.Enum, shape=2):
    """RRESP and BRESP. SLVERR: not allowed now, or not in this form; DECERR: nothing at the address."""

    OKAY = 0
    SLVERR = 2
    DECERR = 3


class Burst(enum.Enum, shape=2):
    """AxBURST."""

    FIXED = 0
    INCR = 1
    WRAP = 2
    RESERVED = 3


def _memory_address_bits(machine: Machine) -> int:
    """Bits of a byte address in the window onto the memories."""
    return MEMORY_BITS + port.address_bits(machine) + WORD_SIZE


def request(machine: Machine) -> data.StructLayout:
    """AW and AR of the memory window."""
    address = _memory_address_bits(machine)
    return data.StructLayout({"id": ID_BITS, "addr": address, "len": 8, "size": 3, "burst": Burst})


def full(machine: Machine) -> Mapping[str, data.StructLayout]:
    """The channels of AXI4, 128 bits wide. AWLEN determines the end of a burst; WLAST is ignored."""
    return {
        "aw": request(machine),
        "w": data.StructLayout({"data": WORD, "strb": WORD_BYTES}),
        "b": data.StructLayout({"id": ID_BITS, "resp": Response}),
        "ar": request(machine),
        "r": data.StructLayout({"id": ID_BITS, "data": WORD, "resp": Response, "last": 1}),
    }


LITE: Mapping[str, data.StructLayout] = {
    "aw": data.StructLayout({"addr": PAGE_BITS}),
    "w": data.StructLayout({"data": REGISTER_BITS, "strb": REGISTER_BYTES}),
    "b": data.StructLayout({"resp": Response}),
    "ar": data.StructLayout({"addr": PAGE_BITS}),
    "r": data.StructLayout({"data": REGISTER_BITS, "resp": Response}),
}
"""The channels of AXI4-Lite, 32 bits wide."""


def members(channels: Mapping[str, data.StructLayout], *names: str) -> dict[str, Any]:
    """Ports of a component for these channels: requests and data are inputs, responses outputs."""
    flows = {"b": Out, "r": Out}
    return {name: flows.get(name, In)(stream.Signature(channels[name])) for name in names}


def access(machine: Machine) -> Signature:
    """An access to the core's port, which is shared: it has the port in each cycle in which it is granted."""
    return Signature(
        {
            "wanted": Out(1),
            "granted": In(1),
            "address": Out(port.address_bits(machine) + port.REGION_BITS),
            "read": Out(1),
            "write": Out(1),
            "write_data": Out(WORD),
            "read_data": In(WORD),
        }
    )


def incoming_queue(m: Module, name: str, channel: Any) -> tuple[fifo.SyncFIFO, Any]:
    """The queue of an incoming channel, and its first entry."""
    payload = channel.payload
    m.submodules[name] = queue = fifo.SyncFIFO(width=payload.shape().size, depth=DEPTH)
    m.d.comb += [queue.w_data.eq(payload), queue.w_en.eq(channel.valid), channel.ready.eq(queue.w_rdy)]
    return queue, data.View(payload.shape(), queue.r_data)


def outgoing_queue(m: Module, name: str, channel: Any) -> tuple[fifo.SyncFIFO, Any]:
    """The queue of an outgoing channel, and its input."""
    payload = channel.payload
    m.submodules[name] = queue = fifo.SyncFIFO(width=payload.shape().size, depth=DEPTH)
    m.d.comb += [Value.cast(payload).eq(queue.r_data), channel.valid.eq(queue.r_rdy), queue.r_en.eq(channel.ready)]
    return queue, data.View(payload.shape(), queue.w_data)


def register(machine: Machine, index: Value | int) -> Value:
    """The address of a register at the core's port."""
    above = port.REGIONS.index("registers") << port.address_bits(machine)
    return Value.cast(index)[: port.address_bits(machine)] | above


def answer(mapped: Value, allowed: Value) -> Value:
    """The response to an access."""
    return Mux(mapped, Mux(allowed, Response.OKAY, Response.SLVERR), Response.DECERR)


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
                "request": In(request(machine)),
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
        burst, left = Signal(request(self.machine)), Signal(8)
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
            m.d.sync += self.legal.eq(_legal(self.request))
        with m.If(self.step):
            m.d.sync += [burst.addr.eq(_following(burst)), left.eq(left - 1), self.valid.eq(~self.last)]
        return m


def _legal(burst: Any) -> Value:
    """Whether a request is valid AXI4, with beats no wider than a word."""
    beats, kind = burst.len + 1, burst.burst
    wraps = Cat(beats == each for each in WRAPPING).any()
    possible = Array([beats <= FIXED_MOST, Const(1), wraps, Const(0)])
    return possible[Value.cast(kind)] & (burst.size <= WORD_SIZE)


def _following(burst: Any) -> Value:
    """The byte address of the next beat; an unaligned one stays unaligned."""
    bits = len(burst.addr)
    step = (Const(1, bits) << burst.size)[:bits]
    window = ((burst.len + 1) << burst.size)[:bits]
    ahead = (burst.addr + step)[:bits]
    wrapped = (burst.addr & ~(window - 1)) | (ahead & (window - 1))
    return Mux(burst.burst == Burst.FIXED, burst.addr, Mux(burst.burst == Burst.WRAP, wrapped, ahead))


class MemoryWrites(wiring.Component):
    """Writes: a whole word takes one cycle, a partial one three; the response to a burst is its first error.

    With overlap, whole words are written to the map and weight memories during a run, too.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        ports = members(full(machine), "aw", "w", "b")
        super().__init__({**ports, "access": Out(access(machine)), "busy": In(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        m.submodules.beats = beats = Beats(self.machine)
        requests, request = incoming_queue(m, "aw_queue", self.aw)
        values, value = incoming_queue(m, "w_queue", self.w)
        answers, found = outgoing_queue(m, "b_queue", self.b)
        done, response, error = Signal(), Signal(Response), Signal(Response)
        free = ~self.busy
        if self.machine.overlap:
            free |= value.strb.all() & (beats.address[-port.REGION_BITS :] != port.REGIONS.index("itcm"))
        allowed = beats.legal & free
        writes = beats.mapped & allowed & value.strb.any()
        m.d.comb += [
            *(beats.request.eq(request), beats.requested.eq(requests.r_rdy), requests.r_en.eq(beats.take)),
            *(beats.step.eq(done), values.r_en.eq(done)),
            access.address.eq(beats.address),
            access.write.eq(done & writes),
            response.eq(Mux(error == Response.OKAY, answer(beats.mapped, allowed), error)),
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
        ports = members(full(machine), "ar", "r")
        super().__init__({**ports, "access": Out(access(machine)), "busy": In(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        m.submodules.beats = beats = Beats(self.machine)
        requests, request = incoming_queue(m, "ar_queue", self.ar)
        answers, found = outgoing_queue(m, "r_queue", self.r)
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
        m.d.sync += response.eq(answer(beats.mapped, allowed))
        return m
