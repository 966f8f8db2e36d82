"""Small changes of conditions, each of which a test must detect; a mutant that survives is an untested condition.

    python benchmarks/mutants.py [--only TEXT]... [--list FILE] [--check] [--json]

`mutants.toml` lists them by file: the tests that must fail, and for each mutant a text that occurs once in the
file and its replacement. No file is changed: every mutant runs in a separate process, forked from one that has
imported what all tests need, which compiles the changed text when the module is imported. A mutant whose text is
not found is an error. Exit code 1 unless at least 95 % are killed and none is in error; --check only looks the
texts up.
"""

from __future__ import annotations

import importlib.machinery
import io
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from types import CodeType
from typing import Any

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
SOURCES = ("npuc", "passes", "targets")
SECONDS = 120
"""The time limit for the tests of a mutant; tests that exceed it are killed."""
LEAST_KILLED = 0.95
KILLED, SURVIVED, ERROR = "killed", "survived", "error"
FAILED, PASSED = 1, 0
"""Exit codes of pytest."""


@dataclass(frozen=True)
class Mutant:
    """One change: `file` is a name, or the end of a path where several have that name; tests are below tests/."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant."""

    mutant: Mutant
    result: str
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)


def listed(path: Path = LIST) -> tuple[Mutant, ...]:
    """The mutants of a file, in order."""
    with path.open("rb") as file:
        groups = tomllib.load(file)["group"]
    return tuple(
        Mutant(each["name"], group["file"], each["old"], each["new"], tuple(group["tests"]))
        for group in groups
        for each in group["mutant"]
    )


@cache
def _files(root: Path) -> Mapping[str, Sequence[Path]]:
    """The source files by name."""
    found: dict[str, list[Path]] = {}
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            found.setdefault(path.name, []).append(path)
    return found


def place_of(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str]:
    """The file and its changed text. Raises ValueError unless the old text occurs once, in one file."""
    named = _files(root).get(Path(mutant.file).name, ())
    files = [path for path in named if path.as_posix().endswith(f"/{mutant.file}")]
    holding = [path for path in files if mutant.old in path.read_text(encoding="utf-8")]
    if len(holding) != 1:
        raise ValueError(
            f"the old text stands in {len(holding)} of {len(files)} files that are named {mutant.file}"
        )
    text = holding[0].read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"the old text stands {text.count(mutant.old)} times in {mutant.file}")
    changed = text.replace(mutant.old, mutant.new)
    try:
        compile(changed, mutant.file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"the changed text is no Python: {error.msg}") from None
    for test in mutant.tests:
        if not (root / "tests" / test.partition("::")[0]).is_file():
            raise ValueError(f"there is no tests/{test}")
    return holding[0], changed


def run(mutant: Mutant) -> Outcome:
    """Runs the mutant's tests in a separate process."""
    began = perf_counter()
    try:
        path, changed = place_of(mutant)
    except ValueError as error:
        return Outcome(mutant, ERROR, str(error))
    child = os.fork()
    if not child:
        os._exit(_tested(mutant, path, changed))
    _, status = os.waitpid(child, 0)
    seconds = perf_counter() - began
    if os.WIFSIGNALED(status):
        ended = os.WTERMSIG(status)
        detail = f"more than {SECONDS} s" if ended == signal.SIGALRM else f"ended by signal {ended}"
        return Outcome(mutant, KILLED, detail, seconds)
    code = os.WEXITSTATUS(status)
    if code in (PASSED, FAILED):
        return Outcome(mutant, SURVIVED if code == PASSED else KILLED, "", seconds)
    return Outcome(mutant, ERROR, f"pytest ended with {code}: the tests could not be run", seconds)


def _tested(mutant: Mutant, path: Path, changed: str) -> int:
    """pytest's exit code with the changed text in place of the file."""
    import pytest

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    _replace(path, changed)
    os.chdir(ROOT)
    tests = [f"tests/{test}" for test in mutant.tests]
    silence = io.StringIO()
    with redirect_stdout(silence), redirect_stderr(silence):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


def _replace(path: Path, changed: str) -> None:
    """Lets the import of one file compile another text; no compiled code on disk is read or written for it."""
    loader = importlib.machinery.SourceFileLoader
    as_written = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.path).resolve() == path:
            return compile(changed, str(path), "exec", dont_inherit=True)
        return as_written(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]


def _prepare() -> None:
    """Imports what every test needs, but nothing of npuc, before the mutants' processes are forked."""
    sys.path.insert(0, str(ROOT))
    import networkx  # noqa: F401
    import numpy  # noqa: F401
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import pytest  # noqa: F401


@click.command()
@click.option("--only", multiple=True, help="Mutants whose name or file contains this.")
@click.option("--list", "path", type=click.Path(path_type=Path), default=LIST, help="Another list.")
@click.option("--check", is_flag=True, help="Only whether every mutant still applies.")
@click.option("--json", "as_json", is_flag=True, help="The outcomes as JSON.")
def main(only: Sequence[str], path: Path, check: bool, as_json: bool) -> None:
    """Small changes of conditions, each of which some test must notice."""
    chosen = [
        each for each in listed(path) if not only or any(text in f"{each.name} {each.file}" for text in only)
    ]
    if not chosen:
        raise click.UsageError("no mutant is named so")
    if check:
        outcomes = [_checked(each) for each in chosen]
    else:
        _prepare()
        outcomes = []
        for each in chosen:
            outcomes.append(run(each))
            if not as_json:
                click.echo(_line(outcomes[-1]))
    sys.exit(report(outcomes, check=check, as_json=as_json))


def _checked(mutant: Mutant) -> Outcome:
    try:
        place_of(mutant)
    except ValueError as error:
        return Outcome(mutant, ERROR, str(error))
    return Outcome(mutant, "applies")


def _line(outcome: Outcome) -> str:
    detail = f"  {outcome.detail}" if outcome.detail else ""
    return f"{outcome.result:9s} {outcome.seconds:6.1f} s  {outcome.mutant.name}{detail}"


def report(outcomes: Sequence[Outcome], *, check: bool, as_json: bool) -> int:
    """Prints the survivors; returns the exit code."""
    results = {kind: [each for each in outcomes if each.result == kind] for kind in (KILLED, SURVIVED, ERROR)}
    killed = len(results[KILLED]) / len(outcomes)
    failed = bool(results[ERROR]) or (not check and killed < LEAST_KILLED)
    if as_json:
        rows = [
            {"name": each.mutant.name, "file": each.mutant.file, "result": each.result, "detail": each.detail}
            for each in outcomes
        ]
        click.echo(json.dumps({"mutants": rows, "killed": round(killed, 4)}, indent=2))
        return int(failed)
    for each in (*results[SURVIVED], *results[ERROR]):
        click.echo(
            f"{each.result}: {each.mutant.name} in {each.mutant.file}{': ' * bool(each.detail)}{each.detail}"
        )
    if not check:
        click.echo(f"{len(results[KILLED])} of {len(outcomes)} killed ({100 * killed:.1f} %)")
    return int(failed)


if __name__ == "__main__":
    main()
