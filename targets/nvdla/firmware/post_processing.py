"""SDP, PDP and CDP with their RDMAs, RUBIK in contract mode, and the look-up tables of SDP and CDP."""

from __future__ import annotations

from npuc.errors import ArtefactError
from npuc.targets.nvdla.firmware.descriptors import (
    HARDWARE,
    Cdp,
    Lut,
    Pdp,
    PlanarSurfaces,
    Rubik,
    Sdp,
    SdpSurfaces,
    SdpUnit,
)
from npuc.targets.nvdla.firmware.lines import WORD, Derived, Firmware, Writes, decode_number, lines, ram

PER_LAYER, PER_CHANNEL, PER_ELEMENT = range(3)
NOTHING, MUL, ALU, BOTH = range(4)
RELU, TABLE, PRELU = 1, 2, 3
SUM = 2
DATA_USE = ("MUL", "MUL", "ALU", "BOTH")
DATA_MODE = ("PER_ELEMENT", "PER_KERNEL", "PER_ELEMENT")
PROCESSING = ((0, 0, 0), (0, 1, 2), (0, 1, 2))
"""The processing precision, by the precision of result and source."""
UNITS = (("BS", "B", "x1"), ("BN", "N", "x2"), ("EW", "E", "y"))
"""Names of a unit: in SDP's registers, in those of SDP_RDMA, in descriptors."""
FETCH_CUBE = lines("""
SDP_RDMA.D_DATA_CUBE_WIDTH *=surfaces.source.width-1
SDP_RDMA.D_DATA_CUBE_HEIGHT *=surfaces.source.height-1
SDP_RDMA.D_DATA_CUBE_CHANNEL *=surfaces.source.channels-1
""")
FETCH_SOURCE = lines("""
SDP_RDMA.D_SRC_BASE_ADDR_LOW *=low(surfaces.source)
SDP_RDMA.D_SRC_BASE_ADDR_HIGH *=high(surfaces.source)
SDP_RDMA.D_SRC_LINE_STRIDE *=surfaces.source.line_stride
SDP_RDMA.D_SRC_SURFACE_STRIDE *=surfaces.source.surface_stride
SDP_RDMA.D_SRC_DMA_CFG *=ram(surfaces.source)
""")
MODE = (
    "SDP_RDMA.D_FEATURE_MODE_CFG FLYING_MODE=:flying WINOGRAD=op.conv_mode IN_PRECISION=op.source_precision"
    " OUT_PRECISION=op.result_precision PROC_PRECISION=:processing BATCH_NUMBER=op.batch-1"
)
FETCH_MODE = lines(MODE)
CUBE = lines("""
SDP.D_DATA_CUBE_WIDTH *=surfaces.source.width-1
SDP.D_DATA_CUBE_HEIGHT *=surfaces.source.height-1
SDP.D_DATA_CUBE_CHANNEL *=surfaces.source.channels-1
""")
RESULT = lines("""
SDP.D_DST_BASE_ADDR_HIGH *=high(surfaces.result)
SDP.D_DST_BASE_ADDR_LOW *=low(surfaces.result)
SDP.D_DST_LINE_STRIDE *=surfaces.result.line_stride
SDP.D_DST_SURFACE_STRIDE *=surfaces.result.surface_stride
""")
OUTPUT_MODE = lines("""
SDP.D_FEATURE_MODE_CFG FLYING_MODE=:flying OUTPUT_DST=:to_pooling WINOGRAD=op.conv_mode BATCH_NUMBER=op.batch-1
SDP.D_DST_DMA_CFG *=ram(surfaces.result)
""")
BATCHES = lines("SDP.D_DST_BATCH_STRIDE *=op.batch_stride")
CONVERSION = lines("""
SDP.D_DATA_FORMAT PROC_PRECISION=:processing OUT_PRECISION=op.result_precision
SDP.D_CVT_OFFSET *=op.out_converter.offset
SDP.D_CVT_SCALE *=op.out_converter.scale
SDP.D_CVT_SHIFT *=op.out_converter.truncate
""")


def _derive_values(op: Sdp, surfaces: SdpSurfaces) -> Derived:
    return {
        "flying": int(surfaces.source.type == HARDWARE),
        "to_pooling": int(surfaces.result.type == HARDWARE),
        "processing": decode_number(decode_number(PROCESSING, op.result_precision), op.source_precision),
    }


def needs_rdma(op: Sdp, surfaces: SdpSurfaces) -> bool:
    """Whether SDP_RDMA runs with this operation."""
    fetched = any(unit.enable and unit.mode != PER_LAYER for unit in (op.x1, op.x2, op.y))
    return surfaces.source.type != HARDWARE or fetched


def sdp(firmware: Firmware, op: Sdp, surfaces: SdpSurfaces, lut: Lut | None) -> Writes:
    """The writes of SDP_RDMA, then of SDP."""
    yield "SDP_RDMA.D_FEATURE_MODE_CFG", 0
    for _, letter, _ in UNITS:
        yield f"SDP_RDMA.D_{letter}RDMA_CFG", 0
    derived = _derive_values(op, surfaces)
    yield from firmware.writes(FETCH_MODE, op, surfaces, derived)
    if needs_rdma(op, surfaces):
        yield from fetch(firmware, op, surfaces)
    if lut is not None:
        yield from look_up_tables(firmware, "SDP", lut, floating=op.source_precision == FP16)
    in_memory = surfaces.result.type != HARDWARE
    yield from firmware.writes([*CUBE, *(RESULT if in_memory else ())], op, surfaces)
    yield from _x(firmware, "BS", op.x1)
    yield from _x(firmware, "BN", op.x2)
    yield from _y(firmware, op.y)
    batches = BATCHES if op.batch > 1 else ()
    yield from firmware.writes([*OUTPUT_MODE, *batches, *CONVERSION], op, surfaces, derived)


def fetch(firmware: Firmware, op: Sdp, surfaces: SdpSurfaces) -> Writes:
    """The writes of SDP_RDMA."""
    in_memory = surfaces.source.type != HARDWARE
    yield from firmware.writes([*FETCH_CUBE, *(FETCH_SOURCE if in_memory else ())], op, surfaces)
    cubes = (surfaces.x1, surfaces.x2, surfaces.y)
    for (name, letter, _), unit, cube in zip(UNITS, (op.x1, op.x2, op.y), cubes, strict=True):
        fetched = bool(unit.enable and unit.use and unit.mode != PER_LAYER)
        title = f"SDP_RDMA.D_{letter}RDMA_CFG"
        values: dict[str, int | str] = {
            "DISABLE": int(not fetched),
            "DATA_USE": DATA_USE[unit.use],
            "DATA_SIZE": int(unit.precision > 0),
            "DATA_MODE": DATA_MODE[unit.mode],
            "RAM_TYPE": ram(cube),
        }
        yield firmware.fields(title, **{f"{letter}RDMA_{field}": value for field, value in values.items()})
        if fetched:
            address = firmware.address_of(cube)
            yield f"SDP_RDMA.D_{name}_BASE_ADDR_LOW", address & WORD
            yield f"SDP_RDMA.D_{name}_BASE_ADDR_HIGH", address >> 32
            yield f"SDP_RDMA.D_{name}_LINE_STRIDE", cube.line_stride
            yield f"SDP_RDMA.D_{name}_SURFACE_STRIDE", cube.surface_stride


def _bypasses(name: str, unit: SdpUnit) -> dict[str, int]:
    """The configuration fields that all units share."""
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
        yield f"SDP.D_DP_{name}_ALU_SRC_VALUE", unit.alu_operand & WORD
        yield f"SDP.D_DP_{name}_MUL_SRC_VALUE", unit.mul_operand & WORD
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
            yield f"SDP.D_DP_EW_{part}_SRC_VALUE", operand & WORD
            continue
        yield f"SDP.D_DP_EW_{part}_CVT_OFFSET_VALUE", converter.offset & WORD
        yield f"SDP.D_DP_EW_{part}_CVT_SCALE_VALUE", converter.scale & WORD
        yield f"SDP.D_DP_EW_{part}_CVT_TRUNCATE_VALUE", converter.truncate
    yield "SDP.D_DP_EW_TRUNCATE_VALUE", unit.truncate


RECIPROCALS = (
    (0x10000, 0x8000, 0x5555, 0x4000, 0x3333, 0x2AAA, 0x2492, 0x2000),
    (0x7C00, 0x7800, 0x7555, 0x7400, 0x7266, 0x7155, 0x7092, 0x7000),
)
"""Reciprocals of kernels of 1 to 8 elements: with 16 fractional bits, and as fp17."""
WIDTHS_IN = "PARTIAL_WIDTH_IN_FIRST=:in_0 PARTIAL_WIDTH_IN_MID=:in_1 PARTIAL_WIDTH_IN_LAST=:in_2"
WIDTHS_OUT = "PARTIAL_WIDTH_OUT_FIRST=:out_0 PARTIAL_WIDTH_OUT_MID=:out_1 PARTIAL_WIDTH_OUT_LAST=:out_2"
ACROSS = "KERNEL_WIDTH=op.kernel_width KERNEL_STRIDE_WIDTH=op.window.stride_x-1"
POOLING_FETCH = lines(f"""
PDP_RDMA.D_DATA_CUBE_IN_WIDTH *=surfaces.source.width-1
PDP_RDMA.D_DATA_CUBE_IN_HEIGHT *=surfaces.source.height-1
PDP_RDMA.D_DATA_CUBE_IN_CHANNEL *=surfaces.source.channels-1
PDP_RDMA.D_SRC_BASE_ADDR_HIGH *=high(surfaces.source)
PDP_RDMA.D_SRC_BASE_ADDR_LOW *=low(surfaces.source)
PDP_RDMA.D_SRC_LINE_STRIDE *=surfaces.source.line_stride
PDP_RDMA.D_SRC_SURFACE_STRIDE *=surfaces.source.surface_stride
PDP_RDMA.D_DATA_FORMAT *=op.precision
PDP_RDMA.D_SRC_RAM_CFG *=ram(surfaces.source)
PDP_RDMA.D_OPERATION_MODE_CFG *=op.splits-1
PDP_RDMA.D_POOLING_KERNEL_CFG {ACROSS}
PDP_RDMA.D_POOLING_PADDING_CFG *=op.window.pad_left
PDP_RDMA.D_PARTIAL_WIDTH_IN {WIDTHS_IN}
""")
POOLING = lines(
    f"""
PDP.D_DATA_CUBE_IN_WIDTH *=surfaces.source.width-1
PDP.D_DATA_CUBE_IN_HEIGHT *=surfaces.source.height-1
PDP.D_DATA_CUBE_IN_CHANNEL *=surfaces.source.channels-1
PDP.D_DATA_CUBE_OUT_WIDTH *=surfaces.result.width-1
PDP.D_DATA_CUBE_OUT_HEIGHT *=surfaces.result.height-1
PDP.D_DATA_CUBE_OUT_CHANNEL *=surfaces.result.channels-1
PDP.D_OPERATION_MODE_CFG POOLING_METHOD=op.method FLYING_MODE=:off_flying SPLIT_NUM=op.splits-1
PDP.D_PARTIAL_WIDTH_IN {WIDTHS_IN}
PDP.D_PARTIAL_WIDTH_OUT {WIDTHS_OUT}
PDP.D_POOLING_KERNEL_CFG {ACROSS} KERNEL_HEIGHT=op.kernel_height KERNEL_STRIDE_HEIGHT=op.window.stride_y-1
PDP.D_RECIP_KERNEL_WIDTH *=:reciprocal_width
PDP.D_RECIP_KERNEL_HEIGHT *=:reciprocal_height
PDP.D_POOLING_PADDING_CFG PAD_LEFT=op.window.pad_left PAD_RIGHT=op.window.pad_right """
    + """\
PAD_TOP=op.window.pad_top PAD_BOTTOM=op.window.pad_bottom
"""
    + "".join(f"PDP.D_POOLING_PADDING_VALUE_{each}_CFG *=:padding_{each}\n" for each in range(1, 8))
)
POOLING_SOURCE = lines("""
PDP.D_SRC_LINE_STRIDE *=surfaces.source.line_stride
PDP.D_SRC_SURFACE_STRIDE *=surfaces.source.surface_stride
""")
POOLING_RESULT = lines("""
PDP.D_DST_BASE_ADDR_LOW *=low(surfaces.result)
PDP.D_DST_BASE_ADDR_HIGH *=high(surfaces.result)
PDP.D_DST_LINE_STRIDE *=surfaces.result.line_stride
PDP.D_DST_SURFACE_STRIDE *=surfaces.result.surface_stride
PDP.D_DST_RAM_CFG *=ram(surfaces.result)
PDP.D_DATA_FORMAT *=op.precision
""")
CHANNEL_FETCH = lines("""
CDP_RDMA.D_DATA_CUBE_WIDTH *=surfaces.source.width-1
CDP_RDMA.D_DATA_CUBE_HEIGHT *=surfaces.source.height-1
CDP_RDMA.D_DATA_CUBE_CHANNEL *=surfaces.source.channels-1
CDP_RDMA.D_SRC_BASE_ADDR_LOW *=low(surfaces.source)
CDP_RDMA.D_SRC_BASE_ADDR_HIGH *=high(surfaces.source)
CDP_RDMA.D_SRC_LINE_STRIDE *=surfaces.source.line_stride
CDP_RDMA.D_SRC_SURFACE_STRIDE *=surfaces.source.surface_stride
CDP_RDMA.D_SRC_DMA_CFG *=ram(surfaces.source)
CDP_RDMA.D_DATA_FORMAT *=op.in_precision
""")
CHANNEL = lines("""
CDP.D_DST_BASE_ADDR_LOW *=low(surfaces.result)
CDP.D_DST_BASE_ADDR_HIGH *=high(surfaces.result)
CDP.D_DST_LINE_STRIDE *=surfaces.result.line_stride
CDP.D_DST_SURFACE_STRIDE *=surfaces.result.surface_stride
CDP.D_DST_DMA_CFG *=ram(surfaces.result)
CDP.D_DATA_FORMAT *=op.in_precision
CDP.D_LRN_CFG *=:reach
CDP.D_DATIN_OFFSET *=op.in_converter.offset
CDP.D_DATIN_SCALE *=op.in_converter.scale
CDP.D_DATIN_SHIFTER *=op.in_converter.truncate
CDP.D_DATOUT_OFFSET *=op.out_converter.offset
CDP.D_DATOUT_SCALE *=op.out_converter.scale
CDP.D_DATOUT_SHIFTER *=op.out_converter.truncate
CDP.D_FUNC_BYPASS SQSUM_BYPASS=op.bypass_sum MUL_BYPASS=op.bypass_product
""")
CONTRACTION = lines("""
RBK.D_MISC_CFG RUBIK_MODE=op.mode IN_PRECISION=op.precision
RBK.D_DAIN_RAM_TYPE *=ram(surfaces.source)
RBK.D_DATAIN_SIZE_0 DATAIN_WIDTH=surfaces.source.width-1 DATAIN_HEIGHT=surfaces.source.height-1
RBK.D_DATAIN_SIZE_1 *=surfaces.source.channels-1
RBK.D_DAIN_ADDR_HIGH *=high(surfaces.source)
RBK.D_DAIN_ADDR_LOW *=low(surfaces.source)
RBK.D_DAIN_LINE_STRIDE *=surfaces.source.line_stride
RBK.D_DAIN_SURF_STRIDE *=surfaces.source.surface_stride
RBK.D_DAOUT_RAM_TYPE *=ram(surfaces.result)
RBK.D_DATAOUT_SIZE_1 *=surfaces.result.channels-1
RBK.D_DAOUT_ADDR_HIGH *=high(surfaces.result)
RBK.D_DAOUT_ADDR_LOW *=low(surfaces.result)
RBK.D_DAOUT_LINE_STRIDE *=surfaces.result.line_stride
RBK.D_DAOUT_SURF_STRIDE *=surfaces.result.surface_stride
RBK.D_CONTRACT_STRIDE_0 *=:between_maps
RBK.D_CONTRACT_STRIDE_1 *=:between_rows
RBK.D_DECONV_STRIDE DECONV_X_STRIDE=op.stride_x-1 DECONV_Y_STRIDE=op.stride_y-1
""")
ELEMENT_BYTES = (1, 2, 2)


def reciprocal(op: Pdp, size: int) -> int:
    """The reciprocal of a kernel's extent, given less one."""
    return decode_number(RECIPROCALS[op.precision == FP16], size, "a kernel")


def _derived_of_pooling(op: Pdp, surfaces: PlanarSurfaces) -> Derived:
    widths = (("in", op.partial_in), ("out", op.partial_out))
    return {
        "off_flying": int(surfaces.source.type != HARDWARE),
        "reciprocal_width": reciprocal(op, op.kernel_width),
        "reciprocal_height": reciprocal(op, op.kernel_height),
        **{f"{side}_{at}": max(width - 1, 0) for side, found in widths for at, width in enumerate(found)},
        **{f"padding_{at}": value for at, value in enumerate(op.pad_values, 1)},
    }


def pdp(firmware: Firmware, op: Pdp, surfaces: PlanarSurfaces) -> Writes:
    """The writes of PDP_RDMA, if the input is in memory, then of PDP."""
    from_memory = surfaces.source.type != HARDWARE
    tables = [*(POOLING_FETCH if from_memory else ()), *POOLING, *(POOLING_SOURCE if from_memory else ())]
    yield from firmware.writes([*tables, *POOLING_RESULT], op, surfaces, _derived_of_pooling(op, surfaces))


def cdp(firmware: Firmware, op: Cdp, surfaces: PlanarSurfaces, lut: Lut | None) -> Writes:
    """The writes of CDP_RDMA, then of CDP."""
    yield from firmware.writes(CHANNEL_FETCH, op, surfaces)
    if lut is not None:
        yield from look_up_tables(firmware, "CDP", lut, floating=op.in_precision == FP16)
    yield from firmware.writes(CHANNEL, op, surfaces, {"reach": (op.local_size - 3) // 2})


def rubik(firmware: Firmware, op: Rubik, surfaces: PlanarSurfaces) -> Writes:
    """The writes of an operation, without an RDMA. Raises ArtefactError (E502) for other modes, which npuc never
    uses.
    """
    if op.mode:
        raise ArtefactError("E502", f"RUBIK in mode {op.mode}", limit="0: contract")
    lanes = firmware.atom_bytes // decode_number(ELEMENT_BYTES, op.precision)
    derived = {
        "between_maps": -(-surfaces.result.channels // lanes) * surfaces.source.surface_stride,
        "between_rows": op.stride_y * surfaces.result.line_stride,
    }
    yield from firmware.writes(CONTRACTION, op, surfaces, derived)


FP16 = 2
"""The number of the precision fp16 in descriptors."""


def look_up_tables(firmware: Firmware, block: str, lut: Lut, *, floating: bool) -> Writes:
    """The writes of both tables and their registers."""
    for table, entries in (("LE", lut.le), ("LO", lut.lo)):
        yield firmware.fields(f"{block}.S_LUT_ACCESS_CFG", LUT_TABLE_ID=table, LUT_ACCESS_TYPE="WRITE")
        for entry in entries:
            yield f"{block}.S_LUT_ACCESS_DATA", entry & WORD
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
            yield f"SDP.S_LUT_{name}", value & WORD
        else:
            yield f"CDP.S_LUT_{name}_LOW", value & WORD
            yield f"CDP.S_LUT_{name}_HIGH", value >> 32
    for name, below, beyond in (("LE", lut.le_below, lut.le_beyond), ("LO", lut.lo_below, lut.lo_beyond)):
        yield f"{block}.S_LUT_{name}_SLOPE_SCALE", below[0] & 0xFFFF | (beyond[0] & 0xFFFF) << 16
        if not floating:
            yield f"{block}.S_LUT_{name}_SLOPE_SHIFT", below[1] & 0x1F | (beyond[1] & 0x1F) << 5
