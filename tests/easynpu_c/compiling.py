"""Exported programs compiled and run: raw inputs to a file, raw outputs from a file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from npuc import program, running
from npuc.ir import Array
from npuc.program import Program
from npuc.target import target

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O2")
SANITIZED = (
    "-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover",
)  # fmt: skip
EASYNPU = target("easynpu")


def compiler() -> str:
    """The C compiler; skips where there is none."""
    found = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if found is None:
        pytest.skip("no C compiler (gcc, cc or clang) on the path")
    return found


@cache
def careful_flags() -> tuple[str, ...]:
    """Flags that trap undefined behaviour, where the compiler can."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "probe.c", Path(folder) / "probe"
        source.write_text("int main(void)\n{\n    return 0;\n}\n", encoding="ascii")
        built = subprocess.run([compiler(), *SANITIZED, "-o", binary, source], capture_output=True, check=False)
        works = (
            built.returncode == 0 and subprocess.run([binary], capture_output=True, check=False).returncode == 0
        )
    return SANITIZED if works else STRICT


def build(folder: Path, sources: Sequence[str], flags: Sequence[str]) -> Path:
    """The executable of these sources; a warning fails the test."""
    binary = folder / "built"
    command = [compiler(), *flags, "-I", ".", "-o", str(binary), *sources, "-lm"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""
    return binary


def exported(compiled: Program, folder: Path, flags: Sequence[str] = STRICT) -> Path:
    """The test executable of a program's C sources."""
    program.save_files(EASYNPU.export(compiled, "c"), folder)
    sources = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.c"))
    return build(folder, sources, flags)


def run(binary: Path, compiled: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs (samples, *shape) that the executable writes for inputs (samples, *shape)."""
    count = len(next(iter(inputs.values())))
    ports = running.program_inputs(compiled)
    samples = [inputs[name][number].astype(each.dtype) for number in range(count) for name, each in ports.items()]
    source, result = binary.with_name("in.bin"), binary.with_name("out.bin")
    source.write_bytes(b"".join(each.tobytes() for each in samples))
    done = subprocess.run([binary, source, result], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    layout = np.dtype([(str(at), port.dtype, port.shape) for at, port in enumerate(compiled.outputs)])
    found = np.frombuffer(result.read_bytes(), layout)
    assert len(found) == count
    return {port.name: found[str(at)] for at, port in enumerate(compiled.outputs)}
