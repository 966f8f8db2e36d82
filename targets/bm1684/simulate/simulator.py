"""Kernels run on npuc's own model of the OKKernel interface, in a child process.

What is run is a table of calls, or a kernel in C, on an image of system memory. It changes the image, and lists
the calls that it made, priced by timing.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npuc import interrupts
from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.program.table import TABLE_FILE
from npuc.targets.bm1684.simulate import calls, compilation
from npuc.targets.bm1684.simulate.calls import Call, Cost

REFUSED, MALFORMED = 3, 4
"""Exit codes: the model refuses a call, a table is none."""
DEFECT = "compile the model again; if the program still ends like this, that is a defect of npuc: report it"


@dataclass(frozen=True)
class Run:
    """What a kernel left: system memory (bytes,) uint8, the calls it made and what they cost."""

    memory: Array
    calls: tuple[Call, ...]
    cost: Cost


def simulate(sources: Mapping[str, bytes], kernel: str, arguments: bytes, memory: Array, machine: Machine) -> Run:
    """A kernel of these C sources, compiled and run once; see run."""
    with tempfile.TemporaryDirectory(prefix="npuc-") as name:
        return run(compilation.program(sources, Path(name)), kernel, arguments, memory, machine)


def run(program: Path, kernel: str, arguments: bytes, memory: Array, machine: Machine) -> Run:
    """A kernel by its name, with its packed arguments, on an image of system memory (bytes,) uint8.

    program: made by compilation.program. The image starts at SYSTEM_START.
    Raises ArtefactError (E503) for a call that the machine does not allow: which, and why.
    """
    with tempfile.TemporaryDirectory(prefix="npuc-") as name:
        image = Path(name) / "memory"
        memory.astype(np.uint8, copy=False).tofile(image)
        made = _called(program, kernel, arguments, image, machine)
        return Run(np.fromfile(image, np.uint8), made, calls.total(made, machine))


def carry_out(table: bytes, arguments: bytes, image: Path, machine: Machine) -> Cost:
    """The calls of a table, with the addresses of its regions, on a file that is system memory from SYSTEM_START.

    Raises ArtefactError: E502 for what is no table, E503 for a call that the machine does not allow.
    """
    file = image.with_name("table")
    file.write_bytes(table)
    made = _called(compilation.interpreter(), f"@{file}", arguments, image, machine)
    return calls.total(made, machine)


def _called(program: Path, kernel: str, arguments: bytes, image: Path, machine: Machine) -> tuple[Call, ...]:
    """The calls that were made on the image."""
    paths = (image.with_name("arguments"), image, image.with_name("calls"))
    paths[0].write_bytes(arguments or b"\0")
    numbers = (machine.npus, machine.local_bytes, machine.lanes, SYSTEM_START)
    command = [str(program), kernel, *map(str, paths), *map(str, numbers)]
    done = interrupts.run(command)
    if done.returncode:
        raise _failed(done)
    return tuple(calls.read(paths[2].read_text(encoding="ascii").splitlines()))


def _failed(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == REFUSED:
        return ArtefactError("E503", lines[-1], remedy=DEFECT)
    if done.returncode == MALFORMED:
        return ArtefactError("E502", f"{TABLE_FILE}, {lines[-1]}", remedy="compile the model again")
    return ArtefactError("E507", f"the chip model failed: {lines[-1]}", remedy=DEFECT)
