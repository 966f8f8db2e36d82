"""Runs kernels on npuc's own model of the OKKernel interface, in a child process.

The model is compiled from npuc's own sources with the system's C compiler. Objects are kept in the user's cache
folder, under a hash of their sources, compiler and flags. Nothing of an artefact is ever compiled: a kernel is a
table of calls, data that the interpreter executes on an image of system memory.

The model logs the calls that it made. A line has the call's name and the values that its cycles depend on, the
parameters of a `timing` function:

    okk_bdc_conv2d groups=13 IC=4 kernel_h=3 kernel_w=3 stride_w=1 using_bias=1
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.storage.files import cache_folder
from npuc.system import interrupts
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.machine.timing import EngineCycles
from npuc.targets.bm1684.program.table import TABLE_FILE

MODEL = Path(__file__).parent / "c"
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror")
FLAGS = (*WARNINGS, "-O3", "-ffp-contract=off")
"""Without contraction, results have the same bits on every machine."""
INTERPRETER, TABLE = "interpreter", MODEL / "okk_table.c"
COMPILERS = ("cc", "gcc", "clang")


def compiler() -> str:
    """The C compiler: CC, or the first of cc, gcc and clang there is. Raises ArtefactError (E507) without one."""
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise ArtefactError(
        "E507",
        f"no C compiler: {wanted or ', '.join(COMPILERS)} is not on the path",
        remedy="install gcc or clang, or name a compiler in the environment variable CC",
    )


def interpreter() -> Path:
    """The executable that runs tables of calls on npuc's model.

    Raises ArtefactError (E507) if there is no compiler or it refuses a source.
    """
    return _model(compiler()) / INTERPRETER


def interpreting_library(folder: Path) -> Path:
    """Builds a library in a folder that runs tables with the calls of a library loaded before it.

    Raises ArtefactError (E507) if there is no compiler or it refuses a source.
    """
    return shared_library({TABLE.name: TABLE.read_bytes()}, folder)


def shared_library(sources: Mapping[str, bytes], folder: Path) -> Path:
    """Builds a library of kernels in a folder that takes the calls from a library loaded before it.

    Raises ArtefactError (E507) if there is no compiler or it refuses a source.
    """
    made = folder / "kernels.so"
    flags = ["-shared", "-fPIC", "-DUSING_CMODEL", "-I", str(MODEL)]
    build([*FLAGS, *flags, "-o", made.name, *write_sources(sources, folder)], folder)
    return made


def write_sources(sources: Mapping[str, bytes], folder: Path) -> list[str]:
    """Writes sources to a folder; returns the names of the C files."""
    for name, text in sources.items():
        (folder / name).write_bytes(text)
    return [name for name in sorted(sources) if name.endswith(".c")]


def _model(compiler: str) -> Path:
    """The folder of the model's objects, compiled if they are not cached."""
    sources = sorted(MODEL.glob("okk*"))
    digest = hashlib.sha256("\0".join([compiler, _version(compiler), *FLAGS]).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    kept = cache_folder() / f"okk-{digest.hexdigest()[:32]}"
    if not kept.is_dir():
        _compile_model([str(source) for source in sources if source.suffix == ".c"], kept)
    return kept


def _compile_model(sources: Sequence[str], kept: Path) -> None:
    """Compiles the model into a temporary folder, which is renamed when complete."""
    staging = Path(tempfile.mkdtemp(prefix=f".{kept.name}.", dir=kept.parent))
    try:
        build([*FLAGS, "-I", str(MODEL), "-c", *sources], staging)
        objects = sorted(each.name for each in staging.glob("*.o"))
        build([*FLAGS, "-o", INTERPRETER, *objects, "-lm"], staging)
        staging.rename(kept)
    except OSError:  # another process was faster
        if not kept.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _version(compiler: str) -> str:
    return interrupts.run([compiler, "--version"]).stdout


def build(arguments: Sequence[str], folder: Path) -> None:
    """Runs the compiler in a folder. Raises ArtefactError (E507) with the first error line."""
    done = interrupts.run([compiler(), *arguments], folder)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        raise ArtefactError(
            "E507",
            f"the C compiler refuses a source: {lines[0]}",
            remedy="use gcc 9 or clang 10, or a newer one (environment variable CC)",
        )


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
    "conv_forward_local_fix8b": timing.fix8b_conv2d,
    "pooling_fix8b_forward_local": timing.fix8b_pool2d,
    "eltwise_fix8b_forward_local": timing.fix8b_elementwise,
    "broadcast_binary_fix8b_forward_local": timing.fix8b_product,
    "lut_local_v2": timing.fix8b_lookup,
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
    made = call_executable(interpreter(), f"@{file}", arguments, image, machine, parts)
    return total(made, machine)


def call_executable(
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
        raise _failure(done)
    return tuple(read(paths[2].read_text(encoding="ascii").splitlines()))


def _failure(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    if done.returncode == REFUSED:
        return ArtefactError("E503", lines[-1], remedy=DEFECT)
    if done.returncode == MALFORMED:
        return ArtefactError("E502", f"{TABLE_FILE}, {lines[-1]}")
    return ArtefactError("E507", f"the chip model failed: {lines[-1]}", remedy=DEFECT)
