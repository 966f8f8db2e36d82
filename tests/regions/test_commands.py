"""Every command takes a program with host regions, and says what runs where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.process import SYNTHETIC, npuc
from tests.onnx_models import parse

BODY = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n d = CumSum(a, k)\n e = Conv<pads = [1, 1, 1, 1]>(d, v)\n y = Sin(e)"
TEXT = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {BODY} }}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, samples, and its program."""
    found = tmp_path_factory.mktemp("regions")
    onnx.save(parse(TEXT, w=(8, 8, 3, 3), v=(8, 8, 3, 3)), found / "m.onnx")
    np.savez(found / "x.npz", x=np.random.default_rng(2).normal(1, 2, (4, 8, 6, 6)).astype(np.float32))
    options = ("--target", "easynpu", "-o", found / "m.npu", "--calibration", found / "x.npz", "-O0")
    (found / "said.txt").write_text(npuc("compile", found / "m.onnx", *options).done())
    return found


def test_compile_says_a_line_for_each_reason(folder: Path) -> None:
    said = (folder / "said.txt").read_text()
    assert "2 of 4 nodes on the NPU, 100.0 % of the MACs; 2 on the host\n" in said
    assert "host: CumSum 'CumSum_1' (576 bytes cross): the operator is not known [E201]\n" in said


def test_a_model_that_leaves_nothing_on_the_npu_is_told_so(tmp_path: Path) -> None:
    onnx.save(parse("g (float[1,8] x) => (float[1,8] y) { y = Sin(x) }"), tmp_path / "m.onnx")
    said = npuc("compile", tmp_path / "m.onnx", "--target", "bm1684", "-o", tmp_path / "m.npu").done()
    assert "NOTHING runs on the NPU" in said


def test_run_and_verify_take_all_parts(folder: Path, tmp_path: Path) -> None:
    data = ("--data", folder / "x.npz")
    npuc("run", folder / "m.npu", *data, "-o", tmp_path / "y.npz").done()
    report = npuc("verify", folder / "m.onnx", folder / "m.npu", *data, "--json").json
    assert report["bit_exact"] and [layer["name"] for layer in report["layers"]] == ["a", "e"]
    assert [(part["path"], part["bit_exact"], part["status"]) for part in report["parts"]] == [
        ("npu/part_0", True, "ok"), ("npu/part_1", True, "ok"),
    ]  # fmt: skip
    assert [each["name"] for part in report["parts"] for each in part["outputs"]] == ["a", "e"]


def test_accuracy_counts_the_whole_program_and_the_integer_network_of_its_parts(
    folder: Path, tmp_path: Path
) -> None:
    with np.load(folder / "x.npz") as archive:
        np.savez(tmp_path / "xy.npz", x=archive["x"], y=np.arange(4))
    found = npuc("accuracy", folder / "m.onnx", folder / "m.npu", "--data", tmp_path / "xy.npz", "--json").json
    assert found["integer"] == found["simulator"] and found["simulator"]["top1"] == pytest.approx(
        found["fp32"]["top1"], abs=0.26
    )


def test_dump_explain_and_report_name_parts_and_regions(folder: Path, tmp_path: Path) -> None:
    listing = npuc("dump", folder / "m.npu", "--json").json["instructions"]
    assert {entry["part"] for entry in listing} == {"npu/part_0", "npu/part_1"}
    assert [entry["index"] for entry in listing] == list(range(len(listing)))
    part = npuc("dump", folder / "m.npu" / "npu" / "part_1", "--json").json["instructions"]
    assert [entry["word"] for entry in part] == [each["word"] for each in listing if each["part"] == "npu/part_1"]
    lines = npuc("dump", folder / "m.npu").done().splitlines()
    assert [line for line in lines if ": segment" in line] == [f"; npu/part_{at}: segment 0" for at in (0, 1)]
    assert any(line.startswith(";   host   host/region_0.onnx: ") for line in lines)
    second = npuc("dump", folder / "m.npu", "--segment", "1", "--json").json["instructions"]
    assert {entry["part"] for entry in second} == {"npu/part_1"}
    told = npuc("explain", folder / "m.npu", "CumSum_1").done()
    assert "CumSum 'CumSum_1': on the host, host/region_0.onnx, 576 bytes cross\n" in told
    assert npuc("explain", folder / "m.npu", "Conv_2", "--json").json["tensors"][0]["tensor"] == "part_1/e/int8"
    npuc("report", folder / "m.npu", "-o", tmp_path / "r.html").done()
    assert "CumSum_1" in (tmp_path / "r.html").read_text()


def test_export_gives_every_part_and_region_and_their_order(folder: Path, tmp_path: Path) -> None:
    npuc("export", folder / "m.npu", "--format", "readmemh", "-o", tmp_path / "o").done()
    steps = json.loads((tmp_path / "o" / "steps.json").read_text())["steps"]
    assert [step["path"] for step in steps] == [
        "npu/part_0", "host/region_0.onnx", "npu/part_1", "host/region_1.onnx",
    ]  # fmt: skip
    assert all((tmp_path / "o" / step["path"]).exists() for step in steps)
    onnx.checker.check_model(onnx.load(tmp_path / "o" / "host" / "region_0.onnx"))


def test_there_is_a_loadable_for_each_part_between_regions(folder: Path, tmp_path: Path) -> None:
    options = ("--target", "nvdla-small", "-o", tmp_path / "n.npu", "--calibration", folder / "x.npz", "-O0")
    npuc("compile", folder / "m.onnx", *options).done()
    npuc("export", tmp_path / "n.npu", "--format", "loadable", "-o", tmp_path / "o").done()
    described = json.loads((tmp_path / "o" / "steps.json").read_text())
    for step in described["steps"]:
        path = tmp_path / "o" / step["path"]
        if path.suffix == ".onnx":
            onnx.checker.check_model(onnx.load(path))
        else:
            ports = json.loads((path / "tensors.json").read_text())
            assert {each["name"] for each in ports["inputs"]} == set(step["inputs"])
            assert npuc("dump", path / "network.nvdla").done().startswith("loadable")


def test_diff_tells_what_went_to_the_host(folder: Path, tmp_path: Path) -> None:
    assert "same program" in npuc("diff", folder / "m.npu", folder / "m.npu").done()
    options = ("--target", "easynpu", "-o", tmp_path / "n.npu", "--calibration", folder / "x.npz", "-O0")
    npuc("compile", folder / "m.onnx", *options, "--deny", "Conv_0").done()
    totals = npuc("diff", folder / "m.npu", tmp_path / "n.npu", "--json").json["totals"]
    assert totals["npu_macs_share"] == [1.0, 0.5]


def test_check_lists_everything_at_once_grouped_and_with_its_place(tmp_path: Path) -> None:
    body = "a = Conv(x, w)\n b = Sin(a)\n c = Sin(b)\n d = Conv(c, w)\n f = CumSum(d, k)\n"
    body += "y = Softmax<axis = 1>(f)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}"
    onnx.save(parse(text, w=(8, 8, 1, 1)), tmp_path / "m.onnx")
    outcome = npuc("check", tmp_path / "m.onnx", "--target", "easynpu", "--json")
    assert outcome.code == 0 and outcome.json["errors"] == []
    found = {(each["op"], each["count"], each["place"]) for each in outcome.json["groups"]}
    assert found == {("Sin", 2, "host"), ("CumSum", 1, "host"), ("Softmax", 1, "host")}
    assert npuc("check", tmp_path / "m.onnx", "--target", "easynpu", "--strict").code == 1


def test_check_says_that_the_host_runs_what_strict_refuses(tmp_path: Path) -> None:
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { a = Conv(x, w)\n y = Softmax<axis = 1>(a) }",
                     w=(8, 8, 1, 1))  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    said = npuc("check", tmp_path / "m.onnx", "--target", "easynpu").done()
    assert "1 of 2 nodes on the NPU, 100.0 % of the MACs; 1 on the host" in said and "Softmax 'Softmax_1'" in said


def test_a_branch_that_the_shapes_exclude_is_told_and_an_input_bound_to_the_other_helps(tmp_path: Path) -> None:
    branches = "then_branch = narrow () => (float[1,8,6,6] p) { p = Conv(x, w) },"
    branches += " else_branch = wide () => (float[1,8,6,6] q) { s = Squeeze(x, two)\n q = Unsqueeze(s, two) }"
    body = f"eight = Constant<value = int64 {{8}}>()\n c = Equal(rate, eight)\n y = If<{branches}>(c)"
    text = f"g (float[1,C,6,6] x, int64 rate) => (float[1,8,6,6] y) <int64[1] two = {{2}}> {{ {body} }}"
    onnx.save(parse(text, w=(8, 8, 1, 1)), tmp_path / "m.onnx")
    asked = (tmp_path / "m.onnx", "--target", "easynpu", "--input-shape", "x=1,8,6,6")
    for command in (("check",), ("compile", *SYNTHETIC, "-o", tmp_path / "m.npu")):
        outcome = npuc(*command, *asked, "--json")
        assert outcome.code == 1
        last = outcome.json["errors"][-1]
        assert last["code"] == "E105" and "onnxruntime cannot run it" in last["reason"]
        assert "--bind rate=VALUE" in last["remedy"]
        assert npuc(*command, *asked, "--bind", "rate=8").code == 0


def test_deny_and_refusing_the_host_exclude_each_other(folder: Path, tmp_path: Path) -> None:
    options = ("--target", "easynpu", "-o", tmp_path / "n.npu", "--deny", "Conv")
    assert "--strict exclude" in npuc("compile", folder / "m.onnx", *options, "--strict").usage()
    assert "--strict refuses" in npuc("compile", folder / "m.onnx", *options, "--fallback", "refuse").usage()
    assert (
        "NAME=VALUE"
        in npuc("compile", *SYNTHETIC, folder / "m.onnx", "--target", "easynpu", "--bind", "x").usage()
    )


def test_an_output_that_no_part_of_the_npu_reaches_must_be_as_in_fp32(tmp_path: Path) -> None:
    body = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n z = Sin(x)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] a, float[1,8,6,6] z) {{ {body} }}"
    onnx.save(parse(text, w=(8, 8, 3, 3)), tmp_path / "m.onnx")
    npuc("compile", *SYNTHETIC, tmp_path / "m.onnx", "--target", "easynpu", "-o", tmp_path / "m.npu", "-O0").done()
    report = npuc("verify", tmp_path / "m.onnx", tmp_path / "m.npu", "--json").json
    assert {each["name"]: each["sqnr_db"] for each in report["criterion"]} == {"a": None, "z": 60.0}
    said = npuc("verify", tmp_path / "m.onnx", tmp_path / "m.npu").done()
    assert "criterion: z at least 60.0 dB and cosine 1.0000" in said
    region = tmp_path / "m.npu" / "host" / "region_0.onnx"
    region.write_bytes(region.read_bytes().replace(b"Sin", b"Tan"))
    wrong = npuc("verify", tmp_path / "m.onnx", tmp_path / "m.npu", "--json", "--allow-modified")
    assert wrong.code == 1 and wrong.json["status"] == "mismatch"
