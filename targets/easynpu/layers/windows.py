"""Windows of feature maps: which part of its inputs a node needs for a part of its output.

A window is a range of channels, rows and columns of a tensor, in the tensor's own coordinates. To plan and lower
the tiles of a layer range, the windows are computed from its last node to its first.

Documented words have no offsets: the second operand of a sum lies at the addresses of the result, and a window
starts at the first held row. Where a map is held from an earlier row than a reader needs, the result is anchored
there, and starts earlier too. Its first rows take padding in place of rows that the tile does not hold; they are
never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import BLOCKS, BLOCKSIZE, GROUP, KERNEL_SHAPE
from npuc.ops.windows import window_of
from npuc.targets.easynpu.layers.nodes import interleaved, is_alias, map_shape, moved_axes
from npuc.targets.easynpu.machine.memory import LANES, groups

Range = tuple[int, int]
Rows = Array
"""Rows (or columns, or channels), one entry per tile."""


@frozen
class MapWindow:
    """Half-open ranges of channels, rows and columns."""

    channels: Range
    rows: Range
    columns: Range

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the window."""
        channels, rows, columns = (end - start for start, end in (self.channels, self.rows, self.columns))
        return channels, rows, columns

    @property
    def start(self) -> tuple[int, int, int]:
        """First channel, row and column."""
        return self.channels[0], self.rows[0], self.columns[0]

    @property
    def words(self) -> int:
        """DTCM words of the window."""
        channels, height, width = self.shape
        return height * width * groups(channels)


def whole(graph: Graph, tensor: str) -> MapWindow:
    """All of a tensor."""
    channels, height, width = map_shape(graph.shape(tensor))
    return MapWindow((0, channels), (0, height), (0, width))


def is_channelwise(graph: Graph, node: Node) -> bool:
    """Whether each output channel depends on the same input channel only."""
    if node.op != "IntConv":
        return node.op not in ("Concat", "Slice", "Split", "Reshape", "DepthToSpace", "IntReshape")
    group = GROUP(node)
    return group == graph.shape(node.inputs[0])[1] == graph.shape(node.output)[1]


@frozen
class Sliding:
    """A window operator along one axis: how its output rows map to input rows."""

    extent: int
    """Rows of the input."""
    outputs: int
    """Rows of the output."""
    stride: int
    padding: int
    reach: int
    """Rows from the first to the last tap."""

    @classmethod
    def of(cls, graph: Graph, node: Node, axis: int) -> Sliding:
        """A convolution or a pool along the rows (axis 1) or columns (axis 2) of its map."""
        kernel = graph.shape(node.inputs[1])[2:] if node.op == "IntConv" else KERNEL_SHAPE(node)
        window, at = window_of(node, (kernel[0], kernel[1])), axis - 1
        extent, outputs = (map_shape(graph.shape(name))[axis] for name in (node.inputs[0], node.output))
        return cls(extent, outputs, window.strides[at], window.begins[at], window.reach[at])

    def needed(self, low: Rows, high: Rows) -> tuple[Rows, Rows]:
        """The input rows that the output rows low..high read; at least one.

        Rows that no window covers (after the last window, or between windows whose stride exceeds their reach) are
        included, so that every element of every layer is computed and can be compared.
        """
        first = np.minimum(np.maximum(low * self.stride - self.padding, 0), self.extent - 1)
        last = (high - 1) * self.stride - self.padding + max(self.reach, self.stride)
        last = np.where(high == self.outputs, self.extent, np.minimum(last, self.extent))
        return first, np.maximum(last, first + 1)


def interleaving(graph: Graph, node: Node) -> int:
    """Result rows (or columns) per row of each phase that a node interleaves; 1 for any other node."""
    return BLOCKSIZE(node) if interleaved(graph, node) is not None else 1


def needed(graph: Graph, node: Node, name: str, axis: int, low: Rows, high: Rows) -> tuple[Rows, Rows]:
    """The range of an activation along an axis (0 channels, 1 rows, 2 columns) for ranges of a node's output."""
    extent = map_shape(graph.shape(name))[axis]
    if node.op == "IntConv" and name != node.inputs[0]:  # the padding pixel
        return np.zeros_like(low), np.full_like(high, extent)
    if axis and node.op in ("IntConv", "MaxPool"):
        return Sliding.of(graph, node, axis).needed(low, high)
    if axis and (step := interleaving(graph, node)) > 1:
        return low // step, -(-high // step)
    mixes = axis in moved_axes(graph, node) if axis else not is_channelwise(graph, node)
    if mixes and node.op == "IntConv" and BLOCKS(node) > 1:
        return _input_channels(graph.constants[node.inputs[1]], low, high)
    if mixes or extent == 1:  # a single row or column is broadcast
        return np.zeros_like(low), np.full_like(high, extent)
    return low, high


def _input_channels(w: Array, low: Rows, high: Rows) -> tuple[Rows, Rows]:
    """The input channels that ranges of outputs meet, by weights (Co, Ci, Hk, Wk), in whole DTCM words.

    All of them for all outputs, so that every element of every layer is computed and can be compared.
    """
    used, ends = (w != 0).max(axis=(2, 3)), [np.zeros_like(low), np.full_like(high, w.shape[1])]
    for at, start in np.ndenumerate(low):
        met = np.flatnonzero(used[start : high[at]].any(axis=0)) // LANES
        if len(met) and high[at] - start < len(w):
            ends[0][at], ends[1][at] = met[0] * LANES, min((met[-1] + 1) * LANES, w.shape[1])
    return ends[0], ends[1]


def ranges_for(
    graph: Graph, nodes: Sequence[Node], outputs: Mapping[str, tuple[Rows, Rows]], axis: int
) -> dict[str, tuple[Rows, Rows]]:
    """The range of every tensor along an axis that must be computed or loaded, for many tiles of the outputs."""
    found = dict(outputs)
    for node in reversed(nodes):
        wanted = [found[name] for name in node.outputs if name in found]
        if not wanted:
            continue
        low, high = wanted[0]
        for first, last in wanted[1:]:
            low, high = np.minimum(low, first), np.maximum(high, last)
        if axis and (step := interleaving(graph, node)) > 1:  # whole blocks, so that every phase has as many rows
            low, high = low // step * step, -(-high // step) * step
            found[node.output] = low, high
        moves = axis in moved_axes(graph, node)
        for name in node.outputs:
            if moves:
                extent = map_shape(graph.shape(name))[axis]
                found[name] = np.zeros_like(low), np.full_like(high, extent)
            found.setdefault(name, (low, high))
        for name in dict.fromkeys(each for each in node.inputs if each not in graph.constants):
            first, last = needed(graph, node, name, axis, low, high)
            if name in found:
                first, last = np.minimum(found[name][0], first), np.maximum(found[name][1], last)
            found[name] = first, last
    return found


def windows_for(graph: Graph, nodes: Sequence[Node], outputs: Mapping[str, MapWindow]) -> dict[str, MapWindow]:
    """The window of every tensor that must be computed or loaded for these windows of the outputs."""
    along = [
        ranges_for(graph, nodes, {name: _range(window, axis) for name, window in outputs.items()}, axis)
        for axis in range(3)
    ]
    return {
        name: MapWindow(*((int(low), int(high)) for low, high in (ranges[name] for ranges in along)))
        for name in along[0]
    }


def _range(window: MapWindow, axis: int) -> tuple[Rows, Rows]:
    low, high = (window.channels, window.rows, window.columns)[axis]
    return np.array(low), np.array(high)


def is_tileable(graph: Graph, nodes: Iterable[Node], axis: int) -> bool:
    """Whether a range can be computed in tiles along an axis: no node in it moves elements along it."""
    return not any(axis in moved_axes(graph, node) for node in nodes)


Ranges = Mapping[str, tuple[Rows, Rows]]


def chains_of(graph: Graph, nodes: Sequence[Node], before: Mapping[Node, Node]) -> list[list[Node]]:
    """The fused chains of a run of nodes, in order; aliases take no words. before: `fused_behind`."""
    inner = set(before.values())
    found: list[list[Node]] = []
    for node in nodes:
        if node in inner or is_alias(graph, node):
            continue
        chain = [node]
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
        found.append(chain)
    return found


def operand_of(chain: Sequence[Node]) -> str | None:
    """The map that a chain adds or multiplies with, if any."""
    combining = next((node for node in chain if node.op in ("IntAdd", "IntMul")), None)
    if combining is None:
        return None
    own = {node.output for node in chain}
    return next((name for name in reversed(combining.inputs[:2]) if name not in own), None)


def _second_operands(chains: Sequence[Sequence[Node]]) -> dict[str, str]:
    """For each map that a chain begins by adding or multiplying, the other one."""
    pairs = [(chain[0].inputs[0], operand_of(chain)) for chain in chains if chain[0].op in ("IntAdd", "IntMul")]
    return {one: other for pair in pairs for one, other in (pair, pair[::-1]) if one and other and one != other}


def slides(head: Node) -> bool:
    """Whether a chain reads its map through windows, so that padding may stand in for rows above."""
    return head.op in ("IntConv", "MaxPool")


def anchored(graph: Graph, chains: Sequence[Sequence[Node]], needed: Ranges) -> Ranges:
    """The rows of every tensor that are computed where these are needed, for many tiles; some start earlier."""
    found = dict(needed)
    beside = _second_operands(chains)
    for chain in chains:
        head, result = chain[0], chain[-1].output
        other = operand_of(chain) or beside.get(result)
        if 1 in moved_axes(graph, head):
            continue
        low, high = needed[result]
        first, _ = found[head.inputs[0]]
        if slides(head):
            rows = Sliding.of(graph, head, 1)
            first = (first + rows.padding) // rows.stride
        low = np.minimum(low, first)
        if other is not None:
            low = np.minimum(low, found[other][0])
        found.update((node.output, (low, high)) for node in chain)
    return found
