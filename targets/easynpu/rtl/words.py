"""The fields of an instruction word as signals, with positions from the one declaration in isa."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Value

from npuc.bits import places
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.sizes import address_bits


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


def wrapped(machine: Machine, place: Any, row: Value, column: Value, group: Value) -> Value:
    """The address of a map's word, modulo the address width, which preserves every address inside a memory."""
    bits = address_bits(machine)
    rows = (place.row * row)[:bits]
    columns = (place.pixel * column)[:bits]
    return (place.base + rows + columns + (place.group * group)[:bits])[:bits]
