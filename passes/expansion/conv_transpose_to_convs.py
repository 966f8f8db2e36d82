"""Transposed convolutions as ordinary ones, one per phase of the output, whose results are interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import gcd, lcm, prod

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import GROUP
from npuc.ops.movement import interleaved_extents
from npuc.ops.windows import Window, window_of
from npuc.passes.rewriting.maps import in_lanes, interleave, phase_nodes
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_PHASES = 256
"""A ConvTranspose with more phases (more than 16x enlargement each way) stays as it is."""
SPREADING = 4
"""The cost of moving a pixel's channels of all lanes, in multiplications of as many lanes."""


@frozen
class ConvTransposeToConvs:
    """A 2-D ConvTranspose with constant weights becomes Convs -> Concat -> DepthToSpace (DCR) [-> Slice].

    Output rows r, r + S, r + 2 S, .. all use the same taps at multiples of the stride, so they are a convolution
    with a reversed part of the kernel. S is the stride (for unequal strides their least common multiple, and the
    Convs have strides S / stride), so S * S Convs give all phases, in the order of DepthToSpace. With few output
    channels a single Conv computes all phases as its channels, if their common window is less work for the lanes
    (channels computed in parallel). If the output ends within a block of S, a Slice crops it. Stride 1 takes one
    Conv and nothing else. The activation is fused into the Convs; groups are kept.
    """

    lanes: int
    __name__ = "conv_transpose_to_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with convolutions instead."""
        return rewrite(graph, partial(_to_convs, self.lanes))


def conv_transpose_to_phases(graph: Graph) -> Graph:
    """A 2-D ConvTranspose with constant weights becomes Convs -> Interleave along H -> Interleave along W.

    There is one Conv of stride 1 for each of stride_y * stride_x phases, with exactly the rows and columns of its
    phase.
    """
    return rewrite(graph, _to_phases)


@frozen
class Phase:
    """A Conv along one axis: the indices of its taps in the transposed kernel (-1 is a zero), and its window."""

    taps: tuple[int, ...]
    begin: int
    end: int
    stride: int
    dilation: int


@frozen
class TransposedAxis:
    """A ConvTranspose along one axis, and the block size of outputs that are computed separately."""

    kernel: int
    stride: int
    dilation: int
    begin: int
    extent: int
    outputs: int
    block: int

    def separate_phases(self) -> list[Phase]:
        """For each member of the block the Conv with the smallest window."""
        return [self._phases([number], self._spacing)[0] for number in range(self.block)]

    def ragged_phases(self) -> list[Phase]:
        """The same, each with the number of outputs of its member; members without outputs have no Conv."""
        counts = interleaved_extents(self.outputs, min(self.block, self.outputs))
        return [self._phases([number], self._spacing, count)[0] for number, count in enumerate(counts)]

    def common_phases(self) -> list[Phase]:
        """For each member of the block a Conv, all with the same window."""
        return self._phases(range(self.block), 1)

    @property
    def _spacing(self) -> int:
        """The dilation of the taps of one member."""
        return self.dilation // gcd(self.dilation, self.stride)

    def _meets(self, number: int) -> dict[int, int]:
        """Element -> tap: tap k of output o reads element (o + begin - k * dilation) / stride, if an integer."""
        places = {k: number + self.begin - k * self.dilation for k in range(self.kernel)}
        return {place // self.stride: k for k, place in places.items() if place % self.stride == 0}

    def _phases(self, numbers: Sequence[int], dilation: int, count: int = 0) -> list[Phase]:
        """Convs for outputs number, number + block, ..: `count` of each, or ceil(outputs / block).

        Zero taps are added if the first element is after element 0, and if a Conv would give too many outputs.
        """
        met = [self._meets(number) for number in numbers]
        elements = [element for each in met for element in each]
        first = min(elements, default=0)
        first -= max(-(-first // dilation), 0) * dilation
        taps = (max(elements, default=first) - first) // dilation + 1
        step, count = self.block // self.stride, count or -(-self.outputs // self.block)
        while (self.extent - first - (taps - 1) * dilation - 1) // step >= count:
            taps += 1
        end = (count - 1) * step + (taps - 1) * dilation + 1 - self.extent + first
        places = range(first, first + taps * dilation, dilation)
        kernels = [tuple(each.get(place, -1) for place in places) for each in met]
        return [Phase(kernel, -first, max(end, 0), step, dilation) for kernel in kernels]


def _to_convs(lanes: int, rewriter: Rewriter, node: Node) -> bool:
    if not _is_constant_image(rewriter, node):
        return False
    block = lcm(*_window(rewriter, node).strides)
    if block**2 > MOST_PHASES:
        return False
    axes = _axes(rewriter, node, (block, block))
    convs = _choose_phases(lanes, rewriter, node, axes)
    if block == 1:
        rewriter.replace(node, _conv(rewriter, node, convs[0], node.output))
        return True
    numbers = product(range(block), repeat=2)
    stems = [f"phase_{row}_{column}" for row, column in numbers] if len(convs) > 1 else ["phases"]
    names = [rewriter.fresh(f"{node.output}/{stem}") for stem in stems]
    made = [_conv(rewriter, node, phases, y) for phases, y in zip(convs, names, strict=True)]
    rewriter.replace(node, *made, *interleave(rewriter, node, names, block))
    return True


def _to_phases(rewriter: Rewriter, node: Node) -> bool:
    if not _is_constant_image(rewriter, node):
        return False
    strides = _window(rewriter, node).strides
    if prod(strides) > MOST_PHASES:
        return False
    rows, columns = (axis.ragged_phases() for axis in _axes(rewriter, node, strides))

    def make(row: Phase, column: Phase, output: str) -> Node:
        return _conv(rewriter, node, [(row, column)], output)

    rewriter.replace(node, *phase_nodes(rewriter, node, rows, columns, make))
    return True


def _is_constant_image(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node is a ConvTranspose of images by constant weights."""
    image = node.op == "ConvTranspose" and len(rewriter.shape(node.output)) == 4
    return image and node.inputs[1] in rewriter.constants


def _window(rewriter: Rewriter, node: Node) -> Window:
    return window_of(node, rewriter.constants[node.inputs[1]].shape[2:])


def _axes(rewriter: Rewriter, node: Node, blocks: Sequence[int]) -> list[TransposedAxis]:
    """Both axes, with these block sizes."""
    window, shape, extents = (
        _window(rewriter, node),
        rewriter.shape(node.output),
        rewriter.shape(node.inputs[0])[2:],
    )
    return [
        TransposedAxis(kernel, stride, dilation, begin, extent, outputs, block)
        for kernel, stride, dilation, begin, extent, outputs, block in zip(
            window.kernel, window.strides, window.dilations, window.begins, extents, shape[2:], blocks, strict=True
        )
    ]


Phases = Sequence[tuple[Phase, Phase]]
"""Row and column phases of one Conv; their windows are the same."""


def _choose_phases(lanes: int, rewriter: Rewriter, node: Node, axes: Sequence[TransposedAxis]) -> list[Phases]:
    """One Conv for each phase, or, if that is clearly less work, one for all."""
    rows, columns = (axis.separate_phases() for axis in axes)
    separate: list[Phases] = [[(row, column)] for row in rows for column in columns]
    rows, columns = (axis.common_phases() for axis in axes)
    common: list[Phases] = [[(row, column) for row in rows for column in columns]]
    constant = all(name in rewriter.constants for name in node.inputs[1:] if name)
    if GROUP(node) > 1 or not constant:
        return separate
    work, apart = (_work(lanes, rewriter, node, each) for each in (common, separate))
    return common if 4 * work <= 3 * apart else separate


def _work(lanes: int, rewriter: Rewriter, node: Node, convs: Sequence[Phases]) -> int:
    """Multiplications on all lanes per block of outputs, including the cost of moving those of a common Conv."""
    C, Co = rewriter.shape(node.inputs[0])[1], rewriter.shape(node.output)[1]
    taps = sum(len(each[0][0].taps) * len(each[0][1].taps) * in_lanes(Co * len(each), lanes) for each in convs)
    moved = SPREADING * in_lanes(Co, lanes) * len(convs[0]) if len(convs) == 1 else 0
    return taps * C + moved


def _conv(rewriter: Rewriter, node: Node, phases: Phases, output: str) -> Node:
    """The Conv of some phases; its weight (phases * Co, C/group, ..) comes from the node's (C, Co/group, ..)."""
    w, group = rewriter.constants[node.inputs[1]], GROUP(node)
    padded = np.pad(w, ((0, 0), (0, 0), (0, 1), (0, 1)))
    weights: list[Array] = []
    for row, column in phases:
        taps = padded[:, :, list(row.taps)][..., list(column.taps)]
        grouped = taps.reshape(group, w.shape[0] // group, w.shape[1], *taps.shape[2:]).swapaxes(1, 2)
        weights.append(grouped.reshape(-1, *grouped.shape[2:]))
    inputs = [node.inputs[0], rewriter.constant(np.concatenate(weights), f"{output}/weight"), *node.inputs[2:]]
    if len(phases) > 1 and len(inputs) > 2 and inputs[2]:
        repeated = [rewriter.constants[node.inputs[2]]] * len(phases)
        inputs[2] = rewriter.constant(np.concatenate(repeated), f"{output}/bias")
    row, column = phases[0]
    attrs: dict[str, Attr] = {key: node.attrs[key] for key in ("activation", "min", "max") if key in node.attrs}
    attrs |= {
        "kernel_shape": (len(row.taps), len(column.taps)),
        "strides": (row.stride, column.stride),
        "pads": (row.begin, column.begin, row.end, column.end),
        "dilations": (row.dilation, column.dilation),
        "group": group,
    }
    name = node.name if output == node.output else output
    return Node("Conv", tuple(inputs), (output,), attrs, name, node.sources)
