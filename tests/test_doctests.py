"""The examples in docstrings say what the code does."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def module_of(path: Path) -> str:
    """npuc/ir.py is npuc.ir; passes/rewriting/layout.py is npuc.passes.rewriting.layout."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "npuc" else ("npuc", *parts))


WITH_EXAMPLES = sorted(
    module_of(path)
    for folder in ("npuc", "passes", "targets", "models")
    for path in (ROOT / folder).rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0 and found.failed == 0
