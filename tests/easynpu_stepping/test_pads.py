"""Scratch pads and memories: the weight FIFO against a simulation cycle by cycle, and what every access traps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import ArtefactError
from npuc.targets.easynpu.simulate import datapath
from npuc.targets.easynpu.simulate.pads import Dtcm, IfmapPads, ParameterPads, PsumFile, WeightPads

WORD = np.zeros((1, 16), np.int8)
NOW = np.zeros(1, np.int64)


def fifo(entries: int, start: int, uses: list[tuple[int, int]]) -> tuple[list[int], int]:
    """The cycle in which each word is fetched, and the most words held, one cycle after the other.

    A fetch needs an entry that is free, or becomes free at the end of the cycle.
    """
    fetched: list[int] = []
    most, cycle = 0, start
    while len(fetched) < len(uses):
        held = sum(1 for _, last in uses[: len(fetched)] if last > cycle)
        if held < entries:
            fetched.append(cycle)
            most = max(most, held + 1)
        cycle += 1
    return fetched, most


@given(
    st.integers(1, 20),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=60),
    st.integers(1, 4),
)
def test_the_weight_fifo_fetches_one_word_a_cycle_into_entries_that_are_free(
    entries: int, start: int, durations: list[tuple[int, int]], batches: int
) -> None:
    uses: list[tuple[int, int]] = []
    cycle = start + 1
    for gap, length in durations:
        uses.append((cycle + gap, cycle + gap + length - 1))
        cycle += gap + length
    expected, most = fifo(entries, start, uses)
    pads = WeightPads(entries)
    pads.reset(start)
    found: list[int] = []
    places: list[int] = []
    for batch in np.array_split(np.array(uses), batches):
        if len(batch):
            where, fetched = pads.stream(batch[:, 0], batch[:, 1])
            found += fetched.tolist()
            places += where.tolist()
    assert found == expected
    assert pads.most == most
    assert places == [number % entries for number in range(len(uses))]


def test_a_weight_that_has_not_arrived_is_trapped() -> None:
    pads = WeightPads(16)
    pads.reset(10)
    with pytest.raises(ArtefactError, match="weight pad entry is read before it is written"):
        pads.stream(np.array([10]), np.array([10]))
    pads.reset(10)
    pads.stream(np.array([11]), np.array([11]))


TRAPS: dict[str, tuple[Callable[[], object], str]] = {
    "read outside": (lambda: Dtcm("fmap", 4).read(np.array([4])), "word 4 of the fmap DTCM is addressed"),
    "read below": (lambda: Dtcm("skip", 4).read(np.array([-1])), "word -1 of the skip DTCM"),
    "write outside": (lambda: Dtcm("fmap", 4).write(np.array([7]), WORD), "word 7 of the fmap DTCM"),
    "read before write": (lambda: Dtcm("fmap", 4).read(np.array([2])), "word 2 of the fmap DTCM is read before"),
    "pad too small": (lambda: IfmapPads(4).load(0, np.array([4]), WORD, NOW), "entry 4 of an ifmap pad"),
    "pad not loaded": (lambda: IfmapPads(4).read(0, np.array([[1]]), NOW), "ifmap pad entry is read before"),
    "psums too few": (lambda: PsumFile(4).write(np.zeros((1, 5, 16), np.int64)), "psum 4 is written"),
    "psums too few in a row": (lambda: PsumFile(4, 2).write(np.zeros((2, 5, 16), np.int64)), "psum 5 is written"),
    "psum not written": (lambda: PsumFile(4).read(1, 1), "psum is read before it is written"),
    "parameters": (
        lambda: ParameterPads(1).load(np.zeros((2, 5, 16), np.int8)),
        "2 entries of the bias and scale",
    ),
}


@pytest.mark.parametrize("case", TRAPS)
def test_an_access_that_no_hardware_could_make_is_trapped(case: str) -> None:
    access, reason = TRAPS[case]
    with pytest.raises(ArtefactError, match=reason) as caught:
        access()
    assert caught.value.problems[0].code == "E503"


def test_a_word_that_the_running_layer_replaced_cannot_be_read_until_it_ends() -> None:
    dtcm = Dtcm("fmap", 4)
    dtcm.write(np.array([1]), WORD)
    with pytest.raises(ArtefactError, match="read after the same layer replaced it"):
        dtcm.read(np.array([1]))
    dtcm.settle()
    dtcm.read(np.array([1]))


def test_loading_a_set_of_pads_forgets_what_it_held_and_leaves_the_other_set_alone() -> None:
    pads = IfmapPads(8)
    pads.load(0, np.arange(8), np.full((8, 16), 1, np.int8), np.arange(8))
    pads.load(1, np.arange(8), np.full((8, 16), 2, np.int8), np.arange(8, 16))
    pads.load(0, np.array([3]), np.full((1, 16), 5, np.int8), np.array([16]))
    assert pads.read(0, np.array([3]), NOW).tolist() == [[5] * 16]
    assert pads.read(1, np.array([4]), NOW).tolist() == [[2] * 16]
    with pytest.raises(ArtefactError, match="before it is written"):
        pads.read(0, np.array([4]), NOW)
    assert pads.most == 8


def test_an_entry_is_overwritten_behind_its_last_read_and_not_in_its_cycle() -> None:
    pads = IfmapPads(4, 1)
    pads.load(0, np.arange(4), np.zeros((4, 16), np.int8), np.arange(4))
    pads.read(0, np.arange(4), np.array([10, 20, 30, 5]))
    for cycles in ([10, 21], [11, 20]):
        with pytest.raises(ArtefactError, match=r"entry [01] of an ifmap pad is overwritten before its last read"):
            pads.load(0, np.arange(2), np.zeros((2, 16), np.int8), np.array(cycles))
    pads.load(0, np.arange(2), np.ones((2, 16), np.int8), np.array([11, 21]))
    assert pads.read(0, np.array([1]), NOW).tolist() == [[1] * 16]


def test_psums_of_the_last_tile_are_not_valid_in_the_next() -> None:
    psums = PsumFile(4)
    psums.write(np.ones((2, 1, 16), np.int64))
    psums.read(2, 1)
    psums.clear()
    with pytest.raises(ArtefactError, match="psum is read before it is written"):
        psums.read(1, 1)


# x, scale and the int8 result; source: reference, RTL rows 2, 3, 6 and 7 (half up), saturated.
@pytest.mark.parametrize(
    ("psum", "scale", "expected"),
    [
        (103, -1, 52), (-87, -2, -22), (-24, -3, -3), (17229, 0, 127), (-3, -1, -1), (3, -1, 2), (-1, -1, 0),
        (5, -2, 1), (-5, -2, -1), (7, -2, 2), (-7, -2, -2), (20000, -2, 127), (-300, 0, -128), (7, 4, 112),
    ],
)  # fmt: skip
def test_psums_are_shifted_rounded_half_up_and_saturated(psum: int, scale: int, expected: int) -> None:
    psums = np.full((1, 1, 16), psum, np.int64)
    assert (datapath.requantised(psums, np.full((1, 16), scale, np.int64)) == expected).all()


def test_a_psum_that_leaves_32_bits_between_two_passes_is_trapped_even_if_it_returns() -> None:
    start = np.full((1, 1, 16), 2**31 - 20000, np.int64)
    ifmap = np.array([127, -128], np.int8).reshape(2, 1, 1).repeat(16, axis=2)
    weights = np.full((2, 16), 127, np.int8)
    with pytest.raises(ArtefactError, match="a psum leaves 32 bits: it reaches 2147483648"):
        datapath.multicast(np.full((1, 1, 16), 2**31 - 127 * 127, np.int64), ifmap, weights)
    datapath.multicast(start, ifmap, weights)
    with pytest.raises(ArtefactError, match="a psum leaves 32 bits"):
        datapath.broadcast(np.full((1, 1, 16), 2**31 - 127 * 127, np.int64), ifmap, weights.reshape(1, 2, 1, 16))
