"""npuc from Python, as the README shows it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import npuc
from npuc.errors import ArtefactError, DataError, ModelError, UnsupportedOperator
from npuc.ir import Array
from npuc.target import Options

MODELS = Path(__file__).resolve().parents[1] / "models"
MODEL = MODELS / "digits.onnx"
ROOT = MODELS.parent


@pytest.fixture(scope="module")
def images() -> Array:
    with np.load(MODELS / "digits_test.npz") as file:
        found: Array = file["x"][:40].astype(np.float32)
    return found


@pytest.fixture(scope="module")
def program() -> npuc.Compiled:
    return npuc.compile(MODEL, target="easynpu", calibration=MODELS / "digits_calibration.npz")


def _expected(images: Array) -> Array:
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    return np.concatenate([session.run(None, {port.name: each.reshape(port.shape)})[0] for each in images])


def test_a_compiled_model_agrees_with_onnxruntime(program: npuc.Compiled, images: Array) -> None:
    (found,) = program.run(images).values()
    expected = _expected(images)
    assert found.shape == expected.shape
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.95
    assert program.report["cycles"] > program.report["ideal_cycles"] > 0 and program.listing()


def test_verification_is_that_of_the_command_line(program: npuc.Compiled, images: Array) -> None:
    report = npuc.verify(MODEL, program, images)
    assert report["status"] == "ok" and report["bit_exact"] and report["samples"] == len(images)
    assert npuc.verify(MODEL, program, images, min_sqnr_db=1000.0)["status"] == "mismatch"


def test_accuracy_is_that_of_the_command_line(program: npuc.Compiled, images: Array) -> None:
    labels = _expected(images).argmax(axis=1)
    report = npuc.accuracy(MODEL, program, {"x": images, "y": labels})
    assert report["metric"] == "top1" and report["fp32"]["top1"] == 1
    assert report["simulator"]["top1"] == report["simulator"]["agreement"] >= 0.95
    values = npuc.accuracy(MODEL, program, images, metric="regression")
    assert values["truth"] == "fp32" and values["simulator"]["pearson"] > 0.99
    with pytest.raises(DataError, match="no labels"):
        npuc.accuracy(MODEL, program, images)
    for wrong in ({"metric": "map"}, {"metric": "ctc", "nms_iou": 0.5}, {"score_threshold": 0.5}):
        with pytest.raises(ValueError, match=r"may be|was removed"):
            npuc.accuracy(MODEL, program, images, **wrong)
    with pytest.raises(TypeError):
        npuc.accuracy(MODEL, program, images, threshold=0.5)


def test_a_saved_program_runs_as_before(program: npuc.Compiled, images: Array, tmp_path: Path) -> None:
    program.save(tmp_path / "digits.npu")
    loaded = npuc.load(tmp_path / "digits.npu")
    assert loaded.program.manifest == program.program.manifest
    (before,), (after,) = program.run(images).values(), loaded.run({"x": images}).values()
    np.testing.assert_array_equal(before, after)
    with pytest.raises(ArtefactError, match="has no"):
        npuc.load(tmp_path)


def test_a_model_in_memory_gives_the_same_words_as_its_file(program: npuc.Compiled) -> None:
    with np.load(MODELS / "digits_calibration.npz") as file:
        found = npuc.compile(onnx.load(MODEL), "easynpu", calibration=file["x"])
    assert found.program.files == program.program.files


def test_a_session_takes_what_onnxruntime_takes(program: npuc.Compiled, images: Array) -> None:
    session = npuc.Session(program)
    (port,) = session.get_inputs()
    (output,) = session.get_outputs()
    feed = {port.name: images[0].reshape(port.shape)}
    (found,) = session.run([output.name], feed)
    assert found.shape == output.shape
    np.testing.assert_array_equal(found, program.run(images[:1])[output.name])
    np.testing.assert_array_equal(session.run(None, feed)[0], found)
    with pytest.raises(DataError, match="not fed"):
        session.run(None, {})
    with pytest.raises(DataError, match="is fed"):
        session.run(None, {port.name: np.zeros((3, 3), np.float32)})


def test_problems_are_listed_and_raised() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Sin(x) }'
    model = onnx.parser.parse_model(text)
    (problem,) = npuc.check(model, "easynpu")
    assert (problem.code, problem.op) == ("E201", "Sin")
    with pytest.raises(UnsupportedOperator):
        npuc.compile(model, "easynpu", calibration="synthetic", options=Options(strict=True))
    assert npuc.check(MODEL, "easynpu") == []


def test_check_takes_what_is_denied_and_bound_into_account() -> None:
    assert "Relu" in {each.op for each in npuc.check(MODEL, "easynpu", deny="Relu")}
    (problem,) = npuc.check(MODEL, "easynpu", deny="Rellu")
    assert problem.code == "E109"
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x, float s) => (float[1,8] y) { y = Mul(x, s) }'
    model = onnx.parser.parse_model(text)
    assert not [each for each in npuc.check(model, "bm1684", bind={"s": 2}) if each.code.startswith("E")]
    assert [each.code for each in npuc.check(model, "easynpu", bind={"z": 2})] == ["E109"]


def test_what_is_neither_a_file_nor_a_model_is_a_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"path of a file or an onnx\.ModelProto, not bytes"):
        npuc.compile(MODEL.read_bytes(), "easynpu", calibration="synthetic")  # pyright: ignore[reportArgumentType]


def test_data_may_be_lists_by_name(program: npuc.Compiled, images: Array) -> None:
    (name,) = (each["name"] for each in program.program.manifest["inputs"])
    found = program.run({name: images[:2].tolist()})  # pyright: ignore[reportArgumentType]
    assert all(np.array_equal(values, program.run(images[:2])[name]) for name, values in found.items())


def test_errors_about_what_is_in_memory_name_no_temporary_file(program: npuc.Compiled, images: Array) -> None:
    with pytest.raises(DataError) as shape:
        program.run(images[..., :5])
    with pytest.raises(ModelError) as empty:
        npuc.compile(onnx.ModelProto(), "easynpu", calibration="synthetic")
    assert shape.value.problems[0].reason.startswith("the data has ")
    assert empty.value.problems[0].reason == "the model is empty"


def test_a_program_is_pickled_after_a_run(program: npuc.Compiled, images: Array) -> None:
    found = program.run(images[:2])
    again = pickle.loads(pickle.dumps(program)).run(images[:2])
    assert all(np.array_equal(again[name], values) for name, values in found.items())


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full", "bm1684"])
def test_what_has_no_products_runs_on_the_npu_with_a_bound_input(target: str) -> None:
    """Before, the host ran it, as a node among nodes of the host."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,8,4,4] x, float s) => (float[1,8,4,4] y) '
        "{ y = Mul(x, s) }"
    )
    made = npuc.compile(model, target, calibration="synthetic", options=Options(bind=(("s", 2.0),)))
    assert [each["place"] for each in made.report["partitions"]] == ["npu"]
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(1, 1, 8, 4, 4)
    assert np.allclose(made.run(x)["y"], 2 * x, atol=0.1)


def test_importing_npuc_imports_nothing_heavy() -> None:
    heavy = "[each for each in ('numpy', 'onnx', 'onnxruntime') if each in sys.modules]"
    script = f"import sys, npuc; assert 'compile' in dir(npuc); print({heavy})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="complie"):
        npuc.complie  # noqa: B018


def test_modules_are_attributes_without_an_import_of_their_own() -> None:
    code = (
        "import npuc; print(npuc.errors.NpucError.__name__, npuc.targets.__name__, npuc.running.BATCH,"
        " *(hasattr(npuc, name) for name in ('nothing', '__nothing__', '__main__', 'error s', '')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["NpucError", "npuc.targets", "32", *["False"] * 5]


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
@pytest.mark.parametrize("name", ["", "n" * 5000, "../../n", "</script>\n\x1b[31m\u202e'\"\\%s{}$(x)`", "conv"])
def test_names_of_a_model_in_memory_may_be_anything(name: str, target: str, images: Array) -> None:
    model = onnx.load(MODEL)
    plain = npuc.compile(model, target, calibration="synthetic", level="0", proof="off")
    model.graph.name = name
    (output,) = model.graph.output
    for node in model.graph.node:
        node.name = name
        node.output[:] = [f"{name} y" if each == output.name else each for each in node.output]
    output.name = f"{name} y"
    found = npuc.compile(model, target, calibration="synthetic", level="0").run(images[:2])
    assert list(found) == [f"{name} y"]
    np.testing.assert_array_equal(found[f"{name} y"], *plain.run(images[:2]).values())


def test_a_program_is_shown_in_a_line_and_in_notebooks_by_its_summary(program: npuc.Compiled) -> None:
    cycles = f"{program.report['cycles']:,}"
    assert cycles in repr(program) and len(repr(program)) < 200
    page = program._repr_html_()
    assert cycles in page and len(page) < 20_000 and "<script" not in page
    costliest = max(program.report["layers"], key=lambda each: each["cycles"])
    assert f'data-layer="{program.report["layers"].index(costliest)}"' in page


@pytest.mark.parametrize("function", [npuc.compile, npuc.check])
def test_a_wrong_target_and_wrong_shapes_say_what_is_expected(function: Any) -> None:
    with pytest.raises(ValueError, match=r"no target 'easynp'. Did you mean 'easynpu'\? The targets are: easynpu"):
        function(MODEL, target="easynp")
    with pytest.raises(TypeError, match="target"):
        function(MODEL)
    for wrong in ([1, 2], {"x": 3}, {"x": "ab"}, {"x": [1.5]}):
        with pytest.raises(TypeError, match="a shape for each input by its name"):
            function(MODEL, "easynpu", input_shapes=wrong)


def test_a_saved_program_is_verified_by_its_folder(program: npuc.Compiled, images: Array, tmp_path: Path) -> None:
    program.save(tmp_path / "digits.npu")
    report = npuc.verify(MODEL, str(tmp_path / "digits.npu"), images[:4])
    assert report == npuc.verify(MODEL, program, images[:4])
    for wrong in (3, program.program):
        with pytest.raises(TypeError, match="PathLike"):
            npuc.verify(MODEL, wrong, images[:4])  # pyright: ignore[reportArgumentType]
