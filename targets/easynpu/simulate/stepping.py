"""The stepping simulator: tiles, scratch pads and psums as in the hardware, with cycle counts.

Like the fast simulator it reads only words and memory images; it runs one sample at a time. The passes of a step
(16 input channels for a tile) are computed together, but their cycles, the words loaded meanwhile, and the limits
of pads and memories are those of single cycles. Decisions: docs/decisions.md, EasyNPU stepping simulator. Source:
easynpu, PE controller, Scheduler, Master controller.

A reshape word on the stepping simulator, word by word from the map to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.chains import Stage, chains
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES, Map, pack_feature, to_lanes
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import SETUP, piece_starts, rearranged, targets, written_words
from npuc.targets.easynpu.machine.rules import check, expect_kept
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.simulate.events import LayerCount, Transfers
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.layer_run import LayerRun, Watcher
from npuc.targets.easynpu.simulate.loading import keep, load_images


def run_reshape(
    hardware: Hardware, stage: Stage, word: Reshape, words: int, watcher: Watcher | None = None
) -> tuple[LayerCount, Array]:
    """The counts and the result (Ho, Wo, groups, 16); words: its instruction words, extension words included.

    Each word of the map is read in one cycle, and each of its pieces is written in one cycle with lane enables.
    """
    hardware.begin_layer()
    source, target = stage.ifmap(hardware.machine, hardware.low), stage.ofmap(hardware.machine, not hardware.low)
    x = hardware.dtcm(source.place.memory).read(source.grid)
    result = to_lanes(rearranged(x.reshape(1, word.Hi, word.Wi, -1)[..., : word.Ci], word))[0]
    hardware.dtcm(target.place.memory).write(target.grid, result)
    hardware.end_layer()
    count = LayerCount(stage.number, ifmap_words=x[..., 0].size, ofmap_words=written_words(word))
    count.cycles = words + SETUP + count.bus_words
    if watcher is not None:
        watcher.rearranged(stage.number, words, _transfers(word, source, target))
    return count, result


def _transfers(word: Reshape, source: Map, target: Map) -> Transfers:
    """The transfers on the bus: each word of the map, followed by the words that its pieces go to."""
    row, column, channel = (each[piece_starts(word)] for each in targets(word))
    at = np.indices((word.Hi, word.Wi, word.Ci))[:, piece_starts(word)]
    reader = (at[0] * word.Wi + at[1]) * source.groups + at[2] // LANES
    words = source.grid.size
    first = np.searchsorted(reader, np.arange(words)) + np.arange(words)
    addresses = np.zeros(words + len(reader), np.int64)
    writes = np.ones(len(addresses), np.bool_)
    writes[first] = False
    addresses[first], addresses[writes] = source.grid.ravel(), target.grid[row, column, channel // LANES]
    return Transfers(writes, addresses, source.place.memory, target.place.memory)


Observer = Callable[[int, Array], None]
"""Called with the number of a layer word in the program and its int8 result (1, Ho, Wo, Co)."""


class Stepper:
    """Runs segments of one program on one sample; counts the cost of every layer."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes], watcher: Watcher | None = None) -> None:
        self.machine = machine
        self.files = files
        self.watcher = watcher
        self.layers: list[LayerCount] = []
        """Counts of all layers of the samples that ran, in order."""

    def state(self, samples: int) -> Hardware:
        """A machine at power-up, for one sample; nothing in it is readable yet."""
        if samples != 1:
            raise ValueError("the stepping simulator runs one sample at a time")
        return Hardware.of(self.machine)

    def run(
        self, segment: Segment, state: Hardware, tensors: dict[str, Array], observe: Observer | None = None
    ) -> None:
        """Loads, runs and stores a segment; tensors (1, 1, C, H, W) int8 by name are read and added."""
        first = load_images(segment, self.files, self.machine, state)
        for move in segment.loads:
            words = pack_feature(move.whole(tensors)[move.window])
            state.dtcm(move.place.memory).load(move.map.grid, words[0])
        self._execute(state, first, segment.count, observe)
        for move in segment.stores:
            keep(move, state.dtcm(move.place.memory).read(move.map.grid)[None], tensors)

    def _execute(self, state: Hardware, first: int, count: int, observe: Observer | None) -> None:
        state.low, state.weights_at = True, 0
        done = first
        for chain in chains(state.itcm[:count], first):
            check(chain, self.machine, state.low)
            state.kept = expect_kept(state.kept, chain)
            self._run_chain(state, chain, chain[-1].number + 1 - done, observe)
            done = chain[-1].number + 1

    def _run_chain(self, state: Hardware, chain: Sequence[Stage], words: int, observe: Observer | None) -> None:
        """Runs a chain. words: its instruction words, extension words included."""
        if chain[0].reshape is None:
            run = LayerRun(state, chain, self.watcher)
            run.run(words)
            count, results = run.count, run.results
        else:
            count, result = run_reshape(state, chain[0], chain[0].reshape, words, self.watcher)
            results = [result]
        self.layers.append(count)
        if "dst" not in chain[-1].operands and not chain[-1].leaves:
            state.low = not state.low
        for stage, result in zip(chain, results, strict=True):
            if observe is not None and not stage.keeps:
                observe(stage.number, result.reshape(1, *result.shape[:2], -1)[..., : stage.word.Co])
