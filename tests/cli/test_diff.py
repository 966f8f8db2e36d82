"""`npuc diff`: what changed between two programs, aligned by source node."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npuc.reports.difference import changed_lines
from tests.cli.process import SYNTHETIC, Digits, WriteModel, compiled, npuc

CHAIN = """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
    b = Relu(a)
    y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w)
}"""


def test_a_program_is_the_same_as_itself(digits: Digits, tmp_path: Path) -> None:
    """Also if several layers belong to one node: a copy of a map with padding, and the convolution."""
    compiled(digits.model, tmp_path / "o", "--calibration", digits.calibration).done()
    assert npuc("diff", tmp_path / "o", tmp_path / "o").done().endswith("are the same program\n")
    report = npuc("diff", tmp_path / "o", tmp_path / "o", "--json").json
    assert report["same"] and report["totals"] == {} and report["layers"] == []


def test_another_machine_shows_in_totals_tiles_and_instructions(write: WriteModel, tmp_path: Path) -> None:
    model = write(CHAIN, w=(16, 16, 3, 3))
    narrow = tmp_path / "narrow.toml"
    narrow.write_text("psum_entries = 1\n")
    compiled(model, tmp_path / "a").done()
    compiled(model, tmp_path / "b", "--machine", narrow).done()
    report = npuc("diff", tmp_path / "a", tmp_path / "b", "--json").json
    assert not report["same"] and report["totals"]["machine"] == ["default", "narrow"]
    first, second = report["layers"]
    assert first["nodes"] == ["Conv_0", "Relu_1"] and second["nodes"] == ["Conv_2"]
    assert first["changed"]["tile"][1] == [1, 1] and first["cycles"][0] < first["cycles"][1]
    # the tile is the only difference: one word goes for each layer, one comes
    assert [len(group["removed"]) for group in (first, second)] == [1, 1]
    assert "y=" in first["removed"][0] + first["added"][0] or "x=" in first["removed"][0] + first["added"][0]
    before, after = ("x".join(map(str, each)) for each in first["changed"]["tile"])
    told = npuc("diff", tmp_path / "a", tmp_path / "b").done().splitlines()
    (line,) = [each for each in told if each.startswith(first["layers"][0][0])]
    assert f"{first['cycles'][0]:,}" in line and f"tile {before} -> {after}, " in line
    text = npuc("diff", tmp_path / "a", tmp_path / "b", "-v").done()
    assert f"  - {first['removed'][0]}\n  + {first['added'][0]}" in text
    rows, columns, cycles = first["changed"]["tile_runner_up"][0]
    assert f"{rows}x{columns} ({cycles:,} cycles)" in text


def test_layers_that_were_fused_differently_stand_together(write: WriteModel, tmp_path: Path) -> None:
    compiled(write(CHAIN, w=(16, 16, 3, 3)), tmp_path / "a").done()
    split = CHAIN.replace("b = Relu(a)", "b = Relu(a)\n c = Relu(b)").replace("(b, w)", "(c, w)")
    compiled(write(split, name="n.onnx", w=(16, 16, 3, 3)), tmp_path / "b").done()
    report = npuc("diff", tmp_path / "a", tmp_path / "b", "--json").json
    nodes = {node for group in report["layers"] for node in group["nodes"]}
    assert "Conv_2" in nodes and "Conv_3" in nodes


def test_outputs_are_compared_on_the_same_samples(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--calibration", digits.calibration).done()
    (output,) = npuc("diff", digits.program, tmp_path / "o", "--data", digits.few, "--json").json["outputs"]
    found = []
    for program in (digits.program, tmp_path / "o"):
        npuc("run", program, "--data", digits.few, "-o", tmp_path / "y.npz").done()
        with np.load(tmp_path / "y.npz") as file:
            found.append(file[output["name"]])
    assert output["max_abs_error"] == np.abs(found[1].astype(np.float64) - found[0]).max() > 0


def test_what_is_no_program_is_refused(digits: Digits, tmp_path: Path) -> None:
    npuc("diff", digits.program, tmp_path).refused("E501")
    npuc("diff", digits.program).usage()


def test_with_the_model_the_accuracy_of_both_is_told(digits: Digits, tmp_path: Path) -> None:
    options = ("--target", "bm1684", "-q", "-o", tmp_path / "float.npu")
    npuc("compile", *SYNTHETIC, digits.model, *options).done()
    command = ("diff", digits.program, tmp_path / "float.npu", "--model", digits.model)
    found = npuc(*command, "--data", digits.few, "--json").json["accuracy"]
    assert found["sqnr_db"][0] < 60 < found["sqnr_db"][1] and found["top1"] == [1.0, 1.0]
    assert "against fp32" in npuc(*command, "--data", digits.few).done()
    assert "--data" in npuc(*command).usage()


def test_layers_of_many_thousand_instructions_are_compared_by_their_lines() -> None:
    """Aligning them would take hours; what was swapped counts as the same, what occurs once more as new."""
    lines = [f"write {number % 50}" for number in range(40_000)]
    removed, added = changed_lines(["gone", *lines], [*lines[20_000:], *lines[:20_000], "write 7", "new"])
    assert (removed, added) == (["gone"], ["write 7", "new"])
