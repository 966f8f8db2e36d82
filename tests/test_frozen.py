"""Frozen dataclasses of npuc behave as those of the standard library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pytest

from npuc.frozen import frozen


def classes(decorate: Callable[..., Any], keywords: Callable[..., Any]) -> dict[str, Any]:
    """The same classes by two decorators."""

    @decorate
    class Plain:
        a: int
        b: tuple[str, ...] = ("x",)
        c: dict[str, int] = field(default_factory=dict[str, int])
        d: float = field(default=0.5, compare=False, repr=False)

        @cached_property
        def twice(self) -> int:
            return 2 * self.a

    @decorate
    class Derived(Plain):
        e: int = 7

    @decorate
    class One:
        only: object

    @decorate
    class Empty:
        pass

    @keywords
    class Keywords:
        assign: int
        MISSING: int = 2

    @decorate
    class Checked:
        low: int
        high: int = field(kw_only=True)
        span: int = field(init=False)

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")
            object.__setattr__(self, "span", self.high - self.low)

        def __repr__(self) -> str:
            return f"{self.low}..{self.high}"

        def __hash__(self) -> int:
            return 5

    return {each.__name__: each for each in (Plain, Derived, One, Empty, Keywords, Checked)}


OURS = classes(frozen, frozen(kw_only=True))
USUAL = classes(dataclass(frozen=True), dataclass(frozen=True, kw_only=True))
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain", (1,), {}), ("Plain", (1, ("y", "z")), {"d": 2.0}), ("Plain", (), {"a": 3, "c": {"k": 1}}),
    ("Derived", (1,), {"e": 8}), ("One", ((1, 2),), {}), ("One", ("text",), {}), ("Empty", (), {}),
    ("Keywords", (), {"assign": 1}), ("Keywords", (), {"assign": 1, "MISSING": 5}), ("Checked", (1,), {"high": 4}),
    ("Plain", (), {}), ("Plain", (1,), {"f": 2}), ("Keywords", (1,), {}), ("Checked", (1, 4), {}),
    ("Checked", (5,), {"high": 4}),
]  # fmt: skip


def outcome(of: dict[str, Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        made = of[name](*args, **kwargs)
    except (TypeError, ValueError) as error:
        return type(error), str(error).split(".")[-1]  # (without the names of outer functions)
    try:
        digest = hash(made)
    except TypeError as error:
        digest = str(error)
    shown = repr(made).replace(" at 0x", "")
    return shown, asdict(made), digest, made == of[name](*args, **kwargs), made == 1, made.__match_args__


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_instances_are_those_of_a_frozen_dataclass(call: tuple[Any, ...]) -> None:
    assert outcome(OURS, *call) == outcome(USUAL, *call)


def test_fields_and_defaults_are_those_of_a_frozen_dataclass() -> None:
    for name, ours in OURS.items():
        found, wanted = (
            [(each.name, each.type, each.default, each.init, each.kw_only, each.compare) for each in fields(cls)]
            for cls in (ours, USUAL[name])
        )
        assert found == wanted


def test_a_field_that_is_not_compared_makes_no_difference() -> None:
    plain = OURS["Plain"]
    assert plain(1, c={}, d=1.0) == plain(1, c={}, d=2.0) != plain(2, c={}, d=1.0)
    assert plain(1) != OURS["Derived"](1)


def test_nothing_can_be_assigned_or_deleted() -> None:
    for given in (OURS["Plain"](1), OURS["Derived"](1)):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
            given.a = 2
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
            del given.a


def test_instances_are_replaced_copied_and_have_cached_properties() -> None:
    given = OURS["Derived"](1)
    assert replace(given, a=4) == OURS["Derived"](4)
    assert copy.deepcopy(given) == copy.copy(given) == given and given.twice == 2
    with pytest.raises(ValueError, match="low is above high"):
        replace(OURS["Checked"](1, high=4), low=6)


@frozen(eq=False)
class Alone:
    """Equal only to itself."""

    value: int


def test_without_eq_an_instance_equals_only_itself() -> None:
    one = Alone(1)
    assert one == one and one != Alone(1) and len({one, Alone(1)}) == 2
    assert Alone.__doc__ == "Equal only to itself."


def test_instances_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Alone(3))).value == 3


def test_an_instance_that_contains_itself_is_shown() -> None:
    held: list[Any] = []
    given = OURS["One"](held)
    held.append(given)
    assert repr(given).endswith("One(only=[...])")


def test_a_class_that_is_not_decorated_has_the_fields_of_its_base() -> None:
    class Further(OURS["Plain"]):
        pass

    assert Further(1).a == 1 and repr(Further(1)).endswith("Further(a=1, b=('x',), c={})")
