"""Lines of the project, by package: all lines, lines of code, and the lengths of files and functions.

    python benchmarks/size.py [--json] [--functions N]

Lines of code are those that are not blank, comment or docstring. Lines outside tests are those of all other
packages.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from npuc.text.terminal import as_json, table  # noqa: E402

PACKAGES = ("npuc", "passes", "targets", "models", "docs", "benchmarks", "examples", "tests")
TESTS = "tests"
CEILINGS = {
    "benchmarks": 3_790,
    "docs": 430,
    "examples": 200,
    "models": 2_000,
    "npuc": 39_220,
    "passes": 6_590,
    "targets/bm1684": 11_010,
    "targets/easynpu": 18_725,
    "targets/nvdla": 20_925,
    "tests": 64_950,
}
"""The most lines of a package. A commit that raises one gives the reason."""
SPLIT = {"targets"}
"""Packages whose folders have separate rows."""
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Function:
    """A function, and its lines without decorators."""

    name: str
    lines: int


@dataclass(frozen=True)
class File:
    """A Python file."""

    path: str
    lines: int
    code: int
    functions: tuple[Function, ...]


@dataclass(frozen=True)
class Row:
    """A package."""

    package: str
    files: int
    lines: int
    ceiling: int | None
    code: int
    median_file: int
    longest_file: int
    functions: int
    p95_function: int
    longest_function: int


def read(path: Path) -> File:
    """A file's counts."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    silent = {line for node in ast.walk(tree) for line in _docstring(node)}
    spoken: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            spoken.update(range(token.start[0], token.end[0] + 1))
    name = path.relative_to(ROOT).as_posix()
    return File(name, text.count("\n"), len(spoken - silent), tuple(_functions(name, tree)))


def _docstring(node: ast.AST) -> Iterable[int]:
    """The lines of string statements: docstrings, including those of attributes."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return ()


def _functions(path: str, tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(f"{path}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)


def package_of(path: str) -> str:
    """The row that a file belongs to.

    >>> package_of("targets/nvdla/model/sdp.py"), package_of("npuc/ir.py")
    ('targets/nvdla', 'npuc')
    """
    first, *others = path.split("/")
    return f"{first}/{others[0]}" if first in SPLIT and len(others) > 1 else first


def row(package: str, files: list[File]) -> Row:
    """The counts of a package's files."""
    lines, functions = [each.lines for each in files], [each.lines for file in files for each in file.functions]
    shares = quantiles(functions, n=20, method="inclusive") if len(functions) > 1 else functions
    return Row(
        package,
        len(files),
        sum(lines),
        CEILINGS.get(package),
        sum(each.code for each in files),
        round(median(lines)),
        max(lines),
        len(functions),
        round(shares[-1]) if shares else 0,
        max(functions, default=0),
    )


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--functions", "longest", type=click.IntRange(min=0), default=0, help="Also the longest functions.")
def main(json_wanted: bool, longest: int) -> None:
    """Count the project's lines."""
    found = [read(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    packages: dict[str, list[File]] = {}
    for file in found:
        packages.setdefault(package_of(file.path), []).append(file)
    outside = [file for file in found if package_of(file.path) != TESTS]
    rows = [*(row(name, files) for name, files in packages.items()), row("outside tests", outside)]
    functions = sorted((each for file in outside for each in file.functions), key=lambda each: -each.lines)[
        :longest
    ]
    if json_wanted:
        click.echo(as_json({"packages": [*map(asdict, rows)], "functions": [*map(asdict, functions)]}))
        return
    header = (
        "package",
        "files",
        "lines",
        "ceiling",
        "code",
        "median file",
        "longest",
        "functions",
        "p95",
        "longest",
    )
    click.echo(table(header, [tuple(asdict(each).values()) for each in rows]))
    if functions:
        click.echo("\n" + table(("function", "lines"), [(each.name, each.lines) for each in functions]))


if __name__ == "__main__":
    main()
