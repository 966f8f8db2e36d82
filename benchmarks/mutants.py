"""Mutants of conditions, generated from the syntax tree; one that survives its tests is an untested condition.

    python benchmarks/mutants.py [--count N] [--seed S] [--only TEXT]... [--list]

A mutant negates a condition, drops an operand of `and`, `or` or a constraint of a support table, or shifts a
comparison by one (< to <=, 4 to 5). `PARTS` says where, and in which folders their tests are: those files run
that share the rarest names with the changed one. N mutants are drawn by the seed, from all parts in turn. No file
is changed: every mutant runs in a process of its own, forked from one that has imported what all tests need, which
compiles the changed text when the module is imported. `equivalent_mutants.toml` lists mutants that no test can
tell, with reasons; they are not drawn. Exit code 1 unless at least 95 % are killed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import io
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from threading import Timer
from time import perf_counter
from types import CodeType
from typing import Any

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
TEST_SECONDS, SECONDS = 100, 300
"""The time limits of one test, which then fails, and of all tests of a mutant, which then survives."""
MOST_FILES = 6
"""Files of tests that run because of their names, beside those that a part always has."""
LEAST_KILLED = 0.95
KILLED, SURVIVED = "killed", "survived"
RESULTS = {0: SURVIVED, 1: KILLED, 2: KILLED}
"""By pytest's exit code; 2: a module of tests could not be imported."""


@dataclass(frozen=True)
class Part:
    """Folders or files with conditions, the folders of their tests, and the tests that always run."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    always: tuple[str, ...] = ()


OPERATORS = "test_documentation.py::test_page_is_what_the_code_says"
"""The page of supported operators names every constraint."""
PARTS = {
    "passes": Part(("passes",), ("passes",), ("passes/test_conditions.py", "passes/test_legality.py")),
    "conditions": Part(
        ("npuc/conditions",),
        ("conditions",),
        ("bm1684/test_undefined.py", "regions/test_not_a_number.py", "regions/test_infinite_inputs.py"),
    ),
    "planning": Part(("npuc/regions/planning.py",), ("regions", "frontend"), ("regions/test_partition.py",)),
    "quantising": Part(
        ("npuc/quantize/network", "npuc/quantize/scales"),
        ("quantize",),
        ("quantize/test_conditions.py", "cli/test_scales.py"),
    ),
    "easynpu": Part(
        ("targets/easynpu/network", "targets/easynpu/layers", "targets/easynpu/program/lowering.py"),
        ("easynpu", "easynpu_reshape", "easynpu_rewrites", "easynpu_tables", "passes"),
        ("easynpu/test_conditions.py", OPERATORS),
    ),
    "nvdla": Part(
        (
            "targets/nvdla/network",
            "targets/nvdla/selection",
            "targets/nvdla/quantisation",
            "targets/nvdla/program/lowering.py",
        ),
        ("nvdla", "passes"),
        ("nvdla/test_conditions.py", "nvdla/test_networks.py", OPERATORS),
    ),
    "bm1684": Part(
        ("targets/bm1684/network", "targets/bm1684/lowering"),
        ("bm1684", "passes"),
        ("bm1684/test_conditions.py", "bm1684/test_operators.py", OPERATORS),
    ),
}


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the number of it in `changes`, and what it makes of which expression."""

    part: str
    file: str
    line: int
    number: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.old}  ->  {self.new}"


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant."""

    mutant: Mutant
    result: str
    seconds: float


SHIFTED: dict[type[ast.cmpop], tuple[type[ast.cmpop], int]] = {
    ast.Lt: (ast.LtE, -1),
    ast.LtE: (ast.Lt, 1),
    ast.Gt: (ast.GtE, 1),
    ast.GtE: (ast.Gt, -1),
    ast.Eq: (ast.Eq, 1),
    ast.NotEq: (ast.NotEq, 1),
}
"""What a comparison becomes, and what is added to a constant on its right: the opposite of that on integers."""


def changes(node: ast.AST, *, decides: bool = False) -> Iterator[tuple[ast.expr, ast.expr]]:
    """All changes of conditions in a tree: an expression and its replacement. decides: the node is a condition."""
    if isinstance(node, (ast.JoinedStr, ast.Assert)):
        return
    if decides and isinstance(node, ast.expr):
        yield node, ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.BoolOp) and (decides or any(map(_is_truth, node.values))):
        for rest in _without_each(node.values):
            yield node, ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, ast.Compare):
        yield from _shifts(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Support":
        for items in (each for each in node.args[1:2] if isinstance(each, ast.Tuple)):
            yield from ((items, ast.Tuple(rest, ast.Load())) for rest in _without_each(items.elts))
    conditions = _conditions(node)
    for child in ast.iter_child_nodes(node):
        yield from changes(child, decides=child in conditions)


def _conditions(node: ast.AST) -> Sequence[ast.expr]:
    """The children that decide; not of `while`, which would not end."""
    if isinstance(node, (ast.If, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    if isinstance(node, ast.match_case) and node.guard is not None:
        return [node.guard]
    return [node.value] if isinstance(node, ast.Return) and node.value and _is_truth(node.value) else []


def _is_truth(node: ast.expr) -> bool:
    """Whether an expression is no other value, as in `x or 0`."""
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _without_each(items: Sequence[ast.expr]) -> Iterator[list[ast.expr]]:
    return ([each for each in items if each is not dropped] for dropped in items)


def _shifts(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr]]:
    terms = [node.left, *node.comparators]
    for index, op in enumerate(node.ops):
        shifted, step = SHIFTED.get(type(op), (type(op), 0))
        if shifted is not type(op):
            yield node, ast.Compare(node.left, [*node.ops[:index], shifted(), *node.ops[index + 1 :]], terms[1:])
        for at, sign in ((index, -1), (index + 1, 1)):
            term = terms[at]
            if step and isinstance(term, ast.Constant) and type(term.value) is int:
                moved = [*terms[:at], ast.Constant(term.value + sign * step), *terms[at + 1 :]]
                yield node, ast.Compare(moved[0], node.ops, moved[1:])


def mutants_of(source: str, file: str = "", part: str = "") -> list[Mutant]:
    """All mutants of a text, in order."""
    return [
        Mutant(part, file, old.lineno, number, ast.unparse(old), ast.unparse(new))
        for number, (old, new) in enumerate(changes(ast.parse(source)))
    ]


class _Replacement(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, ast.copy_location(new, old)

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def change(source: str, number: int) -> ast.AST:
    """The syntax tree of a text with one of its changes."""
    tree = ast.parse(source)
    return ast.fix_missing_locations(_Replacement(*[*changes(tree)][number]).visit(tree))


def files_of(part: Part) -> list[Path]:
    """The source files of a part."""
    places = [ROOT / source for source in part.sources]
    return sorted(path for place in places for path in ([place] if place.is_file() else place.rglob("*.py")))


def generate() -> dict[str, list[Mutant]]:
    """The mutants of every part that tests may tell."""
    known = {(each["file"], each["old"], each["new"]) for each in equivalent()}
    return {
        name: [
            mutant
            for path in files_of(part)
            for mutant in mutants_of(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix(), name)
            if (path.name, mutant.old, mutant.new) not in known
        ]
        for name, part in PARTS.items()
    }


def equivalent() -> list[dict[str, str]]:
    """The exceptions: file, old, new, reason."""
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]


def draw(mutants: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Mutants of all parts in turn, in an order that the seed gives."""
    source = random.Random(seed)
    shuffled = [source.sample(found, len(found)) for found in mutants.values()]
    turns = (mutant for turn in zip_longest(*shuffled) for mutant in turn if mutant is not None)
    return [mutant for mutant, _ in zip(turns, range(count), strict=False)]


@cache
def words(path: Path) -> frozenset[str]:
    """The names in a file."""
    return frozenset(re.findall(r"[A-Za-z_]\w+", path.read_text(encoding="utf-8")))


def tests_of(mutant: Mutant) -> list[str]:
    """The files of tests that run: those with the rarest of the changed file's names first."""
    part = PARTS[mutant.part]
    files = sorted(path for folder in part.tests for path in (ROOT / "tests" / folder).glob("test_*.py"))
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    names = {getattr(each, "name", "") for each in ast.parse(source).body} | {Path(mutant.file).stem}
    counts = Counter(name for path in files for name in words(path) & names)
    scores = {path: sum(1 / counts[name] for name in words(path) & names) for path in files}
    ranked = sorted((path for path in files if scores[path]), key=lambda path: -scores[path])[:MOST_FILES]
    always = [ROOT / "tests" / each for each in part.always]
    return [path.relative_to(ROOT).as_posix() for path in dict.fromkeys([*ranked, *always])]


def run(mutant: Mutant) -> Outcome:
    """Runs the mutant's tests in a separate process."""
    began, tests = perf_counter(), tests_of(mutant)
    child = os.fork()
    if not child:
        os.setsid()
        os._exit(_test(mutant, tests))
    timer = Timer(SECONDS, _end, (child,))
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    seconds = perf_counter() - began
    if os.WIFSIGNALED(status):
        return Outcome(mutant, SURVIVED if seconds >= SECONDS else KILLED, seconds)
    code = os.WEXITSTATUS(status)
    return Outcome(mutant, RESULTS.get(code, f"error {code}"), seconds)


def _end(child: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _test(mutant: Mutant, tests: Sequence[str]) -> int:
    """pytest's exit code with the changed tree in place of the file."""
    import pytest

    path = ROOT / mutant.file
    _replace(path, change(path.read_text(encoding="utf-8"), mutant.number))
    os.chdir(ROOT)
    limit = ("--timeout", str(TEST_SECONDS), "--timeout-method", "signal")
    silence = io.StringIO()
    with redirect_stdout(silence), redirect_stderr(silence):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *limit, *tests]))


def _replace(path: Path, tree: ast.AST) -> None:
    """Lets the import of one file compile another tree; no compiled code on disk is read or written for it."""
    loader = importlib.machinery.SourceFileLoader
    as_written = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if Path(self.path).resolve() == path:
            return compile(tree, str(path), "exec", dont_inherit=True)
        return as_written(self, fullname)

    loader.get_code = get_code  # type: ignore[method-assign]


def _prepare() -> None:
    """Imports what every test needs, but nothing of npuc, before the mutants' processes are forked."""
    sys.path.insert(0, str(ROOT))
    for name in ("networkx", "numpy", "onnx", "onnxruntime", "pytest"):
        importlib.import_module(name)


@click.command()
@click.option("--count", type=click.IntRange(1), default=40, show_default=True, help="Mutants to draw.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which ones.")
@click.option("--only", multiple=True, help="Of those in whose line this text is: part, file:line, old -> new.")
@click.option("--list", "list_wanted", is_flag=True, help="Print them with their tests; run nothing.")
def main(count: int, seed: int, only: Sequence[str], list_wanted: bool) -> None:
    """Small changes of conditions, each of which some test must notice."""
    found = {
        part: [each for each in mutants if not only or any(text in f"{part} {each}" for text in only)]
        for part, mutants in generate().items()
    }
    chosen = draw(found, count, seed)
    if not chosen:
        raise click.UsageError("no mutant is named so")
    if list_wanted:
        for each in chosen:
            click.echo(f"{each}\n    {' '.join(tests_of(each))}")
        return
    _prepare()
    outcomes: list[Outcome] = []
    for each in chosen:
        outcomes.append(run(each))
        click.echo(f"{outcomes[-1].result:9s}{outcomes[-1].seconds:6.1f} s  {each}")
    killed = sum(each.result == KILLED for each in outcomes)
    total = sum(map(len, found.values()))
    click.echo(f"{killed} of {len(outcomes)} killed ({killed / len(outcomes):.1%}), drawn from {total:,}")
    sys.exit(killed < LEAST_KILLED * len(outcomes))


if __name__ == "__main__":
    main()
