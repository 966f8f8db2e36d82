"""Register programs: what a driver does, in order. Artefacts and test programs contain such lists.

Writes set registers; between them the driver waits for an interrupt, or until a register has a value.
"""

from __future__ import annotations

from npuc.frozen import frozen

SEQUENTIAL, SEQUENCERS, VERILATOR = PLAYERS = ("sequential", "sequencers", "verilator")
"""Who executes a register program as a test program: one player in order, a sequencer for each block, or the
Verilator test bench of NVDLA's tree, which looks for interrupts after all registers have been written.
"""


@frozen
class Write:
    """The driver writes a register."""

    address: int
    """In bytes."""
    value: int


@frozen
class Poll:
    """The driver reads a register until its bits under the mask have a value."""

    address: int
    mask: int
    value: int


@frozen
class Wait:
    """The driver waits for an interrupt: a source of GLB.S_INTR_STATUS and its group, or any interrupt."""

    source: str | None = None
    """SDP, PDP, CDP, BDMA, RUBIK, CDMA_DAT, CDMA_WT or CACC."""
    group: int = 0

    def __str__(self) -> str:
        return f"{self.source}_{self.group}" if self.source else "any interrupt"


Command = Write | Poll | Wait
