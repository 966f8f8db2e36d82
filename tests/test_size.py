"""benchmarks/size.py: what counts as code, counted by hand."""

from __future__ import annotations

import json
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
    done = CliRunner().invoke(size.main, ["--json"])
    packages = [each for each in json.loads(done.stdout)["packages"] if each["package"] in size.CEILINGS]
    assert {each["package"] for each in packages} == size.CEILINGS.keys()
    above = {each["package"]: each["lines"] - each["ceiling"] for each in packages}
    assert not {name: lines for name, lines in above.items() if lines > 0}
