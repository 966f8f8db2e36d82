"""Ranges of layers that the document's words and addresses can compute, decided before any word is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from npuc.errors import NpucError
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.addressing import is_alias
from npuc.targets.easynpu.layers.convolutions import expect_documented, load_of
from npuc.targets.easynpu.layers.fusion import fused_behind
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS
from npuc.targets.easynpu.layers.views import Views
from npuc.targets.easynpu.layers.windows import MapWindow, is_channelwise, needed
from npuc.targets.easynpu.machine.memory import feature_words, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import Share
from npuc.targets.easynpu.plan.implicit import ChainUse, Inexpressible, arranged


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


def _extents(window: MapWindow) -> tuple[tuple[int, int], tuple[int, int]]:
    return window.rows, window.columns


def _behind(node: Node, before: Mapping[Node, Node]) -> list[Node]:
    following = {producer: reader for reader, producer in before.items()}
    found: list[Node] = []
    while (last := found[-1] if found else node) in following:
        found.append(following[last])
    return found


class Chains:
    """The chains of a range of nodes, and whether the document's addresses suffice for tiles of them."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        machine: Machine,
        before: Mapping[Node, Node],
        shares: Mapping[str, Share],
    ) -> None:
        self.graph, self.machine, self.shares = graph, machine, shares
        inner = set(before.values())
        self.chains: list[list[Node]] = []
        for node in nodes:
            if node in inner or is_alias(graph, node):
                continue
            chain = [node]
            while chain[0] in before:
                chain.insert(0, before[chain[0]])
            self.chains.append(chain)

    def fit(
        self, views: Views, windows: Mapping[str, MapWindow], inputs: Sequence[str], outputs: Sequence[str]
    ) -> bool:
        """Whether a tile can be computed without any map between two of its chains going through the host."""
        try:
            steps = [self._step(chain, views, windows) for chain in self.chains]
        except NpucError:
            return False
        if not steps or any(step is None for step in steps):
            return False
        sizes = {name: feature_words(*shape) for name, shape in views.buffers.items()}
        wide = {name for name, shape in views.buffers.items() if shape[0] > FIELD_CHANNELS}
        if not all(views.is_whole(views.tensors[name]) for name in inputs):
            return False
        loaded, stored = ([views.tensors[name].buffer for name in names] for names in (inputs, outputs))
        try:
            arranged([step for step in steps if step is not None], sizes, loaded, stored, self.machine, wide)
        except Inexpressible:
            return False
        return True

    def _step(self, chain: Sequence[Node], views: Views, windows: Mapping[str, MapWindow]) -> ChainUse | None:
        """A chain as one step; None if it takes several words for chunks of the channels, or parts of maps."""
        head, last = chain[0], chain[-1]
        channels = windows[last.output].shape[0]
        if channels > self._most(head, chain[1:]):
            return None
        source, operand = head.inputs[0], None
        sums = [node for node in chain if node.op in ("IntAdd", "IntMul")]
        if sums:
            others = [name for name in sums[0].inputs[:2] if name != source or sums[0] is head]
            own = {node.output for node in chain}
            operand = next((name for name in reversed(others) if name not in own), None)
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
        head, result = chain[0], windows[chain[-1].output]
        slides = head.op in ("IntConv", "MaxPool")
        for axis, held, wanted in zip((1, 2), _extents(windows[source]), _extents(result), strict=True):
            low, high = needed(self.graph, head, source, axis, np.array(wanted[0]), np.array(wanted[1]))
            if low != held[0] or (high != held[1] and not slides):
                return False
        if operand is not None and _extents(windows[operand]) != _extents(result):
            return False
        alike = [source] if is_channelwise(self.graph, head) else []
        alike += [operand] if operand is not None else []
        return all(windows[name].channels == result.channels for name in alike)

    def _most(self, head: Node, followers: Sequence[Node]) -> int:
        """The most channels of the result that one word computes."""
        if head.op == "IntConv":
            return load_of(self.graph, head, self.machine, followers, documented=True).outputs
        return FIELD_CHANNELS
