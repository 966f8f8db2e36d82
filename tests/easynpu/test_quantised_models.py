"""Quantised models keep their scales and zero points: simulator, integer network and onnxruntime."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc import driver, program
from npuc.errors import NpucError
from npuc.models.digits import FOLDER
from npuc.quantize.scales.model_scales import integers_of
from npuc.reference import session
from npuc.regions.assembling import LoweredPart
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation, optimised, verified
from tests.onnx_models import FORMS, TRAINED, parse, quantised
from tests.runtime import RUNTIME

EASYNPU = target("easynpu")
pytestmark = pytest.mark.usefixtures("exact_integers")


@cache
def _trained(path: Path, level: str) -> LoweredPart:
    """The program of a trained model without calibration data, and its samples."""
    return compilation(Request(path, EASYNPU, Options(level=level), shapes=dict([TRAINED[path.stem]])))


def _verified(model: Path, folder: Path, isa: str = "extended") -> tuple[program.Program, dict[str, Any]]:
    return verified(Request(model, EASYNPU, Options(isa=isa)), folder)


def _judged(made: LoweredPart, model: Path, folder: Path) -> tuple[program.Program, dict[str, Any]]:
    directory = folder / "program"
    program.save(made.program, directory)
    loaded = program.load(directory)
    return loaded, verify(model, directory, loaded, EASYNPU, made.samples, Tolerance(0, 0))


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_quantised_model_is_bit_exact_and_close_to_onnxruntime(
    name: str, shared: Path, tmp_path: Path
) -> None:
    model = shared / "models" / f"{name}.onnx"
    loaded, report = _judged(_trained(model, "1"), model, tmp_path)
    assert report["bit_exact"]
    assert [port.dtype for port in (*loaded.inputs, *loaded.outputs)] == ["int8", "int8"]
    single = [
        each["single"]["sqnr_db"] for each in report["layers"] if each["single"] and each["single"]["sqnr_db"]
    ]
    assert len(single) > 8
    assert min(single) > 15


@pytest.mark.parametrize("name", ["tiny_kws_int8qdq", "tiny_vww_int8qdq", "tiny_sww_int8"])
def test_a_trained_quantised_model_computes_what_onnxruntime_does_without_calibration_data(
    name: str, shared: Path
) -> None:
    path, (x, shape) = shared / "models" / f"{name}.onnx", TRAINED[name]
    compiled = _trained(path, "1").program
    runs = [session(model) for model in (path.read_bytes(), compiled.evidence["reference.onnx"])]
    inputs = np.random.default_rng(7).integers(-128, 128, (40, *shape), np.int8)
    theirs, ours = (
        np.stack([run.run(None, {x: each})[0].ravel() for each in inputs]).astype(np.float64) for run in runs
    )
    error = np.square(ours - theirs).sum()
    assert 10 * np.log10(np.square(theirs + 128).sum() / error) > 25  # all three end with steps from -128 on
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() > 0.97


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("isa", ["extended", "documented"])
@pytest.mark.parametrize("form", FORMS)
def test_what_onnxruntime_quantises_keeps_its_scales(form: str, isa: str, tmp_path: Path) -> None:
    made, activations, weights, symmetric, per_channel, opset = FORMS[form]
    if RUNTIME < (1, 23) and opset >= 23:
        pytest.skip(f"this onnxruntime knows no opset {opset}")
    model = quantised(
        "digits",
        tmp_path,
        made,
        activations,
        weights,
        symmetric=symmetric,
        per_channel=per_channel,
        opset=opset,
    )
    _, report = _verified(model, tmp_path, isa)
    assert report["bit_exact"]
    # onnxruntime's own scales, and half as fine where the document has neither zero points nor factors in sums
    assert report["outputs"][0]["sqnr_db"] > (29 if isa == "extended" else 23)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "least"), [("unet_small", 30), ("gated", 25)])
def test_concatenations_and_products_of_other_scales_are_converted(
    name: str, least: float, tmp_path: Path
) -> None:
    model = quantised(name, tmp_path, "QOperator", "QUInt8", "QInt8", symmetric=False, per_channel=True, opset=17)
    _, report = _verified(model, tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > least


@pytest.mark.parametrize("name", TRAINED)
def test_passes_keep_the_integers_of_the_weights(name: str, shared: Path) -> None:
    path = shared / "models" / f"{name}.onnx"
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    kernels = {
        each.output[0]: stored[each.input[0]]
        for each in onnx.load(path).graph.node
        if each.op_type == "DequantizeLinear" and each.input[0] in stored
    }
    graph = optimised(Request(path, EASYNPU, Options(), shapes=dict([TRAINED[name]])))
    found = {
        each.inputs[1]: integers_of(graph.constants[each.inputs[1]]) for each in graph.nodes if each.op == "Conv"
    }
    assert len(found.keys() & kernels.keys()) > 5
    for weight, integers in found.items():
        assert integers is not None
        if weight in kernels:
            np.testing.assert_array_equal(integers[0], kernels[weight])


def _conversion(scale: Any, zero: Any, axis: int = 1) -> onnx.ModelProto:
    """x -> QuantizeLinear -> DequantizeLinear -> Relu."""
    text = (
        f"g (float[1,4,3,3] x) => (float[1,4,3,3] y) {{ [to_integers] q = QuantizeLinear<axis = {axis}>(x, s, z)\n"
        f"[from_integers] d = DequantizeLinear<axis = {axis}>(q, s, z)\n [relu] y = Relu(d) }}"
    )
    return parse(text, 21, s=scale, z=zero)


@pytest.mark.parametrize(
    ("scale", "zero", "reason"),
    [
        (np.arange(1, 5, dtype=np.float32), np.zeros(4, np.int8), "an activation is quantised to 4 scales"),
        (np.float32(0.1), np.int16(0), "an activation is quantised to int16"),
    ],
)
def test_an_activation_with_other_steps_than_8_bits_per_tensor_is_refused(
    scale: Any, zero: Any, reason: str, tmp_path: Path
) -> None:
    onnx.save(_conversion(scale, zero), tmp_path / "model.onnx")
    with pytest.raises(NpucError) as caught:
        compilation(Request(tmp_path / "model.onnx", EASYNPU, Options()))
    assert {(each.code, each.node, each.reason) for each in caught.value.problems} == {
        ("E202", "to_integers", reason),
        ("E202", "from_integers", reason),
    }


def test_a_relu_with_a_zero_point_between_is_a_table(tmp_path: Path) -> None:
    onnx.save(_conversion(np.float32(0.05), np.int8(-40)), tmp_path / "model.onnx")
    _, report = _verified(tmp_path / "model.onnx", tmp_path)
    assert report["bit_exact"]
    assert [each["op"] for each in report["layers"]][-1] == "IntTable"


def test_balanced_weights_are_closer_to_the_model_with_and_without_corrections_to_choose_from(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(shared / "tasks" / "cifar20_resnet8" / "calibration.npz") as archive:
        images = (np.rint(archive["x"].astype(np.float32)) - 128).astype(np.int8)
    np.savez(tmp_path / "some.npz", x=images[:24])
    model, shapes = shared / "models" / "tiny_resnet8_int8qdq.onnx", {"input_1_int8": (1, 32, 32, 3)}

    def decibels(level: str) -> float:
        request = Request(model, EASYNPU, Options(level=level), [tmp_path / "some.npz"], shapes)
        _, report = verified(request, tmp_path, data.Samples({"input_1_int8": images[24:56, None]}))
        assert report["bit_exact"]
        logits = next(each for each in report["layers"] if each["op"] == "Reshape")
        return logits["entire"]["sqnr_db"]

    found = [decibels(level) for level in ("0", "1")]
    monkeypatch.setattr("npuc.quantize.improvement.balance.balance_network", lambda network: network)
    nearest, corrected = decibels("0"), decibels("1")
    assert min(*found, corrected) > nearest + 1


@pytest.mark.parametrize(("name", "gain"), [("tiny_kws_int8qdq", 1.0), ("tiny_sww_int8", 2.0)])
def test_corrections_that_noise_judges_bring_a_model_without_data_closer_to_onnxruntime(
    name: str, gain: float, shared: Path
) -> None:
    path, (x, shape) = shared / "models" / f"{name}.onnx", TRAINED[name]
    inputs = np.random.default_rng(11).integers(-128, 128, (60, *shape), np.int8)
    levels = [_trained(path, level).program for level in "01"]
    runs = [session(each) for each in (path.read_bytes(), *(each.evidence["reference.onnx"] for each in levels))]
    exact, *found = (np.stack([run.run(None, {x: each})[0] for each in inputs]).astype(float) for run in runs)
    balanced, chosen = (10 * np.log10(np.square(each - exact).mean()) for each in found)
    assert chosen < balanced - gain


def test_calibration_data_make_the_weights_fit_the_given_scales_better(shared: Path, tmp_path: Path) -> None:
    x, shape = TRAINED["tiny_kws_int8qdq"]
    path = shared / "models" / "tiny_kws_int8qdq.onnx"
    random = np.random.default_rng(3)
    np.savez(tmp_path / "some.npz", **{x: random.integers(-128, 128, (48, *shape), np.int8)})
    inputs = random.integers(-128, 128, (40, *shape), np.int8)
    levels = [
        compilation(Request(path, EASYNPU, Options(level=level), [tmp_path / "some.npz"], {x: shape})).program
        for level in ("0", "1")
    ]
    runs = [session(each) for each in (path.read_bytes(), *(each.evidence["reference.onnx"] for each in levels))]
    exact, *found = (np.stack([run.run(None, {x: each})[0] for each in inputs]).astype(float) for run in runs)
    before, after = (np.square(each - exact).mean() for each in found)
    assert after < before / 1.2


def test_what_npuc_quantised_compiles_without_data_to_the_weights_it_had(tmp_path: Path) -> None:
    """Made-up samples justify no change: the integers of the QDQ model are those of the program."""
    model, calibration = FOLDER / "digits.onnx", [FOLDER / "digits_calibration.npz"]
    first = compilation(Request(model, EASYNPU, Options(), calibration)).program
    written, _ = driver.quantise_model(Request(model, EASYNPU, Options(), calibration))
    (tmp_path / "q.onnx").write_bytes(written)
    second = compilation(Request(tmp_path / "q.onnx", EASYNPU, Options())).program
    assert second.files["weight.bin"] == first.files["weight.bin"]
    assert second.manifest["report"]["quantization"]["steps"] == []
