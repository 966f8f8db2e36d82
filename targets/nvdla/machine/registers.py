"""NVDLA's registers, declared from tables/ as words of npuc.storage.bits, and the driver's commands on them.

A register map finds registers by name (`CDMA.D_BANK`, or `NVDLA_CDMA.D_BANK_0` as in NVDLA's test programs) and by
byte address. Encoder, decoder and listing derive from each declaration; unused bits are declared as
`reserved_HIGH_LOW` and preserved. nv_large has the map of nv_small. Files of commands, and loadables, are known by
their first bytes.

Source: the register tables of nv_small and nv_full (block, register, address, reset value, field, lsb, width,
named values).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from npuc.errors import EncodingError
from npuc.frozen import frozen
from npuc.storage.bits import Bits, Names, bits, decode, encode, named_fields, places, word

TABLES = Path(__file__).parent / "tables"
TABLE_OF: Mapping[str, str] = {"nv_small": "nv_small", "nv_large": "nv_small", "nv_full": "nv_full"}
REGISTER_BITS = 32
RESERVED = "reserved_"


@frozen
class Field:
    """A row of the table: bits lsb + width - 1 .. lsb of a register."""

    name: str
    low: int
    width: int
    names: Names


@frozen
class Register:
    """One register: its address and the meaning of its bits."""

    block: str
    name: str
    address: int
    """In bytes."""
    reset: int
    fields: tuple[Field, ...]

    @property
    def title(self) -> str:
        """Block and name: CDMA.D_BANK."""
        return f"{self.block}.{self.name}"

    @cached_property
    def of_group(self) -> bool:
        """Whether it exists once per ping-pong group (D_...) instead of only once (S_... and others)."""
        return self.name.startswith("D_")

    @cached_property
    def word(self) -> type[Any]:
        """The declaration as a word of npuc.storage.bits, whose defaults are the reset value."""
        return _declare_register(self)

    @cached_property
    def places(self) -> Mapping[str, Bits]:
        """The bit position of each field."""
        return places(self.word)

    @cached_property
    def mask(self) -> int:
        """All bits up to the highest one that a field has."""
        return (1 << max(each.low + each.width for each in self.fields)) - 1

    @cached_property
    def _encodings(self) -> dict[tuple[bool | tuple[str, int | str], ...], int]:
        """A cache of encoded values: layers have most fields in common."""
        return {}

    def value(self, cleared: bool = False, /, **values: int | str) -> int:
        """The register value with these fields, by number or name; the others are 0 or have their reset values.

        Raises EncodingError (E301) for an unknown field or name, and for a number that does not fit its field.
        """
        key = cleared, *values.items()
        if key not in self._encodings:
            others = {each.name: 0 for each in self.fields} if cleared else {}
            word = self.word(**others | {name: self._number(name, each) for name, each in values.items()})
            self._encodings[key] = encode(word)
        return self._encodings[key]

    def decode(self, value: int) -> Any:
        """A value decoded as a word; encoding it gives the same value."""
        return decode(self.word, value)

    def text(self, value: int) -> str:
        """The fields of a value by name: DATA_BANK=11 WEIGHT_BANK=2. Reserved bits are shown if they are set."""
        fields = named_fields(self.decode(value))
        return " ".join(
            f"{name}={_number_text(each)}"
            for name, each in fields.items()
            if each != 0 or not name.startswith(RESERVED)
        )

    def _number(self, name: str, value: int | str) -> int:
        place = self.places.get(name)
        if place is None:
            known = ", ".join(each.name for each in self.fields)
            raise EncodingError("E301", f"no field {name}", op=self.title, limit=known)
        if isinstance(value, int):
            return value
        named = dict(place.names)
        if value not in named:
            raise EncodingError("E301", f"{name} has no value {value}", op=self.title, limit=", ".join(named))
        return named[value]


def _number_text(value: str | int) -> str:
    return value if isinstance(value, str) else str(value) if value < 10 else hex(value)


def _declare_register(register: Register) -> type[Any]:
    """A frozen dataclass whose fields cover the 32 bits of a register."""
    declared: list[tuple[str, Any]] = []
    at = 0
    for each in sorted(register.fields, key=lambda field: field.low):
        if each.low > at:
            declared.append(_reserved_field(at, each.low - 1, register.reset))
        at = each.low + each.width
        default = (register.reset >> each.low) & ((1 << each.width) - 1)
        place = bits(at - 1, each.low, each.name, default=default, names=each.names)
        declared.append((each.name, place))
    if at < REGISTER_BITS:
        declared.append(_reserved_field(at, REGISTER_BITS - 1, register.reset))
    body = {"__annotations__": {name: int for name, _ in declared}, **dict(declared)}
    return word(REGISTER_BITS)(frozen(kw_only=True)(type(f"{register.block}_{register.name}", (), body)))


def _reserved_field(low: int, high: int, reset: int) -> tuple[str, Any]:
    default = (reset >> low) & ((1 << (high - low + 1)) - 1)
    return f"{RESERVED}{high}_{low}", bits(high, low, "reserved", default=default)


@frozen(eq=False)
class RegisterMap:
    """The registers of a configuration in address order; there is a single object for each map."""

    name: str
    registers: tuple[Register, ...]

    @cached_property
    def by_title(self) -> Mapping[str, Register]:
        """Registers by block and name: CDMA.D_BANK."""
        return {each.title: each for each in self.registers}

    @cached_property
    def by_address(self) -> Mapping[int, Register]:
        """Registers by byte address."""
        return {each.address: each for each in self.registers}

    def __getitem__(self, title: str) -> Register:
        """The register CDMA.D_BANK, also written NVDLA_CDMA.D_BANK_0, or its unit in lower case.

        Raises EncodingError (E504) if unknown.
        """
        unit, dot, name = title.partition(".")
        plain = f"{unit.upper()}{dot}{name}".removeprefix("NVDLA_")
        found = self.by_title.get(plain) or self.by_title.get(re.sub(r"_0$", "", plain))
        if found is None:
            raise EncodingError("E504", f"{self.name} has no register {title}")
        return found

    def register_at(self, address: int) -> Register:
        """The register at a byte address. Raises EncodingError (E504) where there is none."""
        found = self.by_address.get(address)
        if found is None:
            raise EncodingError("E504", f"{self.name} has no register at {address:#x}")
        return found

    def text(self, address: int, value: int) -> str:
        """A register write as in listings: CDMA.D_BANK DATA_BANK=0xb WEIGHT_BANK=2."""
        register = self.register_at(address)
        return f"{register.title} {register.text(value)}"

    def layout(self) -> dict[str, list[dict[str, str | int]]]:
        """Every register as a table of its fields: for `dump --layout` and the documentation."""
        return {
            each.title: [
                {
                    "address": hex(each.address),
                    "bits": f"{place.high}:{place.low}",
                    "field": name,
                    "width": place.width,
                    "values": " ".join(f"{text}={number}" for text, number in place.names),
                }
                for name, place in each.places.items()
                if not name.startswith(RESERVED)
            ]
            for each in self.registers
        }


@cache
def register_map(name: str) -> RegisterMap:
    """The register map of nv_small, nv_large or nv_full. Raises KeyError for another name."""
    with (TABLES / f"{TABLE_OF[name]}.csv").open(encoding="utf-8", newline="") as file:
        return RegisterMap(name, tuple(_registers(csv.DictReader(file))))


def _registers(rows: Iterable[Mapping[str, str]]) -> Iterable[Register]:
    for _, group in groupby(rows, key=lambda row: (row["block"], row["register"])):
        fields = list(group)
        first = fields[0]
        yield Register(
            first["block"],
            first["register"],
            int(first["address"], 16),
            int(first["reset"], 16),
            tuple(_field(row) for row in fields),
        )


def _field(row: Mapping[str, str]) -> Field:
    named = (pair.partition("=") for pair in row["values"].split())
    values = tuple((name, int(value)) for name, _, value in named)
    return Field(row["field"], int(row["lsb"]), int(row["width"]), values)


SEQUENTIAL, SEQUENCERS, VERILATOR = PLAYERS = ("sequential", "sequencers", "verilator")
"""Who executes a register program as a test program: one player in order, a sequencer for each block, or the
Verilator test bench of NVDLA's tree, which looks for interrupts after all registers have been written.
"""


class Write(NamedTuple):
    """The driver writes a register."""

    address: int
    """In bytes."""
    value: int


@frozen
class Poll:
    """The driver reads a register until its bits under the mask have a value."""

    address: int
    mask: int
    value: int


@frozen
class Wait:
    """The driver waits for an interrupt: a source of GLB.S_INTR_STATUS and its group, or any interrupt."""

    source: str | None = None
    """SDP, PDP, CDP, BDMA, RUBIK, CDMA_DAT, CDMA_WT or CACC."""
    group: int = 0

    def __str__(self) -> str:
        return f"{self.source}_{self.group}" if self.source else "any interrupt"


Command = Write | Poll | Wait
RECORD_BYTES = 16
"""Of a command in the file of a register program."""
REGISTER_TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")
"""The targets whose register programs are alike from the outside."""
LOADABLE = b"NVDA"
"""Bytes 4 to 8 of a loadable: the identifier of its flatbuffer."""
RECORD_END = "ffffffff0000100400000000"
"""The ending of a register program's first record, in hexadecimal."""


def is_loadable(path: Path) -> bool:
    """Whether a file is a loadable; not one that cannot be read."""
    return _head(path)[4:8] == LOADABLE


def is_register_program(path: Path) -> bool:
    """Whether a file holds register records, binary or in hexadecimal."""
    head = _head(path)
    binary, text = head[:RECORD_BYTES][::-1].hex(), head.split(b"\n")[0].strip().decode("ascii", "replace")
    return binary.endswith(RECORD_END) or text.lower().endswith(RECORD_END)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4 * RECORD_BYTES)
    except OSError:
        return b""
