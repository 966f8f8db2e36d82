"""From operations to register writes: blocks in the order in which NVDLA's own test programs set them up.

Each block has two register groups that take turns; a group is written while the other runs, so that the input of
an operation is fetched while the one before computes. An operation waits for those before it that have its
groups, or touch what it touches. It is enabled from its last block to its first, so that no data comes before its
taker is ready.
Source: a convolution, a pooling and an addition as they ran on the nv_small and nv_full RTL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from npuc.targets.nvdla.commands import Command, Poll, Wait
from npuc.targets.nvdla.emission.convolution import write_convolution
from npuc.targets.nvdla.emission.flights import Flight
from npuc.targets.nvdla.emission.normalisation import write_normalisation
from npuc.targets.nvdla.emission.pooling import write_pooling
from npuc.targets.nvdla.emission.sdp import write_sdp
from npuc.targets.nvdla.emission.writer import Writer
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.operations import Convolution, Elementwise, Normalisation, Operation, Pooling

ENABLES = {
    "convolution": ("SDP_RDMA", "SDP", "CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA"),
    "elementwise": ("SDP_RDMA", "SDP"),
    "pooling": ("PDP_RDMA", "PDP"),
    "normalisation": ("CDP_RDMA", "CDP"),
}
MASKED = ("CDMA_DAT", "CDMA_WT", "CACC")
"""Sources of interrupts that only say how far a convolution has come."""


def kind(operation: Operation) -> str:
    """The operation's name in ENABLES and in reports."""
    return type(operation).__name__.lower()


class Emitter:
    """Writes operations one after the other, each block in the group whose turn it is."""

    def __init__(self, machine: Machine) -> None:
        self.writer = Writer(machine)
        self.turns: dict[str, int] = {}
        self.flights: list[Flight] = []
        self.count = 0
        """Operations so far."""

    def start(self) -> None:
        """What a driver does once: masks interrupts, waits until the CBUF is flushed."""
        masks = {f"{source}_DONE_MASK{group}": 1 for source in MASKED for group in (0, 1)}
        self.writer.set("GLB.S_INTR_MASK", **masks)
        flushed = self.writer.map["CDMA.S_CBUF_FLUSH_STATUS"]
        self.writer.commands.append(Poll(flushed.address, 1, 1))
        if self.writer.machine.registers == "nv_full":
            self.writer.set("CDMA.S_ARBITER", ARB_WEIGHT=15, ARB_WMB=3)

    def emit(self, operation: Operation) -> int:
        """Waits for what must have ended, then programs and enables an operation.

        Result: how many of the operations before it have ended by then.
        """
        blocks = ENABLES[kind(operation)]
        turns = {block: self.turns.get(block, 0) for block in blocks}
        self._wait_for(operation, turns)
        ended = self.count - len(self.flights)
        for block, turn in turns.items():
            self.writer.set(f"{block}.S_POINTER", PRODUCER=turn)
        match operation:
            case Convolution():
                winograd = operation.kernels.form.kind == "winograd"
                write_sdp(self.writer, operation.sdp, None, operation.destination, winograd=winograd)
                write_convolution(self.writer, operation)
            case Elementwise():
                write_sdp(self.writer, operation.sdp, operation.source, operation.destination)
            case Pooling():
                write_pooling(self.writer, operation)
            case Normalisation():
                write_normalisation(self.writer, operation)
        for block in blocks:
            self.writer.set(f"{block}.D_OP_ENABLE", OP_EN="ENABLE")
        engine = {"pooling": "PDP", "normalisation": "CDP"}.get(kind(operation), "SDP")
        self.flights.append(Flight(operation, turns, Wait(engine, turns[engine])))
        self.turns |= {block: 1 - turn for block, turn in turns.items()}
        self.count += 1
        return ended

    def drain(self) -> None:
        """Waits for all that still runs."""
        self.writer.commands += [each.wait for each in self.flights]
        self.flights.clear()

    def _wait_for(self, operation: Operation, turns: Mapping[str, int]) -> None:
        """Waits, in order, up to the last operation that must have ended."""
        atom = self.writer.machine.atom_bytes
        last = max((at for at, each in enumerate(self.flights) if each.blocks(operation, turns, atom)), default=-1)
        self.writer.commands += [each.wait for each in self.flights[: last + 1]]
        del self.flights[: last + 1]


def program(machine: Machine, operations: Iterable[Operation]) -> list[Command]:
    """The commands of operations, in order."""
    emitter = Emitter(machine)
    emitter.start()
    for operation in operations:
        emitter.emit(operation)
    emitter.drain()
    return emitter.writer.commands
