"""What a run of the stepping simulator tells: counts per layer, and what every step did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from npuc.ir import Array
from npuc.targets.easynpu.simulate.schedule import PadStep, Plan


@dataclass
class LayerCount:
    """What a chain took: cycles, words moved, and the most entries in use of each pad."""

    instruction: int
    """The number of its first layer word."""
    cycles: int = 0
    compute_cycles: int = 0
    ifmap_words: int = 0
    padding_words: int = 0
    """Entries filled with padding: each takes a cycle of the bus and reads no memory."""
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


@dataclass(frozen=True)
class Touched:
    """The addresses (positions of all ozis, in order) that a pass read operands from and wrote results to."""

    operands: Array | None
    results: Array | None


@dataclass(frozen=True)
class Executed:
    """A step as it was executed, for whoever watches."""

    step: PadStep
    plan: Plan
    start: int
    cycles: int
    """From the layer's first; the last of them wait for the next sub-ifmap."""
    side: int
    """The set of ifmap pads that is read."""
    load: Array
    """Addresses of the next sub-ifmap's words; NONE for padding."""
    loaded: Array
    """The cycles, from the step's first, in which they are on the bus."""
    source: str
    """The memory they lie in."""
    weights: tuple[Array, Array]
    """Pad entry and cycle of the fetch of every weight word."""
    touched: Mapping[int, Touched]
    """By word, as a position in the chain."""


@dataclass(frozen=True)
class Transfers:
    """Words on the bus without computation, one a cycle: reads from one memory, writes to another or the same."""

    writes: Array
    addresses: Array
    source: str
    target: str
