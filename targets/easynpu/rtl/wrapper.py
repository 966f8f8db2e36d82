"""The core behind AXI: AXI4-Lite for its registers, an AXI4 window onto its memories.

Every channel has a queue, so no output depends on an input of the same cycle. Behind the queues, registers, writes
and reads take turns at the core's port, one access each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from amaranth.hdl import ClockDomain, Instance, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import REGISTERS, Machine
from npuc.targets.easynpu.rtl import axi, port
from npuc.targets.easynpu.rtl.port import CONTROL, PAUSE, RESUME, STATUS
from npuc.targets.easynpu.rtl.verilog import HEADER, modules
from npuc.targets.easynpu.rtl.words import index_bits

BYTES = index_bits(axi.REGISTER_BYTES)


class RegisterWrites(wiring.Component):
    """Writes. SLVERR: part of a register, a read-only one, or a value that the core would ignore.

    `busy`, `paused`: the state of the core; `starts`: from the next cycle on it runs.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        ports = {**axi.members(axi.LITE, "aw", "w", "b"), "access": Out(axi.access(machine))}
        super().__init__({**ports, "busy": In(1), "paused": In(1), "starts": Out(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        places, place = axi.incoming_queue(m, "aw_queue", self.aw)
        values, value = axi.incoming_queue(m, "w_queue", self.w)
        answers, found = axi.outgoing_queue(m, "b_queue", self.b)
        index, whole, accepted = place.addr[BYTES:], value.strb.all(), Signal()
        with m.Switch(index):
            with m.Case(CONTROL):
                fits = value.data[:PAUSE] <= self.machine.itcm_words
                m.d.comb += accepted.eq(~self.busy & ~self.paused & fits)
            with m.Case(RESUME):
                m.d.comb += accepted.eq(self.paused)
            with m.Case(STATUS):
                m.d.comb += accepted.eq(1)
        m.d.comb += [
            access.wanted.eq(places.r_rdy & values.r_rdy & answers.w_rdy),
            access.address.eq(axi.register(self.machine, index)),
            access.write.eq(access.granted & whole & accepted),
            access.write_data.eq(value.data),
            self.starts.eq(access.write & ((index == CONTROL) | (index == RESUME))),
            places.r_en.eq(access.granted),
            values.r_en.eq(access.granted),
            answers.w_en.eq(access.granted),
            found.resp.eq(axi.answer(index < len(REGISTERS), ~value.strb.any() | (whole & accepted))),
        ]
        return m


class RegisterReads(wiring.Component):
    """Reads: a register per cycle, with data a cycle later."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__({**axi.members(axi.LITE, "ar", "r"), "access": Out(axi.access(machine))})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        places, place = axi.incoming_queue(m, "ar_queue", self.ar)
        answers, found = axi.outgoing_queue(m, "r_queue", self.r)
        index, response, asked = place.addr[BYTES:], Signal(axi.Response), Signal()
        exists = index < len(REGISTERS)
        m.d.comb += [
            access.wanted.eq(places.r_rdy & (answers.level < axi.DEPTH - 1)),
            access.address.eq(axi.register(self.machine, index)),
            access.read.eq(access.granted & exists),
            places.r_en.eq(access.granted),
            answers.w_en.eq(asked),
            found.data.eq(Mux(response == axi.Response.OKAY, access.read_data[: axi.REGISTER_BITS], 0)),
            found.resp.eq(response),
        ]
        m.d.sync += [asked.eq(access.granted), response.eq(axi.answer(exists, exists))]
        return m


class Adapter(wiring.Component):
    """Connects `lite` and `full`, the channels of AXI4-Lite and AXI4, to the port of a core.

    It reads the core's status as long as the core may be busy. It forwards the interrupt only once the status is
    not busy, so that the memories can be used after the interrupt.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        lite = wiring.Signature(axi.members(axi.LITE, *axi.LITE))
        full = wiring.Signature(axi.members(axi.full(machine), *axi.full(machine)))
        super().__init__(
            {
                "lite": Out(lite),
                "full": Out(full),
                "core": Out(port.signature(machine)),
                "interrupt_request": Out(1),
            }
        )

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, machine, lite, full = Module(), self.machine, self.lite, self.full
        m.submodules.register_writes = register_writes = RegisterWrites(machine)
        m.submodules.register_reads = register_reads = RegisterReads(machine)
        m.submodules.memory_writes = memory_writes = axi.MemoryWrites(machine)
        m.submodules.memory_reads = memory_reads = axi.MemoryReads(machine)
        sides = {register_writes: lite, register_reads: lite, memory_writes: full, memory_reads: full}
        for side, bus in sides.items():
            for name in axi.LITE:
                if name in side.signature.members:
                    wiring.connect(m, wiring.flipped(getattr(bus, name)), getattr(side, name))
        busy = Signal()
        paused = Signal()
        m.d.comb += [each.busy.eq(busy) for each in (register_writes, memory_writes, memory_reads)]
        m.d.comb += [
            register_writes.paused.eq(paused),
            self.interrupt_request.eq(self.core.interrupt_request & ~busy),
        ]
        status = axi.access(machine).create()
        asks = axi.register(machine, port.STATUS)
        m.d.comb += [status.wanted.eq(busy), status.read.eq(status.granted), status.address.eq(asks)]
        _turns(m, [*(side.access for side in sides), status], self.core)
        asked = Signal()
        m.d.sync += asked.eq(self.core.read & (self.core.address == asks))
        with m.If(register_writes.starts):
            m.d.sync += [busy.eq(1), paused.eq(0)]
        with m.Elif(asked):
            found = self.core.read_data
            m.d.sync += [busy.eq(found[port.BUSY]), paused.eq(found[port.PAUSED])]
        return m


def _turns(m: Module, sides: list[Any], core: Any) -> None:
    """Grants the port to the next requester after the last one granted."""
    count = len(sides)
    last = Signal(range(count))
    chosen = Signal(range(count))
    with m.Switch(last):
        for number in range(count):
            with m.Case(number):
                for behind in range(count, 0, -1):  # the last assignment has priority: the nearest requester
                    side = (number + behind) % count
                    with m.If(sides[side].wanted):
                        m.d.comb += chosen.eq(side)
    for number, side in enumerate(sides):
        m.d.comb += [side.granted.eq(side.wanted & (chosen == number)), side.read_data.eq(core.read_data)]
        with m.If(side.granted):
            m.d.sync += last.eq(number)
            m.d.comb += [
                core.address.eq(side.address),
                core.read.eq(side.read),
                core.write.eq(side.write),
                core.write_data.eq(side.write_data),
            ]


BUSES = {"lite": "s_axi_lite", "full": "s_axi"}
"""The adapter's buses, with the prefixes of their signals in the top module."""


class Attached(wiring.Component):
    """The top module: the core (module `easynpu`, in its own file) behind the adapter, with AXI signal names.

    `aresetn` is synchronous to `aclk`, the only clock.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.adapter = Adapter(machine)
        self.signals = dict(_signals(self.adapter))
        ports = {name: flow(Value.cast(signal).shape()) for name, (flow, signal) in self.signals.items()}
        unused = {f"{BUSES['full']}_wlast": In(1)}
        super().__init__({"aclk": In(1), "aresetn": In(1), "interrupt_request": Out(1), **ports, **unused})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, core = Module(), self.adapter.core
        m.domains.sync = domain = ClockDomain()
        m.d.comb += [domain.clk.eq(self.aclk), domain.rst.eq(~self.aresetn)]
        m.submodules.adapter = self.adapter
        m.d.comb += self.interrupt_request.eq(self.adapter.interrupt_request)
        for name, (flow, signal) in self.signals.items():
            outer, inner = getattr(self, name), Value.cast(signal)
            m.d.comb += inner.eq(outer) if flow is In else outer.eq(inner)
        sides = {In: "o", Out: "i"}
        ports = [
            (sides[member.flow], name, getattr(core, name)) for name, member in core.signature.members.items()
        ]
        clock = [("i", "clk", domain.clk), ("i", "rst", domain.rst)]
        m.submodules.core = Instance("easynpu", *clock, *ports)
        return m


def _signals(adapter: Adapter) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Name, direction and signal of the adapter, for the channels of both buses."""
    for bus, prefix in BUSES.items():
        for name, member in getattr(adapter, bus).signature.members.items():
            channel, back = getattr(getattr(adapter, bus), name), In if member.flow is Out else Out
            yield f"{prefix}_{name}valid", (member.flow, channel.valid)
            yield f"{prefix}_{name}ready", (back, channel.ready)
            for field, _ in channel.payload.shape():
                yield f"{prefix}_{name}{field}", (member.flow, channel.payload[field])


@lru_cache(maxsize=2)
def verilog(machine: Machine) -> str:
    """The top module `easynpu_axi` as SystemVerilog, without the module `easynpu`."""
    return HEADER + modules("easynpu_axi", Attached(machine))
