"""Cycles and bus words of small layers by the cycle model, against counts by hand.

A layer takes: 1 cycle to decode each of its words, 5 * zs to load bias and scale, zs to fetch the first weights
(convolutions), its first sub-ifmap, its steps, and 3 to drain. A step takes its compute cycles, and the words of
the next sub-ifmap that find no cycle in which nothing is written.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuc.targets.easynpu.machine.isa import EXTENSIONS, Control, Layer, Operand, Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from tests.easynpu.words import (
    ADD,
    BN,
    CONV,
    DWCONV,
    FUSED,
    MAXPOOL,
    RELU,
    STORED,
    counted,
    layer,
)

SKIP = 1


def operand(role: str, memory: int, base: int, width: int, groups: int) -> Operand:
    return Operand(
        opcode=EXTENSIONS[role].opcode, memory=memory, base=base, row=width * groups, pixel=groups, group=1
    )


def pointwise(opcode: int, like: Layer) -> Layer:
    return replace(
        like, opcode=opcode, Hk=1, Wk=1, Ph=0, Pw=0, Hi=like.Ho, Wi=like.Wo, Ci=like.Co, yi=like.y, xi=like.x
    )


def test_the_documents_example_takes_eighteen_passes_for_each_weight_position() -> None:
    """Easynpu, PE controller: 5x5 ifmap, 3x3 kernel, 9 positions, 2 output channels per PE, one input channel."""
    (found,) = counted([layer(CONV, (5, 5), 3, 0, 1, 32, (3, 3))])
    assert found.compute_cycles == 9 * 18
    assert found.cycles == 1 + 10 + 2 + 25 + 9 * 18 + 3
    assert found.bus_words == 25 + 18


def test_a_fully_connected_layer_with_one_psum_takes_two_cycles_a_product() -> None:
    """Reference, section 5: 256 -> 10 takes 523 cycles."""
    word = layer(CONV, (1, 1), 1, 0, 256, 10, (1, 1))
    (found,) = counted([word])
    assert found.cycles == 1 + 6 + 1 + 2 * 256 + 3 == 523
    (ideal,) = counted([word], machine=Machine(psum_write_first=True))
    assert ideal.cycles == 1 + 6 + 1 + 256 + 3
    assert (found.compute_cycles, ideal.compute_cycles) == (512, 256)


def test_a_fully_connected_layer_uses_a_new_weight_in_every_cycle() -> None:
    """32 psums: every weight word serves one cycle."""
    (found,) = counted([layer(CONV, (1, 1), 1, 0, 64, 32, (1, 1))])
    assert found.cycles == 1 + 12 + 1 + 64 * 2 + 3


def test_the_bus_limits_a_1x1_convolution_of_one_channel() -> None:
    """Four tiles of 2 x 2: 4 cycles of products, in all of which results are written, then 4 words are loaded."""
    (found,) = counted([layer(CONV, (4, 4), 1, 0, 1, 16, (2, 2))])
    assert found.cycles == 1 + 6 + 4 + 3 * (4 + 4) + 4 + 3
    assert found.bus_words == 16 + 16
    assert found.compute_cycles == 16


def test_edge_tiles_load_and_compute_only_what_they_need() -> None:
    """3 x 3 outputs in tiles of 2 x 2: 2x2, 2x1, 1x2 and 1x1, the last with one psum, at two cycles a product."""
    (found,) = counted([layer(CONV, (5, 5), 3, 0, 1, 16, (2, 2))])
    assert found.compute_cycles == 9 * (4 + 2 + 2 + 2 * 1)
    assert found.bus_words == 4 * 4 + 4 * 3 + 3 * 4 + 3 * 3 + 9
    # under 36 cycles (4 of them write) 12 words; under 18 (2 write) 12, then 9: no tile waits
    assert found.cycles == 1 + 6 + 16 + 36 + 18 + 18 + 18 + 3


def test_a_tile_waits_for_the_next_ones_larger_sub_ifmap() -> None:
    """2 x 3 outputs of 1x1, tiles of 1 x 2, 8 output groups... one input channel: 16 cycles, all of them write."""
    (found,) = counted([layer(CONV, (2, 3), 1, 0, 1, 128, (1, 2))])
    steps = [(16, 1), (8, 2), (16, 1), (8, 0)]  # compute cycles, words of the next tile
    assert found.cycles == 1 + 8 * 6 + 2 + sum(cycles + words for cycles, words in steps) + 3


def test_padding_takes_the_bus_and_reads_no_memory() -> None:
    """Depthwise 3x3 on 2x2 maps of 32 channels: 4 of 16 entries lie in the map, once for each 16 channels."""
    (found,) = counted([layer(DWCONV, (2, 2), 3, 1, 32, 32, (2, 2))])
    assert found.bus_words == 2 * (4 + 12 + 4)
    # 9 passes of 4 cycles, the last of which writes: 32 free cycles for 16 entries
    assert found.cycles == 1 + 10 + 16 + 2 * 36 + 3


def test_pooling_waits_for_the_bus() -> None:
    """Reference, section 5: the 2x2 pool of 16x16 maps loads four words for every one that it writes."""
    word = Layer(
        opcode=MAXPOOL, Sh=2, Sw=2, Hk=2, Wk=2, Hi=16, Wi=16, Ci=16, Ho=8, Wo=8, Co=16, y=1, x=2, yi=2, xi=4
    )
    (found,) = counted([word])
    assert found.bus_words == 256 + 64
    assert found.cycles == 1 + 5 + 8 + 31 * (8 + 2) + 8 + 3


def test_a_fused_word_takes_one_pass_and_the_result_leaves_in_it() -> None:
    head = layer(CONV | FUSED, (4, 4), 3, 1, 16, 16, (4, 4))
    (found,) = counted([head, pointwise(RELU, head)])
    assert found.cycles == 2 + 6 + 36 + 144 * 16 + 16 + 3
    assert (found.bus_words, found.compute_cycles) == (36 + 16, 145 * 16)


def test_a_reshape_that_keeps_pixels_whole_is_free_behind_another_word() -> None:
    """Rows and columns exchanged: every result is one word elsewhere. One more word, and its divisions."""
    head = layer(CONV | FUSED, (4, 4), 3, 1, 16, 16, (4, 4))
    (found,) = counted([head, Reshape(perm=2, Hi=4, Wi=4, Ci=16, Ho=4, Wo=4, Co=16)])
    assert found.cycles == 2 + 192 + 6 + 36 + 144 * 16 + 3
    assert (found.bus_words, found.compute_cycles) == (36 + 16, 144 * 16)


def test_a_result_whose_channels_become_pixels_is_written_once_for_each_pixel() -> None:
    """16 channels to 2 x 2 pixels of 4: four words for each of 16 positions, in the last pass."""
    head = layer(CONV | FUSED, (4, 4), 3, 1, 16, 16, (4, 4))
    word = Reshape(
        Hi=4, Wi=4, Ci=16, Ho=8, Wo=8, Co=4, split_c=4, onto_c=1, insert_c=1, split_h=2, onto_h=2, insert_h=1
    )
    (found,) = counted([head, word])
    assert found.cycles == 2 + 192 + 6 + 36 + 143 * 16 + 4 * 16 + 3
    assert (found.bus_words, found.compute_cycles) == (36 + 64, 144 * 16)


def test_a_second_operand_in_the_skip_dtcm_is_free() -> None:
    """Elementwise: one word in and one out for every result, the operand on a path of its own."""
    word = pointwise(ADD, layer(CONV, (4, 4), 1, 0, 16, 16, (2, 2)))
    (found,) = counted([word])
    assert found.cycles == 1 + 5 + 4 + 3 * (4 + 4) + 4 + 3
    assert found.bus_words == 32


@pytest.mark.parametrize(
    ("source", "second", "result", "step", "last"),
    [
        (0, 0, 0, 3 * 4, 2 * 4),  # three accesses to one memory
        (0, 0, 1, 2 * 4, 4),  # the operand blocks the load, the result blocks the bus in the same cycle
        (1, 0, 0, 2 * 4, 2 * 4),  # operand then result; the load takes the other memory in the operand's cycle
        (0, 1, 0, 2 * 4, 4),  # the document's case
        (1, 1, 1, 3 * 4, 2 * 4),
    ],
)
def test_a_memory_serves_one_access_a_cycle(source: int, second: int, result: int, step: int, last: int) -> None:
    word = pointwise(ADD, layer(CONV, (4, 4), 1, 0, 16, 16, (2, 2)))
    prefixes = [
        operand("src", source, 0, 4, 1),
        operand("opb", second, 100, 4, 1),
        operand("dst", result, 200, 4, 1),
    ]
    (found,) = counted([*prefixes, word])
    assert found.cycles == 4 + 5 + 4 + 3 * step + last + 3


def test_a_stored_copy_and_a_kept_operand_share_the_skip_dtcm() -> None:
    """conv + add.stored: in the add's pass every position reads the skip DTCM and then writes it."""
    head = layer(CONV | FUSED, (4, 4), 3, 1, 16, 16, (4, 4))
    (plain,) = counted([head, pointwise(ADD, head)])
    (stored,) = counted([head, pointwise(ADD | STORED, head)])
    assert plain.cycles == 2 + 6 + 5 + 36 + 144 * 16 + 16 + 3
    assert stored.cycles - plain.cycles == 16
    assert stored.compute_cycles == plain.compute_cycles


def test_the_bubble_of_a_single_psum_follows_its_operand_and_result() -> None:
    """One pixel: the sum's operand, then its result and copy, then the bubble; two cycles for the ReLU behind.

    The ReLU's pass begins six cycles after the sum, whose two cycles leave four; with a write-first port five.
    """
    head = pointwise(ADD | FUSED | STORED, layer(CONV, (1, 1), 1, 0, 16, 16, (1, 1)))
    (found,) = counted([head, replace(head, opcode=RELU)])
    assert found.cycles == 2 + 5 + 1 + 3 + 4 + 2 + 3
    (ideal,) = counted([head, replace(head, opcode=RELU)], machine=Machine(psum_write_first=True))
    assert ideal.cycles == 2 + 5 + 1 + 2 + 5 + 1 + 3


def test_kept_psums_take_the_steps_of_both_words_for_every_tile() -> None:
    """Two words of 16 channels, tiles 4x4 and 4x4: each word's sub-ifmap is loaded under the other's products."""
    first = layer(CONV | FUSED, (8, 4), 3, 1, 16, 16, (4, 4))
    keep = Control(opcode=EXTENSIONS["ctl"].opcode, keep_psum=1)
    words = [operand("src", SKIP, 0, 4, 1), keep, first, replace(first, opcode=CONV)]
    (found,) = counted(words)
    assert found.compute_cycles == 2 * 2 * 144 * 16
    assert found.cycles == 4 + 2 * 5 + 1 + 36 + found.compute_cycles + 3


def test_channel_wise_words_that_keep_psums_alternate_for_every_16_channels() -> None:
    first = layer(DWCONV | FUSED, (4, 4), 3, 1, 32, 32, (4, 4))
    keep = Control(opcode=EXTENSIONS["ctl"].opcode, keep_psum=1)
    (found,) = counted([operand("src", SKIP, 0, 4, 2), keep, first, replace(first, opcode=DWCONV)])
    assert found.compute_cycles == 2 * 2 * 9 * 16
    assert found.cycles == 4 + 2 * 10 + 36 + found.compute_cycles + 3


def test_a_fused_batch_normalisation_streams_its_weights_once_a_tile() -> None:
    head = layer(CONV | FUSED, (8, 4), 1, 0, 16, 32, (4, 4))
    (found,) = counted([head, pointwise(BN, head)])
    assert found.cycles == 2 + 10 + 10 + 2 + 16 + 2 * (16 + 1) * 32 + 3


def test_four_rows_of_pes_take_four_positions_a_cycle_and_write_one() -> None:
    """4x4 outputs: 4 cycles a pass, 16 in the last one, whose 16 results leave over one bus."""
    machine = Machine(fmap_words=600, skip_words=600, pe_rows=4)
    (found,) = counted([layer(CONV, (4, 4), 3, 1, 16, 16, (4, 4))], machine=machine)
    assert found.compute_cycles == 144 * 4
    assert found.cycles == 1 + 6 + 36 + 143 * 4 + 16 + 3


def test_rows_of_pes_with_a_rest_take_the_cycles_of_the_fullest() -> None:
    """3x3 outputs and 2 output groups on 4 rows: 3 cycles for each group of 9 positions."""
    machine = Machine(fmap_words=600, skip_words=600, pe_rows=4)
    (found,) = counted([layer(CONV, (5, 5), 3, 0, 1, 32, (3, 3))], machine=machine)
    assert found.compute_cycles == 9 * 2 * 3
    assert found.cycles == 1 + 10 + 2 + 25 + 8 * 6 + 18 + 3


def test_a_tile_whose_psums_lie_in_different_rows_has_bubbles() -> None:
    """2x2 outputs on 4 rows: every PE has one psum."""
    machine = Machine(fmap_words=600, skip_words=600, pe_rows=4)
    (found,) = counted([layer(CONV, (2, 2), 1, 0, 16, 16, (2, 2))], machine=machine)
    assert found.compute_cycles == 16 * 2
    assert found.cycles == 1 + 6 + 4 + 15 * 2 + 4 + 3


ONE_SET = Machine(fmap_words=600, skip_words=600, ifmap_pad_sets=1)


def test_with_one_set_the_loader_follows_the_reader_through_the_last_pass() -> None:
    """1x1, 32 channels, 16 positions: word n comes when position n + 1 is read, the last one behind the step."""
    (found,) = counted([layer(CONV, (4, 4), 1, 0, 32, 16, (4, 4))], machine=ONE_SET)
    assert found.cycles == 1 + 6 + 16 + 256 + 1 + 256 + 3
    assert found.compute_cycles == 512


def test_with_one_set_entries_are_read_again_for_every_ozi_but_the_last() -> None:
    (found,) = counted([layer(CONV, (4, 4), 1, 0, 32, 32, (4, 4))], machine=ONE_SET)
    assert found.cycles == 1 + 12 + 16 + 512 + 1 + 512 + 3


def test_with_one_set_every_kernel_position_frees_the_entries_before_its_first() -> None:
    """The document's 5x5 map, 32 channels. Taps begin at entries 0 1 2, 5 6 7, 10 11 12, and take 9 cycles each.

    Before the last tap words 0..10 are loaded, in its first cycle word 11, then one for each position that is read
    before the last one: entries 12 13 14, 17 18 19, 22 23 free words 12..19 in turn. Five come behind the step.
    """
    (found,) = counted([layer(CONV, (5, 5), 3, 0, 32, 16, (3, 3))], machine=ONE_SET)
    assert found.cycles == 1 + 6 + 25 + 16 * 81 + 5 + 16 * 81 + 3


def test_with_one_set_results_keep_the_last_tile_s_words_off_the_bus() -> None:
    """Depthwise: in the last pass every cycle writes, so 14 of 25 words come behind the step."""
    (found,) = counted([layer(DWCONV, (5, 5), 3, 0, 32, 32, (3, 3))], machine=ONE_SET)
    assert found.cycles == 1 + 10 + 25 + 81 + 14 + 81 + 3


def test_with_one_set_a_fused_word_leaves_the_last_kernel_position_to_the_loader() -> None:
    """Two tiles of 3 x 2 (20 words of 4 a row): 9 words before the last tap, 6 under it, none under the ReLU."""
    head = layer(CONV | FUSED, (5, 6), 3, 0, 1, 16, (3, 2))
    (found,) = counted([head, pointwise(RELU, head)], machine=ONE_SET)
    assert found.cycles == 2 + 6 + 20 + 60 + 5 + 60 + 3


def test_with_one_set_an_edge_tile_s_words_skip_the_entries_that_it_does_not_need() -> None:
    """Tiles of 3 x 2 and 3 x 1: of 5 rows of 3 words, 4 entries apart, 7 lie below entry 9."""
    (found,) = counted([layer(CONV, (5, 5), 3, 0, 1, 16, (3, 2))], machine=ONE_SET)
    # the last tap but one begins at entry 9: 0 1 2, 4 5 6 and 8 are free under it; the last one writes
    assert found.cycles == 1 + 6 + 20 + 54 + (15 - 7) + 27 + 3


def test_with_one_set_a_strided_1x1_word_frees_what_it_skips() -> None:
    """Stride 2, 32 channels, 2x2 positions in a pad of 3x3: entries 0 2, 6 8 are read, one after the other.

    Under the reads of 2, 6 and 8 a word each is loaded; six come behind the step.
    """
    word = replace(layer(CONV, (3, 3), 1, 0, 32, 16, (2, 2)), Sh=2, Sw=2, Ho=2, Wo=2, yi=3, xi=3)
    (found,) = counted([word], machine=ONE_SET)
    assert found.cycles == 1 + 6 + 9 + 16 * 4 + 6 + 16 * 4 + 3


def test_with_one_set_the_entries_of_a_batch_are_free_behind_it() -> None:
    """Four rows of PEs, 1x1, 32 channels: batches of 4 positions free 0, 4, 8 and 12 entries; one word a cycle."""
    machine = replace(ONE_SET, pe_rows=4)
    (found,) = counted([layer(CONV, (4, 4), 1, 0, 32, 16, (4, 4))], machine=machine)
    assert found.cycles == 1 + 6 + 16 + 16 * 4 + (16 - 3) + 15 * 4 + 16 + 3


def test_every_layer_of_a_program_is_counted() -> None:
    first = layer(CONV, (4, 4), 3, 1, 16, 16, (4, 4))
    second = layer(MAXPOOL, (4, 4), 2, 0, 16, 16, (3, 3))
    found = counted([first, second])
    assert len(found) == 2
    assert found[1].cycles == 1 + 5 + 16 + 4 * 9 + 3
