"""BDMA as registers."""

from __future__ import annotations

from npuc.targets.nvdla.emission.writer import Writer
from npuc.targets.nvdla.operations.operation import Transfer
from npuc.targets.nvdla.operations.timing import cube_bytes

UNIT, LONGEST = 32, 1 << 13
"""The unit of BDMA's sizes in bytes, and the most units in a line: SIZE has 13 bits and is one less."""


def write_transfer(writer: Writer, operation: Transfer) -> None:
    """Puts one copy into BDMA's queue; it begins with the launch."""
    units = cube_bytes(operation.source, writer.machine) // UNIT
    line = next(each for each in range(min(units, LONGEST), 0, -1) if units % each == 0)
    for side, place in (("SRC", operation.source), ("DST", operation.destination)):
        writer.address("BDMA", f"CFG_{side}_ADDR", place.address)
        writer.raw(f"BDMA.CFG_{side}_LINE", line * UNIT)
        writer.raw(f"BDMA.CFG_{side}_SURF", units * UNIT)
    memories = {"SRC": operation.source, "DST": operation.destination}
    types = {f"{side}_RAM_TYPE": writer.ram(each.address) for side, each in memories.items()}
    writer.set("BDMA.CFG_CMD", **types)
    writer.set("BDMA.CFG_LINE", SIZE=line - 1)
    writer.set("BDMA.CFG_LINE_REPEAT", NUMBER=units // line - 1)
    writer.set("BDMA.CFG_SURF_REPEAT", NUMBER=0)
    writer.set("BDMA.CFG_OP", EN="ENABLE")
