"""PDP and CDP with their RDMAs."""

from __future__ import annotations

from dataclasses import replace

from npuc.targets.nvdla.loadable.descriptors import HARDWARE, NONE, Cdp, Lut, Pdp, Surfaces
from npuc.targets.nvdla.loadable.firmware.lines import Derived, Firmware, ReadBack, Writes, known, lines
from npuc.targets.nvdla.loadable.firmware.look_up import FP16, look_up_tables
from npuc.targets.nvdla.loadable.structures import assembled

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


def _reciprocal(op: Pdp, size: int) -> int:
    return known(RECIPROCALS[op.precision == FP16], size, "a kernel")


def _derived(op: Pdp, surfaces: Surfaces) -> Derived:
    widths = (("in", op.partial_in), ("out", op.partial_out))
    return {
        "off_flying": int(surfaces.source.type != HARDWARE),
        "reciprocal_width": _reciprocal(op, op.kernel_width),
        "reciprocal_height": _reciprocal(op, op.kernel_height),
        **{f"{side}_{at}": max(width - 1, 0) for side, found in widths for at, width in enumerate(found)},
        **{f"padding_{at}": value for at, value in enumerate(op.pad_values, 1)},
    }


def pdp(firmware: Firmware, op: Pdp, surfaces: Surfaces) -> Writes:
    """The writes of PDP_RDMA, if the input is in memory, then of PDP."""
    from_memory = surfaces.source.type != HARDWARE
    tables = [*(POOLING_FETCH if from_memory else ()), *POOLING, *(POOLING_SOURCE if from_memory else ())]
    yield from firmware.writes([*tables, *POOLING_RESULT], op, surfaces, _derived(op, surfaces))


def pdp_of(read: ReadBack) -> tuple[Pdp, Surfaces]:
    """The operation described by registers, its cubes without addresses. Raises ArtefactError (E506)."""
    flying = "PDP_RDMA" not in read.groups
    read.read([*(() if flying else POOLING_FETCH), *POOLING, *(() if flying else POOLING_SOURCE), *POOLING_RESULT])
    op, surfaces = assembled(Pdp, read.of("op")), assembled(Surfaces, read.of("surfaces"))
    group = read.groups["PDP"]
    parts = ("FIRST", "MID", "LAST")
    split = int(op.splits > 1)
    op = replace(
        op,
        partial_in=tuple(split * (group[f"PARTIAL_WIDTH_IN_{each}"] + 1) for each in parts),
        partial_out=tuple(split * (group[f"PARTIAL_WIDTH_OUT_{each}"] + 1) for each in parts),
        pad_values=tuple(group.signed(f"PAD_VALUE_{each}X") for each in range(1, 8)),
    )
    return op, replace(
        surfaces, source=replace(surfaces.source, type=HARDWARE, address=NONE)
    ) if flying else surfaces


def own_reciprocals(read: ReadBack, op: Pdp) -> tuple[int, int] | None:
    """The reciprocals of an average's width and height; None if they are the kernel's, as in the firmware."""
    group = read.groups["PDP"]
    found = (group["RECIP_KERNEL_WIDTH"], group["RECIP_KERNEL_HEIGHT"])
    known = (_reciprocal(op, op.kernel_width), _reciprocal(op, op.kernel_height))
    return found if op.method == 0 and found != known else None


def cdp(firmware: Firmware, op: Cdp, surfaces: Surfaces, lut: Lut | None) -> Writes:
    """The writes of CDP_RDMA, then of CDP."""
    yield from firmware.writes(CHANNEL_FETCH, op, surfaces)
    if lut is not None:
        yield from look_up_tables(firmware, "CDP", lut, floating=op.in_precision == FP16)
    yield from firmware.writes(CHANNEL, op, surfaces, {"reach": (op.local_size - 3) // 2})


def cdp_of(read: ReadBack) -> tuple[Cdp, Surfaces]:
    """The operation described by registers, its cubes without addresses. Raises ArtefactError (E506)."""
    read.read([*CHANNEL_FETCH, *CHANNEL])
    for side, bits in (("in", 16), ("out", 32)):
        read.signed(f"op.{side}_converter.offset", bits)
        read.signed(f"op.{side}_converter.scale", 16)
    op = assembled(Cdp, read.of("op"))
    surfaces = assembled(Surfaces, read.of("surfaces"))
    op = replace(op, out_precision=op.in_precision, local_size=3 + 2 * read.groups["CDP"]["NORMALZ_LEN"])
    source = surfaces.source
    extents = {"width": source.width, "height": source.height, "channels": source.channels}
    return op, replace(surfaces, result=replace(surfaces.result, **extents))
