"""Jobs: chains of fused layer words with the weight blocks that they stream.

Source: easynpu, opcode table and Fused layers. A convolution followed by an addition and an activation becomes
three words, the first two with the fused flag; each stage produces the same int8 values as on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.targets.easynpu.layers.nodes import map_shape
from npuc.targets.easynpu.layers.views import MapView, Views
from npuc.targets.easynpu.layers.windows import MapWindow
from npuc.targets.easynpu.machine.isa import BY_MNEMONIC, Layer, Reshape
from npuc.targets.easynpu.machine.memory import LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine

FIELD_CHANNELS = 256
"""Ci and Co have 8 bits, stored minus one."""


@frozen
class Stage:
    """One layer word without tile and flags, its block of the weight stream, and what it computes."""

    word: Layer | Reshape
    block: Array
    node: Node
    tensor: str | None = None
    """The int8 tensor that it produces, whole or in part; None for a value that exists only within the chain."""
    source: MapView | None = None
    """The map that it reads; None for a stage that continues on the previous result."""
    keeps: bool = False
    """Its psums are kept for the next stage."""
    shares: bool = False
    """It may stream another stage's block if that begins with the same words."""
    weights_at: int | None = None
    """Address of its block in the weight DTCM; None if it directly follows the previously streamed block."""
    held: bool = False
    """Its block is part of another stage's and not loaded again."""

    @property
    def loaded(self) -> Array:
        """The words of its block that must be loaded."""
        return self.block[:0] if self.held else self.block


@frozen
class Job:
    """A fused chain: reads the sources of its stages, perhaps adds or multiplies `operand`, writes `result`."""

    stages: tuple[Stage, ...]
    result: MapView
    operand: MapView | None = None
    start: tuple[int, int, int] = (0, 0, 0)
    """The first channel, row and column of its tensors that it computes."""
    kept: MapView | None = None
    """Where the result is also stored in its order before the reshape."""
    takes: bool = False
    """It continues on the psums that the previous job left in the pads."""
    leaves: bool = False
    """It stores no result: its psums stay in the pads for the next job."""
    unused_rows: int = 0
    """The first rows of its result that nothing reads: they lack rows that the tile does not hold."""

    @property
    def sources(self) -> tuple[MapView, ...]:
        """The maps that the stages read, in order."""
        return tuple(stage.source for stage in self.stages if stage.source is not None)

    @property
    def reads(self) -> tuple[MapView, ...]:
        """Every map that the job reads."""
        return (*self.sources, self.operand) if self.operand is not None else self.sources

    @property
    def writes(self) -> tuple[MapView, ...]:
        """Every map that the job writes."""
        if self.leaves:
            return ()
        return (self.result, self.kept) if self.kept is not None else (self.result,)


@frozen
class Scope:
    """What jobs are built from: a run of array nodes, the views of their tensors, and the machine's limits."""

    graph: Graph
    nodes: Sequence[Node]
    views: Views
    windows: Mapping[str, MapWindow]
    """The window of every tensor that is computed or held."""
    machine: Machine
    documented: bool
    """Use only words that the document defines."""
    borders: tuple[int, ...] = ()
    """Channels that no job writes across: maps lie in parts there."""
    most_read: int = FIELD_CHANNELS
    """Channels that a dense word reads."""

    def size(self, node: Node) -> tuple[int, int]:
        """Rows and columns of a node's result that are computed."""
        return self.windows[node.output].shape[1:]

    def chunks(self, node: Node, extent: int, most: int) -> list[slice]:
        """The channels of a node's result, up to an extent, by jobs of at most so many."""
        first = self.windows[node.output].channels[0]
        ends = [0, *(each - first for each in self.borders if 0 < each - first < extent), extent]
        return [
            slice(low + each.start, low + each.stop)
            for low, end in pairwise(ends)
            for each in bands(end - low, most)
        ]

    def start(self, node: Node, chunk: slice) -> tuple[int, int, int]:
        """The first channel, row and column of a chunk of a node's result."""
        channel, row, column = self.windows[node.output].start
        return channel + chunk.start, row, column

    def aligned(self, name: str, node: Node) -> MapView:
        """The part of an elementwise operand that corresponds to the computed window of the result."""
        held, wanted = self.windows[name].start, self.windows[node.output].start
        height, width = self.size(node)
        view = self.views.tensors[name]
        shape = map_shape(self.graph.shape(name))
        channel, row, column = (
            0 if extent == 1 else w - h for extent, w, h in zip(shape, wanted, held, strict=True)
        )
        size = view.channels, min(height, shape[1]), min(width, shape[2])
        return view.window((channel, row, column), size)

    def operand(self, name: str, node: Node) -> MapView:
        """The part of the second operand for this window, broadcast over the map where it is smaller."""
        height, width = self.size(node)
        return self.aligned(name, node).broadcast_to(height, width)


def bands(extent: int, most: int) -> list[slice]:
    """Consecutive ranges of at most `most` elements."""
    return [slice(start, min(start + most, extent)) for start in range(0, extent, most)]


def chunk_view(view: MapView, chunk: slice) -> MapView:
    """The view of a chunk of channels, which starts at a multiple of 16."""
    return view.channel_groups(chunk.start // LANES, chunk.stop - chunk.start)


def pointwise_word(mnemonic: str, channels: int, height: int, width: int) -> Layer:
    """A 1x1 word over a map."""
    return Layer(
        opcode=BY_MNEMONIC[mnemonic].opcode,
        Hi=height, Wi=width, Ci=channels, Ho=height, Wo=width, Co=channels, Zs=groups(channels),
    )  # fmt: skip


def no_words() -> Array:
    """The empty weight block of a word that streams no weights."""
    return np.zeros((0, LANES), np.int8)
