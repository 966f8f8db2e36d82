"""Places of tensors during lowering: in local memory, as views of system memory, and in its weight region.

A tensor of ONNX rank 3 or more is stored as (d0, d1, d2 * .. , last) in the 128-byte aligned layout, a matrix
(M, K) in the matrix layout, which is the aligned layout of (M, ceil(K / W), 1, W).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.storage.mapped import Content, Growing, release
from npuc.targets.bm1684.lowering.kernel import Load, Local, Step
from npuc.targets.bm1684.machine.local_memory import Dim4, block, ceil_div, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine

ELEMENT = 4
"""Bytes of an fp32 element."""
ALIGNMENT = 128
"""Alignment in bytes of tensors in local memory and of data in system memory."""


@frozen
class Tensor:
    """A tensor in local memory, in the aligned layout of `shape`, starting at `at`."""

    shape: Dim4
    at: Local

    def stride(self, machine: Machine) -> Dim4:
        """Its strides in elements."""
        return okk_128_byte_aligned_stride_for_32bit(self.at.npu, self.shape, machine)

    def bytes(self, machine: Machine) -> int:
        """Bytes per NPU."""
        return ELEMENT * self.shape.n * self.stride(machine).n

    def channels(self, first: int, last: int, machine: Machine) -> Tensor:
        """Channels [first, last) as a separate tensor.

        Its strides are correct for a single image only; calls on several images need those of the whole tensor.
        """
        npu, row = block(first, self.at.npu, machine)
        at = replace(self.at, npu=npu).shift(ELEMENT * row * self.stride(machine).c)
        return Tensor(self.shape._replace(c=last - first), at)

    def image(self, index: int, machine: Machine) -> Tensor:
        """One image, or one row of a matrix, as a separate tensor."""
        return Tensor(self.shape._replace(n=1), self.at.shift(ELEMENT * index * self.stride(machine).n))

    def reshape(self, shape: Dim4) -> Tensor:
        """The same bytes as a tensor of another shape with the same number of elements per channel."""
        return replace(self, shape=shape)


def local_shape(shape: Sequence[int], width: int = 1) -> Dim4:
    """The four dimensions of an ONNX tensor in local memory. width: W of a matrix."""
    if len(shape) > 2:
        return Dim4(shape[0], shape[1], prod(shape[2:-1]), shape[-1])
    rows, columns = (1, 1, *shape)[-2:]
    return Dim4(rows, ceil_div(columns, width), 1, width)


Dim = tuple[int, int]
"""Extent and stride in elements."""


@frozen
class SystemView:
    """A tensor in system memory: every axis consists of one or more dimensions, the last one varying fastest."""

    region: str
    offset: int
    """Elements from the region's start."""
    axes: tuple[tuple[Dim, ...], ...]

    @classmethod
    def continuous(cls, region: str, offset: int, shape: Sequence[int]) -> SystemView:
        """A tensor in the continuous layout."""
        strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return cls(region, offset, tuple(((e, s),) for e, s in zip(shape, strides, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return tuple(prod(extent for extent, _ in axis) for axis in self.axes)

    def transpose(self, perm: Sequence[int]) -> SystemView:
        """The axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in perm))

    def reshape(self, shape: Sequence[int]) -> SystemView | None:
        """The same elements in another shape; None if no strides describe it."""
        waiting = list(merge_dims([dim for axis in self.axes for dim in axis]))
        axes: list[tuple[Dim, ...]] = []
        for extent in shape:
            taken = _take(waiting, extent)
            if taken is None:
                return None
            axes.append(merge_dims(taken))
        return replace(self, axes=tuple(axes))

    def slice_axis(self, axis: int, start: int, count: int, step: int = 1) -> SystemView | None:
        """Every step-th element along an axis; None if the axis has several dimensions."""
        (_, stride), *more = merge_dims(self.axes[axis])
        if more:
            return None
        axes = (*self.axes[:axis], ((count, stride * step),), *self.axes[axis + 1 :])
        return replace(self, offset=self.offset + start * stride, axes=axes)

    def broadcast(self, shape: Sequence[int]) -> SystemView:
        """The view broadcast to a shape, as in numpy."""
        axes = ((((1, 0),),) * (len(shape) - len(self.axes))) + self.axes
        found = zip(axes, shape, strict=True)
        return replace(
            self,
            axes=tuple(axis if prod(e for e, _ in axis) == extent else ((extent, 0),) for axis, extent in found),
        )


def expect_view(view: SystemView | None) -> SystemView:
    """A view of which the caller knows that its four dimensions suffice."""
    assert view is not None
    return view


def _take(waiting: list[Dim], extent: int) -> list[Dim] | None:
    """Removes leading dimensions with `extent` elements in total, dividing the last one if need be; else None."""
    taken: list[Dim] = []
    while extent > 1:
        size, stride = waiting.pop(0)
        if extent % size == 0:
            taken.append((size, stride))
            extent //= size
        elif size % extent == 0:
            inner = size // extent
            taken.append((extent, stride * inner))
            waiting.insert(0, (inner, stride))
            extent = 1
        else:
            return None
    return taken


def merge_dims(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Equivalent dimensions, merged where contiguous; at least one."""
    found: list[Dim] = []
    for extent, stride in dims:
        if extent == 1:
            continue
        if found and found[-1][1] == extent * stride:
            found[-1] = (found[-1][0] * extent, stride)
        else:
            found.append((extent, stride))
    return tuple(found) or ((1, 0),)


@frozen
class Lowered:
    """The result of lowering: steps in order, the loads that fill buffers before use, and system memory."""

    steps: tuple[Step, ...]
    loads: Mapping[str, tuple[Load, ...]]
    """By buffer, in column order."""
    buffers: Mapping[str, int]
    """Bytes per NPU."""
    weights: Content
    scratch_bytes: int
    inputs: Mapping[str, str]
    """The region of every input of the network."""
    outputs: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    """Where tensors of the graph are after they have been computed."""


PART = 1 << 24
"""Bytes after which the memory of constants that were read is released."""
SAMPLE = 256
"""About so many bytes of a constant are compared before all of them are."""


class ConstantRegion:
    """The weight region: it grows as constants are added, without duplicates; their offsets do not change."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, bytes, int], list[int]] = {}
        """Offsets of constants that may be equal: by size, a sample, and the sum of their 64-bit words."""
        self._zeros: dict[int, int] = {}
        self._bytes = Growing()

    @property
    def content(self) -> Content:
        """The content of the region, which is complete."""
        return self._bytes.content()

    def image(self, values: Array) -> int:
        """The byte offset of fp32 values; equal values are stored once."""
        data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        if behind := -len(data) % ALIGNMENT:
            data = np.pad(data, (0, behind))
        sample = data[:: len(data) // SAMPLE | 1].tobytes()
        alike = self._offsets.setdefault((len(data), sample, int(data.view(np.uint64).sum())), [])
        found = next((at for at in alike if self._bytes.read(at, len(data)) == data.tobytes()), None)
        if found is None:
            found = len(self._bytes)
            alike.append(found)
            self._bytes.append(data)
            if found // PART < len(self._bytes) // PART:
                release()
        return found

    def zeros(self, count: int) -> int:
        """The byte offset of at least `count` zeros."""
        if count not in self._zeros:
            self._zeros[count] = self.image(np.zeros(count, np.float32))
        return self._zeros[count]
