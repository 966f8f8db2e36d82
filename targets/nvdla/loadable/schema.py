"""The file of a loadable: its tables as frozen dataclasses, with fields in file order, and their flatbuffer.

A field's type is a number (u8, u16, u32, u64, i16, i32), `string`, a table's class or TRIPLE, or a vector of one.
Numbers that are 0 are not stored.

Source: The loadable (facts): what NVDLA's runtime reads.
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


IDENTIFIER = b"NVDA"
VERSION = (0, 7, 0)
DLA_VERSION, EMU_VERSION = (0, 12, 3), (0, 0, 1)
DLA, EMU = 1, 2
"""Interfaces of a task: the engine; emulation on the CPU."""
VERSIONS = {DLA: DLA_VERSION, EMU: EMU_VERSION}
ALLOCATE, SET, INPUT, OUTPUT = 1, 2, 4, 8
"""Flags of a memory."""
ADDRESSES, DEPENDENCIES, OPERATIONS, SURFACES, LUTS = 1, 2, 3, 4, 5
"""Sub-interfaces of a DLA task's blobs."""
ALIGNMENT = 4096
T = TypeVar("T")
NUMBERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i16": "<h", "i32": "<i"}
PREPEND = {"u8": "Uint8", "u16": "Uint16", "u32": "Uint32", "u64": "Uint64", "i16": "Int16", "i32": "Int32"}
FIRST_SLOT, SLOT_BYTES, OFFSET_BYTES = 4, 2, 4


@frozen
class _FieldType:
    """The type of a field; vector: any number of elements."""

    of: str | type[Any]
    vector: bool = False


TRIPLE = "triple"
"""A structure of three bytes: a version."""


def scalar(of: str, default: Any = 0) -> Any:
    """A number, a string or a triple."""
    return field(default=default, metadata={"kind": _FieldType(of)})


def vector(of: str | type[Any]) -> Any:
    """A vector of numbers, strings or tables."""
    return field(default=b"" if of == "u8" else (), metadata={"kind": _FieldType(of, vector=True)})


@frozen(kw_only=True)
class Task:
    """A unit of submission: its addresses, the events it waits for and signals."""

    id: int = scalar("u16")
    interface: int = scalar("u32")
    instance: int = scalar("i16")
    address_list: tuple[int, ...] = vector("u16")
    pre_actions: tuple[int, ...] = vector("u16")
    post_actions: tuple[int, ...] = vector("u16")


@frozen(kw_only=True)
class Memory:
    """A region of memory and the blobs that fill it."""

    id: int = scalar("u16")
    domain: int = scalar("u8")
    flags: int = scalar("u16")
    size: int = scalar("u64")
    alignment: int = scalar("u32")
    contents: tuple[str, ...] = vector("string")
    offsets: tuple[int, ...] = vector("u64")
    bind_id: int = scalar("u16")
    tensor_desc_id: int = scalar("u16")


@frozen(kw_only=True)
class Address:
    """A location in a region."""

    id: int = scalar("u16")
    mem_id: int = scalar("u16")
    offset: int = scalar("u64")
    size: int = scalar("u64")


@frozen(kw_only=True)
class Event:
    """An event that tasks wait for or signal."""

    id: int = scalar("u16")
    type: int = scalar("u8")
    target: int = scalar("u16")
    val: int = scalar("u32")
    op: int = scalar("u8")


@frozen(kw_only=True)
class Blob:
    """Bytes by name."""

    name: str = scalar("string", "")
    size: int = scalar("u64")
    interface: int = scalar("u32")
    sub_interface: int = scalar("u32")
    version: tuple[int, int, int] = scalar(TRIPLE, (0, 0, 0))
    data: bytes = vector("u8")


@frozen(kw_only=True)
class TensorDesc:
    """An input or output as the user binds it."""

    name: str = scalar("string", "")
    id: int = scalar("u16")
    mem_id: int = scalar("u16")
    size: int = scalar("u64")
    offset: int = scalar("u64")
    data_format: int = scalar("u8")
    data_type: int = scalar("u8")
    data_category: int = scalar("u8")
    pixel_format: int = scalar("u8")
    pixel_mapping: int = scalar("u8")
    n: int = scalar("i32")
    c: int = scalar("i32")
    h: int = scalar("i32")
    w: int = scalar("i32")
    stride_0: int = scalar("u32")
    stride_1: int = scalar("u32")
    stride_2: int = scalar("u32")
    stride_3: int = scalar("u32")
    stride_4: int = scalar("u32")
    stride_5: int = scalar("u32")
    stride_6: int = scalar("u32")
    stride_7: int = scalar("u32")


@frozen(kw_only=True)
class Reloc:
    """A location in a blob that depends on how a tensor is bound."""

    address_id: int = scalar("u16")
    write_id: int = scalar("u16")
    offset: int = scalar("u64")
    interface: int = scalar("u32")
    sub_interface: int = scalar("u32")
    reloc_type: int = scalar("u8")


@frozen(kw_only=True)
class Submit:
    """Tasks that are submitted together."""

    id: int = scalar("u16")
    task_id: tuple[int, ...] = vector("u16")


@frozen(kw_only=True)
class Loadable:
    """The root."""

    version: tuple[int, int, int] = scalar(TRIPLE, VERSION)
    task_list: tuple[Task, ...] = vector(Task)
    memory_list: tuple[Memory, ...] = vector(Memory)
    address_list: tuple[Address, ...] = vector(Address)
    event_list: tuple[Event, ...] = vector(Event)
    blobs: tuple[Blob, ...] = vector(Blob)
    tensor_desc_list: tuple[TensorDesc, ...] = vector(TensorDesc)
    reloc_list: tuple[Reloc, ...] = vector(Reloc)
    submit_list: tuple[Submit, ...] = vector(Submit)


def read(data: bytes) -> Loadable:
    """The tables of a loadable. Raises ArtefactError (E502) for other or damaged data."""
    from flatbuffers.table import Table

    if data[4:8] != IDENTIFIER:
        raise ArtefactError("E502", "not a flatbuffer of this kind", limit=f"the identifier {IDENTIFIER.decode()}")
    try:
        return _read_table(Loadable, Table(data, struct.unpack_from("<I", data)[0]))
    except (struct.error, TypeError, IndexError, ValueError, OverflowError, RecursionError):
        raise ArtefactError("E502", "the flatbuffer is damaged or truncated") from None


def _kinds(cls: type[Any]) -> list[tuple[str, _FieldType]]:
    return [(each.name, each.metadata["kind"]) for each in fields(cls)]


def _read_table(cls: type[T], table: Table) -> T:
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
        return _read_table(of, Table(table.Bytes, table.Indirect(at)))
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


def write(loadable: Loadable) -> bytes:
    """The file of a loadable."""
    from flatbuffers import Builder

    builder = Builder(1024)
    builder.Finish(_write_table(builder, loadable), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _write_table(builder: Builder, value: Any) -> int:
    kinds = _kinds(type(value))
    outside = {
        name: _write_outside(builder, kind, getattr(value, name))
        for name, kind in kinds
        if _is_outside_table(kind)
    }
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


def _is_outside_table(kind: _FieldType) -> bool:
    """Whether a value is stored outside its table."""
    return kind.vector or kind.of == "string"


def _write_outside(builder: Builder, kind: _FieldType, value: Any) -> int:
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
