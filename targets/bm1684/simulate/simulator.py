"""Runs kernels on npuc's own model of the OKKernel interface, in a child process.

A kernel is a table of calls that runs on an image of system memory. It changes the image and logs the calls that
it made, whose cycles come from `timing`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.system import interrupts
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.machine.timing import Cost
from npuc.targets.bm1684.program.table import TABLE_FILE
from npuc.targets.bm1684.simulate import calls, compilation
from npuc.targets.bm1684.simulate.calls import Call

REFUSED, MALFORMED = 3, 4
"""Exit codes for a call that the model refuses, and for a malformed table."""
DEFECT = "compile the model again; if the program still ends like this, that is a defect of npuc: report it"


@frozen
class Part:
    """Bytes of a file that are mapped to byte `at` of system memory; all are multiples of the page size."""

    at: int
    file: Path
    offset: int
    bytes: int


def carry_out(table: bytes, arguments: bytes, image: Path, machine: Machine, parts: Sequence[Part] = ()) -> Cost:
    """Runs a table, with the addresses of its regions, on a file that is system memory from SYSTEM_START on.

    parts: of other files, in place of the image's bytes; writes to them are lost.
    Raises ArtefactError: E502 for a malformed table, E503 for a call that the machine does not allow.
    """
    file = image.with_name("table")
    file.write_bytes(table)
    made = called(compilation.interpreter(), f"@{file}", arguments, image, machine, parts)
    return calls.total(made, machine)


def called(
    program: Path, kernel: str, arguments: bytes, image: Path, machine: Machine, parts: Sequence[Part] = ()
) -> tuple[Call, ...]:
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
    return tuple(calls.read(paths[2].read_text(encoding="ascii").splitlines()))


def _failed(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == REFUSED:
        return ArtefactError("E503", lines[-1], remedy=DEFECT)
    if done.returncode == MALFORMED:
        return ArtefactError("E502", f"{TABLE_FILE}, {lines[-1]}")
    return ArtefactError("E507", f"the chip model failed: {lines[-1]}", remedy=DEFECT)
