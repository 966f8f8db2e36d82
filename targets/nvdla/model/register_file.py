"""The registers as the blocks see them: two groups per block, programmed and run alternately (ping-pong).

S_POINTER.PRODUCER selects the group that writes go to, CONSUMER the one that the block runs next. An operation
reads the fields of one group by name. Errors for what the hardware could not do blame the artefact and name the
block.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.machine.limits import Registers, breach
from npuc.targets.nvdla.machine.parameters import SECOND, Machine
from npuc.targets.nvdla.machine.registers import Field, Register, RegisterMap
from npuc.targets.nvdla.model.arithmetic import sign_extend

LE_ENTRIES, LO_ENTRIES = 65, 257
GROUPS = 2


def trap(block: str, reason: str, limit: str | None = None, remedy: str | None = None) -> ArtefactError:
    """The error (E503) of a block that cannot continue: it would hang or compute garbage."""
    return ArtefactError("E503", reason, op=block, limit=limit, remedy=remedy)


def expect_within_limits(group: Registers, machine: Machine) -> None:
    """Raises ArtefactError (E503) if the registers of a block break one of its limits."""
    found = breach(group, machine)
    if found is not None:
        raise trap(group.block, found[0], limit=found[1])


@cache
def _fields(registers: RegisterMap, block: str) -> Mapping[str, tuple[Register, Field]]:
    """Register and position of each field of a block; the name may include the register: CFG_LINE.SIZE."""
    found: dict[str, tuple[Register, Field]] = {}
    for register in registers.registers:
        if register.block == block:
            for each in register.fields:
                found.setdefault(each.name, (register, each))
                found[f"{register.name}.{each.name}"] = register, each
    return found


@frozen
class RegisterGroup:
    """A snapshot of a block's registers at the start of an operation."""

    registers: RegisterMap
    block: str
    values: Mapping[str, int]
    """The registers' values by name."""
    second: bool = False
    """Whether there is a second memory; otherwise RAM_TYPE is ignored."""

    @cached_property
    def _fields(self) -> Mapping[str, tuple[Register, Field]]:
        return _fields(self.registers, self.block)

    def __getitem__(self, field: str) -> int:
        """The value of a field."""
        register, place = self._fields[field]
        return (self.values[register.name] >> place.low) & ((1 << place.width) - 1)

    def signed_value(self, field: str, width: int | None = None) -> int:
        """The value of a field, or of its lowest bits, in two's complement."""
        bits = width or self._fields[field][1].width
        return sign_extend(self[field] & ((1 << bits) - 1), bits)

    def value_name(self, field: str) -> str:
        """The name of a field's value. Raises ArtefactError (E503) for a value without a name."""
        place = self._fields[field][1]
        for name, number in place.names:
            if number == self[field]:
                return name
        raise trap(self.block, f"{field} = {self[field]}", limit=", ".join(name for name, _ in place.names))

    def bytes(self, field: str) -> int:
        """A size, stride or half of an address in bytes, even if the field leaves out the lowest bits.

        Raises ArtefactError (E503) if bits below the field are set.
        """
        register, place = self._fields[field]
        value = self.values[register.name]
        if value & ((1 << place.low) - 1):
            limit = f"a multiple of {1 << place.low} bytes"
            raise trap(self.block, f"{register.name} {value:#x} is not aligned", limit=limit)
        return self[field] << place.low

    def address(self, low: str, high: str, ram: str) -> int:
        """A 64-bit byte address from two fields; ram: the field that selects the memory.

        Addresses in the second memory are offset by SECOND. Raises ArtefactError (E503) for a DRAM address that
        high.
        """
        address = self[high] << 32 | self.bytes(low)
        if not self.second:
            return address
        if address >= SECOND:
            raise trap(self.block, f"{address:#x} lies outside memory", limit=f"addresses below {SECOND:#x}")
        return address if self[ram] else address + SECOND


class LookUpTables:
    """The tables LE and LO of SDP or CDP, written through S_LUT_ACCESS_CFG and S_LUT_ACCESS_DATA."""

    def __init__(self) -> None:
        self.le: Array = np.zeros(LE_ENTRIES, np.int64)
        self.lo: Array = np.zeros(LO_ENTRIES, np.int64)
        self._at = 0
        self._table: Array = self.le
        self._writes = False

    def access(self, address: int, table: int, writes: int) -> None:
        """Sets the next entry to access, by S_LUT_ACCESS_CFG."""
        self._at, self._table, self._writes = address, self.lo if table else self.le, bool(writes)

    def write(self, block: str, value: int) -> None:
        """Stores an entry (16 bits) and advances the address; does nothing if configured for reading.

        Raises ArtefactError (E503) past the end of the table.
        """
        if not self._writes:
            return
        if self._at >= len(self._table):
            raise trap(block, f"entry {self._at} of a table of {len(self._table)} is written")
        self._table[self._at] = sign_extend(value & 0xFFFF, 16)
        self._at += 1

    def read(self) -> int:
        """The entry that S_LUT_ACCESS_DATA shows; advances the address."""
        value = int(self._table[min(self._at, len(self._table) - 1)]) & 0xFFFF
        self._at += 1
        return value


class RegisterFile:
    """All registers, including both groups of those that exist twice."""

    def __init__(self, registers: RegisterMap, *, second: bool = False) -> None:
        self.map, self._second = registers, second
        self._values: dict[str, list[dict[str, int]]] = {}
        for each in registers.registers:
            groups = self._values.setdefault(each.block, [{}, {}])
            for group in groups:
                group[each.name] = each.reset
        self.tables: Mapping[str, LookUpTables] = {block: LookUpTables() for block in ("SDP", "CDP")}

    def producer(self, block: str) -> int:
        """The group that writes go to."""
        return self.get(block, "S_POINTER") & 1

    def consumer(self, block: str) -> int:
        """The group that runs next."""
        return self.get(block, "S_POINTER") >> 16 & 1

    def is_enabled(self, block: str, group: int) -> bool:
        """Whether a group waits to run."""
        return bool(self._values[block][group]["D_OP_ENABLE"] & 1)

    def get(self, block: str, name: str, group: int = 0) -> int:
        """A register's value; both groups agree for a register that exists once."""
        return self._values[block][group][name]

    def set(self, register: Register, value: int) -> None:
        """Stores a value that a program writes, in the producer's group or in a register that exists once."""
        values = self._values[register.block]
        if register.of_group:
            values[values[0]["S_POINTER"] & 1][register.name] = value
            return
        if register.name == "S_POINTER":
            value = value & 1 | self.consumer(register.block) << 16
        for each in values:
            each[register.name] = value

    def report(self, block: str, name: str, group: int, value: int) -> None:
        """Stores a value that a block reports of an operation, in a register of the operation's group."""
        self._values[block][group][name] = value & 0xFFFFFFFF

    def group(self, block: str, group: int) -> RegisterGroup:
        """A snapshot of a group, for the operation that runs with it."""
        return RegisterGroup(self.map, block, dict(self._values[block][group]), self._second)

    def finish(self, block: str, group: int) -> None:
        """Frees a group after its operation; the other group is next."""
        self._values[block][group]["D_OP_ENABLE"] = 0
        pointer = self.producer(block) | (1 - group) << 16
        for each in range(GROUPS):
            self._values[block][each]["S_POINTER"] = pointer
