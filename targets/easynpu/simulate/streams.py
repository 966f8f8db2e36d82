"""The weight stream of a fused chain: for each word its parameters, which are loaded once, then its weights.

Source: easynpu, Weight scheduler; the author's RTL: LOAD_BS, FIRST_FETCH, PRE_FETCH.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.chains import Stage, refused
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, SLOPE_WORDS, TABLE_WORDS, groups
from npuc.targets.easynpu.machine.timing import weight_words
from npuc.targets.easynpu.simulate.pads import Dtcm, ParameterPads

MAXPOOL_START = -128
"""The value that max pooling compares its first input with."""


@frozen
class Block:
    """A word's part of the stream, and its parameters' entries in the bias and scale pads."""

    start: int
    parameters: Array
    weights: Array
    entries: slice
    cycles: int
    """Cycles to load the parameters, or to set the pads to constants where the stream has none."""

    @property
    def weights_at(self) -> int:
        """The address of the first weight."""
        return self.start + len(self.parameters)


def parameter_words(stage: Stage) -> int:
    """The word's bias-scale, table or slope words in the stream."""
    match stage.name:
        case "maxpool" | "relu":
            return 0
        case "act":
            return TABLE_WORDS
        case "prelu":
            return SLOPE_WORDS * groups(stage.layer.Co)
        case _:
            return BS_WORDS * groups(stage.layer.Co)


def load(chain: Sequence[Stage], start: int, memory: Dtcm, pads: ParameterPads) -> tuple[list[Block], int]:
    """The blocks of a chain, whose parameters are loaded into the pads, and the address after the last block.

    Words that keep psums share the entries: the bias is the first word's, the scale the last one's. Raises
    ArtefactError (E503) where a word has a bias but the adder's input is already used.
    """
    pads.clear()
    found: list[Block] = []
    shared: slice | None = None
    for position, stage in enumerate(chain):
        if stage.control is not None and stage.control.set_weights:
            start = stage.control.weights
        sizes = parameter_words(stage), weight_words(stage.layer)
        words = _read(stage, start, sum(sizes), memory)
        parameters, weights = words[: sizes[0]], words[sizes[0] :]
        continues = position > 0 and chain[position - 1].keeps
        if (stage.name in ("add", "mul") or continues or stage.takes) and _has_bias(stage, parameters):
            reason = "a bias where the adder's input takes kept psums or an operand"
            raise refused(stage.number, reason, stage.layer)
        planes = _planes(stage, parameters, first=position == 0)
        if continues and shared is not None:
            pads.values[shared, 4] = planes[:, 4]
            entries = shared
        else:
            entries = shared = pads.load(planes)
        cycles = sizes[0] or (BS_WORDS * len(planes))
        found.append(Block(start, parameters, weights, entries, cycles))
        start += sum(sizes)
    return found, start


def _planes(stage: Stage, parameters: Array, *, first: bool) -> Array:
    """The contents of the pads, (entries, 5, 16): bias bytes and scale; table segments; slopes; constants."""
    count = groups(stage.layer.Co)
    match stage.name:
        case "maxpool" | "relu":
            start = MAXPOOL_START if stage.name == "maxpool" else 0
            planes = np.zeros((count if first else 0, 5, LANES), np.int8)
            planes[:, :4] = np.array([start], "<i4").view(np.int8)[:, None]
            return planes
        case "act":
            return np.repeat(parameters[:5].T[:, :, None], LANES, axis=2)
        case "prelu":
            slopes = parameters.reshape(count, SLOPE_WORDS, LANES)
            return np.concatenate([slopes, np.zeros((count, 1, LANES), np.int8)], axis=1)
        case _:
            return parameters.reshape(count, BS_WORDS, LANES)


def _read(stage: Stage, start: int, words: int, memory: Dtcm) -> Array:
    last = start + words - 1
    if words and last >= len(memory.written):
        raise refused(stage.number, f"weight words {start}..{last} are streamed", stage.layer)
    if not memory.written[start : last + 1].all():
        reason = f"some of the weight words {start}..{last} are streamed before they are loaded"
        raise refused(stage.number, reason, stage.layer)
    return memory.values[start : last + 1]


def _has_bias(stage: Stage, parameters: Array) -> bool:
    planes = parameters.reshape(-1, BS_WORDS, LANES)[:, :4].transpose(1, 0, 2).reshape(4, -1)
    return bool(planes[:, : stage.layer.Co].any())
