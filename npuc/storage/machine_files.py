"""Machine descriptions: frozen dataclasses of numbers, switches and names; a TOML file overrides any of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from npuc.errors import DoesNotFit
from npuc.flag import CHOICES
from npuc.storage.records import damaged, read
from npuc.text.encodings import toml
from npuc.text.escaping import toml_key, toml_string
from npuc.text.terminal import closest
from npuc.text.terminal import page as place_of

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


def described(kind: type[M], values: Mapping[str, Any], origin: str, page: str) -> M:
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


def recorded(manifest: Mapping[str, Any], of: Of[M]) -> M:
    """The machine that a manifest records. Raises ArtefactError (E502) if there is none, or no such machine."""
    try:
        return of(dict(read(Mapping[str, Any], manifest.get("machine"), "machine")), "of the artefact")
    except DoesNotFit as error:
        raise damaged(error.problems[0].reason) from None


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
