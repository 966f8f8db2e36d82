"""The ladder on NVDLA: improved layers, zero points of ReLUs, and QDQ models that other runtimes open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import driver, program, running
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target, usual_options
from npuc.targets.nvdla.quantisation.sums import Multiplied, choose_sums, two_stages
from tests.compiled import compilation, optimised
from tests.onnx_models import network, node, weights

SMALL = target("nvdla-small")


def _residual() -> onnx.ModelProto:
    """Convolutions with and without padding, a sum, a pool: every form of a convolution's stages."""
    shapes = {"u": (16, 3, 3, 3), "v": (16, 16, 3, 3), "w": (16, 16, 1, 1), "k": (10, 16, 1, 1)}
    constants = {name: weights(*shape) * 1.5 for name, shape in shapes.items()}
    constants |= {f"b{name}": weights(shape[0]) / 4 for name, shape in shapes.items()}
    nodes = [
        node("Conv", "x u bu", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "ra"),
        node("Conv", "ra v bv", "b", pads=[1, 1, 1, 1]), node("Relu", "b", "rb"), node("Conv", "rb w bw", "c"),
        node("Add", "c ra", "d"), node("Relu", "d", "rd"), node("GlobalAveragePool", "rd", "m"),
        node("Conv", "m k bk", "y"),
    ]  # fmt: skip
    return network(nodes, (1, 3, 12, 12), constants)


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """Smooth images of 0..1."""
    random = np.random.default_rng(3)
    coarse = random.uniform(0, 1, (24, 3, 4, 4))
    np.savez(tmp_path / "some.npz", x=np.kron(coarse, np.ones((3, 3))).astype(np.float32))
    return tmp_path / "some.npz"


def _error(found: bytes, model: onnx.ModelProto) -> float:
    """Mean squared error against fp32 on images that were not calibrated with, relative to the signal."""
    random = np.random.default_rng(4)
    feeds = np.kron(random.uniform(0, 1, (16, 1, 3, 4, 4)), np.ones((3, 3))).astype(np.float32)
    exact, ours = (
        np.stack([run.run(["y"], {"x": each})[0] for each in feeds]) for run in (session(model), session(found))
    )
    return float(np.square(exact - ours).sum() / np.square(exact).sum())


def test_the_usual_level_has_half_the_noise_of_the_least(tmp_path: Path, calibration: Path) -> None:
    model = _residual()
    onnx.save(model, tmp_path / "m.onnx")
    errors: dict[str, float] = {}
    for level in ("0", "1"):
        made = compilation(Request(tmp_path / "m.onnx", SMALL, Options(level=level), [calibration])).program
        errors[level] = _error(made.evidence["reference.onnx"], model)
        tried = made.manifest["report"]["quantization"]
        assert tried["level"] == level
        assert bool(tried["steps"]) == (level == "1")
    assert errors["1"] < 0.5 * errors["0"]


def test_zero_points_of_relus_are_bit_exact_on_the_machine(tmp_path: Path, calibration: Path) -> None:
    model = _residual()
    onnx.save(model, tmp_path / "m.onnx")
    made = compilation(Request(tmp_path / "m.onnx", SMALL, Options(), [calibration])).program
    assert b'"zero_point":-128' in made.evidence["graph.json"].replace(b" ", b"")
    program.save(made, tmp_path / "p")
    samples = data.load([calibration], running.program_inputs(made)).first(3)
    found = running.run_program(program.load(tmp_path / "p"), SMALL, samples)["y"]
    reference = session(made.evidence["reference.onnx"])
    for each, feed in zip(found, samples.feeds(), strict=True):
        np.testing.assert_array_equal(each.ravel(), reference.run(["y"], feed)[0].ravel())


def test_the_written_model_computes_what_the_program_does(tmp_path: Path, calibration: Path) -> None:
    model = _residual()
    onnx.save(model, tmp_path / "m.onnx")
    written, _ = driver.quantise_model(Request(tmp_path / "m.onnx", SMALL, Options(), [calibration]))
    made = compilation(Request(tmp_path / "m.onnx", SMALL, Options(), [calibration])).program
    between = _error(written, onnx.load_model_from_string(made.evidence["reference.onnx"]))
    assert between < 0.5 * _error(written, model)
    assert {each.op_type for each in onnx.load_model_from_string(written).graph.node} >= {"QuantizeLinear", "Conv"}


@pytest.mark.parametrize("x_zero", [0, -128, 57])
def test_two_stages_give_bias_and_ratio_to_a_millionth(x_zero: int) -> None:
    random = np.random.default_rng(5)
    w = random.standard_normal((12, 64, 3, 3)) * np.exp2(random.uniform(-6, 0, (12, 1, 1, 1)))
    sums = choose_sums(w, random.standard_normal(12) * 5, 0.03, x_zero, 0.02)
    first, second, operands = two_stages(sums)
    m1, m2 = (operands[key].ravel().astype(np.float64) for key in ("x1_mul", "x2_mul"))
    ratio = m1 * m2 * 2.0**-second.shift
    np.testing.assert_allclose(ratio, sums.ratio, rtol=2e-6)
    upper, lower = (operands[key].ravel().astype(np.float64) for key in ("x1_alu", "x2_alu"))
    bias = upper * 2.0**first.alu_shift + lower * 2.0**second.alu_shift / m1
    np.testing.assert_allclose(bias, sums.bias, atol=0.6)
    room = 2.0**31 / m1 - 2.0**first.alu_shift  # sums beyond saturate, and so do their results
    assert ((sums.bound < room) | (room * sums.ratio > 256)).all()


def test_weights_that_training_has_shut_off_leave_the_bias_its_place() -> None:
    """A channel of 1e-30 beside a bias of 3: in steps of such weights the bias would need a hundred bits."""
    w = np.stack([np.full((4, 1, 1), 1e-30), np.ones((4, 1, 1))]).astype(np.float32)
    sums = choose_sums(w, np.array([3.0, 3.0]), 0.05, -128, 0.02)
    first, second, _ = two_stages(sums)
    assert max(first.alu_shift, second.alu_shift) < 32
    assert np.abs(sums.bias * sums.ratio * 0.02 - [3, 3 + 128 * 4 * 0.05]).max() < 0.01
    assert sums.w[1].tolist() == [[[127]]] * 4


def test_a_trained_network_agrees_with_fp32(shared: Path) -> None:
    task, model = shared / "tasks" / "cifar20_resnet8", shared / "models" / "tiny_resnet8_fp32.onnx"
    made = compilation(Request(model, SMALL, Options(), [task / "calibration.npz"])).program
    runs = [session(each) for each in (model.read_bytes(), made.evidence["reference.onnx"])]
    name = runs[0].get_outputs()[0].name
    feeds = list(data.load([task / "test.npz"], running.program_inputs(made)).feeds())
    exact, ours = (np.stack([run.run([name], feed)[0].ravel() for feed in feeds]) for run in runs)
    assert (exact.argmax(axis=1) == ours.argmax(axis=1)).sum() >= 19
    assert 10 * np.log10(np.square(exact).sum() / np.square(exact - ours).sum()) > 22.2 - 2  # quantize_static's


def test_a_layer_takes_the_weights_that_it_was_read_with(tmp_path: Path, calibration: Path) -> None:
    onnx.save(_residual(), tmp_path / "m.onnx")
    graph = optimised(Request(tmp_path / "m.onnx", SMALL, usual_options(SMALL)))
    samples = data.load([calibration], running.input_types(graph))
    integer = SMALL.quantise(graph, samples, Options())[0].quantised
    layers, read = Multiplied(), 0
    for each in integer.graph.nodes:
        found = layers.layer(integer, each)
        if found is not None:
            read += 1
            for name, value in layers.constants(integer, each, found.weights).items():
                np.testing.assert_array_equal(value, integer.graph.constants[name])
    assert read == 4
