"""Modelled clocks of NVDLA programs compared with those of the RTL.

    python benchmarks/rtl_clocks.py [FOLDER ...]

Each folder has a test program and a file `clocks` (`default N`, `fast N`); without arguments, those beside the
checkout are used. The operations are read from the registers that the program writes, and their earliest starts
from the waits between them. `default` is memory that accepts a request every other clock, `fast` memory that
accepts one every clock. The last line counts the figures within a tenth of the RTL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import click

from npuc.targets.nvdla import trace
from npuc.targets.nvdla.arithmetic.integer import IDLE
from npuc.targets.nvdla.formats.weights import WeightForm
from npuc.targets.nvdla.machine.parameters import FULL, SMALL, Machine
from npuc.targets.nvdla.machine.registers import Command, RegisterMap, Wait, Write, register_map
from npuc.targets.nvdla.operations.operation import (
    Banks,
    Contraction,
    Convolution,
    Elementwise,
    Fetch,
    Kernels,
    KernelWindow,
    Mask,
    Normalisation,
    Operation,
    OperationTables,
    Pooling,
    Ramp,
    Sdp,
    Surface,
    Unit,
)
from npuc.targets.nvdla.operations.pingpong import ends
from npuc.targets.nvdla.operations.scoreboard import Admission

PROGRAMS = Path(__file__).resolve().parents[2] / "shared/nvdla/rtl"
MACHINES = {"nv_small": SMALL, "nv_full": FULL}
MEMORIES = {"default": 0.5, "fast": 1.0}
"""Requests of one beat (8 bytes; nv_full: 64) that memory accepts per clock."""
PRECISIONS = ("int8", "int16", "fp16")
TABLE = OperationTables(Ramp((), 0, 0, 0))
WINDOW = KernelWindow(1, 1, 1, 1, 0, 0, 0, 0)


@dataclass
class Registers:
    """The registers that a program has written, in both groups of every block, and the operations it enabled."""

    map: RegisterMap
    values: dict[tuple[str, int, str], int] = field(default_factory=dict[tuple[str, int, str], int])
    producer: dict[str, int] = field(default_factory=dict[str, int])
    found: list[tuple[Operation, Admission]] = field(default_factory=list[tuple[Operation, Admission]])
    waits: list[int] = field(default_factory=list[int])
    """The number of interrupts of each operation."""
    waited: int = 0
    program: int | None = None
    fetch: int | None = None
    enabled: set[str] = field(default_factory=set[str])
    """Blocks of the operation that is being enabled."""
    flying: bool = False
    tables: bool = False

    def take(self, command: Command) -> None:
        """Processes a command."""
        if isinstance(command, Wait):
            self.waited += 1
        elif isinstance(command, Write):
            register = self.map.register_at(command.address)
            self.program = self._end() if self.program is None else self.program
            if register.name == "S_POINTER":
                self.producer[register.block] = register.decode(command.value).PRODUCER
            elif register.name == "D_OP_ENABLE":
                self._enable(register.block)
            else:
                self.tables |= register.name == "S_LUT_ACCESS_DATA"
                self.values[register.block, self.producer.get(register.block, 0), register.name] = command.value

    def get(self, block: str, name: str) -> Any:
        """The decoded fields of a register in the group that is programmed."""
        register = self.map[f"{block}.{name}"]
        return register.decode(self.raw(block, name))

    def raw(self, block: str, name: str) -> int:
        """The value of a register in the group that is programmed."""
        return self.values.get((block, self.producer.get(block, 0), name), 0)

    def _end(self) -> int:
        """The number of operations that have ended according to the interrupts waited for."""
        left, count = self.waited, 0
        for each in self.waits:
            if left < each:
                break
            left, count = left - each, count + 1
        return count

    def _enable(self, block: str) -> None:
        if block == "CDMA":
            self.fetch = self._end()
        elif block == "PDP" and self.get("PDP", "D_OPERATION_MODE_CFG").FLYING_MODE == 0:
            self.flying = True
        engines = {"CDMA": self._convolution, "SDP": self._elementwise, "PDP": self._pooling}
        engines |= {"CDP": self._normalisation, "RBK": self._contraction}
        fused = self.get("SDP", "D_FEATURE_MODE_CFG").FLYING_MODE
        self.enabled.add(block)
        alone = block in ("CDP", "RBK") or (block == "PDP" and not self.flying) or (block == "SDP" and not fused)
        if not alone and not self.enabled >= {"SDP", "CDMA"}:
            return
        now = self._end()
        fetch = now if alone or self.fetch is None else self.fetch
        self.found.append((engines[block if alone else "CDMA"](), Admission(self.program or 0, fetch, now)))
        self.waits.append(2 if self.flying else 1)
        self.program, self.fetch, self.flying, self.tables = None, None, False, False
        self.enabled.clear()

    def _precision(self, block: str, name: str, key: str = "PROC_PRECISION") -> str:
        return PRECISIONS[getattr(self.get(block, name), key)]

    def _cube(self, block: str, prefix: str, fields: str, precision: str) -> Surface:
        """A cube from three registers. fields: the prefixes of their field names."""
        width, height, channels = (
            getattr(self.get(block, f"{prefix}_{extent}"), f"{fields}{extent}") + 1
            for extent in ("WIDTH", "HEIGHT", "CHANNEL")
        )
        return Surface(0, width, height, channels, 0, 0, precision)

    def _sdp(self) -> Sdp:
        def unit(letter: str) -> Unit:
            config = self.get("SDP_RDMA", f"D_{letter}RDMA_CFG")
            values = vars(config)
            if values[f"{letter}RDMA_DISABLE"]:
                return Unit(IDLE)
            each = bool(values[f"{letter}RDMA_DATA_MODE"])
            return Unit(IDLE, fetch=Fetch("ALU", 1, 0, per_element=each))

        return Sdp(unit("B"), unit("N"), table=TABLE if self.tables else None)

    def _result(self) -> Surface:
        precision = self._precision("SDP", "D_DATA_FORMAT", "OUT_PRECISION")
        return self._cube("SDP", "D_DATA_CUBE", "", precision)

    def _behind(self) -> Pooling | None:
        return self._pooling() if self.flying else None

    def _elementwise(self) -> Elementwise:
        return Elementwise(self._result(), self._sdp(), self._result(), self._behind())

    def _pooling(self) -> Pooling:
        precision = self._precision("PDP", "D_DATA_FORMAT", "INPUT_DATA")
        source, result = (
            self._cube("PDP", f"D_DATA_CUBE_{way}", f"CUBE_{way}_", precision) for way in ("IN", "OUT")
        )
        return Pooling(source, "MAX", (1, 1), WINDOW, (1, 1), result)

    def _normalisation(self) -> Normalisation:
        precision = self._precision("CDP", "D_DATA_FORMAT", "INPUT_DATA_TYPE")
        size = self._cube("CDP_RDMA", "D_DATA_CUBE", "", precision)
        return Normalisation(size, 5, 0, TABLE, (0, 1, 0), size)

    def _contraction(self) -> Contraction:
        first = self.get("RBK", "D_DATAIN_SIZE_0")
        channels = self.get("RBK", "D_DATAIN_SIZE_1").DATAIN_CHANNEL + 1
        size = Surface(0, first.DATAIN_WIDTH + 1, first.DATAIN_HEIGHT + 1, channels, 0, 0)
        return Contraction(size, 2, size)

    def _convolution(self) -> Convolution:
        misc, form = self.get("CDMA", "D_MISC_CFG"), self.get("CDMA", "D_DATAIN_FORMAT")
        precision = PRECISIONS[misc.IN_PRECISION]
        pixels = ""
        extent, channels = (
            self.get("CDMA", "D_DATAIN_SIZE_0"),
            self.get("CDMA", "D_DATAIN_SIZE_1").DATAIN_CHANNEL + 1,
        )
        if form.DATAIN_FORMAT:
            names = self.map["CDMA.D_DATAIN_FORMAT"]
            pixels = names.text(self.raw("CDMA", "D_DATAIN_FORMAT"))
            pixels = next(word.split("=")[-1].strip(",") for word in pixels.split() if "PIXEL_FORMAT" in word)
        source = Surface(0, extent.DATAIN_WIDTH + 1, extent.DATAIN_HEIGHT + 1, channels, 0, 0, precision, pixels)
        size, more = self.get("CSC", "D_WEIGHT_SIZE_EXT_0"), self.get("CSC", "D_WEIGHT_SIZE_EXT_1")
        kind = "winograd" if misc.CONV_MODE else "image" if pixels else "direct"
        lines = 1 << self.get("CSC", "D_POST_Y_EXTENSION").Y_EXTENSION
        weights = self.raw("CDMA", "D_WEIGHT_BYTES")
        mask = Mask(0, self.raw("CDMA", "D_WMB_BYTES"), 0, 128) if self.raw("CDMA", "D_WEIGHT_FORMAT") else None
        kernels = Kernels(
            0, weights, more.WEIGHT_KERNEL + 1, size.WEIGHT_HEIGHT_EXT + 1, size.WEIGHT_WIDTH_EXT + 1,
            more.WEIGHT_CHANNEL_EXT + 1, self.get("CDMA", "D_WEIGHT_SIZE_0").BYTE_PER_KERNEL + 1,
            WeightForm(kind, lines, mask is not None), mask,
        )  # fmt: skip
        bank = self.get("CDMA", "D_BANK")
        entries = self.get("CDMA", "D_ENTRY_PER_SLICE").ENTRIES + 1
        banks = Banks(entries, bank.DATA_BANK + 1, bank.WEIGHT_BANK + 1)
        batches = self.get("CSC", "D_BATCH_NUMBER").BATCHES + 1
        return Convolution(
            source, kernels, WINDOW, banks, self._sdp(), self._result(), self._behind(), batches=batches
        )


def clocks(folder: Path, memory: str) -> float:
    """Modelled clocks of the program in a folder."""
    program = trace.read(folder, folder.parent.name)
    read = Registers(register_map(program.configuration))
    for command in program.commands:
        read.take(command)
    return ends(read.found, _machine(folder.parent.name, memory))[-1]


def _machine(name: str, memory: str) -> Machine:
    machine = MACHINES[name]
    return replace(machine, bytes_per_clock=MEMORIES[memory] * machine.dma_bytes)


def measured_clocks(folder: Path) -> Iterator[tuple[str, int]]:
    """Clocks of the RTL, by memory."""
    words = (folder / "clocks").read_text().split()
    return ((name, int(count)) for name, count in zip(words[::2], words[1::2], strict=True))


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folders: Sequence[Path]) -> None:
    """Prints modelled clocks beside those of the RTL."""
    found = folders or sorted(each.parent for each in PROGRAMS.glob("*/*/clocks"))
    missing = [str(each) for each in found if not (each / "clocks").is_file()]
    if missing or not found:
        raise click.UsageError(f"no file 'clocks' in {', '.join(missing) or PROGRAMS}")
    ratios: list[float] = []
    for folder in found:
        row = f"{folder.parent.name}/{folder.name}".ljust(36)
        for memory, measured in measured_clocks(folder):
            modelled = clocks(folder, memory)
            ratios.append(modelled / measured)
            row += f"  {memory} {measured} RTL {modelled:.0f} modelled {modelled / measured:.2f}"
        print(row)
    close = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    print(f"{close} of {len(ratios)} within a tenth; {min(ratios):.2f} to {max(ratios):.2f} of the RTL's clocks")


if __name__ == "__main__":
    main()
