"""Distribution of every tensor's int8 values, from simulation."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.samples.loading import Samples
from npuc.target import Runner

BATCH = 8
VALUES = 256


def histograms(run: Runner, samples: Samples) -> dict[str, Array]:
    """Counts of each int8 value in each tensor that the machine computes: (256,), -128 first."""
    found: dict[str, Array] = {}

    def observe(name: str, values: Array) -> None:
        computed = values[np.abs(values + 0.5) < VALUES // 2].astype(np.int64) + VALUES // 2
        found[name] = found.get(name, 0) + np.bincount(computed, minlength=VALUES)

    for batch in samples.batches(BATCH):
        run(batch.inputs, observe)
    return found
