"""benchmarks/parts.py: the functions by which it divides a compile's time exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _places() -> list[str]:
    """FILE:FUNCTION of all parts, without Python's own."""
    script = ast.parse((ROOT / "benchmarks" / "parts.py").read_text("utf-8"))
    assigned = (each for each in script.body if isinstance(each, ast.AnnAssign))
    value = next(each.value for each in assigned if ast.unparse(each.target) == "PARTS")
    assert value is not None
    parts: dict[str, tuple[str, ...]] = ast.literal_eval(value)
    return [place for places in parts.values() for place in places if not place.startswith("<")]


@pytest.mark.parametrize("place", _places())
def test_a_part_is_a_function_of_npuc(place: str) -> None:
    name, function = place.split(":")
    files = (path for folder in ("npuc", "targets") for path in (ROOT / folder).rglob(name))
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in nodes)
