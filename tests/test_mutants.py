"""The generator of mutants: what it changes, by hand; what no test notices survives, and no file is touched."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.files import script

SOURCE = "npuc/conditions/fixture.py"
FIXTURE = '''def fits(size, most):
    """Whether 1 <= size <= most."""
    if size < 1 or most is None:
        return False
    assert size != 7
    return size <= most
'''
TESTS = "from npuc.conditions.fixture import fits\ndef test_fits():\n    assert fits(4, 4) and not fits(5, 4)\n"


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return script("benchmarks/mutants.py")


@pytest.fixture(scope="module")
def found(mutants: ModuleType) -> list[Any]:
    """All mutants."""
    return mutants.generate()


def test_conditions_are_negated_dropped_and_shifted(mutants: ModuleType) -> None:
    source = FIXTURE + 'row = Support("conv", (one_image, strides), f"{1 < 2}")\n'
    assert [(each.old, each.new) for each in mutants.mutants_of(source)] == [
        ("size < 1 or most is None", "not (size < 1 or most is None)"),
        ("size < 1 or most is None", "most is None"),
        ("size < 1 or most is None", "size < 1"),
        ("size < 1", "size <= 1"),
        ("size < 1", "size < 0"),
        ("size <= most", "not size <= most"),
        ("size <= most", "size < most"),
        ("(one_image, strides)", "(strides,)"),
        ("(one_image, strides)", "(one_image,)"),
    ]
    assert "0 == x < 3" in [each.new for each in mutants.mutants_of("if 1 == x < 3 or y: pass")]


def test_every_source_has_some_and_a_changed_tree_compiles(mutants: ModuleType, found: list[Any]) -> None:
    assert len(found) >= 6_000
    assert all(any(each.file.startswith(source) for each in found) for source in mutants.SOURCES)
    for each in found[::240]:
        source = (mutants.ROOT / each.file).read_text(encoding="utf-8")
        tree = mutants.change(source, each.number)
        compile(tree, each.file, "exec", dont_inherit=True)
        assert ast.unparse(tree) != ast.unparse(ast.parse(source))


def test_what_is_listed_as_equivalent_has_a_reason_and_is_not_drawn(mutants: ModuleType, found: list[Any]) -> None:
    known = {(each["file"], each["old"], each["new"]) for each in mutants.equivalent()}
    assert all(each["reason"] for each in mutants.equivalent())
    assert not known & {(Path(each.file).name, each.old, each.new) for each in found}


@pytest.mark.parametrize("options", [("--tests", "tests/passes"), ()])
def test_the_runner_tells_what_survives_and_leaves_the_files(
    mutants: ModuleType, tmp_path: Path, options: tuple[str, ...]
) -> None:
    for each in mutants.TESTS:
        (tmp_path / "tests" / each).mkdir(parents=True)
    empty = dict.fromkeys(("npuc/__init__.py", "npuc/conditions/__init__.py"), "")
    for path, text in {**empty, SOURCE: FIXTURE, "tests/passes/test_one.py": TESTS}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n", encoding="utf-8")
    shutil.copytree(mutants.ROOT / "benchmarks", tmp_path / "benchmarks")
    command = [sys.executable, "benchmarks/mutants.py", "--count", "9", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    results = {line.partition("  ->  ")[2]: line.split()[0] for line in done.stdout.splitlines() if "->" in line}
    assert results == {
        "not (size < 1 or most is None)": "killed",
        "most is None": "survived",
        "size < 1": "survived",
        "size <= 1": "survived",
        "size < 0": "survived",
        "not size <= most": "killed",
        "size < most": "killed",
    }
    assert "3 of 7 killed" in done.stdout
    assert done.returncode == 1
    assert (tmp_path / SOURCE).read_text(encoding="utf-8") == FIXTURE
