"""Runs kernels on npuc's own model of the OKKernel interface, in a child process.

A kernel is a table of calls that runs on an image of system memory. It changes the image and logs the calls that
it made, whose cycles come from `timing`.

The calls that a program made, one per line as the model logs them, and their cycles.

A line has the call's name and the values that its cycles depend on, the parameters of a `timing` function:

    okk_bdc_conv2d groups=13 IC=4 kernel_h=3 kernel_w=3 stride_w=1 using_bias=1
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.system import interrupts
from npuc.targets.bm1684.machine import fix8b_timing as fix8b
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.machine.timing import EngineCycles
from npuc.targets.bm1684.program.table import TABLE_FILE
from npuc.targets.bm1684.simulate import compilation

START, END = "okk_parallel_start", "okk_parallel_end"
BDC, GDMA, FIRMWARE = "okk_bdc_", "okk_gdma_", "nodechip_"


@frozen
class TimedCall:
    """One call: its name, the values that its cycles depend on, and its parallel region (None outside)."""

    name: str
    values: Mapping[str, int]
    region: int | None = None

    @property
    def engine(self) -> str:
        """bdc or gdma."""
        return "gdma" if self.name.startswith(GDMA) else "bdc"


def read(lines: Iterable[str]) -> Iterator[TimedCall]:
    """The calls in execution order."""
    regions, inside = 0, False
    for line in lines:
        name, *values = line.split()
        if name in (START, END):
            inside = name == START
            regions += inside
            continue
        pairs = (value.split("=") for value in values)
        yield TimedCall(name, {key: int(number) for key, number in pairs}, regions if inside else None)


def cycles(call: TimedCall, machine: Machine) -> int:
    """Cycles of a call. Raises KeyError for a call without timing."""
    if call.engine == "gdma":
        return _gdma(call.name.removeprefix(GDMA), call.values, machine)
    if call.name.startswith(FIRMWARE):
        return LAYERS[call.name.removeprefix(FIRMWARE)](**call.values)
    name = call.name.removeprefix(BDC)
    if name in timing.ELEMENTWISE:
        return timing.elementwise(name, call.values["groups"], bool(call.values["strided"]))
    if name in timing.SERIES:
        return timing.series(name, **call.values)
    return WINDOWS[name](**call.values, machine=machine)


def total(calls: Iterable[TimedCall], machine: Machine) -> EngineCycles:
    """The cost of a program: calls outside parallel regions run in sequence."""
    busy: dict[str, int] = {"bdc": 0, "gdma": 0}
    regions: dict[int, dict[str, int]] = {}
    serial = 0
    for call in calls:
        price = cycles(call, machine)
        busy[call.engine] += price
        if call.region is None:
            serial += price
        else:
            sums = regions.setdefault(call.region, {"bdc": 0, "gdma": 0})
            sums[call.engine] += price
    overlapped = sum(timing.region(**sums) for sums in regions.values())
    return EngineCycles(serial + overlapped, busy["bdc"], busy["gdma"])


WINDOWS: Mapping[str, Callable[..., int]] = {
    "conv2d": timing.conv2d,
    "matmul": timing.matmul,
    "depthwise2d": timing.depthwise2d,
    "max_pool2d": timing.max_pool2d,
    "avg_pool2d": timing.avg_pool2d,
}
LAYERS: Mapping[str, Callable[..., int]] = {
    "conv_forward_local_fix8b": fix8b.conv2d,
    "pooling_fix8b_forward_local": fix8b.pool2d,
    "eltwise_fix8b_forward_local": fix8b.elementwise,
    "broadcast_binary_fix8b_forward_local": fix8b.product,
    "lut_local_v2": fix8b.lookup,
}
MATRICES: Mapping[str, Callable[..., int]] = {"matrix_S2L": timing.matrix_S2L, "matrix_L2S": timing.matrix_L2S}
MOVES: Mapping[str, Callable[[timing.Move, Machine], int]] = {
    "cpy_S2L": timing.cpy_S2L,
    "cpy_S2S": timing.cpy_S2L,
    "cpy_L2S": timing.cpy_L2S,
    "cpy_L2L": timing.cpy_L2L,
    "set_C_local": timing.set_C_local,
    "set_C_system": timing.set_C_system,
}


def _gdma(name: str, values: Mapping[str, int], machine: Machine) -> int:
    kind = name.split("_", 1)[1]
    if kind in MATRICES:
        return MATRICES[kind](**values, machine=machine)
    return MOVES[kind](timing.Move(**values), machine)


REFUSED, MALFORMED = 3, 4
"""Exit codes for a call that the model refuses, and for a malformed table."""
DEFECT = "compile the model again; if the program still ends like this, that is a defect of npuc: report it"


@frozen
class MappedPiece:
    """Bytes of a file that are mapped to byte `at` of system memory; all are multiples of the page size."""

    at: int
    file: Path
    offset: int
    bytes: int


def carry_out(
    table: bytes, arguments: bytes, image: Path, machine: Machine, parts: Sequence[MappedPiece] = ()
) -> EngineCycles:
    """Runs a table, with the addresses of its regions, on a file that is system memory from SYSTEM_START on.

    parts: of other files, in place of the image's bytes; writes to them are lost.
    Raises ArtefactError: E502 for a malformed table, E503 for a call that the machine does not allow.
    """
    file = image.with_name("table")
    file.write_bytes(table)
    made = called(compilation.interpreter(), f"@{file}", arguments, image, machine, parts)
    return total(made, machine)


def called(
    program: Path, kernel: str, arguments: bytes, image: Path, machine: Machine, parts: Sequence[MappedPiece] = ()
) -> tuple[TimedCall, ...]:
    """Runs a kernel of an executable on the image of system memory; returns the calls that it made.

    Raises ArtefactError (E503), with the reason, for a call that the machine does not allow.
    """
    paths = (image.with_name("arguments"), image, image.with_name("calls"))
    paths[0].write_bytes(arguments or b"\0")
    numbers = (machine.npus, machine.local_bytes, machine.lanes, SYSTEM_START)
    places = (each for part in parts for each in (part.at, part.file, part.offset, part.bytes))
    command = [str(program), kernel, *map(str, (*paths, *numbers, *places))]
    done = interrupts.run(command)
    if done.returncode:
        raise _failed(done)
    return tuple(read(paths[2].read_text(encoding="ascii").splitlines()))


def _failed(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == REFUSED:
        return ArtefactError("E503", lines[-1], remedy=DEFECT)
    if done.returncode == MALFORMED:
        return ArtefactError("E502", f"{TABLE_FILE}, {lines[-1]}")
    return ArtefactError("E507", f"the chip model failed: {lines[-1]}", remedy=DEFECT)
