"""The widths in a core, all derived from the machine."""

from __future__ import annotations

from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine


def index_bits(entries: int) -> int:
    """Bits of an index of this many entries; at least one."""
    return max(1, (entries - 1).bit_length())


def pad_depth(machine: Machine) -> int:
    """Entries of an ifmap pad in all sets."""
    return machine.ifmap_pad_sets * machine.ifmap_pad_entries


def address_bits(machine: Machine) -> int:
    """Bits of an address in the Fmap and the skip DTCM; addresses are computed modulo that power of two."""
    return index_bits(max(machine.fmap_words, machine.skip_words))


def tables(machine: Machine) -> int:
    """Activation tables that a chain can have: each takes an entry of the bias and scale pads per segment."""
    return max(1, machine.parameter_pad_entries // LANES)
