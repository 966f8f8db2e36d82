"""PDP and CDP with their RDMAs, and RUBIK in contract mode."""

from __future__ import annotations

from npuc.errors import ArtefactError
from npuc.targets.nvdla.firmware.descriptors import HARDWARE, Cdp, Lut, Pdp, PlanarSurfaces, Rubik
from npuc.targets.nvdla.firmware.lines import Derived, Firmware, Writes, known, lines
from npuc.targets.nvdla.firmware.look_up import FP16, look_up_tables

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
    return known(RECIPROCALS[op.precision == FP16], size, "a kernel")


def _derived(op: Pdp, surfaces: PlanarSurfaces) -> Derived:
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
    yield from firmware.writes([*tables, *POOLING_RESULT], op, surfaces, _derived(op, surfaces))


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
    lanes = firmware.atom_bytes // known(ELEMENT_BYTES, op.precision)
    derived = {
        "between_maps": -(-surfaces.result.channels // lanes) * surfaces.source.surface_stride,
        "between_rows": op.stride_y * surfaces.result.line_stride,
    }
    yield from firmware.writes(CONTRACTION, op, surfaces, derived)
