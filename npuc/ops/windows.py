"""Sliding windows of convolution and pooling: extents of the output and the tensor slice under each tap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops.attributes import CEIL_MODE, DILATIONS, LARGEST, PADS, STRIDES
from npuc.ops.declaration import bad_node

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
        room = padded - self.reach[axis]
        if room < 0:
            reason = f"the kernel spans {self.reach[axis]} elements, the padded input has {padded}"
            raise bad_node(node, reason, tensor=node.inputs[0], limit="the kernel fits into the padded input")
        if not self.ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= extent + begin else count

    def overhang(self, spatial: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
        """Elements behind the input that the windows of these output extents reach; negative if they end in it."""
        return tuple(
            (count - 1) * stride + reach - extent - begin
            for count, stride, reach, extent, begin in zip(
                extents, self.strides, self.reach, spatial, self.begins, strict=True
            )
        )

    def padded(self, x: Array, fill: float, extents: Sequence[int]) -> Array:
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
