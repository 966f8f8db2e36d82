"""The model of the interface, compiled from npuc's own sources with the system's C compiler.

Objects are kept in the user's cache folder, under a hash of their sources, compiler and flags. Nothing of an
artefact is ever compiled: a table of calls is data, which the interpreter executes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.storage.files import cache_folder
from npuc.system import interrupts

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
    build([*FLAGS, *flags, "-o", made.name, *written(sources, folder)], folder)
    return made


def written(sources: Mapping[str, bytes], folder: Path) -> list[str]:
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
