"""A reader of value change dumps that is strict about everything it reads. Source: IEEE 1364-2005, section 18."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VARIABLE = re.compile(r"^\$var wire (\d+) ([!-~]+) (\w+)(?: \[(\d+):0\])? \$end$")
SCALAR = re.compile(r"^([01])([!-~]+)$")
VECTOR = re.compile(r"^b([01]+) ([!-~]+)$")


@dataclass
class Waves:
    """The value of every signal in every cycle."""

    scope: str
    widths: dict[str, int]
    values: dict[str, NDArray[np.int64]]

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        return self.values[name]


def read(text: str) -> Waves:
    """Fails on a missing header part, an undeclared code, a value too wide, or a time that does not advance."""
    lines = iter(text.splitlines())
    scope, names, widths = _header(lines)
    changes: dict[str, list[tuple[int, int]]] = {name: [] for name in widths}
    time, dumping, end = -1, False, 0
    for line in lines:
        if line.startswith("#"):
            assert not dumping
            now = int(line[1:])
            assert now > time, f"time {now} after {time}"
            time = end = now
        elif line == "$dumpvars":
            assert time == 0, "initial values belong to the first time"
            dumping = True
        elif line == "$end":
            assert dumping
            dumping = False
            assert all(changes.values()), "every variable has an initial value"
        else:
            found = SCALAR.match(line) or VECTOR.match(line)
            assert found, f"not a value change: {line!r}"
            name = names[found[2]]
            assert (widths[name] == 1) == line.startswith(("0", "1")), line
            assert len(found[1]) <= widths[name]
            value = int(found[1], 2)
            assert not changes[name] or changes[name][-1][1] != value, f"no change: {line!r} at {time}"
            changes[name].append((time, value))
    return Waves(scope, widths, {name: _expanded(found, end) for name, found in changes.items()})


def _header(lines: Iterator[str]) -> tuple[str, dict[str, str], dict[str, int]]:
    scope, names, widths = "", {}, {}
    for line in lines:
        if line.startswith("$var"):
            found = VARIABLE.match(line)
            assert found, line
            assert scope
            width, code, name = int(found[1]), found[2], found[3]
            assert found[4] is None or int(found[4]) == width - 1  # the range may be left out
            assert code not in names
            assert name not in widths
            names[code], widths[name] = name, width
        elif line.startswith("$scope"):
            scope = line.split()[2]
        elif line == "$enddefinitions $end":
            return scope, names, widths
        else:
            assert re.match(r"^\$(version .*|timescale 1 ns|upscope) \$end$", line), line
    raise AssertionError("no end of the definitions")


def _expanded(changes: list[tuple[int, int]], end: int) -> NDArray[np.int64]:
    values = np.zeros(end, np.int64)
    for (start, value), (stop, _) in zip(changes, [*changes[1:], (end, 0)], strict=True):
        values[start:stop] = value
    return values
