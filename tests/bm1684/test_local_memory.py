"""Every worked example of the tensor layouts, by hand from the document's text: X = 4 NPUs of S = 1024 bytes."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.errors import DoesNotFit
from npuc.ir import Array
from npuc.targets.bm1684.machine import local_memory as okk
from npuc.targets.bm1684.machine.local_memory import Dim4, empty_memory, pack, pack_matrix
from npuc.targets.bm1684.machine.parameters import Machine, load

FOUR = Machine(npus=4, local_bytes=1024)
BIG = Machine(npus=4, local_bytes=4096)
SHAPE = Dim4(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("address", "npu", "offset"), [(340, 0, 340), (1472, 1, 448), (2300, 2, 252), (3088, 3, 16)]
)
def test_the_four_addresses_of_the_first_figure(address: int, npu: int, offset: int) -> None:
    assert okk.position(address, FOUR) == (npu, offset)
    assert okk.address(npu, offset, FOUR) == address
    assert okk.okk_start_npu_index(address, FOUR) == npu


@pytest.mark.parametrize("address", [-1, 4096])
def test_an_address_outside_0_to_xs_minus_1_is_refused(address: int) -> None:
    with pytest.raises(DoesNotFit, match="lies outside"):
        okk.position(address, FOUR)


@pytest.mark.parametrize(("npu", "offset"), [(4, 0), (-1, 0), (0, 1024), (0, -4)])
def test_an_npu_or_offset_that_is_not_there_has_no_address(npu: int, offset: int) -> None:
    with pytest.raises(DoesNotFit, match="lies outside"):
        okk.address(npu, offset, FOUR)


# Scatter Features to Different NPUs, with X = 4: (C, Q, channels per NPU, NPU of each channel, empty blocks)
SCATTERED = [
    (3, 0, 1, [0, 1, 2], [(3, 0)]),
    (3, 1, 1, [1, 2, 3], [(0, 0)]),
    (6, 0, 2, [0, 1, 2, 3, 0, 1], [(2, 1), (3, 1)]),
    (6, 3, 3, [3, 0, 1, 2, 3, 0], [(0, 0), (1, 0), (2, 0), (1, 2), (2, 2), (3, 2)]),
]


@pytest.mark.parametrize(("C", "Q", "per_npu", "npus", "empty"), SCATTERED)
def test_features_are_scattered_as_in_the_figures(
    C: int, Q: int, per_npu: int, npus: list[int], empty: list[tuple[int, int]]
) -> None:
    assert okk.okk_channle_num_per_npu(Q, C, FOUR) == per_npu
    assert [okk.block(c, Q, FOUR).npu for c in range(C)] == npus
    assert okk.empty_blocks(Q, C, FOUR) == empty


def test_channels_share_an_npu_if_and_only_if_they_are_congruent_modulo_x() -> None:
    npu = [okk.block(c, 3, FOUR).npu for c in range(12)]
    assert all((npu[a] == npu[b]) == (a % 4 == b % 4) for a in range(12) for b in range(12))


def _scalar_positions(
    shape: Dim4, stride: Dim4, Q: int, machine: Machine
) -> dict[tuple[int, ...], tuple[int, int]]:
    """(NPU, element offset) of every element by the document's four definitions, one element at a time."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for n, c, h, w in np.ndindex(*shape):
        npu, row = (Q + c) % machine.npus, (Q + c) // machine.npus
        found[n, c, h, w] = (npu, n * stride.n + row * stride.c + h * stride.h + w * stride.w)
    return found


def _stored(shape: Dim4, stride: Dim4, Q: int) -> Array:
    memory = empty_memory(BIG)
    tensor = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    pack(memory, okk.address(Q, 0, BIG), stride, tensor, BIG)
    return memory.view(np.float32)


# Shape, strides and start NPU of the figures of Strides in Local Memory and of the two layouts
FIGURES = [
    (Dim4(2, 5, 3, 4), Dim4(120, 56, 16, 2), 0),
    (Dim4(2, 3, 1, 10), Dim4(120, 0, 0, 2), 1),
    (SHAPE, Dim4(32, 32, 5, 1), 0),
    (SHAPE, Dim4(64, 32, 5, 1), 2),
    (SHAPE, Dim4(20, 20, 5, 1), 0),
    (SHAPE, Dim4(40, 20, 5, 1), 2),
]


@pytest.mark.parametrize(("shape", "stride", "Q"), FIGURES)
def test_every_element_of_the_figures_lies_where_the_strides_say(shape: Dim4, stride: Dim4, Q: int) -> None:
    memory, positions = _stored(shape, stride, Q), _scalar_positions(shape, stride, Q, BIG)
    assert [memory[positions[index]] for index in np.ndindex(*shape)] == list(range(1, int(np.prod(shape)) + 1))
    assert np.count_nonzero(memory) == np.prod(shape)


def test_some_elements_of_the_strided_figure_by_hand() -> None:
    memory = _stored(Dim4(2, 5, 3, 4), Dim4(120, 56, 16, 2), 0)
    assert memory[0, 2] == 2  # (0, 0, 0, 1): W stride 2
    assert memory[0, 16] == 5  # (0, 0, 1, 0): H stride 16
    assert memory[0, 56] == 49  # (0, 4, 0, 0) is X channels behind (0, 0, 0, 0): C stride 56
    assert memory[3, 120] == 97  # (1, 3, 0, 0) in NPU 3: N stride 120


def test_h_and_c_strides_make_no_sense_with_one_row_and_one_channel_per_npu() -> None:
    assert okk.local_strides_used(Dim4(2, 3, 1, 10), 1, FOUR) == (True, False, False, True)
    assert (_stored(Dim4(2, 3, 1, 10), Dim4(120, 7, 999, 2), 1) == _stored(*FIGURES[1])).all()


def test_which_strides_make_sense() -> None:
    assert okk.local_strides_used(Dim4(1, 5, 3, 1), 0, FOUR) == (False, True, True, False)
    assert okk.local_strides_used(Dim4(1, 2, 1, 1), 3, FOUR) == (False, True, False, False)
    assert okk.system_strides_used(Dim4(1, 2, 1, 4)) == (False, True, False, True)
    assert okk.system_strides_used(Dim4(2, 1, 3, 1)) == (True, False, True, False)


def test_continuous_strides() -> None:
    assert okk.okk_continuous_stride(SHAPE) == (60, 20, 5, 1)


@pytest.mark.parametrize(("Q", "strides"), [(0, (32, 32, 5, 1)), (2, (64, 32, 5, 1))])
def test_aligned_strides_of_the_figures(Q: int, strides: tuple[int, ...]) -> None:
    assert okk.okk_128_byte_aligned_stride_for_32bit(Q, SHAPE, FOUR) == strides


def test_aligned_strides_of_narrow_types() -> None:
    assert okk.okk_128_byte_aligned_stride_for_16bit(0, SHAPE, FOUR) == (64, 64, 5, 1)
    assert okk.okk_128_byte_aligned_stride_for_8bit(2, SHAPE, FOUR) == (256, 128, 5, 1)
    assert okk.okk_128_byte_aligned_stride_for_8bit(0, Dim4(1, 1, 3, 43), FOUR) == (256, 256, 43, 1)


@pytest.mark.parametrize(("Q", "strides"), [(0, (20, 20, 5, 1)), (2, (40, 20, 5, 1))])
def test_compact_strides_of_the_figures(Q: int, strides: tuple[int, ...]) -> None:
    assert okk.okk_compact_stride(Q, SHAPE, FOUR) == strides


# The 2-by-40 matrix: W -> (channels, blocks of 4 bytes in each NPU for a row, columns of row 0 in each NPU)
MATRIX = {
    40: (1, 64, [range(40), (), (), ()]),
    20: (2, 32, [range(20), range(20, 40), (), ()]),
    10: (4, 32, [range(10), range(10, 20), range(20, 30), range(30, 40)]),
    8: (5, 64, [[*range(8), *range(32, 40)], range(8, 16), range(16, 24), range(24, 32)]),
    15: (3, 32, [range(15), range(15, 30), range(30, 40), ()]),
    6: (7, 64, [[*range(6), *range(24, 30)], [*range(6, 12), *range(30, 36)], [*range(12, 18), *range(36, 40)],
                range(18, 24)]),
}  # fmt: skip


@pytest.mark.parametrize("W", MATRIX)
def test_the_2_by_40_matrix_as_the_document_discusses_it(W: int) -> None:
    channels, blocks, columns = MATRIX[W]
    assert okk.matrix_shape(2, 40, W) == (2, channels, 1, W)
    assert okk.matrix_bytes(2, 40, W, 0, FOUR) == 2 * blocks * 4
    memory = empty_memory(FOUR)
    pack_matrix(memory, 0, W, np.arange(1, 81, dtype=np.float32).reshape(2, 40), FOUR)
    rows = memory.view(np.float32)[:, : 2 * blocks].reshape(4, 2, blocks)
    for npu, expected in enumerate(columns):
        for row in range(2):
            stored = rows[npu, row]
            assert stored[stored > 0].tolist() == [40 * row + column + 1 for column in expected]


def test_the_second_channel_of_w_8_starts_behind_32_blocks() -> None:
    memory = empty_memory(FOUR)
    pack_matrix(memory, 0, 8, np.arange(1, 81, dtype=np.float32).reshape(2, 40), FOUR)
    assert memory.view(np.float32)[0, 32] == 33


@pytest.mark.parametrize("W", [0, 41])
def test_w_outside_1_to_m_is_refused(W: int) -> None:
    with pytest.raises(DoesNotFit, match="40 columns"):
        okk.matrix_shape(2, 40, W)


def test_4n_mode_of_six_batches_has_two_dummy_elements() -> None:
    tensor = np.arange(1, 601, dtype=np.int16).reshape(6, 5, 4, 5).astype(np.uint8)
    elements = okk.to_4n_mode(tensor)
    assert elements.shape == (2, 5, 4, 5, 4)
    assert elements[1, 0, 0, 0].tolist() == [tensor[4, 0, 0, 0], tensor[5, 0, 0, 0], 0, 0]
    assert elements[0, 3, 2, 1].tolist() == tensor[:4, 3, 2, 1].tolist()


def test_4n_mode_is_stored_in_the_aligned_layout_of_its_new_type_and_shape() -> None:
    tensor = np.arange(600).reshape(6, 5, 4, 5).astype(np.int8)
    stride = okk.okk_128_byte_aligned_stride_for_32bit(0, Dim4(2, 5, 4, 5), BIG)
    assert stride == (64, 32, 5, 1)
    memory = empty_memory(BIG)
    pack(memory, 0, stride, okk.to_4n_mode(tensor), BIG)
    blocks = memory.reshape(4, 1024, 4).view(np.int8)
    assert blocks[0, 32].tolist() == tensor[:4, 4, 0, 0].tolist()  # channel 4 follows in NPU 0
    assert blocks[1, 64 + 7].tolist() == [*tensor[4:, 1, 1, 2].tolist(), 0, 0]


def test_2n_mode_of_three_batches_has_a_dummy_int16_element() -> None:
    tensor = np.arange(1000, 1300, dtype=np.int16).reshape(3, 5, 4, 5)
    elements = okk.to_2n_mode(tensor)
    assert elements.shape == (2, 5, 4, 5, 2)
    assert elements[1, 0, 0, 0].tolist() == [tensor[2, 0, 0, 0], 0]
    assert elements[1, 0, 0, 0].dtype == np.int16


def test_2ic_mode_of_three_input_channels_has_a_dummy_element() -> None:
    weights = np.arange(1, 3 * 4 * 9 + 1, dtype=np.float32).reshape(3, 4, 3, 3)
    elements = okk.to_2ic_mode(weights)
    assert elements.shape == (2, 4, 3, 3, 2)
    assert elements[0, 2, 1, 1].tolist() == weights[:2, 2, 1, 1].tolist()
    assert elements[1, 2, 1, 1].tolist() == [weights[2, 2, 1, 1], 0]


def test_the_default_machine_has_the_numbers_of_a_bm1684() -> None:
    machine = load()
    assert (machine.npus, machine.local_bytes, machine.bank_bytes) == (64, 524_288, 65_536)
    assert machine.macs_per_cycle == 2048
