"""AXI in the wrapper: channels, their queues, the addresses of a burst.

Source: AMBA AXI and ACE Protocol Specification (IHI 0022), AXI4 and AXI4-Lite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Module, Mux, Value
from amaranth.lib import data, enum, fifo, stream
from amaranth.lib.wiring import In, Out, Signature

from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import port
from npuc.targets.easynpu.rtl.layouts import WORD
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


def memory_address_bits(machine: Machine) -> int:
    """Bits of a byte address in the window onto the memories."""
    return MEMORY_BITS + port.address_bits(machine) + WORD_SIZE


def request(machine: Machine) -> data.StructLayout:
    """AW and AR of the memory window."""
    address = memory_address_bits(machine)
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


def taken(m: Module, name: str, channel: Any) -> tuple[fifo.SyncFIFO, Any]:
    """The queue of an incoming channel, and its first entry."""
    payload = channel.payload
    m.submodules[name] = queue = fifo.SyncFIFO(width=payload.shape().size, depth=DEPTH)
    m.d.comb += [queue.w_data.eq(payload), queue.w_en.eq(channel.valid), channel.ready.eq(queue.w_rdy)]
    return queue, data.View(payload.shape(), queue.r_data)


def given(m: Module, name: str, channel: Any) -> tuple[fifo.SyncFIFO, Any]:
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
