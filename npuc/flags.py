"""The options of `npuc compile` as Python keywords, with the same names and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict

from npuc.flag import CHOICES, MIXED, REMOVED
from npuc.host.c_text import identifier
from npuc.images.description import describe
from npuc.storage.files import decode
from npuc.system.budget import read_file
from npuc.target import FLOATING, Options, Target, usual_options
from npuc.text.terminal import closest


class Flags(TypedDict, total=False):
    """The flags of `npuc compile` by name; `level` is -O."""

    machine: str | PathLike[str]
    precision: str
    isa: str
    strict: bool
    layer: str | Sequence[str] | Mapping[str, str]
    deny: str | Sequence[str]
    bind: Mapping[str, float]
    inputs: str | Sequence[str]
    outputs: str | Sequence[str]
    objective: str
    weights: str
    level: int | str
    method: str
    scales: str
    scales_in: str | PathLike[str] | Mapping[str, Any]
    mixed: bool | str
    allow: str | Sequence[str]
    proof: str
    prefix: str
    input: str | PathLike[str] | Mapping[str, Any]


def _same(name: str) -> str:
    return name


def options_of(
    target: Target, options: Options | None, flags: Mapping[str, Any], spelled: Callable[[str], str] = _same
) -> Options:
    """The options with these flags; those that are absent or None have the target's defaults.

    spelled: how messages write the name of a flag. Raises TypeError for an unknown flag, ValueError for a value
    that the flag or the target does not have.
    """
    own = {each.name: each for each in target.flags}
    general = [each.name for each in fields(Options) if each.name in Flags.__annotations__]
    for name, value in flags.items():
        if value is not None:
            expect_present(name, value, spelled)
        if name not in (*own, *Flags.__annotations__):
            known = (*general, *own)
            hint = closest(name, known)
            raise TypeError(f"compile takes no '{name}'.{hint} It takes: {', '.join(known)}")
    flags = {name: value for name, value in flags.items() if value is not None}
    found = options or usual_options(target)
    if flags.get("precision") == MIXED:
        flags = {**flags, "precision": "int8", "mixed": "auto"}
    read = {name: READ[name](value) if name in READ else value for name, value in flags.items()}
    found = replace(found, **{name: value for name, value in read.items() if name in general})
    for name, values in {**CHOICES, "precision": target.precisions}.items():
        if name in flags and name != "mixed":
            _expect(target, spelled(name), read[name], values)
    for name in found.allow:
        _expect(target, spelled("allow"), name, target.inexact)
    _expect_together(target, found, flags, spelled)
    chosen = {name: value for name, value in read.items() if name not in general}
    for name, value in chosen.items():
        _expect(target, spelled(name), value, own[name].values if name in own else ())
    return replace(found, flags={**found.flags, **chosen}) if chosen else found


def expect_present(name: str, value: object, spelled: Callable[[str], str] = _same) -> None:
    """Raises ValueError for an option, or a value of one, that was removed, with what to use instead."""
    for key in (name, f"{name} {value}"):
        if key in REMOVED:
            option, _, which = key.partition(" ")
            raise ValueError(f"{f'{spelled(option)} {which}'.rstrip()} was removed; {REMOVED[key]}")


def _expect(target: Target, flag: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        which = ", ".join(map(repr, known)) or "none"
        raise ValueError(f"{target.name} has no {flag} '{value}'.{closest(str(value), known)} It has: {which}")


def _expect_together(
    target: Target, options: Options, flags: Mapping[str, Any], spelled: Callable[[str], str]
) -> None:
    """Raises ValueError for flags that exclude each other or do not go with the precision."""
    if options.deny and options.strict:
        raise ValueError(f"{spelled('deny')} and {spelled('strict')} exclude each other")
    for name in ("scales", "scales_in"):
        if flags.get(name) is None or options.precision not in FLOATING:
            continue
        what = f"{spelled(name)} {flags[name]}"
        raise ValueError(f"{target.name} has no scales in {options.precision}; {what} is not for it")
    if options.layer and not (target.takes_layers and options.precision == "int8"):
        raise ValueError(f"{target.name} in {options.precision} takes no {spelled('layer')}: it is for int8")
    if options.prefix is not None:
        _expect_named(target, flags.get("prefix", options.prefix), options.prefix, spelled("prefix"))
    mixed = f"{spelled('precision')} {MIXED}"
    if options.mixed and not target.host_layers:
        raise ValueError(f"the host takes no layers over from {target.name}; {mixed} is not for it")
    if options.mixed and options.precision != "int8":
        raise ValueError(f"{mixed} is for int8; in {options.precision} no layer costs as much accuracy")
    if options.mixed and options.strict:
        raise ValueError(f"{spelled('strict')} and {mixed} exclude each other")


def _expect_named(target: Target, given: str, prefix: str, flag: str) -> None:
    if not target.named_exports:
        raise ValueError(f"no export of {target.name} begins with a name; {flag} is not for it")
    if not prefix:
        raise ValueError(f"{flag} '{given}' has no letter or digit of ASCII for a name of C")


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _split_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Names, or a text of names with commas between them."""
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)


def _layers(value: str | Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Node and precision of each NODE=PRECISION, split at the last `=`; @FILE has one in a line."""
    if isinstance(value, Mapping):
        value = [f"{name}={each}" for name, each in value.items()]
    found: list[tuple[str, str]] = []
    for text in _names(value):
        if text.startswith("@"):
            lines = decode(read_file(Path(text[1:]), "E401", "give a file of NODE=PRECISION lines")).split("\n")
            found += _layers([each.strip() for each in lines if each.strip() and not each.startswith("#")])
            continue
        name, equals, precision = text.rpartition("=")
        if not equals or not name or precision not in ("int8", "int16", *FLOATING):
            raise ValueError(f"layer '{text}' is not NODE=PRECISION, with int8, int16, fp16 or fp32")
        found.append((name, precision))
    return tuple(found)


def _table(value: str | PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    from npuc.quantize.table import table_of

    return table_of(value)


def _parse_mixed(value: bool | str) -> bool:
    if isinstance(value, str) and value not in CHOICES["mixed"]:
        raise ValueError(f"mixed is '{value}'.{closest(value, CHOICES['mixed'])} It is one of off, auto")
    return value if isinstance(value, bool) else value == "auto"


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"strict is {value!r}. It is True or False")
    return value


READ: Mapping[str, Callable[[Any], Any]] = {
    "machine": fspath,
    "level": str,
    "strict": _truth,
    "deny": _names,
    "layer": _layers,
    "allow": _names,
    "bind": lambda values: tuple((name, float(value)) for name, value in dict(values).items()),
    "inputs": _split_names,
    "scales_in": _table,
    "outputs": _split_names,
    "mixed": _parse_mixed,
    "prefix": identifier,
    "input": describe,
}
"""Conversion of values as people write them to fields of Options."""
