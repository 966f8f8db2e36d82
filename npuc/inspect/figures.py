"""Figures of a compile report that every target states alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def totals(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a whole program, whose layers run one after the other."""
    cycles, ideal = sum(row["cycles"] for row in layers), sum(row["ideal_cycles"] for row in layers)
    return {
        "macs": sum(row["macs"] for row in layers),
        "cycles": cycles,
        "ideal_cycles": ideal,
        "utilization": ideal / cycles if cycles else None,
    }


def memory_use(peak: int, capacity: int | None, least: int) -> dict[str, int | None]:
    """The use of a memory in bytes. least: a lower bound for any plan."""
    return {"peak_bytes": peak, "capacity_bytes": capacity, "lower_bound_bytes": least}
