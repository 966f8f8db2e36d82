"""One artefact for several input shapes: a program for each, constants once, the data says which."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import npuc as npuc_package
from npuc import api
from npuc.errors import ArtefactError, DataError
from tests.cli.process import npuc
from tests.files import arrays
from tests.onnx_models import parse

BODY = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n b = Relu(a)\n c = Conv(b, v)\n"
SHAPES = ("--input-shape", "x=1,3,8,8", "--input-shape", "x=1,3,12,10")
ROOT = Path(__file__).resolve().parents[2]


def _data(path: Path, height: int, width: int) -> Path:
    values = np.random.default_rng(height).normal(0.3, 1, (3, 3, height, width)).astype(np.float32)
    np.savez(path, x=values)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with dynamic rows and columns, data of three sizes, and its program of two variants."""
    found = tmp_path_factory.mktemp("variants")
    text = f"g (float[1,3,h,w0] x) => (float[1,8,h,w0] y) {{ {BODY} y = Relu(c) }}"
    onnx.save(parse(text, w=(64, 3, 3, 3), v=(8, 64, 1, 1)), found / "m.onnx")
    for name, (height, width) in {"small": (8, 8), "large": (12, 10), "other": (9, 9)}.items():
        _data(found / f"{name}.npz", height, width)
    done = npuc("compile", found / "m.onnx", "--target", "bm1684", "-o", found / "m.npu", *SHAPES, "--json")
    (found / "said.json").write_text(json.dumps(done.json))
    return found


def test_a_program_for_each_shape_shares_its_weights(folder: Path) -> None:
    said = json.loads((folder / "said.json").read_text())
    assert [each["inputs"][0]["shape"] for each in said["variants"]] == [[1, 3, 8, 8], [1, 3, 12, 10]]
    assert all(each["report"]["cycles"] > 0 for each in said["variants"])
    manifests = [json.loads((folder / "m.npu" / "variants" / n / "manifest.json").read_text()) for n in "01"]
    digests = [each["files"]["weights.bin"] for each in manifests]
    assert digests[0] == digests[1]
    assert digests[0]["bytes"] >= 4 * (64 * 27 + 8 * 64)
    assert len(list((folder / "m.npu").rglob("weights.bin"))) == 1
    assert said["bytes"] == sum(
        each.stat().st_size
        for each in (folder / "m.npu").rglob("*")
        if each.is_file() and each.parent.name != "m.npu"
    )


@pytest.mark.parametrize("size", ["small", "large"])
def test_run_and_verify_take_the_variant_that_the_data_has_the_shape_of(
    folder: Path, tmp_path: Path, size: str
) -> None:
    data = folder / f"{size}.npz"
    npuc("run", folder / "m.npu", "--data", data, "-o", tmp_path / "y.npz").done()
    session = ort.InferenceSession(folder / "m.onnx", providers=["CPUExecutionProvider"])
    images = arrays(data)["x"]
    expected = np.concatenate([np.asarray(session.run(None, {"x": each[None]})[0]) for each in images])
    np.testing.assert_allclose(arrays(tmp_path / "y.npz")["y"], expected, rtol=1e-4, atol=1e-5)
    found = npuc("verify", folder / "m.onnx", folder / "m.npu", "--data", data, "--json").json
    assert found["status"] == "ok" and found["samples"] == 3


def test_data_of_another_shape_is_refused_and_the_shapes_are_named(folder: Path, tmp_path: Path) -> None:
    outcome = npuc("run", folder / "m.npu", "--data", folder / "other.npz", "-o", tmp_path / "y.npz", "--json")
    (error,) = outcome.json["errors"]
    assert error["code"] == "E402"
    assert "x=1,3,8,8" in error["limit"] and "x=1,3,12,10" in error["limit"]


@pytest.mark.parametrize("command", ["dump", "report", "export", "verify"])
def test_a_command_for_one_program_names_the_folder_of_a_variant(
    folder: Path, tmp_path: Path, command: str
) -> None:
    more = {
        "dump": (),
        "report": ("-o", tmp_path / "r.html"),
        "export": ("--format", "okkernel", "-o", tmp_path / "out"),
        "verify": ("--samples", "1"),
    }[command]
    model = (folder / "m.onnx",) if command == "verify" else ()
    assert f"{folder / 'm.npu' / 'variants' / '0'}" in npuc(command, *model, folder / "m.npu", *more).refused(
        "E508"
    )
    assert npuc(command, *model, folder / "m.npu" / "variants" / "1", *more).code == 0


def test_a_variant_s_shared_file_that_was_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "m.npu", tmp_path / "m.npu")
    (weights,) = (tmp_path / "m.npu").rglob("weights.bin")
    data = bytearray(weights.read_bytes())
    data[0] ^= 1
    weights.write_bytes(data)
    refused = npuc("run", tmp_path / "m.npu", "--data", folder / "small.npz", "-o", tmp_path / "y.npz")
    assert "weights.bin" in refused.refused("E502")


def test_a_folder_that_is_called_variants_is_nothing_special(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "variants" / "m.npu"
    npuc("compile", folder / "m.onnx", "--target", "bm1684", "-o", out, *SHAPES[:2]).done()
    npuc("run", out, "--data", folder / "small.npz", "-o", tmp_path / "y.npz").done()


def test_the_manifest_follows_the_schema_and_python_loads_a_variant(folder: Path) -> None:
    schema = json.loads((ROOT / "docs" / "program-schema.json").read_text("utf-8"))
    whole = json.loads((folder / "m.npu" / "manifest.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(whole)] == []
    assert not validator.is_valid({**whole, "variants": [{"path": "../x", "inputs": []}]})
    with pytest.raises(ArtefactError, match="holds 2 variants"):
        api.load(folder / "m.npu")
    x = np.ones((1, 3, 12, 10), np.float32)
    assert api.load(folder / "m.npu" / "variants" / "1").run(x)["y"].shape == (1, 8, 12, 10)


def test_calibration_data_goes_to_the_variant_of_its_shape(folder: Path, tmp_path: Path) -> None:
    small, large = ("--calibration", folder / "small.npz"), ("--calibration", folder / "large.npz")
    options = ("compile", folder / "m.onnx", "--target", "easynpu", "-O0", "-o", tmp_path / "m.npu", *SHAPES)
    assert "12" in npuc(*options, *small).refused("E402")
    npuc(*options, *small, *large).done()
    for name in ("small", "large"):
        data = folder / f"{name}.npz"
        found = npuc("verify", folder / "m.onnx", tmp_path / "m.npu", "--data", data, "--json").json
        assert found["bit_exact"] and found["status"] == "ok"


def test_inputs_with_different_numbers_of_shapes_are_a_usage_error(folder: Path) -> None:
    shapes = (*SHAPES, "--input-shape", "z=1", "--input-shape", "z=2", "--input-shape", "z=3")
    assert "as many of each" in npuc("compile", folder / "m.onnx", "--target", "bm1684", *shapes).usage()


def test_python_compiles_several_shapes_to_the_artefact_of_the_command(folder: Path, tmp_path: Path) -> None:
    shapes = [{"x": (1, 3, 8, 8)}, {"x": (1, 3, 12, 10)}]
    found = npuc_package.compile_variants(folder / "m.onnx", "bm1684", input_shapes=shapes)
    found.save(tmp_path / "m.npu")
    written = {each.relative_to(tmp_path / "m.npu") for each in (tmp_path / "m.npu").rglob("*") if each.is_file()}
    assert written == {
        each.relative_to(folder / "m.npu") for each in (folder / "m.npu").rglob("*") if each.is_file()
    }
    for path in written:
        assert (tmp_path / "m.npu" / path).read_bytes() == (folder / "m.npu" / path).read_bytes()
    session = ort.InferenceSession(folder / "m.onnx")
    for size, (height, width) in {"small": (8, 8), "large": (12, 10)}.items():
        values = arrays(folder / f"{size}.npz")["x"]
        wanted = [np.asarray(session.run(None, {"x": each[None]})[0])[0] for each in values]
        np.testing.assert_allclose(found.run(values)["y"], np.stack(wanted), rtol=1e-3, atol=1e-4)
        assert found.of(folder / f"{size}.npz").program.inputs[0].shape == (1, 3, height, width)
    with pytest.raises(DataError, match="E402"):
        found.run(folder / "other.npz")


def test_one_shape_is_no_variant(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"npuc\.compile"):
        npuc_package.compile_variants(folder / "m.onnx", "bm1684", input_shapes=[{"x": (1, 3, 8, 8)}])
