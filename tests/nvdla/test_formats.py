"""In-memory formats: round trips, the document's rules written as loops, vectors worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.errors import UnsupportedOperator
from npuc.ir import Array
from npuc.targets.nvdla.formats import alignment, feature, operands, precision, weights
from npuc.targets.nvdla.formats.feature import Cube
from npuc.targets.nvdla.formats.operands import OperandCube
from npuc.targets.nvdla.machine.parameters import BYTES, FULL, LARGE, SMALL, Machine

MACHINES = [SMALL, LARGE, FULL]
EXTENT = st.integers(1, 5)
PAIRS = [(machine, each) for machine in MACHINES for each in machine.precisions]


def _values(shape: tuple[int, ...], kind: str) -> Array:
    random = np.random.default_rng(sum(shape))
    return random.integers(-100, 100, shape).astype(precision.DTYPES[kind])


# Feature Data Format


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(PAIRS), EXTENT, EXTENT, st.integers(1, 80), st.integers(0, 3), st.integers(0, 3))
def test_unpacking_a_packed_cube_gives_its_values(
    pair: tuple[Machine, str], width: int, height: int, channels: int, line_gap: int, surface_gap: int
) -> None:
    machine, kind = pair
    line = (width + line_gap) * machine.atom_bytes
    surface = height * line + surface_gap * machine.atom_bytes
    cube = Cube(width, height, channels, kind, machine.atom_bytes, line, surface)
    values = _values((2, channels, height, width), kind)
    memory = feature.pack(cube, values)
    assert memory.shape == (2, cube.bytes)
    np.testing.assert_array_equal(feature.unpack(cube, memory), values)


def test_channels_change_fastest_then_columns_lines_and_surfaces() -> None:
    cube = Cube.of(SMALL, width=2, height=2, channels=9)
    values = np.arange(36, dtype=np.int8).reshape(9, 2, 2)  # element c, h, w is 4 c + 2 h + w
    expected = [
        *(0, 4, 8, 12, 16, 20, 24, 28), *(1, 5, 9, 13, 17, 21, 25, 29),  # line 0 of surface 0
        *(2, 6, 10, 14, 18, 22, 26, 30), *(3, 7, 11, 15, 19, 23, 27, 31),
        *(32, 0, 0, 0, 0, 0, 0, 0), *(33, 0, 0, 0, 0, 0, 0, 0),  # channel 8 in surface 1
        *(34, 0, 0, 0, 0, 0, 0, 0), *(35, 0, 0, 0, 0, 0, 0, 0),
    ]  # fmt: skip
    assert feature.pack(cube, values).tolist() == expected


def test_an_unpacked_cube_leaves_gaps_at_the_end_of_lines_and_surfaces() -> None:
    cube = Cube(1, 2, 2, "fp16", 32, line_stride=64, surface_stride=160)
    memory = feature.pack(cube, np.array([[[1.0], [2.0]], [[3.0], [4.0]]], np.float16))
    assert memory.size == 64 + 32 and not memory[32:64].any()
    assert memory.view(np.float16)[[0, 1, 32, 33]].tolist() == [1, 3, 2, 4]


# Weight Format


def _by_the_rules(w: Array, group: int, block: int) -> list[int]:
    """Groups of kernels, C' -> K -> W -> H -> C, as the document spells it."""
    kernels, channels, height, width = w.shape
    found: list[int] = []
    for first in range(0, kernels, group):
        for start in range(0, channels, block):
            for r in range(height):
                for s in range(width):
                    for k in range(first, min(first + group, kernels)):
                        found += w[k, start : start + block, r, s].tolist()
    return found


@pytest.mark.parametrize(
    ("machine", "kind", "group", "block", "entry"),
    [(FULL, "int8", 32, 64, 128), (FULL, "int16", 16, 64, 128), (FULL, "fp16", 16, 64, 128),
     (LARGE, "int8", 32, 64, 64), (SMALL, "int8", 8, 8, 8)],
)  # fmt: skip
def test_weights_lie_in_groups_and_blocks_without_gaps_and_padded_at_the_end(
    machine: Machine, kind: str, group: int, block: int, entry: int
) -> None:
    w = _values((group + 3, block + 5, 2, 3), kind)
    order = weights.direct_order(machine, w.shape, kind)
    data = weights.pack(machine, order, w)
    assert len(data) == -(-w.nbytes // entry) * entry
    assert np.frombuffer(data, w.dtype, w.size).tolist() == _by_the_rules(w, group, block)
    assert not any(data[w.nbytes :])


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(PAIRS), st.integers(1, 40), st.integers(1, 70), EXTENT, EXTENT)
def test_unpacking_packed_weights_gives_them_back(
    pair: tuple[Machine, str], kernels: int, channels: int, height: int, width: int
) -> None:
    machine, kind = pair
    w = _values((kernels, channels, height, width), kind)
    order = weights.direct_order(machine, w.shape, kind)
    data = weights.pack(machine, order, w)
    np.testing.assert_array_equal(weights.unpack(order, data, precision.DTYPES[kind]), w)


def test_pre_extension_makes_a_line_of_the_kernel_one_pixel_of_four_channels_per_column() -> None:
    w = np.arange(12, dtype=np.int8).reshape(1, 3, 2, 2)  # element c, r, s is 4 c + 2 r + s
    extended = weights.pre_extend(w, 4)
    assert extended.shape == (1, 8, 2, 1)
    assert extended[0, :, 0, 0].tolist() == [0, 4, 8, 0, 1, 5, 9, 0]
    assert extended[0, :, 1, 0].tolist() == [2, 6, 10, 0, 3, 7, 11, 0]


def test_post_extension_joins_two_lines_of_each_kernel() -> None:
    """Worked by hand from the document's figure 16; there is no outside data."""
    w = np.arange(2 * 2 * 3, dtype=np.int8).reshape(2, 2, 3, 1)  # element k, c, r is 6 k + 3 c + r
    order = weights.image_order(FULL, w.shape, post_extension=2)
    expected = [*(0, 3, 1, 4), *(6, 9, 7, 10), *(2, 5), *(8, 11)]  # lines 0, 1 of K0, of K1, line 2 of K0, of K1
    assert weights.split_groups(order, w)[0].tolist() == expected


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(PAIRS), st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.sampled_from([1, 2, 4])
)
def test_unpacking_post_extended_weights_gives_them_back(
    pair: tuple[Machine, str], kernels: int, height: int, width: int, lines: int
) -> None:
    machine, kind = pair
    w = weights.pre_extend(_values((kernels, 3, height, width), kind), 4)
    if lines * w.shape[1] > machine.atomic_c:
        lines = 1
    order = weights.image_order(machine, w.shape, kind, lines)
    data = weights.pack(machine, order, w)
    np.testing.assert_array_equal(weights.unpack(order, data, precision.DTYPES[kind]), w)


def test_post_extension_of_more_channels_than_a_block_has_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="post-extension by 4 lines of 20 channels"):
        weights.image_order(FULL, (1, 20, 3, 1), post_extension=4)


# Bias, PReLU, Batch Normalization and Element-Wise Data Format


@pytest.mark.parametrize(
    ("kind", "components", "size", "atom"),
    [("int8", 1, 1, 32), ("int8", 1, 2, 64), ("int8", 2, 1, 64), ("int8", 2, 2, 128), ("fp16", 1, 2, 32),
     ("int16", 2, 2, 64)],
)  # fmt: skip
def test_bytes_per_atom_follow_the_document(kind: str, components: int, size: int, atom: int) -> None:
    assert OperandCube.per_channel(FULL, 5, components, size, kind).bytes_per_atom == atom


def test_batch_normalisation_pairs_lie_together_channel_by_channel() -> None:
    operand = OperandCube.per_channel(SMALL, 3, 2, 2)
    data = operands.pack(operand, np.array([1, 2, 3]), np.array([-1, -2, -3]))
    assert np.frombuffer(data, np.int16).tolist() == [1, -1, 2, -2, 3, -3, *[0] * 10]


def test_element_wise_data_of_two_bytes_keep_the_elements_of_an_atom_together() -> None:
    operand = OperandCube.per_element(SMALL, (9, 1, 2), 1, 2)
    values = np.arange(18).reshape(9, 1, 2)
    found = np.frombuffer(operands.pack(operand, values), np.int16)
    assert found[:16].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    assert found[16:].tolist() == [16, *[0] * 7, 17, *[0] * 7]


# Alignment of Start Address and Stride


def test_alignments_scale_with_the_atom() -> None:
    assert [alignment.alignment("weight", "start", each.atom_bytes) for each in MACHINES] == [64, 256, 256]
    assert [alignment.alignment("bias", "line", each.atom_bytes) for each in MACHINES] == [8, 32, 32]
    assert alignment.alignment("PReLU", "line", 32) == 1


def test_elements_of_two_bytes_halve_the_channels_of_an_atom() -> None:
    assert [Cube.of(FULL, 1, 1, 1, kind).atom_elements for kind in BYTES] == [32, 32, 16, 16]
