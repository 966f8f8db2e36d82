"""The host's port of a core: regions and registers."""

from __future__ import annotations

from amaranth.lib.wiring import In, Out, Signature

from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import CONTROLS, REGISTERS, Machine
from npuc.targets.easynpu.rtl.quantiser import BYTE
from npuc.targets.easynpu.rtl.words import index_bits

REGIONS = (*isa.MEMORIES, "weight", "itcm", "registers")
"""The regions that the upper three bits of a host address select."""
REGION_BITS = 3
CONTROL, RESUME, STATUS, CYCLES = range(len(CONTROLS))
"""Control registers; those that identify the core follow (machine/parameters.py).

Control: the number of words to run in bits 30:0, pause in bit 31; a write starts the run. Resume: a write
continues after a pause. Status: a write clears the interrupt. Cycles: those of the run, read only.
"""
PAUSE = 31
BUSY, PAUSED, FAILED, LOST, STARVED = range(5)
"""Bits of the status. failed: an undefined word; lost, starved: an error of the core itself, never set."""


def signature(machine: Machine) -> Signature:
    """The port from the side of its host."""
    address, word = address_bits(machine) + REGION_BITS, LANES * BYTE
    asks = {"address": Out(address), "write": Out(1), "write_data": Out(word), "read": Out(1)}
    return Signature({**asks, "read_data": In(word), "interrupt_request": In(1)})


def address_bits(machine: Machine) -> int:
    """Bits of a host address below the region."""
    memories = (machine.capacity_words(name) for name in REGIONS[:-1])
    return max(index_bits(entries) for entries in (*memories, len(REGISTERS)))
