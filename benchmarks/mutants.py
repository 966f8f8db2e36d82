"""Mutants of conditions, generated from the syntax tree; one that survives its tests is an untested condition.

    python benchmarks/mutants.py [--count N] [--seed S] [--only TEXT]... [--tests FILE]...

A mutant negates a condition, drops an operand of `and`, `or` or a constraint of a support table, or shifts a
comparison by one (< to <=, 4 to 5). N of them are drawn from `SOURCES` by the seed. Each runs the tests that
execute its line, until one fails. The first run asks coverage which these are, in a quarter of an hour; delete
`found/lines.sqlite` when lines have moved. A mutant is planted in a process forked from one that has imported all
tests; no file changes. `equivalent_mutants.toml` lists what no test can tell. Exit code 1 unless 95 % are killed.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from time import perf_counter, process_time
from types import CodeType, FunctionType
from typing import Any

import click
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
LINES, TIMES = ROOT / "found/lines.sqlite", ROOT / "found/seconds.json"
"""The lines that each test executes (coverage's data, a test a context), and its seconds."""
SOURCES = (
    *("passes", "npuc/conditions", "npuc/regions/planning.py", "npuc/quantize/network", "npuc/quantize/scales"),
    *("targets/easynpu/network", "targets/easynpu/layers", "targets/easynpu/program/lowering.py"),
    *("targets/nvdla/network", "targets/nvdla/selection", "targets/nvdla/quantisation"),
    *("targets/nvdla/program/lowering.py", "targets/bm1684/network", "targets/bm1684/lowering"),
)
"""Folders or files with conditions."""
TESTS = (
    *("bm1684", "conditions", "easynpu", "easynpu_reshape", "easynpu_rewrites", "easynpu_tables", "frontend"),
    *("graphs", "nvdla", "passes", "quantize", "regions", "cli/test_scales.py", "test_documentation.py"),
    "test_doctests.py",
)
"""Folders or files of tests that may tell; of them those that are not slow."""
TEST_SECONDS, SECONDS = 20, 60
"""The limits of CPU time of one test, which then fails, and of all tests of a mutant, which then survives."""
RESULTS = {0: "survived", 1: "killed", 2: "not planted", -signal.SIGPROF: "endless"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the number of it in `changes`, and what it makes of which expression."""

    file: str
    line: int
    number: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.old}  ->  {self.new}"


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


def mutants_of(source: str, file: str = "") -> list[Mutant]:
    """All mutants of a text, in order."""
    return [
        Mutant(file, old.lineno, number, ast.unparse(old), ast.unparse(new))
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


def generate() -> list[Mutant]:
    """The mutants that tests may tell."""
    known = {(each["file"], each["old"], each["new"]) for each in equivalent()}
    return [
        mutant
        for path in source_files()
        for mutant in mutants_of(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
        if (path.name, mutant.old, mutant.new) not in known
    ]


def source_files() -> list[Path]:
    """The files with conditions."""
    places = [ROOT / source for source in SOURCES]
    return sorted(path for place in places for path in ([place] if place.is_file() else place.rglob("*.py")))


def equivalent() -> list[dict[str, str]]:
    """The exceptions: file, old, new, reason."""
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]


class Collector:
    """A plugin of pytest that writes which test executes which lines, and for how long."""

    def __init__(self) -> None:
        from coverage import Coverage

        LINES.parent.mkdir(exist_ok=True)
        self.coverage = Coverage(data_file=str(LINES), include=[*map(str, source_files())], config_file=False)
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Collects over all tests."""
        self.coverage.start()
        try:
            return (yield)
        finally:
            self.coverage.stop()
            self.coverage.save()
            TIMES.write_text(json.dumps(self.seconds), encoding="utf-8")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, with its fixtures; one that fails as it is tells nothing."""
        self.coverage.switch_context(item.nodeid)
        began, failed = perf_counter(), item.session.testsfailed
        result = yield
        if item.session.testsfailed == failed:
            self.seconds[item.nodeid] = perf_counter() - began
        return result


@dataclass
class Runner:
    """A plugin of pytest that runs, instead of all tests once, those of every mutant in a process of its own."""

    mutants: Sequence[Mutant]
    lines: Any = None
    """What coverage has found; None: all tests run."""
    results: list[str] = field(default_factory=list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the mutants, and prints their results."""
        if session.testsfailed:
            raise session.Failed("a file of tests cannot be imported")
        functions()
        for mutant in self.mutants:
            began = perf_counter()
            items = self.tests_of(mutant, session.items)
            self.results.append(run(mutant, items) if items else "survived")
            click.echo(f"{self.results[-1]:9s}{perf_counter() - began:6.1f} s {len(items):5d} tests  {mutant}")
        return True

    def tests_of(self, mutant: Mutant, items: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
        """The tests that execute the mutant's line (in a table: any of the file), those of fast files first.

        Behind them the others of their files, which may use what the first ones made.
        """
        if self.lines is None:
            return items
        seconds = json.loads(TIMES.read_text(encoding="utf-8"))
        found = self.lines.contexts_by_lineno(str(ROOT / mutant.file))
        hits = set(found.get(mutant.line) or chain(*found.values()))
        files: Counter[Path] = Counter()
        for item in items:
            if item.nodeid in hits:
                files[item.path] += seconds.get(item.nodeid, 0)

        def order(item: pytest.Item) -> tuple[bool, float, Path, float]:
            return item.nodeid not in hits, files[item.path], item.path, seconds[item.nodeid]

        return sorted((each for each in items if each.path in files and each.nodeid in seconds), key=order)


def run(mutant: Mutant, items: Sequence[pytest.Item]) -> str:
    """What becomes of a mutant, which a process of its own holds."""
    code = 2
    if not (child := os.fork()):
        try:
            code = _fails(mutant, items)
        finally:
            os._exit(code)
    return RESULTS.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "killed")


def _fails(mutant: Mutant, items: Sequence[pytest.Item]) -> bool:
    """Whether a test fails, in time, with the mutant planted."""
    items[0].config.pluginmanager.unregister(name="terminalreporter")
    plant(mutant)
    end = process_time() + SECONDS
    for item, following in zip(items, [*items[1:], None], strict=True):
        signal.setitimer(signal.ITIMER_PROF, TEST_SECONDS)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed or process_time() > end:
            break
    return bool(items[0].session.testsfailed)


@cache
def functions() -> list[FunctionType]:
    """All functions, of modules as well that tests import while they run."""
    for path in source_files():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name if name.startswith("npuc.") else f"npuc.{name}")
    gc.unfreeze()  # what tests/conftest.py has hidden
    found = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    gc.freeze()
    return found


def plant(mutant: Mutant) -> None:
    """Changes the imported functions and support tables into those of the mutant."""
    path = ROOT / mutant.file
    source = path.read_text(encoding="utf-8")
    tree = change(source, mutant.number)
    codes = (compile(each, str(path), "exec", dont_inherit=True) for each in (ast.parse(source), tree))
    changed = dict(_pairs(*codes))
    for each in functions():
        each.__code__ = changed.get(each.__code__, each.__code__)
    statement = max((each for each in tree.body if each.lineno <= mutant.line), key=lambda each: each.lineno)
    if isinstance(statement, ast.AnnAssign):
        module = next(each for each in sys.modules.values() if getattr(each, "__file__", None) == str(path))
        names = dict(vars(module))
        exec(compile(ast.Module([statement], []), str(path), "exec"), names)
        name = ast.unparse(statement.target)
        for op, row in names[name].items():
            vars(vars(module)[name][op]).update(vars(row))


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of functions before and after, where it differs."""
    yield from [(old, new)] if old != new else []
    olds, news = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
    for each, other in zip(olds, news, strict=True) if len(olds) == len(news) else ():
        yield from _pairs(each, other)


@click.command()
@click.option("--count", type=click.IntRange(1), default=40, show_default=True, help="Mutants to draw.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which ones.")
@click.option("--only", multiple=True, help="Of those in whose line this text is: file:line, old -> new.")
@click.option("--tests", multiple=True, help="Files of tests that run instead of those that the lines tell.")
def main(count: int, seed: int, only: Sequence[str], tests: Sequence[str]) -> None:
    """Small changes of conditions, each of which some test must notice."""
    found = [each for each in generate() if not only or any(text in str(each) for text in only)]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    os.chdir(ROOT)
    arguments = ["-q", "-p", "no:cacheprovider", *(tests or [f"tests/{each}" for each in TESTS])]
    if not tests and not LINES.exists():
        if pytest.main(arguments, plugins=[Collector()]) > pytest.ExitCode.TESTS_FAILED:
            sys.exit(1)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # without what these tests have left in caches
    runner = Runner(chosen)
    if not tests:
        from coverage import CoverageData

        runner.lines = CoverageData(str(LINES))
        runner.lines.read()
    pytest.main(arguments, plugins=[runner])
    killed, count = sum(each in ("killed", "endless") for each in runner.results), len(runner.results)
    share = killed / max(count, 1)
    click.echo(f"{killed} of {count} killed ({share:.1%}), drawn from {len(found):,}")
    sys.exit(share < 0.95)


if __name__ == "__main__":
    main()
