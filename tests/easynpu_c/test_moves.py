"""Windows of host tensors go to their words and back, in whatever order and direction the words lie."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from npuc.program import Program
from npuc.targets.easynpu.machine.memory import MapPlace, high_end, low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import TensorMove
from tests.easynpu_c import compiling

WHOLE, SIZE = (1, 40, 5, 6), (21, 3, 4)
"""Of the tensors; channels, rows and columns of the windows."""
START, END = (16, 1, 2), (19, 2, 0)
"""First channel, row and column of the window that is loaded, and of the one that is stored."""
PLACES = (
    low_end("fmap", 7, SIZE[0], SIZE[2]),
    high_end("fmap", 1280, SIZE[0], SIZE[2]),
    MapPlace("skip", 100, 4, 1, 12),  # [C/16][H][W]
    MapPlace("skip", 1260, -1, 3, -500),  # from column to column upward, else downward
    MapPlace("fmap", 0, 200, 11, 3),  # with gaps
)


def move(tensor: str, place: MapPlace, start: tuple[int, int, int]) -> TensorMove:
    return TensorMove(tensor, WHOLE, place, *SIZE, start)


def segment(number: int, place: MapPlace) -> dict[str, Any]:
    """Loads a window, runs nothing, and stores what lies there to a window of another tensor."""
    moves = {"loads": [move("q", place, START)], "stores": [move(f"m{number}", place, END)]}
    listed = {
        key: [{**asdict(each), "shape": list(each.shape), "start": list(each.start)} for each in found]
        for key, found in moves.items()
    }
    return {"kind": "segment", "images": [], "count": 0, **listed}


def host(op: str, source: str, target: str) -> dict[str, Any]:
    lists = {"inputs": [source], "outputs": [target], "attrs": {"scale": 1.0}}
    return {"kind": "host", "node": target, "op": op, "conversion": True, "reason": "", **lists}


def test_windows_are_moved_through_any_pitches(tmp_path: Path) -> None:
    steps = [host("QuantizeLinear", "x", "q")]
    for number, place in enumerate(PLACES):
        steps += [segment(number, place), host("DequantizeLinear", f"m{number}", f"y{number}")]
    port = {"shape": list(WHOLE), "dtype": "float32"}
    manifest: dict[str, Any] = {
        "target": "easynpu",
        "machine": Machine().as_dict(),
        "steps": steps,
        "instructions": [],
        "inputs": [{"name": "x", **port}],
        "outputs": [{"name": f"y{number}", **port} for number in range(len(PLACES))],
    }
    found = Program(manifest, {"itcm.bin": b"", "weight.bin": b""})
    binary = compiling.exported(found, tmp_path / "c", compiling.careful_flags())
    x = np.random.default_rng(0).integers(-128, 128, (2, *WHOLE)).astype(np.float32)
    outputs = compiling.run(binary, found, {"x": x})
    for number in range(len(PLACES)):
        moved = outputs[f"y{number}"][:, 0, 19:40, 2:5, 0:4]
        np.testing.assert_array_equal(moved, x[:, 0, 16:37, 1:4, 2:6], err_msg=str(PLACES[number]))
