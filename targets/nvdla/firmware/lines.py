"""Register writes as text: a line names a register, and the descriptor values of its fields.

    CSC.D_RELEASE RLS_SLICES=op.release-1
    CDMA.D_WEIGHT_ADDR_LOW *=low(surfaces.weight)

`*` is the whole register; `-1` means that the register stores one less; `low` and `high` are the halves of a
cube's address, `ram` is its memory; `:name` is a value derived by the engine's module, which is not read back. The
same lines translate descriptors to the firmware's writes, and registers to descriptors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.nvdla.firmware.descriptors import NONE, DataCube
from npuc.targets.nvdla.machine.registers import RegisterMap

V = TypeVar("V")
RegisterWrite = tuple[str, int]
"""A register's block and name, and its value."""
Writes = Iterator[RegisterWrite]
WORD = 0xFFFFFFFF


def decode_number(values: Sequence[V], number: int, what: str = "a precision or format") -> V:
    """The value for a descriptor's number. Raises ArtefactError (E502) for a number without one."""
    if not 0 <= number < len(values):
        raise ArtefactError("E502", f"{what} of {number}", limit=f"0..{len(values) - 1}")
    return values[number]


OF_CUBE = re.compile(r"(low|high|ram)\((.+)\)")
PLAIN = re.compile(r"([a-z_0-9.]+?)(-1)?")


@frozen
class Term:
    """A field and the source of its value."""

    field: str
    source: str
    """A dotted name from `op` or `surfaces`, a derived value (:name), or empty for a cube's address or memory."""
    less: int = 0
    what: str = ""
    """Of a cube: low, high or ram."""
    cube: str = ""

    @cached_property
    def place(self) -> tuple[int, Callable[[Any], Any]]:
        """Who has it and how it is read: the operation (0), the surfaces (1), or what is derived (2)."""
        root, _, path = (self.cube or self.source).partition(".")
        return (("op", "surfaces").index(root), attrgetter(path)) if path else (2, itemgetter(root[1:]))


@frozen
class RegisterLine:
    """A register and its fields; fields that are not named are 0."""

    register: str
    terms: tuple[Term, ...]

    @property
    def block(self) -> str:
        """The register's block."""
        return self.register.partition(".")[0]


def lines(text: str) -> tuple[RegisterLine, ...]:
    """The lines of a table."""
    rows = (row.split() for row in text.strip().splitlines())
    return tuple(
        RegisterLine(register, tuple(_term(*each.split("=")) for each in terms)) for register, *terms in rows
    )


def _term(name: str, source: str) -> Term:
    of_cube, plain = OF_CUBE.fullmatch(source), PLAIN.fullmatch(source)
    if of_cube:
        return Term(name, "", what=of_cube[1], cube=of_cube[2])
    return Term(name, plain[1], less=int(bool(plain[2]))) if plain else Term(name, source)


Derived = Mapping[str, int]
"""Values derived from the operation and its surfaces, by name."""
NOTHING: Derived = {}


def ram(cube: DataCube) -> int:
    """RAM_TYPE of a cube; 1: main memory (DRAM)."""
    return 1 - min(cube.type, 1)


@frozen
class Firmware:
    """The firmware's environment besides the descriptors."""

    registers: RegisterMap
    atom_bytes: int
    address: Callable[[int], int]
    """The address of an entry of the task's address list."""

    def fields(self, title: str, **values: int | str) -> RegisterWrite:
        """A write of a register with these fields, the others 0."""
        return title, self.registers.by_title[title].value(True, **values)

    def address_of(self, cube: DataCube) -> int:
        """A cube's address; 0 if it has none."""
        return 0 if cube.address == NONE else self.address(cube.address) + cube.offset

    def writes(self, table: Sequence[RegisterLine], op: Any, surfaces: Any, derived: Derived = NOTHING) -> Writes:
        """The writes of a table's lines."""
        known, roots = self.registers.by_title, (op, surfaces, derived)
        for line in table:
            word = 0
            for each in line.terms:
                root, held = each.place
                value = held(roots[root])
                value = self._of_cube(value, each.what) if each.what else value - each.less
                if each.field == "*":
                    word = value & WORD
                    continue
                register = known[line.register]
                place = register.places[each.field]
                if value >> place.width > 0:
                    register.value(**{each.field: value})  # raises EncodingError
                word |= (value & ((1 << place.width) - 1)) << place.low
            yield line.register, word

    def _of_cube(self, cube: DataCube, what: str) -> int:
        return ram(cube) if what == "ram" else self.address_of(cube) >> 32 * (what == "high")
