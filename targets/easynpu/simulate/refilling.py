"""The cycles in which the next sub-ifmap is loaded during a step, and in which each pad entry is last read.

The loader's rule is in docs/decisions.md (EasyNPU stepping simulator, one set of ifmap pads). That no entry is
overwritten before its last read is checked independently: last reads are computed separately, and the pads raise
an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.simulate.pads import NEVER
from npuc.targets.easynpu.simulate.schedule import PadStep, Plan, Sweep, pad_addresses


@frozen
class Reads:
    """The reads of the ifmap pads in a step, cycle by cycle from its first."""

    step: PadStep
    layer: Layer
    """The word whose ifmap is read."""
    plan: Plan
    machine: Machine

    def lowest(self) -> Array:
        """For every cycle, the entry below which the loader of a single set may write; it never decreases."""
        at, entries = self._addresses, self.machine.ifmap_pad_entries
        found = np.full(self.plan.cycles, entries)
        for begin, sweep, number, ozi, position in self._passes():
            channel, tap = np.divmod(number, len(at))
            follows = (tap == len(at) - 1) & (ozi == sweep.ozis - 1)
            low = np.where(follows, at[-1, position], at[tap, 0])
            found[begin : begin + len(low)] = np.where(channel == self.step.channels - 1, low, 0)
        return found

    def last(self) -> Array:
        """For every entry, the last cycle in which it is read; NEVER if it is not."""
        at, found = self._addresses, np.full(self.machine.ifmap_pad_entries, NEVER)
        for begin, sweep, number, _, position in self._passes():
            (issued,) = np.nonzero(np.tile(sweep.issue, sweep.passes * sweep.ozis))
            for row in range(self.machine.pe_rows):
                taken = issued[position[issued] + row < at.shape[1]]
                np.maximum.at(found, at[number[taken] % len(at), position[taken] + row], begin + taken)
        return found

    @property
    def _addresses(self) -> Array:
        """The pad entries: (taps, positions)."""
        return pad_addresses(self.layer, self.step.tile.y, self.step.tile.x)

    def _passes(self) -> Iterator[tuple[int, Sweep, Array, Array, Array]]:
        """The sweeps that read the pads: first cycle; pass, ozi and first position in each cycle."""
        begin = before = 0
        for sweep in self.plan.sweeps:
            if sweep.stage == self.step.part:
                block, within = np.divmod(np.arange(sweep.swept), len(sweep.issue))
                number, ozi = np.divmod(block, sweep.ozis)
                yield begin, sweep, before + number, ozi, sweep.position[within]
                before += sweep.passes
            begin += sweep.cycles


def arrivals(plan: Plan, entries: Array, lowest: Array | None) -> Array:
    """The cycles, counted from the step's first, in which words for these entries are loaded in order.

    One word a cycle, in cycles in which one can be loaded, or after the step. lowest: which entries must not be
    overwritten yet (Reads.lowest); None if the words go to the other set of pads.
    """
    free = np.concatenate([plan.free, plan.cycles + np.arange(len(entries))])
    order = np.arange(len(entries))
    if lowest is None:
        return free[order]
    allowed = np.searchsorted(lowest, entries, side="right")
    slot = np.searchsorted(free, allowed)
    return free[np.maximum.accumulate(slot - order) + order]
