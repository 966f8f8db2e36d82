"""The signals of a trace: a valid dump, the counted cycles, and PEs driven by it that give the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from npuc.targets.easynpu.machine.isa import EXTENSIONS, Control, Instruction, Layer, Operand, Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from tests.easynpu_stepping import vcd
from tests.easynpu_stepping.bench import (
    ADD,
    BN,
    CONV,
    CONV_RELU,
    DWCONV,
    FUSED,
    MAXPOOL,
    RELU,
    Bench,
    layer,
    run,
)

DECODE, LOAD_BS, FIRST_FETCH, LOAD_IFMAP, RUN, WAIT, DRAIN = range(1, 8)
IFMAP, PADDING, OFMAP = range(3)
# name -> width. Source: easynpu, PE, Ifmap pads and PE controller.
DOCUMENTED = {
    "Pe_ps_addr": 6,
    "Pe_ps_outer_en": 1,
    "Pe_ps_back_en": 1,
    "Pe_ps_shift_scale": 8,
    "Pe_maxpool_en": 1,
    "Pe_byp_mul_en": 1,
    "if_hw_addr": 6,
    "if_ch_addr": 4,
    "cast_mode": 1,
    "w_och_gcnt": 4,
}


def pointwise(opcode: int, like: Layer) -> Layer:
    return replace(
        like, opcode=opcode, Hk=1, Wk=1, Ph=0, Pw=0, Hi=like.Ho, Wi=like.Wo, Ci=like.Co, yi=like.y, xi=like.x
    )


CONV_5X5 = layer(CONV, (5, 5), 3, 0, 1, 32, (3, 3))
HEAD = layer(CONV | FUSED, (7, 6), 3, 1, 20, 20, (3, 4))
POOL = layer(MAXPOOL, (7, 7), 2, 0, 20, 20, (2, 2))
KEEP = Control(opcode=EXTENSIONS["ctl"].opcode, keep_psum=1)
SOURCE = Operand(opcode=EXTENSIONS["src"].opcode, memory=1, base=100, row=12, pixel=2, group=1)
MACHINE = Machine(fmap_words=600, skip_words=600)
PROGRAMS: dict[str, Sequence[Instruction]] = {
    "the document's example": [CONV_5X5],
    "edge tiles": [layer(CONV, (7, 6), 3, 1, 20, 20, (3, 4))],
    "fully connected": [layer(CONV, (1, 1), 1, 0, 40, 10, (1, 1))],
    "one weight a cycle": [layer(CONV, (1, 1), 1, 0, 40, 40, (1, 1))],
    "depthwise": [layer(DWCONV, (6, 6), 3, 1, 20, 20, (2, 3))],
    "pool, then ReLU": [POOL, pointwise(RELU, POOL)],
    "fused": [HEAD, pointwise(ADD | FUSED, HEAD), pointwise(RELU, HEAD)],
    "fused batch normalisation": [HEAD, pointwise(BN, HEAD)],
    "kept psums": [SOURCE, KEEP, HEAD, replace(HEAD, opcode=CONV_RELU)],
    "bus bound": [layer(CONV, (6, 6), 1, 0, 1, 16, (2, 4))],
    "a scattered result": [
        HEAD,
        pointwise(RELU | FUSED, HEAD),
        Reshape(Hi=7, Wi=6, Ci=20, Ho=7, Wo=24, Co=5, split_c=4, onto_c=2),
    ],
    "channels to pixels": [Reshape(Hi=2, Wi=3, Ci=32, Ho=2, Wo=12, Co=8, split_c=4, onto_c=2, insert_c=1)],
}  # fmt: skip


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cycles_of_a_trace_are_the_counted_ones(name: str, sets: int) -> None:
    bench = run(PROGRAMS[name], machine=replace(MACHINE, ifmap_pad_sets=sets))
    waves = vcd.read(bench.vcd)
    layers = bench.layers
    assert len(waves["state"]) == sum(each.cycles for each in layers)
    assert set(waves["state"]) <= set(range(1, 8))
    bus = waves["bus_valid"] == 1
    kinds = {kind: int((waves["bus_kind"][bus] == kind).sum()) for kind in range(4)}
    assert kinds[IFMAP] == sum(each.ifmap_words for each in layers)
    assert kinds[PADDING] == sum(each.padding_words for each in layers)
    assert kinds[OFMAP] == sum(each.ofmap_words for each in layers)
    assert waves["weight_valid"].sum() == sum(each.weight_words for each in layers)
    assert waves["operand_valid"].sum() == sum(each.operand_words for each in layers)
    assert (waves["state"] == DECODE).sum() == len(PROGRAMS[name])
    drained = [each for each in layers if each.compute_cycles]
    assert (waves["state"] == DRAIN).sum() == 3 * len(drained)
    assert not waves["pe_en"][waves["state"] != RUN].any()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pes_are_enabled_in_every_compute_cycle_but_the_bubbles(name: str) -> None:
    bench = run(PROGRAMS[name])
    waves = vcd.read(bench.vcd)
    bubbles = 2 if name == "fully connected" else 1
    assert waves["pe_en"].sum() * bubbles == sum(each.compute_cycles for each in bench.layers)


def test_the_signals_have_the_documents_names_and_widths() -> None:
    widths = vcd.read(run(PROGRAMS["fused"]).vcd).widths
    assert {name: widths[name] for name in DOCUMENTED} == DOCUMENTED


def test_larger_pads_have_wider_addresses() -> None:
    machine = Machine(
        fmap_words=600, skip_words=600, psum_entries=65, ifmap_pad_entries=256, weight_pad_entries=17
    )
    widths = vcd.read(run([CONV_5X5], machine=machine).vcd).widths
    assert [widths[name] for name in ("Pe_ps_addr", "if_hw_addr", "w_och_gcnt")] == [7, 8, 5]


def test_two_runs_give_the_same_dump_and_no_date() -> None:
    first, second = (run(PROGRAMS["fused"]).vcd for _ in range(2))
    assert first == second
    assert "$date" not in first


def test_the_passes_of_the_documents_example() -> None:
    """Easynpu, PE controller: passes 0..8 sweep the 9 positions with one group of weights, 9..17 with the next.

    Then the kernel moves one column: the ifmap addresses move with it, and the weights are the next two words.
    """
    waves = vcd.read(run([CONV_5X5]).vcd)
    passes = np.nonzero(waves["pe_en"])[0]
    positions = [0, 1, 2, 5, 6, 7, 10, 11, 12]  # of a 3 x 3 tile in a pad of 5 columns
    first, second = passes[:18], passes[18:36]
    assert waves["Pe_ps_addr"][first].tolist() == list(range(18))
    assert waves["if_hw_addr"][first].tolist() == positions + positions
    assert waves["w_och_gcnt"][first].tolist() == [0] * 9 + [1] * 9
    assert waves["Pe_ps_outer_en"][first].tolist() == [1] * 18  # the bias starts the psums
    assert waves["Pe_ps_addr"][second].tolist() == list(range(18))
    assert waves["if_hw_addr"][second].tolist() == [each + 1 for each in positions + positions]
    assert waves["w_och_gcnt"][second].tolist() == [2] * 9 + [3] * 9
    assert not waves["Pe_ps_outer_en"][second].any()
    last = passes[-18:]
    assert waves["if_hw_addr"][last].tolist() == [each + 12 for each in positions + positions]
    results = waves["bus_valid"] * (waves["bus_kind"] == OFMAP)
    assert np.nonzero(results)[0].tolist() == last.tolist()
    assert (waves["if_ch_addr"] == 0).all()
    assert waves["cast_mode"][passes].all()


def test_row_0_of_four_has_every_fourth_position() -> None:
    """The document's example on 4 rows: positions 0, 4 and 8 of 9, for each of the two output groups."""
    machine = Machine(fmap_words=600, skip_words=600, pe_rows=4)
    waves = vcd.read(run([CONV_5X5], machine=machine).vcd)
    first = np.nonzero(waves["pe_en"])[0][:6]
    assert waves["Pe_ps_addr"][first].tolist() == [0, 1, 2, 3, 4, 5]
    assert waves["if_hw_addr"][first].tolist() == [0, 6, 12, 0, 6, 12]
    results = (waves["bus_valid"] == 1) & (waves["bus_kind"] == OFMAP)
    assert results.sum() == 18
    assert waves["pe_en"].sum() == 9 * 6


def test_a_fused_word_feeds_psums_back_and_reads_no_pad() -> None:
    """conv + add + ReLU: two passes with Pe_ps_back_en, the multiplier bypassed; the comparison only in ReLU."""
    bench = run(PROGRAMS["fused"])
    waves = vcd.read(bench.vcd)
    back = (waves["Pe_ps_back_en"] & waves["pe_en"]) == 1
    outputs = 7 * 6 * 2
    assert back.sum() == 2 * outputs
    assert (waves["Pe_byp_mul_en"][back] == 1).all()
    assert waves["Pe_maxpool_en"].sum() == outputs
    assert set(waves["instruction"][back]) == {1, 2}
    assert (waves["instruction"][waves["Pe_maxpool_en"] == 1] == 2).all()
    assert (waves["instruction"][waves["operand_valid"] == 1] == 1).all()


def test_a_reshape_reads_a_word_and_writes_its_pieces_one_by_one() -> None:
    """8 of 32 channels a pixel: each word of 16 lanes becomes two pixels of 8 channels; 12 words, 24 results."""
    waves = vcd.read(run(PROGRAMS["channels to pixels"]).vcd)
    assert waves["bus_kind"][193:].tolist() == [IFMAP, OFMAP, OFMAP] * 12
    assert waves["bus_addr"][193::3].tolist() == list(range(12))
    ends = [600 - 1 - pixel for pixel in range(24)]  # the other end of the Fmap DTCM
    assert waves["bus_addr"][194:200:3].tolist() + waves["bus_addr"][195:201:3].tolist() == [
        ends[0],
        ends[2],
        ends[1],
        ends[3],
    ]


def test_a_channel_wise_word_multicasts() -> None:
    waves = vcd.read(run(PROGRAMS["depthwise"]).vcd)
    assert not waves["cast_mode"].any()
    assert not waves["if_ch_addr"].any()


def test_the_shift_scale_is_that_of_pe_0_in_the_pass_that_gives_results() -> None:
    stream = np.zeros((1536, 16), np.int8)
    stream[4, 0], stream[9, 0], stream[4, 1] = -3, -7, -9
    waves = vcd.read(run([CONV_5X5], stream).vcd)
    results = (waves["bus_valid"] == 1) & (waves["bus_kind"] == OFMAP)
    assert waves["Pe_ps_shift_scale"][results].tolist() == [256 - 3] * 9 + [256 - 7] * 9
    assert not waves["Pe_ps_shift_scale"][~results].any()


# 16 PEs and their pads, driven by nothing but the signals.


def replayed(word: Layer, bench: Bench, stream: np.ndarray, fmap: np.ndarray) -> np.ndarray:
    """The memory after the ofmap words that PEs give when every signal is obeyed, cycle by cycle."""
    waves, sets = vcd.read(bench.vcd), bench.hardware.machine.ifmap_pad_sets
    memory = fmap.astype(np.int64).copy()
    weights = stream.astype(np.int64)
    parameters = 5 * word.Zs
    planes = weights[:parameters].reshape(-1, 5, 16)
    bias = sum((planes[:, j] & 0xFF) << (8 * j) for j in range(4)).astype(np.int32).astype(np.int64)
    pads = np.full((sets, 64, 16), 99, np.int64)
    fifo = np.full((16, 16), 99, np.int64)
    psums = np.full((64, 16), 99, np.int64)
    written = entry = 0
    tiles = tile_entries(word)
    loading, side = next(tiles), 0
    for cycle in range(len(waves["state"])):
        now = {name: int(values[cycle]) for name, values in waves.values.items()}
        if now["pe_en"]:
            assert sets == 1 or now["if_set"] != side or not entry, "a set is read while it is loaded"
            at, group = now["Pe_ps_addr"], now["Pe_ps_addr"] // tile_positions(word, now)
            pad = pads[now["if_set"], now["if_hw_addr"]]
            ifmap = pad[now["if_ch_addr"]] if now["cast_mode"] else pad
            before = bias[group] if now["Pe_ps_outer_en"] else psums[at]
            psums[at] = before + ifmap * fifo[now["w_och_gcnt"]]
        if now["bus_valid"] and now["bus_kind"] == OFMAP:
            shift = -planes[group, 4]
            value = psums[at] + (1 << shift >> 1) >> shift
            lanes = np.arange(16) + 16 * group < word.Co
            memory[now["bus_addr"]] = np.clip(value, -128, 127) * lanes
        elif now["bus_valid"]:
            pads[side, loading[entry]] = memory[now["bus_addr"]] if now["bus_kind"] == IFMAP else 0
            entry += 1
            if entry == len(loading):
                loading, side, entry = next(tiles, []), (side + 1) % sets, 0
        if now["weight_valid"] and now["weight_addr"] >= parameters:
            fifo[written % 16] = weights[now["weight_addr"]]
            written += 1
    return memory


def tile_entries(word: Layer) -> Iterator[list[int]]:
    """The pad entries of every sub-ifmap in the order of its words: row by row, x' entries apart."""
    for oy in range(0, word.Ho, word.y):
        for ox in range(0, word.Wo, word.x):
            rows = min(word.y, word.Ho - oy) + word.Hk - 1
            columns = min(word.x, word.Wo - ox) + word.Wk - 1
            for _ in range(0, word.Ci, 16):
                yield [row * word.xi + column for row in range(rows) for column in range(columns)]


def tile_positions(word: Layer, now: dict[str, int]) -> int:
    return min(word.y, word.Ho - now["oy"]) * min(word.x, word.Wo - now["ox"])


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize(
    "word",
    [
        CONV_5X5,
        layer(CONV, (7, 6), 3, 1, 20, 20, (3, 4)),
        layer(CONV, (6, 5), 1, 0, 1, 16, (2, 4)),
        layer(CONV, (1, 1), 1, 0, 40, 40, (1, 1)),
        layer(CONV, (1, 1), 1, 0, 40, 10, (1, 1)),
        layer(CONV, (4, 3), 3, 1, 17, 70, (2, 2)),
        layer(CONV, (5, 4), 1, 0, 40, 20, (3, 4)),
        layer(CONV, (6, 6), 3, 1, 40, 20, (3, 4)),
    ],
)
def test_pes_that_obey_the_signals_compute_the_layer(word: Layer, sets: int) -> None:
    random = np.random.default_rng(word.Ci)
    stream = random.integers(-128, 128, (1536, 16)).astype(np.int8)
    planes = stream[: 5 * word.Zs].reshape(-1, 5, 16)
    planes[:, 2:4], planes[:, 4] = 0, -11
    bench = run([word], stream, replace(MACHINE, ifmap_pad_sets=sets))
    np.testing.assert_array_equal(replayed(word, bench, stream, bench.before), bench.hardware.fmap.values)
    results = bench.hardware.fmap.values[600 - word.Ho * word.Wo * word.Zs :]
    assert len(np.unique(results)) > 5
