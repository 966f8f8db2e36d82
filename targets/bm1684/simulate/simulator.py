"""Kernels run on npuc's own model of the OKKernel interface, in a child process.

What is run is the emitted C alone, on an image of system memory; what comes back is the changed image and the list
of calls, priced by timing.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.simulate import calls, compilation
from npuc.targets.bm1684.simulate.calls import Call, Cost

REFUSED = 3
"""The exit code of a program whose call the model refuses."""


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
        folder = Path(name)
        paths = {each: folder / each for each in ("arguments", "memory", "calls")}
        paths["arguments"].write_bytes(arguments or b"\0")
        memory.astype(np.uint8, copy=False).tofile(paths["memory"])
        numbers = (machine.npus, machine.local_bytes, machine.lanes, SYSTEM_START)
        done = subprocess.run(
            [str(program), kernel, *map(str, paths.values()), *map(str, numbers)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise _failed(done)
        made = tuple(calls.read(paths["calls"].read_text(encoding="ascii").splitlines()))
        return Run(np.fromfile(paths["memory"], np.uint8), made, calls.total(made, machine))


def _failed(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == REFUSED:
        return ArtefactError("E503", lines[-1], remedy="run the program on the machine it was compiled for")
    return ArtefactError("E507", f"the compiled program failed: {lines[-1]}")
