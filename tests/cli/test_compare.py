"""`npuc compare`: the same model on several targets and machines, a row each."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.cli.process import PROBLEM, SYNTHETIC, Digits, WriteModel, compiled, npuc

CONV = """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
    y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
}"""


def test_a_row_says_what_compile_reports_and_the_time_at_the_clock(digits: Digits, tmp_path: Path) -> None:
    options = ("--calibration", digits.few)
    report = npuc("compare", digits.model, "--targets", "easynpu,nvdla-small,bm1684", *options, "--json").json
    assert [row["target"] for row in report["rows"]] == ["easynpu", "nvdla-small", "bm1684"]
    # nv_small's machine has 1 GHz, BM1684 550 MHz; the EasyNPU document names no clock
    assert [row["clock_mhz"] for row in report["rows"]] == [None, 1000, 550]
    for row in report["rows"]:
        made = npuc(
            "compile", digits.model, "--target", row["target"], "-o", tmp_path / "o", *options, "--json"
        ).json
        assert {key: row[key] for key in ("cycles", "utilization", "instructions", "memory")} == {
            key: made[key] for key in ("cycles", "utilization", "instructions", "memory")
        }
        assert row["peak_bytes"] == sum(use["peak_bytes"] for use in made["memory"].values())
        clock = row["clock_mhz"]
        assert row["milliseconds"] == (None if clock is None else pytest.approx(made["cycles"] / (clock * 1000)))
        assert row["sqnr_db"] is row["argmax_agreement"] is row["top1"] is None


def test_traffic_is_every_byte_in_and_out_once_where_all_fits(write: WriteModel) -> None:
    model = write(CONV, w=(16, 16, 3, 3))
    report = npuc("compare", model, "--targets", "easynpu,bm1684", "--json").json
    easynpu, bm1684 = (row["traffic_bytes"] for row in report["rows"])
    maps = 2 * 16 * 8 * 8
    # int8: both maps; the weights stay in the machine
    assert easynpu == maps
    # fp32 in pairs of input channels: both maps and the weights
    assert bm1684 == 4 * (maps + 2304)


def test_scores_are_those_of_the_outputs_that_run_writes(digits: Digits, tmp_path: Path) -> None:
    options = ("--calibration", digits.calibration, "--data", digits.test)
    report = npuc("compare", digits.model, "--target", "easynpu", *options, "--json").json
    (row,) = report["rows"]
    compiled(digits.model, tmp_path / "o", "--calibration", digits.calibration).done()
    npuc("run", tmp_path / "o", "--data", digits.test, "-o", tmp_path / "y.npz").done()
    session = onnxruntime.InferenceSession(digits.model)
    with np.load(digits.test) as data, np.load(tmp_path / "y.npz") as outputs:
        name = session.get_inputs()[0].name
        feeds = [each.reshape(session.get_inputs()[0].shape) for each in data["x"].astype(np.float32)]
        exact = np.concatenate([session.run(None, {name: each})[0] for each in feeds])
        found = outputs[session.get_outputs()[0].name].reshape(exact.shape)
        labels = data["y"]
    assert report["samples"] == len(labels)
    assert report["fp32_top1"] == pytest.approx((exact.argmax(1) == labels).mean())
    assert row["top1"] == pytest.approx((found.argmax(1) == labels).mean())
    assert row["argmax_agreement"] == pytest.approx((found.argmax(1) == exact.argmax(1)).mean())
    noise = ((found.astype(np.float64) - exact) ** 2).sum()
    assert row["sqnr_db"] == pytest.approx(10 * np.log10((exact.astype(np.float64) ** 2).sum() / noise))


def test_machines_of_one_target_stand_beside_each_other(write: WriteModel, tmp_path: Path) -> None:
    model, narrow = write(CONV, w=(16, 16, 3, 3)), tmp_path / "narrow.toml"
    narrow.write_text("psum_entries = 1\n")
    listed = npuc("compare", model, "--targets", f"easynpu:default,easynpu:{narrow}", "--json").json
    named = npuc(
        "compare", model, "--target", "easynpu", "--machine", "default", "--machine", narrow, "--json"
    ).json
    assert listed == named and [row["machine"] for row in listed["rows"]] == ["default", "narrow"]
    assert listed["rows"][0]["cycles"] < listed["rows"][1]["cycles"]


def test_a_target_that_refuses_is_a_row_with_its_problems(write: WriteModel, tmp_path: Path) -> None:
    model, missing = write(CONV, w=(16, 16, 3, 3)), tmp_path / "missing.toml"
    outcome = npuc("compare", model, "--targets", f"easynpu,easynpu:{missing}", "--json")
    assert outcome.code == 0 and outcome.json["status"] == "ok" and outcome.json["errors"] == []
    good, bad = outcome.json["rows"]
    assert good["status"] == "ok" and good["errors"] == []
    assert bad["status"] == "refused" and bad["cycles"] is None and good.keys() == bad.keys()
    assert [set(each) for each in bad["errors"]] == [PROBLEM] and bad["errors"][0]["code"] == "E305"
    text = npuc("compare", model, "--targets", f"easynpu,easynpu:{missing}").done()
    assert "E305" in text.splitlines()[-1] and "missing.toml" in text.splitlines()[-1]


def test_it_fails_only_if_all_refuse(write: WriteModel) -> None:
    model = write("g (float[1,16,8,8] x) => (float[1,16,8,8] y) { y = FancyOp(x) }")
    outcome = npuc("compare", model, "--targets", "easynpu,bm1684", "--json")
    assert outcome.code == 1 and outcome.json["status"] == "error"
    assert len(outcome.json["rows"]) == 2 and {each["code"] for each in outcome.json["errors"]} == {"E201"}


def test_csv_has_a_column_per_figure_and_per_memory(digits: Digits) -> None:
    out = npuc("compare", digits.model, "--targets", "easynpu,nvdla-small", "--format", "csv").done()
    easynpu, nvdla = csv.DictReader(out.splitlines())
    report = npuc("compare", digits.model, "--targets", "easynpu,nvdla-small", "--json").json
    assert [int(row["cycles"]) for row in (easynpu, nvdla)] == [row["cycles"] for row in report["rows"]]
    assert int(easynpu["fmap_peak_bytes"]) == report["rows"][0]["memory"]["fmap"]["peak_bytes"]
    assert easynpu["cbuf_peak_bytes"] == nvdla["fmap_peak_bytes"] == easynpu["milliseconds"] == ""


def test_wrong_models_data_and_targets_are_no_rows(digits: Digits, tmp_path: Path) -> None:
    npuc("compare", tmp_path / "missing.onnx").refused("E101")
    npuc("compare", digits.model, "--target", "easynpu", *SYNTHETIC, "--data", digits.model).refused("E401")
    assert "Did you mean 'easynpu'?" in npuc("compare", digits.model, "--targets", "easynp").usage()
    assert "Did you mean 'easynpu'?" in npuc("compare", digits.model, "--target", "easynp").usage()
    npuc("compare", digits.model, "--targets", "easynpu:").usage()
    npuc("compare", digits.model, "--targets", "easynpu,bm1684", "--machine", "large").usage()


def test_the_tables_fit_a_terminal(digits: Digits) -> None:
    """80 columns; a machine stands where it is not the usual one; scores have a table of their own."""
    targets = "easynpu,easynpu:large,nvdla-small,nvdla-full,bm1684"
    out = npuc("compare", digits.model, "--targets", targets, *SYNTHETIC, "--data", digits.few).out
    assert max(map(len, out.splitlines())) <= 80
    assert "easynpu:large" in out and "nvdla-small:" not in out and out.count("nvdla-full ") == 2
