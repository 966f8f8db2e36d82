"""Flatbuffer tables, declared as frozen dataclasses: reader and writer.

A field's type is a number (u8, u16, u32, u64, i16, i32), `string`, a table's class or TRIPLE, or a vector of one.
The fields are in the order of their declaration; numbers that are 0 are not stored.
"""

from __future__ import annotations

import struct
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from npuc.errors import ArtefactError
from npuc.frozen import frozen

if TYPE_CHECKING:
    from flatbuffers import Builder
    from flatbuffers.table import Table

T = TypeVar("T")
NUMBERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i16": "<h", "i32": "<i"}
PREPEND = {"u8": "Uint8", "u16": "Uint16", "u32": "Uint32", "u64": "Uint64", "i16": "Int16", "i32": "Int32"}
FIRST_SLOT, SLOT_BYTES, OFFSET_BYTES = 4, 2, 4


@frozen
class FieldType:
    """The type of a field; vector: any number of elements."""

    of: str | type[Any]
    vector: bool = False


TRIPLE = "triple"
"""A structure of three bytes: a version."""


def scalar(of: str, default: Any = 0) -> Any:
    """A number, a string or a triple."""
    return field(default=default, metadata={"kind": FieldType(of)})


def vector(of: str | type[Any]) -> Any:
    """A vector of numbers, strings or tables."""
    return field(default=b"" if of == "u8" else (), metadata={"kind": FieldType(of, vector=True)})


def _kinds(cls: type[Any]) -> list[tuple[str, FieldType]]:
    return [(each.name, each.metadata["kind"]) for each in fields(cls)]


def read(cls: type[T], data: bytes, identifier: bytes) -> T:
    """The root table. Raises ArtefactError (E502) for data that is not such a flatbuffer."""
    from flatbuffers.table import Table

    if data[4:8] != identifier:
        raise ArtefactError("E502", "not a flatbuffer of this kind", limit=f"the identifier {identifier.decode()}")
    try:
        return _table(cls, Table(data, struct.unpack_from("<I", data)[0]))
    except (struct.error, TypeError, IndexError, ValueError, OverflowError, RecursionError):
        raise ArtefactError("E502", "the flatbuffer is damaged or truncated") from None


def _table(cls: type[T], table: Table) -> T:
    found: dict[str, Any] = {}
    for slot, (name, kind) in enumerate(_kinds(cls)):
        offset = table.Offset(FIRST_SLOT + SLOT_BYTES * slot)
        if offset:
            found[name] = (
                _vector(kind.of, table, offset) if kind.vector else _value(kind.of, table, table.Pos + offset)
            )
    return cls(**found)


def _value(of: str | type[Any], table: Table, at: int) -> Any:
    from flatbuffers.table import Table

    if not isinstance(of, str):
        return _table(of, Table(table.Bytes, table.Indirect(at)))
    if of == "string":
        return table.String(at).decode()
    if of == TRIPLE:
        return tuple(struct.unpack_from("3B", table.Bytes, at))
    return struct.unpack_from(NUMBERS[of], table.Bytes, at)[0]


def _vector(of: str | type[Any], table: Table, offset: int) -> Any:
    start, count = table.Vector(offset), table.VectorLen(offset)
    if start + count > len(table.Bytes):
        raise ValueError(count)
    if of == "u8":
        return bytes(table.Bytes[start : start + count])
    numeric = isinstance(of, str) and of in NUMBERS
    step = struct.calcsize(NUMBERS[str(of)]) if numeric else OFFSET_BYTES
    return tuple(_value(of, table, start + step * each) for each in range(count))


def write(root: Any, identifier: bytes) -> bytes:
    """The flatbuffer of a root table."""
    from flatbuffers import Builder

    builder = Builder(1024)
    builder.Finish(_write_table(builder, root), file_identifier=identifier)
    return bytes(builder.Output())


def _write_table(builder: Builder, value: Any) -> int:
    kinds = _kinds(type(value))
    outside = {name: _write_outside(builder, kind, getattr(value, name)) for name, kind in kinds if _outside(kind)}
    builder.StartObject(len(kinds))
    for slot, (name, kind) in enumerate(kinds):
        held = getattr(value, name)
        if name in outside:
            builder.PrependUOffsetTRelativeSlot(slot, outside[name], 0)
        elif kind.of == TRIPLE:
            builder.Prep(1, len(held))
            for byte in reversed(held):
                builder.PrependUint8(byte)
            builder.PrependStructSlot(slot, builder.Offset(), 0)
        else:
            getattr(builder, f"Prepend{PREPEND[str(kind.of)]}Slot")(slot, held, 0)
    return builder.EndObject()


def _outside(kind: FieldType) -> bool:
    """Whether a value is stored outside its table."""
    return kind.vector or kind.of == "string"


def _write_outside(builder: Builder, kind: FieldType, value: Any) -> int:
    if not kind.vector:
        return _write_element(builder, kind.of, value)
    if kind.of == "u8":
        return builder.CreateByteVector(value)
    numeric = isinstance(kind.of, str) and kind.of in NUMBERS
    parts = list(value) if numeric else [_write_element(builder, kind.of, each) for each in value]
    size = struct.calcsize(NUMBERS[str(kind.of)]) if numeric else OFFSET_BYTES
    builder.StartVector(size, len(parts), size)
    for each in reversed(parts):
        if numeric:
            getattr(builder, f"Prepend{PREPEND[str(kind.of)]}")(each)
        else:
            builder.PrependUOffsetTRelative(each)
    return builder.EndVector()


def _write_element(builder: Builder, of: str | type[Any], value: Any) -> int:
    return (
        builder.CreateString(value, errors="backslashreplace") if of == "string" else _write_table(builder, value)
    )
