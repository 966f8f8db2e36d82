"""The look-up tables of SDP and CDP and their registers."""

from __future__ import annotations

from npuc.targets.nvdla.firmware.descriptors import Lut
from npuc.targets.nvdla.firmware.lines import WORD, Firmware, Writes

FP16 = 2
"""The number of the precision fp16 in descriptors."""


def look_up_tables(firmware: Firmware, block: str, lut: Lut, *, floating: bool) -> Writes:
    """The writes of both tables and their registers."""
    for table, entries in (("LE", lut.le), ("LO", lut.lo)):
        yield firmware.fields(f"{block}.S_LUT_ACCESS_CFG", LUT_TABLE_ID=table, LUT_ACCESS_TYPE="WRITE")
        for entry in entries:
            yield f"{block}.S_LUT_ACCESS_DATA", entry & WORD
    yield firmware.fields(
        f"{block}.S_LUT_CFG",
        LUT_LE_FUNCTION=lut.method, LUT_HYBRID_PRIORITY=lut.hybrid_priority,
        LUT_UFLOW_PRIORITY=lut.underflow_priority, LUT_OFLOW_PRIORITY=lut.overflow_priority,
    )  # fmt: skip
    le = "LUT_LE_INDEX_SELECT" if lut.method else "LUT_LE_INDEX_OFFSET"
    steps = {le: lut.le_offset & 0xFF, "LUT_LO_INDEX_SELECT": lut.lo_offset & 0xFF}
    yield firmware.fields(f"{block}.S_LUT_INFO", **steps)
    limits = {"LE_START": lut.le_start, "LE_END": lut.le_end, "LO_START": lut.lo_start, "LO_END": lut.lo_end}
    for name, value in limits.items():
        if block == "SDP":
            yield f"SDP.S_LUT_{name}", value & WORD
        else:
            yield f"CDP.S_LUT_{name}_LOW", value & WORD
            yield f"CDP.S_LUT_{name}_HIGH", value >> 32
    for name, below, beyond in (("LE", lut.le_below, lut.le_beyond), ("LO", lut.lo_below, lut.lo_beyond)):
        yield f"{block}.S_LUT_{name}_SLOPE_SCALE", below[0] & 0xFFFF | (beyond[0] & 0xFFFF) << 16
        if not floating:
            yield f"{block}.S_LUT_{name}_SLOPE_SHIFT", below[1] & 0x1F | (beyond[1] & 0x1F) << 5
