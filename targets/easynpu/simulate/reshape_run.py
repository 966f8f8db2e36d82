"""A reshape word on the stepping simulator, word by word from the map to the result."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.chains import Stage
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES, Map, to_lanes
from npuc.targets.easynpu.machine.rearrangement import SETUP, piece_starts, rearranged, targets, written_words
from npuc.targets.easynpu.simulate.events import LayerCount, Transfers
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.layer_run import Watcher


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
