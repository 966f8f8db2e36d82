"""Value change dumps (IEEE 1364, section 18): signals over time, for waveform viewers.

One time unit is one cycle. No date is written: equal runs give equal files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from npuc.ir import Array

FIRST_CODE, CODES = 33, 94
"""Identifier codes are made of the printable characters ! to ~."""


@dataclass(frozen=True)
class Signal:
    """A name and a width in bits; values are unsigned, or two's complement."""

    name: str
    width: int

    @property
    def declaration(self) -> str:
        """The name as a variable declaration has it."""
        return self.name if self.width == 1 else f"{self.name} [{self.width - 1}:0]"


class VcdWriter:
    """Writes chunk after chunk of consecutive cycles; only changes are written."""

    def __init__(self, stream: TextIO, module: str, signals: Sequence[Signal]) -> None:
        self.stream = stream
        self.signals = signals
        self.time = 0
        """The next cycle."""
        self._last: Array | None = None
        self._codes = [_code(position) for position in range(len(signals))]
        self._texts: list[dict[int, str]] = [{} for _ in signals]
        declared = [
            f"$var wire {signal.width} {code} {signal.declaration} $end"
            for signal, code in zip(signals, self._codes, strict=True)
        ]
        header = ["$version npuc $end", "$timescale 1 ns $end", f"$scope module {module} $end", *declared]
        self._lines([*header, "$upscope $end", "$enddefinitions $end"])

    def write(self, columns: Mapping[str, Array], cycles: int) -> None:
        """The next cycles; columns: a value per cycle for some signals, 0 for the others."""
        if not cycles:
            return
        values = np.zeros((len(self.signals), cycles), np.int64)
        for row, signal in zip(values, self.signals, strict=True):
            row[:] = columns.get(signal.name, 0)
            row &= (1 << signal.width) - 1
        if self._last is None:
            first = [self._change(position, int(value)) for position, value in enumerate(values[:, 0])]
            self._lines([f"#{self.time}", "$dumpvars", *first, "$end"])
            self._last = values[:, :1]
        before = np.concatenate([self._last, values[:, :-1]], axis=1)
        at, which = np.nonzero((values != before).T)
        self._changes(at.tolist(), which.tolist(), values[which, at].tolist())
        self._last = values[:, -1:]
        self.time += cycles

    def close(self) -> None:
        """Ends the last cycle."""
        self._lines([f"#{self.time}"])

    def _changes(self, at: list[int], which: list[int], values: list[int]) -> None:
        lines: list[str] = []
        last = -1
        for cycle, position, value in zip(at, which, values, strict=True):
            if cycle != last:
                lines.append(f"#{self.time + cycle}")
                last = cycle
            lines.append(self._change(position, value))
        self._lines(lines)

    def _change(self, position: int, value: int) -> str:
        texts = self._texts[position]
        if value not in texts:
            code = self._codes[position]
            texts[value] = f"{value}{code}" if self.signals[position].width == 1 else f"b{value:b} {code}"
        return texts[value]

    def _lines(self, lines: Sequence[str]) -> None:
        if lines:
            self.stream.write("\n".join(lines) + "\n")


def _code(position: int) -> str:
    high, low = divmod(position, CODES)
    return (_code(high - 1) if high else "") + chr(FIRST_CODE + low)
