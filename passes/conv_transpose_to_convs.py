"""Transposed convolutions as ordinary ones, one per phase of the output, whose results are interleaved."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, lcm

import numpy as np

from npuc.ir import Attr, Graph, Node
from npuc.ops.windows import window_of
from npuc.passes.interleaving import interleaved
from npuc.passes.rewriting import Draft, rewrite

MOST_PHASES = 256
"""A larger enlargement (more than 16 times each way) stays as it is."""


def conv_transpose_to_convs(graph: Graph) -> Graph:
    """A 2-D ConvTranspose with constant weights becomes Convs -> Concat -> DepthToSpace (DCR) [-> Slice].

    Output rows r, r + S, r + 2 S, .. all meet the same taps, each a multiple of the stride from the next: they are
    a convolution with a part of the kernel, reversed. S is the stride (of unequal ones the least common multiple,
    and the Convs have strides S / stride), so S * S Convs give all phases, in the order of DepthToSpace. Where the
    output ends within a block of S, a Slice cuts it. Stride 1 takes one Conv and nothing else. The activation goes
    with the Convs; groups stay.
    """
    return rewrite(graph, _to_convs)


@dataclass(frozen=True)
class Phase:
    """A Conv along one axis: the taps of the transposed kernel in its order (-1 is a zero), and its window."""

    taps: tuple[int, ...]
    begin: int
    end: int
    stride: int
    dilation: int


@dataclass(frozen=True)
class Axis:
    """A ConvTranspose along one axis, and the block of outputs whose members are told apart."""

    kernel: int
    stride: int
    dilation: int
    begin: int
    extent: int
    outputs: int
    block: int

    def phase(self, number: int) -> Phase:
        """The Conv that gives outputs number, number + block, ..: ceil(outputs / block) of them.

        Tap k of output o meets element (o + begin - k * dilation) / stride, if that is an integer. Zeros are
        added where the first element is behind element 0, and where the Conv would give more outputs.
        """
        meets = {
            k: (number + self.begin - k * self.dilation) // self.stride
            for k in reversed(range(self.kernel))
            if (number + self.begin - k * self.dilation) % self.stride == 0
        }
        step, dilation = self.block // self.stride, self.dilation // gcd(self.dilation, self.stride)
        first = next(iter(meets.values()), 0)
        before = max(-(-first // dilation), 0)
        taps = [-1] * before + (list(meets) or [-1])
        begin = before * dilation - first
        count = -(-self.outputs // self.block)
        while (self.extent + begin - (len(taps) - 1) * dilation - 1) // step >= count:
            taps.append(-1)
        end = (count - 1) * step + (len(taps) - 1) * dilation + 1 - self.extent - begin
        return Phase(tuple(taps), begin, max(end, 0), step, dilation)


def _to_convs(draft: Draft, node: Node) -> bool:
    if node.op != "ConvTranspose" or len(draft.shape(node.output)) != 4 or node.inputs[1] not in draft.constants:
        return False
    shape, extents = draft.shape(node.output), draft.shape(node.inputs[0])[2:]
    window = window_of(node, draft.constants[node.inputs[1]].shape[2:])
    block = lcm(*window.strides)
    if block**2 > MOST_PHASES:
        return False
    axes = (
        Axis(kernel, stride, dilation, begin, extent, outputs, block)
        for kernel, stride, dilation, begin, extent, outputs in zip(
            window.kernel, window.strides, window.dilations, window.begins, extents, shape[2:], strict=True
        )
    )
    rows, columns = ([axis.phase(number) for number in range(block)] for axis in axes)
    if block == 1:
        draft.replace(node, _conv(draft, node, rows[0], columns[0], node.output))
        return True
    places = product(range(block), repeat=2)
    names = {place: draft.fresh(f"{node.output}/phase_{place[0]}_{place[1]}") for place in places}
    convs = [_conv(draft, node, rows[row], columns[column], y) for (row, column), y in names.items()]
    draft.replace(node, *convs, *interleaved(draft, node, tuple(names.values()), block))
    return True


def _conv(draft: Draft, node: Node, row: Phase, column: Phase, output: str) -> Node:
    """The Conv of one phase; its weight (Co, C/group, ..) is made of the node's (C, Co/group, ..)."""
    w, group = draft.constants[node.inputs[1]], node.integer("group", 1)
    padded = np.pad(w, ((0, 0), (0, 0), (0, 1), (0, 1)))
    taps = padded[:, :, list(row.taps)][..., list(column.taps)]
    grouped = taps.reshape(group, w.shape[0] // group, w.shape[1], *taps.shape[2:]).swapaxes(1, 2)
    weight = draft.constant(np.ascontiguousarray(grouped.reshape(-1, *grouped.shape[2:])), f"{output}/weight")
    attrs: dict[str, Attr] = {key: node.attrs[key] for key in ("activation", "min", "max") if key in node.attrs}
    attrs |= {
        "kernel_shape": (len(row.taps), len(column.taps)),
        "strides": (row.stride, column.stride),
        "pads": (row.begin, column.begin, row.end, column.end),
        "dilations": (row.dilation, column.dilation),
        "group": group,
    }
    name = node.name if output == node.output else output
    return Node("Conv", (node.inputs[0], weight, *node.inputs[2:]), (output,), attrs, name, node.sources)
