"""Ranges of layers that the document's words and addresses can compute, decided before any word is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np

from npuc.errors import NpucError
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.addressing import is_alias
from npuc.targets.easynpu.layers.anchoring import chains_of, operand_of, slides
from npuc.targets.easynpu.layers.convolutions import expect_documented, load_of
from npuc.targets.easynpu.layers.fusion import fused_behind
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS
from npuc.targets.easynpu.layers.views import Views
from npuc.targets.easynpu.layers.windows import MapWindow, Sliding, is_channelwise, needed
from npuc.targets.easynpu.machine.memory import feature_words, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import Share
from npuc.targets.easynpu.plan.implicit import ChainUse, Inexpressible, arranged

MOST_PADDING = 15
"""Ph has 4 bits."""


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


MostOutputs = Callable[[tuple[Node, ...]], int]


def most_outputs(graph: Graph, machine: Machine) -> MostOutputs:
    """The most channels of its result that one word of a chain computes, cached."""

    @cache
    def found(chain: tuple[Node, ...]) -> int:
        if chain[0].op == "IntConv":
            return load_of(graph, chain[0], machine, chain[1:], documented=True).outputs
        return FIELD_CHANNELS

    return found


def _behind(node: Node, before: Mapping[Node, Node]) -> list[Node]:
    following = {producer: reader for reader, producer in before.items()}
    found: list[Node] = []
    while (last := found[-1] if found else node) in following:
        found.append(following[last])
    return found


@dataclass(frozen=True)
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
        shares: Mapping[str, Share],
        most: MostOutputs,
    ) -> None:
        self.graph, self.machine, self.shares, self.most = graph, machine, shares, most
        self.chains = chains_of(graph, nodes, before)

    def of_tile(
        self, views: Views, windows: Mapping[str, MapWindow], inputs: Sequence[str], outputs: Sequence[str]
    ) -> TileRun | None:
        """What the segments of a tile load; None if a map between two of its chains would go through the host."""
        try:
            found = [self._step(chain, views, windows) for chain in self.chains]
        except NpucError:
            return None
        steps = [step for step in found if step is not None]
        if not steps or len(steps) < len(found):
            return None
        sizes = {name: feature_words(*shape) for name, shape in views.buffers.items()}
        wide = {name for name, shape in views.buffers.items() if shape[0] > FIELD_CHANNELS}
        if not all(views.is_whole(views.tensors[name]) for name in inputs):
            return None
        loaded, stored = ([views.tensors[name].buffer for name in names] for names in (inputs, outputs))
        try:
            parts = arranged(steps, sizes, loaded, stored, self.machine, wide)
        except Inexpressible:
            return None
        streams = [tuple(item.step for item in part.items if item.step is not None) for part in parts]
        return TileRun(
            sum(sizes[name] for part in parts for name, _ in part.loads),
            tuple((stream, sum(steps[at].weights for at in stream)) for stream in streams),
        )

    def _step(self, chain: Sequence[Node], views: Views, windows: Mapping[str, MapWindow]) -> ChainUse | None:
        """A chain as one step; None if it takes several words for chunks of the channels, or parts of maps."""
        head, last = chain[0], chain[-1]
        channels = windows[last.output].shape[0]
        if channels > self.most(tuple(chain)):
            return None
        source, operand = head.inputs[0], operand_of(chain)
        names = [views.tensors[name] for name in (source, operand, last.output) if name is not None]
        if not all(views.is_whole(view) for view in names) or not self._meets(chain, source, operand, windows):
            return None
        weights = 0
        for node in chain:
            share = self.shares.get(node.output, Share())
            whole = groups(self.graph.shape(node.output)[1])
            weights += (
                ceil((share.weight_words - share.table_words) * groups(channels) / whole) + share.table_words
            )
        result = views.tensors[last.output].buffer
        other = None if operand is None else views.tensors[operand].buffer
        return ChainUse(head, views.tensors[source].buffer, other, result, result, weights, 2 * len(chain))

    def _meets(
        self, chain: Sequence[Node], source: str, operand: str | None, windows: Mapping[str, MapWindow]
    ) -> bool:
        """Whether the held operands begin where the chain reads, as no address can say otherwise."""
        head, held, result = chain[0], windows[source], windows[chain[-1].output]
        low, high = needed(self.graph, head, source, 2, *map(np.array, result.columns))
        if low != held.columns[0] or (high != held.columns[1] and not slides(head)):
            return False
        if not self._begins_with(head, held, result):
            return False
        if operand is not None:
            other = windows[operand]
            if other.columns != result.columns or other.rows[0] != result.rows[0]:
                return False
        alike = [source] if is_channelwise(self.graph, head) else []
        alike += [operand] if operand is not None else []
        return all(windows[name].channels == result.channels for name in alike)

    def _begins_with(self, head: Node, held: MapWindow, result: MapWindow) -> bool:
        """Whether a padding that a word can state leads from the first held row to that of the result."""
        if not slides(head):
            return held.rows[0] == result.rows[0]
        rows = Sliding.of(self.graph, head, 1)
        first = result.rows[0] * rows.stride - rows.padding
        return first <= held.rows[0] <= first + MOST_PADDING
