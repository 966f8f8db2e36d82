"""Sliding windows of convolution and pooling, and pooling over them or over the whole image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import CEIL_MODE, COUNT_INCLUDE_PAD, DILATIONS, LARGEST, PADS, STRIDES, WINDOW
from npuc.ops.declaration import FLOAT, NUMBERS, Op, Parameter, along, bad_node

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


Index = tuple[slice, ...]


@frozen
class Window:
    """A window over the spatial dimensions; every tuple has one entry per spatial dimension."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements from the first tap to the last, inclusive."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def extents(self, node: Node, spatial: Sequence[int]) -> tuple[int, ...]:
        """The output's spatial extents. Raises E105 if the kernel exceeds the padded input.

        With ceil_mode a last window that would start in the padding after the input is left out, as in ONNX since
        opset 19 and in onnxruntime.
        """
        return tuple(self._extent(node, axis, extent) for axis, extent in enumerate(spatial))

    def _extent(self, node: Node, axis: int, extent: int) -> int:
        begin, stride = self.begins[axis], self.strides[axis]
        padded = extent + begin + self.ends[axis]
        free = padded - self.reach[axis]
        if free < 0:
            reason = f"the kernel spans {self.reach[axis]} elements, the padded input has {padded}"
            raise bad_node(node, reason, tensor=node.inputs[0], limit="the kernel fits into the padded input")
        if not self.ceil_mode:
            return free // stride + 1
        count = -(-free // stride) + 1
        return count - 1 if (count - 1) * stride >= extent + begin else count

    def overhang(self, spatial: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
        """Elements behind the input that the windows of these output extents reach; negative if they end in it."""
        return tuple(
            (count - 1) * stride + reach - extent - begin
            for count, stride, reach, extent, begin in zip(
                extents, self.strides, self.reach, spatial, self.begins, strict=True
            )
        )

    def pad(self, x: Array, fill: float, extents: Sequence[int]) -> Array:
        """The input with its padding, long enough that every window of the output lies inside."""
        ends = list(map(max, self.ends, self.overhang(x.shape[2:], extents)))
        if not any(self.begins) and not any(ends):
            return x
        return np.pad(x, [(0, 0), (0, 0), *zip(self.begins, ends, strict=True)], constant_values=fill)

    def taps(self, extents: Sequence[int]) -> Iterator[Index]:
        """For each tap of the kernel, in row-major order, the index of the elements under it."""
        for tap in product(*map(range, self.kernel)):
            yield tuple(
                slice(t * d, t * d + (count - 1) * s + 1, s)
                for t, d, s, count in zip(tap, self.dilations, self.strides, extents, strict=True)
            )


def window_of(node: Node, kernel: tuple[int, ...]) -> Window:
    """The window given by a node's strides, pads and dilations; the defaults are 1, 0 and 1.

    Raises E105 for a kernel without extents, or an invalid one.
    """
    found: Window | None = node.windows.get(kernel)
    if found is not None:
        return found
    if kernel and not 1 <= min(kernel) <= max(kernel) <= LARGEST:
        raise bad_node(node, f"the kernel is {list(kernel)}", limit=f"1..{LARGEST}")
    rank = len(kernel)
    ones, pads = (1,) * rank, PADS(node) or (0,) * (2 * rank)
    strides, dilations = STRIDES(node) or ones, DILATIONS(node) or ones
    window = node.windows[kernel] = Window(kernel, strides, pads[:rank], pads[rank:], dilations, CEIL_MODE(node))
    return window


def _little_padding(node: Node, _types: Sequence[TensorType]) -> bool:
    """The padding is below the window's number of taps, dilated or not, as onnxruntime demands."""
    window = window_of(node, WINDOW(node))
    return all(max(b, e) < taps for b, e, taps in zip(window.begins, window.ends, window.kernel, strict=True))


def pool_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The type of the pooled map; of the element type of x."""
    (x,) = types
    return (TensorType((*x.shape[:2], *window_of(node, WINDOW(node)).extents(node, x.shape[2:])), x.dtype),)


def _global_types(_node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x = types[0].shape
    return (TensorType((*x[:2], *(1 for _ in x[2:]))),)


def _max_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    window = window_of(node, WINDOW(node))
    extents = window.extents(node, x.shape[2:])
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    padded = window.pad(x, lowest, extents)
    return (reduce(np.maximum, (padded[(..., *index)] for index in window.taps(extents))).copy(),)


def _count_taps(window: Window, axis: int, extent: int, count: int, include_pad: bool) -> Array:
    """The number of taps of each window that count along one axis: inside the input, or also in its padding."""
    begin, end = window.begins[axis], window.ends[axis]
    first = np.arange(count)[:, None] * window.strides[axis]
    position = first + np.arange(window.kernel[axis]) * window.dilations[axis]
    low, high = (0, begin + extent + end) if include_pad else (begin, begin + extent)
    return ((position >= low) & (position < high)).sum(axis=1).astype(np.float32)


def _average_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    window = window_of(node, WINDOW(node))
    extents = window.extents(node, x.shape[2:])
    padded = window.pad(x, 0, extents)
    y = sum((padded[(..., *index)] for index in window.taps(extents)), start=np.float32(0))
    include_pad = COUNT_INCLUDE_PAD(node)
    for axis, count in enumerate(extents):
        counted = _count_taps(window, axis, x.shape[2 + axis], count, include_pad)
        y = y / along(counted, 2 + axis, x.ndim)
    return (np.asarray(y, np.float32),)


def _global_average(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _global_max(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _max_pool_onnx(node: Node, emit: OnnxEmitter) -> None:
    """onnxruntime does not support it for int16."""
    emit.through_float(node, "int16")


def _average_pool_onnx(node: Node, emit: OnnxEmitter) -> None:
    """Dilations are available only since opset 19."""
    emit.plain(node, () if max(DILATIONS(node), default=1) > 1 else (DILATIONS.name,))


WINDOWED = (WINDOW, STRIDES, PADS, DILATIONS, CEIL_MODE)
Y = Parameter("y", like="x")


def _x(dtypes: tuple[str, ...] = FLOAT) -> tuple[Parameter, ...]:
    return (Parameter("x", dtypes, "N C L *S"),)


OPERATORS = (
    Op(
        "MaxPool",
        "The largest element under a window; padding never wins.",
        _x(NUMBERS),
        (Y,),
        _max_pool,
        WINDOWED,
        (_little_padding,),
        pool_types,
        _max_pool_onnx,
    ),
    Op(
        "AveragePool",
        "The mean under a window, with or without its padding.",
        _x(),
        (Y,),
        _average_pool,
        (*WINDOWED, COUNT_INCLUDE_PAD),
        (_little_padding,),
        pool_types,
        _average_pool_onnx,
    ),
    Op("GlobalAveragePool", "The mean of each channel.", _x(), (Y,), _global_average, infer=_global_types),
    Op("GlobalMaxPool", "The largest element of each channel.", _x(), (Y,), _global_max, infer=_global_types),
)

AVERAGES = ("AveragePool", "GlobalAveragePool")
SELECTION = ("MaxPool", "GlobalMaxPool")
"""Operators that select each result from their elements."""
