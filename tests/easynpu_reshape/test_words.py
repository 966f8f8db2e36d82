"""Reshape words: the document's examples by hand, and random words against piles of tiles carried one by one."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.storage.bits import encode
from npuc.targets.easynpu.machine.isa import Layer, Reshape, Undefined, decode_word
from npuc.targets.easynpu.machine.listing import assemble, disassemble
from npuc.targets.easynpu.machine.rearrangement import (
    most_written,
    problem,
    rearrange,
    run_length,
    word_for,
    written_words,
)
from tests.easynpu import naive

# field: (high bit, low bit, what is subtracted before it is stored). Source: docs/decisions.md, EasyNPU reshape.
BITS = {
    "opcode": (7, 0, 0), "perm": (12, 8, 0), "reserved_low": (15, 13, 0),
    "minor_n": (16, 16, 0), "minor_h": (17, 17, 0), "minor_w": (18, 18, 0), "minor_c": (19, 19, 0),
    "insert_n": (20, 20, 0), "insert_h": (21, 21, 0), "insert_w": (22, 22, 0), "insert_c": (23, 23, 0),
    "reserved_middle": (31, 24, 0),
    "split_n": (39, 32, 1), "split_h": (47, 40, 1), "split_w": (55, 48, 1), "split_c": (63, 56, 1),
    "onto_n": (65, 64, 0), "onto_h": (67, 66, 0), "onto_w": (69, 68, 0), "onto_c": (71, 70, 0),
    "Ho": (79, 72, 1), "Wo": (87, 80, 1), "Co": (95, 88, 1), "Ci": (103, 96, 1), "reserved_high": (111, 104, 0),
    "Hi": (119, 112, 1), "Wi": (127, 120, 1),
}  # fmt: skip


def tiles(*shape: int) -> Array:
    """A map (1, H, W, C) whose elements are all different."""
    return np.arange(prod(shape)).reshape(1, *shape)


def test_halving_the_length_and_doubling_the_height_stacks_the_second_half_on_the_first() -> None:
    """The document's first example; its [3, 4, 6] is 72 tiles, there are 48. Length H, width W, height C."""
    x = tiles(6, 4, 2)
    y = rearrange(x, Reshape(Hi=6, Wi=4, Ci=2, Ho=3, Wo=4, Co=4, split_h=2, onto_h=3))
    assert y.shape == (1, 3, 4, 4)
    # the pile at length 1, width 2: two tiles of the first half, on top the two of length 1 + 3
    assert y[0, 1, 2].tolist() == [x[0, 1, 2, 0], x[0, 1, 2, 1], x[0, 4, 2, 0], x[0, 4, 2, 1]]
    assert y[0, :, :, :2].tolist() == x[0, :3].tolist()
    assert y[0, :, :, 2:].tolist() == x[0, 3:].tolist()


def test_halving_the_height_and_doubling_the_length_inserts_the_upper_half_into_the_lower() -> None:
    """The document's second example: [2, 4, 6] becomes [4, 4, 3]."""
    x = tiles(2, 4, 6)
    y = rearrange(x, Reshape(Hi=2, Wi=4, Ci=6, Ho=4, Wo=4, Co=3, split_c=2, onto_c=1, insert_c=1))
    assert y.shape == (1, 4, 4, 3)
    assert y[0, 0].tolist() == x[0, 0, :, :3].tolist()
    assert y[0, 1].tolist() == x[0, 0, :, 3:].tolist()
    assert y[0, 2].tolist() == x[0, 1, :, :3].tolist()
    assert y[0, 3].tolist() == x[0, 1, :, 3:].tolist()


def test_without_insertion_the_upper_half_is_put_beside_the_lower() -> None:
    x = tiles(2, 4, 6)
    y = rearrange(x, Reshape(Hi=2, Wi=4, Ci=6, Ho=4, Wo=4, Co=3, split_c=2, onto_c=1))
    assert y[0, :2].tolist() == x[0, :, :, :3].tolist()
    assert y[0, 2:].tolist() == x[0, :, :, 3:].tolist()


def test_a_minor_split_takes_every_other_index() -> None:
    x = tiles(4, 1, 1)
    y = rearrange(x, Reshape(Hi=4, Wi=1, Ci=1, Ho=2, Wo=2, Co=1, split_h=2, minor_h=1, onto_h=2))
    assert y[0, :, :, 0].tolist() == [[0, 1], [2, 3]]


def test_a_dimension_stacked_on_itself_is_shuffled() -> None:
    x = tiles(1, 1, 6)
    y = rearrange(x, Reshape(Ci=6, Co=6, split_c=2, insert_c=1, onto_c=3))
    assert y.ravel().tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("perm", "source"), [(0, "HWC"), (1, "HCW"), (2, "WHC"), (3, "WCH"), (4, "CHW"), (5, "CWH")]
)
def test_permutations_that_leave_n_are_the_first_six_in_lexicographic_order(perm: int, source: str) -> None:
    x = tiles(2, 3, 5)
    Ho, Wo, Co = ({"H": 2, "W": 3, "C": 5}[name] for name in source)
    y = rearrange(x, Reshape(perm=perm, Hi=2, Wi=3, Ci=5, Ho=Ho, Wo=Wo, Co=Co))
    assert y[0].tolist() == np.einsum(f"HWC->{source}", x[0]).tolist()


def test_the_last_of_24_permutations_reverses_the_dimensions() -> None:
    x = tiles(2, 1, 1)
    word = Reshape(perm=23, Hi=2, Wi=1, Ci=1, Ho=1, Wo=2)
    assert problem(word) is None
    assert rearrange(x, word).ravel().tolist() == [0, 1]


@pytest.mark.parametrize(("word", "reason"), [
    (Reshape(perm=24), "permutation 24 of 24"),
    (Reshape(Hi=3, Ho=1, Wo=2, split_h=2, onto_h=2), "H = 3 is split into 2 parts"),
    (Reshape(Hi=4, Ho=2, Wo=1, split_h=2, onto_h=2), "N, H, W, C are [1, 2, 2, 1] after the splits"),
    (Reshape(Hi=4, Ho=2, split_h=2, onto_h=0), "N, H, W, C are [2, 2, 1, 1] after the splits"),
])  # fmt: skip
def test_words_that_contradict_themselves_are_refused(word: Reshape, reason: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        rearrange(np.zeros((1, word.Hi, word.Wi, word.Ci), np.int8), word)
    assert reason in caught.value.problems[0].reason


@st.composite
def words(draw: st.DrawFn) -> Reshape:
    """Words that fit together: extents of small factors, split by some of their divisors, N left with 1."""
    extents = [draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])) for _ in range(3)]
    perm = draw(st.integers(0, 5))
    at = [1, *(extents[naive.permutations_of_four()[perm][i] - 1] for i in range(1, 4))]
    fields: dict[str, int] = {}
    for dimension in (3, 2, 1):
        name = "nhwc"[dimension]
        parts = draw(st.sampled_from([each for each in range(1, at[dimension] + 1) if at[dimension] % each == 0]))
        onto = draw(st.integers(1, 3))
        at[dimension] //= parts
        at[onto] *= parts
        flags = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        fields |= {f"split_{name}": parts, f"onto_{name}": onto, f"minor_{name}": flags[0]}
        fields[f"insert_{name}"] = flags[1]
    Hi, Wi, Ci = extents
    shape = {"Hi": Hi, "Wi": Wi, "Ci": Ci, "Ho": min(at[1], 256), "Wo": min(at[2], 256), "Co": min(at[3], 256)}
    return Reshape(perm=perm, **shape, **fields)


@given(words().filter(lambda word: problem(word) is None))
@settings(max_examples=60, deadline=None)
def test_every_word_moves_tiles_as_piles_carried_one_by_one(word: Reshape) -> None:
    x = tiles(word.Hi, word.Wi, word.Ci)
    expected = naive.restacked(x[0], naive.fields(naive.RESHAPE, encode(word)))
    assert rearrange(x, word)[0].tolist() == expected.tolist()


@given(words().filter(lambda word: problem(word) is None))
@settings(max_examples=60, deadline=None)
def test_the_words_that_are_written_are_counted_lane_by_lane(word: Reshape) -> None:
    """A piece ends with a word of the map or of the result, or with a run of channels that stay neighbours."""
    y = rearrange(tiles(word.Hi, word.Wi, word.Ci), word)[0]
    place = {int(y[at]): at for at in np.ndindex(y.shape)}
    run, written, most = run_length(word), 0, 0
    for pixel in range(word.Hi * word.Wi):
        pieces = [0] * -(-word.Ci // 16)
        for channel in range(word.Ci):
            row, column, to = place[pixel * word.Ci + channel]
            alone = channel % run == 0 or to % 16 == 0 or channel % 16 == 0
            assert alone or place[pixel * word.Ci + channel - 1] == (row, column, to - 1)
            pieces[channel // 16] += alone
        written, most = written + sum(pieces), max(most, *pieces, 0)
    assert written_words(word) == written
    assert most_written(word) >= most


@pytest.mark.parametrize(
    ("word", "run", "writes"),
    [
        (Reshape(Hi=4, Wi=6, Ci=40, Ho=6, Wo=4, Co=40, perm=2), 40, 1),  # rows and columns exchanged
        (Reshape(Hi=2, Wi=2, Ci=64, Ho=2, Wo=8, Co=16, split_c=4, onto_c=2), 16, 1),
        (Reshape(Hi=2, Wi=2, Ci=32, Ho=2, Wo=8, Co=8, split_c=4, onto_c=2), 8, 2),
        (Reshape(Hi=2, Wi=2, Ci=36, Ho=2, Wo=6, Co=12, split_c=3, onto_c=2), 12, 3),
        (Reshape(Hi=2, Wi=2, Ci=6, Ho=2, Wo=4, Co=3, split_c=2, onto_c=2), 3, 6),
        (Reshape(Hi=2, Wi=2, Ci=20, Ho=2, Wo=8, Co=5, split_c=4, onto_c=2), 5, 4),
        (Reshape(Hi=2, Wi=4, Ci=16, Ho=2, Wo=2, Co=32, split_w=2, onto_w=3), 16, 1),
        (Reshape(Hi=2, Wi=4, Ci=20, Ho=2, Wo=2, Co=40, split_w=2, onto_w=3), 20, 2),
        (Reshape(Hi=1, Wi=2, Ci=40, Ho=1, Wo=4, Co=20, split_c=2, onto_c=2), 20, 4),
        (Reshape(Hi=2, Wi=2, Ci=32, Ho=2, Wo=2, Co=32, split_c=2, onto_c=3, insert_c=1), 1, 16),  # a shuffle
        (Reshape(Hi=1, Wi=16, Ci=16, Ho=1, Wo=16, Co=16, perm=1), 1, 16),  # channels exchanged with columns
    ],
)
def test_runs_of_channels_and_the_cycles_that_a_scattered_result_takes(
    word: Reshape, run: int, writes: int
) -> None:
    assert problem(word) is None
    assert (run_length(word), most_written(word)) == (run, writes)


@given(words().filter(lambda word: problem(word) is None))
@settings(max_examples=40, deadline=None)
def test_a_word_is_found_for_whatever_two_splits_give(word: Reshape) -> None:
    if word.split_h > 1 and word.split_w > 1 and word.split_c > 1:
        return
    order = rearrange(tiles(word.Hi, word.Wi, word.Ci), word)[0]
    found = word_for(order, (word.Hi, word.Wi, word.Ci))
    assert found is not None
    assert rearrange(tiles(word.Hi, word.Wi, word.Ci), found)[0].tolist() == order.tolist()


def test_no_word_turns_a_map_back_to_front() -> None:
    assert word_for(tiles(4, 4, 8)[0, ::-1], (4, 4, 8)) is None


def test_no_word_is_looked_for_where_the_fields_do_not_hold_the_result() -> None:
    assert word_for(tiles(1, 1, 512)[0], (512, 1, 1)) is None


@pytest.mark.parametrize("name", [name for name in BITS if name != "opcode"])
def test_each_field_of_a_reshape_word_has_its_bits(name: str) -> None:
    high, low, less = BITS[name]
    for stored in {0, 1, (1 << (high - low + 1)) - 1}:
        assert encode(Reshape(**{name: stored + less})) == 0x80 | stored << low


def test_the_extents_stand_where_a_layer_word_has_them() -> None:
    shape = {"Hi": 7, "Wi": 9, "Ci": 11, "Ho": 13, "Wo": 15, "Co": 17}
    mask = ~((1 << 72) - 1) & ~(0xFF << 104)
    assert encode(Reshape(**shape)) & mask == encode(Layer(**shape)) & mask


def test_only_0x80_is_a_reshape() -> None:
    """The document's fused and stored patterns, 001_???_?? and 01?_???_??, leave bit 7 clear."""
    assert isinstance(decode_word(0x80), Reshape)
    assert isinstance(decode_word(0xA0), Undefined)


@given(st.integers(0, (1 << 120) - 1))
def test_every_reshape_word_survives_disassembly(value: int) -> None:
    word = decode_word(value << 8 | 0x80)
    assert isinstance(word, Reshape)
    line = disassemble(word)
    assert line.split()[0] == "reshape"
    again = assemble(line)
    assert again is not None
    assert encode(again) == value << 8 | 0x80


@pytest.mark.parametrize("line", ["reshape.fused Ho=2", "reshape.stored", "reshape Sh=2"])
def test_a_reshape_has_no_flags_and_no_strides(line: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        assemble(line)
    assert caught.value.problems[0].code == "E504"
