"""Writes registers: by name, and those of an operation as the firmware's tables have them.

Where npuc's own programs say more than descriptors can, or something else than the firmware, `_own` has the
registers: they ran on the RTL in this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from npuc.targets.nvdla.emission.describing import describe, operand_sources
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware import programmed
from npuc.targets.nvdla.firmware.lines import Firmware
from npuc.targets.nvdla.firmware.look_up import look_up_tables
from npuc.targets.nvdla.firmware.sdp import fetch
from npuc.targets.nvdla.machine.commands import Command, Write
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.operations.operation import Convolution, Elementwise, Operation, Pooling, Transfer
from npuc.targets.nvdla.operations.timing import cube_bytes

UNIT, LONGEST = 32, 1 << 13
"""The unit of BDMA's sizes in bytes, and the most units in a line: SIZE has 13 bits and is one less."""
OF_SHIFT = 8
"""The lowest bit of SHIFT_VALUE in the configuration of a unit's adder and multiplier; bit 0 is SRC."""
DISABLED = OFF_FLYING = 1
USES = ("", "MUL", "ALU", "BOTH")
"""What SDP_RDMA fetches, by the number that descriptors have for it."""
FIRMWARES_OWN = ("GLB.S_INTR_MASK",)
"""Registers that the firmware writes for its own interrupts."""


class RegisterWriter:
    """Collects register writes for a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.map = register_map(machine.registers)
        self.firmware = Firmware(self.map, machine.atom_bytes, lambda _: 0)
        self.commands: list[Command] = []

    def set(self, title: str, **fields: int | str) -> None:
        """Writes a register by its fields; the others have their reset values."""
        register = self.map[title]
        self.commands.append(Write(register.address, register.value(**fields)))

    def raw(self, title: str, value: int) -> None:
        """Writes all bits of a register up to its highest field: addresses and sizes in bytes, numbers in two's
        complement.
        """
        register = self.map.by_title[title]
        self.commands.append(Write(register.address, value & register.mask))

    def write(self, operation: Operation) -> None:
        """Programs an operation, each register once."""
        if isinstance(operation, Transfer):
            self._copy(operation)
            return
        values: dict[str, int] = {}
        for each in describe(operation, self.machine):
            if each.lut is not None:
                block, floating = of.ENGINES[each.engine], operation.destination.precision == "fp16"
                self.commands += _tables(self.machine, each.lut, block, floating=floating)
            values |= programmed(self.firmware, each.op, each.surfaces, None)
            if isinstance(each.op, of.Sdp):
                values |= fetch(self.firmware, _fetching(each.op, operation), each.surfaces)
        values |= _own(operation)
        for title, value in values.items():
            if title not in FIRMWARES_OWN:
                self.raw(title, value)

    def _copy(self, operation: Transfer) -> None:
        """Puts one copy into BDMA's queue; it begins with the launch."""
        units = cube_bytes(operation.source, self.machine) // UNIT
        line = next(each for each in range(min(units, LONGEST), 0, -1) if units % each == 0)
        memories = {"SRC": operation.source.address, "DST": operation.destination.address}
        for side, address in memories.items():
            self.raw(f"BDMA.CFG_{side}_ADDR_LOW", address)
            self.raw(f"BDMA.CFG_{side}_ADDR_HIGH", address >> 32)
            self.raw(f"BDMA.CFG_{side}_LINE", line * UNIT)
            self.raw(f"BDMA.CFG_{side}_SURF", units * UNIT)
        types = {f"{side}_RAM_TYPE": int(not self.machine.in_sram(each)) for side, each in memories.items()}
        self.set("BDMA.CFG_CMD", **types)
        self.set("BDMA.CFG_LINE", SIZE=line - 1)
        self.set("BDMA.CFG_LINE_REPEAT", NUMBER=units // line - 1)
        self.set("BDMA.CFG_SURF_REPEAT", NUMBER=0)
        self.set("BDMA.CFG_OP", EN="ENABLE")


@lru_cache(maxsize=64)
def _tables(machine: Machine, lut: of.Lut, block: str, *, floating: bool) -> tuple[Command, ...]:
    """The writes that load tables; layers have many in common."""
    writer = RegisterWriter(machine)
    for title, value in look_up_tables(writer.firmware, block, lut, floating=floating):
        writer.raw(title, value)
    return tuple(writer.commands)


def _own(operation: Operation) -> Iterator[tuple[str, int]]:
    """Registers of which the firmware has no or other values."""
    flying = operation if isinstance(operation, Pooling) else None
    if isinstance(operation, Convolution | Elementwise):
        yield from _of_sdp(operation)
        flying = operation.pooling
    if isinstance(operation, Convolution):
        result = operation.destination
        yield "CACC.D_DATAOUT_ADDR", result.address
        yield "CACC.D_LINE_STRIDE", result.line_stride
        yield "CACC.D_SURF_STRIDE", result.surface_stride
        yield "CACC.D_DATAOUT_MAP", 0
        yield "CDMA.D_DAIN_MAP", 0
        if operation.source.conversion is None:
            yield "CDMA.D_CVT_SCALE", 1
    if flying:
        for name, value in zip(("WIDTH", "HEIGHT"), flying.reciprocals, strict=True):
            yield f"PDP.D_RECIP_KERNEL_{name}", value
    if isinstance(operation, Pooling):
        yield "PDP_RDMA.D_FLYING_MODE", OFF_FLYING
        yield "PDP.D_SRC_BASE_ADDR_LOW", operation.source.address
        yield "PDP.D_SRC_BASE_ADDR_HIGH", operation.source.address >> 32


def _fetching(op: of.Sdp, operation: Operation) -> of.Sdp:
    """The operation as SDP_RDMA sees it: units use what is fetched, not what is in registers."""
    assert isinstance(operation, Convolution | Elementwise)
    units = {"x1": operation.sdp.x1, "x2": operation.sdp.x2}
    uses = {name: USES.index(unit.fetch.use) for name, unit in units.items() if unit.fetch}
    return replace(op, **{name: replace(getattr(op, name), use=use) for name, use in uses.items()})


def _of_sdp(operation: Convolution | Elementwise) -> Iterator[tuple[str, int]]:
    """The place of each operand of BS and BN, which may differ within a unit, and strides between a batch's."""
    batches = operation.batches if isinstance(operation, Convolution) else 1
    yield "SDP_RDMA.D_ERDMA_CFG", DISABLED
    for name, letter, unit in (("BS", "B", operation.sdp.x1), ("BN", "N", operation.sdp.x2)):
        if unit.fetch is None:
            yield f"SDP_RDMA.D_{letter}RDMA_CFG", DISABLED
        sources, stage = operand_sources(unit), unit.stage
        parts = (("ALU", unit.alu, stage.alu_shift), ("MUL", unit.multiplier, stage.shift))
        for part, operand, shift in parts:
            yield f"SDP.D_DP_{name}_{part}_CFG", int(sources.get(part) == "MEM") | shift << OF_SHIFT
            yield f"SDP.D_DP_{name}_{part}_SRC_VALUE", operand or 0
        if unit.fetch is not None and batches > 1:
            height = operation.destination.height // batches
            yield f"SDP_RDMA.D_{name}_BATCH_STRIDE", height * unit.fetch.line_stride
