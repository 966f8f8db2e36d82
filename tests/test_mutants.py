"""The list of mutants and its runner: every mutant applies, none touches a file, what no test notices survives."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    """benchmarks/mutants.py as a module."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_every_mutant_applies(mutants: ModuleType) -> None:
    """Where code was moved or rewritten, update benchmarks/mutants.toml."""
    for each in mutants.listed():
        mutants.place_of(each)


def test_there_are_enough_mutants_of_every_part(mutants: ModuleType) -> None:
    listed = mutants.listed()
    places = [mutants.place_of(each)[0].relative_to(ROOT).as_posix() for each in listed]
    assert len(listed) >= 100
    assert len({each.name for each in listed}) == len(listed)
    for part in ("passes/", "targets/easynpu/", "targets/nvdla/", "targets/bm1684/", "npuc/quantize/"):
        assert sum(place.startswith(part) for place in places) >= 5


def mutant(mutants: ModuleType, **changed: str) -> object:
    """A mutant of the permutation's condition, or a part of it changed."""
    condition = "    return perm == tuple(range(len(perm)))"
    kept = {"name": "n", "file": "remove_dead_code.py", "old": condition, "new": "    return bool(perm)"}
    return mutants.Mutant(**{**kept, **changed}, tests=("passes/test_conditions.py",))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"old": "no such text"}, "in 0 of 1 files"),
        ({"old": "return"}, "times"),
        ({"file": "nowhere.py"}, "in 0 of 0 files"),
        ({"new": "    return ("}, "no Python"),
    ],
)
def test_a_mutant_that_does_not_apply_is_an_error(mutants: ModuleType, changed: dict[str, str], said: str) -> None:
    outcome = mutants.run(mutant(mutants, **changed))
    assert outcome.result == "error"
    assert said in outcome.detail


LIST = """
[[group]]
file = "remove_dead_code.py"
tests = ["passes/test_conditions.py::test_an_average_of_one_window_that_is_partly_padding_is_of_what_it_meets"]

[[group.mutant]]
name = "the same"
old = "    return perm == tuple(range(len(perm)))"
new = "    return tuple(range(len(perm))) == perm"

[[group]]
file = "remove_dead_code.py"
tests = ["passes/test_conditions.py"]

[[group.mutant]]
name = "killed"
old = "    return perm == tuple(range(len(perm)))"
new = "    return bool(perm)"

[[group.mutant]]
name = "gone"
old = "no such text"
new = ""
"""


def test_the_runner_tells_what_survives_and_leaves_the_files(mutants: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "mutants.toml"
    path.write_text(LIST, encoding="utf-8")
    source, _ = mutants.place_of(mutant(mutants))
    before = source.read_bytes()
    command = [sys.executable, str(ROOT / "benchmarks" / "mutants.py"), "--list", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert [row["result"] for row in found["mutants"]] == ["survived", "killed", "error"]
    assert done.returncode == 1
    assert source.read_bytes() == before
