"""Combined costs of a program's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from npuc.frozen import frozen

Report = Mapping[str, Any]
NOT_ADDED = ("target", "machine", "clock_mhz", "macs_per_cycle", "bytes_per_cycle", "capacity_bytes", "level")
"""Fields that describe the machine, not a program on it."""
PEAKS = ("peak_bytes", "lower_bound_bytes")


@frozen
class Told:
    """A part or a region in a report."""

    place: str
    path: str | None
    macs: int
    bytes_in: int
    bytes_out: int


def merged(found: Sequence[Report], target: str, machine: str, memories: Sequence[str]) -> dict[str, Any]:
    """The combined report of programs run one after the other: sums of counts, largest peaks of memories."""
    empty: dict[str, Any] = {
        "target": target,
        "machine": machine,
        "instructions": 0,
        "segments": 0,
        "macs": 0,
        "cycles": 0,
        "ideal_cycles": 0,
        "utilization": None,
        "memory": {name: {"peak_bytes": 0, "capacity_bytes": None, "lower_bound_bytes": 0} for name in memories},
        "host_steps": [],
        "layers": [],
    }
    if not found:
        return empty
    whole: dict[str, Any] = {**empty, **_added(found)}
    whole["utilization"] = whole["ideal_cycles"] / whole["cycles"] if whole["cycles"] else None
    if "frames_per_second" in whole:
        clock = whole.get("clock_mhz")
        whole["frames_per_second"] = clock * 1e6 / whole["cycles"] if clock and whole["cycles"] else None
    return whole


def _added(found: Sequence[Report]) -> dict[str, Any]:
    keys = dict.fromkeys(key for each in found for key in each)
    return {key: _together(key, [each[key] for each in found if key in each]) for key in keys}


def _together(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known or key in NOT_ADDED or any(isinstance(value, str | bool) for value in known):
        return known[0] if known else None
    if key in PEAKS:
        return max(known)
    if all(isinstance(value, Mapping) for value in known):
        return _added(known)
    if all(isinstance(value, list) for value in known):
        return [each for value in known for each in value]
    return sum(known) if len(known) == len(values) else None


def proven(found: Sequence[Report]) -> dict[str, Any]:
    """The combined self-check of the program: what holds for every part, unchecked ones included."""
    proofs = [each.get("proof", {"samples": 0, "bit_exact": None, "model": None}) for each in found]
    values = {key: [each[key] for each in proofs] for key in ("bit_exact", "model")}
    samples = min((each["samples"] for each in proofs), default=0)
    whole = {key: all(each) if each and None not in each else None for key, each in values.items()}
    return {"samples": samples, **whole}


def shares(told: Sequence[Told], npu: int, host: int, executed: int) -> dict[str, Any]:
    """The report's fields on placement.

    npu, host: MACs of the model's nodes. executed: multiplications of the programs, rewrites included.
    """
    return {
        "partitions": [asdict(each) for each in told],
        "macs": npu + host,
        "npu_macs_share": npu / (npu + host) if npu + host else None,
        "executed_macs": executed + host,
    }


def utilised(report: Report, own: int) -> dict[str, Any]:
    """Utilisation of the machine by the network's own MACs: those that rewrites add do not count."""
    executed = report["macs"]
    ideal = report["ideal_cycles"] * (min(own, executed) / executed if executed else 1)
    return {"ideal_cycles": ideal, "utilization": ideal / report["cycles"] if report["cycles"] else None}
