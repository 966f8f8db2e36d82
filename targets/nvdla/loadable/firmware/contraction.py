"""RUBIK in contract mode."""

from __future__ import annotations

from dataclasses import replace

from npuc.errors import ArtefactError
from npuc.targets.nvdla.loadable.descriptors import Rubik, Surfaces
from npuc.targets.nvdla.loadable.firmware.lines import Firmware, ReadBack, Writes, known, lines
from npuc.targets.nvdla.loadable.structures import assembled

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


def rubik(firmware: Firmware, op: Rubik, surfaces: Surfaces) -> Writes:
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


def rubik_of(read: ReadBack) -> tuple[Rubik, Surfaces]:
    """The operation described by registers, its cubes without addresses. Raises ArtefactError (E506)."""
    read.read(CONTRACTION)
    op, surfaces = assembled(Rubik, read.of("op")), assembled(Surfaces, read.of("surfaces"))
    source = surfaces.source
    extents = {"width": source.width * op.stride_x, "height": source.height * op.stride_y}
    return op, replace(surfaces, result=replace(surfaces.result, **extents))
