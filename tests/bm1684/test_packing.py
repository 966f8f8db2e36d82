"""Tensors that are packed come back, for any number of NPUs, local size, address and layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import DoesNotFit
from npuc.targets.bm1684.machine import local_memory as okk
from npuc.targets.bm1684.machine.local_memory import (
    Dim4,
    empty_memory,
    pack,
    pack_matrix,
    pack_system,
    unpack,
    unpack_matrix,
    unpack_system,
)
from npuc.targets.bm1684.machine.parameters import Machine

SHAPES = st.builds(Dim4, *[st.integers(1, 5)] * 4)
NPUS = st.integers(1, 6)
ALIGNED = {
    4: okk.okk_128_byte_aligned_stride_for_32bit,
    2: okk.okk_128_byte_aligned_stride_for_16bit,
    1: okk.okk_128_byte_aligned_stride_for_8bit,
}


@given(SHAPES, NPUS, st.data(), st.sampled_from([np.float32, np.int16, np.int8]))
def test_a_packed_tensor_comes_back(shape: Dim4, npus: int, data: st.DataObject, dtype: type) -> None:
    machine = Machine(npus=npus, local_bytes=1 << 14)
    Q = data.draw(st.integers(0, npus - 1))
    stride = data.draw(st.sampled_from([okk.okk_compact_stride, ALIGNED[np.dtype(dtype).itemsize]]))(
        Q, shape, machine
    )
    tensor = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    memory, at = empty_memory(machine), okk.address(Q, 128, machine)
    pack(memory, at, stride, tensor, machine)
    assert (unpack(memory, at, shape, stride, dtype, machine) == tensor).all()


@given(NPUS, st.integers(1, 4), st.integers(1, 50), st.data())
def test_a_packed_matrix_comes_back(npus: int, rows: int, cols: int, data: st.DataObject) -> None:
    machine = Machine(npus=npus, local_bytes=1 << 15)
    W, Q = data.draw(st.integers(1, cols)), data.draw(st.integers(0, npus - 1))
    matrix = np.arange(1, rows * cols + 1, dtype=np.float32).reshape(rows, cols)
    memory, at = empty_memory(machine), okk.address(Q, 0, machine)
    pack_matrix(memory, at, W, matrix, machine)
    assert (unpack_matrix(memory, at, rows, cols, W, machine) == matrix).all()
    assert np.count_nonzero(memory.view(np.float32)) == rows * cols


@given(SHAPES)
def test_the_storage_modes_come_back(shape: Dim4) -> None:
    tensor = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    assert (okk.from_4n_mode(okk.to_4n_mode(tensor), shape.n) == tensor).all()
    assert (okk.from_2n_mode(okk.to_2n_mode(tensor), shape.n) == tensor).all()
    assert (okk.from_2ic_mode(okk.to_2ic_mode(tensor), shape.n) == tensor).all()


def test_a_grouped_tensor_comes_back_from_local_memory() -> None:
    machine = Machine(npus=4, local_bytes=4096)
    weights = np.arange(3 * 6 * 9, dtype=np.float32).reshape(3, 6, 3, 3)
    elements = okk.to_2ic_mode(weights)
    shape = Dim4(*elements.shape[:4])
    memory, stride = empty_memory(machine), okk.okk_compact_stride(1, shape, machine)
    at = okk.address(1, 8, machine)
    pack(memory, at, stride, elements, machine)
    found = unpack(memory, at, shape, stride, np.float32, machine, group=(2,))
    assert (okk.from_2ic_mode(found, 3) == weights).all()


def test_system_memory_is_strided_too() -> None:
    memory = np.zeros(400, np.uint8)
    tensor = np.arange(1, 13, dtype=np.float32).reshape(1, 2, 2, 3)
    pack_system(memory, 8, Dim4(99, 10, 4, 1), tensor)
    assert memory.view(np.float32)[2:].tolist()[:8] == [1, 2, 3, 0, 4, 5, 6, 0]
    assert (unpack_system(memory, 8, Dim4(1, 2, 2, 3), Dim4(0, 10, 4, 1), np.float32) == tensor).all()


@pytest.mark.parametrize(("offset", "height"), [(0, 257), (1020, 2), (2, 1)])
def test_what_runs_past_the_end_or_is_not_aligned_is_refused(offset: int, height: int) -> None:
    machine = Machine(npus=2, local_bytes=1024)
    tensor = np.zeros((1, 1, height, 1), np.float32)
    with pytest.raises(DoesNotFit, match="lies outside"):
        pack(empty_memory(machine), offset, Dim4(0, 0, 1, 1), tensor, machine)


@pytest.mark.parametrize("at", [32, -4])
def test_system_memory_begins_and_ends(at: int) -> None:
    with pytest.raises(DoesNotFit, match="system memory"):
        pack_system(np.zeros(64, np.uint8), at, Dim4(0, 0, 0, 1), np.zeros((1, 1, 1, 9), np.float32))
