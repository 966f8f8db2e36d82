"""Writes tensors and matrices into local and system memory and reads them back, for each layout.

Source: OKKernel, tensor layouts, as in local_memory. Local memory is an array (X, S) uint8, system memory (bytes,)
uint8; nothing is written between the elements of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from npuc.ir import Array
from npuc.targets.bm1684.machine.local_memory import (
    Dim4,
    address,
    block,
    extent,
    local_extent,
    matrix_shape,
    okk_128_byte_aligned_stride_for_32bit,
    okk_channle_num_per_npu,
    outside,
    position,
)
from npuc.targets.bm1684.machine.parameters import Machine


def empty_memory(machine: Machine) -> Array:
    """All local memory, zero: (X, S) uint8."""
    return np.zeros((machine.npus, machine.local_bytes), np.uint8)


def pack(memory: Array, at: int, stride: Dim4, tensor: Array, machine: Machine) -> None:
    """Writes a tensor (N, C, H, W) into local memory (X, S) at an address, and no byte between its elements.

    An element may be a group of a storage mode, (N, C, H, W, k): strides count groups.
    Raises DoesNotFit (E302) for a tensor that runs past the end of local memory, or an unaligned address.
    """
    shape = Dim4(*tensor.shape[:4])
    for channels, view in _views(memory, at, shape, stride, tensor.dtype, tensor.shape[4:], machine):
        view[...] = np.swapaxes(tensor[:, channels], 0, 1)


def unpack(
    memory: Array,
    at: int,
    shape: Dim4,
    stride: Dim4,
    dtype: DTypeLike,
    machine: Machine,
    group: tuple[int, ...] = (),
) -> Array:
    """The inverse of pack: (N, C, H, W), or (N, C, H, W, k) with group = (k,)."""
    found = np.empty((*shape, *group), dtype)
    for channels, view in _views(memory, at, shape, stride, np.dtype(dtype), group, machine):
        found[:, channels] = np.swapaxes(view, 0, 1)
    return found


def pack_matrix(memory: Array, at: int, cols_per_channel: int, matrix: Array, machine: Machine) -> None:
    """Writes a 32-bit matrix (rows, cols) in the matrix layout.

    If cols is not divisible by W, the last channel contains only cols - W * floor(cols / W) elements; the rest of
    its W elements is left unchanged.
    """
    rows, cols = matrix.shape
    whole, last = _matrix_parts(at, rows, cols, cols_per_channel, machine)
    cut = whole.shape.c * cols_per_channel
    pack(memory, at, whole.stride, matrix[:, :cut].reshape(whole.shape), machine)
    if last is not None:
        pack(memory, last.address, last.stride, matrix[:, cut:].reshape(last.shape), machine)


def unpack_matrix(memory: Array, at: int, rows: int, cols: int, cols_per_channel: int, machine: Machine) -> Array:
    """The inverse of pack_matrix: (rows, cols) fp32."""
    parts = [part for part in _matrix_parts(at, rows, cols, cols_per_channel, machine) if part is not None]
    found = [unpack(memory, part.address, part.shape, part.stride, np.float32, machine) for part in parts]
    return np.concatenate([part.reshape(rows, -1) for part in found], axis=1)


def pack_system(memory: Array, at: int, stride: Dim4, tensor: Array) -> None:
    """Writes a tensor (N, C, H, W) into system memory (bytes,) uint8 at an address."""
    _system_view(memory, at, Dim4(*tensor.shape), stride, tensor.dtype)[...] = tensor


def unpack_system(memory: Array, at: int, shape: Dim4, stride: Dim4, dtype: DTypeLike) -> Array:
    """The inverse of pack_system: (N, C, H, W)."""
    return _system_view(memory, at, shape, stride, np.dtype(dtype)).copy()


class _Part(NamedTuple):
    address: int
    shape: Dim4
    stride: Dim4


def _matrix_parts(at: int, rows: int, cols: int, W: int, machine: Machine) -> tuple[_Part, _Part | None]:
    """A matrix's whole channels, and the last one if it is partial."""
    Q, R = position(at, machine)
    stride = okk_128_byte_aligned_stride_for_32bit(Q, matrix_shape(rows, cols, W), machine)
    C, rest = divmod(cols, W)
    whole = _Part(at, Dim4(rows, C, 1, W), stride)
    if not rest:
        return whole, None
    npu, row = block(C, Q, machine)
    return whole, _Part(address(npu, R + 4 * row * stride.c, machine), Dim4(rows, 1, 1, rest), stride)


def _views(
    memory: Array,
    at: int,
    shape: Dim4,
    stride: Dim4,
    dtype: np.dtype[np.generic],
    group: tuple[int, ...],
    machine: Machine,
) -> Iterator[tuple[slice, Array]]:
    """For each block row, its channels and their elements as a view (channels, N, H, W, *group)."""
    Q, R = position(at, machine)
    item = dtype.itemsize * int(np.prod(group, dtype=int))
    end = R + item * local_extent(shape, stride, Q, machine)
    if R % dtype.itemsize or end > machine.local_bytes:
        raise outside(
            f"offset {R} to {end} of {dtype} elements",
            f"{machine.local_bytes} bytes in elements of {dtype.itemsize}",
        )
    strides = [machine.local_bytes, *(item * each for each in (stride.n, stride.h, stride.w))]
    strides += [dtype.itemsize] * len(group)
    for row in range(okk_channle_num_per_npu(Q, shape.c, machine)):
        first, behind = max(row * machine.npus - Q, 0), min((row + 1) * machine.npus - Q, shape.c)
        npu = block(first, Q, machine).npu
        begin = npu * machine.local_bytes + R + row * item * stride.c
        sizes = (behind - first, shape.n, shape.h, shape.w, *group)
        yield slice(first, behind), np.ndarray(sizes, dtype, memory.data, begin, strides)


def _system_view(memory: Array, at: int, shape: Dim4, stride: Dim4, dtype: np.dtype[np.generic]) -> Array:
    end = at + dtype.itemsize * extent(shape, stride)
    if at < 0 or end > memory.size:
        raise outside(f"system memory {at} to {end}", f"{memory.size} bytes")
    return np.ndarray(shape, dtype, memory.data, at, [dtype.itemsize * each for each in stride])
