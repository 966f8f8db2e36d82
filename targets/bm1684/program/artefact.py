"""What the manifest of a BM1684 program says: machine, arguments of the kernel, where inputs and outputs lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from npuc.errors import ArtefactError, DoesNotFit
from npuc.storage.records import read
from npuc.targets.bm1684.machine.parameters import Machine

KERNEL_FILE, LAUNCHER_FILE, WEIGHTS_FILE = "kernel.c", "launch.cpp", "weights.bin"
ELEMENT = 4
"""Bytes of an fp32 element."""


@dataclass(frozen=True)
class Region:
    """A region of system memory; the kernel's packed arguments are the regions' addresses (64 bits) in order."""

    name: str
    bytes: int
    file: str | None
    """What it holds at the start; None: inputs, outputs and scratch."""


@dataclass(frozen=True)
class Placement:
    """An input or output of the network, fp32 in the continuous layout from its region's start."""

    tensor: str
    direction: str
    """input or output."""
    region: str
    address: int
    layout: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Instruction:
    """A call of the kernel, in order: its C text, its engine, region and layer."""

    index: int
    text: str
    engine: str
    region: int
    """Calls of both engines in one region run together."""
    nodes: tuple[str, ...]
    tensor: str
    """The tensor of the graph whose layer it belongs to."""
    cycles: int


@dataclass(frozen=True)
class Occupied:
    """Bytes of every NPU's local memory that hold something while regions first..last run."""

    buffer: str
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class Observed:
    """A tensor of the network that lies in local memory, in the aligned layout, when a layer ends."""

    tensor: str
    layer: int
    shape: tuple[int, ...]
    local_shape: tuple[int, int, int, int]
    npu: int
    offset: int


@dataclass(frozen=True)
class Contents:
    """What a manifest says to the simulator."""

    machine: Machine
    kernel: str
    """The function in kernel.c."""
    regions: tuple[Region, ...]
    placements: tuple[Placement, ...]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Contents:
        """Raises ArtefactError (E502) where the manifest is not one that npuc wrote."""
        try:
            machine = Machine.of(
                dict(read(Mapping[str, Any], manifest.get("machine"), "machine")), "of the artefact"
            )
        except DoesNotFit as error:
            raise _damaged(error.problems[0].reason) from None
        regions = read(tuple[Region, ...], manifest.get("regions"), "regions")
        placements = read(tuple[Placement, ...], manifest.get("placements"), "placements")
        sizes = {region.name: region.bytes for region in regions}
        for each in placements:
            if each.address < 0 or each.address + ELEMENT * prod(each.shape) > sizes.get(each.region, 0):
                raise _damaged(f"'{each.tensor}' does not lie in region '{each.region}'")
        return cls(machine, read(str, manifest.get("kernel"), "kernel"), regions, placements)

    @staticmethod
    def instructions(manifest: Mapping[str, Any]) -> tuple[Instruction, ...]:
        """The calls in order. Raises ArtefactError (E502) where the manifest is not one that npuc wrote."""
        return read(tuple[Instruction, ...], manifest.get("instructions"), "instructions")

    @staticmethod
    def observed(manifest: Mapping[str, Any]) -> tuple[Observed, ...]:
        """What layers leave. Raises ArtefactError (E502) where the manifest is not one that npuc wrote."""
        return read(tuple[Observed, ...], manifest.get("results"), "results")

    @staticmethod
    def occupied(manifest: Mapping[str, Any]) -> tuple[Occupied, ...]:
        """What local memory holds. Raises ArtefactError (E502) where the manifest is not one that npuc wrote."""
        return read(tuple[Occupied, ...], manifest.get("buffers"), "buffers")

    def as_json(self) -> dict[str, Any]:
        """The entries of the manifest."""
        return {
            "machine": self.machine.as_dict(),
            "kernel": self.kernel,
            "regions": [asdict(each) for each in self.regions],
            "placements": [{**asdict(each), "shape": list(each.shape)} for each in self.placements],
        }


def _damaged(reason: str) -> ArtefactError:
    return ArtefactError("E502", f"manifest.json is damaged: {reason}", remedy="compile the model again")
