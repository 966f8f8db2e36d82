"""SDP and its RDMA as registers."""

from __future__ import annotations

from functools import lru_cache

from npuc.targets.nvdla.arithmetic.integer import ALU
from npuc.targets.nvdla.emission.writer import Writer
from npuc.targets.nvdla.machine.commands import Command
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations.operation import Fetch, Ramp, Sdp, Surface, Tables, Unit


def write_sdp(
    writer: Writer, sdp: Sdp, source: Surface | None, result: Surface, *, winograd: bool, flies: bool, batches: int
) -> None:
    """SDP on a map in memory, or behind the convolution pipeline if there is no source.

    flies: the result goes to PDP. batches: cubes stored one below another, in the result and in operand maps.
    """
    flying = "ON" if source is None else "OFF"
    mode = {"FLYING_MODE": flying, "WINOGRAD": "ON" if winograd else "OFF", "BATCH_NUMBER": batches - 1}
    result = result.share(batches)
    extents = {"WIDTH": result.width - 1, "HEIGHT": result.height - 1, "CHANNEL": result.channels - 1}
    for block in ("SDP_RDMA", "SDP"):
        for extent, value in extents.items():
            writer.set(f"{block}.D_DATA_CUBE_{extent}", **{extent: value})
    if source is not None:
        writer.cube("SDP_RDMA", "D_SRC", source)
        writer.set("SDP_RDMA.D_SRC_DMA_CFG", SRC_RAM_TYPE=writer.ram(source.address))
    for letter, unit, fetch in (("B", "BS", sdp.x1.fetch), ("N", "BN", sdp.x2.fetch), ("E", "EW", None)):
        _fetch(writer, letter, unit, fetch)
        if fetch is not None and batches > 1:
            writer.raw(f"SDP_RDMA.D_{unit}_BATCH_STRIDE", result.height * fetch.line_stride)
    precision = (source or result).precision.upper()
    precisions = {
        "IN_PRECISION": precision,
        "PROC_PRECISION": precision,
        "OUT_PRECISION": result.precision.upper(),
    }
    writer.set("SDP_RDMA.D_FEATURE_MODE_CFG", **mode, **precisions)
    writer.cube("SDP", "D_DST", result)
    if batches > 1:
        writer.raw("SDP.D_DST_BATCH_STRIDE", result.height * result.line_stride)
    for unit, stage in (("BS", sdp.x1), ("BN", sdp.x2)):
        _unit(writer, unit, stage)
    _table(writer, sdp.table)
    writer.set("SDP.D_FEATURE_MODE_CFG", **mode, OUTPUT_DST="PDP" if flies else "MEM")
    writer.set("SDP.D_DST_DMA_CFG", DST_RAM_TYPE=writer.ram(result.address))
    writer.set("SDP.D_DATA_FORMAT", PROC_PRECISION=precision, OUT_PRECISION=result.precision.upper())
    offset, scale, shift = sdp.converter
    writer.raw("SDP.D_CVT_OFFSET", offset)
    writer.set("SDP.D_CVT_SCALE", CVT_SCALE=scale & 0xFFFF)
    writer.set("SDP.D_CVT_SHIFT", CVT_SHIFT=shift)


def _fetch(writer: Writer, letter: str, unit: str, fetch: Fetch | None) -> None:
    register = f"SDP_RDMA.D_{letter}RDMA_CFG"
    if fetch is None:
        writer.set(register, **{f"{letter}RDMA_DISABLE": "YES"})
        return
    mode = "PER_ELEMENT" if fetch.per_element else "PER_KERNEL"
    size = "ONE_BYTE" if fetch.component_bytes == 1 else "TWO_BYTE"
    ram = writer.ram(fetch.address)
    fields = {"DISABLE": "NO", "DATA_USE": fetch.use, "DATA_SIZE": size, "DATA_MODE": mode, "RAM_TYPE": ram}
    writer.set(register, **{f"{letter}RDMA_{key}": value for key, value in fields.items()})
    writer.cube("SDP_RDMA", f"D_{unit}", fetch)


def _unit(writer: Writer, name: str, unit: Unit) -> None:
    """Unit BS or BN."""
    stage = unit.stage
    used = {"BYPASS": not stage.idle, "ALU_BYPASS": stage.alu, "MUL_BYPASS": stage.multiply}
    used["RELU_BYPASS"] = stage.relu
    fields: dict[str, int | str] = {f"{name}_{key}": "NO" if on else "YES" for key, on in used.items()}
    fields[f"{name}_ALU_ALGO"] = ALU[stage.alu].upper() if stage.alu else "SUM"
    fields[f"{name}_MUL_PRELU"] = "YES" if stage.prelu else "NO"
    writer.set(f"SDP.D_DP_{name}_CFG", **fields)
    for part, value in (("ALU", unit.alu), ("MUL", unit.multiplier)):
        shift = stage.alu_shift if part == "ALU" else stage.shift
        source = "REG" if value is not None or not (stage.alu if part == "ALU" else stage.multiply) else "MEM"
        writer.set(
            f"SDP.D_DP_{name}_{part}_CFG", **{f"{name}_{part}_SRC": source, f"{name}_{part}_SHIFT_VALUE": shift}
        )
        writer.set(f"SDP.D_DP_{name}_{part}_SRC_VALUE", **{f"{name}_{part}_OPERAND": (value or 0) & 0xFFFF})


def _table(writer: Writer, tables: Tables | None) -> None:
    """Unit EW: bypassed, or its linear tables; where both tables hit, LE is used if present."""
    bypass = dict.fromkeys(("EW_ALU_BYPASS", "EW_MUL_BYPASS"), "YES")
    if tables is None:
        writer.set("SDP.D_DP_EW_CFG", EW_BYPASS="YES", EW_LUT_BYPASS="YES", **bypass)
        return
    writer.set("SDP.D_DP_EW_CFG", EW_BYPASS="NO", EW_LUT_BYPASS="NO", **bypass)
    writer.set("SDP.D_DP_EW_TRUNCATE_VALUE", EW_TRUNCATE=0)
    writer.commands += _loaded(writer.machine, tables)


@lru_cache(maxsize=64)
def _loaded(machine: Machine, tables: Tables) -> tuple[Command, ...]:
    """The writes that load tables; layers have many in common."""
    writer = Writer(machine)
    lo = tables.lo
    le = tables.le or Ramp((), lo.start, lo.start, 0)
    for name, ramp in (("LE", le), ("LO", lo)):
        if ramp.entries:
            writer.set("SDP.S_LUT_ACCESS_CFG", LUT_ADDR=0, LUT_TABLE_ID=name, LUT_ACCESS_TYPE="WRITE")
        for value in ramp.entries:
            writer.set("SDP.S_LUT_ACCESS_DATA", LUT_DATA=value)
    outside = dict.fromkeys(("LUT_UFLOW_PRIORITY", "LUT_OFLOW_PRIORITY"), "LO")
    both = "LO" if tables.le is None else "LE"
    writer.set("SDP.S_LUT_CFG", LUT_LE_FUNCTION="LINEAR", LUT_HYBRID_PRIORITY=both, **outside)
    selects = {f"LUT_{name}_INDEX_SELECT": ramp.select & 0xFF for name, ramp in (("LE", le), ("LO", lo))}
    writer.set("SDP.S_LUT_INFO", LUT_LE_INDEX_OFFSET=0, **selects)
    for name, ramp in (("LE", le), ("LO", lo)):
        writer.raw(f"SDP.S_LUT_{name}_START", ramp.start)
        writer.raw(f"SDP.S_LUT_{name}_END", ramp.end)
        writer.raw(f"SDP.S_LUT_{name}_SLOPE_SCALE", (ramp.slope & 0xFFFF) << 16)
        writer.raw(f"SDP.S_LUT_{name}_SLOPE_SHIFT", (ramp.shift & 0x1F) << 5)
    return tuple(writer.commands)
