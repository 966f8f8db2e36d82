"""Convolutions with too large strides, rewritten with blocks of pixels as channels, or signals in rows."""

from __future__ import annotations

from functools import partial
from math import gcd

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import GROUP
from npuc.passes.rewriting.patterns import conv_window
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_ROW = 32
"""The longest row of a signal, which is also the width of the kernel."""


@frozen
class FoldStrides:
    """A Conv of an image with too large a stride becomes one with smaller strides.

    Exact: the same products, plus zeros if the kernel is no multiple of the block.
    A signal (an image and windows of one row or one column) is arranged in rows whose length divides the stride: a
    Reshape, and a kernel as wide as a row. The largest suitable length up to 32 is used. Any other image goes
    through SpaceToDepth with a block size that divides both strides: the largest without too many channels,
    otherwise the smallest sufficient one. Dilated and grouped ones are left unchanged.
    """

    most_stride: int
    most_channels: int
    __name__ = "fold_strides"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such convolutions folded."""
        return rewrite(
            graph, partial(_lay_in_rows, self.most_stride), partial(_fold, self.most_stride, self.most_channels)
        )


def _lay_in_rows(most: int, rewriter: Rewriter, node: Node) -> bool:
    """A signal of L elements as L / row rows."""
    window, shape = conv_window(rewriter, node), rewriter.shape(node.inputs[0])
    w = None if window is None else rewriter.constants.get(node.inputs[1])
    if window is None or w is None or 1 not in shape[2:]:
        return False
    along = 1 - shape[2:].index(1) if shape[2:] != (1, 1) else 1
    stride, begin = window.strides[along], window.begins[along]
    flat = w.shape[3 - along] == 1 and window.begins[1 - along] == window.ends[1 - along] == 0
    row = _row(stride, most) if flat and stride > most else None
    count = rewriter.shape(node.output)[2 + along]
    if row is None:
        return False
    above = -(-begin // row)  # whole rows of padding; the kernel begins with zeros if they are too long
    taps = _in_rows(w.reshape(*w.shape[:2], -1), window.dilations[along], above * row - begin, row)
    step = stride // row
    rows = (count - 1) * step + taps.shape[2] - above  # rows that windows reach
    if rows < 1:
        return False
    x, held, nodes = _whole_rows(rewriter, node, shape, 2 + along, row, rows)
    image = rewriter.part(node, "Reshape", (x,), f"{node.output}/rows", shape=(*shape[:2], held, row))
    result = rewriter.fresh(f"{node.output}/column")
    attrs: dict[str, Attr] = {
        "strides": (step, 1),
        "pads": (above, 0, max(rows - held, 0), 0),
        **{key: value for key, value in node.attrs.items() if key not in WINDOW},
    }
    weights = rewriter.constant(taps, f"{node.output}/in_rows")
    inputs = (image.output, weights, *node.inputs[2:])
    conv = Node("Conv", inputs, (result,), attrs, node.name, node.sources)
    rewriter.replace(node, *nodes, image, conv, rewriter.back(node, result))
    return True


WINDOW = ("kernel_shape", "pads", "dilations", "strides", "auto_pad")


def _row(stride: int, most: int) -> int | None:
    """The length of rows, or None if no length makes the stride small enough."""
    fitting = (row for row in range(2, MOST_ROW + 1) if stride % row == 0 and stride // row <= most)
    return max(fitting, default=None)


def _in_rows(w: Array, dilation: int, before: int, row: int) -> Array:
    """(Co, Ci, K) as (Co, Ci, R, row): the same taps after `before` zeros, the last row filled with zeros."""
    reach = before + (w.shape[2] - 1) * dilation + 1
    taps = np.zeros((*w.shape[:2], -(-reach // row) * row), w.dtype)
    taps[:, :, before:reach:dilation] = w
    return taps.reshape(*w.shape[:2], -1, row)


def _whole_rows(
    rewriter: Rewriter, node: Node, shape: tuple[int, ...], axis: int, row: int, rows: int
) -> tuple[str, int, list[Node]]:
    """The signal in whole rows, as far as windows reach: its tensor, its rows, and the nodes that compute it."""
    x, extent = node.inputs[0], shape[axis]
    if rows * row < extent:
        stem, ends = f"{node.output}/cut", (rows * row,)
        cut = rewriter.part(node, "Slice", (x,), stem, axes=(axis,), starts=(0,), ends=ends, steps=(1,))
        return cut.output, rows, [cut]
    held = -(-extent // row)
    if held * row == extent:
        return x, held, []
    pads = [0] * 8
    pads[4 + axis] = held * row - extent
    pad = rewriter.part(node, "Pad", (x,), f"{node.output}/padded", pads=tuple(pads), mode="constant", value=0.0)
    return pad.output, held, [pad]


def _fold(most: int, most_channels: int, rewriter: Rewriter, node: Node) -> bool:
    window = conv_window(rewriter, node)
    w = None if window is None else rewriter.constants.get(node.inputs[1])
    if window is None or w is None or GROUP(node) != 1:
        return False
    block = _block(window.strides, w.shape[1], most, most_channels) if max(window.strides) > most else None
    if block is None or set(window.dilations) != {1}:
        return False
    shape, outputs = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)[2:]
    reached = [
        -(-((count - 1) * stride + kernel) // block) * block
        for count, stride, kernel in zip(outputs, window.strides, w.shape[2:], strict=True)
    ]
    x, nodes = _cut(rewriter, node, shape, reached, window.begins)
    folded = rewriter.part(node, "SpaceToDepth", (x,), f"{node.output}/blocks", blocksize=block)
    weights = rewriter.constant(_weights(w, block), f"{node.output}/folded")
    strides = tuple(stride // block for stride in window.strides)
    attrs: dict[str, Attr] = {
        k: v for k, v in node.attrs.items() if k not in ("kernel_shape", "pads", "dilations")
    }
    inputs = (folded.output, weights, *node.inputs[2:])
    conv = Node("Conv", inputs, node.outputs, {**attrs, "strides": strides}, node.name, node.sources)
    rewriter.replace(node, *nodes, folded, conv)
    return True


def _block(strides: tuple[int, ...], channels: int, most: int, most_channels: int) -> int | None:
    """The block size, or None if none makes the strides small enough."""
    common = gcd(*strides)
    fitting = [size for size in range(2, common + 1) if common % size == 0 and max(strides) // size <= most]
    small = [size for size in fitting if channels * size * size <= most_channels]
    return max(small, default=min(fitting, default=None))


def _cut(
    rewriter: Rewriter, node: Node, shape: tuple[int, ...], reached: list[int], begins: tuple[int, ...]
) -> tuple[str, list[Node]]:
    """The image with its padding, as far as windows reach: its tensor, and the nodes that compute it."""
    x, nodes = node.inputs[0], list[Node]()
    ends = [max(extent - begin - size, 0) for extent, begin, size in zip(reached, begins, shape[2:], strict=True)]
    if any((*begins, *ends)):
        stem, pads = f"{node.output}/padded", (0, 0, *begins, 0, 0, *ends)
        nodes.append(rewriter.part(node, "Pad", (x,), stem, pads=pads, mode="constant", value=0.0))
        x = nodes[-1].output
    if any(begin + size > extent for extent, begin, size in zip(reached, begins, shape[2:], strict=True)):
        attrs: dict[str, Attr] = {"axes": (2, 3), "starts": (0, 0), "ends": tuple(reached), "steps": (1, 1)}
        nodes.append(rewriter.part(node, "Slice", (x,), f"{node.output}/cut", **attrs))
        x = nodes[-1].output
    return x, nodes


def _weights(w: Array, block: int) -> Array:
    """(Co, Ci, Hk, Wk) as (Co, block * block * Ci, Hk / block, Wk / block), rounded up with zeros."""
    outputs, channels, *kernel = w.shape
    high, wide = (-(-extent // block) for extent in kernel)
    padded = np.zeros((outputs, channels, high * block, wide * block), w.dtype)
    padded[:, :, : kernel[0], : kernel[1]] = w
    tiles = padded.reshape(outputs, channels, high, block, wide, block)
    return tiles.transpose(0, 3, 5, 1, 2, 4).reshape(outputs, block * block * channels, high, wide)
