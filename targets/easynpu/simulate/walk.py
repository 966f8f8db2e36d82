"""The chains of a program in order, with their cycles by the cycle model; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.program import Program
from npuc.storage.records import damage_error
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.chains import ChainStage, chains
from npuc.targets.easynpu.machine.isa import Instruction, Layer
from npuc.targets.easynpu.machine.memory import Map, feature_words
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import SETUP, most_written, written_words
from npuc.targets.easynpu.machine.timing import ChainCost, Followers, chain_cost, port_use
from npuc.targets.easynpu.program.artefact import Contents, Segment

COMBINING = ("add", "mul")


@frozen
class Chain:
    """A fused chain in its program. words: its instruction words, extension words included."""

    stages: tuple[ChainStage, ...]
    words: int
    machine: Machine
    low: bool
    """The current map is at the low end of the Fmap DTCM."""

    @property
    def computing(self) -> tuple[ChainStage, ...]:
        """The words that compute: without a reshape behind others, which has no pass of its own."""
        return self.stages[:-1] if len(self.stages) > 1 and self.stages[-1].reshape else self.stages

    @property
    def parts(self) -> list[Layer]:
        """The first layer word, or the words that share psums."""
        return [stage.layer for stage in self.computing[: self._kept + 1]]

    @property
    def _kept(self) -> int:
        return sum(stage.keeps for stage in self.computing[:-1])

    @property
    def followers(self) -> Followers:
        """The words behind the parts, as the cycle model counts them."""
        computing, kept = self.computing, self._kept
        behind = computing[kept + 1 :]
        source = computing[0].ifmap(self.machine, self.low).place.memory
        end = self.stages[-1].reshape
        rearranged = [] if end is None else self.written(self.stages[-1])
        ports = tuple(
            port_use(
                stage.operand().place.memory if stage.name in COMBINING else None,
                [each.place.memory for each in self.written(stage) + rearranged * (stage is computing[-1])],
                source,
                1 if end is None or stage is not computing[-1] else most_written(end),
            )
            for stage in computing[kept:]
        )
        words = self.words - len(self.parts) + (SETUP if end is not None else 0)
        return Followers(len(behind), sum(stage.parameter_words for stage in behind), words, ports)

    @property
    def cycles(self) -> int:
        """Cycles by the cycle model."""
        return int(self.cost.cycles[0])

    @property
    def cost(self) -> ChainCost:
        """Its cycles, computing cycles and bus words, one value each."""
        head = self.stages[0].reshape
        if head is not None:
            bus = np.array([feature_words(head.Ci, head.Hi, head.Wi) + written_words(head)])
            return ChainCost(self.words + SETUP + bus, 0 * bus, bus)
        y, x = np.array([self.parts[0].y]), np.array([self.parts[0].x])
        return chain_cost(self.parts, y, x, self.machine, self.followers)

    @property
    def weight_words(self) -> int:
        """Words of the weight stream that it reads."""
        return sum(stage.streamed_words for stage in self.stages)

    def written(self, stage: ChainStage) -> list[Map]:
        """The maps that one of its words writes."""
        stored = [stage.stored()] if stage.layer.stored else []
        gives = stage is self.stages[-1] and not stage.keeps
        return [*stored, stage.ofmap(self.machine, not self.low)] if gives else stored

    @property
    def read(self) -> Iterator[Map]:
        """The maps that it reads."""
        for before, stage in zip((None, *self.stages), self.stages, strict=False):
            if before is None or before.keeps:
                yield stage.ifmap(self.machine, self.low)
            if stage.name in COMBINING:
                yield stage.operand()

    @property
    def flips(self) -> bool:
        """Whether its result becomes the current map at the other end of the Fmap DTCM."""
        return "dst" not in self.stages[-1].operands and not self.stages[-1].leaves


def chains_of(words: Sequence[Instruction], first: int, machine: Machine) -> Iterator[Chain]:
    """The chains of a segment's words; first: the number of the first word in the program.

    Raises ArtefactError (E503) for words that form no chains.
    """
    low, done = True, first
    for stages in chains(tuple(words), first):
        chain = Chain(tuple(stages), stages[-1].number + 1 - done, machine, low)
        yield chain
        done = stages[-1].number + 1
        low = low is not chain.flips


def segments_of(program: Program) -> Iterator[tuple[Segment, list[Chain]]]:
    """Every segment with its chains, in order; the first one loads what stays, if anything does.

    Raises ArtefactError (E502, E503) for what cannot be run.
    """
    contents = Contents.of(program.manifest)
    words: tuple[Instruction, ...] = ()
    first = 0
    for segment in (*([contents.init] if contents.init.images else []), *contents.segments):
        for image in segment.images:
            if image.memory == "itcm":
                first, words = image.start, isa.bytes_to_words(image.data(program.files, contents.machine))
        chains = list(chains_of(words[: segment.count], first, contents.machine))
        expect_apart(segment, chains, contents.machine)
        yield segment, chains


def streamed(chains: Iterable[Chain]) -> Iterator[slice]:
    """The words of the weight DTCM that each word of a segment reads."""
    at = 0
    for stage in (stage for chain in chains for stage in chain.stages):
        if stage.control is not None and stage.control.set_weights:
            at = stage.control.weights
        yield slice(at, at + stage.streamed_words)
        at += stage.streamed_words


def expect_apart(segment: Segment, chains: Iterable[Chain], machine: Machine) -> None:
    """Raises ArtefactError (E502) where a load beside a run meets words that this reads or writes, or a store."""
    if not segment.words_ahead:
        return
    busy = {name: np.zeros((1, machine.capacity_words(name)), np.bool_) for name in ("fmap", "skip", "weight")}
    maps, chains = [move.map for move in segment.stores], [*chains]
    for words in streamed(chains):
        busy["weight"][0, words] = True
    for chain in chains:
        maps += chain.read
        for stage in chain.stages:
            maps += chain.written(stage)
    for each in maps:
        each.words(busy[each.place.memory])[...] = True
    for image in segment.images_ahead:
        if busy["weight"][0, image.address : image.address + image.words].any():
            raise damage_error(f"{image} meets weights that are read meanwhile")
    for move in segment.loads_ahead:
        stored = (each.window[1:] for each in segment.stores if each.tensor == move.tensor)
        if move.map.words(busy[move.place.memory]).any() or move.rows_in(stored).any():
            raise damage_error(f"{move} meets what is read, written or stored meanwhile")
