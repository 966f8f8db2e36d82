"""The two tables of CDP with random settings, against their rules written out for one value in whole numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.model import lut
from npuc.targets.nvdla.model.register_file import LookUpTables, RegisterGroup

FRACTION_BITS = 16


def rounded(value: int, shift: int) -> int:
    """Divided by 2^shift, half away from zero; multiplied where it is negative."""
    if shift <= 0:
        return value << -shift
    magnitude = (abs(value) + (1 << shift >> 1)) >> shift
    return -magnitude if value < 0 else magnitude


def saturated(value: int) -> int:
    """To 16 bits."""
    return max(-(1 << 15), min((1 << 15) - 1, value))


@dataclass(frozen=True)
class Table:
    """One table: a step of 2^select, or steps that double from 2^offset on."""

    entries: list[int]
    start: int
    end: int
    select: int
    offset: int | None
    below: tuple[int, int]
    beyond: tuple[int, int]

    def of(self, x: int) -> tuple[str, int]:
        """Where a value lies, and what the table gives for it."""
        distance = x - self.start
        if self.offset is None:
            index, part, digits = distance >> self.select, distance & ((1 << self.select) - 1), self.select
        else:
            digits = max(distance, 1).bit_length() - 1
            index, part = digits - self.offset, distance - (1 << digits)
        if distance <= 0 or index < 0:
            first = self.start + (1 << self.offset if self.offset is not None and self.offset >= 0 else 0)
            return "below", self._line(self.entries[0], x - first, self.below)
        if index >= len(self.entries) - 1:
            return "beyond", self._line(self.entries[-1], x - self.end, self.beyond)
        fraction = (part << FRACTION_BITS) >> digits
        step = self.entries[index + 1] - self.entries[index]
        return "hit", saturated(self.entries[index] + rounded(step * fraction, FRACTION_BITS))

    @staticmethod
    def _line(entry: int, distance: int, slope: tuple[int, int]) -> int:
        return saturated(entry + rounded(distance * slope[0], slope[1]))


def drawn(chance: random.Random, entries: int, *, exponential: bool) -> Table:
    """A table at random whose end is where its steps end."""
    values = [chance.randint(-(1 << 15), (1 << 15) - 1) for _ in range(entries)]
    select, start = chance.randint(0, 8), chance.randint(-2000, 4000)
    offset = chance.choice([chance.randint(-60, -46), chance.randint(0, 9)]) if exponential else None
    reach = (entries - 1) << select if offset is None else 1 << min(entries - 1 + offset, 30)
    slopes = [(chance.randint(-300, 300), chance.randint(-16, 15)) for _ in range(2)]
    return Table(values, start, start + reach, select, offset, slopes[0], slopes[1])


def group(le: Table, lo: Table, priorities: tuple[int, int, int]) -> RegisterGroup:
    """CDP's registers with both tables."""
    fields = {
        "LUT_LE_FUNCTION": int(le.offset is None),
        "LUT_LE_INDEX_OFFSET": le.offset or 0,
        **dict(zip(("LUT_UFLOW_PRIORITY", "LUT_OFLOW_PRIORITY", "LUT_HYBRID_PRIORITY"), priorities, strict=True)),
    }
    for name, table in (("LE", le), ("LO", lo)):
        fields[f"LUT_{name}_INDEX_SELECT"] = table.select
        for side, place in (("START", table.start), ("END", table.end)):
            fields |= {f"LUT_{name}_{side}_LOW": place, f"LUT_{name}_{side}_HIGH": place >> 32}
        for side, (scale, shift) in (("UFLOW", table.below), ("OFLOW", table.beyond)):
            fields |= {f"LUT_{name}_SLOPE_{side}_SCALE": scale, f"LUT_{name}_SLOPE_{side}_SHIFT": shift}
    registers = register_map("nv_small")
    own = [each for each in registers.registers if each.block == "CDP"]
    chosen = {each.name: {name: fields[name] & each.places[name].most for name in each.places if name in fields}
              for each in own}  # fmt: skip
    return RegisterGroup(registers, "CDP", {each.name: each.value(**chosen[each.name]) for each in own})


@pytest.mark.parametrize("exponential", [False, True], ids=["linear", "exponential"])
def test_tables_give_what_their_rules_say(exponential: bool) -> None:
    chance = random.Random(int(exponential))
    seen: set[tuple[str, str]] = set()
    for _ in range(60):
        le, lo = drawn(chance, 65, exponential=exponential), drawn(chance, 257, exponential=False)
        priorities = (chance.randint(0, 1), chance.randint(0, 1), chance.randint(0, 1))
        stored = LookUpTables()
        stored.le[:], stored.lo[:] = le.entries, lo.entries
        borders = (le.start, le.end, lo.start, lo.end)
        values = [place + chance.randint(-40, 40) for place in borders for _ in range(6)]
        values += [place + near for place in borders for near in (-1, 0, 1)]
        found = lut.look_up(group(le, lo, priorities), stored, np.array(values, np.int64), lut.CDP)[0].tolist()
        for x, result in zip(values, found, strict=True):
            (first, of_le), (second, of_lo) = le.of(x), lo.of(x)
            seen.add((first, second))
            both = {"below": priorities[0], "beyond": priorities[1]}.get(first, priorities[2])
            wants_lo = both if first == second else priorities[2]
            if "hit" in (first, second) and first != second:
                wants_lo = second == "hit"
            assert result == (of_lo if wants_lo else of_le), (x, le, lo, priorities)
    assert len(seen) >= 7
