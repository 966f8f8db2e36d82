"""`npuc compile`: its report, where the artefact goes, and every option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuc import load
from npuc.errors import ArtefactError
from tests.cli.process import PROBLEM, SYNTHETIC, Digits, WriteModel, compiled, npuc

TWO_KEPT = """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
    a = Relu(x)
    b = Conv <kernel_shape = [1, 1]> (a, w)
    c = Conv <kernel_shape = [1, 1]> (b, w)
    d = Conv <kernel_shape = [1, 1]> (c, w)
    e = Add(d, b)
    y = Add(e, a)
}"""
"""Two tensors wait for an addition at the same time: no word of the document says where the second one lies."""

SOFTMAX = """g (float[1,3,8,8] x) => (float[1,4] y) {
    a = Conv <kernel_shape = [8, 8]> (x, w)
    f = Flatten(a)
    y = Softmax(f)
}"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_artefact_is_called_after_the_model_and_lies_in_the_working_directory(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = npuc("compile", digits.model, "--target", "easynpu", "--calibration", digits.few, "-O0")
    assert outcome.done().startswith("digits.npu: easynpu, machine default\n") and outcome.err == ""
    assert names(tmp_path) == ["digits.npu"]


def test_the_report_has_every_key_of_the_contract(digits: Digits, tmp_path: Path) -> None:
    report = compiled(digits.model, tmp_path / "o", "--json").json
    keys = {"instructions", "segments", "macs", "cycles", "ideal_cycles", "utilization", "memory"}
    assert keys | {"status", "target", "machine", "host_steps", "layers"} <= report.keys()
    assert (report["status"], report["target"], report["machine"]) == ("ok", "easynpu", "default")
    assert set(report["memory"]) == {"fmap", "skip", "weight", "itcm"}
    for use in report["memory"].values():
        assert use["lower_bound_bytes"] <= use["peak_bytes"] <= use["capacity_bytes"]
    for layer in report["layers"]:
        assert {"name", "op", "nodes", "macs", "cycles"} <= layer.keys()


def test_the_report_counts_what_can_be_counted_by_hand(digits: Digits, tmp_path: Path) -> None:
    report = compiled(digits.model, tmp_path / "o", "--json").json
    macs = 1 * 16 * 9 * 64, 16 * 16 * 9 * 64, 16 * 32 * 9 * 16, 32 * 32 * 9 * 4, 128 * 10
    assert [layer["macs"] for layer in report["layers"] if layer["macs"]] == list(macs)
    assert report["macs"] == sum(macs) and report["ideal_cycles"] == sum(macs) / 16
    assert report["utilization"] == report["ideal_cycles"] / report["cycles"] <= 1
    assert report["memory"]["itcm"]["peak_bytes"] == 16 * report["instructions"]
    assert report["host_steps"] == []


def test_compiling_twice_gives_the_same_bytes_and_level_1_is_the_default(digits: Digits, tmp_path: Path) -> None:
    for name, level in (("a", ()), ("b", ("-O1",))):
        compiled(digits.model, tmp_path / name, "--calibration", digits.calibration, *level).done()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_an_npuc_artefact_is_replaced(digits: Digits, copy: Path) -> None:
    before = contents(copy)
    compiled(digits.model, copy).done()
    assert contents(copy).keys() == before.keys() and contents(copy) != before
    assert names(copy.parent) == ["copy.npu"]


def test_an_artefact_with_a_file_of_the_users_is_replaced_only_with_force(digits: Digits, copy: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    assert "'notes.txt'" in compiled(digits.model, copy).refused("E505")
    assert (copy / "notes.txt").read_text() == "mine"
    compiled(digits.model, copy, "--force").done()
    assert not (copy / "notes.txt").exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_anything_else_is_replaced_only_with_force(digits: Digits, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "precious"
    if kind == "file":
        output.write_text("mine")
    else:
        output.mkdir()
        (output / "mine").write_text("mine")
    assert "--force" in compiled(digits.model, output).refused("E505")
    assert output.is_file() or (output / "mine").read_text() == "mine"
    compiled(digits.model, output, "--force").done()
    assert (output / "manifest.json").is_file() and not (output / "mine").exists()


def test_the_working_directory_is_not_replaced_even_with_force(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "around" / "work"
    work.mkdir(parents=True)
    (work / "mine").write_text("mine")
    monkeypatch.chdir(work)
    for output in (Path(), work, work.parent, Path("../../around")):
        refusal = compiled(digits.model, output, "--force", "--calibration", digits.few, "-O0").refused("E505")
        assert "working folder" in refusal
        with pytest.raises(ArtefactError, match="working folder"):
            load(digits.program).save(output, force=True)
    assert names(work) == ["mine"]


@pytest.mark.parametrize("output", ["file/below", "/proc/nowhere", "n" * 300, "n" * 250])
def test_an_output_that_cannot_be_written_is_refused(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    outcome = compiled(digits.model, Path(output), "--calibration", digits.few, "-O0")
    assert "cannot be written" in outcome.refused("E506")
    assert names(tmp_path) == ["file"]


def test_missing_parents_of_the_output_are_made(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "a" / "b.npu").done()
    assert (tmp_path / "a" / "b.npu" / "manifest.json").is_file()


def test_verbose_shows_passes_on_stderr_and_layers_on_stdout(digits: Digits, tmp_path: Path) -> None:
    outcome = compiled(digits.model, tmp_path / "o", "-v")
    assert "pass fuse_activation" in outcome.err and " ms " in outcome.err
    assert "conv_relu" in outcome.done() and "tried" in outcome.out
    assert "compiling: " in outcome.err and outcome.err.rstrip().endswith(" s")
    assert "pass" not in compiled(digits.model, tmp_path / "o").err


def test_verbose_says_what_every_pass_did_and_what_it_cost(digits: Digits, tmp_path: Path) -> None:
    outcome = compiled(digits.model, tmp_path / "o", "-v")
    (sentence,) = [
        line for line in outcome.done().splitlines() if line.startswith("gemm_to_conv: ") and "Gemm" in line
    ]
    assert "Gemm -> Conv 2x2, Reshape, " in sentence and sentence.endswith(" cycles, exact")
    found = compiled(digits.model, tmp_path / "o", "-v", "--json").json["rewrites"]
    assert sentence in [each["text"] for each in found]
    assert {each["name"] for each in found} >= {"fuse_activation", "gemm_to_conv"}
    assert all(each["lsb"] == 0 for each in found)
    assert "rewrites" not in compiled(digits.model, tmp_path / "o", "--json").json


def test_verbose_reports_the_rewrites_that_need_calibrated_values_too(write: WriteModel, tmp_path: Path) -> None:
    body = "c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 8>(x, w)\n y = Add(c, x)"
    model = write(f"g (float[1,8,9,9] x) => (float[1,8,9,9] y) {{ {body} }}", w=(8, 1, 3, 3))
    found = compiled(model, tmp_path / "o", "-v").done()
    assert "fold_short_cuts: " in found and "Add -> nothing" in found


def test_an_average_in_more_than_two_stages_is_used_only_if_allowed(write: WriteModel, tmp_path: Path) -> None:
    model = write("g (float[1,16,112,112] x) => (float[1,16,1,1] y) { y = GlobalAveragePool(x) }")
    options = ("--isa", "documented", "--machine", "large")
    refusal = compiled(model, tmp_path / "o", *options, "--strict").refused("E204")
    assert "--allow split_average_pool" in refusal
    allowed = compiled(model, tmp_path / "o", *options, "--allow", "split_average_pool", "-v").done()
    assert "rounded 3 times more (at most 3 LSB)" in allowed
    assert npuc("verify", model, tmp_path / "o", "--json").json["bit_exact"] is True


def test_the_graph_after_a_pass_goes_to_stderr(digits: Digits, tmp_path: Path) -> None:
    passes = ("--dump-after", "fold_constants", "--dump-after", "fuse_activation")
    outcome = compiled(digits.model, tmp_path / "o", "--json", *passes)
    assert outcome.json["status"] == "ok"
    before, after = outcome.err.split("after fuse_activation:\n")
    assert before.count("after fold_constants:\n") == 1
    assert " = Relu(" in before and "activation=Relu" not in before
    assert " = Relu(" not in after and "activation=Relu" in after


def test_the_pass_to_dump_after_must_exist(digits: Digits, tmp_path: Path) -> None:
    message = compiled(digits.model, tmp_path / "o", "--dump-after", "fuse_activations").usage()
    assert "Did you mean 'fuse_activation'?" in message and "fold_batch_norm" in message
    assert names(tmp_path) == []


def test_the_default_chooses_other_scales_than_level_0(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--calibration", digits.calibration).done()
    assert contents(tmp_path / "o")["weight.bin"] != contents(digits.program)["weight.bin"]
    npuc("verify", digits.model, tmp_path / "o", "--data", digits.few).done()


def test_calibration_files_are_taken_together(digits: Digits, tmp_path: Path) -> None:
    def with_samples(*files: Path) -> dict[str, bytes]:
        flags = [each for file in files for each in ("--calibration", file)]
        compiled(digits.model, tmp_path / "o", *flags, "-O0", "--method", "mse").done()
        return contents(tmp_path / "o")

    both = with_samples(digits.few, digits.calibration)
    assert both == with_samples(digits.calibration, digits.few) != with_samples(digits.few)


def test_the_document_s_instructions_suffice_for_a_chain(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--isa", "documented").done()
    assert json.loads((tmp_path / "o" / "manifest.json").read_text())["isa"] == "documented"


def test_two_kept_tensors_go_through_the_host_without_extension_words(write: WriteModel, tmp_path: Path) -> None:
    model = write(TWO_KEPT, w=(16, 16, 1, 1))
    moved: list[int] = []
    for isa in ("documented", "extended"):
        report = compiled(model, tmp_path / isa, "--isa", isa, "--strict", "--json").json
        moved.append(report["host_traffic"]["map_bytes"])
        npuc("verify", model, tmp_path / isa).done()
    assert moved[0] > moved[1]


def test_a_host_step_is_reported_and_strict_refuses_it(write: WriteModel, tmp_path: Path) -> None:
    model = write(SOFTMAX, w=(4, 3, 8, 8))
    steps = compiled(model, tmp_path / "o", "--json").json["host_steps"]
    assert [(step["op"], step["node"]) for step in steps] == [("Softmax", "Softmax_2")]
    assert "exponential" in steps[0]["reason"]
    assert "host: Softmax 'Softmax_2'" in compiled(model, tmp_path / "o").done()
    assert "Softmax 'Softmax_2'" in compiled(model, tmp_path / "o", "--strict").refused("E203")


def test_strict_accepts_the_conversion_of_inputs_and_outputs(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--strict").done()


def test_every_refusal_of_a_model_is_reported_at_once_also_as_json(write: WriteModel, tmp_path: Path) -> None:
    model = write("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { a = Sin(x)\n b = Relu(a)\n y = Cos(b) }")
    outcome = compiled(model, tmp_path / "o", "--strict", "--json")
    assert outcome.code == 1 and outcome.json["status"] == "error"
    errors = outcome.json["errors"]
    assert [(error["op"], error["code"]) for error in errors] == [("Sin", "E201"), ("Cos", "E201")]
    assert all(error.keys() == PROBLEM for error in errors)
    assert outcome.err.count("error[E201]") == 2
    assert names(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("option", [("--precision", "int16"), ("--precision", "fp16"), ("--allow", "winograd")])
def test_options_that_the_target_lacks_are_usage_errors(
    digits: Digits, tmp_path: Path, option: tuple[str, str]
) -> None:
    assert option[1] in compiled(digits.model, tmp_path / "o", *option).usage()


@pytest.mark.parametrize("name", ["ä é.onnx", "a.b.onnx", "with=equals.onnx", "-dash.onnx", "no_suffix", ".onnx"])
def test_unusual_file_names_are_fine(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(digits.model.read_bytes())
    npuc("compile", "--target", "easynpu", "--calibration", digits.few, "-O0", "--", name).done()
    assert names(tmp_path) == sorted([name, f"{Path(name).stem}.npu"])
    npuc("verify", "--data", digits.few, "--", name, f"{Path(name).stem}.npu").done()


@pytest.mark.parametrize("isa", ["documented", "extended"])
def test_strict_refuses_that_the_host_cuts_maps(isa: str, write: WriteModel, tmp_path: Path) -> None:
    """The borders of the average are cut from the input by the host: that is no conversion of its layout."""
    text = """g (float[1,3,16,16] x) => (float[1,8,8,16] y) {
        a = AveragePool <kernel_shape = [3, 1], strides = [2, 1], pads = [1, 0, 1, 0]> (x)
        y = Conv <kernel_shape = [1, 1]> (a, w)
    }"""
    model = write(text, w=(8, 3, 1, 1))
    steps = compiled(model, tmp_path / "o", "--isa", isa, "--json").json["host_steps"]
    assert "Slice" in {step["op"] for step in steps} <= {"Concat", "Slice"}
    refusal = compiled(model, tmp_path / "p", "--isa", isa, "--strict")
    assert refusal.code == 1
    assert "error[E203] Slice " in refusal.err


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full"])
def test_a_shape_that_onnxruntime_infers_otherwise_is_calibrated(
    target: str, write: WriteModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expects 9 elements of the pool, which gives 8, and refuses memory for 8."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = """g (float[1,3,24] x) => (float[1,3,4] y) {
        a = AveragePool <kernel_shape = [1], strides = [3], ceil_mode = 1, count_include_pad = 1> (x)
        s = Constant <value = int64[3] {1, 3, 4}> ()
        y = Resize <mode = "nearest", nearest_mode = "floor"> (a, , , s)
    }"""
    options = ("--target", target, "-o", tmp_path / "o.npu", "--json")
    assert npuc("compile", *SYNTHETIC, write(text), *options).json["status"] == "ok"
