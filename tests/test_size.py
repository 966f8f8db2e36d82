"""benchmarks/size.py: what counts as code, counted by hand."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "size.py"
SOURCE = '''"""A module,
of two lines."""

import os  # one

LIMIT = 3
"""What it is."""


@decorated
def first(text: str) -> str:
    """Says something."""
    # a comment
    return f"""{text}
    and more"""


class Second:
    def method(self) -> None: ...
'''


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("size_of_project", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "size_of_project", found)
    spec.loader.exec_module(found)
    return found


def test_code_is_neither_blank_nor_comment_nor_docstring(
    size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(SOURCE, encoding="utf-8")
    found = size.read(tmp_path / "a.py")
    assert (found.path, found.lines, found.code) == ("a.py", 19, 8)
    assert [each.lines for each in found.functions] == [5, 1]


def test_the_table_adds_up(size: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "PACKAGES", ("examples", "models", "tests/programs"))
    done = CliRunner().invoke(size.main, ["--json", "--functions", "1"])
    found = json.loads(done.stdout)
    *packages, outside = found["packages"]
    assert [each["package"] for each in packages] == ["examples", "models"]
    for key in ("files", "lines", "code", "functions"):
        assert sum(each[key] for each in packages) == outside[key] > 0
    assert found["functions"][0]["lines"] == outside["longest_function"]


def test_a_line_that_was_moved_stood_before(
    size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@e", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    def commit() -> str:
        git("add", ".")
        git("commit", "-m", "m")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    lines = [f"constant_of_number_{number} = {number}\n" for number in range(20)]
    (tmp_path / "a.py").write_text("".join(lines), encoding="utf-8")
    first = commit()
    (tmp_path / "a.py").write_text("".join(lines[:10]), encoding="utf-8")
    moved = ["class Constants:\n", "    pass\n", *(f"    {line}" for line in lines[10:])]
    (tmp_path / "b.py").write_text("".join(moved), encoding="utf-8")
    commit()
    assert [size.lines_before(name, first) for name in ("a.py", "b.py")] == [10, 10]
    files = {"one": [size.read(tmp_path / "a.py")], "two": [size.read(tmp_path / "b.py")]}
    assert size.ages(files, first) == [("one", 10, 0), ("two", 10, 2), ("outside tests", 20, 2)]
