"""`npuc export --format onnx-annotated`: the model is what it was, and says what became of each node."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from tests.cli.process import Digits, WriteModel, compiled, npuc


def told(node: onnx.NodeProto) -> dict[str, str]:
    return {each.key: each.value for each in node.metadata_props}


@pytest.mark.parametrize(
    "options", [(), ("--target", "nvdla-small"), ("--target", "bm1684"), ("--deny", "MaxPool")]
)
def test_nodes_say_where_they_run_and_what_their_layer_costs(
    options: tuple[str, ...], digits: Digits, tmp_path: Path
) -> None:
    compiled(digits.model, tmp_path / "o", *options).done()
    arguments = ("--format", "onnx-annotated", "--model", digits.model, "-o", tmp_path / "a")
    npuc("export", tmp_path / "o", *arguments).done()
    manifest = json.loads((tmp_path / "o" / "manifest.json").read_text())
    report = manifest["report"]
    found = onnx.load(tmp_path / "a" / "digits.onnx")
    onnx.checker.check_model(found, full_check=True)
    places = {each["node"]: each["place"] for each in manifest["account"]}
    assert {node.name: told(node)["npuc.place"] for node in found.graph.node} == places
    layers = {told(node)["npuc.layer"]: told(node) for node in found.graph.node if "npuc.layer" in told(node)}
    assert {name: int(each["npuc.cycles"]) for name, each in layers.items()} == {
        layer["name"]: layer["cycles"] for layer in report["layers"]
    }
    for node in found.graph.node:
        del node.metadata_props[:]
    del found.metadata_props[:]
    found.ir_version = onnx.load(digits.model).ir_version
    assert found == onnx.load(digits.model)


def test_node_data_of_model_explorer_sums_to_the_program(digits: Digits, tmp_path: Path) -> None:
    """Its form, as Model Explorer documents it: by graph, results by node, a gradient from 0 to 1."""
    compiled(digits.model, tmp_path / "o", "--calibration", digits.calibration).done()
    arguments = ("--format", "model-explorer", "--model", digits.model, "-o", tmp_path / "d")
    npuc("export", tmp_path / "o", *arguments).done()
    report = json.loads((tmp_path / "o" / "manifest.json").read_text())["report"]
    assert sum("n2_Conv" in layer["nodes"] for layer in report["layers"]) == 2  # a copy with padding, and it
    model = onnx.load(digits.model)
    for key in ("cycles", "macs"):
        found = json.loads((tmp_path / "d" / f"{key}.json").read_text())
        assert list(found) == [model.graph.name]
        results = found[model.graph.name]["results"]
        assert results.keys() <= {node.name for node in model.graph.node}
        total = sum(layer[key] for layer in report["layers"])
        assert sum(each["value"] for each in results.values()) == pytest.approx(total, rel=1e-5)
        assert [each["stop"] for each in found[model.graph.name]["gradient"]] == [0, 1]
    places = json.loads((tmp_path / "d" / "place.json").read_text())[model.graph.name]["results"]
    assert {each["value"] for each in places.values()} == {"npu", "removed"}
    assert len(places) == len(model.graph.node)


@pytest.mark.parametrize("target", ["easynpu", "bm1684"])
def test_with_samples_nodes_have_the_signal_to_noise_that_verify_prints(
    target: str, digits: Digits, tmp_path: Path
) -> None:
    compiled(digits.model, tmp_path / "o", "--target", target).done()
    verified = npuc("verify", digits.model, tmp_path / "o", "--data", digits.few, "--json").json
    errors = {layer["name"]: layer["sqnr_db"] for layer in verified["layers"] if layer["sqnr_db"] is not None}
    model = ("--model", digits.model, "--data", digits.few)
    npuc("export", tmp_path / "o", "--format", "onnx-annotated", *model, "-o", tmp_path / "a").done()
    found = [told(node) for node in onnx.load(tmp_path / "a" / "digits.onnx").graph.node]
    noted = {each["npuc.layer"]: float(each["npuc.sqnr_db"]) for each in found if "npuc.sqnr_db" in each}
    assert noted == pytest.approx(errors, rel=1e-3) and len(noted) > 4
    npuc("export", tmp_path / "o", "--format", "model-explorer", *model, "-o", tmp_path / "d").done()
    (drawn,) = json.loads((tmp_path / "d" / "sqnr_db.json").read_text()).values()
    assert {each["value"] for each in drawn["results"].values()} == {round(each, 3) for each in errors.values()}
    assert [each["stop"] for each in drawn["gradient"]] == [0, 1]


def test_names_of_any_kind_and_nodes_without_one(write: WriteModel, tmp_path: Path) -> None:
    model = write(
        "g (float[1,3,8,8] x) => (float[1,4,8,8] y) { a = Conv <kernel_shape = [1, 1]> (x, w)\n y = Atan(a) }",
        w=(4, 3, 1, 1),
    )
    compiled(model, tmp_path / "o").done()
    npuc("export", tmp_path / "o", "--format", "onnx-annotated", "--model", model, "-o", tmp_path / "a").done()
    conv, atan = onnx.load(tmp_path / "a" / "m.onnx").graph.node
    assert (told(conv)["npuc.place"], told(atan)) == ("npu", {"npuc.place": "host"})
    ort.InferenceSession(str(tmp_path / "a" / "m.onnx"))


def test_another_model_is_warned_of_and_what_is_missing_is_told(
    digits: Digits, write: WriteModel, tmp_path: Path
) -> None:
    other = write("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }")
    arguments = ("export", digits.program, "--format", "onnx-annotated", "-o", tmp_path / "a")
    assert "--model" in npuc(*arguments).usage()
    assert (
        "--model"
        in npuc("export", digits.program, "--format", "c", "--model", other, "-o", tmp_path / "a").usage()
    )
    assert "another file" in npuc(*arguments, "--model", other).err
    npuc(*arguments, "--model", digits.few).refused("E102")


def test_a_node_of_several_layers_states_their_sums(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--calibration", digits.calibration).done()
    arguments = ("--format", "onnx-annotated", "--model", digits.model, "-o", tmp_path / "a")
    npuc("export", tmp_path / "o", *arguments).done()
    report = json.loads((tmp_path / "o" / "manifest.json").read_text())["report"]
    copy, conv = (layer for layer in report["layers"] if layer["nodes"] == ["n2_Conv"])
    (node,) = (each for each in onnx.load(tmp_path / "a" / "digits.onnx").graph.node if each.name == "n2_Conv")
    assert told(node)["npuc.layer"] == f"{copy['name']} + {conv['name']}"
    assert int(told(node)["npuc.cycles"]) == copy["cycles"] + conv["cycles"] > conv["cycles"]
    assert told(node)["npuc.op"] == "conv"
