"""Runs kernels on the vendor's chip model, in a child process.

The model is libbackend_bm1684.so of the PyPI package tpu_mlir: it executes OKKernel calls and counts their cycles
(docs/bm1684.md says how to get it). Nothing of it is part of npuc.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.system import interrupts
from npuc.targets.bm1684.machine.parameters import SYSTEM_START
from npuc.targets.bm1684.simulate import compilation
from npuc.text.terminal import page

LIBRARY = "libbackend_bm1684.so"
VARIABLE = "NPUC_OKK_LIBS"
CHILD = Path(__file__).with_name("vendor_run.py")
LOG = compilation.MODEL / "vendor_log.c"


def library(folder: str | None = None) -> Path:
    """The vendor's library in a folder, or in the one that NPUC_OKK_LIBS names.

    Raises ArtefactError (E507) if it is not there.
    """
    wanted = folder or os.environ.get(VARIABLE)
    known = page("bm1684.md")
    remedy = f"unpack the package tpu_mlir and name its lib folder with --okk-libs or {VARIABLE} ({known})"
    if not wanted:
        raise ArtefactError("E507", "the vendor's chip model is not at hand", remedy=remedy)
    found = Path(wanted) / LIBRARY
    if not found.is_file():
        raise ArtefactError("E507", f"there is no {LIBRARY} in {wanted}", remedy=remedy)
    return found.resolve()


def carry_out(table: bytes, arguments: bytes, image: Path, folder: str | None = None) -> int:
    """Runs a table, with the addresses of its regions, on a file that is system memory; returns its cycles.

    Raises ArtefactError: E507 without the library or a compiler, E503 if the vendor's model refuses a call.
    """
    wanted, file = library(folder), image.with_name("table")
    file.write_bytes(table)
    kernels = compilation.interpreting_library(image.parent)
    return called(wanted, kernels, f"@{file}", arguments, image)


def called(wanted: Path, kernels: Path, kernel: str, arguments: bytes, image: Path) -> int:
    """Runs a kernel of a library, which changes the image; returns its cycles."""
    log = image.with_name("log")
    log.mkdir()
    libraries = (compilation.shared_library({LOG.name: LOG.read_bytes()}, log), wanted)
    paths = {"arguments": image.with_name("arguments"), "memory": image, "cycles": image.with_name("cycles")}
    paths["arguments"].write_bytes(arguments or b"\0")
    given = [*map(str, (*libraries, kernels)), kernel, *map(str, paths.values()), str(SYSTEM_START)]
    done = interrupts.run([sys.executable, str(CHILD), *given])
    if done.returncode or not paths["cycles"].is_file():
        raise _refused(done)
    return int(paths["cycles"].read_text(encoding="ascii"))


def _refused(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = (done.stdout + done.stderr).splitlines()
    asserted = [line.rpartition("/")[2] for line in lines if line.startswith("ASSERT")]
    reason = asserted[0] if asserted else (lines or [f"exit code {done.returncode}"])[-1]
    return ArtefactError("E503", f"the vendor's chip model refuses the program: {reason}")
