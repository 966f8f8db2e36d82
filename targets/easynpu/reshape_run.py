"""A reshape word on the stepping simulator: word by word from the map to the words of the result."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.chains import Stage
from npuc.targets.easynpu.events import LayerCount
from npuc.targets.easynpu.hardware import Hardware
from npuc.targets.easynpu.isa import Reshape
from npuc.targets.easynpu.memory import Map, to_lanes
from npuc.targets.easynpu.rearrangement import rearranged, written_words


def run_reshape(hardware: Hardware, stage: Stage, word: Reshape, words: int) -> tuple[LayerCount, Array]:
    """What it took, and the result (Ho, Wo, groups, 16); words: its instruction words, extension words included.

    A word of the map is read in one cycle, and written with lane enables in a cycle for every word of the result
    that it has lanes for.
    """
    hardware.begin_layer()
    source, target = stage.ifmap(hardware.machine, hardware.low), stage.ofmap(hardware.machine, not hardware.low)
    x = hardware.dtcm(source.place.memory).read(_addresses(source))
    result = to_lanes(rearranged(x.reshape(1, word.Hi, word.Wi, -1)[..., : word.Ci], word))[0]
    hardware.dtcm(target.place.memory).write(_addresses(target), result)
    hardware.end_layer()
    count = LayerCount(stage.number, ifmap_words=x[..., 0].size, ofmap_words=written_words(word))
    count.cycles = words + count.bus_words
    return count, result


def _addresses(where: Map) -> Array:
    """(height, width, groups)"""
    row, pixel, group = np.ogrid[: where.height, : where.width, : where.groups]
    return where.place.base + row * where.place.row + pixel * where.place.pixel + group * where.place.group
