"""Frozen dataclasses from JSON, checked: what a manifest says becomes typed values or an ArtefactError.

Machine descriptions are such: numbers, switches and names; a TOML file overrides any of them.

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

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from npuc.errors import ArtefactError, DoesNotFit
from npuc.flag import CHOICES
from npuc.storage.files import toml
from npuc.text.escaping import toml_key, toml_string
from npuc.text.terminal import closest
from npuc.text.terminal import page as place_of

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
        raise damage_error(f"{where}{error.place} {error.reason}", error.limit, file=file) from None


def damage_error(
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
    raise _type_error(value, kind)


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
        raise _type_error(value, f"{len(kinds)} values")
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


def _type_error(value: Any, kind: Any) -> _WrongValue:
    wanted = kind.__name__ if isinstance(kind, type) else str(kind)
    return _WrongValue(f"is {_short(value)}", wanted)


def _short(value: Any) -> str:
    if type(value) is int and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


M = TypeVar("M")
Of = Callable[[dict[str, Any], str], M]
"""A machine from names and values, checked, and their origin for messages. Raises DoesNotFit (E305)."""
TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
MOST = 1 << 24
"""The largest number of a machine: addresses have 24 bits at most."""

DEMANDS = CHOICES["scales"]
"""Rules that a machine may impose on all activation scales."""


def as_toml(values: Mapping[str, Any]) -> str:
    """A machine file with these values, as lines."""
    return "".join(f"{toml_key(name)} = {_toml(value)}\n" for name, value in values.items())


def _toml(value: object) -> str:
    """A value in TOML notation: a number, switch or name."""
    return toml_string(value) if isinstance(value, str) else json.dumps(value)


def bad_machine(origin: str, reason: str, limit: str, page: str) -> DoesNotFit:
    """An error in a machine description; page: where its parameters are explained."""
    remedy = f"see {place_of(page)}, Machine files"
    return DoesNotFit("E305", f"machine {origin}: {reason}", limit=limit, remedy=remedy)


def build_machine(kind: type[M], values: Mapping[str, Any], origin: str, page: str) -> M:
    """The machine with these values, checked: each has its field's type, integers are in 1..2^24, floats above 0.

    Raises DoesNotFit (E305) for an unknown parameter or an invalid value.
    """
    known: dict[str, str] = {each.name: str(each.type) for each in fields(kind)}  # pyright: ignore
    for key, value in values.items():
        if key not in known:
            reason = f"unknown parameter '{key}'.{closest(key, known)}"
            raise bad_machine(origin, reason, f"one of {', '.join(known)}", page)
        if type(value) not in TYPES[known[key]]:
            raise bad_machine(origin, f"{key} = {value!r}", f"a value of type {known[key]}", page)
        if type(value) is int and not 1 <= value <= MOST:
            raise bad_machine(origin, f"{key} = {value}", f"1..{MOST} (24-bit addresses)", page)
        if type(value) is float and not 0 < value <= MOST:
            raise bad_machine(origin, f"{key} = {value}", f"above 0, at most {MOST}", page)
    return kind(**values)


LARGEST_FILE, LONGEST_LINE = 1 << 16, 1 << 10
"""Limits on a machine file and on a line, in bytes: a TOML reader is slow on deeply nested keys."""


NONE_SHIPPED: Mapping[str, Path] = {}


def load(
    usual: M, of: Of[M], name_or_file: str | None, page: str, shipped: Mapping[str, Path] = NONE_SHIPPED
) -> M:
    """The usual machine, or one whose values a TOML file overrides: a shipped one by name, or the user's.

    Raises DoesNotFit (E305) for an unknown name, an unreadable file or invalid values.
    """
    values: dict[str, Any] = asdict(usual)  # pyright: ignore
    if name_or_file in (None, "default", values["name"]):
        return usual
    path = shipped.get(name_or_file, Path(name_or_file))
    return of({**values, "name": path.stem, **_values(path, ("default", *shipped), page)}, path.name)


def recorded_machine(manifest: Mapping[str, Any], of: Of[M]) -> M:
    """The machine that a manifest records. Raises ArtefactError (E502) if there is none, or no such machine."""
    try:
        return of(dict(read(Mapping[str, Any], manifest.get("machine"), "machine")), "of the artefact")
    except DoesNotFit as error:
        raise damage_error(error.problems[0].reason) from None


def _values(path: Path, shipped: Sequence[str], page: str) -> dict[str, Any]:
    """The name = value lines of a TOML file. shipped: the machines that need no file, for the error message."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE or max(map(len, content.split(b"\n"))) > LONGEST_LINE:
            limit = f"{LARGEST_FILE:,} bytes, {LONGEST_LINE:,} in a line"
            raise bad_machine(path.name, "it is too large", limit, page)
        return toml(content)
    except OSError as error:
        reason = f"no such machine, and no file that can be read ({error.strerror})."
        limit = f"{', '.join(shipped)}, or a .toml file"
        raise bad_machine(str(path), f"{reason}{closest(str(path), shipped)}", limit, page) from None
    except (ValueError, RecursionError) as error:  # no text, no TOML, or numbers of thousands of digits
        raise bad_machine(
            path.name, f"cannot be read: {error}", "a TOML file of name = value lines", page
        ) from None
