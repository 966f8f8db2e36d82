"""The stepping simulator: tiles, scratch pads and psums as the hardware has them, cycles counted.

It reads words and memory images only, like the fast simulator, and runs one sample at a time. Within a step (16
input channels for a tile) the passes are computed together; their cycles, the words loaded under them, and what
pads and memories would not allow are those of single cycles. Decisions: docs/decisions.md, EasyNPU stepping
simulator. Source: easynpu, PE controller, Scheduler, Master controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu import isa
from npuc.targets.easynpu.artefact import Segment, TensorMove
from npuc.targets.easynpu.chains import Stage, chains, check, refused
from npuc.targets.easynpu.events import LayerCount
from npuc.targets.easynpu.hardware import Hardware
from npuc.targets.easynpu.layer_run import LayerRun, Watcher
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import LANES, pack_feature, unpack_feature
from npuc.targets.easynpu.reshape_run import run_reshape

Observer = Callable[[int, Array], None]
"""Called with the number of a layer word in the program and its int8 result (1, Ho, Wo, Co)."""


class Stepper:
    """Runs segments of one program on one sample; counts what every layer takes."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes], watcher: Watcher | None = None) -> None:
        self.machine = machine
        self.files = files
        self.watcher = watcher
        self.layers: list[LayerCount] = []
        """Of the samples that ran, one after the other."""

    def state(self, samples: int) -> Hardware:
        """A machine at power-up, for one sample; nothing in it may be read."""
        if samples != 1:
            raise ValueError("the stepping simulator runs one sample at a time")
        return Hardware.of(self.machine)

    def run(
        self, segment: Segment, state: Hardware, tensors: dict[str, Array], observe: Observer | None = None
    ) -> None:
        """Loads, runs and stores; tensors (1, 1, C, H, W) int8 by name are read and added to."""
        first = self._load_images(segment, state)
        for move in segment.loads:
            words = pack_feature(move.whole(tensors)[move.window])
            state.dtcm(move.place.memory).load(move.map.grid, words[0])
        if not 0 <= segment.count <= len(state.itcm):
            raise refused(first, f"{segment.count} words are run, {len(state.itcm)} are loaded", None)
        self._execute(state, first, segment.count, observe)
        for move in segment.stores:
            _store(state, move, tensors)

    def _load_images(self, segment: Segment, state: Hardware) -> int:
        """Fills ITCM and weight DTCM; gives the number in itcm.bin of the first word."""
        first = 0
        for image in segment.images:
            data = image.data(self.files, self.machine)
            if image.memory == "itcm":
                first, state.itcm = image.start, isa.bytes_to_words(data)
            else:
                at = image.address + np.arange(image.words)
                state.weight.load(at, np.frombuffer(data, np.int8).reshape(-1, LANES))
        return first

    def _execute(self, state: Hardware, first: int, count: int, observe: Observer | None) -> None:
        state.low, state.weights_at = True, 0
        done = first
        for chain in chains(state.itcm[:count], first):
            check(chain, self.machine, state.low)
            self._run_chain(state, chain, chain[-1].number + 1 - done, observe)
            done = chain[-1].number + 1

    def _run_chain(self, state: Hardware, chain: Sequence[Stage], words: int, observe: Observer | None) -> None:
        """words: instruction words of the chain, extension words included."""
        if chain[-1].reshape is None:
            run = LayerRun(state, chain, self.watcher)
            run.run(words)
            count, results = run.count, run.results
        elif len(chain) == 1:
            count, result = run_reshape(state, chain[0], chain[-1].reshape, words, self.watcher)
            results = [result]
        else:
            raise refused(chain[-1].number, "a fused reshape, which is not stepped", chain[-1].word)
        self.layers.append(count)
        if "dst" not in chain[-1].operands:
            state.low = not state.low
        for stage, result in zip(chain, results, strict=True):
            if observe is not None and not stage.keeps:
                observe(stage.number, result.reshape(1, *result.shape[:2], -1)[..., : stage.word.Co])


def _store(state: Hardware, move: TensorMove, tensors: dict[str, Array]) -> None:
    """Copies a map to its window of a host tensor, which is made when its first window arrives."""
    words = state.dtcm(move.place.memory).read(move.map.grid)
    if move.tensor not in tensors:
        tensors[move.tensor] = np.zeros((1, *move.shape), np.int8)
    move.whole(tensors)[move.window] = unpack_feature(words[None], move.channels)
