"""Programs with reshape words, alone, fused or behind a stored word: the simulator and the slow interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.storage.bits import encode
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.rearrangement import PERMUTATIONS, problem
from tests.easynpu.naive import ADD, CONV, DST, DWCONV, FUSED, MAXPOOL, RELU, SRC, STORED
from tests.easynpu.test_simulator import Writer, compare, noise, run_both, shape_of

Shape = tuple[int, int, int]


def random_reshape(writer: Writer, shape: Shape) -> Reshape:
    """A word over a map (H, W, C): any permutation of H, W, C and up to two splits."""
    perm = writer.number(0, 5)
    at = [(1, *shape)[source] for source in PERMUTATIONS[perm]]
    fields: dict[str, int] = {}
    for dimension in sorted({writer.number(1, 3), writer.number(1, 3)}, reverse=True):
        name, onto = "nhwc"[dimension], writer.number(1, 3)
        parts = int(writer.random.choice([p for p in range(1, at[dimension] + 1) if at[dimension] % p == 0]))
        at[dimension] //= parts
        at[onto] *= parts
        fields |= {f"split_{name}": parts, f"onto_{name}": onto}
        fields |= {f"minor_{name}": writer.number(0, 1), f"insert_{name}": writer.number(0, 1)}
    Hi, Wi, Ci = shape
    word = Reshape(perm=perm, Hi=Hi, Wi=Wi, Ci=Ci, Ho=at[1], Wo=at[2], Co=at[3], **fields)
    assert problem(word) is None
    return word


def bounded(writer: Writer, shape: Shape) -> Reshape:
    """One whose fields hold its result, which takes at most 250 words."""
    while True:
        word = random_reshape(writer, shape)
        if max(result(word)) <= 256 and word.Ho * word.Wo * -(-word.Co // 16) <= 250:
            return word


def result(word: Reshape) -> Shape:
    return word.Ho, word.Wo, word.Co


@pytest.mark.parametrize("seed", range(25))
def test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter(seed: int) -> None:
    random = np.random.default_rng((seed, 80))
    writer = Writer(random)
    shape = (writer.number(1, 6), writer.number(1, 6), writer.number(1, 36))
    for _ in range(3):
        if writer.number(0, 2):
            layer = writer.head(int(random.choice([CONV, DWCONV, MAXPOOL, RELU, ADD])), shape)
            writer.emit(layer, FUSED | STORED * writer.number(0, 1))
            shape = shape_of(layer)
            if writer.number(0, 1):
                writer.emit(writer.pointwise(layer) | {"opcode": RELU}, FUSED)
        word = bounded(writer, shape)
        writer.words.append(encode(word))
        shape = result(word)
    compare(writer, *noise(random))


@pytest.mark.parametrize("seed", range(10))
def test_a_reshape_reads_and_writes_where_extension_words_say(seed: int) -> None:
    random = np.random.default_rng((seed, 81))
    writer = Writer(random)
    shape = (writer.number(1, 6), writer.number(1, 6), writer.number(1, 36))
    word = bounded(writer, shape)

    def place(of: Shape, base: int) -> Mapping[str, int]:
        groups = -(-of[2] // 16)
        return {"base": base, "row": of[1] * groups + 1, "pixel": groups, "group": 1}

    writer.operand(SRC, writer.number(0, 1), place(shape, 3))
    writer.operand(DST, writer.number(0, 1), place(result(word), 300))
    writer.words.append(encode(word))
    layer = writer.head(RELU, shape)  # the low end is still the current one
    writer.emit(layer)
    compare(writer, *noise(random))


@pytest.mark.parametrize("fused", [False, True])
def test_channels_that_stay_together_go_over_the_end_of_a_word(fused: bool) -> None:
    """Pixels of 20 channels side by side: the second begins at lane 4 of the second word."""
    random = np.random.default_rng(7)
    writer = Writer(random)
    shape = (2, 6, 20)
    if fused:
        writer.emit(writer.head(RELU, shape), FUSED)
    writer.words.append(encode(Reshape(Hi=2, Wi=6, Ci=20, Ho=2, Wo=2, Co=60, split_w=3, onto_w=3)))
    compare(writer, *noise(random))


def test_a_stored_word_before_a_reshape_keeps_the_order_that_it_had() -> None:
    """Both addresses of the document: the skip DTCM has the map as it was, the Fmap DTCM as it is reshaped."""
    writer = Writer(np.random.default_rng(5))
    same = {"Ho": 2, "Wo": 3, "Co": 16, "Zs": 1, "y": 2, "x": 3}
    layer = writer.pointwise(same) | {"opcode": RELU}
    writer.emit(layer, FUSED | STORED)
    writer.words.append(encode(Reshape(perm=2, Hi=2, Wi=3, Ci=16, Ho=3, Wo=2, Co=16)))
    fmap, skip = noise(np.random.default_rng(6), samples=1)
    (after, kept, *_), _ = run_both(writer, fmap.copy(), skip)
    x = np.maximum(fmap[0, :6], 0).reshape(2, 3, 16)
    np.testing.assert_array_equal(kept[0, :6].reshape(2, 3, 16), x)
    mirrored = after[0, ::-1][:6].reshape(3, 2, 16)
    np.testing.assert_array_equal(mirrored, x.transpose(1, 0, 2))


def test_lanes_behind_the_last_channel_of_a_reshaped_map_are_zero() -> None:
    writer = Writer(np.random.default_rng(5))
    writer.words.append(encode(Reshape(Hi=2, Wi=2, Ci=12, Ho=2, Wo=4, Co=6, split_c=2, onto_c=2)))
    fmap, skip = noise(np.random.default_rng(6), samples=1)
    (after, _, *_), _ = run_both(writer, fmap, skip)
    assert not after[0, ::-1][:8, 6:].any()
    assert after[0, ::-1][:8, :6].any()


@pytest.mark.parametrize(("word", "flags", "reason"), [
    (Reshape(Hi=2, Wi=2, Ci=16, Ho=2, Wo=3, Co=16), FUSED, "after the splits"),
    (Reshape(Hi=3, Wi=2, Ci=16, Ho=3, Wo=2, Co=16), FUSED, "a fused word of another output size"),
    (Reshape(Hi=256, Wi=4, Ci=16, Ho=256, Wo=4, Co=16), None, "of the fmap DTCM are addressed"),
    (Reshape(Hi=64, Wi=6, Ci=16, Ho=64, Wo=6, Co=16), None, "it writes over another map of its chain"),
])  # fmt: skip
def test_reshapes_that_no_machine_executes_are_refused(word: Reshape, flags: int | None, reason: str) -> None:
    writer = Writer(np.random.default_rng(5))
    if flags is not None:
        same = {"Ho": 2, "Wo": 2, "Co": 16, "Zs": 1, "y": 2, "x": 2}
        writer.emit(writer.pointwise(same) | {"opcode": RELU}, flags)
    writer.words.append(encode(word))
    with pytest.raises(ArtefactError) as caught:
        run_both(writer, *noise(np.random.default_rng(6)))
    assert caught.value.problems[0].code == "E503"
    assert reason in caught.value.problems[0].reason
