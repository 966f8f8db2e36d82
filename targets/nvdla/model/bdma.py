"""BDMA: copies lines and surfaces of bytes within memory."""

from __future__ import annotations

from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model.memory import Pattern, Port
from npuc.targets.nvdla.model.register_file import Group
from npuc.targets.nvdla.model.traps import trap

BLOCK = "BDMA"
UNIT = 32
"""The unit of sizes and strides, in bytes."""
SLOTS = 20


class Queue:
    """Copies waiting for a launch."""

    def __init__(self) -> None:
        self._waiting: list[Group] = []

    def add(self, group: Group) -> None:
        """Queues a copy described by its registers. Raises ArtefactError (E503) if all slots are taken."""
        if len(self._waiting) == SLOTS:
            raise trap(BLOCK, f"more than {SLOTS} copies wait", limit=f"{SLOTS}", remedy="launch them first")
        self._waiting.append(group)

    def launch(self, machine: Machine, port: Port) -> None:
        """Runs the queued copies in order."""
        if not machine.bdma:
            raise trap(BLOCK, f"{machine.name} has no BDMA")
        for each in self._waiting:
            copy(each, port)
        self._waiting = []


def copy(group: Group, port: Port) -> None:
    """Runs one copy."""
    source, target = (_place(group, side) for side in ("SRC", "DST"))
    port.cube(target, UNIT, write=True)[...] = port.cube(source, UNIT).copy()


def _place(group: Group, side: str) -> Pattern:
    low, high = f"CFG_{side}_ADDR_LOW.V32", f"CFG_{side}_ADDR_HIGH.V8"
    start = group.address(low, high, f"CFG_CMD.{side}_RAM_TYPE")
    line = (group["CFG_LINE.SIZE"] + 1) * UNIT
    lines, surfaces = group["CFG_LINE_REPEAT.NUMBER"] + 1, group["CFG_SURF_REPEAT.NUMBER"] + 1
    strides = group.bytes(f"CFG_{side}_LINE.STRIDE"), group.bytes(f"CFG_{side}_SURF.STRIDE")
    return Pattern(start, line, lines, strides[0], surfaces, strides[1])
