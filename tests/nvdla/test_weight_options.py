"""Compressed and Winograd weights: worked numbers, and NVDLA's own programs."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.errors import UnsupportedOperator
from npuc.targets.nvdla.formats import weights
from npuc.targets.nvdla.formats.weights import Compressed
from npuc.targets.nvdla.machine.parameters import FULL
from tests.given import GIVEN

VECTORS = GIVEN / "nvdla" / "vectors"


def test_a_bit_stands_for_an_element_least_significant_first() -> None:
    w = np.array([5, 0, 0, -7, 0, 0, 0, 0, 0, 9], np.int8).reshape(1, 10, 1, 1)
    surfaces = weights.compress(weights.direct_order(FULL, w.shape), w)
    assert surfaces.mask[:3] == bytes([0b00001001, 0b00000010, 0])
    assert np.frombuffer(surfaces.weights, np.int8)[:4].tolist() == [5, -7, 9, 0]
    assert np.frombuffer(surfaces.sizes, "<u4")[:2].tolist() == [3, 0]


def test_sizes_count_bytes_group_by_group() -> None:
    w = np.zeros((17, 1, 1, 1), np.float16)
    w[[0, 5, 16]] = 1
    surfaces = weights.compress(weights.direct_order(FULL, w.shape, "fp16"), w)
    assert np.frombuffer(surfaces.sizes, "<u4")[:3].tolist() == [4, 2, 0]


@pytest.mark.skipif(not VECTORS.exists(), reason="NVDLA's own programs are not here")
def test_compressed_weights_that_ran_on_the_rtl_are_those_that_npuc_makes() -> None:
    with np.load(VECTORS / "full_direct_int8_sparse.npz") as file:
        held = {int(at): file[f"memory_{n}"] for n, at in enumerate(file["memory_addresses"])}
        writes = {int(address): int(value) for address, value in file["registers"]}
    low = {name: writes[address] for name, address in (("weights", 0x507C), ("sizes", 0x5088), ("mask", 0x5090))}
    kernels, kernel_bytes = writes[0x5070] + 1, writes[0x506C] + 1
    surfaces = Compressed(*(held[low[name]].tobytes() for name in ("weights", "mask", "sizes")))
    order = weights.direct_order(FULL, (kernels, kernel_bytes, 1, 1))  # groups are what compression sees
    bits = np.unpackbits(np.frombuffer(surfaces.mask, np.uint8), count=kernels * kernel_bytes, bitorder="little")
    elements = bits.astype(np.int8)
    elements[bits > 0] = np.frombuffer(surfaces.weights, np.int8)[: bits.sum()]
    w = np.zeros(order.shape, np.int8)
    places = np.concatenate(weights.split_groups(order, np.arange(w.size).reshape(order.shape)))
    w.ravel()[places] = elements
    again = weights.compress(order, w)
    assert np.count_nonzero(w) < w.size
    for name in ("weights", "mask", "sizes"):
        found, wanted = getattr(again, name), getattr(surfaces, name)
        assert found[: len(wanted)] == wanted[: len(found)]


# Winograd


def test_the_transform_is_the_documents_matrix_on_both_sides() -> None:
    """By hand: a kernel of ones gives the outer product of (1, 1.5, 0.5, 1) with itself."""
    u = weights.transform_kernels(np.ones((1, 1, 3, 3)))[0, 0]
    np.testing.assert_array_equal(u, np.outer([1, 1.5, 0.5, 1], [1, 1.5, 0.5, 1]))


def test_a_strided_kernel_becomes_3x3_of_more_channels() -> None:
    """Figure 15: 5x5 with stride 2 and 64 bytes become 3x3 and 256 bytes."""
    w = np.arange(25, dtype=np.int8).reshape(1, 1, 5, 5).repeat(64, axis=1)
    found = weights.extend_kernels(w, 2, 2)
    assert found.shape == (1, 256, 3, 3)
    assert found[0, 0].tolist() == [[0, 2, 4], [10, 12, 14], [20, 22, 24]]
    assert found[0, 64].tolist() == [[1, 3, 0], [11, 13, 0], [21, 23, 0]]
    assert found[0, 128].tolist() == [[5, 7, 9], [15, 17, 19], [0, 0, 0]]


def test_a_kernel_that_does_not_become_3x3_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="a 5x5 kernel with strides 1, 1"):
        weights.extend_kernels(np.zeros((1, 1, 5, 5)), 1, 1)


def test_channels_are_filled_to_32_bytes() -> None:
    assert weights.fill_channels(np.ones((2, 5, 4, 4), np.float16), "fp16").shape == (2, 16, 4, 4)
    assert weights.fill_channels(np.ones((2, 33, 4, 4), np.int8), "int8").shape == (2, 64, 4, 4)


def test_winograd_in_integers_gives_four_times_the_convolution() -> None:
    random = np.random.default_rng(1)
    w, d = random.integers(-5, 6, (1, 1, 3, 3)), random.integers(-9, 10, (4, 4))
    C = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    product = 4 * weights.transform_kernels(w)[0, 0] * (C @ d @ C.T)
    sums = [[int((d[y : y + 3, x : x + 3] * w[0, 0]).sum()) for x in range(2)] for y in range(2)]
    assert (A @ product @ A.T).tolist() == (4 * np.array(sums)).tolist()
