"""The fast simulator: whole layers, bit-exact, from words and memory images alone.

It models the document's machine: a run fetches layer words in order; a fused chain passes int8 from stage to
stage; BasicConv accumulates over input channels, ChannelWise does not; results go to the other end of the Fmap
DTCM, or where an extension word puts them. Many samples run side by side. Words that no machine could execute
(inconsistent x', y'; pads or psums exceeded; addresses outside a DTCM) are refused by name (E503). Source:
easynpu, Master controller (pseudo-code), Storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine import isa, rearrangement
from npuc.targets.easynpu.machine.chains import ChainStage, chains, check, expect_kept, word_error
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import (
    LANES,
    WORD,
    Map,
    from_words,
    pack_feature,
    to_lanes,
    to_words,
    unpack_feature,
)
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment, TensorMove
from npuc.targets.easynpu.simulate import arithmetic
from npuc.targets.easynpu.simulate.walk import chains_of, expect_apart


class LoadableMachine(Protocol):
    """A machine whose instruction memory and weight DTCM the host fills."""

    itcm: tuple[isa.Instruction, ...]

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM with words (n, 16) int8 from an address on."""
        ...


def load_images(segment: Segment, files: Mapping[str, bytes], machine: Machine, state: LoadableMachine) -> int:
    """Fills ITCM and weight DTCM; returns the number in itcm.bin of the first word.

    Raises ArtefactError (E503) where the segment runs more words than are loaded.
    """
    first = 0
    for image in segment.images:
        if image.memory == "itcm":
            first, state.itcm = image.start, isa.bytes_to_words(image.data(files, machine))
        else:
            load_weights(image, files, machine, state)
    if not 0 <= segment.count <= len(state.itcm):
        raise word_error(first, f"{segment.count} words are run, {len(state.itcm)} are loaded", None)
    return first


def load_weights(image: ImageLoad, files: Mapping[str, bytes], machine: Machine, state: LoadableMachine) -> None:
    """Fills words of the weight DTCM."""
    words = np.frombuffer(image.data(files, machine), np.int8).reshape(-1, LANES)
    state.load_weights(image.address, words)


def keep(move: TensorMove, words: Array, tensors: dict[str, Array]) -> None:
    """Copies words (samples, H, W, groups, 16) to their window of a host tensor, which is created if needed."""
    put(move, unpack_feature(words, move.channels), tensors)


def put(move: TensorMove, planes: Array, tensors: dict[str, Array]) -> None:
    """The same for planes (samples, C, H, W)."""
    if move.tensor not in tensors:
        tensors[move.tensor] = np.zeros((len(planes), *move.shape), np.int8)
    move.whole(tensors)[move.window] = planes


WordObserver = Callable[[int, Array], None]
"""Called with the number of a layer word in the program and its int8 result (samples, Ho, Wo, Co)."""


@dataclass
class MachineState:
    """The memories of `samples` machines, and their state between words.

    fmap, skip: (samples, words, 16) int8; weight: (words, 16) int8, the same for all.
    """

    fmap: Array
    skip: Array
    weight: Array
    itcm: tuple[isa.Instruction, ...]
    low: bool = True
    """The current map is at the low end of the Fmap DTCM."""
    weights_at: int = 0
    """Address of the weight stream's next word."""
    kept: isa.Layer | None = None
    """The word whose psums are in the pads."""
    psums: arithmetic.Psums | None = None
    """Those psums."""

    def memory(self, name: str) -> Array:
        """The Fmap or skip DTCM of all samples: (samples, words) WORD."""
        return (self.fmap if name == "fmap" else self.skip).view(WORD)[..., 0]

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM, which all samples share, with words (n, 16) from an address on."""
        self.weight[address : address + len(words)] = words


Maps = tuple[Map, ...]
"""The maps of tiles: one that all have at the same place, or one of each; none where there is no such map."""


@frozen
class Word:
    """A layer or reshape word with everything that it takes from the machine.

    Several words of one geometry can run side by side, on a machine each: they are the tiles of one word.
    """

    stage: ChainStage
    begins: bool
    """It is the first of its chain."""
    ends: bool
    """It is the last of its chain."""
    ifmap: Maps
    """The map that it reads; none where it continues on the result of the word before."""
    operand: Maps
    stored: Maps
    ofmap: Maps
    """The map that the chain's result goes to."""
    numbers: tuple[int, ...]
    """The numbers of the words in the program."""
    blocks: tuple[bytes, ...]
    """The words of the weight stream that they take: one that all take, or one for each."""

    @property
    def geometry(self) -> tuple[object, ...]:
        """What words that run side by side have in common: everything but numbers, places and weights."""
        stage, maps = self.stage, (*self.ifmap, *self.operand, *self.stored, *self.ofmap)
        return stage.layer, stage.reshape, stage.keeps, stage.takes, self.begins, self.ends, *map(_extents, maps)

    @property
    def reads(self) -> Maps:
        """The maps that it reads."""
        return self.ifmap + self.operand

    def tiles(self, tiles: slice) -> Word:
        """Some of its tiles."""
        per_tile = {name: _some(getattr(self, name), tiles) for name in PER_TILE}
        return replace(self, numbers=self.numbers[tiles], **per_tile)


PER_TILE = ("ifmap", "operand", "stored", "ofmap", "blocks")


def _extents(each: Map) -> tuple[int, int, int]:
    return each.height, each.width, each.groups


def _some(values: tuple[Any, ...], tiles: slice) -> tuple[Any, ...]:
    return values if len(values) < 2 else values[tiles]


def side_by_side(words: Sequence[Word]) -> Word:
    """Words of the same geometry as one."""
    per_tile = {name: _distinct([each for word in words for each in getattr(word, name)]) for name in PER_TILE}
    return replace(words[0], numbers=tuple(number for word in words for number in word.numbers), **per_tile)


def _distinct(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, or the only one."""
    return tuple(values[:1] if len(set(values)) == 1 else values)


MOST_KEPT = 1 << 25
"""The most bytes of weight blocks whose kernels are cached; a kernel takes up to ten times its block."""


class Simulator:
    """Runs segments on the memories of one program; layer kernels are cached for the next batch."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes]) -> None:
        self.machine = machine
        self.files = files
        self.kernels: dict[tuple[Layer, tuple[bytes, ...]], arithmetic.ConvolutionWord] = {}
        self.kept_bytes = 0
        self.checked: set[tuple[int, bool]] = set()

    def state(self, samples: int) -> MachineState:
        """Memories at power-up (zeros here; no program may depend on it)."""
        machine = self.machine
        return MachineState(
            np.zeros((samples, machine.fmap_words, LANES), np.int8),
            np.zeros((samples, machine.skip_words, LANES), np.int8),
            np.zeros((machine.weight_words, LANES), np.int8),
            (),
        )

    def run(
        self, segment: Segment, state: MachineState, tensors: dict[str, Array], observe: WordObserver | None = None
    ) -> None:
        """Loads, runs and stores a segment; tensors (samples, 1, C, H, W) int8 by name are read and added."""
        observers = None if observe is None else [observe]
        words = self.decoded(segment, state)
        self.run_tiles(
            [(*segment.loads, *segment.loads_ahead)], words, [segment.stores], state, tensors, observers
        )

    def run_tiles(
        self,
        loads: Sequence[Sequence[TensorMove]],
        words: Sequence[Word],
        stores: Sequence[Sequence[TensorMove]],
        state: MachineState,
        tensors: dict[str, Array],
        observers: Sequence[WordObserver] | None,
    ) -> None:
        """Loads, runs and stores tiles of one geometry, whose words are the same but for their weights.

        loads, stores: of each tile. state: machines for all samples of the first tile, then of the second, and so
        on. observers: one for each tile.
        """
        for moves in zip(*loads, strict=True):
            same = len({move.start for move in moves}) == 1
            windows = [move.whole(tensors)[move.window] for move in (moves[:1] if same else moves)]
            packed = pack_feature(windows[0] if same else np.concatenate(windows)).view(WORD)[..., 0]
            _write(state, _distinct([move.map for move in moves]), packed)
        self._execute(state, words, observers)
        for moves in zip(*stores, strict=True):
            maps = _distinct([move.map for move in moves])
            _store(moves, to_lanes(_read(state, maps, LANES * maps[0].groups)), tensors)

    def decoded(self, segment: Segment, state: MachineState) -> list[Word]:
        """The words that a segment runs, after its images are in the memories, and then those of later segments.

        Raises ArtefactError (E503) for words that no machine executes, E502 for loads beside them that they meet.
        """
        first = load_images(segment, self.files, self.machine, state)
        expect_apart(segment, chains_of(state.itcm[: segment.count], first, self.machine), self.machine)
        state.low, state.weights_at = True, 0
        found: list[Word] = []
        for chain in chains(state.itcm[: segment.count], first):
            key = (chain[0].number, state.low)
            if key not in self.checked:
                check(chain, self.machine, state.low)
                self.checked.add(key)
            state.kept = expect_kept(state.kept, chain)
            for before, stage in zip((None, *chain), chain, strict=False):
                found.append(self._word(state, stage, before, ends=stage is chain[-1]))
            if not chain[-1].leaves and "dst" not in chain[-1].operands:
                state.low = not state.low
        for image in segment.images_ahead:
            load_weights(image, self.files, self.machine, state)
        return found

    def _word(self, state: MachineState, stage: ChainStage, before: ChainStage | None, *, ends: bool) -> Word:
        if stage.control is not None and stage.control.set_weights:
            state.weights_at = stage.control.weights
        return Word(
            stage=stage,
            begins=before is None,
            ends=ends,
            ifmap=(stage.ifmap(self.machine, state.low),) if before is None or before.keeps else (),
            operand=(stage.operand(),) if stage.name in ("add", "mul") else (),
            stored=(stage.stored(),) if stage.layer.stored and not stage.keeps else (),
            ofmap=(stage.ofmap(self.machine, not state.low),) if ends and not stage.keeps else (),
            numbers=(stage.number,),
            blocks=(self._take(state, stage),),
        )

    def _take(self, state: MachineState, stage: ChainStage) -> bytes:
        """The next words of the weight stream, as many as the word takes."""
        start, count = state.weights_at, stage.streamed_words
        state.weights_at += count
        if state.weights_at > len(state.weight):
            raise word_error(stage.number, f"weight words {start}..{start + count - 1} are streamed", stage.layer)
        return state.weight[start : state.weights_at].tobytes()

    def _execute(
        self, state: MachineState, words: Sequence[Word], observers: Sequence[WordObserver] | None
    ) -> None:
        """Runs chains: their first word reads a map, the others the previous word's int8 values or psums."""
        x = np.zeros(0, np.int8)
        for word in words:
            stage = word.stage
            if word.begins and not stage.takes:
                state.psums = None
            if word.ifmap:
                x = _read(state, word.ifmap, stage.layer.Ci)
            try:
                result = self._result(state, word, x)
            except ArtefactError as error:
                raise error.within(f"instruction {stage.number}") from None
            if isinstance(result, arithmetic.Psums):
                state.psums = result
                continue
            x, state.psums = result, None
            if observers is not None:
                for observe, number, values in zip(observers, word.numbers, _by_tile(x, word), strict=True):
                    observe(number, values)
            for maps in filter(None, (word.stored, word.ofmap)):
                _write(state, maps, to_words(x))

    def _result(self, state: MachineState, word: Word, x: Array) -> Array | arithmetic.Psums:
        """The int8 result (tiles * samples, Ho, Wo, Co) of a word, or its psums if they are kept."""
        stage, layer = word.stage, word.stage.layer
        if stage.reshape is not None:
            return rearrangement.rearrange(x, stage.reshape)
        match stage.name:
            case "maxpool":
                return arithmetic.max_pool(x, layer)
            case "relu":
                return np.maximum(x, 0)
            case "act":
                return _each_tile(arithmetic.activation, word, x)
            case "prelu":
                return _each_tile(arithmetic.apply_slopes, word, x)
            case "add" | "mul":
                other = _read(state, word.operand, layer.Co)
                return _each_tile(arithmetic.add if stage.name == "add" else arithmetic.multiply, word, x, other)
            case _:
                kernel = self._kernel(word)
                if state.psums is None and not stage.keeps:
                    return kernel(x)
                total = kernel.accumulate(x, state.psums)
                return total if stage.keeps else kernel.quantised(total)

    def _kernel(self, word: Word) -> arithmetic.ConvolutionWord:
        """The convolution of the word and its weight blocks, cached."""
        key = (word.stage.layer, word.blocks)
        if key not in self.kernels:
            size = sum(map(len, word.blocks))
            self.kept_bytes += size
            if self.kept_bytes > MOST_KEPT:
                self.kernels.clear()
                self.kept_bytes = size
            self.kernels[key] = arithmetic.ConvolutionWord(word.stage.layer, list(map(_lanes, word.blocks)))
        return self.kernels[key]


def _lanes(block: bytes) -> Array:
    """A block's words (n, 16)."""
    return np.frombuffer(block, np.int8).reshape(-1, LANES)


def _by_tile(x: Array, word: Word) -> Array:
    """(tiles * samples, ...) as (tiles, samples, ...)."""
    return x.reshape(len(word.numbers), len(x) // len(word.numbers), *x.shape[1:])


def _each_tile(function: Callable[..., Array], word: Word, *maps: Array) -> Array:
    """The function of a tile's block and its maps, for each tile."""
    if len(word.blocks) == 1:
        return function(_lanes(word.blocks[0]), *maps)
    tiles = zip(word.blocks, *(_by_tile(each, word) for each in maps), strict=True)
    return np.concatenate([function(_lanes(block), *each) for block, *each in tiles])


def _views(state: MachineState, maps: Maps) -> Iterator[Array]:
    """The words of a map in the memories of all samples, of each tile: (samples, height, width, groups) WORD."""
    samples = len(state.fmap) // len(maps)
    for at, each in enumerate(maps):
        yield each.words(state.memory(each.place.memory)[at * samples : (at + 1) * samples])


def _read(state: MachineState, maps: Maps, channels: int) -> Array:
    """The values of the tiles' maps, (samples of all tiles, height, width, channels) int8."""
    views = list(_views(state, maps))
    return from_words(views[0] if len(views) == 1 else np.concatenate(views), channels)


def _write(state: MachineState, maps: Maps, words: Array) -> None:
    """Writes words (samples of all tiles, height, width, groups), or those that all tiles share."""
    for at, view in enumerate(_views(state, maps)):
        count = min(len(view), len(words))
        for start in range(0, len(view), count):
            first = (at * len(view) + start) % len(words)
            view[start : start + count] = words[first : first + count]


def _store(moves: Sequence[TensorMove], words: Array, tensors: dict[str, Array]) -> None:
    """Copies words (tiles * samples, H, W, groups, 16) to each tile's window of its host tensor."""
    samples, planes = len(words) // len(moves), unpack_feature(words, moves[0].channels)
    for at, move in enumerate(moves):
        put(move, planes[at * samples : (at + 1) * samples], tensors)
