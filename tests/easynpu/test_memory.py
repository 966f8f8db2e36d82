"""Layouts in the DTCMs, written out by hand, and their inverses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine.memory import (
    MapPlace,
    feature_words,
    groups,
    high_end,
    low_end,
    pack_bias_scale,
    pack_channel_weights,
    pack_feature,
    pack_weights,
    to_lanes,
    unpack_bias_scale,
    unpack_channel_weights,
    unpack_feature,
    unpack_weights,
)

SMALL = st.integers(1, 4)
CHANNELS = st.integers(1, 40)
SEEDS = st.integers(0, 2**32 - 1)


def _int8(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def _dtcm(words: int, samples: int = 1) -> Array:
    """Every word's 16 lanes hold its address modulo 100."""
    column = (np.arange(words) % 100).astype(np.int8)[None, :, None]
    return np.tile(column, (samples, 1, 16))


def test_a_group_is_sixteen_channels_the_last_one_perhaps_partial() -> None:
    assert [groups(c) for c in (1, 15, 16, 17, 32, 33, 256)] == [1, 1, 1, 2, 2, 3, 16]


def test_the_documents_largest_map_takes_1220_words() -> None:
    assert feature_words(16, 20, 61) == 1220


def test_a_single_channel_costs_whole_words() -> None:
    assert feature_words(1, 40, 61) == 2440


def test_a_map_lies_row_by_row_with_the_channels_of_a_pixel_in_consecutive_words() -> None:
    # 18 channels, 2 rows, 2 columns: the value says channel, row and column; 2 words a pixel
    x = np.array([[[[100 * h + 50 * w + c for w in range(2)] for h in range(2)] for c in range(18)]])
    expected = [
        [*range(16)], [16, 17] + [0] * 14, [*range(50, 66)], [66, 67] + [0] * 14, [*range(100, 116)],
        [116, 117] + [0] * 14, [*range(150, 166)], [166, 167] + [0] * 14,
    ]  # fmt: skip
    assert pack_feature(x.astype(np.int16)).reshape(8, 16).tolist() == expected


def test_dense_weights_lie_by_input_channel_row_column_and_output_group() -> None:
    # 17 output channels, 2 input channels, a 1 x 2 kernel: [Ci][Hk][Wk][Co/16], the value says all three
    w = np.array([[[[40 * ci + 20 * wk + co for wk in range(2)]] for ci in range(2)] for co in range(17)])
    words = pack_weights(w.astype(np.int8)).tolist()
    assert words == [
        [*range(16)],
        [16] + [0] * 15,
        [*range(20, 36)],
        [36] + [0] * 15,
        [*range(40, 56)],
        [56] + [0] * 15,
        [*range(60, 76)],
        [76] + [0] * 15,
    ]


def test_channel_wise_weights_lie_by_group_row_and_column() -> None:
    # 17 channels, a 2 x 1 kernel: [C/16][Hk][Wk]
    w = np.array([[[[c], [50 + c]]] for c in range(17)]).astype(np.int8)
    assert pack_channel_weights(w).tolist() == [
        [*range(16)],
        [*range(50, 66)],
        [16] + [0] * 15,
        [66] + [0] * 15,
    ]


def test_a_bias_scale_block_holds_four_byte_planes_little_endian_and_the_negated_shifts() -> None:
    bias = np.array([0x01020304, -2], np.int32)  # -2 = fe ff ff ff
    words = pack_bias_scale(bias, np.array([7, 31]))
    assert words.tolist() == [
        [4, -2] + [0] * 14,
        [3, -1] + [0] * 14,
        [2, -1] + [0] * 14,
        [1, -1] + [0] * 14,
        [-7, -31] + [0] * 14,
    ]


def test_bias_scale_blocks_follow_each_other_group_by_group() -> None:
    words = pack_bias_scale(np.arange(17, dtype=np.int32), np.full(17, 3))
    assert words.shape == (10, 16)
    assert words[:, 0].tolist() == [0, 0, 0, 0, -3, 16, 0, 0, 0, -3]


def test_the_low_end_counts_upward_from_its_base() -> None:
    view = low_end("fmap", 10, 17, 3).words(_dtcm(100), 2, 3, 2)
    assert view[0, ..., 0].tolist() == [
        [[10, 11], [12, 13], [14, 15]],
        [[16, 17], [18, 19], [20, 21]],
    ]


def test_the_mirrored_end_puts_logical_word_a_at_the_last_word_minus_a() -> None:
    view = high_end("fmap", 100, 17, 3).words(_dtcm(100), 2, 3, 2)
    assert view[0, ..., 0].tolist() == [
        [[99, 98], [97, 96], [95, 94]],
        [[93, 92], [91, 90], [89, 88]],
    ]


def test_a_pitch_of_zero_reads_one_word_for_every_pixel() -> None:
    view = MapPlace("skip", 5, 0, 0, 1).words(_dtcm(100), 2, 2, 2)
    assert view[0, ..., 0].tolist() == [[[5, 6], [5, 6]], [[5, 6], [5, 6]]]


def test_writing_through_a_place_changes_the_memory_of_every_sample() -> None:
    memory = np.zeros((2, 8, 16), np.int8)
    low_end("fmap", 4, 16, 2).words(memory, 1, 2, 1)[...] = np.array([1, 2], np.int8).reshape(2, 1, 1, 1, 1)
    assert memory[:, :, 0].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 2, 2, 0, 0]]


@pytest.mark.parametrize(("place", "first", "last"), [
    (low_end("fmap", 95, 16, 3), 95, 100), (low_end("fmap", 100, 16, 3), 100, 105),
    (high_end("fmap", 5, 16, 3), -1, 4), (high_end("fmap", 101, 16, 3), 95, 100),
    (MapPlace("fmap", 0, -1, 0, 0), -1, 0), (MapPlace("fmap", 0, 1 << 24, 1 << 24, 1), 0, 3 << 24),
    (MapPlace("fmap", (1 << 24) - 1, 0, 0, 0), (1 << 24) - 1, (1 << 24) - 1),
])  # fmt: skip
def test_a_map_that_leaves_the_memory_is_refused_with_its_words(place: MapPlace, first: int, last: int) -> None:
    with pytest.raises(ArtefactError) as caught:
        place.words(_dtcm(100), 2, 3, 1)
    (problem,) = caught.value.problems
    assert problem.code == "E503"
    assert f"words {first}..{last} of the fmap DTCM" in problem.reason
    assert problem.limit == "0..99"


@given(st.integers(-30, 130), *[st.integers(-20, 20)] * 3, SMALL, SMALL, SMALL)
def test_a_place_addresses_what_its_formula_says_or_is_refused(
    base: int, row: int, pixel: int, group: int, height: int, width: int, depth: int
) -> None:
    place, memory = MapPlace("fmap", base, row, pixel, group), _dtcm(100)
    addresses = [
        [[base + iy * row + ix * pixel + g * group for g in range(depth)] for ix in range(width)]
        for iy in range(height)
    ]
    inside = all(0 <= a < 100 for plane in addresses for line in plane for a in line)
    if inside:
        assert place.words(memory, height, width, depth)[0, ..., 3].tolist() == addresses
    else:
        with pytest.raises(ArtefactError):
            place.words(memory, height, width, depth)


@given(CHANNELS, SMALL, SMALL, SMALL, SEEDS)
def test_a_map_survives_packing(channels: int, samples: int, height: int, width: int, seed: int) -> None:
    x = _int8(seed, samples, channels, height, width)
    words = pack_feature(x)
    assert words.shape == (samples, height, width, -(-channels // 16), 16)
    assert np.array_equal(unpack_feature(words, channels), x)
    assert not words.reshape(samples, height, width, -1)[..., channels:].any()


@given(CHANNELS, CHANNELS, SMALL, SMALL, SEEDS)
def test_dense_weights_survive_packing(Co: int, Ci: int, Hk: int, Wk: int, seed: int) -> None:
    w = _int8(seed, Co, Ci, Hk, Wk)
    words = pack_weights(w)
    assert words.shape == (Ci * Hk * Wk * -(-Co // 16), 16)
    assert np.array_equal(unpack_weights(words, Co, Ci, Hk, Wk), w)


@given(CHANNELS, SMALL, SMALL, SEEDS)
def test_channel_wise_weights_survive_packing(C: int, Hk: int, Wk: int, seed: int) -> None:
    w = _int8(seed, C, 1, Hk, Wk)
    words = pack_channel_weights(w)
    assert words.shape == (-(-C // 16) * Hk * Wk, 16)
    assert np.array_equal(unpack_channel_weights(words, C, Hk, Wk), w)


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-31, 31)), min_size=1, max_size=40))
def test_biases_and_shifts_survive_packing(pairs: list[tuple[int, int]]) -> None:
    bias, shift = np.array(pairs, np.int64).T
    words = pack_bias_scale(bias.astype(np.int32), shift)
    found, scale = unpack_bias_scale(words, len(pairs))
    assert found.tolist() == bias.tolist()
    assert scale.tolist() == (-shift).tolist()


@given(SMALL, CHANNELS, SEEDS)
def test_lanes_beyond_the_channels_are_zero(rows: int, channels: int, seed: int) -> None:
    x = _int8(seed, rows, channels)
    lanes = to_lanes(x).reshape(rows, -1)
    assert np.array_equal(lanes[:, :channels], x)
    assert not lanes[:, channels:].any()
