"""Programs as test programs of NVDLA's verification environment: what is written runs to its CRC from reset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from npuc.target import target
from npuc.targets.nvdla import model, trace
from npuc.targets.nvdla.machine import parameters as machines
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights


def exported(folder: Path, name: str) -> Path:
    """The files of a small network with a residual sum."""
    constants = {"w": weights(8, 3, 3, 3), "v": weights(8, 8, 3, 3), "b": np.ones(8, np.float32)}
    nodes = [
        node("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r"),
        node("Conv", "r v", "c", pads=[1, 1, 1, 1]),
        node("Add", "c r", "y"),
    ]
    _, _, program = compiled(network(nodes, (1, 3, 16, 16), constants), folder, name)
    out = folder / "trace"
    out.mkdir()
    for file, data in target(name).export(program, "nvdla-trace").items():
        (out / file).write_bytes(data)
    return out


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large", "nvdla-full"])
def test_an_exported_program_runs_to_its_crc(name: str, tmp_path: Path) -> None:
    machine = machines.load(name)
    found = trace.read(exported(tmp_path, name), machine.registers)
    after = model.run(machine, found.commands, found.memory())
    assert found.checks and all(check.holds(after) for check in found.checks)
    assert any(after.read(found.checks[0].address, found.checks[0].size))


def test_the_map_says_where_tensors_lie(tmp_path: Path) -> None:
    (entry,) = json.loads((exported(tmp_path, "nvdla-small") / "map.json").read_text())
    assert entry["program"] == "trace_0.cfg"
    assert entry["loads"][0]["pixels"] == "T_Y8___V8U8_N444"
    assert [(each["shape"], each["line_stride"]) for each in entry["loads"]] == [([1, 3, 16, 16], 32)]
    assert entry["stores"][0]["bytes"] == 8 * 16 * 16


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = exported(tmp_path / "a", "nvdla-small"), exported(tmp_path / "b", "nvdla-small")
    assert [each.read_bytes() for each in sorted(first.iterdir())] == [
        each.read_bytes() for each in sorted(second.iterdir())
    ]
