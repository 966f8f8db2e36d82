"""A minimal system: the core behind a serial line, for a board with a clock and two wires to its host.

A request is a command (1 byte: r or w), an address (3 bytes) and a number of words (2 bytes), low bytes first;
after w the words follow, after r they are the answer, 16 bytes each. Bytes have a start bit, 8 bits from the
lowest on, and a stop bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.layouts import WORD
from npuc.targets.easynpu.rtl.port import REGION_BITS, address_bits
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.verilog import HEADER, modules

FRAME = BYTE + 2
"""Bits of a byte on the line."""
HEAD = 6
"""Bytes of a request before its words."""


class Receiver(wiring.Component):
    """Bytes from the line: `valid` for a cycle with `byte`, half a bit into its stop bit."""

    def __init__(self, clocks: int) -> None:
        self.clocks = clocks
        super().__init__({"line": In(1), "byte": Out(BYTE), "valid": Out(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit: two registers against metastability, then samples in the middle of the bits."""
        m = Module()
        lines, clock, left = Signal(2, init=3), Signal(range(2 * self.clocks)), Signal(range(FRAME + 1))
        m.d.sync += [lines.eq(Cat(self.line, lines[0])), self.valid.eq(0)]
        with m.If((left == 0) & ~lines[1]):
            m.d.sync += [left.eq(FRAME - 1), clock.eq(self.clocks + self.clocks // 2 - 1)]
        with m.Elif(left == 0):
            pass
        with m.Elif(clock != 0):
            m.d.sync += clock.eq(clock - 1)
        with m.Else():
            m.d.sync += [left.eq(left - 1), clock.eq(self.clocks - 1)]
            with m.If(left == 1):
                m.d.sync += self.valid.eq(1)
            with m.Else():
                m.d.sync += self.byte.eq(Cat(self.byte[1:], lines[1]))
        return m


class Sender(wiring.Component):
    """Bytes to the line: `send` takes one while `ready`."""

    def __init__(self, clocks: int) -> None:
        self.clocks = clocks
        super().__init__({"line": Out(1, init=1), "byte": In(BYTE), "send": In(1), "ready": Out(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        bits, clock, left = Signal(FRAME), Signal(range(self.clocks)), Signal(range(FRAME + 1))
        m.d.comb += self.ready.eq(left == 0)
        m.d.sync += self.line.eq(Mux(left == 0, 1, bits[0]))
        with m.If(self.ready & self.send):
            m.d.sync += [bits.eq(Cat(0, self.byte, 1)), left.eq(FRAME), clock.eq(self.clocks - 1)]
        with m.Elif(self.ready):
            pass
        with m.Elif(clock != 0):
            m.d.sync += clock.eq(clock - 1)
        with m.Else():
            m.d.sync += [left.eq(left - 1), bits.eq(bits >> 1), clock.eq(self.clocks - 1)]
        return m


class System(wiring.Component):
    """The core and its serial line, with so many clocks per bit."""

    def __init__(self, machine: Machine, clocks: int) -> None:
        self.machine = machine
        self.clocks = clocks
        super().__init__({"receive": In(1), "send": Out(1, init=1), "interrupt_request": Out(1)})

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        m.submodules.receiver = receiver = Receiver(self.clocks)
        m.submodules.sender = sender = Sender(self.clocks)
        address, count = Signal(address_bits(self.machine) + REGION_BITS), Signal(16)
        word, at = Signal(WORD), Signal(range(LANES + 1))
        write, read, read_data = Signal(), Signal(), Signal(WORD)
        ports: dict[str, Any] = {
            "i_clk": ClockSignal(), "i_rst": ResetSignal(), "i_address": address, "i_write": write,
            "i_write_data": word, "i_read": read, "o_read_data": read_data,
            "o_interrupt_request": self.interrupt_request,
        }  # fmt: skip
        m.submodules.core = Instance("easynpu", **ports)
        shifted = Cat(word[BYTE:], receiver.byte)
        head = word[WORD - HEAD * BYTE :]
        m.d.comb += [receiver.line.eq(self.receive), self.send.eq(sender.line), sender.byte.eq(word[:BYTE])]
        with m.FSM(name="state"):
            with m.State("HEAD"), m.If(receiver.valid):
                m.d.sync += [word.eq(shifted), at.eq(at + 1)]
                with m.If(at == HEAD - 1):
                    m.next = "DECODE"
            with m.State("DECODE"):
                m.d.sync += [address.eq(head[BYTE : 4 * BYTE]), count.eq(head[4 * BYTE :]), at.eq(0)]
                with m.If(Value.cast(head[4 * BYTE :]) == 0):
                    m.next = "HEAD"
                with m.Elif(head[:BYTE] == ord("w")):
                    m.next = "RECEIVE"
                with m.Else():
                    m.next = "READ"
            with m.State("RECEIVE"), m.If(receiver.valid):
                m.d.sync += [word.eq(shifted), at.eq(at + 1)]
                with m.If(at == LANES - 1):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += write.eq(1)
                self._following(m, address, count, at, "RECEIVE")
            with m.State("READ"):
                m.d.comb += read.eq(1)
                m.next = "KEEP"
            with m.State("KEEP"):
                m.d.sync += word.eq(read_data)
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += sender.send.eq(at != LANES)
                with m.If(at == LANES):
                    self._following(m, address, count, at, "READ")
                with m.Elif(sender.ready):
                    m.d.sync += [word.eq(word >> BYTE), at.eq(at + 1)]
        return m

    def _following(self, m: Module, address: Signal, count: Signal, at: Signal, state: str) -> None:
        """Moves to the next word of the request, or to the next request."""
        m.d.sync += [address.eq(address + 1), count.eq(count - 1), at.eq(0)]
        m.next = state
        with m.If(count == 1):
            m.next = "HEAD"


@lru_cache(maxsize=2)
def verilog(machine: Machine, clocks: int) -> str:
    """The top module `easynpu_serial` as SystemVerilog, without the module `easynpu`."""
    return HEADER + modules("easynpu_serial", System(machine, clocks))
