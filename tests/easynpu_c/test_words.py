"""The machine model in C against the interpreter of the document's loop nest, on random programs over noise."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.easynpu.export.c_export import SOURCES
from tests.easynpu import naive
from tests.easynpu import test_simulator as programs
from tests.easynpu.naive import (
    BN,
    CONTROL,
    CONV,
    CTL,
    DST,
    DWCONV,
    FUSED,
    LAYER,
    MAXPOOL,
    MUL,
    OPB,
    OPERAND,
    RELU,
    RESHAPE,
    SRC,
    STO,
    STORED,
    word,
)
from tests.easynpu_c import compiling
from tests.easynpu_reshape import test_programs as reshapes

ITCM_WORDS = 64
MACHINE = programs.MACHINE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executable that runs words on given memories, of the machine that the random programs are for."""
    folder = tmp_path_factory.mktemp("words")
    numbers = {
        "ITCM_WORDS": ITCM_WORDS,
        "WEIGHT_WORDS": MACHINE.weight_words,
        "FMAP_WORDS": MACHINE.fmap_words,
        "SKIP_WORDS": MACHINE.skip_words,
        "IFMAP_PAD_ENTRIES": MACHINE.ifmap_pad_entries,
        "PSUM_ENTRIES": MACHINE.psum_entries,
        "WEIGHT_PAD_ENTRIES": MACHINE.weight_pad_entries,
        "PARAMETER_PAD_ENTRIES": MACHINE.parameter_pad_entries,
        "PE_ROWS": MACHINE.pe_rows,
    }
    header = "".join(f"#define NPUC_{name} {value}\n" for name, value in numbers.items())
    (folder / "npuc_program.h").write_text(header, encoding="ascii")
    shutil.copy(SOURCES / "npuc_driver.h", folder)
    shutil.copytree(SOURCES / "test", folder / "test")
    shutil.copy(Path(__file__).with_name("words.c"), folder)
    sources = ["words.c", "test/npuc_model.c", "test/npuc_array.c", "test/npuc_reshape.c"]
    return compiling.build(folder, sources, compiling.careful_flags())


def execute(model: Path, words: list[int], weights: Array, fmap: Array, skip: Array) -> tuple[Array, Array]:
    """Both feature memories after the words; raises RuntimeError with the model's reason where it stops."""
    itcm = b"".join(each.to_bytes(16, "little") for each in words).ljust(16 * ITCM_WORDS, b"\x03")
    stream = np.zeros((MACHINE.weight_words, 16), np.int8)
    stream[: len(weights)] = weights
    images = (each.astype(np.int8).tobytes() for each in (stream, fmap, skip))
    given = b"".join([len(words).to_bytes(4, "little"), itcm, *images])
    done = subprocess.run([model], input=given, capture_output=True, check=False)
    if done.returncode == 1:
        raise RuntimeError(done.stderr.decode().strip())
    assert (done.returncode, done.stderr) == (0, b"")
    found = np.frombuffer(done.stdout, np.int8).reshape(-1, 16)
    return found[: MACHINE.fmap_words], found[MACHINE.fmap_words :]


@pytest.fixture
def compared(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's random programs run on the C model instead, one sample after the other."""

    def compare(writer: programs.Writer, fmap: Array, skip: Array) -> None:
        for one, kept in zip(fmap, skip, strict=True):
            weights = np.zeros((MACHINE.weight_words, 16), np.int64)
            weights[: len(writer.weights)] = writer.weights
            npu = naive.Npu(one.astype(np.int64), kept.astype(np.int64), weights)
            npu.run(writer.words)
            found = execute(model, writer.words, writer.weights, one, kept)
            np.testing.assert_array_equal(found[0], npu.fmap)
            np.testing.assert_array_equal(found[1], npu.skip)

    monkeypatch.setattr(programs, "compare", compare)
    monkeypatch.setattr(reshapes, "compare", compare)


SUITES: dict[str, tuple[Callable[[int], None], int]] = {
    "chains": (programs.test_fused_chains_and_their_ends_agree_with_the_loop_nest, 15),
    "operands": (programs.test_explicit_operands_lie_where_their_pitches_say, 15),
    "psums": (programs.test_kept_psums_accumulate_over_words_that_read_maps_of_their_own, 10),
    "psums from chain to chain": (programs.test_psums_stay_in_the_pads_from_chain_to_chain, 10),
    "reshapes": (reshapes.test_reshapes_alone_and_behind_other_words_agree_with_the_interpreter, 20),
    "reshaped operands": (reshapes.test_a_reshape_reads_and_writes_where_extension_words_say, 10),
    "weights": (programs.test_the_weight_stream_can_be_set_to_any_word, 4),
}


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("suite", SUITES)
def test_random_programs_leave_the_same_memories(suite: str) -> None:
    program, seeds = SUITES[suite]
    for seed in range(seeds):
        program(seed)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("op", programs.HEADS)
def test_a_single_word_leaves_the_same_memories(op: int) -> None:
    for seed in range(3):
        programs.test_a_single_word_computes_what_the_loop_nest_computes(op, seed)


SMALL = {"Sh": 1, "Sw": 1, "Ho": 2, "Wo": 2, "Hi": 2, "Wi": 2, "Ci": 3, "Co": 3, "y": 2, "x": 2, "yi": 2, "xi": 2}
SMALL |= {"Hk": 1, "Wk": 1, "Zs": 1}


KEEP, TAKE = word(CONTROL, opcode=CTL, keep=1), word(CONTROL, opcode=CTL, take=1)
RESHAPED = {"opcode": 0x80, "split_n": 1, "split_h": 1, "split_w": 1, "split_c": 1}
RESHAPED |= {"Hi": 2, "Wi": 2, "Ci": 3, "Ho": 2, "Wo": 2, "Co": 3}


def layer(opcode: int, **changes: int) -> int:
    return word(LAYER, **{**SMALL, "opcode": opcode, **changes})


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([0x03], "an opcode is not defined"),
        ([layer(CONV, Co=17)], "Zs is not the groups"),
        ([layer(RELU, Co=4)], "Ci != Co"),
        ([layer(CONV, yi=3)], "y' x' contradict"),
        ([layer(CONV, y=9, x=9, yi=9, xi=9, Ho=9, Wo=9)], "a sub-ifmap exceeds the pads"),
        ([layer(CONV, y=8, x=8, yi=8, xi=8, Ho=8, Wo=8, Co=17, Zs=2)], "a tile exceeds the psums"),
        ([layer(RELU, Hk=2, yi=3)], "a window in a word that works pixel by pixel"),
        ([layer(CONV | FUSED), layer(MAXPOOL)], "cannot continue on a fused result"),
        ([layer(CONV | FUSED), layer(BN, Ho=1, Hi=1)], "another ofmap"),
        ([layer(CONV | FUSED)], "ends within a chain"),
        ([word(CONTROL, opcode=CTL, keep=1), layer(CONV | STORED)], "psums are kept, and a result is wanted"),
        ([word(CONTROL, opcode=CTL, keep=1), layer(CONV, y=1, yi=1)], "chain to chain by a word of several tiles"),
        ([word(CONTROL, opcode=CTL, keep=1), layer(DWCONV, Ci=17, Co=17, Zs=2)], "by a word of several tiles"),
        ([TAKE, layer(CONV)], "psums are taken that no chain kept"),
        ([KEEP, layer(CONV), layer(CONV), TAKE, layer(CONV)], "psums are taken that no chain kept"),
        ([KEEP, layer(CONV), TAKE, layer(CONV, Co=4)], "psums are taken that no chain kept"),
        ([KEEP, layer(CONV), TAKE, layer(DWCONV)], "psums are taken that no chain kept"),
        ([layer(CONV | FUSED), TAKE, layer(CONV)], "does not begin a chain"),
        ([KEEP, layer(CONV), TAKE, layer(RELU)], "does not accumulate"),
        ([word(OPERAND, opcode=DST), KEEP, layer(CONV)], "a word that is continued"),
        ([word(CONTROL, opcode=CTL, keep=1), layer(RELU | FUSED), layer(RELU)], "does not accumulate"),
        ([word(OPERAND, opcode=SRC, memory=2), layer(CONV)], "neither DTCM"),
        ([word(OPERAND, opcode=SRC, base=699, row=1), layer(RELU)], "beyond the end of a memory"),
        ([word(OPERAND, opcode=OPB), layer(CONV)], "without a second operand"),
        ([word(OPERAND, opcode=STO), layer(CONV)], "not stored"),
        ([word(OPERAND, opcode=DST), layer(CONV | FUSED), layer(RELU)], "a word that is continued"),
        ([layer(CONV | FUSED), word(OPERAND, opcode=SRC), layer(RELU)], "without an ifmap"),
        ([word(OPERAND, opcode=SRC), word(OPERAND, opcode=SRC), layer(RELU)], "a second extension word"),
        ([word(CONTROL, opcode=CTL, set=1), word(CONTROL, opcode=CTL), layer(RELU)], "a second extension word"),
        ([word(RESHAPE, **{**RESHAPED, "perm": 24})], "undefined permutation"),
        ([word(RESHAPE, **{**RESHAPED, "split_c": 2})], "parts of unequal size"),
        ([word(RESHAPE, **{**RESHAPED, "Ho": 4})], "another result than its splits give"),
        ([layer(CONV | FUSED), word(RESHAPE, **{**RESHAPED, "Hi": 1, "Ho": 1})], "another ofmap"),
        ([0xA0], "an opcode is not defined"),
        ([layer(RELU)] * 65, "more words are run than the ITCM has"),
    ],
)
def test_words_that_no_machine_could_execute_stop_the_model(model: Path, words: list[int], reason: str) -> None:
    nothing = np.zeros((0, 16), np.int8)
    with pytest.raises(RuntimeError, match=reason):
        execute(model, words, nothing, *(each[0] for each in programs.noise(np.random.default_rng(0), 1)))


def test_an_accumulator_that_leaves_32_bits_stops_the_model(model: Path) -> None:
    highest = np.zeros((6, 16), np.int8)
    highest[:4] = np.array([[-1], [-1], [-1], [127]])  # a bias of 2^31 - 1
    highest[5] = 1
    ones = np.ones((MACHINE.fmap_words, 16), np.int8)
    with pytest.raises(RuntimeError, match="a psum leaves 32 bits"):
        execute(model, [layer(BN)], highest, ones, ones)


def test_a_product_with_a_bias_stops_the_model(model: Path) -> None:
    block = np.ones((5, 16), np.int8)
    with pytest.raises(RuntimeError, match="a bias in the block of a sum or product"):
        execute(model, [layer(MUL)], block, *(each[0] for each in programs.noise(np.random.default_rng(0), 1)))
