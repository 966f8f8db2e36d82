"""Emission: operations to register writes, by the tables of NVDLA's firmware.

Each block has two register groups, used alternately: one is written while the other runs, so that the input of an
operation is fetched while the previous one computes. The scoreboard decides what an operation waits for. Its
blocks are enabled from last to first, so that no block produces data before the next one is ready; if SDP must
wait for longer than the input, the convolution pipeline is enabled first and waits for SDP.

Where npuc's own programs say more than descriptors can, or something else than the firmware, `_own` has the
registers.

Source: a convolution, a pooling and an addition as they ran on the nv_small and nv_large RTL; so did `_own`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from npuc.targets.nvdla.emission.describing import Described, describe, operand_sources
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware import writes_of
from npuc.targets.nvdla.firmware.lines import Firmware, RegisterWrite, Writes
from npuc.targets.nvdla.firmware.post_processing import fetch, look_up_tables, needs_rdma
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import Command, Poll, Write, register_map
from npuc.targets.nvdla.model.register_file import RegisterFile, expect_within_limits
from npuc.targets.nvdla.operations.operation import Convolution, Elementwise, Operation, Pooling, Transfer
from npuc.targets.nvdla.operations.scoreboard import CONVOLUTION, Admission, Scoreboard, blocks_of
from npuc.targets.nvdla.operations.timing import cube_bytes

MASKED = ("CDMA_DAT", "CDMA_WT", "CACC")
"""Interrupt sources that only report progress within a convolution."""
BRIDGE = "BDMA"
"""BDMA has a queue of copies instead of register groups; each launch counts as a group, ended by its interrupt."""


def program(machine: Machine, operations: Iterable[Operation]) -> list[Command]:
    """The commands that run operations in order."""
    emitter = Emitter(machine)
    emitter.start()
    for operation in operations:
        emitter.emit(operation)
    emitter.drain()
    return emitter.writer.commands


def kind(operation: Operation) -> str:
    """The operation's name in reports."""
    return type(operation).__name__.lower()


class Emitter:
    """Writes operations in order, alternating the register groups of each block."""

    def __init__(self, machine: Machine) -> None:
        self.writer = _RegisterWriter(machine)
        self.scoreboard = Scoreboard(machine.atom_bytes)

    def start(self) -> None:
        """The driver's initialisation: masks interrupts, and waits until the CBUF is flushed."""
        masks = {f"{source}_DONE_MASK{group}": 1 for source in MASKED for group in (0, 1)}
        self.writer.set("GLB.S_INTR_MASK", **masks)
        flushed = self.writer.map["CDMA.S_CBUF_FLUSH_STATUS"]
        self.writer.commands.append(Poll(flushed.address, 1, 1))
        if self.writer.machine.registers == "nv_full":
            self.writer.set("CDMA.S_ARBITER", ARB_WEIGHT=15, ARB_WMB=3)

    def emit(self, operation: Operation) -> Admission:
        """Programs and enables an operation, waiting before each for the operations that it needs to have ended.

        Returns the operation's admission. Raises ArtefactError (E503) if its registers break a limit of a block.
        """
        before = self.scoreboard
        admission, self.scoreboard = before.admit(operation)
        self._wait(before, before.count - len(before.issued), admission.program)
        for block, group in self.scoreboard.issued[-1].groups.items():
            if block != BRIDGE:
                self.writer.set(f"{block}.S_POINTER", PRODUCER=group)
        self.writer.write(operation)
        blocks = blocks_of(operation)
        self._expect_within_limits(blocks)
        self._wait(before, admission.program, admission.fetch)
        early = CONVOLUTION if admission.fetch < admission.write else ()
        self._enable(early)
        self._wait(before, admission.fetch, admission.write)
        self._enable([block for block in blocks if block not in early])
        return admission

    def drain(self) -> None:
        """Waits for all operations that may still run."""
        before = self.scoreboard
        self._wait(before, before.count - len(before.issued), before.count)
        self.scoreboard = before.drain()

    def _expect_within_limits(self, blocks: Iterable[str]) -> None:
        """Raises ArtefactError (E503) if the latest operation breaks a limit of one of its blocks."""
        groups = self.scoreboard.issued[-1].groups
        for block in blocks:
            group = self.writer.registers.group(block, 0 if block == BRIDGE else groups[block])
            expect_within_limits(group, self.writer.machine)

    def _enable(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            if block == BRIDGE:
                group = self.scoreboard.issued[-1].groups[block]
                self.writer.set(f"{block}.CFG_LAUNCH{group}", **{f"GRP{group}_LAUNCH": "YES"})
            else:
                self.writer.set(f"{block}.D_OP_ENABLE", OP_EN="ENABLE")

    def _wait(self, scoreboard: Scoreboard, first: int, end: int) -> None:
        """Waits for the operations with numbers from `first` to before `end`."""
        gone = scoreboard.count - len(scoreboard.issued)
        for each in scoreboard.issued[first - gone : end - gone]:
            self.writer.commands += each.waits


UNIT, LONGEST = 32, 1 << 13
"""The unit of BDMA's sizes in bytes, and the most units in a line: SIZE has 13 bits and is one less."""
OF_SHIFT = 8
"""The lowest bit of SHIFT_VALUE in the configuration of a unit's adder and multiplier; bit 0 is SRC."""
DISABLED = OFF_FLYING = 1
USES = ("", "MUL", "ALU", "BOTH")
"""What SDP_RDMA fetches, by the number that descriptors have for it."""
FIRMWARES_OWN = ("GLB.S_INTR_MASK",)
"""Registers that the firmware writes for its own interrupts."""


class _RegisterWriter:
    """Collects register writes for a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.map = register_map(machine.registers)
        self.firmware = Firmware(self.map, machine.atom_bytes, lambda _: 0)
        self.commands: list[Command] = []
        self.registers = RegisterFile(self.map)
        """As the commands leave them, without look-up tables."""
        self.described: list[list[Described]] = []
        """What the engines do of each operation."""

    def set(self, title: str, **fields: int | str) -> None:
        """Writes a register by its fields; the others have their reset values."""
        self.put([(title, self.map.by_title[title].value(**fields))])

    def put(self, values: Iterable[RegisterWrite]) -> None:
        """Writes all bits of registers up to their highest fields: addresses and sizes in bytes, numbers in two's
        complement.
        """
        known, store, append = self.map.by_title, self.registers.set, self.commands.append
        for title, value in values:
            register = known[title]
            word = value & register.mask
            append(Write(register.address, word))
            store(register, word)

    def write(self, operation: Operation) -> None:
        """Programs an operation, each register once."""
        self.described.append(describe(operation, self.machine))
        if isinstance(operation, Transfer):
            self._copy(operation)
            return
        values: dict[str, int] = {}
        for each in self.described[-1]:
            if each.lut is not None:
                block, floating = of.ENGINES[each.engine], operation.destination.precision == "fp16"
                self.commands += _tables(self.machine, each.lut, block, floating=floating)
            values |= writes_of(self.firmware, each.op, each.surfaces, None)
            if isinstance(each.op, of.Sdp):
                values |= self._rdma_writes(operation, each.op, each.surfaces)
        values |= _additional_registers(operation)
        self.put(each for each in values.items() if each[0] not in FIRMWARES_OWN)

    def _rdma_writes(self, operation: Operation, op: of.Sdp, surfaces: of.SdpSurfaces) -> Writes:
        """The writes of SDP_RDMA where the firmware has none, or others: units use what is fetched, not what is in
        registers.
        """
        assert isinstance(operation, Convolution | Elementwise)
        units = (("x1", op.x1, operation.sdp.x1.fetch), ("x2", op.x2, operation.sdp.x2.fetch))
        other = {
            name: replace(unit, use=use)
            for name, unit, found in units
            if found and (use := USES.index(found.use)) != unit.use
        }
        if other or not needs_rdma(op, surfaces):
            yield from fetch(self.firmware, replace(op, **other), surfaces)

    def _copy(self, operation: Transfer) -> None:
        """Puts one copy into BDMA's queue; it begins with the launch."""
        units = cube_bytes(operation.source, self.machine) // UNIT
        line = next(each for each in range(min(units, LONGEST), 0, -1) if units % each == 0)
        memories = {"SRC": operation.source.address, "DST": operation.destination.address}
        for side, address in memories.items():
            values = {"ADDR_LOW": address, "ADDR_HIGH": address >> 32, "LINE": line * UNIT, "SURF": units * UNIT}
            self.put((f"BDMA.CFG_{side}_{name}", value) for name, value in values.items())
        types = {f"{side}_RAM_TYPE": int(not self.machine.in_sram(each)) for side, each in memories.items()}
        self.set("BDMA.CFG_CMD", **types)
        self.set("BDMA.CFG_LINE", SIZE=line - 1)
        self.set("BDMA.CFG_LINE_REPEAT", NUMBER=units // line - 1)
        self.set("BDMA.CFG_SURF_REPEAT", NUMBER=0)
        self.set("BDMA.CFG_OP", EN="ENABLE")


@lru_cache(maxsize=64)
def _tables(machine: Machine, lut: of.Lut, block: str, *, floating: bool) -> tuple[Command, ...]:
    """The writes that load tables; layers have many in common."""
    writer = _RegisterWriter(machine)
    writer.put(look_up_tables(writer.firmware, block, lut, floating=floating))
    return tuple(writer.commands)


def _additional_registers(operation: Operation) -> Iterator[tuple[str, int]]:
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
