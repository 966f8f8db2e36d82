"""What `npuc compile` takes as options, as keywords of Python: named and checked as there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, TypedDict

from npuc.target import FLOATING, Mixing, Options, Target
from npuc.text import closest

CHOICES: Mapping[str, tuple[str, ...]] = {
    "isa": ("documented", "extended"),
    "fallback": ("host", "refuse"),
    "objective": ("time", "traffic", "cycles"),
    "level": ("0", "1", "2"),
    "method": ("mse", "output", "minmax", "percentile", "entropy"),
    "scales": ("free", "power-of-two"),
    "mixed": ("off", "auto"),
    "proof": ("off", "one", "all"),
}
"""Values of the flags that are the same for every target."""


class Flags(TypedDict, total=False):
    """The flags of `npuc compile` by name; `level` is -O."""

    machine: str | PathLike[str]
    precision: str
    isa: str
    strict: bool
    fallback: str
    deny: str | Sequence[str]
    max_partitions: int
    bind: Mapping[str, float]
    objective: str
    weights: str
    level: int | str
    method: str
    scales: str
    mixed: bool | str
    allow: str | Sequence[str]
    proof: str


def options_of(target: Target, options: Options | None, flags: Mapping[str, Any]) -> Options:
    """The options with these flags, whose absent ones are the target's usual.

    Raises TypeError for a name that is no flag, ValueError for a value that the flag or the target does not have.
    """
    for name in flags:
        if name not in Flags.__annotations__:
            hint, known = closest(name, Flags.__annotations__), ", ".join(Flags.__annotations__)
            raise TypeError(f"compile takes no '{name}'.{hint} It takes: {known}")
    found = options or Options(precision=target.precisions[0])
    found = replace(found, **{name: READ.get(name, _same)(value) for name, value in flags.items()})
    for name, known in {**CHOICES, "precision": target.precisions, "weights": target.weight_forms}.items():
        if name in flags and (value := _shown(getattr(found, name))) is not None:
            _expect(target, name, value, known)
    for name in found.allow:
        _expect(target, "allow", name, target.inexact)
    _expect_together(target, found, flags)
    return found


def _expect(target: Target, name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        which = ", ".join(map(repr, known)) or "none"
        raise ValueError(f"{target.name} has no {name} '{value}'.{closest(value, known)} It has: {which}")


def _expect_together(target: Target, options: Options, flags: Mapping[str, Any]) -> None:
    """Raises ValueError for flags that exclude each other."""
    if options.deny and (options.strict or options.fallback == "refuse"):
        other = "strict" if options.strict else "fallback='refuse'"
        raise ValueError(f"deny and {other} exclude each other")
    if flags.get("scales") is not None and options.precision in FLOATING:
        raise ValueError(f"{target.name} has no scales in {options.precision}; scales is not for it")
    if options.mixed and not isinstance(target, Mixing):
        raise ValueError(f"the host takes no layers over from {target.name}; mixed is not for it")
    if options.mixed and (options.precision != "int8" or options.strict):
        raise ValueError("mixed is for int8, and without strict")


def _same(value: Any) -> Any:
    return value


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _mixed(value: bool | str) -> bool:
    if isinstance(value, str) and value not in CHOICES["mixed"]:
        raise ValueError(f"mixed is '{value}'.{closest(value, CHOICES['mixed'])} It is one of off, auto")
    return value if isinstance(value, bool) else value == "auto"


def _shown(value: object) -> str | None:
    """A value of a choice; None for one that has been read."""
    return value if isinstance(value, str) else None


READ: Mapping[str, Callable[[Any], Any]] = {
    "machine": fspath,
    "level": str,
    "deny": _names,
    "allow": _names,
    "bind": lambda values: tuple((name, float(value)) for name, value in dict(values).items()),
    "mixed": _mixed,
}
"""How a value as people write it becomes a field of Options."""
