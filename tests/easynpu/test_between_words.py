"""What docs/easynpu-isa.md says of words together; expected values by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import EXTENSIONS, Control, Instruction, Operand, words_to_bytes
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment
from npuc.targets.easynpu.simulate.simulator import Simulator
from tests.easynpu.words import CONV, CONV_RELU, DWCONV, FUSED, MACHINE, RELU, counted, layer

POINT = layer(CONV, (2, 2), 1, 0, 16, 16, (2, 2))
KEEP = Control(opcode=EXTENSIONS["ctl"].opcode, keep_psum=1)


def run(words: Sequence[Instruction], stream: Array, fmap: Array) -> Array:
    """The Fmap DTCM (600, 16) behind the words."""
    files = {"itcm.bin": words_to_bytes(words), "weight.bin": stream.astype(np.int8).tobytes()}
    images = (
        ImageLoad("itcm", 0, "itcm.bin", 0, len(words)),
        ImageLoad("weight", 0, "weight.bin", 0, len(stream)),
    )
    simulator = Simulator(MACHINE, files)
    state = simulator.state(1)
    state.fmap[0] = fmap
    simulator.run(Segment(images, (), len(words), ()), state, {})
    return state.fmap[0]


def diagonal(value: int, *, bias: int = 0, shift: int = 0) -> Array:
    """The block of a 1x1 word of 16 channels that multiplies each by a value: 5 words, then 16 of weights."""
    block = np.zeros((21, 16), np.int64)
    for byte in range(4):
        block[byte] = (bias >> (8 * byte) & 0xFF) - 256 * (bias >> (8 * byte) & 0x80 == 0x80)
    block[4] = -shift
    block[5:] = value * np.eye(16, dtype=np.int64)
    return block


def filled(*values: int) -> Array:
    """A memory whose first words hold these values in all lanes, and 99 behind them."""
    memory = np.full((600, 16), 99, np.int8)
    memory[: len(values)] = np.array(values)[:, None]
    return memory


def expect(words: Sequence[Instruction], stream: Array, addresses: Sequence[int], values: Sequence[int]) -> None:
    memory = run(words, stream, filled(10, -20, 30, -40))
    assert memory[list(addresses)].tolist() == [[value] * 16 for value in values]


def test_a_result_goes_to_the_other_end_and_is_read_from_there() -> None:
    stream = np.concatenate([diagonal(2), diagonal(3)])
    expect([POINT, POINT], stream, [599, 598, 597, 596], [20, -40, 60, -80])
    expect([POINT, POINT], stream, [0, 1, 2, 3], [60, -120, 127, -128])


def test_an_explicit_destination_leaves_the_current_map_where_it_is() -> None:
    """Even in the Fmap DTCM: the next word reads the first map again, and writes to the high end."""
    dst = Operand(opcode=EXTENSIONS["dst"].opcode, memory=0, base=100, row=2, pixel=1, group=1)
    stream = np.concatenate([diagonal(2), diagonal(3)])
    expect([dst, POINT, POINT], stream, [100, 101, 102, 103], [20, -40, 60, -80])
    expect([dst, POINT, POINT], stream, [599, 598, 597, 596], [30, -60, 90, -120])


def test_an_explicit_source_does_not_change_which_end_is_written() -> None:
    src = Operand(opcode=EXTENSIONS["src"].opcode, memory=0, base=0, row=2, pixel=1, group=1)
    stream = np.concatenate([diagonal(2), diagonal(3)])
    # the first word writes the high end; the second reads the low one by `src`, and would write there
    later = replace(POINT, Ho=1, Wo=1, y=1, x=1, Hi=1, Wi=1, yi=1, xi=1)
    with pytest.raises(ArtefactError, match="writes over another map of its chain"):
        run([POINT, src, later], stream, filled(1))
    dst = Operand(opcode=EXTENSIONS["dst"].opcode, memory=0, base=200, row=2, pixel=1, group=1)
    expect([POINT, src, dst, later, POINT], np.concatenate([stream, diagonal(1)]), [200, 0, 1], [30, 20, -40])


def test_kept_psums_take_bias_of_the_first_word_and_scale_and_relu_of_the_last() -> None:
    """(10 * 2 + 10 * 3 + 5 + 1/2) >> 1, for each value; the first word's shift of 7 and its ReLU do nothing."""
    stream = np.concatenate([diagonal(2, bias=5, shift=7), diagonal(3, shift=1)])
    first, last = replace(POINT, opcode=CONV_RELU | FUSED), POINT
    expect([KEEP, first, last], stream, [599, 598, 597, 596], [28, -47, 78, -97])
    relu = replace(POINT, opcode=CONV_RELU)
    expect([KEEP, replace(first, opcode=CONV | FUSED), relu], stream, [599, 598, 597, 596], [28, 0, 78, 0])


def test_a_bias_of_a_word_that_continues_is_refused() -> None:
    stream = np.concatenate([diagonal(2), diagonal(3, bias=1)])
    with pytest.raises(ArtefactError, match=r"a bias where psums are kept \(instruction 2\)"):
        run([KEEP, replace(POINT, opcode=CONV | FUSED), POINT], stream, filled(1, 2, 3, 4))


def test_the_weight_stream_goes_on_where_it_was_set() -> None:
    stream = np.concatenate([diagonal(9), diagonal(2), diagonal(3)])
    dst = Operand(opcode=EXTENSIONS["dst"].opcode, memory=0, base=100, row=2, pixel=1, group=1)
    jump = Control(opcode=EXTENSIONS["ctl"].opcode, set_weights=1, weights=21)
    expect([jump, dst, POINT, POINT], stream, [100, 599], [20, 30])


def test_channel_wise_words_need_psums_for_their_positions_only() -> None:
    """80 channels, Zs = 5, 4 x 4 positions: 16 psums, where a dense word of as many outputs would need 80."""
    word = layer(DWCONV, (4, 4), 1, 0, 80, 80, (4, 4))
    counted([word], machine=Machine(fmap_words=600, skip_words=600, psum_entries=16))
    with pytest.raises(ArtefactError, match="80 psums of 16"):
        counted([replace(word, opcode=CONV)], machine=Machine(fmap_words=600, psum_entries=16))


def test_channel_wise_psums_stay_from_chain_to_chain_for_16_channels_at_most() -> None:
    take = Control(opcode=EXTENSIONS["ctl"].opcode, take_psum=1)
    narrow = layer(DWCONV, (2, 2), 1, 0, 16, 16, (2, 2))
    counted([KEEP, narrow, take, narrow])
    wide = layer(DWCONV, (2, 2), 1, 0, 17, 17, (2, 2))
    with pytest.raises(ArtefactError, match="by a word of several tiles"):
        counted([KEEP, wide, take, wide])
    with pytest.raises(ArtefactError, match="a word that does not accumulate"):
        counted([KEEP, replace(narrow, opcode=RELU), take, narrow])
