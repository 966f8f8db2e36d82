"""Typed records from JSON: right values come back as types, wrong ones are named by their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from npuc.errors import ArtefactError
from npuc.storage.records import read


@dataclass(frozen=True)
class Inner:
    name: str
    size: int = 3


@dataclass(frozen=True)
class Outer:
    inners: tuple[Inner, ...]
    pair: tuple[int, str]
    maybe: str | None
    scale: float
    flag: bool
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])


RIGHT: dict[str, Any] = {
    "inners": [{"name": "a"}, {"name": "b", "size": 5, "unknown": 1}],
    "pair": [1, "x"],
    "maybe": None,
    "scale": 2,
    "flag": True,
    "attrs": {"perm": [0, 2, 1], "mode": "edge"},
}


def test_a_record_is_read_with_its_defaults_and_without_unknown_keys() -> None:
    found = read(Outer, RIGHT, "top")
    attrs = {"perm": (0, 2, 1), "mode": "edge"}
    assert found == Outer((Inner("a", 3), Inner("b", 5)), (1, "x"), None, 2.0, True, attrs)
    assert isinstance(found.scale, float)


@pytest.mark.parametrize(("key", "value", "reason"), [
    ("inners", None, "top.inners is None"), ("inners", {}, "top.inners is {}"),
    ("inners", [{}], "top.inners[0] lacks 'name'"), ("inners", [{"name": "a"}, 5], "top.inners[1] is 5"),
    ("inners", [{"name": "a", "size": "3"}], "top.inners[0].size is '3'"),
    ("inners", [{"name": "a", "size": True}], "top.inners[0].size is True"),
    ("inners", [{"name": "a", "size": 3.0}], "top.inners[0].size is 3.0"), ("pair", [1], "top.pair is [1]"),
    ("pair", [1, "x", 2], "top.pair is [1, 'x', 2]"), ("pair", ["x", 1], "top.pair[0] is 'x'"),
    ("maybe", 5, "top.maybe is 5"), ("scale", "2", "top.scale is '2'"), ("scale", True, "top.scale is True"),
    ("flag", 1, "top.flag is 1"), ("attrs", [], "top.attrs is []"),
])  # fmt: skip
def test_a_wrong_value_is_named_by_its_place(key: str, value: Any, reason: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        read(Outer, {**RIGHT, key: value}, "top")
    (problem,) = caught.value.problems
    assert problem.code == "E502"
    assert problem.reason == f"manifest.json is damaged: {reason}"


@pytest.mark.parametrize("key", ["inners", "pair", "maybe", "scale", "flag"])
def test_a_missing_key_is_named(key: str) -> None:
    rest = {name: value for name, value in RIGHT.items() if name != key}
    with pytest.raises(ArtefactError, match=f"lacks '{key}'"):
        read(Outer, rest, "top")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ArtefactError) as caught:
        read(int, "x" * 1000, "top")
    assert len(caught.value.problems[0].reason) < 120
