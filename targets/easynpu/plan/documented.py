"""Ranges of layers that the document's words and addresses can compute, decided before any word is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import ceil

import numpy as np

from npuc.errors import NpucError
from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.convolutions import expect_documented, load_of
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS
from npuc.targets.easynpu.layers.kernels import MOST_STEP
from npuc.targets.easynpu.layers.nodes import fused_behind, moved_axes
from npuc.targets.easynpu.layers.views import Views
from npuc.targets.easynpu.layers.windows import MapWindow, Sliding, chains_of, is_channelwise, operand_of, slides
from npuc.targets.easynpu.machine.memory import feature_words, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import JobShare
from npuc.targets.easynpu.plan.implicit import ChainUse, Inexpressible, arrange_segments


def expect_words(graph: Graph, nodes: Sequence[Node], machine: Machine) -> None:
    """Raises NpucError with every layer that documented words cannot compute with any tile (E204, E302)."""
    before = fused_behind(graph, nodes, machine)
    problems = [
        problem
        for node in nodes
        if node.op == "IntConv" and node not in before
        for problem in expect_documented(graph, node, machine, _behind(node, before))
    ]
    if problems:
        raise NpucError.of(problems)


@frozen
class Reading:
    """How a chain reads its maps, whatever the tile."""

    source: str
    operand: str | None
    rows: Sliding | None
    """How its windows slide; None for a chain without windows."""
    columns: Sliding | None
    alike: tuple[str, ...]
    """The maps of which it reads the channels that it gives."""
    most: int
    """The most channels of the result that one word computes."""
    moves: bool
    """It moves elements, and reads and gives whole maps."""

    @classmethod
    def of(cls, graph: Graph, chain: Sequence[Node], machine: Machine) -> Reading:
        """The reading of a chain. Raises NpucError where no word computes it."""
        head, operand = chain[0], operand_of(chain)
        rows, columns = (Sliding.of(graph, head, axis) if slides(head) else None for axis in (1, 2))
        alike = [head.inputs[0]] if is_channelwise(graph, head) else []
        alike += [operand] if operand is not None else []
        most = FIELD_CHANNELS
        if head.op == "IntConv":
            most = load_of(graph, head, machine, chain[1:], documented=True).outputs
        moves = bool(moved_axes(graph, head) & {1, 2})
        return cls(head.inputs[0], operand, rows, columns, tuple(alike), most, moves)


Readings = Callable[[tuple[Node, ...]], Reading]


def readings_of(graph: Graph, machine: Machine) -> Readings:
    """`Reading.of`, cached."""

    @cache
    def found(chain: tuple[Node, ...]) -> Reading:
        return Reading.of(graph, chain, machine)

    return found


def _behind(node: Node, before: Mapping[Node, Node]) -> list[Node]:
    following = {producer: reader for reader, producer in before.items()}
    found: list[Node] = []
    while (last := found[-1] if found else node) in following:
        found.append(following[last])
    return found


@frozen
class TileRun:
    """What the segments of a tile load."""

    loaded_words: int
    """Words of maps."""
    streams: tuple[tuple[tuple[int, ...], int], ...]
    """The steps of every segment, and the words of its weight stream."""


class Chains:
    """The chains of a range of nodes, and whether the document's addresses suffice for tiles of them."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        machine: Machine,
        before: Mapping[Node, Node],
        shares: Mapping[str, JobShare],
        readings: Readings,
    ) -> None:
        self.graph, self.machine, self.shares, self.readings = graph, machine, shares, readings
        self.chains = chains_of(graph, nodes, before)

    def of_tile(
        self, views: Views, windows: Mapping[str, MapWindow], inputs: Sequence[str], outputs: Sequence[str]
    ) -> TileRun | None:
        """What the segments of a tile load; None if a map between two of its chains would go through the host."""
        steps: list[ChainUse] = []
        try:
            for chain in self.chains:
                step = self._step(chain, views, windows)
                if step is None:
                    return None
                steps.append(step)
        except NpucError:
            return None
        if not steps:
            return None
        sizes = {name: feature_words(*shape) for name, shape in views.buffers.items()}
        wide = {name for name, shape in views.buffers.items() if shape[0] > FIELD_CHANNELS}
        if not all(views.is_whole(views.tensors[name]) for name in inputs):
            return None
        loaded, stored = ([views.tensors[name].buffer for name in names] for names in (inputs, outputs))
        try:
            parts = arrange_segments(steps, sizes, loaded, stored, self.machine, wide)
        except Inexpressible:
            return None
        streams = [tuple(item.step for item in part.items if item.step is not None) for part in parts]
        return TileRun(
            sum(sizes[name] for part in parts for name, _ in part.loads),
            tuple((stream, sum(steps[at].weights for at in stream)) for stream in streams),
        )

    def _step(self, chain: Sequence[Node], views: Views, windows: Mapping[str, MapWindow]) -> ChainUse | None:
        """A chain as one step; None if it takes several words for chunks of the channels, or parts of maps."""
        last, reading = chain[-1], self.readings(tuple(chain))
        source, operand = reading.source, reading.operand
        channels = windows[last.output].shape[0]
        if channels > reading.most or not self._meets(reading, windows, windows[last.output]):
            return None
        names = [views.tensors[name] for name in (source, operand, last.output) if name is not None]
        if not all(views.is_whole(view) for view in names):
            return None
        weights = 0
        for node in chain:
            share = self.shares.get(node.output, JobShare())
            whole = groups(self.graph.shape(node.output)[1])
            weights += (
                ceil((share.weight_words - share.table_words) * groups(channels) / whole) + share.table_words
            )
        result = views.tensors[last.output].buffer
        other = None if operand is None else views.tensors[operand].buffer
        return ChainUse(chain[0], views.tensors[source].buffer, other, result, result, weights, 2 * len(chain))

    @staticmethod
    def _meets(reading: Reading, windows: Mapping[str, MapWindow], result: MapWindow) -> bool:
        """Whether the held operands begin where the chain reads, as no address can say otherwise."""
        held = windows[reading.source]
        if any(windows[name].channels != result.channels for name in reading.alike):
            return False
        if reading.operand is not None:
            other = windows[reading.operand]
            if other.columns != result.columns or other.rows[0] != result.rows[0]:
                return False
        if reading.rows is None or reading.columns is None:
            return reading.moves or (held.columns == result.columns and held.rows[0] == result.rows[0])
        first = result.rows[0] * reading.rows.stride - reading.rows.padding
        column, _ = reading.columns.needed(*map(np.array, result.columns))
        return column == held.columns[0] and first <= held.rows[0] <= first + MOST_STEP
