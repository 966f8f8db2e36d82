"""The generator of mutants: what it changes, by hand; what no test notices survives, and no file is touched."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from tests.files import script

FIXTURE = '''def fits(size, most):
    """Whether 1 <= size <= most."""
    if size < 1 or most is None:
        return False
    assert size != 7
    return size <= most
'''
TESTS = "from npuc.fixture import fits\n\n\ndef test_fits():\n    assert fits(4, 4)\n    assert not fits(5, 4)\n"


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return script("benchmarks/mutants.py")


@pytest.fixture(scope="module")
def found(mutants: ModuleType) -> dict[str, list[Any]]:
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


def test_every_part_has_many_and_a_seed_draws_the_same_of_each(
    mutants: ModuleType, found: dict[str, list[Any]]
) -> None:
    assert sum(map(len, found.values())) >= 300
    assert all(len(each) >= 30 for each in found.values())
    drawn = mutants.draw(found, 28, seed=5)
    assert drawn == mutants.draw(found, 28, seed=5) != mutants.draw(found, 28, seed=6)
    assert {each.part for each in drawn} == mutants.PARTS.keys()
    for each in drawn:
        source = (mutants.ROOT / each.file).read_text(encoding="utf-8")
        tree = mutants.change(source, each.number)
        compile(tree, each.file, "exec", dont_inherit=True)
        assert ast.unparse(tree) != ast.unparse(ast.parse(source))
        assert mutants.tests_of(each)


def test_what_is_listed_as_equivalent_has_a_reason_and_is_not_drawn(
    mutants: ModuleType, found: dict[str, list[Any]]
) -> None:
    known = {(each["file"], each["old"], each["new"]) for each in mutants.equivalent()}
    assert all(each["reason"] for each in mutants.equivalent())
    assert not known & {(Path(each.file).name, each.old, each.new) for part in found.values() for each in part}


def test_the_runner_tells_what_survives_and_leaves_the_files(
    mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in (("npuc/fixture.py", FIXTURE), ("tests/one/test_one.py", TESTS), ("npuc/__init__.py", "")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "PARTS", {"one": mutants.Part(("npuc",), ("one",))})
    monkeypatch.setattr(mutants, "_prepare", lambda: None)
    # A process that is forked here has imported npuc: its tests shall import the fixture's.
    for name in [name for name in sys.modules if name.partition(".")[0] == "npuc"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    done = CliRunner().invoke(mutants.main, ["--count", "9"])
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
    assert done.exit_code == 1
    assert (tmp_path / "npuc/fixture.py").read_text(encoding="utf-8") == FIXTURE
