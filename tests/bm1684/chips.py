"""Runs kernels in C on npuc's model of the interface and on the vendor's; npuc itself runs tables of calls."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npuc.ir import Array
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.machine.timing import EngineCycles
from npuc.targets.bm1684.simulate import running, simulator
from npuc.targets.bm1684.simulate.simulator import TimedCall


@dataclass(frozen=True)
class Run:
    """The result of a kernel: system memory (bytes,) uint8, the calls it made and their cost."""

    memory: Array
    calls: tuple[TimedCall, ...]
    cost: EngineCycles


@dataclass(frozen=True)
class VendorRun:
    """The result of a kernel on the vendor's model: system memory (bytes,) uint8, and its cycles."""

    memory: Array
    cycles: int


def compiled(sources: Mapping[str, bytes], folder: Path) -> Path:
    """An executable in a folder from kernel sources (by file name) and the model."""
    objects = sorted(simulator.interpreter().parent.glob("*.o"))
    files = simulator.write_sources(sources, folder)
    links = ["-o", "program", *files, *map(str, objects), "-lm"]
    simulator.build([*simulator.FLAGS, "-I", str(simulator.MODEL), *links], folder)
    return folder / "program"


def simulate(sources: Mapping[str, bytes], kernel: str, arguments: bytes, memory: Array, machine: Machine) -> Run:
    """Compiles C sources and runs a kernel of them once."""
    with tempfile.TemporaryDirectory() as name:
        return run(compiled(sources, Path(name)), kernel, arguments, memory, machine)


def run(program: Path, kernel: str, arguments: bytes, memory: Array, machine: Machine) -> Run:
    """Runs a kernel of an executable, by name, on an image of system memory (bytes,) uint8."""
    with tempfile.TemporaryDirectory() as name:
        image = Path(name) / "memory"
        memory.astype(np.uint8, copy=False).tofile(image)
        made = simulator.call_executable(program, kernel, arguments, image, machine)
        return Run(np.fromfile(image, np.uint8), made, simulator.total(made, machine))


def vendor_run(
    sources: Mapping[str, bytes], kernel: str, arguments: bytes, memory: Array, folder: str
) -> VendorRun:
    """Runs a kernel of these C sources on the vendor's model."""
    with tempfile.TemporaryDirectory() as name:
        image = Path(name) / "memory"
        memory.astype(np.uint8, copy=False).tofile(image)
        kernels = simulator.shared_library(sources, Path(name))
        cycles = running.call_library(running.library(folder), kernels, kernel, arguments, image)
        return VendorRun(np.fromfile(image, np.uint8), cycles)
