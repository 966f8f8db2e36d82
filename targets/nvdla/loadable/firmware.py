"""The register writes that NVDLA's firmware makes of an operation's descriptors.

Block by block in the firmware's order, so that its own log of a loadable can be compared line by line. Source: The
loadable (facts), checked against the logs of three loadables of NVDLA's own compiler (conv, SDP, PDP); CDP and the
look-up tables follow the same firmware without such a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npuc.errors import ArtefactError
from npuc.targets.nvdla.loadable.descriptors import (
    FEATURE_FORMAT,
    HARDWARE,
    NONE,
    Cdp,
    Convolution,
    ConvolutionSurfaces,
    Cube,
    Lut,
    Pdp,
    Sdp,
    SdpSurfaces,
    SdpUnit,
    Surfaces,
)
from npuc.targets.nvdla.registers import RegisterMap

RegisterWrite = tuple[str, int]
"""A register's block and name, and its value."""
Writes = Iterator[RegisterWrite]

PER_LAYER = 0
MUL, ALU, BOTH = 1, 2, 3
RELU, TABLE, PRELU = 1, 2, 3
FP16 = 2
DATA_USE = ("MUL", "MUL", "ALU", "BOTH")
DATA_MODE = ("PER_ELEMENT", "PER_KERNEL", "PER_ELEMENT")
PROCESSING = ((0, 0, 0), (0, 1, 2), (0, 1, 2))
"""Processing precision by the precision of result and source."""
RECIPROCALS = (
    (0x10000, 0x8000, 0x5555, 0x4000, 0x3333, 0x2AAA, 0x2492, 0x2000),
    (0x7C00, 0x7800, 0x7555, 0x7400, 0x7266, 0x7155, 0x7092, 0x7000),
)
"""Of kernels of 1 to 8 elements: with 16 binary digits, and as fp17."""
UNITS = (("BS", "B"), ("BN", "N"), ("EW", "E"))


@dataclass(frozen=True)
class Firmware:
    """What the firmware knows beside the descriptors."""

    registers: RegisterMap
    atom_bytes: int
    address: Callable[[int], int]
    """The address of an entry of the task's address list."""

    def fields(self, title: str, **values: int | str) -> RegisterWrite:
        """A register with these fields, the others 0."""
        register = self.registers[title]
        everything = {each.name: 0 for each in register.fields}
        return title, register.value(**{**everything, **values})

    def at(self, cube: Cube) -> int:
        """A cube's address; 0 where it has none."""
        return 0 if cube.address == NONE else self.address(cube.address) + cube.offset


def split(title: str, address: int, *, high_first: bool = False) -> Writes:
    """The two halves of an address: registers ..._LOW and ..._HIGH, with what may follow."""
    low = (title.replace("*", "LOW"), address & 0xFFFFFFFF)
    high = (title.replace("*", "HIGH"), address >> 32)
    yield from (high, low) if high_first else (low, high)


def convolution(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces) -> Writes:
    """CACC, CMAC, CSC and CDMA, in this order. Raises ArtefactError (E502) for what the firmware asserts."""
    if op.out_converter.scale != 1 or op.out_converter.offset != 0:
        raise ArtefactError("E502", "a convolution's output converter", limit="scale 1, offset 0")
    mode = "WINOGRAD" if op.mode else "DIRECT"
    yield from _cacc(firmware, op, surfaces, mode)
    for block in ("CMAC_A", "CMAC_B"):
        yield firmware.fields(f"{block}.D_MISC_CFG", CONV_MODE=mode, PROC_PRECISION=op.out_precision)
    yield from _csc(firmware, op, surfaces, mode)
    yield from _cdma(firmware, op, surfaces, mode)
    yield from _cdma_weights(firmware, op, surfaces)


def _cacc(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces, mode: str) -> Writes:
    result = surfaces.result
    yield firmware.fields("CACC.D_MISC_CFG", CONV_MODE=mode, PROC_PRECISION=op.out_precision)
    yield firmware.fields(
        "CACC.D_DATAOUT_SIZE_0", DATAOUT_WIDTH=result.width - 1, DATAOUT_HEIGHT=result.height - 1
    )
    yield "CACC.D_DATAOUT_SIZE_1", result.channels - 1
    yield "CACC.D_DATAOUT_ADDR", firmware.at(result) & 0xFFFFFFFF
    yield "CACC.D_BATCH_NUMBER", op.batch - 1
    yield "CACC.D_LINE_STRIDE", result.line_stride
    yield "CACC.D_SURF_STRIDE", result.surface_stride
    packed = int((result.width, result.height) == (1, 1))
    yield firmware.fields("CACC.D_DATAOUT_MAP", LINE_PACKED=packed, SURF_PACKED=packed)
    yield "CACC.D_CLIP_CFG", op.out_converter.truncate


def _kept(op: Convolution) -> dict[str, int]:
    """What stays in the buffer."""
    return {
        "DATA_REUSE": op.data_reuse,
        "WEIGHT_REUSE": op.weight_reuse,
        "SKIP_DATA_RLS": op.skip_data_release,
        "SKIP_WEIGHT_RLS": op.skip_weight_release,
    }


def _csc(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces, mode: str) -> Writes:
    fields, kernels = firmware.fields, surfaces.result.channels - 1
    direct = op.mode == 0
    precision = op.out_precision
    yield fields("CSC.D_MISC_CFG", CONV_MODE=mode, IN_PRECISION=precision, PROC_PRECISION=precision, **_kept(op))
    yield "CSC.D_DATAIN_FORMAT", int(op.data_format != FEATURE_FORMAT)
    yield fields("CSC.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=op.csc_width - 1, DATAIN_HEIGHT_EXT=op.csc_height - 1)
    yield "CSC.D_DATAIN_SIZE_EXT_1", op.csc_channels - 1
    yield "CSC.D_BATCH_NUMBER", op.batch - 1
    yield "CSC.D_POST_Y_EXTENSION", op.post_extension
    yield "CSC.D_ENTRY_PER_SLICE", op.entries_per_slice - 1
    yield "CSC.D_WEIGHT_FORMAT", op.weight_format
    yield fields(
        "CSC.D_WEIGHT_SIZE_EXT_0", WEIGHT_WIDTH_EXT=op.kernel_width - 1, WEIGHT_HEIGHT_EXT=op.kernel_height - 1
    )
    yield fields("CSC.D_WEIGHT_SIZE_EXT_1", WEIGHT_CHANNEL_EXT=op.kernel_channels - 1, WEIGHT_KERNEL=kernels)
    yield "CSC.D_WEIGHT_BYTES", surfaces.weight.size
    yield "CSC.D_WMB_BYTES", surfaces.mask.size
    yield fields("CSC.D_DATAOUT_SIZE_0", DATAOUT_WIDTH=op.cmac_width - 1, DATAOUT_HEIGHT=op.cmac_height - 1)
    yield "CSC.D_DATAOUT_SIZE_1", kernels
    yield "CSC.D_ATOMICS", surfaces.result.width * surfaces.result.height - 1
    yield "CSC.D_RELEASE", op.release - 1
    yield fields(
        "CSC.D_CONV_STRIDE_EXT",
        CONV_X_STRIDE_EXT=(op.stride_x - 1) * direct,
        CONV_Y_STRIDE_EXT=(op.stride_y - 1) * direct,
    )
    yield fields("CSC.D_DILATION_EXT", X_DILATION_EXT=op.dilation_x - 1, Y_DILATION_EXT=op.dilation_y - 1)
    yield fields("CSC.D_ZERO_PADDING", PAD_LEFT=op.pad_left * direct, PAD_TOP=op.pad_top * direct)
    yield "CSC.D_ZERO_PADDING_VALUE", op.pad_value & 0xFFFF
    yield fields("CSC.D_BANK", DATA_BANK=op.data_bank - 1, WEIGHT_BANK=op.weight_bank - 1)
    yield "CSC.D_PRA_CFG", op.pra_truncate


def _cdma(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces, mode: str) -> Writes:
    fields, source = firmware.fields, surfaces.source
    pixel = op.data_format != FEATURE_FORMAT
    yield fields(
        "CDMA.D_MISC_CFG",
        CONV_MODE=mode, IN_PRECISION=op.in_precision, PROC_PRECISION=op.out_precision, **_kept(op),
    )  # fmt: skip
    yield fields(
        "CDMA.D_DATAIN_FORMAT",
        DATAIN_FORMAT=int(pixel),
        PIXEL_FORMAT=op.data_format if pixel else 0,
        PIXEL_MAPPING=op.pixel_mapping,
        PIXEL_SIGN_OVERRIDE=op.pixel_override,
    )
    yield fields("CDMA.D_DATAIN_SIZE_0", DATAIN_WIDTH=source.width - 1, DATAIN_HEIGHT=source.height - 1)
    yield "CDMA.D_DATAIN_SIZE_1", source.channels - 1
    yield fields(
        "CDMA.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=op.csc_width - 1, DATAIN_HEIGHT_EXT=op.csc_height - 1
    )
    yield "CDMA.D_DAIN_RAM_TYPE", _ram(source)
    address = firmware.at(source)
    yield from split("CDMA.D_DAIN_ADDR_*_0", address, high_first=True)
    yield from split("CDMA.D_DAIN_ADDR_*_1", address + surfaces.second_plane_offset, high_first=True)
    yield "CDMA.D_LINE_STRIDE", source.line_stride
    yield "CDMA.D_SURF_STRIDE", source.surface_stride
    yield "CDMA.D_LINE_UV_STRIDE", surfaces.second_plane_stride
    line = source.width * firmware.atom_bytes
    yield fields(
        "CDMA.D_DAIN_MAP",
        LINE_PACKED=int(source.line_stride == line),
        SURF_PACKED=int(source.surface_stride == line * source.height),
    )
    yield "CDMA.D_BATCH_NUMBER", op.batch - 1
    yield "CDMA.D_BATCH_STRIDE", op.batch_stride
    yield "CDMA.D_ENTRY_PER_SLICE", op.entries_per_slice - 1
    yield "CDMA.D_FETCH_GRAIN", op.fetch_grain - 1


def _cdma_weights(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces) -> Writes:
    fields = firmware.fields
    yield "CDMA.D_WEIGHT_FORMAT", op.weight_format
    yield "CDMA.D_WEIGHT_SIZE_0", op.bytes_per_kernel - 1
    yield "CDMA.D_WEIGHT_SIZE_1", surfaces.result.channels - 1
    yield "CDMA.D_WEIGHT_RAM_TYPE", _ram(surfaces.weight)
    yield from split("CDMA.D_WEIGHT_ADDR_*", firmware.at(surfaces.weight), high_first=True)
    yield "CDMA.D_WEIGHT_BYTES", surfaces.weight.size
    if op.weight_format:
        yield from split("CDMA.D_WGS_ADDR_*", firmware.at(surfaces.group_sizes), high_first=True)
        yield from split("CDMA.D_WMB_ADDR_*", firmware.at(surfaces.mask), high_first=True)
        yield "CDMA.D_WMB_BYTES", surfaces.mask.size
    yield "CDMA.D_MEAN_FORMAT", op.mean_format
    if op.mean_format:
        means = [each & 0xFFFF for each in op.means]
        yield fields("CDMA.D_MEAN_GLOBAL_0", MEAN_RY=means[0], MEAN_GU=means[1])
        yield fields("CDMA.D_MEAN_GLOBAL_1", MEAN_BV=means[2], MEAN_AX=means[3])
    converter = op.in_converter
    if converter.enable:
        yield fields("CDMA.D_CVT_CFG", CVT_EN=1, CVT_TRUNCATE=converter.truncate)
        yield "CDMA.D_CVT_OFFSET", converter.offset & 0xFFFFFFFF
        yield "CDMA.D_CVT_SCALE", converter.scale & 0xFFFFFFFF
    else:
        yield "CDMA.D_CVT_CFG", 0
    yield fields("CDMA.D_CONV_STRIDE", CONV_X_STRIDE=op.stride_x - 1, CONV_Y_STRIDE=op.stride_y - 1)
    yield fields(
        "CDMA.D_ZERO_PADDING",
        PAD_LEFT=op.pad_left, PAD_RIGHT=op.pad_right, PAD_TOP=op.pad_top, PAD_BOTTOM=op.pad_bottom,
    )  # fmt: skip
    yield "CDMA.D_ZERO_PADDING_VALUE", op.pad_value & 0xFFFF
    yield fields("CDMA.D_BANK", DATA_BANK=op.data_bank - 1, WEIGHT_BANK=op.weight_bank - 1)


def _ram(cube: Cube) -> int:
    """1: main memory (DRAM)."""
    return 1 - min(cube.type, 1)


def sdp_needs_rdma(op: Sdp, surfaces: SdpSurfaces) -> bool:
    """Whether SDP_RDMA runs with this operation."""
    fetched = any(unit.enable and unit.mode != PER_LAYER for unit in (op.x1, op.x2, op.y))
    return surfaces.source.type != HARDWARE or fetched


def sdp(firmware: Firmware, op: Sdp, surfaces: SdpSurfaces, lut: Lut | None) -> Writes:
    """SDP_RDMA, then SDP."""
    yield "SDP_RDMA.D_FEATURE_MODE_CFG", 0
    for _, letter in UNITS:
        yield f"SDP_RDMA.D_{letter}RDMA_CFG", 0
    yield from _sdp_rdma(firmware, op, surfaces)
    if lut is not None:
        yield from look_up_tables(firmware, "SDP", lut, floating=op.source_precision == FP16)
    yield "SDP.D_DATA_CUBE_WIDTH", surfaces.source.width - 1
    yield "SDP.D_DATA_CUBE_HEIGHT", surfaces.source.height - 1
    yield "SDP.D_DATA_CUBE_CHANNEL", surfaces.source.channels - 1
    result = surfaces.result
    if result.type != HARDWARE:
        yield from split("SDP.D_DST_BASE_ADDR_*", firmware.at(result), high_first=True)
        yield "SDP.D_DST_LINE_STRIDE", result.line_stride
        yield "SDP.D_DST_SURFACE_STRIDE", result.surface_stride
    yield from _x(firmware, "BS", op.x1)
    yield from _x(firmware, "BN", op.x2)
    yield from _y(firmware, op.y)
    yield firmware.fields(
        "SDP.D_FEATURE_MODE_CFG",
        FLYING_MODE=int(surfaces.source.type == HARDWARE), OUTPUT_DST=int(result.type == HARDWARE),
        WINOGRAD=op.conv_mode, BATCH_NUMBER=op.batch - 1,
    )  # fmt: skip
    yield "SDP.D_DST_DMA_CFG", _ram(result)
    if op.batch > 1:
        yield "SDP.D_DST_BATCH_STRIDE", op.batch_stride
    processing = PROCESSING[op.result_precision][op.source_precision]
    yield firmware.fields("SDP.D_DATA_FORMAT", PROC_PRECISION=processing, OUT_PRECISION=op.result_precision)
    yield "SDP.D_CVT_OFFSET", op.out_converter.offset & 0xFFFFFFFF
    yield "SDP.D_CVT_SCALE", op.out_converter.scale & 0xFFFFFFFF
    yield "SDP.D_CVT_SHIFT", op.out_converter.truncate


def _sdp_rdma(firmware: Firmware, op: Sdp, surfaces: SdpSurfaces) -> Writes:
    source = surfaces.source
    yield firmware.fields(
        "SDP_RDMA.D_FEATURE_MODE_CFG",
        FLYING_MODE=int(source.type == HARDWARE), WINOGRAD=op.conv_mode,
        IN_PRECISION=op.source_precision, OUT_PRECISION=op.result_precision,
        PROC_PRECISION=PROCESSING[op.result_precision][op.source_precision], BATCH_NUMBER=op.batch - 1,
    )  # fmt: skip
    if not sdp_needs_rdma(op, surfaces):
        return
    yield "SDP_RDMA.D_DATA_CUBE_WIDTH", source.width - 1
    yield "SDP_RDMA.D_DATA_CUBE_HEIGHT", source.height - 1
    yield "SDP_RDMA.D_DATA_CUBE_CHANNEL", source.channels - 1
    if source.type != HARDWARE:
        yield from split("SDP_RDMA.D_SRC_BASE_ADDR_*", firmware.at(source))
        yield "SDP_RDMA.D_SRC_LINE_STRIDE", source.line_stride
        yield "SDP_RDMA.D_SRC_SURFACE_STRIDE", source.surface_stride
        yield "SDP_RDMA.D_SRC_DMA_CFG", _ram(source)
    cubes = (surfaces.x1, surfaces.x2, surfaces.y)
    for (name, letter), unit, cube in zip(UNITS, (op.x1, op.x2, op.y), cubes, strict=True):
        fetched = bool(unit.enable and unit.use and unit.mode != PER_LAYER)
        title = f"SDP_RDMA.D_{letter}RDMA_CFG"
        values: dict[str, int | str] = {
            "DISABLE": int(not fetched),
            "DATA_USE": DATA_USE[unit.use],
            "DATA_SIZE": int(unit.precision > 0),
            "DATA_MODE": DATA_MODE[unit.mode],
            "RAM_TYPE": _ram(cube),
        }
        yield firmware.fields(title, **{f"{letter}RDMA_{field}": value for field, value in values.items()})
        if fetched:
            yield from split(f"SDP_RDMA.D_{name}_BASE_ADDR_*", firmware.at(cube))
            yield f"SDP_RDMA.D_{name}_LINE_STRIDE", cube.line_stride
            yield f"SDP_RDMA.D_{name}_SURFACE_STRIDE", cube.surface_stride


def _bypasses(name: str, unit: SdpUnit) -> dict[str, int]:
    """The fields of a unit's configuration that X and Y share."""
    return {
        f"{name}_BYPASS": int(not unit.enable),
        f"{name}_ALU_BYPASS": int(unit.use not in (ALU, BOTH)),
        f"{name}_ALU_ALGO": unit.alu,
        f"{name}_MUL_BYPASS": int(unit.use not in (MUL, BOTH)),
        f"{name}_MUL_PRELU": int(unit.activation == PRELU),
    }


def _x(firmware: Firmware, name: str, unit: SdpUnit) -> Writes:
    relu = {f"{name}_RELU_BYPASS": int(unit.activation != RELU)}
    yield firmware.fields(f"SDP.D_DP_{name}_CFG", **_bypasses(name, unit), **relu)
    if not unit.enable:
        return
    memory = int(unit.mode != PER_LAYER)
    if unit.use in (ALU, BOTH):
        shift = {f"{name}_ALU_SHIFT_VALUE": unit.shift}
        yield firmware.fields(f"SDP.D_DP_{name}_ALU_CFG", **{f"{name}_ALU_SRC": memory}, **shift)
    if not memory:
        yield f"SDP.D_DP_{name}_ALU_SRC_VALUE", unit.alu_operand & 0xFFFFFFFF
        yield f"SDP.D_DP_{name}_MUL_SRC_VALUE", unit.mul_operand & 0xFFFFFFFF
    shift = {f"{name}_MUL_SHIFT_VALUE": unit.truncate}
    yield firmware.fields(f"SDP.D_DP_{name}_MUL_CFG", **{f"{name}_MUL_SRC": memory}, **shift)


def _y(firmware: Firmware, unit: SdpUnit) -> Writes:
    table = {"EW_LUT_BYPASS": int(unit.activation != TABLE)}
    yield firmware.fields("SDP.D_DP_EW_CFG", **_bypasses("EW", unit), **table)
    if not unit.enable:
        return
    memory = int(unit.mode != PER_LAYER)
    parts = (
        ("ALU", ALU, unit.alu_converter, unit.alu_operand),
        ("MUL", MUL, unit.mul_converter, unit.mul_operand),
    )
    for part, use, converter, operand in parts:
        if unit.use not in (use, BOTH):
            continue
        bypass = {f"EW_{part}_CVT_BYPASS": int(not converter.enable)}
        yield firmware.fields(f"SDP.D_DP_EW_{part}_CFG", **{f"EW_{part}_SRC": memory}, **bypass)
        if not memory:
            yield f"SDP.D_DP_EW_{part}_SRC_VALUE", operand & 0xFFFFFFFF
            continue
        yield f"SDP.D_DP_EW_{part}_CVT_OFFSET_VALUE", converter.offset & 0xFFFFFFFF
        yield f"SDP.D_DP_EW_{part}_CVT_SCALE_VALUE", converter.scale & 0xFFFFFFFF
        yield f"SDP.D_DP_EW_{part}_CVT_TRUNCATE_VALUE", converter.truncate
    yield "SDP.D_DP_EW_TRUNCATE_VALUE", unit.truncate


def pdp(firmware: Firmware, op: Pdp, surfaces: Surfaces) -> Writes:
    """PDP_RDMA where the input lies in memory, then PDP."""
    fields, source, result = firmware.fields, surfaces.source, surfaces.result
    flying = source.type == HARDWARE
    partial_in = _partial("IN", op.partial_in)
    kernel_width = {"KERNEL_WIDTH": op.kernel_width, "KERNEL_STRIDE_WIDTH": op.stride_x - 1}
    if not flying:
        for name, size in (("WIDTH", source.width), ("HEIGHT", source.height), ("CHANNEL", source.channels)):
            yield f"PDP_RDMA.D_DATA_CUBE_IN_{name}", size - 1
        yield from split("PDP_RDMA.D_SRC_BASE_ADDR_*", firmware.at(source), high_first=True)
        yield "PDP_RDMA.D_SRC_LINE_STRIDE", source.line_stride
        yield "PDP_RDMA.D_SRC_SURFACE_STRIDE", source.surface_stride
        yield "PDP_RDMA.D_DATA_FORMAT", op.precision
        yield "PDP_RDMA.D_SRC_RAM_CFG", _ram(source)
        yield "PDP_RDMA.D_OPERATION_MODE_CFG", op.splits - 1
        yield fields("PDP_RDMA.D_POOLING_KERNEL_CFG", **kernel_width)
        yield "PDP_RDMA.D_POOLING_PADDING_CFG", op.pad_left
        yield fields("PDP_RDMA.D_PARTIAL_WIDTH_IN", **partial_in)
    for side, cube in (("IN", source), ("OUT", result)):
        for name, size in (("WIDTH", cube.width), ("HEIGHT", cube.height), ("CHANNEL", cube.channels)):
            yield f"PDP.D_DATA_CUBE_{side}_{name}", size - 1
    yield fields(
        "PDP.D_OPERATION_MODE_CFG", POOLING_METHOD=op.method, FLYING_MODE=int(not flying), SPLIT_NUM=op.splits - 1
    )
    yield fields("PDP.D_PARTIAL_WIDTH_IN", **partial_in)
    yield fields("PDP.D_PARTIAL_WIDTH_OUT", **_partial("OUT", op.partial_out))
    rows = {"KERNEL_HEIGHT": op.kernel_height, "KERNEL_STRIDE_HEIGHT": op.stride_y - 1}
    yield fields("PDP.D_POOLING_KERNEL_CFG", **kernel_width, **rows)
    reciprocals = RECIPROCALS[op.precision == FP16]
    yield "PDP.D_RECIP_KERNEL_WIDTH", reciprocals[op.kernel_width]
    yield "PDP.D_RECIP_KERNEL_HEIGHT", reciprocals[op.kernel_height]
    yield fields(
        "PDP.D_POOLING_PADDING_CFG",
        PAD_LEFT=op.pad_left, PAD_RIGHT=op.pad_right, PAD_TOP=op.pad_top, PAD_BOTTOM=op.pad_bottom,
    )  # fmt: skip
    for number, value in enumerate(op.pad_values, 1):
        yield f"PDP.D_POOLING_PADDING_VALUE_{number}_CFG", value & 0xFFFFFFFF
    if not flying:
        yield "PDP.D_SRC_LINE_STRIDE", source.line_stride
        yield "PDP.D_SRC_SURFACE_STRIDE", source.surface_stride
    yield from split("PDP.D_DST_BASE_ADDR_*", firmware.at(result))
    yield "PDP.D_DST_LINE_STRIDE", result.line_stride
    yield "PDP.D_DST_SURFACE_STRIDE", result.surface_stride
    yield "PDP.D_DST_RAM_CFG", _ram(result)
    yield "PDP.D_DATA_FORMAT", op.precision


def _partial(side: str, widths: tuple[int, ...]) -> dict[str, int]:
    names = (f"PARTIAL_WIDTH_{side}_{each}" for each in ("FIRST", "MID", "LAST"))
    return {name: max(width - 1, 0) for name, width in zip(names, widths, strict=True)}


def cdp(firmware: Firmware, op: Cdp, surfaces: Surfaces, lut: Lut | None) -> Writes:
    """CDP_RDMA, then CDP."""
    source, result = surfaces.source, surfaces.result
    for name, size in (("WIDTH", source.width), ("HEIGHT", source.height), ("CHANNEL", source.channels)):
        yield f"CDP_RDMA.D_DATA_CUBE_{name}", size - 1
    yield from split("CDP_RDMA.D_SRC_BASE_ADDR_*", firmware.at(source))
    yield "CDP_RDMA.D_SRC_LINE_STRIDE", source.line_stride
    yield "CDP_RDMA.D_SRC_SURFACE_STRIDE", source.surface_stride
    yield "CDP_RDMA.D_SRC_DMA_CFG", _ram(source)
    yield "CDP_RDMA.D_DATA_FORMAT", op.in_precision
    if lut is not None:
        yield from look_up_tables(firmware, "CDP", lut, floating=op.in_precision == FP16)
    yield from split("CDP.D_DST_BASE_ADDR_*", firmware.at(result))
    yield "CDP.D_DST_LINE_STRIDE", result.line_stride
    yield "CDP.D_DST_SURFACE_STRIDE", result.surface_stride
    yield "CDP.D_DST_DMA_CFG", _ram(result)
    yield "CDP.D_DATA_FORMAT", op.in_precision
    yield "CDP.D_LRN_CFG", (op.local_size - 3) // 2
    for side, converter in (("DATIN", op.in_converter), ("DATOUT", op.out_converter)):
        yield f"CDP.D_{side}_OFFSET", converter.offset & 0xFFFFFFFF
        yield f"CDP.D_{side}_SCALE", converter.scale & 0xFFFFFFFF
        yield f"CDP.D_{side}_SHIFTER", converter.truncate
    yield firmware.fields("CDP.D_FUNC_BYPASS", SQSUM_BYPASS=op.bypass_sum, MUL_BYPASS=op.bypass_product)


def look_up_tables(firmware: Firmware, block: str, lut: Lut, *, floating: bool) -> Writes:
    """Both tables and their registers."""
    for table, entries in (("LE", lut.le), ("LO", lut.lo)):
        yield firmware.fields(f"{block}.S_LUT_ACCESS_CFG", LUT_TABLE_ID=table, LUT_ACCESS_TYPE="WRITE")
        for entry in entries:
            yield f"{block}.S_LUT_ACCESS_DATA", entry & 0xFFFFFFFF
    yield firmware.fields(
        f"{block}.S_LUT_CFG",
        LUT_LE_FUNCTION=lut.method, LUT_HYBRID_PRIORITY=lut.hybrid_priority,
        LUT_UFLOW_PRIORITY=lut.underflow_priority, LUT_OFLOW_PRIORITY=lut.overflow_priority,
    )  # fmt: skip
    le = "LUT_LE_INDEX_SELECT" if lut.method else "LUT_LE_INDEX_OFFSET"
    steps = {le: lut.le_offset & 0xFF, "LUT_LO_INDEX_SELECT": lut.lo_offset & 0xFF}
    yield firmware.fields(f"{block}.S_LUT_INFO", **steps)
    limits = {"LE_START": lut.le_start, "LE_END": lut.le_end, "LO_START": lut.lo_start, "LO_END": lut.lo_end}
    for name, value in limits.items():
        if block == "SDP":
            yield f"SDP.S_LUT_{name}", value & 0xFFFFFFFF
        else:
            yield from split(f"CDP.S_LUT_{name}_*", value)
    for name, below, beyond in (("LE", lut.le_below, lut.le_beyond), ("LO", lut.lo_below, lut.lo_beyond)):
        yield f"{block}.S_LUT_{name}_SLOPE_SCALE", below[0] & 0xFFFF | (beyond[0] & 0xFFFF) << 16
        if not floating:
            yield f"{block}.S_LUT_{name}_SLOPE_SHIFT", below[1] & 0x1F | (beyond[1] & 0x1F) << 5
