"""Writes `patterns.jsonl`: the graphs that the tests of passes build, one a line.

    python -m tests.graphs.recording

Constants of more than a few elements are kept as the range of their values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import npuc.ops
from npuc.ir import Array, Graph
from tests.graphs.splicing import FILE

TESTS = Path(__file__).resolve().parents[1] / "passes"
SLOW = ("test_every_pass.py",)
MOST_NODES, MOST_ELEMENTS = 12, 4000
WHOLE = 16
"""Constants of at most so many elements are kept as they are."""


def recorded() -> list[Graph]:
    """The graphs of all tests of passes, which run for it."""
    found: list[Graph] = []
    build = npuc.ops.build

    def recording(*given: Any) -> Graph:
        found.append(build(*given))
        return found[-1]

    npuc.ops.build = recording
    files = sorted(str(path) for path in TESTS.glob("test_*.py") if path.name not in SLOW)
    try:
        pytest.main(["-q", "-p", "no:cacheprovider", *files])
    finally:
        npuc.ops.build = build
    return found


def as_json(graph: Graph) -> str:
    """The graph in one line."""
    content: dict[str, Any] = {
        "inputs": {name: [graph.tensors[name].dtype, graph.shape(name)] for name in graph.inputs},
        "nodes": [[node.op, node.inputs, node.outputs, dict(node.attrs)] for node in graph.nodes],
        "constants": {name: _constant(value) for name, value in graph.constants.items()},
    }
    return json.dumps(content, separators=(",", ":"))


def _constant(value: Array) -> dict[str, Any]:
    kept = {"dtype": str(value.dtype), "shape": value.shape}
    if value.dtype.kind != "f":
        return {**kept, "values": value.ravel().tolist()}
    if value.size <= WHOLE:
        return {**kept, "values": [float(f"{each:.4g}") for each in value.ravel().tolist()]}
    return {**kept, "range": [float(f"{each:.3g}") for each in (value.min(), value.max())]}


def main() -> None:
    """Writes the file; patterns of one node are left out, as any graph has such."""
    chosen: dict[object, Graph] = {}
    for graph in recorded():
        elements = sum(each.size for each in graph.tensors.values())
        if 2 <= len(graph.nodes) <= MOST_NODES and elements <= MOST_ELEMENTS:
            nodes = tuple((node.op, node.inputs, str(sorted(node.attrs.items()))) for node in graph.nodes)
            chosen.setdefault((nodes, tuple(map(str, graph.tensors.values()))), graph)
    FILE.write_text("".join(f"{as_json(each)}\n" for each in chosen.values()), encoding="utf-8")


if __name__ == "__main__":
    main()
