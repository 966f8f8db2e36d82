"""Convolutions with block-sparse weights: which input channels each chunk of outputs reads.

Grouped convolutions, channel shuffles and concatenations whose operands start within a word become dense
convolutions with block structure. A layer word sweeps consecutive channels from the start of a DTCM word; further
layer words, which continue on the kept psums, skip the channels in between.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.layers.jobs import bands
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, groups

EXTENSIONS = 3
"""Instruction words of an additional part: the layer word, `src` and `ctl`."""


def used_runs(w: Array, pixels: int) -> list[slice]:
    """The runs of input channels that a chunk of outputs (Co, Ci, Hk, Wk) reads; each starts on a DTCM word.

    A run ends where sweeping channels without weights would cost more cycles than another part. There is at least
    one.
    """
    used = np.flatnonzero(w.any(axis=(0, *range(2, w.ndim))))
    saved = groups(len(w)) * prod(w.shape[2:]) * pixels
    found: list[slice] = []
    for start in range(0, w.shape[1], LANES):
        here = used[(start <= used) & (used < start + LANES)]
        if not len(here):
            continue
        stop = int(here[-1]) + 1
        if found and (start - found[-1].stop) * saved <= _part_cycles(len(w)):
            found[-1] = slice(found[-1].start, stop)
        else:
            found.append(slice(start, stop))
    return found or [slice(0, min(LANES, w.shape[1]))]


def used_span(w: Array) -> slice:
    """The channels from the start of the first run to the end of the last."""
    runs = used_runs(w, 0)
    return slice(runs[0].start, runs[-1].stop)


def block_chunk(w: Array, most: int, pixels: int) -> int:
    """Output channels per job for the fewest cycles: a multiple of 16, at most `most`."""

    def cycles(size: int) -> int:
        total = 0
        for band in bands(len(w), size):
            runs, outputs = used_runs(w[band], pixels), band.stop - band.start
            swept = sum(run.stop - run.start for run in runs)
            total += groups(outputs) * prod(w.shape[2:]) * pixels * swept + len(runs) * _part_cycles(outputs)
        return total

    return min(range(LANES, most + 1, LANES), key=lambda size: (cycles(size), -size))


def _part_cycles(outputs: int) -> int:
    """Cycles of a part before it computes: its instruction words, bias and scale, and first weights."""
    return EXTENSIONS + (BS_WORDS + 1) * groups(outputs)
