"""`npuc run`: floats in, floats out, in the model's own names and shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from npuc.ir import Array
from tests.cli.process import Digits, WriteModel, compiled, npuc
from tests.files import arrays


def fp32(digits: Digits) -> Array:
    session = ort.InferenceSession(str(digits.model), providers=["CPUExecutionProvider"])
    with np.load(digits.few) as file:
        samples = file["x"].astype(np.float32)
    return np.concatenate([session.run(None, {"input": sample[None]})[0] for sample in samples])


def test_outputs_have_the_model_s_name_shape_and_almost_its_values(digits: Digits, tmp_path: Path) -> None:
    npuc("run", digits.program, "--data", digits.few, "-o", tmp_path / "y.npz").done()
    found = arrays(tmp_path / "y.npz")
    assert list(found) == ["n11_Gemm"]
    assert found["n11_Gemm"].shape == (4, 10) and found["n11_Gemm"].dtype == np.float32
    error = found["n11_Gemm"] - fp32(digits)
    assert 10 * np.log10(np.square(fp32(digits)).sum() / np.square(error).sum()) > 20  # int8 keeps about 30 dB


def test_the_word_synthetic_stands_for_synthetic_samples(digits: Digits) -> None:
    assert "sample 7" in npuc("run", digits.program, "--data", "synthetic").done()
    told = npuc("verify", digits.model, digits.program, "--data", "synthetic").done()
    assert "of 8 samples" in told and "synthetic data do not tell how accurate it is" in told


def test_the_report_names_outputs_and_shapes(digits: Digits, tmp_path: Path) -> None:
    command = ("run", digits.program, "--data", digits.few, "-o", tmp_path / "y.npz")
    told = {"status": "ok", "output": str(tmp_path / "y.npz"), "samples": 4, "outputs": {"n11_Gemm": [4, 10]}}
    assert npuc(*command, "--json").json == told
    assert npuc(*command).done() == f"n11_Gemm: [4, 10] -> {tmp_path / 'y.npz'}\n"


@pytest.mark.parametrize("target", ["bm1684", "nvdla-small"])
def test_cycles_are_told_where_the_chip_model_counts_them(target: str, digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--target", target).done()
    arguments = ("run", tmp_path / "o", "--data", digits.few, "-o", tmp_path / "y.npz")
    told = npuc(*arguments, "--json").json
    assert ("cycles" in told) == (target == "bm1684")
    if "cycles" in told:
        assert 0 < told["cycles"] == json.loads((tmp_path / "o" / "manifest.json").read_text())["report"]["cycles"]
        assert f"{told['cycles']:,} cycles a sample" in npuc(*arguments).out


def test_data_files_are_run_one_after_the_other(digits: Digits, tmp_path: Path) -> None:
    npuc("run", digits.program, "--data", digits.few, "--data", digits.few, "-o", tmp_path / "y.npz").done()
    values = arrays(tmp_path / "y.npz")["n11_Gemm"]
    assert values.shape == (8, 10) and (values[:4] == values[4:]).all()


def test_more_samples_than_a_batch_agree_with_one_at_a_time(digits: Digits, tmp_path: Path) -> None:
    with np.load(digits.test) as file:
        samples = file["x"][:70]
    np.savez(tmp_path / "x.npz", x=samples)
    np.savez(tmp_path / "last.npz", x=samples[-1:])
    for name in ("x", "last"):
        npuc("run", digits.program, "--data", tmp_path / f"{name}.npz", "-o", tmp_path / f"{name}_y.npz").done()
    values = arrays(tmp_path / "x_y.npz")["n11_Gemm"]
    assert values.shape == (70, 10)
    assert (values[-1:] == arrays(tmp_path / "last_y.npz")["n11_Gemm"]).all()


def test_running_twice_gives_the_same_bytes(digits: Digits, tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        npuc("run", digits.program, "--data", digits.few, "-o", tmp_path / name).done()
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("output", ["file", "allow_pickle", "a/b"])
def test_an_output_may_have_any_name(write: WriteModel, tmp_path: Path, output: str) -> None:
    named = onnx.load(write("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"))
    named.graph.output[0].name = named.graph.node[0].output[0] = output
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3, 8, 8), np.float32))
    compiled(write(named), tmp_path / "o").done()
    npuc("run", tmp_path / "o", "--data", tmp_path / "x.npz", "-o", tmp_path / "y.npz").done()
    assert arrays(tmp_path / "y.npz")[output].shape == (2, 3, 8, 8)


def test_a_network_on_scalars_takes_a_row_of_samples(write: WriteModel, tmp_path: Path) -> None:
    model = write("g (float x) => (float y) { y = Relu(x) }")
    np.savez(tmp_path / "x.npz", x=np.float32([-1, 0, 1]))
    compiled(model, tmp_path / "o", "--calibration", tmp_path / "x.npz").done()
    npuc("run", tmp_path / "o", "--data", tmp_path / "x.npz", "-o", tmp_path / "y.npz").done()
    np.testing.assert_allclose(arrays(tmp_path / "y.npz")["y"], [0, 0, 1], atol=0.01)
    npuc("verify", model, tmp_path / "o", "--data", tmp_path / "x.npz").done()


def test_the_simulator_opens_no_evidence(digits: Digits, copy: Path, tmp_path: Path) -> None:
    npuc("run", copy, "--data", digits.few, "-o", tmp_path / "with.npz").done()
    for name in ("reference.onnx", "graph.json"):
        (copy / name).unlink()
    npuc("run", copy, "--data", digits.few, "-o", tmp_path / "without.npz").done()
    assert (tmp_path / "with.npz").read_bytes() == (tmp_path / "without.npz").read_bytes()
    npuc("verify", digits.model, copy, "--data", digits.few).refused("E502")


@pytest.mark.parametrize("output", ["/", ".."])
def test_an_output_that_holds_what_is_read_is_a_usage_error(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "would be replaced" in npuc("run", digits.program, "--data", digits.few, "-o", output).usage()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("output", [".", "nowhere/y.npz", "folder"])
def test_an_output_that_cannot_be_written_is_refused(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    npuc("run", digits.program, "--data", digits.few, "-o", output).refused("E506")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_data_must_be_given(digits: Digits) -> None:
    assert "--data" in npuc("run", digits.program, "-o", "y.npz").usage()


def test_without_a_file_outputs_are_printed(digits: Digits, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(
        "zero one two three four five six seven eight nine".replace(" ", "\n"), "utf-8"
    )
    best = fp32(digits).argmax(axis=1)
    found = npuc("run", digits.program, "--data", digits.few, "--json").json["answers"]
    first = found[0]["values"]["n11_Gemm"]
    assert [each["sample"] for each in found] == [0, 1, 2, 3] and first["shape"] == [10]
    assert np.abs(np.array(first["first"]) - fp32(digits)[0, :8]).max() < 0.05 * np.abs(fp32(digits)).max()
    named_run = ("run", digits.program, "--data", digits.few, "--labels", tmp_path / "names.txt")
    named = npuc(*named_run, "--json").json
    assert [each["classes"][0]["class"] for each in named["answers"]] == best.tolist()
    lines = npuc(*named_run).done().splitlines()
    words = (tmp_path / "names.txt").read_text("utf-8").split()
    assert lines[0] == "sample 0" and lines[1].endswith(f" %  {words[best[0]]}") and len(lines) == 4 * 6
    (tmp_path / "names.txt").write_text("zero\none\n", "utf-8")
    few = npuc(*named_run).refused("E402")
    assert "there are 2 labels" in few and "10 names" in few
