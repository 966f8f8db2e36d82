"""The ports of the DTCMs: what a pass over a tile's positions takes of them, and leaves for sub-ifmaps.

A DTCM serves one access a cycle; ofmap and ifmap words share a bus on which the ofmap wins (easynpu, Ofmap
scheduler; docs/decisions.md, EasyNPU stepping simulator, bus).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array


@dataclass(frozen=True)
class PortUse:
    """What each position of a pass, one word per 16 channels, asks of the DTCMs beside the loads."""

    cycles: int = 0
    """Cycles that its accesses take; one more where an operand is read from a memory that the result goes to."""
    blocked: int = 0
    """Cycles in which no sub-ifmap word can be loaded."""
    ofmap: int = 0
    """Cycles that it writes over the shared bus: one, or more where a reshape scatters its lanes."""
    apart: bool = False
    """The operand is read before the position enters the PEs: the bubble of a single psum begins a cycle later."""

    def taken(self, sweep: Array, positions: Array) -> Array:
        """Cycles of a pass over so many positions, whose computation alone takes `sweep`."""
        return np.maximum(sweep + self.apart, positions * self.cycles)

    def free(self, sweep: Array, positions: Array) -> Array:
        """Of these, the cycles in which a word can be loaded."""
        return self.taken(sweep, positions) - positions * self.blocked


def port_use(reads: str | None, writes: Sequence[str], source: str, times: int = 1) -> PortUse:
    """The ports that a pass uses. A DTCM serves one access a cycle; a result goes to several memories at once.

    reads: the memory of its operand, which has a path of its own beside the shared bus; writes: the memories of
    its result; source: the memory that sub-ifmaps are loaded from; times: the words that a result is scattered to.
    """
    apart = reads in writes
    written = times if writes else 0
    cycles = written + 1 if apart else max(written, int(reads is not None))
    blocked = written + int(reads == source and (apart or not writes))
    return PortUse(cycles, blocked, written, apart)


RESULT = PortUse(1, 1, 1)
"""A pass that writes a result and reads no operand."""
