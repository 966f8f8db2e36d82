"""The act and prelu words on blocks written by hand, byte by byte, as docs/decisions.md defines them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.layers.tiling import best_tile
from npuc.targets.easynpu.machine.isa import FUSED, Layer, words_to_bytes
from npuc.targets.easynpu.machine.listing import assemble, disassemble
from npuc.targets.easynpu.machine.memory import low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import Followers, parameter_words
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment, TensorMove
from npuc.targets.easynpu.simulate.arithmetic import activation, apply_slopes
from npuc.targets.easynpu.simulate.simulator import Simulator

# |x| for x < -4, 0 up to 3, then 2 x - 7, of x / 1: three segments, shift 1 (a = slope * 2, b = offset * 2)
STARTS, SLOPES, OFFSETS, SHIFT = (-128, -4, 4), (-2, 0, 4), (0, 0, -14), 1


def table_block(
    starts: Sequence[int] = STARTS,
    slopes: Sequence[int] = SLOPES,
    offsets: Sequence[int] = OFFSETS,
    scales: Sequence[int] = (-SHIFT,) * 16,
) -> bytes:
    """Seven words: four byte planes of b, then a, starts and the shift scale; the last segment fills the lanes."""
    full = [(*values, *(values[-1],) * (16 - len(values))) for values in (starts, slopes, offsets)]
    b = [struct.pack("<i", value) for value in full[2]]
    planes = [bytes(each[j] for each in b) for j in range(4)]
    return b"".join([*planes, *(struct.pack("<16b", *each) for each in (full[1], full[0], scales))])


def words(block: bytes) -> Array:
    return np.frombuffer(block, np.int8).reshape(-1, 16)


def expected(x: int) -> int:
    y = -x if x < -4 else 0 if x < 4 else 2 * x - 7
    return min(y, 127)


EVERY = np.arange(-128, 128).astype(np.int8)


def test_a_table_of_three_segments_is_the_function_it_was_written_for() -> None:
    assert activation(words(table_block()), EVERY).tolist() == [expected(x) for x in range(-128, 128)]


def test_half_rounds_up_on_both_sides_of_zero() -> None:
    block = table_block((-128,), (1,), (0,), (-1,) * 16)
    x = np.array([-3, -2, -1, 0, 1, 2, 3], np.int8)
    assert activation(words(block), x).tolist() == [-1, -1, 0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("offset", "scale", "result"), [(0x01020304, -24, 1), (-(1 << 30), -24, -64), (1 << 20, 0, 127)]
)
def test_offsets_have_four_bytes_and_results_saturate(offset: int, scale: int, result: int) -> None:
    block = table_block((-128,), (0,), (offset,), (scale,) * 16)
    assert set(activation(words(block), EVERY).tolist()) == {result}


@pytest.mark.parametrize(("block", "message"), [
    (table_block(starts=(-127, 0, 4)), "start at"), (table_block(starts=(-128, 4, 0)), "start at"),
    (table_block(scales=(-1,) * 15 + (-2,)), "shift scales"), (table_block(scales=(1,) * 16), "shift scales"),
    (table_block(scales=(-32,) * 16), "shift scales"),
    (table_block(slopes=(127, 0, 0), offsets=(-(1 << 31), 0, 0)), "accumulator"),
])  # fmt: skip
def test_a_block_that_is_no_table_is_refused(block: bytes, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        activation(words(block), EVERY)


def test_slopes_depend_on_channel_and_sign() -> None:
    """Channel 0: x and x / 4; channel 1: 3 x / 2 and -x; channel 16 (the second group): 2 x by a left shift."""
    planes = np.zeros((2, 4, 16), np.int8)  # positive factor, scale, negative factor, scale
    planes[0, :, 0] = 64, -6, 1, -2
    planes[0, :, 1] = 96, -6, -64, -6
    planes[1, :, 0] = 1, 1, 1, 1
    x = np.repeat(EVERY[:, None], 17, axis=1)
    found = apply_slopes(planes.reshape(8, 16), x).astype(int)
    for row, value in enumerate(range(-128, 128)):
        first = value if value >= 0 else (value + 2) // 4
        second = (3 * value + 1) // 2 if value >= 0 else -value
        third = 2 * value
        saturated = [min(max(each, -128), 127) for each in (first, second, third)]
        assert found[row, [0, 1, 16]].tolist() == saturated


# A 1x1 convolution from 1 to 1 channel that doubles, then the table: 3 pixels.
DOUBLING = bytes(5 * 16) + bytes([2] + [0] * 15)


def run(program: Sequence[Layer], stream: bytes, x: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """The map (1, 1, 1, W) that a program leaves, and the result of every layer word."""
    machine = Machine(fmap_words=16, skip_words=4, weight_words=16)
    files = {"itcm.bin": words_to_bytes(program), "weight.bin": stream}
    images = tuple(
        ImageLoad(memory, 0, f"{memory}.bin", 0, len(files[f"{memory}.bin"]) // 16)
        for memory in ("itcm", "weight")
    )
    shape, width = (1, 1, 1, len(x)), len(x)
    loads = (TensorMove("x", shape, low_end("fmap", 0, 1, width), 1, 1, width),)
    simulator = Simulator(machine, files)
    state = simulator.state(1)
    found: list[list[int]] = []
    tensors = {"x": np.array(x, np.int8).reshape(1, *shape)}
    simulator.run(
        Segment(images, loads, len(program), ()), state, tensors, lambda _, y: found.append(y.ravel().tolist())
    )
    return [int(state.fmap[0, -1 - at, 0]) for at in range(width)], found


def pixels(mnemonic: str, width: int, flags: int = 0) -> Layer:
    word = assemble(f"{mnemonic} x={width} xi={width} Wo={width} Wi={width}")
    assert isinstance(word, Layer)
    return replace(word, opcode=word.opcode | flags)


def test_an_act_word_streams_its_table_and_writes_to_the_other_end() -> None:
    x = [-128, -5, -4, 3, 4, 67]
    result, _ = run([pixels("act", 6)], table_block(), x)
    assert result == [expected(value) for value in x]


def test_a_fused_act_word_continues_on_the_int8_of_the_convolution() -> None:
    x = [-100, -3, -2, 1, 2, 30]
    program = [pixels("conv", 6, FUSED), pixels("act", 6)]
    result, stages = run(program, DOUBLING + table_block(), x)
    doubled = [-128, -6, -4, 2, 4, 60]
    assert stages == [doubled, [expected(value) for value in doubled]]
    assert result == stages[1]


def test_the_words_have_the_documents_opcode_and_a_free_one() -> None:
    act, prelu = assemble("act.fused.stored"), assemble("prelu Co=32 Ci=32 Zs=2")
    assert isinstance(act, Layer)
    assert isinstance(prelu, Layer)
    assert (act.opcode, prelu.opcode) == (0b011_010_10, 0b000_111_10)
    assert disassemble(act) == "act.fused.stored"
    assert disassemble(prelu) == "prelu Co=32 Ci=32 Zs=2"


def test_the_words_of_the_blocks_are_loaded_before_the_layer_runs() -> None:
    """7 words for a table whatever the channels, 4 a group for slopes, 5 a group for a bias-scale block."""
    wide = {"Ho": 8, "Wo": 8, "Hi": 8, "Wi": 8, "Co": 40, "Ci": 40, "Zs": 3}
    layers = [Layer(opcode=opcode, **wide) for opcode in (0x0A, 0x1E, 0x02)]
    assert [parameter_words(layer) for layer in layers] == [7, 12, 15]
    cycles = [best_tile([layer], Machine(), Followers())[1].cycles for layer in layers[:2]]
    assert cycles[1] - cycles[0] == 12 - 7
