"""Quantised models on NVDLA keep scales, zero points and integers: simulator, integer network and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc import program, running
from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.checking import Tolerance, verify
from tests.compiled import compilation
from tests.onnx_models import FORMS, TRAINED, network, quantised

pytestmark = pytest.mark.usefixtures("exact_integers")


def _compiled(model: Path, folder: Path, shapes: dict[str, tuple[int, ...]], name: str) -> program.Program:
    compiled = compilation(Request(model, target(name), Options(), shapes=shapes)).program
    program.save(compiled, folder / "program")
    return program.load(folder / "program")


LARGE = 1 << 13
"""Elements of an input, of which two samples have more values in every layer than four of a smaller one."""


def _verified(model: Path, folder: Path, loaded: program.Program, samples: int | None = None) -> dict[str, Any]:
    inputs = running.program_inputs(loaded)
    count = samples or (2 if sum(each.size for each in inputs.values()) > LARGE else 4)
    synthetic = data.synthetic(inputs, count)
    name = loaded.manifest["target"]
    return verify(model, folder / "program", loaded, target(name), synthetic, Tolerance(0, 0))


def _steps_off(report: dict[str, Any], beyond: float) -> dict[str, float]:
    """By how many steps each layer alone misses onnxruntime, of those that miss by more.

    A tensor that is not rounded in the model has values beyond int8, and those between two steps.
    """
    found = {
        each["name"]: each["single"]["max_abs_error"] / each["scale"]
        for each in report["layers"]
        if each["single"]
    }
    return {
        name: steps
        for name, steps in found.items()
        if steps > beyond and not name.startswith(("Add__", "n11_Gemm_Q"))
    }


@pytest.fixture(scope="module")
def trained(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, program.Program]]:
    """The program of a trained model on nvdla-small, and the folder in which it is."""

    @cache
    def found(name: str) -> tuple[Path, program.Program]:
        folder, (x, shape) = tmp_path_factory.mktemp(name), TRAINED[name]
        return folder, _compiled(shared / "models" / f"{name}.onnx", folder, {x: shape}, "nvdla-small")

    return found


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_quantised_model_misses_onnxruntime_by_a_step_a_layer_at_most(
    name: str, shared: Path, trained: Callable[[str], tuple[Path, program.Program]]
) -> None:
    folder, loaded = trained(name)
    report = _verified(shared / "models" / f"{name}.onnx", folder, loaded)
    assert report["bit_exact"]
    assert not _steps_off(report, 1.001)
    assert [port.dtype for port in (*loaded.inputs, *loaded.outputs)] == ["int8", "int8"]


@pytest.mark.parametrize("name", ["nvdla-large", "nvdla-full"])
def test_the_larger_configurations_compute_the_same(name: str, shared: Path, tmp_path: Path) -> None:
    x, shape = TRAINED["tiny_sww_int8"]
    model = shared / "models" / "tiny_sww_int8.onnx"
    report = _verified(model, tmp_path, _compiled(model, tmp_path, {x: shape}, name), 2)
    assert report["bit_exact"]
    assert not _steps_off(report, 1.001)


def _images(name: str, shared: Path, shape: tuple[int, ...]) -> Array:
    """Photographs where there are any, else smooth noise."""
    if name == "tiny_resnet8_int8qdq":
        with np.load(shared / "tasks" / "cifar20_resnet8" / "calibration.npz") as archive:
            return (np.rint(archive["x"].astype(np.float32)) - 128).astype(np.int8)[:, None]
    noise = np.random.default_rng(0).standard_normal((60, *shape)) * 50
    return noise.clip(-128, 127).astype(np.int8)


@pytest.mark.parametrize("name", TRAINED)
def test_the_largest_output_is_that_of_onnxruntimes_own_integers(
    name: str, shared: Path, trained: Callable[[str], tuple[Path, program.Program]]
) -> None:
    x, shape = TRAINED[name]
    model = shared / "models" / f"{name}.onnx"
    folder, compiled = trained(name)
    evidence = program.load_evidence(folder / "program", compiled)
    runs = [session(each) for each in (model.read_bytes(), evidence["reference.onnx"])]
    output = runs[0].get_outputs()[0].name
    feeds = _images(name, shared, shape)
    theirs, ours = (
        np.stack([run.run([output], {x: each})[0].ravel() for each in feeds]).astype(np.float64) for run in runs
    )
    assert np.square(theirs).sum() > 10**2.5 * np.square(theirs - ours).sum()  # 25 dB
    if theirs.shape[1] > 1:
        best = np.sort(theirs, axis=1)[:, ::-1]
        clear = best[:, 0] - best[:, 1] > 2
        below = ours.max(axis=1) - np.take_along_axis(ours, theirs.argmax(axis=1)[:, None], axis=1)[:, 0]
        assert (below <= 2)[clear].mean() >= 0.99


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("network", "form"), [
    *product(("digits", "gated"), FORMS), ("unet_small", "QDQ, unsigned weights"),
    ("unet_small", "QOperator, signed"),
])  # fmt: skip
def test_what_onnxruntime_quantises_keeps_its_scales(network: str, form: str, tmp_path: Path) -> None:
    made, activations, weights, symmetric, per_channel, opset = FORMS[form]
    model = quantised(
        network, tmp_path, made, activations, weights, symmetric=symmetric, per_channel=per_channel, opset=opset
    )
    report = _verified(model, tmp_path, _compiled(model, tmp_path, {}, "nvdla-small"), 3)
    assert report["bit_exact"]
    assert not _steps_off(report, 1.001)
    assert (report["outputs"][0]["sqnr_db"] or 99) > 30


def _rounded(x: str, y: str, scale: float, zero: int) -> list[onnx.NodeProto]:
    """QuantizeLinear and DequantizeLinear; the constants are named after the result."""
    names = [f"{y}_scale", f"{y}_zero"]
    integers = f"{y}_integers"
    return [
        onnx.helper.make_node("QuantizeLinear", [x, *names], [integers], f"{y}/to"),
        onnx.helper.make_node("DequantizeLinear", [integers, *names], [y], f"{y}/from"),
    ]


STEPS = {"a": (0.043, -31), "b": (0.029, 77), "y": (0.05, -90)}


def _operator(op: str, inputs: str, constants: dict[str, Array], **attrs: Any) -> onnx.ModelProto:
    """One operator between tensors of other scales and zero points each; a and b are the network's inputs."""
    used = [name for name in inputs.split() if name in STEPS]
    nodes = [each for name in used for each in _rounded(f"{name}_in", name, *STEPS[name])]
    nodes.append(onnx.helper.make_node(op, inputs.split(), ["r"], "operator", **attrs))
    nodes += _rounded("r", "y", *STEPS["y"])
    held = {f"{name}_scale": np.float32(STEPS[name][0]) for name in (*used, "y")}
    held |= {f"{name}_zero": np.int8(STEPS[name][1]) for name in (*used, "y")}
    return network(nodes, {f"{name}_in": (1, 8, 6, 6) for name in used}, {**held, **constants})


NORMAL = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
OPERATORS: dict[str, tuple[str, str, dict[str, Array], dict[str, Any]]] = {
    "Add": ("Add", "a b", {}, {}),
    "Sub": ("Sub", "a b", {}, {}),
    "Max": ("Max", "a b", {}, {}),
    "Min": ("Min", "a b", {}, {}),
    "Add of a constant": ("Add", "a c", {"c": NORMAL[0, :, :1, :1]}, {}),
    "Mul by a constant": ("Mul", "a c", {"c": 8 * NORMAL[0, :, :1, :1]}, {}),
    "Relu": ("Relu", "a", {}, {}),
    "Neg": ("Neg", "a", {}, {}),
    "Abs": ("Abs", "a", {}, {}),
    "LeakyRelu": ("LeakyRelu", "a", {}, {"alpha": 0.2}),
    "PRelu": ("PRelu", "a c", {"c": NORMAL[0, :, :1, :1]}, {}),
    "HardSigmoid": ("HardSigmoid", "a", {}, {}),
    "a limit that saturation is not": ("Clip", "a l h", {"l": np.float32(0), "h": np.float32(3.3)}, {}),
    "two limits": ("Clip", "a l h", {"l": np.float32(-1.1), "h": np.float32(3.3)}, {}),
    "a convolution with padding": ("Conv", "a c", {"c": NORMAL}, {"pads": [1, 1, 1, 1]}),
    "AveragePool": (
        "AveragePool",
        "a",
        {},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "GlobalAveragePool": ("GlobalAveragePool", "a", {}, {}),
    "MaxPool": ("MaxPool", "a", {}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_between_zero_points_miss_onnxruntime_by_a_step_at_most(name: str, tmp_path: Path) -> None:
    op, inputs, constants, attrs = OPERATORS[name]
    model = tmp_path / "model.onnx"
    onnx.save(_operator(op, inputs, constants, **attrs), model)
    loaded = _compiled(model, tmp_path, {}, "nvdla-small")
    report = _verified(model, tmp_path, loaded)
    assert report["bit_exact"]
    assert report["outputs"][0]["max_abs_error"] <= STEPS["y"][0] * 1.001
    assert not [step for step in loaded.manifest["steps"] if step["kind"] == "host" and not step["conversion"]]


def test_a_product_of_two_zero_points_loses_one_bit_of_the_gate(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(_operator("Mul", "a b", {}), model)
    report = _verified(model, tmp_path, _compiled(model, tmp_path, {}, "nvdla-small"))
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 30


# --precision mixed on NVDLA: a few layers in float on the host


SMALL = target("nvdla-small")


@pytest.fixture(scope="module")
def model(shared: Path) -> Path:
    return shared / "models" / "mnist_cnn.onnx"


@pytest.fixture(scope="module")
def task(shared: Path) -> Path:
    return shared / "tasks" / "mnist_cnn"


@pytest.fixture(scope="module")
def mixed(model: Path, task: Path) -> Program:
    return compilation(Request(model, SMALL, Options(level="0", mixed=True), [task / "calibration.npz"])).program


def _on_host(compiled: Program) -> list[dict[str, str]]:
    return [each for each in compiled.manifest["report"]["host_steps"] if each["op"] == "Conv"]


def test_a_network_gains_with_layers_on_the_host_and_stays_bit_exact(
    model: Path, task: Path, mixed: Program, tmp_path: Path
) -> None:
    array = compilation(Request(model, SMALL, Options(level="0"), [task / "calibration.npz"])).program
    samples = data.load([task / "test.npz"], running.program_inputs(array)).first(10)
    found: dict[bool, float] = {}
    for on_host, compiled in ((False, array), (True, mixed)):
        directory = tmp_path / str(on_host)
        program.save(compiled, directory)
        report = verify(model, directory, program.load(directory), SMALL, samples, Tolerance(0, 0))
        assert report["bit_exact"]
        assert bool(_on_host(compiled)) == on_host
        found[on_host] = report["outputs"][0]["sqnr_db"]
    assert found[True] > found[False] + 3


def test_the_report_names_the_layers_their_share_and_the_gain(mixed: Program) -> None:
    step = mixed.manifest["report"]["quantization"]["steps"][-1]
    layers = _on_host(mixed)
    assert {each["reason"] for each in layers} == {"int8 would cost accuracy here (--precision mixed)"}
    assert all(f"'{each['node']}'" in step["name"] for each in layers)
    assert step["name"].endswith("% of the MACs")
    assert float(step["name"].rsplit(", ", 1)[1].split()[0]) <= 10
    assert step["after_db"] > step["before_db"] + 0.5


def test_the_stock_runtime_has_no_such_layers(mixed: Program, tmp_path: Path) -> None:
    program.save(mixed, tmp_path / "p")
    with pytest.raises(ArtefactError, match="Conv") as caught:
        SMALL.export(program.load(tmp_path / "p"), "loadable")
    assert caught.value.problems[0].code == "E506"


def test_a_quantised_model_keeps_its_layers_on_the_machine(shared: Path, task: Path) -> None:
    model, shapes = shared / "models" / "tiny_sww_int8.onnx", {"serving_default_input_1:0": (1, 30, 1, 40)}
    made = compilation(Request(model, SMALL, Options(mixed=True), shapes=shapes)).program
    assert not _on_host(made)
