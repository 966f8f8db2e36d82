"""Plans: what layers have in common is selected once, and nothing else is shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc.targets.nvdla.selection import planning
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights

LAYERS = {  # name: kernel shape, attributes; in pairs that differ in one thing each
    "c0": ((16, 16, 3, 3), {"pads": [1] * 4}),
    "c1": ((16, 16, 3, 3), {"pads": [1] * 4}),
    "c2": ((16, 16, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "c3": ((24, 16, 3, 3), {"pads": [1] * 4}),
    "c4": ((24, 24, 1, 1), {}),
    "c5": ((24, 24, 1, 1), {"strides": [2, 2]}),
    "c6": ((24, 24, 3, 3), {"pads": [1] * 4}),
    "c7": ((24, 24, 3, 3), {"pads": [1] * 4}),
    "c8": ((24, 12, 3, 3), {"pads": [1] * 4, "group": 2}),
}


def _files(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    nodes = [
        node("Conv", f"{before} {name}_w", name, **LAYERS[name][1])
        for before, name in zip(["x", *LAYERS][:-1], LAYERS, strict=True)
    ]
    nodes += [node("Add", "c7 c8", "y")]
    constants = {f"{name}_w": weights(*shape) for name, (shape, _) in LAYERS.items()}
    _, directory, _ = compiled(network(nodes, (1, 16, 24, 24), constants), folder)
    return {each.name: each.read_bytes() for each in directory.iterdir()}


def test_layers_that_are_alike_are_planned_as_if_each_were_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = _files(tmp_path / "shared")
    monkeypatch.setattr(planning, "likeness", lambda *_: (None, 0, 0))
    assert _files(tmp_path / "each") == shared
