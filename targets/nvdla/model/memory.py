"""The memories that NVDLA's DMA engines access: regions of bytes, with nothing between, and cubes in them.

The second memory has addresses from SECOND on. It is undefined at first: bytes must be written before they are
read. Cubes are (batch, surface, H, W, lane) inside the model, with full surfaces as in memory: lanes beyond the
last channel are computed and written like all others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import SECOND, Machine
from npuc.targets.nvdla.model import fp16
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

LARGEST_CUBE = 1 << 30
"""The most bytes of a cube in the model; strides may make lines overlap."""
PAGE = 4096
LARGEST_GAP = 1 << 26
"""The most bytes by which an endless memory grows at once."""


class DeviceMemory:
    """Regions by address; adjacent regions are merged."""

    def __init__(self, regions: Iterable[tuple[int, Array]] = (), *, endless: bool = False) -> None:
        """Copies regions (address, uint8 bytes). Raises ValueError if two overlap.

        endless: the regions, which are whole pages, are surrounded by zeros that may be overwritten.
        """
        self._endless = endless
        self._written: tuple[int, Array] | None = None
        """The address of the second memory, and for each of its bytes whether it has been written."""
        self._starts: list[int] = []
        self._regions: list[Array] = []
        self._add(regions)

    @classmethod
    def zeros(cls, address: int, size: int, second: tuple[int, int] | None = None) -> DeviceMemory:
        """One region of zeros, and optionally a second memory (address, bytes) at higher addresses."""
        found = cls()
        found._starts, found._regions = [address], [np.zeros(size, np.uint8)]
        if second is not None:
            found._starts.append(second[0])
            found._regions.append(np.zeros(second[1], np.uint8))
            found._written = second[0], np.zeros(second[1], bool)
        return found

    @classmethod
    def zero_pages(cls, spans: Iterable[tuple[int, int]], *, endless: bool = False) -> DeviceMemory:
        """Zeros that cover spans (address, bytes), in whole pages."""
        pages = sorted({each for at, size in spans for each in range(at // PAGE, -(-(at + size) // PAGE))})
        return cls(((each * PAGE, np.zeros(PAGE, np.uint8)) for each in pages), endless=endless)

    def _add(self, regions: Iterable[tuple[int, Array]]) -> None:
        """Adds regions to the existing ones."""
        every = sorted([*self.regions, *regions], key=lambda each: each[0])
        self._starts, self._regions = [], []
        for start, parts in _join_regions(every):
            self._starts.append(start)
            self._regions.append(np.concatenate(parts))

    def copy(self) -> DeviceMemory:
        """An independent copy."""
        found = DeviceMemory(self.regions, endless=self._endless)
        if self._written is not None:
            found._written = self._written[0], self._written[1].copy()
        return found

    def written_bytes(self, address: int, size: int) -> Array | None:
        """Whether each byte of a range of the second memory has been written (shared); None for other ranges."""
        if (
            self._written is None
            or not self._written[0] <= address <= self._written[0] + len(self._written[1]) - size
        ):
            return None
        offset = address - self._written[0]
        return self._written[1][offset : offset + size]

    @property
    def regions(self) -> Sequence[tuple[int, Array]]:
        """Every region: its address and its bytes."""
        return list(zip(self._starts, self._regions, strict=True))

    def view(self, address: int, size: int) -> Array | None:
        """The bytes of a range (uint8, shared), or None if they are not all in one region."""
        found = self._find_bytes(address, size)
        if found is None and self._endless and size <= LARGEST_GAP:
            pages = range(address // PAGE, -(-(address + size) // PAGE))
            absent = (each * PAGE for each in pages if self._find_bytes(each * PAGE, PAGE) is None)
            self._add([(each, np.zeros(PAGE, np.uint8)) for each in absent])
            found = self._find_bytes(address, size)
        return found

    def _find_bytes(self, address: int, size: int) -> Array | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        region, offset = self._regions[index], address - self._starts[index]
        return region[offset : offset + size] if offset + size <= len(region) else None

    def read(self, address: int, size: int) -> bytes:
        """A copy of a range of bytes. Raises ArtefactError (E503) outside memory."""
        return MemoryPort(self, "memory").view(address, size).tobytes()

    def write(self, address: int, data: bytes | Array) -> None:
        """Writes bytes from outside. Raises ArtefactError (E503) outside memory."""
        MemoryPort(self, "memory").view(address, len(data))[:] = np.frombuffer(data, np.uint8)


def _join_regions(regions: Iterable[tuple[int, Array]]) -> Iterable[tuple[int, list[Array]]]:
    """Runs of adjacent regions: address and parts."""
    start, end, parts = 0, -1, list[Array]()
    for address, data in regions:
        if address < end:
            raise ValueError(f"two regions of memory overlap at {address:#x}")
        if address > end or not parts:
            if parts:
                yield start, parts
            start, parts = address, []
        parts.append(data)
        end = address + len(data)
    if parts:
        yield start, parts


@frozen
class Pattern:
    """A pattern of bytes: surfaces of lines, each line `line_bytes` long without gaps."""

    address: int
    line_bytes: int
    lines: int = 1
    line_stride: int = 0
    surfaces: int = 1
    surface_stride: int = 0

    @property
    def size(self) -> int:
        """Bytes from the first to the last."""
        return (self.surfaces - 1) * self.surface_stride + (self.lines - 1) * self.line_stride + self.line_bytes

    @cached_property
    def end(self) -> int:
        """The address after the last byte."""
        return self.address + self.size

    def shift(self, by: int) -> Pattern:
        """The pattern shifted by `by` bytes."""
        if not by:
            return self
        rest = self.lines, self.line_stride, self.surfaces, self.surface_stride
        return Pattern(self.address + by, self.line_bytes, *rest)

    def spans(self) -> Array:
        """The pattern as sorted intervals (n, 2) of start and end."""
        surfaces = np.arange(self.surfaces, dtype=np.int64) * self.surface_stride
        lines = np.arange(self.lines, dtype=np.int64) * self.line_stride
        if self.line_stride == self.line_bytes:
            starts, length = surfaces + self.address, self.line_bytes * self.lines
        else:
            starts, length = (surfaces[:, None] + lines + self.address).ravel(), self.line_bytes
        starts = np.sort(starts)
        return np.stack([starts, starts + length], axis=1)


def overlap(first: Pattern, second: Pattern) -> bool:
    """Whether two patterns share a byte."""
    if first.end <= second.address or second.end <= first.address:
        return False
    one, other = first.spans(), second.spans()
    behind = np.searchsorted(other[:, 1], one[:, 0], side="right")
    reached = behind < len(other)
    return bool((other[behind[reached], 0] < one[reached, 1]).any())


@dataclass
class MemoryPort:
    """A block's access to memory, which records reads and writes."""

    memory: DeviceMemory
    block: str
    reads: list[Pattern] = field(default_factory=list[Pattern])
    writes: list[Pattern] = field(default_factory=list[Pattern])

    def for_block(self, block: str) -> MemoryPort:
        """The same port under the name of another block of the operation."""
        return MemoryPort(self.memory, block, self.reads, self.writes)

    def view(self, address: int, size: int) -> Array:
        """A range of bytes (uint8, shared). Raises ArtefactError (E503) outside memory."""
        found = self.memory.view(address, size)
        if found is None:
            second, at = divmod(address, SECOND)
            regions = ((start, len(data)) for start, data in self.memory.regions[:8])
            known = ", ".join(
                f"{start % SECOND:#x}..{start % SECOND + length - 1:#x}"
                for start, length in regions
                if start // SECOND == second
            )
            where = "the second memory" if second else "memory"
            raise trap(self.block, f"{size} bytes at {at:#x} lie outside {where}", limit=known or f"no {where}")
        return found

    def fetch(self, address: int, size: int) -> Array:
        """A range of bytes (uint8, shared), recorded as read."""
        place = Pattern(address, size)
        self.reads.append(place)
        found = self.view(address, size)
        self._expect_written(place, write=False)
        return found

    def cube(self, place: Pattern, atom_bytes: int, *, unit: int | None = None, write: bool = False) -> Array:
        """A cube of atoms (surface, H, W, byte of the atom) in its memory layout, shared.

        unit: the alignment of address and strides, if not the atom. Raises ArtefactError (E503) if the cube is
        outside memory or not aligned.
        """
        self._expect_aligned(place, unit or atom_bytes)
        if place.line_bytes * place.lines * place.surfaces > LARGEST_CUBE:
            raise trap(self.block, f"a cube of {place.lines} lines and {place.surfaces} surfaces", limit="1 GiB")
        (self.writes if write else self.reads).append(place)
        flat = self.view(place.address, place.size)
        self._expect_written(place, write=write)
        shape = (place.surfaces, place.lines, place.line_bytes // atom_bytes, atom_bytes)
        return np.lib.stride_tricks.as_strided(
            flat, shape, (place.surface_stride, place.line_stride, atom_bytes, 1)
        )

    def _expect_written(self, place: Pattern, *, write: bool) -> None:
        """Records writes to the second memory; raises ArtefactError (E503) for a read of unwritten bytes."""
        flags = self.memory.written_bytes(place.address, place.size)
        if flags is None:
            return
        shape, strides = (place.surfaces, place.lines), (place.surface_stride, place.line_stride)
        lines = np.lib.stride_tricks.as_strided(flags, (*shape, place.line_bytes), (*strides, 1))
        if write:
            lines[...] = True
        elif not lines.all():
            reason = f"reads at {place.address % SECOND:#x} of the second memory what nobody has written"
            raise trap(self.block, reason, limit="what an operation has left there")

    def _expect_aligned(self, place: Pattern, unit: int) -> None:
        used = {
            "address": place.address,
            "line stride": place.line_stride if place.lines > 1 else 0,
            "surface stride": place.surface_stride if place.surfaces > 1 else 0,
        }
        for what, value in used.items():
            if value % unit:
                raise trap(self.block, f"{what} {value:#x} is not aligned", limit=f"a multiple of {unit} bytes")


def place_cube(group: RegisterGroup, side: str, extents: tuple[int, int, int], machine: Machine) -> Pattern:
    """The place of a block's input (side SRC) or output (DST), of (rows, columns, surfaces), by its registers."""
    height, width, surfaces = extents
    start = group.address(f"{side}_BASE_ADDR_LOW", f"{side}_BASE_ADDR_HIGH", f"{side}_RAM_TYPE")
    line, surface = group.bytes(f"{side}_LINE_STRIDE"), group.bytes(f"{side}_SURFACE_STRIDE")
    return Pattern(start, width * machine.atom_bytes, height, line, surfaces, surface)


def read_cube(port: MemoryPort, place: Pattern, machine: Machine, precision: str) -> Array:
    """A cube (surface, H, W, lane) in its own type."""
    return np.ascontiguousarray(port.cube(place, machine.atom_bytes)).view(DTYPES[precision])


def write_cube(port: MemoryPort, place: Pattern, machine: Machine, values: Array) -> None:
    """Stores a cube (surface, H, W, lane), int8, int16 or float16."""
    memory = port.cube(place, machine.atom_bytes, write=True)
    memory[...] = np.ascontiguousarray(values).view(np.uint8)


def as_lanes(values: Array, lanes: int) -> Array:
    """Channels (..., H, W, C) as surfaces (..., surface, H, W, lane), filling up the last surface with 0."""
    channels = values.shape[-1]
    surfaces = -(-channels // lanes)
    if surfaces * lanes != channels:
        padding = [(0, 0)] * (values.ndim - 1) + [(0, surfaces * lanes - channels)]
        values = np.pad(values, padding)
    return np.moveaxis(values.reshape(*values.shape[:-1], surfaces, lanes), -2, -4)


def as_channels(values: Array) -> Array:
    """Surfaces (..., surface, H, W, lane) as channels (..., H, W, C)."""
    moved = np.moveaxis(values, -4, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def with_lanes(values: Array, lanes: int, channels: int) -> Array:
    """A cube rearranged into surfaces of another number of lanes."""
    if values.shape[-1] == lanes:
        return values
    return as_lanes(as_channels(values)[..., :channels], lanes)


def widen(values: Array, infinity: float, *, flush: bool) -> Array:
    """Integers as int64, fp16 as float32 with infinities and NaN handled as the block does."""
    if np.issubdtype(values.dtype, np.floating):
        return fp16.load(values, infinity, flush=flush)
    return values.astype(np.int64)
