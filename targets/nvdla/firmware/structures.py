"""Packed structures of little-endian numbers, declared as frozen dataclasses: reader and writer.

>>> @frozen(kw_only=True)
... class Pair:
...     left: int = number("B")
...     right: tuple[int, ...] = numbers("h", 2)
>>> size(Pair), pack(Pair(left=1, right=(2, -1)))
(5, b'\\x01\\x02\\x00\\xff\\xff')
>>> unpack(Pair, b'\\x01\\x02\\x00\\xff\\xff')
Pair(left=1, right=(2, -1))
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import Field, field, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from npuc.errors import ArtefactError, EncodingError
from npuc.frozen import frozen

S = TypeVar("S")


@frozen
class FieldLayout:
    """How a field is stored: a code of the struct module, repeated, or a nested structure."""

    code: str = ""
    count: int = 0
    """0: a single number."""
    structure: type[Any] | None = None


def number(code: str, default: float = 0) -> Any:
    """A number, given by its code in the struct module."""
    return field(default=default, metadata={"place": FieldLayout(code)})


def numbers(code: str, count: int) -> Any:
    """A tuple of numbers."""
    return field(default=(0,) * count, metadata={"place": FieldLayout(code, count)})


def unused_bytes(count: int) -> Any:
    """Bytes without a meaning, preserved as found."""
    return numbers("B", count)


@cache
def places(cls: type[Any]) -> tuple[tuple[str, FieldLayout], ...]:
    """The fields of a structure in order, each with its storage."""
    return tuple((each.name, each.metadata.get("place") or _nested_layout(each)) for each in fields(cls))


def _nested_layout(each: Field[Any]) -> FieldLayout:
    """The storage of a nested structure: a field whose default factory is the structure's class."""
    made_by: Any = each.default_factory
    return FieldLayout(structure=made_by)


def _format(place: FieldLayout) -> str:
    return f"<{place.count or 1}{place.code}"


def size(cls: type[Any]) -> int:
    """Size of a structure."""
    return sum(
        size(place.structure) if place.structure else struct.calcsize(_format(place)) for _, place in places(cls)
    )


def unpack(cls: type[S], data: bytes, offset: int = 0) -> S:
    """The structure at an offset. Raises ArtefactError (E502) if the data ends before it."""
    if offset < 0 or offset + size(cls) > len(data):
        reason = f"{cls.__name__} at byte {offset} of {len(data)}"
        raise ArtefactError("E502", reason, limit=f"{size(cls)} bytes")
    found: dict[str, Any] = {}
    for name, place in places(cls):
        if place.structure:
            found[name] = unpack(place.structure, data, offset)
            offset += size(place.structure)
            continue
        values = struct.unpack_from(_format(place), data, offset)
        found[name] = values if place.count else values[0]
        offset += struct.calcsize(_format(place))
    return cls(**found)


def pack(value: Any) -> bytes:
    """The bytes of a structure. Raises EncodingError (E301) for a number that does not fit its field."""
    parts: list[bytes] = []
    for name, place in places(type(value)):
        held = getattr(value, name)
        if place.structure:
            parts.append(pack(held))
            continue
        try:
            parts.append(struct.pack(_format(place), *(held if place.count else (held,))))
        except struct.error:
            limit = f"{_format(place)[1:]} (struct)"
            raise EncodingError("E301", f"{name} = {held}", op=type(value).__name__, limit=limit) from None
    return b"".join(parts)


def assemble(cls: type[S], values: Mapping[str, int | tuple[int, ...]]) -> S:
    """A structure from numbers at dotted names ("source.width"), with defaults for the others.

    Raises EncodingError (E301) for a name that is no field, or not of this structure.
    """
    known = dict(places(cls))
    inner: dict[str, dict[str, int | tuple[int, ...]]] = {}
    found: dict[str, Any] = {}
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if name not in known or bool(rest) != bool(known[name].structure):
            raise EncodingError("E301", f"no number {path}", op=cls.__name__, limit=", ".join(known))
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            found[name] = value
    found |= {name: assemble(known[name].structure or cls, parts) for name, parts in inner.items()}
    return cls(**found)


def numbers_of(value: Any) -> dict[str, int | tuple[int, ...]]:
    """The numbers of a structure that are not their defaults, by dotted name: what `assembled` takes."""
    names, values, defaults = _numbers(type(value))
    found = zip(names, values(value), defaults, strict=True)
    return {name: held for name, held, default in found if held != default}


@cache
def _numbers(cls: type[Any]) -> tuple[list[str], attrgetter[tuple[Any, ...]], tuple[Any, ...]]:
    """The dotted names of all numbers of a structure, what reads them from an instance, and their defaults."""
    names = [
        f"{name}.{inner}" if inner else name
        for name, place in places(cls)
        for inner in (_numbers(place.structure)[0] if place.structure else [""])
    ]
    values: attrgetter[tuple[Any, ...]] = attrgetter(*names)
    return names, values, values(cls())
