"""Frozen dataclasses from JSON, checked: what a manifest says becomes typed values or an ArtefactError.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Entry:
...     name: str
...     shape: tuple[int, ...]
>>> read(Entry, {"name": "x", "shape": [1, 3]}, "inputs")
Entry(name='x', shape=(1, 3))
>>> read(Entry, {"name": "x", "shape": [1, "3"]}, "inputs")
Traceback (most recent call last):
npuc.errors.ArtefactError: error[E502] manifest.json is damaged: inputs.shape[1] is '3'
  limit: int
  help: compile the model again: npuc compile MODEL.onnx --target TARGET
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from npuc.errors import ArtefactError

T = TypeVar("T")
LARGEST = 1 << 53
"""The largest number in a manifest: JSON readers disagree beyond it, and no machine needs more."""


def read(kind: type[T], value: Any, where: str, file: str = "manifest.json") -> T:
    """The value as this type: a dataclass, tuple[..], Mapping[str, ..], a union, int, float, bool, str or Any.

    Keys without a field are dropped; lists of Any become tuples. Raises ArtefactError (E502), which names the file
    and the place in it.
    """
    try:
        return _value(kind, value)
    except _WrongValue as error:
        raise damaged(f"{where}{error.place} {error.reason}", error.limit, file=file) from None


def damaged(
    reason: str, limit: str | None = None, *, tensor: str | None = None, file: str = "manifest.json"
) -> ArtefactError:
    """The error (E502) for a file of an artefact that npuc cannot have written."""
    return ArtefactError("E502", f"{file} is damaged: {reason}", tensor=tensor, limit=limit)


class _WrongValue(Exception):
    """The error for a value: its place within what is read, what is wrong, and what it should be."""

    def __init__(self, reason: str, limit: str | None = None) -> None:
        self.place, self.reason, self.limit = "", reason, limit


def _value(kind: Any, value: Any) -> Any:
    if type(value) is kind and kind is not float and kind is not int:
        return value
    origin, arguments = _parts(kind)
    if kind is Any:
        return tuple(value) if isinstance(value, list) else value
    if origin in (Union, UnionType):
        return _one_of(arguments, value)
    if is_dataclass(kind) and isinstance(value, dict):
        return _record(kind, value)
    if origin is tuple and isinstance(value, list):
        return _sequence(arguments, value)
    if origin is Mapping and isinstance(value, dict):
        return {key: _inside(".{}", key, arguments[1], each) for key, each in value.items()}
    if type(value) in (int, float) and not abs(value) <= LARGEST:
        raise _WrongValue(f"is {_short(value)}", f"-{LARGEST}..{LARGEST}")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is kind:
        return value
    raise _wrong(value, kind)


def _inside(form: str, step: str | int, kind: Any, value: Any) -> Any:
    """The value of an element. form: how the step to it is written in a place."""
    try:
        return _value(kind, value)
    except _WrongValue as error:
        error.place = form.format(step) + error.place
        raise


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and NoneType in kinds:
        return None
    (kind,) = (each for each in kinds if each is not NoneType)
    return _value(kind, value)


def _sequence(kinds: tuple[Any, ...], value: list[Any]) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _wrong(value, f"{len(kinds)} values")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple([_inside("[{}]", index, kind, each) for index, (kind, each) in pairs])


def _record(kind: Any, value: dict[str, Any]) -> Any:
    known = _fields(kind)
    for name, (_, needed) in known.items():
        if needed and name not in value:
            raise _WrongValue(f"lacks '{name}'")
    present = [(name, hint) for name, (hint, _) in known.items() if name in value]
    return kind(**{name: _inside(".{}", name, hint, value[name]) for name, hint in present})


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@cache
def _fields(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The fields of a dataclass: type, and whether a value is needed. Manifests repeat them thousands of times."""
    hints = get_type_hints(kind)
    return {
        each.name: (hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    }


def _wrong(value: Any, kind: Any) -> _WrongValue:
    wanted = kind.__name__ if isinstance(kind, type) else str(kind)
    return _WrongValue(f"is {_short(value)}", wanted)


def _short(value: Any) -> str:
    if type(value) is int and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
