"""Value change dumps (IEEE 1364, section 18): signals over time, for waveform viewers.

One time unit is one cycle. No date is written: equal runs give equal files. The format follows pyvcd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array


@frozen
class Signal:
    """A signal: a name and a width in bits. Values are unsigned or two's complement."""

    name: str
    width: int


class VcdWriter:
    """Writes consecutive cycles chunk by chunk; only changes are written."""

    def __init__(self, stream: TextIO, module: str, signals: Sequence[Signal]) -> None:
        from vcd import VCDWriter

        self.signals = signals
        self.time = 0
        """Writes the next cycle."""
        self._writer = VCDWriter(stream, timescale="1 ns", date="", version="npuc")
        self._variables = [
            self._writer.register_var(module, each.name, "wire", size=each.width, init=0) for each in signals
        ]
        self._last = np.zeros((len(signals), 1), np.int64)

    def write(self, columns: Mapping[str, Array], cycles: int) -> None:
        """Writes the next cycles. columns: for some signals one value per cycle; the others are 0."""
        if not cycles:
            return
        values = np.zeros((len(self.signals), cycles), np.int64)
        for row, signal in zip(values, self.signals, strict=True):
            row[:] = columns.get(signal.name, 0)
            row &= (1 << signal.width) - 1
        before = np.concatenate([self._last, values[:, :-1]], axis=1)
        at, which = np.nonzero((values != before).T)
        for cycle, signal, value in zip(at.tolist(), which.tolist(), values[which, at].tolist(), strict=True):
            self._writer.change(self._variables[signal], self.time + cycle, value)
        self._last = values[:, -1:]
        self.time += cycles

    def close(self) -> None:
        """Ends the last cycle."""
        self._writer.close(self.time)
