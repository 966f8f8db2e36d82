"""Samples for a model that says what its inputs may be: of the 8 bits that it reads them in, the whole range.

Half of them are white noise; in the others neighbours are alike, as in images and spectrograms. Weights that are
rounded for both kinds suit what lies between them; scales are not learned from such samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Graph
from npuc.quantize.scales.constraints import MOVEMENT
from npuc.quantize.scales.model_scales import Steps, steps_of
from npuc.storage.data import Samples

COUNT = 96
SEED = 0


def made_up(graph: Graph) -> Samples | None:
    """Samples of every input of a quantised model; None where it does not say what one may be."""
    random = np.random.default_rng(SEED)
    inputs: dict[str, Array] = {}
    for name in graph.inputs:
        shape, dtype = graph.tensors[name].shape, graph.tensors[name].dtype
        if dtype in ("int8", "uint8"):
            limits = np.iinfo(dtype)
            low, step, last = float(limits.min), 1.0, 255
        elif (steps := _read_in(graph, name)) is not None:
            low, step, last = (-128 - steps.zero) * steps.scale, steps.scale, 255
        else:
            return None
        levels = np.stack([_levels(random, shape, smooth=index % 2 == 1) for index in range(COUNT)])
        inputs[name] = (low + step * np.clip(np.rint(levels), 0, last)).astype(dtype)
    return Samples(inputs)


def _read_in(graph: Graph, name: str) -> Steps | None:
    """The steps in which a network input, moved at most, is read first."""
    for node in graph.readers[name]:
        steps = _read_in(graph, node.output) if node.op in MOVEMENT else steps_of(graph, node)
        if steps is not None:
            return steps
    return None


def _levels(random: np.random.Generator, shape: Sequence[int], *, smooth: bool) -> Array:
    """Values around 0..255 with a mean and a contrast of their own, white or with half the energy per octave."""
    powers = range(max(max(shape).bit_length() - 1, 1)) if smooth else (0,)
    field = np.sum([_octave(random, shape, 1 << power) for power in powers], axis=0)
    spread = float(field.std()) or 1.0
    return random.uniform(64, 192) + random.uniform(16, 96) * field / spread


def _octave(random: np.random.Generator, shape: Sequence[int], size: int) -> Array:
    """Normal values, constant on blocks of this size along the axes that are long enough for several."""
    places = [np.arange(extent) // (size if extent >= SHORTEST else 1) for extent in shape]
    coarse = random.standard_normal([int(each[-1]) + 1 for each in places])
    return coarse[np.ix_(*places)]


SHORTEST = 8
"""Shorter axes (the channels of an image) have no neighbours."""
