"""The convolution pipeline: CACC, CMAC, CSC and CDMA, in this order."""

from __future__ import annotations

from npuc.errors import ArtefactError
from npuc.targets.nvdla.firmware.descriptors import FEATURE_FORMAT, Convolution, ConvolutionSurfaces
from npuc.targets.nvdla.firmware.lines import Derived, Firmware, Writes, lines

ACCUMULATOR = lines("""
CACC.D_MISC_CFG CONV_MODE=op.mode PROC_PRECISION=op.out_precision
CACC.D_DATAOUT_SIZE_0 DATAOUT_WIDTH=surfaces.result.width-1 DATAOUT_HEIGHT=surfaces.result.height-1
CACC.D_DATAOUT_SIZE_1 *=surfaces.result.channels-1
CACC.D_DATAOUT_ADDR *=:result_address
CACC.D_BATCH_NUMBER *=op.batch-1
CACC.D_LINE_STRIDE *=:result_line
CACC.D_SURF_STRIDE *=:result_surface
CACC.D_DATAOUT_MAP LINE_PACKED=:one_pixel SURF_PACKED=:one_pixel
CACC.D_CLIP_CFG *=op.out_converter.truncate
CMAC_A.D_MISC_CFG CONV_MODE=op.mode PROC_PRECISION=op.out_precision
CMAC_B.D_MISC_CFG CONV_MODE=op.mode PROC_PRECISION=op.out_precision
""")
KEPT = (
    "DATA_REUSE=op.data_reuse WEIGHT_REUSE=op.weight_reuse"
    " SKIP_DATA_RLS=op.skip_data_release SKIP_WEIGHT_RLS=op.skip_weight_release"
)
"""The data and weights that stay in the buffer."""
SEQUENCE = lines(f"""
CSC.D_MISC_CFG CONV_MODE=op.mode IN_PRECISION=op.out_precision PROC_PRECISION=op.out_precision {KEPT}
CSC.D_DATAIN_FORMAT *=:pixel
CSC.D_DATAIN_SIZE_EXT_0 DATAIN_WIDTH_EXT=op.csc_width-1 DATAIN_HEIGHT_EXT=op.csc_height-1
CSC.D_DATAIN_SIZE_EXT_1 *=op.csc_channels-1
CSC.D_BATCH_NUMBER *=op.batch-1
CSC.D_POST_Y_EXTENSION *=op.post_extension
CSC.D_ENTRY_PER_SLICE *=op.entries_per_slice-1
CSC.D_WEIGHT_FORMAT *=op.weight_format
CSC.D_WEIGHT_SIZE_EXT_0 WEIGHT_WIDTH_EXT=op.kernel_width-1 WEIGHT_HEIGHT_EXT=op.kernel_height-1
CSC.D_WEIGHT_SIZE_EXT_1 WEIGHT_CHANNEL_EXT=op.kernel_channels-1 WEIGHT_KERNEL=surfaces.result.channels-1
CSC.D_WEIGHT_BYTES *=surfaces.weight.size
CSC.D_WMB_BYTES *=surfaces.mask.size
CSC.D_DATAOUT_SIZE_0 DATAOUT_WIDTH=op.cmac_width-1 DATAOUT_HEIGHT=op.cmac_height-1
CSC.D_DATAOUT_SIZE_1 *=surfaces.result.channels-1
CSC.D_ATOMICS *=:atomics
CSC.D_RELEASE *=op.release-1
CSC.D_CONV_STRIDE_EXT CONV_X_STRIDE_EXT=:stride_x CONV_Y_STRIDE_EXT=:stride_y
CSC.D_DILATION_EXT X_DILATION_EXT=op.dilation_x-1 Y_DILATION_EXT=op.dilation_y-1
CSC.D_ZERO_PADDING PAD_LEFT=:pad_left PAD_TOP=:pad_top
CSC.D_ZERO_PADDING_VALUE PAD_VALUE=op.pad_value
CSC.D_BANK DATA_BANK=op.data_bank-1 WEIGHT_BANK=op.weight_bank-1
CSC.D_PRA_CFG *=op.pra_truncate
""")
FETCH = lines(
    f"""
CDMA.D_MISC_CFG CONV_MODE=op.mode IN_PRECISION=op.in_precision PROC_PRECISION=op.out_precision {KEPT}
CDMA.D_DATAIN_FORMAT DATAIN_FORMAT=:pixel PIXEL_FORMAT=:format PIXEL_MAPPING=op.pixel_mapping """
    + """\
PIXEL_SIGN_OVERRIDE=op.pixel_override
CDMA.D_DATAIN_SIZE_0 DATAIN_WIDTH=surfaces.source.width-1 DATAIN_HEIGHT=surfaces.source.height-1
CDMA.D_DATAIN_SIZE_1 *=surfaces.source.channels-1
CDMA.D_DATAIN_SIZE_EXT_0 DATAIN_WIDTH_EXT=op.csc_width-1 DATAIN_HEIGHT_EXT=op.csc_height-1
CDMA.D_DAIN_RAM_TYPE *=ram(surfaces.source)
CDMA.D_DAIN_ADDR_HIGH_0 *=high(surfaces.source)
CDMA.D_DAIN_ADDR_LOW_0 *=low(surfaces.source)
CDMA.D_DAIN_ADDR_HIGH_1 *=:second_high
CDMA.D_DAIN_ADDR_LOW_1 *=:second_low
CDMA.D_LINE_STRIDE *=surfaces.source.line_stride
CDMA.D_SURF_STRIDE *=surfaces.source.surface_stride
CDMA.D_LINE_UV_STRIDE *=surfaces.second_plane_stride
CDMA.D_DAIN_MAP LINE_PACKED=:line_packed SURF_PACKED=:surface_packed
CDMA.D_BATCH_NUMBER *=op.batch-1
CDMA.D_BATCH_STRIDE *=op.batch_stride
CDMA.D_ENTRY_PER_SLICE *=op.entries_per_slice-1
CDMA.D_FETCH_GRAIN *=op.fetch_grain-1
CDMA.D_WEIGHT_FORMAT *=op.weight_format
CDMA.D_WEIGHT_SIZE_0 *=op.bytes_per_kernel-1
CDMA.D_WEIGHT_SIZE_1 *=surfaces.result.channels-1
CDMA.D_WEIGHT_RAM_TYPE *=ram(surfaces.weight)
CDMA.D_WEIGHT_ADDR_HIGH *=high(surfaces.weight)
CDMA.D_WEIGHT_ADDR_LOW *=low(surfaces.weight)
CDMA.D_WEIGHT_BYTES *=surfaces.weight.size
"""
)
COMPRESSED = lines("""
CDMA.D_WGS_ADDR_HIGH *=high(surfaces.group_sizes)
CDMA.D_WGS_ADDR_LOW *=low(surfaces.group_sizes)
CDMA.D_WMB_ADDR_HIGH *=high(surfaces.mask)
CDMA.D_WMB_ADDR_LOW *=low(surfaces.mask)
CDMA.D_WMB_BYTES *=surfaces.mask.size
""")
MEAN = lines("CDMA.D_MEAN_FORMAT *=op.mean_format")
MEANS = lines("""
CDMA.D_MEAN_GLOBAL_0 MEAN_RY=:mean_0 MEAN_GU=:mean_1
CDMA.D_MEAN_GLOBAL_1 MEAN_BV=:mean_2 MEAN_AX=:mean_3
""")
CONVERTER = lines("""
CDMA.D_CVT_CFG CVT_EN=op.in_converter.enable CVT_TRUNCATE=op.in_converter.truncate
CDMA.D_CVT_OFFSET *=op.in_converter.offset
CDMA.D_CVT_SCALE *=op.in_converter.scale
""")
BORDERS = lines(
    """
CDMA.D_CONV_STRIDE CONV_X_STRIDE=op.window.stride_x-1 CONV_Y_STRIDE=op.window.stride_y-1
CDMA.D_ZERO_PADDING PAD_LEFT=op.window.pad_left PAD_RIGHT=op.window.pad_right """
    + """\
PAD_TOP=op.window.pad_top PAD_BOTTOM=op.window.pad_bottom
CDMA.D_ZERO_PADDING_VALUE PAD_VALUE=op.pad_value
CDMA.D_BANK DATA_BANK=op.data_bank-1 WEIGHT_BANK=op.weight_bank-1
"""
)


def _derive_values(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces) -> Derived:
    """Values that no descriptor holds. Winograd: CSC sees neither strides nor padding."""
    source, result, window = surfaces.source, surfaces.result, op.window
    pixel, second = (
        int(op.data_format != FEATURE_FORMAT),
        firmware.address_of(source) + surfaces.second_plane_offset,
    )
    line = source.width * firmware.atom_bytes
    return {
        "result_address": firmware.address_of(result),
        "result_line": result.line_stride,
        "result_surface": result.surface_stride,
        "one_pixel": int((result.width, result.height) == (1, 1)),
        "pixel": pixel,
        "format": op.data_format * pixel % FEATURE_FORMAT,
        "atomics": result.width * result.height - 1,
        "stride_x": 0 if op.mode else window.stride_x - 1,
        "stride_y": 0 if op.mode else window.stride_y - 1,
        "pad_left": 0 if op.mode else window.pad_left,
        "pad_top": 0 if op.mode else window.pad_top,
        "second_high": second >> 32,
        "second_low": second,
        "line_packed": int(source.line_stride == line),
        "surface_packed": int(source.surface_stride == line * source.height),
        **{f"mean_{at}": mean for at, mean in enumerate(op.means)},
    }


def convolution(firmware: Firmware, op: Convolution, surfaces: ConvolutionSurfaces) -> Writes:
    """The writes of an operation. Raises ArtefactError (E502) where the firmware would assert."""
    if op.out_converter.scale != 1 or op.out_converter.offset != 0:
        raise ArtefactError("E502", "a convolution's output converter", limit="scale 1, offset 0")
    tables = [*ACCUMULATOR, *SEQUENCE, *FETCH, *(COMPRESSED if op.weight_format else ()), *MEAN]
    tables += MEANS if op.mean_format else ()
    yield from firmware.writes(tables, op, surfaces, _derive_values(firmware, op, surfaces))
    if op.in_converter.enable:
        yield from firmware.writes(CONVERTER, op, surfaces)
    else:
        yield "CDMA.D_CVT_CFG", 0
    yield from firmware.writes(BORDERS, op, surfaces)
