"""SDP_RDMA: fetches the input of SDP, and the operands of its units BS, BN and EW.

Source: in-memory formats, from Bias Data Format to Element-Wise Data Format (BytesPerAtom); Arithmetic, cubes of 1
x 1, as seen on the RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model import cubes
from npuc.targets.nvdla.model.memory import MemoryPort, Pattern
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

BLOCK = "SDP_RDMA"
COMPONENTS = {"MUL": ("MUL",), "ALU": ("ALU",), "BOTH": ("ALU", "MUL")}
"""The components of an operand's element in memory order, by DATA_USE."""


@frozen
class FetchedOperands:
    """A unit's operands from memory, ALU and MUL, broadcastable to (batch, surface, H, W, lane)."""

    components: dict[str, Array]

    def __getitem__(self, component: str) -> Array:
        """The operand. Raises ArtefactError (E503) if it is not fetched."""
        if component not in self.components:
            known = ", ".join(self.components) or "nothing: the DMA is disabled"
            raise trap("SDP", f"waits for {component} operands that {BLOCK} does not fetch", limit=known)
        return self.components[component]

    def rows(self, rows: slice) -> FetchedOperands:
        """The operands of some rows; those that all rows share are kept."""
        return FetchedOperands(
            {name: each if each.shape[2] == 1 else each[:, :, rows] for name, each in self.components.items()}
        )


def size(group: RegisterGroup) -> tuple[int, int, int]:
    """Height, width and channels of the cube."""
    return group["HEIGHT"] + 1, group["WIDTH"] + 1, group["CHANNEL"] + 1


def packed(place: Pattern, atom: int) -> Pattern:
    """The place of a cube of SDP: one of a single pixel is packed, atom after atom, whatever its strides."""
    single = (place.line_bytes, place.lines) == (atom, 1)
    return Pattern(place.address, atom, 1, 0, place.surfaces, atom) if single else place


def source(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The input of SDP (batch, surface, H, W, lane) in its own type."""
    height, width, channels = size(group)
    kind = group.named("IN_PRECISION").lower()
    surfaces = -(-channels // machine.atom_elements(kind))
    place = packed(cubes.place(group, "SRC", (height, width, surfaces), machine), machine.atom_bytes)
    if group["BATCH_NUMBER"]:
        raise trap(BLOCK, f"{group['BATCH_NUMBER'] + 1} batches of a cube in memory", limit="1")
    return cubes.read(port, place, machine, kind)[None]


def operands(group: RegisterGroup | None, unit: str, machine: Machine, port: MemoryPort) -> FetchedOperands:
    """The operands fetched for a unit (BS, BN or EW)."""
    letter = {"BS": "B", "BN": "N", "EW": "E"}[unit]
    if group is None or group[f"{letter}RDMA_DISABLE"]:
        return FetchedOperands({})
    names = COMPONENTS[group.named(f"{letter}RDMA_DATA_USE")]
    kind = group.named("PROC_PRECISION").lower()
    one = group.named(f"{letter}RDMA_DATA_SIZE") == "ONE_BYTE"
    dtype = np.dtype(np.int8) if one else np.dtype(np.float16 if kind == "fp16" else np.int16)
    lanes = machine.atom_elements(kind)
    fetched = [
        _cube(group, unit, port, (lanes * len(names) * dtype.itemsize, machine.atom_bytes, lanes), batch)
        for batch in range(group["BATCH_NUMBER"] + 1)
    ]
    values = np.stack(fetched).view(dtype)
    split = values.reshape(*values.shape[:-1], lanes, len(names))
    return FetchedOperands({name: split[..., each] for each, name in enumerate(names)})


def _cube(group: RegisterGroup, unit: str, port: MemoryPort, sizes: tuple[int, int, int], batch: int) -> Array:
    """The bytes (surface, H, W, byte of the atom) of an operand; if per channel, H = W = 1, without gaps."""
    atom, unit_bytes, lanes = sizes
    letter = {"BS": "B", "BN": "N", "EW": "E"}[unit]
    height, width, channels = size(group)
    surfaces = -(-channels // lanes)
    start = group.address(f"{unit}_BASE_ADDR_LOW", f"{unit}_BASE_ADDR_HIGH", f"{letter}RDMA_RAM_TYPE")
    if batch:
        start += batch * group.bytes(f"{unit}_BATCH_STRIDE")
    if group.named(f"{letter}RDMA_DATA_MODE") == "PER_KERNEL" or (height, width) == (1, 1):
        row = port.cube(Pattern(start, surfaces * atom), atom, unit=unit_bytes)
        return np.ascontiguousarray(row).reshape(surfaces, 1, 1, atom)
    line, surface = group.bytes(f"{unit}_LINE_STRIDE"), group.bytes(f"{unit}_SURFACE_STRIDE")
    place = Pattern(start, width * atom, height, line, surfaces, surface)
    return np.ascontiguousarray(port.cube(place, atom, unit=unit_bytes))
