"""The fast simulator: whole layers, bit-exact, from words and memory images alone.

It models the document's machine: a run fetches layer words in order; a fused chain passes int8 from stage to
stage; BasicConv accumulates over input channels, ChannelWise does not; results go to the other end of the Fmap
DTCM, or where an extension word puts them. Many samples run side by side. Words that no machine could execute
(inconsistent x', y'; pads or psums exceeded; addresses outside a DTCM) are refused by name (E503). Source:
easynpu, Master controller (pseudo-code), Storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine import isa, rearrangement
from npuc.targets.easynpu.machine.chains import Stage, chains, refused
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import (
    BS_WORDS,
    LANES,
    SLOPE_WORDS,
    TABLE_WORDS,
    WORD,
    Map,
    from_words,
    groups,
    pack_feature,
    to_lanes,
    to_words,
)
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rules import check, expect_kept
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.simulate import arithmetic
from npuc.targets.easynpu.simulate.loading import keep, load_images

Observer = Callable[[int, Array], None]
"""Called with the number of a layer word in the program and its int8 result (samples, Ho, Wo, Co)."""


@dataclass
class State:
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
    psums: Array | None = None
    """Those psums: (samples, Ho, Wo, Co)."""

    def memory(self, name: str) -> Array:
        """The Fmap or skip DTCM of all samples: (samples, words) WORD."""
        return (self.fmap if name == "fmap" else self.skip).view(WORD)[..., 0]

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM, which all samples share, with words (n, 16) from an address on."""
        self.weight[address : address + len(words)] = words


MOST_KEPT = 1 << 25
"""The most bytes of weight blocks whose kernels are cached; a kernel takes up to ten times its block."""


class Simulator:
    """Runs segments on the memories of one program; layer kernels are cached for the next batch."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes]) -> None:
        self.machine = machine
        self.files = files
        self.kernels: dict[tuple[Layer, bytes], arithmetic.Convolution] = {}
        self.kept_bytes = 0
        self.checked: set[tuple[int, bool]] = set()

    def state(self, samples: int) -> State:
        """Memories at power-up (zeros here; no program may depend on it)."""
        machine = self.machine
        return State(
            np.zeros((samples, machine.fmap_words, LANES), np.int8),
            np.zeros((samples, machine.skip_words, LANES), np.int8),
            np.zeros((machine.weight_words, LANES), np.int8),
            (),
        )

    def run(
        self, segment: Segment, state: State, tensors: dict[str, Array], observe: Observer | None = None
    ) -> None:
        """Loads, runs and stores a segment; tensors (samples, 1, C, H, W) int8 by name are read and added."""
        first = load_images(segment, self.files, self.machine, state)
        for move in segment.loads:
            _view(state, move.map)[...] = pack_feature(move.whole(tensors)[move.window]).view(WORD)[..., 0]
        self._execute(state, first, segment.count, observe)
        for move in segment.stores:
            keep(move, to_lanes(_read(state, move.map, LANES * move.map.groups)), tensors)

    def _execute(self, state: State, first: int, count: int, observe: Observer | None) -> None:
        state.low, state.weights_at = True, 0
        for chain in chains(state.itcm[:count], first):
            key = (chain[0].number, state.low)
            if key not in self.checked:
                check(chain, self.machine, state.low)
                self.checked.add(key)
            state.kept = expect_kept(state.kept, chain)
            self._run_chain(state, chain, observe)

    def _run_chain(self, state: State, chain: Sequence[Stage], observe: Observer | None) -> None:
        """Runs a fused chain: the first stage reads the ifmap, the others the previous stage's int8 values."""
        x, psums = self._ifmap(state, chain[0]), state.psums if chain[0].takes else None
        for stage in chain:
            if psums is not None:
                x = self._ifmap(state, stage)
            if stage.control is not None and stage.control.set_weights:
                state.weights_at = stage.control.weights
            try:
                result = self._stage(state, stage, x, psums)
            except ArtefactError as error:
                raise error.within(f"instruction {stage.number}") from None
            if stage.keeps:
                psums = result
                continue
            x, psums = result, None
            if observe is not None:
                observe(stage.number, x)
            if stage.layer.stored:
                _view(state, stage.stored())[...] = to_words(x)
        state.psums = psums
        if psums is not None:
            return
        _view(state, chain[-1].ofmap(self.machine, not state.low))[...] = to_words(x)
        if "dst" not in chain[-1].operands:
            state.low = not state.low

    def _ifmap(self, state: State, stage: Stage) -> Array:
        """The map that a stage reads from a DTCM: (samples, Hi, Wi, Ci) int8."""
        return _read(state, stage.ifmap(self.machine, state.low), stage.layer.Ci)

    def _stage(self, state: State, stage: Stage, x: Array, psums: Array | None) -> Array:
        """The int8 result (samples, Ho, Wo, Co) of one stage, or its raw psums if they are kept."""
        layer, name = stage.layer, stage.name
        if stage.reshape is not None:
            return rearrangement.rearranged(x, stage.reshape)
        match name:
            case "maxpool":
                return arithmetic.max_pool(x, layer)
            case "relu":
                return np.maximum(x, 0)
            case "act":
                return arithmetic.activation(self._take(state, stage, TABLE_WORDS), x)
            case "prelu":
                return arithmetic.sloped(self._take(state, stage, SLOPE_WORDS * groups(layer.Co)), x)
            case "add" | "mul":
                other = _read(state, stage.operand(), layer.Co)
                scale = self._take(state, stage, BS_WORDS * groups(layer.Co))
                return arithmetic.combine(name, x, other, scale)
            case _:
                kernel = self._kernel(state, stage)
                if psums is None and not stage.keeps:
                    return kernel(x)
                total = kernel.accumulate(x, psums)
                return total if stage.keeps else kernel.quantised(total)

    def _kernel(self, state: State, stage: Stage) -> arithmetic.Convolution:
        """The convolution of the word and its weight block, cached."""
        layer = stage.layer
        block = self._take(state, stage, arithmetic.block_words(layer))
        key = (layer, block.tobytes())
        if key not in self.kernels:
            self.kept_bytes += block.nbytes
            if self.kept_bytes > MOST_KEPT:
                self.kernels.clear()
                self.kept_bytes = block.nbytes
            self.kernels[key] = arithmetic.Convolution(layer, block)
        return self.kernels[key]

    def _take(self, state: State, stage: Stage, words: int) -> Array:
        """The next words of the weight stream."""
        start, state.weights_at = state.weights_at, state.weights_at + words
        if state.weights_at > len(state.weight):
            raise refused(stage.number, f"weight words {start}..{state.weights_at - 1} are streamed", stage.layer)
        return state.weight[start : state.weights_at]


def _view(state: State, each: Map) -> Array:
    """The words of a map in the memories of all samples: (samples, height, width, groups) WORD."""
    return each.place.words(state.memory(each.place.memory), each.height, each.width, each.groups)


def _read(state: State, each: Map, channels: int) -> Array:
    """The map's values, (samples, height, width, channels) int8."""
    return from_words(_view(state, each), channels)
