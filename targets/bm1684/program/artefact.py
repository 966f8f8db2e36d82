"""The manifest of a BM1684 program: machine, kernel arguments, placements of inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Port, Program
from npuc.storage.records import damage_error, read, recorded_machine
from npuc.targets.bm1684.lowering.kernel import Call
from npuc.targets.bm1684.machine.local_memory import ceil_div, from_4n_mode, to_4n_mode
from npuc.targets.bm1684.machine.parameters import ADDRESSES, SYSTEM_BYTES, Machine
from npuc.targets.bm1684.program import table
from npuc.targets.bm1684.program.table import TABLE_FILE, CallTable, call_text

WEIGHTS_FILE = "weights.bin"
KERNEL = "npuc_network"
"""The function that the host launches."""
ELEMENT, IMAGES = 4, 4
"""Bytes of an fp32 element or of a word of 8-bit elements; images in such a word."""
OFFSETS = {"int8": np.uint8(0), "uint8": np.uint8(128)}
"""Types of 8-bit elements: a uint8 integer is larger by 128 than the integer network's int8."""
DTYPES = ("float32", *OFFSETS)
"""Element types."""


@frozen
class MemoryRegion:
    """A region of system memory; the kernel's packed arguments are the regions' addresses (64 bits) in order."""

    name: str
    bytes: int
    file: str | None
    """The file with its initial content; None for inputs, outputs and scratch."""


@frozen
class KernelPort:
    """An input or output of the kernel: fp32 in the continuous layout, or 8-bit in words of four images (4N)."""

    tensor: str
    direction: str
    """input or output."""
    region: str
    address: int
    layout: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of system memory."""
        return ELEMENT * prod(in_words(self.shape, self.dtype))


def in_words(shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    """The extents of a tensor in 32-bit words: an 8-bit word holds one element of each of four images."""
    return tuple(shape) if dtype == "float32" else (ceil_div(shape[0], IMAGES), *shape[1:])


def of_words(words: Array, shape: Sequence[int], dtype: str) -> Array:
    """A tensor of this shape from its words (bytes,) uint8: float32, or int8 (uint8 integers minus 128)."""
    if dtype == "float32":
        return words.view(np.float32).reshape(shape).copy()
    values = from_4n_mode(words.reshape(*in_words(shape, dtype), IMAGES), shape[0])
    return (values ^ OFFSETS[dtype]).view(np.int8)


def to_words(values: Array, dtype: str) -> Array:
    """The inverse of `of_words`: (bytes,) uint8."""
    if dtype == "float32":
        return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return to_4n_mode(values.view(np.uint8) ^ OFFSETS[dtype]).reshape(-1)


@frozen
class Noted:
    """The ONNX nodes and tensor that a call of the table serves, and its cycles."""

    nodes: tuple[str, ...]
    tensor: str
    """The tensor of the graph whose layer it belongs to."""
    cycles: int


@frozen
class Computed:
    """The tensor, operator and ONNX nodes of a layer of the table."""

    tensor: str
    op: str
    nodes: tuple[str, ...]


@frozen
class Instruction:
    """A call of the table, in order: its C text, its engine, region and layer."""

    index: int
    call: Call
    region: int
    """Calls of both engines in one region run in parallel."""
    nodes: tuple[str, ...]
    tensor: str
    cycles: int

    @property
    def text(self) -> str:
        """The call as C."""
        return call_text(self.call)

    @property
    def engine(self) -> str:
        """gdma or bdc."""
        return "gdma" if self.call.on_gdma else "bdc"


@frozen
class Occupied:
    """Bytes of every NPU's local memory that a buffer occupies during regions first..last."""

    buffer: str
    start: int
    end: int
    first: int
    last: int


@frozen
class Observed:
    """A tensor of the network that is in local memory, in the aligned layout, at the end of a layer."""

    tensor: str
    layer: int
    shape: tuple[int, ...]
    local_shape: tuple[int, int, int, int]
    npu: int
    offset: int
    dtype: str = "float32"

    @property
    def words(self) -> tuple[int, ...]:
        """Its extents in 32-bit words."""
        return in_words(self.shape, self.dtype)


@frozen
class Contents:
    """The parts of a manifest that the simulator needs."""

    machine: Machine
    kernel: str
    """The exported function."""
    regions: tuple[MemoryRegion, ...]
    placements: tuple[KernelPort, ...]
    steps: tuple[HostStep, ...] = ()
    """The host's conversions before and after the kernel."""

    @property
    def is_int8(self) -> bool:
        """Whether the kernel computes in 8 bits; without steps if its inputs and outputs are integers already."""
        return any(each.dtype != "float32" for each in self.placements)

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Contents:
        """Reads a manifest. Raises ArtefactError (E502) for a damaged one."""
        machine = recorded_machine(manifest, Machine.of)
        regions = read(tuple[MemoryRegion, ...], manifest.get("regions"), "regions")
        placements = read(tuple[KernelPort, ...], manifest.get("placements"), "placements")
        steps = read(tuple[HostStep, ...], manifest.get("steps"), "steps")
        found = cls(machine, read(str, manifest.get("kernel"), "kernel"), regions, placements, steps)
        found._check_regions()
        for direction in ("input", "output"):
            found._check_ports(direction, read(tuple[Port, ...], manifest.get(f"{direction}s"), f"{direction}s"))
        return found

    def _check_regions(self) -> None:
        names = [self.kernel, *(region.name for region in self.regions)]
        wrong = [name for name in names if not IDENTIFIER.fullmatch(name)]
        if wrong or len(set(names)) < len(names):
            raise damage_error(f"{(wrong or names)[0]!r} cannot name a region or the kernel")
        if any(region.bytes < 0 for region in self.regions):
            raise damage_error("a region has a negative size")
        size = sum(region.bytes for region in self.regions)
        if size > SYSTEM_BYTES:
            raise damage_error(f"its regions take {size} bytes, of {SYSTEM_BYTES}")

    def _check_ports(self, direction: str, ports: Sequence[Port]) -> None:
        """Checks that every input or output of the network is placed, and within its region."""
        sizes = {region.name: region.bytes for region in self.regions}
        placed = [each for each in self.placements if each.direction == direction]
        if any(each.dtype not in DTYPES or not each.shape for each in placed if self.is_int8):
            raise damage_error(f"an {direction} is of no type that there is")
        if not self.steps and sorted((each.tensor, each.shape) for each in placed) != sorted(
            (each.name, each.shape) for each in ports
        ):
            raise damage_error(f"its {direction}s are not those that it places")
        for each in placed:
            fits = min(each.shape, default=1) >= 1 and each.address >= 0
            if not fits or each.address + each.bytes > sizes.get(each.region, 0):
                raise damage_error(f"'{each.tensor}' does not lie in region '{each.region}'")

    @property
    def places(self) -> list[str]:
        """The names of the regions, in the order of their numbers in the table."""
        return [region.name for region in self.regions]

    @staticmethod
    def read_observed(manifest: Mapping[str, Any]) -> tuple[Observed, ...]:
        """The layers' results in local memory. Raises ArtefactError (E502) for a damaged manifest."""
        found = read(tuple[Observed, ...], manifest.get("results"), "results")
        for each in found:
            fits = each.dtype in DTYPES and (each.shape or each.dtype == "float32")
            extents = (*each.shape, *each.local_shape)
            if min(each.layer, each.npu, each.offset) < 0 or min(extents) < 1 or not fits:
                raise damage_error(f"'{each.tensor}' is no tensor")
            if ELEMENT * prod(each.words) > ADDRESSES:
                raise damage_error(f"'{each.tensor}' lies in no local memory")
        return found

    @staticmethod
    def read_occupied(manifest: Mapping[str, Any], regions: int) -> tuple[Occupied, ...]:
        """The buffers in local memory, for so many regions. Raises ArtefactError (E502) for a damaged manifest."""
        found = read(tuple[Occupied, ...], manifest.get("buffers"), "buffers")
        if not all(0 <= each.first <= each.last < regions and 0 <= each.start <= each.end for each in found):
            raise damage_error("a buffer is occupied in regions that there are not")
        return found

    def as_json(self) -> dict[str, Any]:
        """The entries of the manifest."""
        return {
            "machine": self.machine.as_dict(),
            "kernel": self.kernel,
            "regions": [asdict(each) for each in self.regions],
            "placements": [{**asdict(each), "shape": list(each.shape)} for each in self.placements],
            "steps": [asdict(each) for each in self.steps],
        }


IDENTIFIER = re.compile("[A-Za-z][A-Za-z0-9_]{0,62}")
"""A valid name of a region or kernel in C."""


def table_of(program: Program) -> CallTable:
    """The table of calls. Raises ArtefactError (E502) if it is missing or malformed."""
    data = program.files.get(TABLE_FILE)
    if data is None:
        raise ArtefactError("E502", f"there is no {TABLE_FILE}")
    contents = Contents.of(program.manifest)
    return table.read(data, contents.places, contents.machine)


def layers_of(program: Program) -> tuple[Computed, ...]:
    """A description of every layer of the table. Raises ArtefactError (E502) for a damaged manifest."""
    found = read(tuple[Computed, ...], program.manifest.get("layers"), "layers")
    count = len(table_of(program).layers)
    if len(found) != count:
        raise damage_error(f"it names {len(found)} layers, the table has {count}")
    return found


def instructions(program: Program) -> tuple[Instruction, ...]:
    """The calls in order, with their notes. Raises ArtefactError (E502) if table and manifest do not match."""
    notes = read(tuple[Noted, ...], program.manifest.get("instructions"), "instructions")
    regions = (region for layer in table_of(program).layers for region in layer)
    calls = [(number, call) for number, region in enumerate(regions) for call in region.calls]
    if len(calls) != len(notes):
        raise damage_error(f"it says of {len(notes)} calls what they are for, the table has {len(calls)}")
    return tuple(
        Instruction(index, call, region, note.nodes, note.tensor, note.cycles)
        for index, ((region, call), note) in enumerate(zip(calls, notes, strict=True))
    )
