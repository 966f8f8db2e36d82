"""Layouts of tensors in the local memory of X NPUs and in system memory, and the bytes of tensors in them.

Source: OKKernel, tensor layouts. This module follows that document's order and terms; its helpers
keep their names (`okk_channle_num_per_npu` is spelled as there). Strides are in elements, addresses and offsets in
bytes. Local memory is an array (X, S) uint8, system memory (bytes,) uint8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from npuc.errors import DoesNotFit
from npuc.ir import Array
from npuc.targets.bm1684.machine.parameters import Machine


class Dim4(NamedTuple):
    """A shape or strides: one number each for N, C, H and W."""

    n: int
    c: int
    h: int
    w: int


# Address of Tensor in Local Memory


class Position(NamedTuple):
    """The meaning of an address A = Q * S + R: the tensor starts at NPU Q with offset R."""

    npu: int
    offset: int


def position(address: int, machine: Machine) -> Position:
    """Q = floor(A / S) and R = A mod S. Raises DoesNotFit (E302) unless A is in [0, X * S - 1]."""
    if not 0 <= address < machine.addresses:
        raise outside_error(f"address {address}", f"0..{machine.addresses - 1}")
    return Position(*divmod(address, machine.local_bytes))


def address(npu: int, offset: int, machine: Machine) -> int:
    """A = Q * S + R. Raises DoesNotFit (E302) for an NPU or an offset that the machine does not have."""
    if not (0 <= npu < machine.npus and 0 <= offset < machine.local_bytes):
        raise outside_error(f"NPU {npu}, offset {offset}", f"{machine.npus} NPUs of {machine.local_bytes} bytes")
    return npu * machine.local_bytes + offset


def okk_start_npu_index(addr: int, machine: Machine) -> int:
    """The NPU that a tensor at this address starts at."""
    return position(addr, machine).npu


# Scatter Features to Different NPUs


def okk_channle_num_per_npu(start_idx: int, num_channels: int, machine: Machine) -> int:
    """The number of channels per NPU, ceil((Q + C) / X), of a tensor that starts at NPU Q = start_idx."""
    return ceil_div(start_idx + num_channels, machine.npus)


class LocalBlock(NamedTuple):
    """The place of the features (*, c): an NPU and a block row, which the C stride counts."""

    npu: int
    row: int


def block(channel: int, start_idx: int, machine: Machine) -> LocalBlock:
    """The block of a channel: consecutive channels are in consecutive NPUs, then in the next block row."""
    row, npu = divmod(start_idx + channel, machine.npus)
    return LocalBlock(npu, row)


def empty_blocks(start_idx: int, num_channels: int, machine: Machine) -> list[LocalBlock]:
    """The blocks of a batch that contain no channel: before the tensor's first one and after its last one.

    The document: "Try not to reuse the empty blocks": parallel NPUs may read and write them.
    """
    blocks = okk_channle_num_per_npu(start_idx, num_channels, machine) * machine.npus
    empty = [*range(start_idx), *range(start_idx + num_channels, blocks)]
    return [block(at, 0, machine) for at in empty]


# Strides in Local Memory


def local_strides_used(shape: Dim4, start_idx: int, machine: Machine) -> tuple[bool, bool, bool, bool]:
    """Which strides (N, C, H, W) of a tensor in local memory make sense.

    A stride along an extent of 1 does not, nor does the C stride if the number of channels per NPU is 1.
    """
    rows = okk_channle_num_per_npu(start_idx, shape.c, machine)
    return shape.n > 1, rows > 1, shape.h > 1, shape.w > 1


def local_extent(shape: Dim4, stride: Dim4, start_idx: int, machine: Machine) -> int:
    """Elements from a tensor's offset to the end of its last element, in the NPU where it extends furthest."""
    rows = okk_channle_num_per_npu(start_idx, shape.c, machine)
    return extent(Dim4(shape.n, rows, shape.h, shape.w), stride)


# Strides in System Memory


def system_strides_used(shape: Dim4) -> tuple[bool, bool, bool, bool]:
    """Which strides (N, C, H, W) of a tensor in system memory make sense: those along an extent above 1."""
    return shape.n > 1, shape.c > 1, shape.h > 1, shape.w > 1


# Layouts: Continuous Layout


def okk_continuous_stride(shape: Dim4) -> Dim4:
    """The strides of the continuous layout, of a tensor in system memory."""
    area = shape.h * shape.w
    return Dim4(shape.c * area, area, shape.w, 1)


# Layouts: 128-Byte Aligned Layout


def okk_128_byte_aligned_stride_for_32bit(start_idx: int, shape: Dim4, machine: Machine) -> Dim4:
    """The strides of the aligned layout for 32-bit elements; the address is divisible by 128."""
    return _aligned_stride(start_idx, shape, 32, machine)


def okk_128_byte_aligned_stride_for_16bit(start_idx: int, shape: Dim4, machine: Machine) -> Dim4:
    """The strides of the aligned layout for 16-bit elements; the address is divisible by 128."""
    return _aligned_stride(start_idx, shape, 64, machine)


def okk_128_byte_aligned_stride_for_8bit(start_idx: int, shape: Dim4, machine: Machine) -> Dim4:
    """The strides of the aligned layout for 8-bit elements; the address is divisible by 128."""
    return _aligned_stride(start_idx, shape, 128, machine)


def _aligned_stride(start_idx: int, shape: Dim4, elements: int, machine: Machine) -> Dim4:
    channel = ceil_div(shape.h * shape.w, elements) * elements
    return Dim4(channel * okk_channle_num_per_npu(start_idx, shape.c, machine), channel, shape.w, 1)


# Layouts: Compact Layout


def okk_compact_stride(start_idx: int, shape: Dim4, machine: Machine) -> Dim4:
    """The strides of the compact layout; the address is divisible by 4."""
    area = shape.h * shape.w
    return Dim4(area * okk_channle_num_per_npu(start_idx, shape.c, machine), area, shape.w, 1)


# Layouts: Matrix Layout


def matrix_shape(rows: int, cols: int, cols_per_channel: int) -> Dim4:
    """The shape (N, ceil(M / W), 1, W) that an N-by-M matrix has in the aligned layout; W in [1, M]."""
    if not 1 <= cols_per_channel <= cols:
        raise outside_error(f"W = {cols_per_channel} of a matrix with {cols} columns", f"1..{cols}")
    return Dim4(rows, ceil_div(cols, cols_per_channel), 1, cols_per_channel)


def matrix_bytes(rows: int, cols: int, cols_per_channel: int, start_idx: int, machine: Machine) -> int:
    """Bytes per NPU of a 32-bit matrix in the matrix layout, empty blocks included."""
    shape = matrix_shape(rows, cols, cols_per_channel)
    return 4 * rows * okk_128_byte_aligned_stride_for_32bit(start_idx, shape, machine).n


# Storage Modes


def to_4n_mode(tensor: Array) -> Array:
    """int8x4 or uint8x4 elements (M, C, H, W, 4) of an 8-bit tensor (N, C, H, W).

    M = ceil(N / 4); the 4 - (N mod 4) dummy elements are 0.
    """
    return _interleave_images(tensor, 4)


def from_4n_mode(elements: Array, N: int) -> Array:
    """The inverse of to_4n_mode: (N, C, H, W)."""
    return _separate_images(elements, N)


def to_2n_mode(tensor: Array) -> Array:
    """int16x2 or uint16x2 elements (M, C, H, W, 2) of a 16-bit tensor (N, C, H, W).

    M = ceil(N / 2); the dummy element of an odd N is 0. In its last example the document has "an int8 element at
    (2, 0, 0, 0)" beside a dummy one; by its definition of the mode and the data type given, an int16 element is
    meant (docs/decisions.md).
    """
    return _interleave_images(tensor, 2)


def from_2n_mode(elements: Array, N: int) -> Array:
    """The inverse of to_2n_mode: (N, C, H, W)."""
    return _separate_images(elements, N)


def to_2ic_mode(weights: Array) -> Array:
    """fp32x2 elements (J, O, H, W, 2) of convolution weights [I, O, H, W] fp32.

    J = ceil(I / 2); the dummy elements of an odd I are 0.
    """
    return _interleave_images(weights, 2)


def from_2ic_mode(elements: Array, I: int) -> Array:  # noqa: E741  (the document's name)
    """The inverse of to_2ic_mode: [I, O, H, W]."""
    return _separate_images(elements, I)


def _interleave_images(tensor: Array, count: int) -> Array:
    N, *rest = tensor.shape
    dummies = np.zeros((-N % count, *rest), tensor.dtype)
    groups = np.concatenate([tensor, dummies]).reshape(-1, count, *rest)
    return np.ascontiguousarray(np.moveaxis(groups, 1, -1))


def _separate_images(elements: Array, N: int) -> Array:
    groups = np.moveaxis(elements, -1, 1)
    return np.ascontiguousarray(groups).reshape(-1, *groups.shape[2:])[:N]


def extent(shape: Dim4, stride: Dim4) -> int:
    """Elements from the first to the end of the last one, for a shape with these strides."""
    return sum((count - 1) * step for count, step in zip(shape, stride, strict=True)) + 1


def ceil_div(value: int, by: int) -> int:
    """ceil(value / by)."""
    return -(-value // by)


def outside_error(what: str, limit: str) -> DoesNotFit:
    """The error (E302) for a place outside the machine's memory."""
    return DoesNotFit("E302", f"{what} lies outside the machine's memory", limit=limit)


# Tensors and matrices written into memory and read back; nothing is written between their elements


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
        raise outside_error(
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
        raise outside_error(f"system memory {at} to {end}", f"{memory.size} bytes")
    return np.ndarray(shape, dtype, memory.data, at, [dtype.itemsize * each for each in stride])
