"""Allocation by lifetime: nothing alive together overlaps, and the bounds are what they claim."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from npuc.host.allocation import Buffer, allocate, lower_bound, peak


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    spans = draw(
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7), st.integers(0, 4)), min_size=0, max_size=9)
    )
    return [Buffer(f"b{k}", size, first, first + more) for k, (size, first, more) in enumerate(spans)]


def test_a_chain_of_layers_needs_its_largest_neighbours() -> None:
    chain = [Buffer("a", 6, 0, 1), Buffer("b", 4, 1, 2), Buffer("c", 3, 2, 3)]
    assert lower_bound(chain) == 10
    assert peak(chain, allocate(chain)) == 10


def test_a_buffer_takes_the_room_of_one_that_is_dead() -> None:
    addresses = allocate([Buffer("a", 5, 0, 1), Buffer("b", 5, 2, 3)])
    assert addresses == {"a": 0, "b": 0}


def test_both_ends_of_a_lifetime_count() -> None:
    assert lower_bound([Buffer("a", 5, 0, 2), Buffer("b", 5, 2, 3)]) == 10


def test_nothing_to_place_takes_nothing() -> None:
    assert allocate([]) == {}
    assert peak([], {}) == lower_bound([]) == 0


def test_a_gap_between_two_living_buffers_is_used() -> None:
    # large first: a 0..3, then c above it; b fits into the room that opens where a and c do not live
    row = [Buffer("a", 4, 0, 5), Buffer("b", 2, 0, 1), Buffer("c", 3, 2, 5), Buffer("d", 2, 2, 3)]
    assert peak(row, allocate(row)) == lower_bound(row) == 9


@given(buffers())
def test_buffers_alive_together_never_overlap(found: list[Buffer]) -> None:
    addresses = allocate(found)
    assert set(addresses) == {b.name for b in found}
    for left, right in combinations(found, 2):
        together = any(left.first <= step <= left.last and right.first <= step <= right.last for step in range(20))
        if together:
            start, other = addresses[left.name], addresses[right.name]
            assert start + left.size <= other or other + right.size <= start


@given(buffers())
def test_the_peak_lies_between_the_lower_bound_and_the_sum(found: list[Buffer]) -> None:
    addresses = allocate(found)
    bound = max((sum(b.size for b in found if b.first <= step <= b.last) for step in range(20)), default=0)
    assert lower_bound(found) == bound
    assert all(address >= 0 for address in addresses.values())
    assert peak(found, addresses) == max((addresses[b.name] + b.size for b in found), default=0)
    assert bound <= peak(found, addresses) <= sum(b.size for b in found)


@given(buffers())
def test_names_do_not_decide_where_a_buffer_is(spans: list[Buffer]) -> None:
    others = [replace(each, name=f"b{len(spans) - at}") for at, each in enumerate(spans)]
    found, renamed = allocate(spans), allocate(others)
    assert [found[each.name] for each in spans] == [renamed[each.name] for each in others]
