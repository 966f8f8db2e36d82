"""The DTCM ports: what a pass over a tile's positions uses of them, and what remains for sub-ifmaps.

A DTCM serves one access a cycle; ofmap and ifmap words share a bus on which the ofmap has priority (easynpu, Ofmap
scheduler; docs/decisions.md, EasyNPU cycles, bus).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array


@frozen
class PortUse:
    """The use of the DTCMs by each position of a pass, one word per 16 channels, without the loads."""

    cycles: int = 0
    """Cycles of its accesses; one more if operand and result are in the same memory."""
    blocked: int = 0
    """Cycles in which no sub-ifmap word can be loaded."""
    ofmap: int = 0
    """Cycles of writing over the shared bus: one, or more where a reshape scatters its lanes."""
    apart: bool = False
    """The operand is read before the position enters the PEs; a single psum's bubble begins a cycle later."""
    late: bool = False
    """Positions enter several rows of PEs with the last row's operand, though their results are due at once."""

    def taken(self, sweep: Array, positions: Array) -> Array:
        """Cycles of a pass over this many positions, whose computation alone takes `sweep`."""
        return np.maximum(sweep + self.apart, positions * self.cycles)

    def free(self, sweep: Array, positions: Array) -> Array:
        """Those of its cycles in which a sub-ifmap word can be loaded."""
        return self.taken(sweep, positions) - positions * self.blocked


def port_use(reads: str | None, writes: Sequence[str], source: str, times: int = 1) -> PortUse:
    """The port use of a pass. A DTCM serves one access a cycle; a result is written to several memories at once.

    reads: the memory of its operand, which has its own path apart from the shared bus; writes: the memories of its
    result; source: the memory that sub-ifmaps are loaded from; times: the words that a result is scattered to.
    """
    apart = reads in writes
    written = times if writes else 0
    cycles = written + 1 if apart else max(written, int(reads is not None))
    blocked = written + int(reads == source and (apart or not writes))
    return PortUse(cycles, blocked, written, apart, bool(reads is not None and writes and not apart))


RESULT = PortUse(1, 1, 1)
"""A pass that writes a result and reads no operand."""
