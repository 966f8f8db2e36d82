"""Widths in a core, all derived from the machine, and words as signals: fields, addresses, delays."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import memory

from npuc.storage.bits import places
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


class Fields:
    """Fields of a word by name, with their logical values (minus-one fields + 1)."""

    def __init__(self, word: Value, declaration: type[Any]) -> None:
        self._word = word
        self._places = places(declaration)

    def __getattr__(self, name: str) -> Value:
        place = self._places[name]
        stored = self.last(name)
        return (stored + 1)[: place.width + 1] if place.minus_one else stored

    def last(self, name: str) -> Value:
        """A field as it is stored; for an extent, the last index."""
        place = self._places[name]
        return self._word[place.low : place.high + 1]


def store(m: Module, name: str, depth: int, enable: Value, address: Value, value: Any) -> memory.Memory:
    """A memory that stores a value at an address in each cycle with `enable`."""
    m.submodules[name] = found = memory.Memory(shape=value.shape(), depth=depth, init=[])
    write = found.write_port()
    m.d.comb += [write.en.eq(enable), write.addr.eq(address), write.data.eq(value)]
    return found


def delay(m: Module, value: Value, cycles: int, name: str) -> Any:
    """A value as it was so many cycles ago."""
    for age in range(1, cycles + 1):
        whole = len(Value.cast(value)) > 1  # what is not valid needs no reset
        later = Signal(value.shape(), name=f"{name}_{age}", reset_less=whole)
        m.d.sync += later.eq(value)
        value = later
    return value


def address(m: Module, machine: Machine, name: str, place: Any, row: Value, column: Value, group: Value) -> Value:
    """The address of a map's word, three cycles later: its factors, their products, and the sum in registers.

    Modulo the address width, which preserves every address inside a memory.
    """
    bits = address_bits(machine)
    factors = [
        delay(m, each, 1, f"{name}_{part}")
        for part, each in (
            ("row", row[:bits]), ("column", column[:bits]), ("group", group), ("row_pitch", place.row),
            ("pixel_pitch", place.pixel), ("group_pitch", place.group),
        )
    ]  # fmt: skip
    products = [
        delay(m, (pitch * index)[:bits], 1, f"{name}_{part}_words")
        for part, index, pitch in zip(("row", "column", "group"), factors[:3], factors[3:], strict=True)
    ]
    first, second, third = products
    base = delay(m, place.base, 2, f"{name}_base")
    return delay(m, (base + first + second + third)[:bits], 1, f"{name}_address")
