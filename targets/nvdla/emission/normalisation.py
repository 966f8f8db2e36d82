"""CDP and its RDMA as registers."""

from __future__ import annotations

from npuc.targets.nvdla.emission.writer import Writer
from npuc.targets.nvdla.operations.operation import Normalisation, Tables


def write_normalisation(writer: Writer, operation: Normalisation) -> None:
    """Local response normalisation of a map in memory: tables, CDP_RDMA, CDP."""
    source, result = operation.source, operation.destination
    _tables(writer, operation.tables)
    precision = source.precision.upper()
    for extent, value in (("WIDTH", source.width), ("HEIGHT", source.height), ("CHANNEL", source.channels)):
        writer.set(f"CDP_RDMA.D_DATA_CUBE_{extent}", **{extent: value - 1})
    writer.cube("CDP_RDMA", "D_SRC", source)
    writer.set("CDP_RDMA.D_SRC_DMA_CFG", SRC_RAM_TYPE=writer.ram(source.address))
    writer.set("CDP_RDMA.D_DATA_FORMAT", INPUT_DATA=precision)
    writer.cube("CDP", "D_DST", result)
    writer.set("CDP.D_DST_DMA_CFG", DST_RAM_TYPE=writer.ram(result.address))
    writer.set("CDP.D_DATA_FORMAT", INPUT_DATA_TYPE=precision)
    writer.set("CDP.D_LRN_CFG", NORMALZ_LEN=f"LEN{operation.size}")
    writer.set("CDP.D_DATIN_OFFSET", DATIN_OFFSET=operation.zero & 0xFFFF)
    writer.set("CDP.D_DATIN_SCALE", DATIN_SCALE=1)
    writer.set("CDP.D_DATIN_SHIFTER", DATIN_SHIFTER=0)
    offset, scale, shift = operation.converter
    writer.raw("CDP.D_DATOUT_OFFSET", offset)
    writer.set("CDP.D_DATOUT_SCALE", DATOUT_SCALE=scale & 0xFFFF)
    writer.set("CDP.D_DATOUT_SHIFTER", DATOUT_SHIFTER=shift)
    writer.set("CDP.D_FUNC_BYPASS", SQSUM_BYPASS="DISABLE", MUL_BYPASS="DISABLE")


def _tables(writer: Writer, tables: Tables) -> None:
    """Linear tables, flat outside; where both tables hit, LE is used."""
    assert tables.le is not None
    ramps = (("LE", tables.le), ("LO", tables.lo))
    for name, ramp in ramps:
        writer.set("CDP.S_LUT_ACCESS_CFG", LUT_ADDR=0, LUT_TABLE_ID=name, LUT_ACCESS_TYPE="WRITE")
        for entry in ramp.entries:
            writer.set("CDP.S_LUT_ACCESS_DATA", LUT_DATA=entry)
    priorities = {"LUT_UFLOW_PRIORITY": "LE", "LUT_OFLOW_PRIORITY": "LO", "LUT_HYBRID_PRIORITY": "LE"}
    writer.set("CDP.S_LUT_CFG", LUT_LE_FUNCTION="LINEAR", **priorities)
    selects = {f"LUT_{name}_INDEX_SELECT": ramp.select & 0xFF for name, ramp in ramps}
    writer.set("CDP.S_LUT_INFO", LUT_LE_INDEX_OFFSET=0, **selects)
    for name, ramp in ramps:
        for side, value in (("START", ramp.start), ("END", ramp.end)):
            writer.raw(f"CDP.S_LUT_{name}_{side}_LOW", value)
            writer.set(f"CDP.S_LUT_{name}_{side}_HIGH", **{f"LUT_{name}_{side}_HIGH": value >> 32 & 0x3F})
        writer.raw(f"CDP.S_LUT_{name}_SLOPE_SCALE", 0)
        writer.raw(f"CDP.S_LUT_{name}_SLOPE_SHIFT", 0)
