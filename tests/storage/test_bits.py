"""Bit fields: what a declaration promises of its encoder and decoder."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import EncodingError
from npuc.storage.bits import bits, decode, encode, named_fields, places, word


@word(16)
@dataclass(frozen=True, kw_only=True)
class Sample:
    flag: int = bits(0, 0, "one bit")
    middle: int = bits(11, 1, "eleven bits, stored minus one", minus_one=True)
    top: int = bits(15, 12, "four bits", default=5)


def test_fields_go_where_they_are_declared() -> None:
    assert encode(Sample(flag=1, middle=1, top=0)) == 0b0000_00000000000_1
    assert encode(Sample(flag=0, middle=2048, top=0)) == 0b0000_11111111111_0
    assert encode(Sample(flag=0, middle=1, top=15)) == 0b1111_00000000000_0
    assert encode(Sample(flag=1, middle=4, top=9)) == 0b1001_00000000011_1


def test_a_field_that_is_not_given_has_its_default_or_its_smallest_value() -> None:
    assert Sample() == Sample(flag=0, middle=1, top=5)


@given(st.integers(0, 0xFFFF))
def test_every_value_survives_decoding_and_encoding(value: int) -> None:
    assert encode(decode(Sample, value)) == value


@given(st.integers(0, 1), st.integers(1, 2048), st.integers(0, 15))
def test_every_word_survives_encoding_and_decoding(flag: int, middle: int, top: int) -> None:
    given_word = Sample(flag=flag, middle=middle, top=top)
    assert decode(Sample, encode(given_word)) == given_word


@pytest.mark.parametrize(("values", "field", "limit"), [
    ({"flag": 2}, "flag = 2", "0..1"), ({"flag": -1}, "flag = -1", "0..1"),
    ({"middle": 0}, "middle = 0", "1..2048"), ({"middle": 2049}, "middle = 2049", "1..2048"),
    ({"top": 16}, "top = 16", "0..15"),
])  # fmt: skip
def test_a_value_beyond_its_field_is_refused_with_field_and_limit(
    values: dict[str, int], field: str, limit: str
) -> None:
    with pytest.raises(EncodingError) as caught:
        encode(Sample(**values))
    (problem,) = caught.value.problems
    assert problem.code == "E301"
    assert problem.reason.startswith(field)
    assert problem.limit == limit


def test_overlapping_fields_are_refused_when_the_word_is_declared() -> None:
    with pytest.raises(TypeError, match="second overlaps"):

        @word(4)
        @dataclass(frozen=True)
        class Overlapping:
            first: int = bits(2, 0, "")
            second: int = bits(3, 2, "")


def test_a_gap_is_refused_when_the_word_is_declared() -> None:
    with pytest.raises(TypeError, match="does not cover its 4 bits"):

        @word(4)
        @dataclass(frozen=True)
        class Gap:
            only: int = bits(2, 0, "")


def test_a_field_beyond_the_word_is_refused_when_the_word_is_declared() -> None:
    with pytest.raises(TypeError, match="does not cover its 4 bits"):

        @word(4)
        @dataclass(frozen=True)
        class Beyond:
            only: int = bits(4, 0, "")


def test_places_keep_the_order_of_declaration() -> None:
    assert {name: (place.high, place.low, place.width) for name, place in places(Sample).items()} == {
        "flag": (0, 0, 1),
        "middle": (11, 1, 11),
        "top": (15, 12, 4),
    }


def test_a_value_with_a_name_is_shown_by_it() -> None:
    @word(3)
    @dataclass(frozen=True, kw_only=True)
    class Named:
        mode: int = bits(1, 0, "a mode", names=(("FAST", 3), ("SLOW", 1)))
        flag: int = bits(2, 2, "a flag")

    assert [named_fields(Named(mode=mode))["mode"] for mode in range(4)] == [0, "SLOW", 2, "FAST"]
    assert named_fields(Named(flag=1)) == {"mode": 0, "flag": 1}
