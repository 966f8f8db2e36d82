"""SDP and its RDMA."""

from __future__ import annotations

from npuc.targets.nvdla.firmware.descriptors import HARDWARE, Lut, Sdp, SdpSurfaces, SdpUnit
from npuc.targets.nvdla.firmware.lines import WORD, Derived, Firmware, Writes, known, lines, ram
from npuc.targets.nvdla.firmware.look_up import FP16, look_up_tables

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


def _derived(op: Sdp, surfaces: SdpSurfaces) -> Derived:
    return {
        "flying": int(surfaces.source.type == HARDWARE),
        "to_pooling": int(surfaces.result.type == HARDWARE),
        "processing": known(known(PROCESSING, op.result_precision), op.source_precision),
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
    derived = _derived(op, surfaces)
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
            address = firmware.at(cube)
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
