"""benchmarks/size.py: what counts as code, counted by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tests.files import script

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
def size() -> ModuleType:
    return script("benchmarks/size.py")


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


def test_no_package_is_larger_than_its_ceiling(size: ModuleType) -> None:
    lines: Counter[str] = Counter()
    for path in (path for package in size.PACKAGES for path in (size.ROOT / package).rglob("*.py")):
        lines[size.package_of(path.relative_to(size.ROOT).as_posix())] += path.read_bytes().count(b"\n")
    assert lines.keys() >= size.CEILINGS.keys()
    above = {package: lines[package] - most for package, most in size.CEILINGS.items()}
    assert not {package: more for package, more in above.items() if more > 0}
