"""When the words of the next sub-ifmap are loaded under a step, and when each pad entry is read for the last time.

The loader's rule is docs/decisions.md's (EasyNPU stepping simulator, one set of ifmap pads). That no entry is
overwritten before its last read does not follow from it here: last reads are found apart, and the pads trap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.simulate.pads import NEVER
from npuc.targets.easynpu.simulate.schedule import PadStep, Plan, Sweep, pad_addresses


@dataclass(frozen=True)
class Reads:
    """The reads of the ifmap pads in a step, cycle by cycle from its first one on."""

    step: PadStep
    layer: Layer
    """The word whose ifmap is read."""
    plan: Plan
    machine: Machine

    def lowest(self) -> Array:
        """For every cycle the entry below which the loader of a single set may put words; it never falls."""
        at, entries = self._addresses, self.machine.ifmap_pad_entries
        found = np.full(self.plan.cycles, entries)
        for begin, sweep, number, ozi, position in self._passes():
            channel, tap = np.divmod(number, len(at))
            follows = (tap == len(at) - 1) & (ozi == sweep.ozis - 1)
            low = np.where(follows, at[-1, position], at[tap, 0])
            found[begin : begin + len(low)] = np.where(channel == self.step.channels - 1, low, 0)
        return found

    def last(self) -> Array:
        """For every entry the last cycle in which it is read; NEVER for those that are not."""
        at, found = self._addresses, np.full(self.machine.ifmap_pad_entries, NEVER)
        for begin, sweep, number, _, position in self._passes():
            (issued,) = np.nonzero(np.tile(sweep.issue, sweep.passes * sweep.ozis))
            for row in range(self.machine.pe_rows):
                taken = issued[position[issued] + row < at.shape[1]]
                np.maximum.at(found, at[number[taken] % len(at), position[taken] + row], begin + taken)
        return found

    @property
    def _addresses(self) -> Array:
        """(taps, positions)."""
        return pad_addresses(self.layer, self.step.tile.y, self.step.tile.x)

    def _passes(self) -> Iterator[tuple[int, Sweep, Array, Array, Array]]:
        """Sweeps that read the pads: the first cycle; in each cycle the pass, ozi and first position."""
        begin = before = 0
        for sweep in self.plan.sweeps:
            if sweep.stage == self.step.part:
                block, within = np.divmod(np.arange(sweep.cycles), len(sweep.issue))
                number, ozi = np.divmod(block, sweep.ozis)
                yield begin, sweep, before + number, ozi, sweep.position[within]
                before += sweep.passes
            begin += sweep.cycles


def arrivals(plan: Plan, entries: Array, lowest: Array | None) -> Array:
    """The cycles, from the step's first, in which words for these entries are loaded in order.

    One a cycle, in cycles in which a word can be loaded, or behind the step. lowest: what it keeps from being
    overwritten (Reads.lowest); None if the words go to the other set of pads.
    """
    free = np.concatenate([plan.free, plan.cycles + np.arange(len(entries))])
    order = np.arange(len(entries))
    if lowest is None:
        return free[order]
    allowed = np.searchsorted(lowest, entries, side="right")
    slot = np.searchsorted(free, allowed)
    return free[np.maximum.accumulate(slot - order) + order]
