"""Records of the stepping simulator: counts per layer, and the events of every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.simulate.schedule import PadStep, Plan


@dataclass
class LayerCount:
    """The cost of a chain: cycles, words moved, and the peak use of each pad."""

    instruction: int
    """The number of its first layer word."""
    cycles: int = 0
    compute_cycles: int = 0
    ifmap_words: int = 0
    padding_words: int = 0
    """Entries filled with padding; each takes a bus cycle and reads no memory."""
    ofmap_words: int = 0
    operand_words: int = 0
    weight_words: int = 0
    """Words of the weight stream, parameters included."""
    ifmap_pad_entries: int = 0
    weight_pad_entries: int = 0
    psum_entries: int = 0
    parameter_pad_entries: int = 0

    @property
    def bus_words(self) -> int:
        """Cycles of the shared ifmap and ofmap bus."""
        return self.ifmap_words + self.padding_words + self.ofmap_words

    def as_json(self) -> dict[str, int]:
        """Every count by name."""
        counts = {each.name: int(getattr(self, each.name)) for each in fields(self)}
        return {**counts, "bus_words": self.bus_words}


@frozen
class Touched:
    """The addresses that a pass read operands from and wrote results to: positions of all ozis, in order."""

    operands: Array | None
    results: Array | None


@frozen
class Executed:
    """A step as it was executed, for watchers."""

    step: PadStep
    plan: Plan
    start: int
    cycles: int
    """Cycles of the step; at the end it may wait for the next sub-ifmap."""
    side: int
    """The set of ifmap pads that is read."""
    load: Array
    """Addresses of the next sub-ifmap's words; NONE for padding."""
    loaded: Array
    """The cycles in which they are on the bus, counted from the step's first."""
    source: str
    """The memory that they are in."""
    weights: tuple[Array, Array]
    """For every weight word: pad entry, and cycle of the fetch."""
    touched: Mapping[int, Touched]
    """By the word's position in the chain."""


@frozen
class Transfers:
    """Bus transfers without computation, a word per cycle: reads from one memory, writes to it or the other."""

    writes: Array
    addresses: Array
    source: str
    target: str
