"""Frozen dataclasses that are created quickly.

`dataclass(frozen=True)` compiles six methods for each class, which takes about 1 ms, and a command imports some
hundred classes. Here five methods are closures, and `__init__` is compiled when the first instance is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_kwargs: Any) -> Any:
        """Of interest to type checkers only; in typing since Python 3.11."""
        return lambda decorator: decorator


C = TypeVar("C", bound=type)


@overload
def frozen(cls: C, /) -> C: ...


@overload
def frozen(*, eq: bool = True, kw_only: bool = False) -> Callable[[C], C]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def frozen(cls: Any = None, /, *, eq: bool = True, kw_only: bool = False) -> Any:
    """The same as `dataclass(frozen=True, eq=eq, kw_only=kw_only)`, for classes without InitVar."""
    made = partial(_make, eq=eq, kw_only=kw_only)
    return made if cls is None else made(cls)


def _make(cls: Any, *, eq: bool, kw_only: bool) -> Any:
    own = {name for name, value in vars(cls).items() if value is not None}
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise dataclass describes the signature, which takes it long
    dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    methods = {"__init__": _first_init(cls), "__repr__": _repr, "__setattr__": _set, "__delattr__": _delete}
    if eq:
        methods |= _comparing(cls)
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


def _comparing(cls: Any) -> dict[str, Callable[..., Any]]:
    """__eq__ and __hash__."""
    values = _getter([each.name for each in fields(cls) if each.compare])

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def digest(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": digest}


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns these attributes of an instance."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple([getattr(instance, name) for name in names])


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _set(_self: Any, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(_self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _first_init(cls: Any) -> Callable[..., None]:
    """An __init__ that compiles the actual one and puts it in its place."""

    def first(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if cls.__init__ is first:
            cls.__init__ = _init(cls)
        cls.__init__(self, *args, **kwargs)

    return first


def _init(cls: Any) -> Callable[..., None]:
    """The __init__ that dataclass gives a frozen class."""
    names: dict[str, Any] = {"_assign_": object.__setattr__, "_missing_": MISSING}
    taken, by_name, lines = list[str](), list[str](), list[str]()
    for number, each in enumerate(fields(cls)):
        value, default = each.name, ""
        if each.default is not MISSING:
            default = f"=_default{number}_"
        elif each.default_factory is not MISSING:
            value, default = f"_default{number}_() if {each.name} is _missing_ else {each.name}", "=_missing_"
        names[f"_default{number}_"] = each.default if each.default is not MISSING else each.default_factory
        if each.init:
            (by_name if each.kw_only else taken).append(f"{each.name}{default}")
            lines.append(f"_assign_(self, {each.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    arguments = ", ".join(["self", *taken, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({arguments}):\n " + "\n ".join(lines or ["pass"]), names)
    return names["__init__"]
