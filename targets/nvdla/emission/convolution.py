"""The convolution pipeline as registers: CDMA, CSC, CMAC and CACC."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.targets.nvdla.emission.writer import Writer, padding
from npuc.targets.nvdla.operations.operation import Convolution, Kernels, Surface


def write_convolution(writer: Writer, operation: Convolution) -> None:
    """The registers of all blocks before SDP."""
    precision = operation.source.precision.upper()
    mode = "WINOGRAD" if operation.kernels.form.kind == "winograd" else "DIRECT"
    kind = {"CONV_MODE": mode, "IN_PRECISION": precision, "PROC_PRECISION": precision}
    bank = {"DATA_BANK": operation.banks.data - 1, "WEIGHT_BANK": operation.banks.weights - 1}
    result = operation.destination.share(operation.batches)
    _cdma(writer, operation, kind, bank)
    _csc(writer, operation, result, kind, bank)
    for block in ("CMAC_A", "CMAC_B", "CACC"):
        writer.set(f"{block}.D_MISC_CFG", CONV_MODE=mode, PROC_PRECISION=precision)
    _cacc(writer, operation, result)


def _cdma(writer: Writer, operation: Convolution, kind: Mapping[str, str], bank: Mapping[str, int]) -> None:
    source, window = operation.source.share(operation.batches), operation.window
    writer.set("CDMA.D_MISC_CFG", **kind)
    _data(writer, source)
    width, height = (each - 1 for each in operation.data_extents)
    writer.set("CDMA.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=width, DATAIN_HEIGHT_EXT=height)
    writer.set("CDMA.D_BATCH_NUMBER", BATCHES=operation.batches - 1)
    if operation.batches > 1:
        writer.raw("CDMA.D_BATCH_STRIDE", source.height * source.line_stride)
    writer.set("CDMA.D_ENTRY_PER_SLICE", ENTRIES=operation.banks.entries_per_slice - 1)
    writer.set("CDMA.D_FETCH_GRAIN", GRAINS=0)
    _weights(writer, operation.kernels)
    strides = {"CONV_X_STRIDE": window.stride_x - 1, "CONV_Y_STRIDE": window.stride_y - 1}
    writer.set("CDMA.D_CONV_STRIDE", **strides)
    padding(writer, "CDMA.D_ZERO_PADDING", window)
    writer.set("CDMA.D_ZERO_PADDING_VALUE", PAD_VALUE=window.value & 0xFFFF)
    writer.set("CDMA.D_BANK", **bank)


def _csc(
    writer: Writer, operation: Convolution, result: Surface, kind: Mapping[str, str], bank: Mapping[str, int]
) -> None:
    source, kernels, window = operation.source, operation.kernels, operation.window
    width, height = (each - 1 for each in operation.data_extents)
    winograd = kernels.form.kind == "winograd"
    writer.set("CSC.D_MISC_CFG", **kind)
    writer.set("CSC.D_DATAIN_FORMAT", DATAIN_FORMAT="PIXEL" if source.pixels else "FEATURE")
    writer.set("CSC.D_DATAIN_SIZE_EXT_0", DATAIN_WIDTH_EXT=width, DATAIN_HEIGHT_EXT=height)
    channels = kernels.channels if winograd else source.channels
    writer.set("CSC.D_DATAIN_SIZE_EXT_1", DATAIN_CHANNEL_EXT=channels - 1)
    writer.set("CSC.D_BATCH_NUMBER", BATCHES=operation.batches - 1)
    writer.set("CSC.D_POST_Y_EXTENSION", Y_EXTENSION=kernels.form.lines // 2)
    writer.set("CSC.D_ENTRY_PER_SLICE", ENTRIES=operation.banks.entries_per_slice - 1)
    writer.set("CSC.D_WEIGHT_FORMAT", WEIGHT_FORMAT="COMPRESSED" if kernels.mask else "UNCOMPRESSED")
    extents = {"WEIGHT_WIDTH_EXT": kernels.width - 1, "WEIGHT_HEIGHT_EXT": kernels.height - 1}
    writer.set("CSC.D_WEIGHT_SIZE_EXT_0", **extents)
    writer.set("CSC.D_WEIGHT_SIZE_EXT_1", WEIGHT_CHANNEL_EXT=kernels.channels - 1, WEIGHT_KERNEL=kernels.count - 1)
    writer.raw("CSC.D_WEIGHT_BYTES", kernels.bytes)
    writer.raw("CSC.D_WMB_BYTES", kernels.mask.bytes if kernels.mask else 0)
    writer.set("CSC.D_DATAOUT_SIZE_0", **_extents(result))
    writer.set("CSC.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
    writer.set("CSC.D_ATOMICS", ATOMICS=result.width * result.height - 1)
    writer.set("CSC.D_RELEASE", RLS_SLICES=height)
    stride_x, stride_y = (1, 1) if winograd else (window.stride_x, window.stride_y)
    writer.set("CSC.D_CONV_STRIDE_EXT", CONV_X_STRIDE_EXT=stride_x - 1, CONV_Y_STRIDE_EXT=stride_y - 1)
    dilations = {"X_DILATION_EXT": window.dilation_x - 1, "Y_DILATION_EXT": window.dilation_y - 1}
    writer.set("CSC.D_DILATION_EXT", **dilations)
    left, top = (0, 0) if winograd else (window.left, window.top)
    writer.set("CSC.D_ZERO_PADDING", PAD_LEFT=left, PAD_TOP=top)
    writer.set("CSC.D_ZERO_PADDING_VALUE", PAD_VALUE=window.value & 0xFFFF)
    writer.set("CSC.D_BANK", **bank)
    writer.set("CSC.D_PRA_CFG", PRA_TRUNCATE=operation.pra_truncate)


def _cacc(writer: Writer, operation: Convolution, result: Surface) -> None:
    writer.set("CACC.D_DATAOUT_SIZE_0", **_extents(result))
    writer.set("CACC.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
    writer.raw("CACC.D_DATAOUT_ADDR", result.address)
    writer.set("CACC.D_BATCH_NUMBER", BATCHES=operation.batches - 1)
    writer.raw("CACC.D_LINE_STRIDE", result.line_stride)
    writer.raw("CACC.D_SURF_STRIDE", result.surface_stride)
    writer.set("CACC.D_DATAOUT_MAP", LINE_PACKED="FALSE", SURF_PACKED="FALSE")
    writer.set("CACC.D_CLIP_CFG", CLIP_TRUNCATE=operation.truncate)


def _extents(result: Surface) -> dict[str, int]:
    return {"DATAOUT_WIDTH": result.width - 1, "DATAOUT_HEIGHT": result.height - 1}


def _data(writer: Writer, source: Surface) -> None:
    """The input's place and conversion: image pixels are signed and pass unchanged.

    NVDLA's own compiler sets up int8 images in the same way.
    """
    image = {"PIXEL_MAPPING": "PITCH_LINEAR", "PIXEL_SIGN_OVERRIDE": "SIGNED_INT"} if source.pixels else {}
    form, pixels = ("PIXEL", source.pixels) if source.pixels else ("FEATURE", "T_R8")
    writer.set("CDMA.D_DATAIN_FORMAT", DATAIN_FORMAT=form, PIXEL_FORMAT=pixels, **image)
    writer.set("CDMA.D_DATAIN_SIZE_0", DATAIN_WIDTH=source.width - 1, DATAIN_HEIGHT=source.height - 1)
    writer.set("CDMA.D_DATAIN_SIZE_1", DATAIN_CHANNEL=source.channels - 1)
    if source.pixels:
        writer.set("CDMA.D_PIXEL_OFFSET", PIXEL_X_OFFSET=0, PIXEL_Y_OFFSET=0)
        writer.set("CDMA.D_RESERVED_X_CFG", RSV_PER_LINE=0, RSV_PER_UV_LINE=0)
        writer.set("CDMA.D_RESERVED_Y_CFG", RSV_HEIGHT=0, RSV_Y_INDEX=0)
    writer.set("CDMA.D_DAIN_RAM_TYPE", DATAIN_RAM_TYPE=writer.ram(source.address))
    writer.raw("CDMA.D_DAIN_ADDR_HIGH_0", source.address >> 32)
    writer.raw("CDMA.D_DAIN_ADDR_LOW_0", source.address)
    writer.raw("CDMA.D_LINE_STRIDE", source.line_stride)
    if source.pixels and source.atoms(writer.machine.atom_bytes) > 1:
        writer.raw("CDMA.D_DAIN_ADDR_HIGH_1", (source.address + source.surface_stride) >> 32)
        writer.raw("CDMA.D_DAIN_ADDR_LOW_1", source.address + source.surface_stride)
        writer.raw("CDMA.D_LINE_UV_STRIDE", source.line_stride)
    writer.raw("CDMA.D_SURF_STRIDE", source.surface_stride)
    writer.set("CDMA.D_DAIN_MAP", LINE_PACKED="FALSE", SURF_PACKED="FALSE")
    converted = bool(source.pixels) and source.precision != "fp16"
    writer.set("CDMA.D_MEAN_FORMAT", MEAN_FORMAT="DISABLE")
    writer.set("CDMA.D_CVT_CFG", CVT_EN="ENABLE" if converted else "DISABLE", CVT_TRUNCATE=0)
    writer.set("CDMA.D_CVT_OFFSET", CVT_OFFSET=0)
    writer.set("CDMA.D_CVT_SCALE", CVT_SCALE=1)


def _weights(writer: Writer, kernels: Kernels) -> None:
    """The place of the weights; if compressed, also of their mask (WMB) and group sizes (WGS)."""
    writer.set("CDMA.D_WEIGHT_FORMAT", WEIGHT_FORMAT="COMPRESSED" if kernels.mask else "UNCOMPRESSED")
    writer.set("CDMA.D_WEIGHT_SIZE_0", BYTE_PER_KERNEL=kernels.kernel_bytes - 1)
    writer.set("CDMA.D_WEIGHT_SIZE_1", WEIGHT_KERNEL=kernels.count - 1)
    writer.set("CDMA.D_WEIGHT_RAM_TYPE", WEIGHT_RAM_TYPE=writer.ram(kernels.address))
    writer.raw("CDMA.D_WEIGHT_ADDR_HIGH", kernels.address >> 32)
    writer.raw("CDMA.D_WEIGHT_ADDR_LOW", kernels.address)
    writer.raw("CDMA.D_WEIGHT_BYTES", kernels.bytes)
    if kernels.mask is not None:
        for name, address in (("WGS", kernels.mask.sizes_address), ("WMB", kernels.mask.address)):
            writer.raw(f"CDMA.D_{name}_ADDR_HIGH", address >> 32)
            writer.raw(f"CDMA.D_{name}_ADDR_LOW", address)
        writer.raw("CDMA.D_WMB_BYTES", kernels.mask.bytes)
