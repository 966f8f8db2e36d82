"""The convolution pipeline as registers: CDMA, CSC, CMAC and CACC."""

from __future__ import annotations

from npuc.targets.nvdla.emission.writer import Writer, padding
from npuc.targets.nvdla.operations import Convolution


def write_convolution(writer: Writer, operation: Convolution) -> None:
    """Everything before SDP."""
    source, kernels, window = operation.source, operation.kernels, operation.window
    result, banks = operation.destination, operation.banks
    precision = source.precision.upper()
    precisions = {"IN_PRECISION": precision, "PROC_PRECISION": precision}
    width, height = source.width - 1, source.height - 1
    bank = {"DATA_BANK": banks.data - 1, "WEIGHT_BANK": banks.weights - 1}
    out = {"DATAOUT_WIDTH": result.width - 1, "DATAOUT_HEIGHT": result.height - 1}
    _cdma(writer, operation, precisions, bank)
    writer.set("CSC.D_MISC_CFG", CONV_MODE="DIRECT", **precisions)
    writer.set("CSC.D_DATAIN_FORMAT", DATAIN_FORMAT="FEATURE")
    writer.set("CSC.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=width, DATAIN_HEIGHT_EXT=height)
    writer.set("CSC.D_DATAIN_SIZE_EXT_1", DATAIN_CHANNEL_EXT=source.channels - 1)
    writer.set("CSC.D_BATCH_NUMBER", BATCHES=0)
    writer.set("CSC.D_POST_Y_EXTENSION", Y_EXTENSION=0)
    writer.set("CSC.D_ENTRY_PER_SLICE", ENTRIES=banks.entries_per_slice - 1)
    writer.set("CSC.D_WEIGHT_FORMAT", WEIGHT_FORMAT="UNCOMPRESSED")
    extents = {"WEIGHT_WIDTH_EXT": kernels.width - 1, "WEIGHT_HEIGHT_EXT": kernels.height - 1}
    writer.set("CSC.D_WEIGHT_SIZE_EXT_0", **extents)
    writer.set("CSC.D_WEIGHT_SIZE_EXT_1", WEIGHT_CHANNEL_EXT=kernels.channels - 1, WEIGHT_KERNEL=kernels.count - 1)
    writer.raw("CSC.D_WEIGHT_BYTES", kernels.bytes)
    writer.set("CSC.D_WMB_BYTES")
    writer.set("CSC.D_DATAOUT_SIZE_0", **out)
    writer.set("CSC.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
    writer.set("CSC.D_ATOMICS", ATOMICS=result.width * result.height - 1)
    writer.set("CSC.D_RELEASE", RLS_SLICES=height)
    strides = {"CONV_X_STRIDE_EXT": window.stride_x - 1, "CONV_Y_STRIDE_EXT": window.stride_y - 1}
    writer.set("CSC.D_CONV_STRIDE_EXT", **strides)
    dilations = {"X_DILATION_EXT": window.dilation_x - 1, "Y_DILATION_EXT": window.dilation_y - 1}
    writer.set("CSC.D_DILATION_EXT", **dilations)
    writer.set("CSC.D_ZERO_PADDING", PAD_LEFT=window.left, PAD_TOP=window.top)
    writer.set("CSC.D_ZERO_PADDING_VALUE", PAD_VALUE=window.value & 0xFFFF)
    writer.set("CSC.D_BANK", **bank)
    writer.set("CSC.D_PRA_CFG", PRA_TRUNCATE=0)
    for block in ("CMAC_A", "CMAC_B", "CACC"):
        writer.set(f"{block}.D_MISC_CFG", CONV_MODE="DIRECT", PROC_PRECISION=precision)
    writer.set("CACC.D_DATAOUT_SIZE_0", **out)
    writer.set("CACC.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
    writer.raw("CACC.D_DATAOUT_ADDR", result.address)
    writer.set("CACC.D_BATCH_NUMBER", BATCHES=0)
    writer.raw("CACC.D_LINE_STRIDE", result.line_stride)
    writer.raw("CACC.D_SURF_STRIDE", result.surface_stride)
    writer.set("CACC.D_DATAOUT_MAP", LINE_PACKED="FALSE", SURF_PACKED="FALSE")
    writer.set("CACC.D_CLIP_CFG", CLIP_TRUNCATE=0)


def _cdma(writer: Writer, operation: Convolution, precisions: dict[str, str], bank: dict[str, int]) -> None:
    source, kernels, window = operation.source, operation.kernels, operation.window
    width, height = source.width - 1, source.height - 1
    writer.set("CDMA.D_MISC_CFG", CONV_MODE="DIRECT", **precisions)
    writer.set("CDMA.D_DATAIN_FORMAT", DATAIN_FORMAT="FEATURE", PIXEL_FORMAT="T_R8")
    writer.set("CDMA.D_DATAIN_SIZE_0", DATAIN_WIDTH=width, DATAIN_HEIGHT=height)
    writer.set("CDMA.D_DATAIN_SIZE_1", DATAIN_CHANNEL=source.channels - 1)
    writer.set("CDMA.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=width, DATAIN_HEIGHT_EXT=height)
    writer.set("CDMA.D_DAIN_RAM_TYPE", DATAIN_RAM_TYPE="MCIF")
    writer.raw("CDMA.D_DAIN_ADDR_HIGH_0", source.address >> 32)
    writer.raw("CDMA.D_DAIN_ADDR_LOW_0", source.address)
    writer.raw("CDMA.D_LINE_STRIDE", source.line_stride)
    writer.raw("CDMA.D_SURF_STRIDE", source.surface_stride)
    writer.set("CDMA.D_DAIN_MAP", LINE_PACKED="FALSE", SURF_PACKED="FALSE")
    writer.set("CDMA.D_BATCH_NUMBER", BATCHES=0)
    writer.set("CDMA.D_ENTRY_PER_SLICE", ENTRIES=operation.banks.entries_per_slice - 1)
    writer.set("CDMA.D_FETCH_GRAIN", GRAINS=0)
    writer.set("CDMA.D_WEIGHT_FORMAT", WEIGHT_FORMAT="UNCOMPRESSED")
    writer.set("CDMA.D_WEIGHT_SIZE_0", BYTE_PER_KERNEL=kernels.kernel_bytes - 1)
    writer.set("CDMA.D_WEIGHT_SIZE_1", WEIGHT_KERNEL=kernels.count - 1)
    writer.set("CDMA.D_WEIGHT_RAM_TYPE", WEIGHT_RAM_TYPE="MCIF")
    writer.raw("CDMA.D_WEIGHT_ADDR_HIGH", kernels.address >> 32)
    writer.raw("CDMA.D_WEIGHT_ADDR_LOW", kernels.address)
    writer.raw("CDMA.D_WEIGHT_BYTES", kernels.bytes)
    writer.set("CDMA.D_MEAN_FORMAT", MEAN_FORMAT="DISABLE")
    writer.set("CDMA.D_CVT_CFG", CVT_EN="DISABLE", CVT_TRUNCATE=0)
    writer.set("CDMA.D_CVT_OFFSET", CVT_OFFSET=0)
    writer.set("CDMA.D_CVT_SCALE", CVT_SCALE=1)
    strides = {"CONV_X_STRIDE": window.stride_x - 1, "CONV_Y_STRIDE": window.stride_y - 1}
    writer.set("CDMA.D_CONV_STRIDE", **strides)
    padding(writer, "CDMA.D_ZERO_PADDING", window)
    writer.set("CDMA.D_ZERO_PADDING_VALUE", PAD_VALUE=window.value & 0xFFFF)
    writer.set("CDMA.D_BANK", **bank)
