"""From operations to register writes: blocks in the order in which NVDLA's own test programs set them up.

Each block has two register groups that take turns; a group is written while the other runs, so that the input of
an operation is fetched while the one before computes. An operation waits for those before it that have its
groups, or touch what it touches. It is
enabled from its last block to its first, so that no data comes before its taker is ready.
Source: a convolution, a pooling and an addition as they ran on the nv_small and nv_full RTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from npuc.targets.nvdla.commands import Command, Poll, Wait, Write
from npuc.targets.nvdla.integer import ALU
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.model.memory import Pattern, overlap
from npuc.targets.nvdla.operations import (
    Convolution,
    Elementwise,
    Fetch,
    Operation,
    Pooling,
    Sdp,
    Surface,
    Unit,
    Window,
)
from npuc.targets.nvdla.registers import register_map

ENABLES = {
    "convolution": ("SDP_RDMA", "SDP", "CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA"),
    "elementwise": ("SDP_RDMA", "SDP"),
    "pooling": ("PDP_RDMA", "PDP"),
}
MASKED = ("CDMA_DAT", "CDMA_WT", "CACC")
"""Sources of interrupts that only say how far a convolution has come."""
TABLE_ENTRIES = 257
"""Of the linear table LO."""


def kind(operation: Operation) -> str:
    """The operation's name in ENABLES and in reports."""
    return type(operation).__name__.lower()


@dataclass(frozen=True)
class Flight:
    """An operation that may still run: the register groups that it has, and the interrupt that ends it."""

    operation: Operation
    turns: Mapping[str, int]
    wait: Wait

    def blocks(self, operation: Operation, turns: Mapping[str, int], atom_bytes: int) -> bool:
        """Whether another operation must wait for this one.

        Tables of EW are not in groups: nothing runs while they are written.
        """
        same_groups = any(turns.get(block) == turn for block, turn in self.turns.items())
        tables = not isinstance(operation, Pooling) and bool(operation.sdp.table)
        written, own = (_place(each.destination, atom_bytes) for each in (self.operation, operation))
        touched = (*reads(operation, atom_bytes), own)
        before = reads(self.operation, atom_bytes)
        return (
            same_groups
            or tables
            or any(overlap(written, each) for each in touched)
            or any(overlap(own, each) for each in before)
        )


def _place(surface: Surface, atom_bytes: int) -> Pattern:
    """The bytes of a surface."""
    return Pattern(
        surface.address,
        surface.width * atom_bytes,
        surface.height,
        surface.line_stride,
        -(-surface.channels // atom_bytes),
        surface.surface_stride,
    )


def reads(operation: Operation, atom_bytes: int) -> list[Pattern]:
    """The maps that an operation reads: its input, and operands per element or of one pixel."""
    found = [_place(operation.source, atom_bytes)]
    if isinstance(operation, Pooling):
        return found
    result = operation.destination
    for fetch in (operation.sdp.x1.fetch, operation.sdp.x2.fetch):
        if fetch is not None and fetch.component_bytes == 1:
            size = (result.width, result.height) if fetch.per_element else (1, 1)
            strides = (fetch.line_stride, fetch.surface_stride) if fetch.per_element else (atom_bytes, atom_bytes)
            found.append(_place(Surface(fetch.address, *size, result.channels, *strides), atom_bytes))
    return found


class Emitter:
    """Writes operations one after the other, each block in the group whose turn it is."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.map = register_map(machine.registers)
        self.commands: list[Command] = []
        self.turns: dict[str, int] = {}
        self.flights: list[Flight] = []
        self.count = 0
        """Operations so far."""

    def start(self) -> None:
        """What a driver does once: masks interrupts, waits until the CBUF is flushed."""
        masks = {f"{source}_DONE_MASK{group}": 1 for source in MASKED for group in (0, 1)}
        self.set("GLB.S_INTR_MASK", **masks)
        flushed = self.map["CDMA.S_CBUF_FLUSH_STATUS"]
        self.commands.append(Poll(flushed.address, 1, 1))
        if self.machine.registers == "nv_full":
            self.set("CDMA.S_ARBITER", ARB_WEIGHT=15, ARB_WMB=3)

    def set(self, title: str, **fields: int | str) -> None:
        """Writes a register by its fields, the others as after reset."""
        register = self.map[title]
        self.commands.append(Write(register.address, register.value(**fields)))

    def raw(self, title: str, value: int) -> None:
        """Writes all bits of a register: addresses and sizes in bytes, numbers in two's complement."""
        self.commands.append(Write(self.map[title].address, value & 0xFFFFFFFF))

    def address(self, block: str, stem: str, value: int) -> None:
        """Writes the low and the high word of an address."""
        self.raw(f"{block}.{stem}_LOW", value)
        self.raw(f"{block}.{stem}_HIGH", value >> 32)

    def emit(self, operation: Operation) -> int:
        """Waits for what must have ended, then programs and enables an operation.

        Result: how many of the operations before it have ended by then.
        """
        blocks = ENABLES[kind(operation)]
        turns = {block: self.turns.get(block, 0) for block in blocks}
        self._wait_for(operation, turns)
        ended = self.count - len(self.flights)
        for block, turn in turns.items():
            self.set(f"{block}.S_POINTER", PRODUCER=turn)
        match operation:
            case Convolution():
                self._sdp(operation.sdp, None, operation.destination)
                self._convolution(operation)
            case Elementwise():
                self._sdp(operation.sdp, operation.source, operation.destination)
            case Pooling():
                self._pooling(operation)
        for block in blocks:
            self.set(f"{block}.D_OP_ENABLE", OP_EN="ENABLE")
        engine = "PDP" if isinstance(operation, Pooling) else "SDP"
        self.flights.append(Flight(operation, turns, Wait(engine, turns[engine])))
        self.turns |= {block: 1 - turn for block, turn in turns.items()}
        self.count += 1
        return ended

    def drain(self) -> None:
        """Waits for all that still runs."""
        self.commands += [each.wait for each in self.flights]
        self.flights.clear()

    def _wait_for(self, operation: Operation, turns: Mapping[str, int]) -> None:
        """Waits, in order, up to the last operation that must have ended."""
        atom = self.machine.atom_bytes
        last = max((at for at, each in enumerate(self.flights) if each.blocks(operation, turns, atom)), default=-1)
        self.commands += [each.wait for each in self.flights[: last + 1]]
        del self.flights[: last + 1]

    # SDP and its RDMA

    def _sdp(self, sdp: Sdp, source: Surface | None, result: Surface) -> None:
        flying = "ON" if source is None else "OFF"
        extents = {"WIDTH": result.width - 1, "HEIGHT": result.height - 1, "CHANNEL": result.channels - 1}
        for block in ("SDP_RDMA", "SDP"):
            for extent, value in extents.items():
                self.set(f"{block}.D_DATA_CUBE_{extent}", **{extent: value})
        if source is not None:
            self.address("SDP_RDMA", "D_SRC_BASE_ADDR", source.address)
            self.raw("SDP_RDMA.D_SRC_LINE_STRIDE", source.line_stride)
            self.raw("SDP_RDMA.D_SRC_SURFACE_STRIDE", source.surface_stride)
            self.set("SDP_RDMA.D_SRC_DMA_CFG", SRC_RAM_TYPE="MC")
        for letter, unit, fetch in (("B", "BS", sdp.x1.fetch), ("N", "BN", sdp.x2.fetch), ("E", "EW", None)):
            self._fetch(letter, unit, fetch)
        precisions = {f"{each}_PRECISION": "INT8" for each in ("IN", "PROC", "OUT")}
        self.set("SDP_RDMA.D_FEATURE_MODE_CFG", FLYING_MODE=flying, **precisions)
        self.address("SDP", "D_DST_BASE_ADDR", result.address)
        self.raw("SDP.D_DST_LINE_STRIDE", result.line_stride)
        self.raw("SDP.D_DST_SURFACE_STRIDE", result.surface_stride)
        for unit, stage in (("BS", sdp.x1), ("BN", sdp.x2)):
            self._unit(unit, stage)
        self._table(sdp.table)
        self.set("SDP.D_FEATURE_MODE_CFG", FLYING_MODE=flying, OUTPUT_DST="MEM")
        self.set("SDP.D_DST_DMA_CFG", DST_RAM_TYPE="MC")
        self.set("SDP.D_DATA_FORMAT", PROC_PRECISION="INT8", OUT_PRECISION="INT8")
        offset, scale, shift = sdp.converter
        self.raw("SDP.D_CVT_OFFSET", offset)
        self.set("SDP.D_CVT_SCALE", CVT_SCALE=scale & 0xFFFF)
        self.set("SDP.D_CVT_SHIFT", CVT_SHIFT=shift)

    def _fetch(self, letter: str, unit: str, fetch: Fetch | None) -> None:
        register = f"SDP_RDMA.D_{letter}RDMA_CFG"
        if fetch is None:
            self.set(register, **{f"{letter}RDMA_DISABLE": "YES"})
            return
        mode = "PER_ELEMENT" if fetch.per_element else "PER_KERNEL"
        size = "ONE_BYTE" if fetch.component_bytes == 1 else "TWO_BYTE"
        fields = {"DISABLE": "NO", "DATA_USE": fetch.use, "DATA_SIZE": size, "DATA_MODE": mode, "RAM_TYPE": "MC"}
        self.set(register, **{f"{letter}RDMA_{key}": value for key, value in fields.items()})
        self.address("SDP_RDMA", f"D_{unit}_BASE_ADDR", fetch.address)
        self.raw(f"SDP_RDMA.D_{unit}_LINE_STRIDE", fetch.line_stride)
        self.raw(f"SDP_RDMA.D_{unit}_SURFACE_STRIDE", fetch.surface_stride)

    def _unit(self, name: str, unit: Unit) -> None:
        """BS or BN."""
        stage = unit.stage
        used = {"BYPASS": not stage.idle, "ALU_BYPASS": stage.alu, "MUL_BYPASS": stage.multiply}
        used["RELU_BYPASS"] = stage.relu
        fields: dict[str, int | str] = {f"{name}_{key}": "NO" if on else "YES" for key, on in used.items()}
        fields[f"{name}_ALU_ALGO"] = ALU[stage.alu].upper() if stage.alu else "SUM"
        fields[f"{name}_MUL_PRELU"] = "YES" if stage.prelu else "NO"
        self.set(f"SDP.D_DP_{name}_CFG", **fields)
        for part, value in (("ALU", unit.alu), ("MUL", unit.multiplier)):
            shift = stage.alu_shift if part == "ALU" else stage.shift
            source = "REG" if value is not None or not (stage.alu if part == "ALU" else stage.multiply) else "MEM"
            self.set(
                f"SDP.D_DP_{name}_{part}_CFG",
                **{f"{name}_{part}_SRC": source, f"{name}_{part}_SHIFT_VALUE": shift},
            )
            self.set(f"SDP.D_DP_{name}_{part}_SRC_VALUE", **{f"{name}_{part}_OPERAND": (value or 0) & 0xFFFF})

    def _table(self, table: Sequence[int]) -> None:
        """EW: bypassed, or its linear table, whose entries are the results for -128, -127 and so on."""
        bypass = dict.fromkeys(("EW_ALU_BYPASS", "EW_MUL_BYPASS"), "YES")
        if not table:
            self.set("SDP.D_DP_EW_CFG", EW_BYPASS="YES", EW_LUT_BYPASS="YES", **bypass)
            return
        self.set("SDP.D_DP_EW_CFG", EW_BYPASS="NO", EW_LUT_BYPASS="NO", **bypass)
        self.set("SDP.D_DP_EW_TRUNCATE_VALUE", EW_TRUNCATE=0)
        self.set("SDP.S_LUT_ACCESS_CFG", LUT_ADDR=0, LUT_TABLE_ID="LO", LUT_ACCESS_TYPE="WRITE")
        for value in (*table, *(table[-1],) * (TABLE_ENTRIES - len(table))):
            self.set("SDP.S_LUT_ACCESS_DATA", LUT_DATA=value & 0xFFFF)
        priorities = dict.fromkeys(("LUT_UFLOW_PRIORITY", "LUT_OFLOW_PRIORITY", "LUT_HYBRID_PRIORITY"), "LO")
        self.set("SDP.S_LUT_CFG", LUT_LE_FUNCTION="LINEAR", **priorities)
        self.set("SDP.S_LUT_INFO", LUT_LE_INDEX_OFFSET=0, LUT_LE_INDEX_SELECT=0, LUT_LO_INDEX_SELECT=0)
        for name in ("LE", "LO"):
            self.raw(f"SDP.S_LUT_{name}_START", -128)
            self.raw(f"SDP.S_LUT_{name}_END", -128 + (64 if name == "LE" else TABLE_ENTRIES - 1))
            self.raw(f"SDP.S_LUT_{name}_SLOPE_SCALE", 0)
            self.raw(f"SDP.S_LUT_{name}_SLOPE_SHIFT", 0)

    # the convolution pipeline

    def _convolution(self, operation: Convolution) -> None:
        source, kernels, window = operation.source, operation.kernels, operation.window
        result, banks = operation.destination, operation.banks
        precisions = {"IN_PRECISION": "INT8", "PROC_PRECISION": "INT8"}
        width, height = source.width - 1, source.height - 1
        bank = {"DATA_BANK": banks.data - 1, "WEIGHT_BANK": banks.weights - 1}
        out = {"DATAOUT_WIDTH": result.width - 1, "DATAOUT_HEIGHT": result.height - 1}
        self._cdma(operation, precisions, bank)
        self.set("CSC.D_MISC_CFG", CONV_MODE="DIRECT", **precisions)
        self.set("CSC.D_DATAIN_FORMAT", DATAIN_FORMAT="FEATURE")
        self.set("CSC.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=width, DATAIN_HEIGHT_EXT=height)
        self.set("CSC.D_DATAIN_SIZE_EXT_1", DATAIN_CHANNEL_EXT=source.channels - 1)
        self.set("CSC.D_BATCH_NUMBER", BATCHES=0)
        self.set("CSC.D_POST_Y_EXTENSION", Y_EXTENSION=0)
        self.set("CSC.D_ENTRY_PER_SLICE", ENTRIES=banks.entries_per_slice - 1)
        self.set("CSC.D_WEIGHT_FORMAT", WEIGHT_FORMAT="UNCOMPRESSED")
        extents = {"WEIGHT_WIDTH_EXT": kernels.width - 1, "WEIGHT_HEIGHT_EXT": kernels.height - 1}
        self.set("CSC.D_WEIGHT_SIZE_EXT_0", **extents)
        self.set(
            "CSC.D_WEIGHT_SIZE_EXT_1", WEIGHT_CHANNEL_EXT=kernels.channels - 1, WEIGHT_KERNEL=kernels.count - 1
        )
        self.raw("CSC.D_WEIGHT_BYTES", kernels.bytes)
        self.set("CSC.D_WMB_BYTES")
        self.set("CSC.D_DATAOUT_SIZE_0", **out)
        self.set("CSC.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
        self.set("CSC.D_ATOMICS", ATOMICS=result.width * result.height - 1)
        self.set("CSC.D_RELEASE", RLS_SLICES=height)
        strides = {"CONV_X_STRIDE_EXT": window.stride_x - 1, "CONV_Y_STRIDE_EXT": window.stride_y - 1}
        self.set("CSC.D_CONV_STRIDE_EXT", **strides)
        dilations = {"X_DILATION_EXT": window.dilation_x - 1, "Y_DILATION_EXT": window.dilation_y - 1}
        self.set("CSC.D_DILATION_EXT", **dilations)
        self.set("CSC.D_ZERO_PADDING", PAD_LEFT=window.left, PAD_TOP=window.top)
        self.set("CSC.D_ZERO_PADDING_VALUE", PAD_VALUE=0)
        self.set("CSC.D_BANK", **bank)
        self.set("CSC.D_PRA_CFG", PRA_TRUNCATE=0)
        for block in ("CMAC_A", "CMAC_B", "CACC"):
            self.set(f"{block}.D_MISC_CFG", CONV_MODE="DIRECT", PROC_PRECISION="INT8")
        self.set("CACC.D_DATAOUT_SIZE_0", **out)
        self.set("CACC.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
        self.raw("CACC.D_DATAOUT_ADDR", result.address)
        self.set("CACC.D_BATCH_NUMBER", BATCHES=0)
        self.raw("CACC.D_LINE_STRIDE", result.line_stride)
        self.raw("CACC.D_SURF_STRIDE", result.surface_stride)
        self.set("CACC.D_DATAOUT_MAP", LINE_PACKED="FALSE", SURF_PACKED="FALSE")
        self.set("CACC.D_CLIP_CFG", CLIP_TRUNCATE=0)

    def _cdma(self, operation: Convolution, precisions: dict[str, str], bank: dict[str, int]) -> None:
        source, kernels, window = operation.source, operation.kernels, operation.window
        width, height = source.width - 1, source.height - 1
        self.set("CDMA.D_MISC_CFG", CONV_MODE="DIRECT", **precisions)
        self.set("CDMA.D_DATAIN_FORMAT", DATAIN_FORMAT="FEATURE", PIXEL_FORMAT="T_R8")
        self.set("CDMA.D_DATAIN_SIZE_0", DATAIN_WIDTH=width, DATAIN_HEIGHT=height)
        self.set("CDMA.D_DATAIN_SIZE_1", DATAIN_CHANNEL=source.channels - 1)
        self.set("CDMA.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=width, DATAIN_HEIGHT_EXT=height)
        self.set("CDMA.D_DAIN_RAM_TYPE", DATAIN_RAM_TYPE="MCIF")
        self.raw("CDMA.D_DAIN_ADDR_HIGH_0", source.address >> 32)
        self.raw("CDMA.D_DAIN_ADDR_LOW_0", source.address)
        self.raw("CDMA.D_LINE_STRIDE", source.line_stride)
        self.raw("CDMA.D_SURF_STRIDE", source.surface_stride)
        self.set("CDMA.D_DAIN_MAP", LINE_PACKED="FALSE", SURF_PACKED="FALSE")
        self.set("CDMA.D_BATCH_NUMBER", BATCHES=0)
        self.set("CDMA.D_ENTRY_PER_SLICE", ENTRIES=operation.banks.entries_per_slice - 1)
        self.set("CDMA.D_FETCH_GRAIN", GRAINS=0)
        self.set("CDMA.D_WEIGHT_FORMAT", WEIGHT_FORMAT="UNCOMPRESSED")
        self.set("CDMA.D_WEIGHT_SIZE_0", BYTE_PER_KERNEL=kernels.kernel_bytes - 1)
        self.set("CDMA.D_WEIGHT_SIZE_1", WEIGHT_KERNEL=kernels.count - 1)
        self.set("CDMA.D_WEIGHT_RAM_TYPE", WEIGHT_RAM_TYPE="MCIF")
        self.raw("CDMA.D_WEIGHT_ADDR_HIGH", kernels.address >> 32)
        self.raw("CDMA.D_WEIGHT_ADDR_LOW", kernels.address)
        self.raw("CDMA.D_WEIGHT_BYTES", kernels.bytes)
        self.set("CDMA.D_MEAN_FORMAT", MEAN_FORMAT="DISABLE")
        self.set("CDMA.D_CVT_CFG", CVT_EN="DISABLE", CVT_TRUNCATE=0)
        self.set("CDMA.D_CVT_OFFSET", CVT_OFFSET=0)
        self.set("CDMA.D_CVT_SCALE", CVT_SCALE=1)
        strides = {"CONV_X_STRIDE": window.stride_x - 1, "CONV_Y_STRIDE": window.stride_y - 1}
        self.set("CDMA.D_CONV_STRIDE", **strides)
        self._padding("CDMA.D_ZERO_PADDING", window)
        self.set("CDMA.D_ZERO_PADDING_VALUE", PAD_VALUE=0)
        self.set("CDMA.D_BANK", **bank)

    def _padding(self, title: str, window: Window) -> None:
        sides = {"LEFT": window.left, "RIGHT": window.right, "TOP": window.top, "BOTTOM": window.bottom}
        self.set(title, **{f"PAD_{side}": value for side, value in sides.items()})

    # PDP

    def _pooling(self, operation: Pooling) -> None:
        source, result, window = operation.source, operation.destination, operation.window
        for block in ("PDP_RDMA", "PDP"):
            self._cube_in(block, source)
        height, width = operation.kernel
        self.set("PDP_RDMA.D_FLYING_MODE", FLYING_MODE="OFF_FLYING")
        self.set("PDP_RDMA.D_SRC_RAM_CFG", SRC_RAM_TYPE="MC")
        self.set("PDP_RDMA.D_OPERATION_MODE_CFG", SPLIT_NUM=0)
        across = {"KERNEL_WIDTH": width - 1, "KERNEL_STRIDE_WIDTH": window.stride_x - 1}
        self.set("PDP_RDMA.D_POOLING_KERNEL_CFG", **across)
        self.set("PDP_RDMA.D_POOLING_PADDING_CFG", PAD_WIDTH=window.left)
        self.set("PDP_RDMA.D_PARTIAL_WIDTH_IN")
        for extent, value in (("WIDTH", result.width), ("HEIGHT", result.height), ("CHANNEL", result.channels)):
            self.set(f"PDP.D_DATA_CUBE_OUT_{extent}", **{f"CUBE_OUT_{extent}": value - 1})
        method = f"POOLING_METHOD_{operation.method}"
        self.set("PDP.D_OPERATION_MODE_CFG", POOLING_METHOD=method, FLYING_MODE="OFF_FLYING", SPLIT_NUM=0)
        self.set("PDP.D_PARTIAL_WIDTH_IN")
        self.set("PDP.D_PARTIAL_WIDTH_OUT")
        along = {"KERNEL_HEIGHT": height - 1, "KERNEL_STRIDE_HEIGHT": window.stride_y - 1}
        self.set("PDP.D_POOLING_KERNEL_CFG", **across, **along)
        for name, value in zip(("WIDTH", "HEIGHT"), operation.reciprocals, strict=True):
            self.set(f"PDP.D_RECIP_KERNEL_{name}", **{f"RECIP_KERNEL_{name}": value})
        self._padding("PDP.D_POOLING_PADDING_CFG", window)
        for count in range(1, 8):
            self.set(f"PDP.D_POOLING_PADDING_VALUE_{count}_CFG", **{f"PAD_VALUE_{count}X": 0})
        self.address("PDP", "D_DST_BASE_ADDR", result.address)
        self.raw("PDP.D_DST_LINE_STRIDE", result.line_stride)
        self.raw("PDP.D_DST_SURFACE_STRIDE", result.surface_stride)
        self.set("PDP.D_DST_RAM_CFG", DST_RAM_TYPE="MC")

    def _cube_in(self, block: str, source: Surface) -> None:
        extents = {"WIDTH": source.width, "HEIGHT": source.height, "CHANNEL": source.channels}
        for extent, value in extents.items():
            self.set(f"{block}.D_DATA_CUBE_IN_{extent}", **{f"CUBE_IN_{extent}": value - 1})
        self.address(block, "D_SRC_BASE_ADDR", source.address)
        self.raw(f"{block}.D_SRC_LINE_STRIDE", source.line_stride)
        self.raw(f"{block}.D_SRC_SURFACE_STRIDE", source.surface_stride)
        self.set(f"{block}.D_DATA_FORMAT", INPUT_DATA="INT8")


def program(machine: Machine, operations: Iterable[Operation]) -> list[Command]:
    """The commands of operations, in order."""
    emitter = Emitter(machine)
    emitter.start()
    for operation in operations:
        emitter.emit(operation)
    emitter.drain()
    return emitter.commands
