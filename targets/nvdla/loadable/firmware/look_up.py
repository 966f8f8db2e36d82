"""The look-up tables of SDP and CDP and their registers."""

from __future__ import annotations

from npuc.targets.nvdla.loadable.descriptors import Lut
from npuc.targets.nvdla.loadable.firmware.lines import WORD, Firmware, Writes
from npuc.targets.nvdla.model.register_file import Group, LookUpTables

FP16 = 2
"""The number of the precision fp16 in descriptors."""
LINEAR = 1


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


def lut_of(group: Group, stored: LookUpTables) -> Lut:
    """The tables as described by an operation's registers."""

    def slope(table: str, side: str) -> tuple[int, int]:
        name = f"LUT_{table}_SLOPE_{side}FLOW"
        return group.signed(f"{name}_SCALE"), group.signed(f"{name}_SHIFT")

    def limit(name: str) -> int:
        """Unsigned, as in the descriptor; CDP's 38 bits are not sign-extended."""
        if group.block == "SDP":
            return group[f"LUT_{name}"]
        return group[f"LUT_{name}_HIGH"] << 32 | group[f"LUT_{name}_LOW"]

    method = group["LUT_LE_FUNCTION"]
    step = "SELECT" if method == LINEAR else "OFFSET"
    return Lut(
        le=tuple(int(each) for each in stored.le),
        lo=tuple(int(each) for each in stored.lo),
        le_offset=group.signed(f"LUT_LE_INDEX_{step}"),
        lo_offset=group.signed("LUT_LO_INDEX_SELECT"),
        le_start=limit("LE_START"),
        le_end=limit("LE_END"),
        lo_start=limit("LO_START"),
        lo_end=limit("LO_END"),
        le_below=slope("LE", "U"),
        le_beyond=slope("LE", "O"),
        lo_below=slope("LO", "U"),
        lo_beyond=slope("LO", "O"),
        hybrid_priority=group["LUT_HYBRID_PRIORITY"],
        underflow_priority=group["LUT_UFLOW_PRIORITY"],
        overflow_priority=group["LUT_OFLOW_PRIORITY"],
        method=method,
    )
