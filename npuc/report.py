"""The fields that the reports of all targets have, by which a manifest is checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen


@frozen
class MemoryUse:
    """The use of a memory over the whole program."""

    peak_bytes: int
    capacity_bytes: int | None
    lower_bound_bytes: int


@frozen
class HostNode:
    """A node that the target's own program leaves to the host."""

    node: str
    op: str
    reason: str


@frozen
class ReportLayer:
    """A layer that the machine computes."""

    name: str
    op: str
    nodes: tuple[str, ...]
    macs: int
    cycles: int


@frozen
class Partition:
    """A part of the model. place: npu or host; bytes: what crosses to it and from it."""

    place: str
    path: str | None
    macs: int
    bytes_in: int
    bytes_out: int


@frozen
class Report:
    """The report of a compile; targets add fields of their own."""

    target: str
    machine: str
    instructions: int
    segments: int
    macs: int
    cycles: int
    ideal_cycles: float
    utilization: float | None
    memory: Mapping[str, MemoryUse]
    host_steps: tuple[HostNode, ...]
    layers: tuple[ReportLayer, ...]
    partitions: tuple[Partition, ...] = ()
    npu_macs_share: float | None = None
    executed_macs: int | None = None
    macs_per_cycle: float | None = None
    bytes_per_cycle: float | None = None
