"""RUBIK as registers."""

from __future__ import annotations

from npuc.targets.nvdla.emission.writer import Writer
from npuc.targets.nvdla.operations.operation import Contraction


def write_contraction(writer: Writer, operation: Contraction) -> None:
    """RUBIK in contract mode, used to interleave columns only: the rows of a map stay rows.

    The strides between maps and between blocks of rows follow from the other registers.
    """
    source, result = operation.source, operation.destination
    surfaces = result.atoms(writer.machine.atom_bytes)
    writer.set("RBK.D_MISC_CFG", RUBIK_MODE="CONTRACT", IN_PRECISION=source.precision.upper())
    writer.set("RBK.D_DAIN_RAM_TYPE", DATAIN_RAM_TYPE=writer.ram(source.address))
    writer.set("RBK.D_DATAIN_SIZE_0", DATAIN_WIDTH=source.width - 1, DATAIN_HEIGHT=source.height - 1)
    writer.set("RBK.D_DATAIN_SIZE_1", DATAIN_CHANNEL=source.channels - 1)
    writer.address("RBK", "D_DAIN_ADDR", source.address)
    writer.raw("RBK.D_DAIN_LINE_STRIDE", source.line_stride)
    writer.raw("RBK.D_DAIN_SURF_STRIDE", source.surface_stride)
    writer.set("RBK.D_DAOUT_RAM_TYPE", DATAOUT_RAM_TYPE=writer.ram(result.address))
    writer.set("RBK.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=result.channels - 1)
    writer.address("RBK", "D_DAOUT_ADDR", result.address)
    writer.raw("RBK.D_DAOUT_LINE_STRIDE", result.line_stride)
    writer.raw("RBK.D_DAOUT_SURF_STRIDE", result.surface_stride)
    writer.raw("RBK.D_CONTRACT_STRIDE_0", surfaces * source.surface_stride)
    writer.raw("RBK.D_CONTRACT_STRIDE_1", result.line_stride)
    writer.set("RBK.D_DECONV_STRIDE", DECONV_X_STRIDE=operation.step - 1, DECONV_Y_STRIDE=0)
