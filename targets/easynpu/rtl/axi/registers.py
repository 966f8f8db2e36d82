"""The registers behind AXI4-Lite."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.registers import REGISTERS
from npuc.targets.easynpu.rtl.axi import channels as axi
from npuc.targets.easynpu.rtl.axi.channels import DEPTH, LITE, REGISTER_BITS, REGISTER_BYTES, Response
from npuc.targets.easynpu.rtl.port import CONTROL, PAUSE, RESUME, STATUS
from npuc.targets.easynpu.rtl.sizes import index_bits

BYTES = index_bits(REGISTER_BYTES)


class RegisterWrites(wiring.Component):
    """Writes. SLVERR: part of a register, a read-only one, or a value that the core would ignore.

    `busy`, `paused`: the state of the core; `starts`: from the next cycle on it runs.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        ports = {**axi.members(LITE, "aw", "w", "b"), "access": Out(axi.access(machine))}
        super().__init__({**ports, "busy": In(1), "paused": In(1), "starts": Out(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        places, place = axi.taken(m, "aw_queue", self.aw)
        values, value = axi.taken(m, "w_queue", self.w)
        answers, found = axi.given(m, "b_queue", self.b)
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
        super().__init__({**axi.members(LITE, "ar", "r"), "access": Out(axi.access(machine))})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m, access = Module(), self.access
        places, place = axi.taken(m, "ar_queue", self.ar)
        answers, found = axi.given(m, "r_queue", self.r)
        index, response, asked = place.addr[BYTES:], Signal(Response), Signal()
        exists = index < len(REGISTERS)
        m.d.comb += [
            access.wanted.eq(places.r_rdy & (answers.level < DEPTH - 1)),
            access.address.eq(axi.register(self.machine, index)),
            access.read.eq(access.granted & exists),
            places.r_en.eq(access.granted),
            answers.w_en.eq(asked),
            found.data.eq(Mux(response == Response.OKAY, access.read_data[:REGISTER_BITS], 0)),
            found.resp.eq(response),
        ]
        m.d.sync += [asked.eq(access.granted), response.eq(axi.answer(exists, exists))]
        return m
