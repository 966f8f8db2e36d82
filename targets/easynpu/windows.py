"""Windows of feature maps: which part of its inputs a node needs for a part of its output.

A window is a range of channels, rows and columns of a tensor, in the tensor's own coordinates. Tiles of a layer
range are planned and lowered by asking, from its last node to its first, what each must compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from npuc.ir import Graph, Node
from npuc.ops.windows import window_of
from npuc.targets.easynpu.memory import groups
from npuc.targets.easynpu.views import is_alias, map_shape

Range = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Half-open ranges of channels, rows and columns."""

    channels: Range
    rows: Range
    columns: Range

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the window."""
        return tuple(end - start for start, end in (self.channels, self.rows, self.columns))  # type: ignore[return-value]

    @property
    def start(self) -> tuple[int, int, int]:
        """First channel, row and column."""
        return self.channels[0], self.rows[0], self.columns[0]

    @property
    def words(self) -> int:
        """DTCM words of the window."""
        channels, height, width = self.shape
        return height * width * groups(channels)

    def joined(self, other: Window) -> Window:
        """The smallest window that holds both."""
        mine, theirs = (self.channels, self.rows, self.columns), (other.channels, other.rows, other.columns)
        channels, rows, columns = ((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(mine, theirs, strict=True))
        return Window(channels, rows, columns)


def whole(graph: Graph, tensor: str) -> Window:
    """All of a tensor."""
    channels, height, width = map_shape(graph.shape(tensor))
    return Window((0, channels), (0, height), (0, width))


def is_channelwise(graph: Graph, node: Node) -> bool:
    """Whether each output channel depends on the same input channel only."""
    if node.op != "IntConv":
        return node.op not in ("Concat", "Slice", "Split", "Reshape", "DepthToSpace", "IntReshape")
    group = node.integer("group", 1)
    return group == graph.shape(node.inputs[0])[1] == graph.shape(node.output)[1]


def needed_rows(extent: int, outputs: int, rows: Range, stride: int, padding: int, reach: int) -> Range:
    """The rows of a map that a window operator reads for these of its output rows; at least one.

    Rows that no window meets (beyond the last, or between windows further apart than they reach) are asked for as
    well, so that every element of every layer is computed and can be compared.
    """
    first = rows[0] * stride - padding
    last = extent if rows[1] == outputs else (rows[1] - 1) * stride - padding + max(reach, stride)
    start = min(max(first, 0), extent - 1)
    return start, max(min(last, extent), start + 1)


def needed(graph: Graph, node: Node, out: Window) -> Iterator[tuple[str, Window]]:
    """What a node reads of each of its activations for a window of its output."""
    x = node.inputs[0]
    if node.op in ("IntConv", "MaxPool"):
        shape, outputs = map_shape(graph.shape(x)), map_shape(graph.shape(node.output))
        kernel = graph.shape(node.inputs[1])[2:] if node.op == "IntConv" else node.integers("kernel_shape")
        window = window_of(node, (kernel[0], kernel[1]))
        steps = window.strides, window.begins, window.reach
        rows, columns = (
            needed_rows(shape[at], outputs[at], wanted, *(each[at - 1] for each in steps))
            for at, wanted in ((1, out.rows), (2, out.columns))
        )
        channels = out.channels if is_channelwise(graph, node) else (0, shape[0])
        yield x, Window(channels, rows, columns)
    elif node.op == "Concat" and node.integer("axis") == 1:
        for name in node.inputs:
            yield name, Window((0, graph.shape(name)[1]), out.rows, out.columns)
    elif node.op in ("Concat", "Slice", "Split", "DepthToSpace", "IntReshape") or is_alias(graph, node):
        for name in node.inputs:
            yield name, whole(graph, name)
    else:
        for name in node.inputs:
            if name not in graph.constants:
                yield name, _broadcast(graph, name, out)


def _broadcast(graph: Graph, name: str, out: Window) -> Window:
    """The operand's part for a window of the result: its one row or column where it is repeated."""
    shape = map_shape(graph.shape(name))
    ranges = (out.channels, out.rows, out.columns)
    channels, rows, columns = (
        (0, 1) if extent == 1 else wanted for extent, wanted in zip(shape, ranges, strict=True)
    )
    return Window(channels, rows, columns)


def windows_for(graph: Graph, nodes: Sequence[Node], outputs: Mapping[str, Window]) -> dict[str, Window]:
    """What must be computed (or loaded) of every tensor so that these windows of the outputs result."""
    found = dict(outputs)

    def ask(name: str, window: Window) -> None:
        found[name] = found[name].joined(window) if name in found else window

    for node in reversed(nodes):
        wanted = [found[name] for name in node.outputs if name in found]
        if not wanted:
            continue
        out = reduce(Window.joined, wanted)
        if node.op in ("Slice", "Split", "DepthToSpace", "IntReshape") or is_alias(graph, node):
            for name in node.outputs:
                found[name] = whole(graph, name)
        for name, window in needed(graph, node, out):
            ask(name, window)
    return found


def is_tileable(nodes: Iterable[Node]) -> bool:
    """Whether a range can be computed in spatial tiles: no node in it needs its inputs whole."""
    return not any(
        node.op in ("Slice", "Split", "Reshape", "DepthToSpace", "IntReshape")
        or (node.op == "Concat" and node.integer("axis") != 1)
        for node in nodes
    )
