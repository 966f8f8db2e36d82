"""Small networks with every activation: compiled, simulated, and compared with onnxruntime in every bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from npuc.ir import Array
from npuc.program import Program, load, save
from npuc.running import input_types
from npuc.samples.loading import synthetic
from npuc.target import Options, Request, target, usual_options
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation, optimised
from tests.onnx_models import network

EASYNPU = target("easynpu")
GOOD = Tolerance(sqnr_db=28, cosine=0.999)
TAILED = Tolerance(sqnr_db=15, cosine=0.98)
"""For functions whose largest values are rare: calibration on other samples does not see them all."""


def model(path: Path, nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Array], x: Sequence[int]) -> Path:
    """An ONNX file from `x` to `y`, opset 20."""
    held = {name: np.asarray(value, np.float32) for name, value in constants.items()}
    onnx.save(network(nodes, x, held, opset=20), path)
    return path


def weights(*shape: int, gain: float = 1.5, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return random.standard_normal(shape) * gain / np.sqrt(np.prod(shape[1:]))


def conv(x: str, w: str, y: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name=y, pads=[1, 1, 1, 1], **attrs)


@dataclass(frozen=True)
class Outcome:
    """A compiled and verified network."""

    program: Program
    verified: Mapping[str, Any]

    @property
    def layers(self) -> list[str]:
        """The target's operators, layer by layer."""
        return [layer["op"] for layer in self.program.manifest["report"]["layers"]]

    @property
    def errors(self) -> list[int | None]:
        return [layer["table_error_lsb"] for layer in self.program.manifest["report"]["layers"]]


def outcome(path: Path, tolerance: Tolerance = GOOD, **options: Any) -> Outcome:
    """Compiles and verifies; simulator and integer reference must agree, and both be near fp32."""
    program = compilation(Request(path, EASYNPU, Options(**options))).program
    directory = path.with_suffix(".npu")
    save(program, directory)
    program = load(directory)
    samples = synthetic(input_types(optimised(Request(path, EASYNPU, usual_options(EASYNPU)))), count=3, seed=7)
    report = verify(path, directory, program, EASYNPU, samples, tolerance)
    assert report["bit_exact"]
    assert report["status"] == "ok", report["outputs"]
    return Outcome(program, report)


ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Sigmoid": {}, "HardSigmoid": {"alpha": 0.25, "beta": 0.4}, "Tanh": {}, "HardSwish": {}, "Gelu": {},
    "Mish": {}, "Softplus": {}, "Softsign": {}, "Elu": {"alpha": 0.7}, "LeakyRelu": {"alpha": 0.2}, "Exp": {},
    "Erf": {}, "Abs": {},
}  # fmt: skip


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_a_convolution_and_its_activation_become_one_chain(op: str, tmp_path: Path) -> None:
    nodes = [conv("x", "w", "a"), helper.make_node(op, ["a"], ["y"], name="y", **ACTIVATIONS[op])]
    path = model(tmp_path / "m.onnx", nodes, {"w": weights(8, 3, 3, 3)}, (1, 3, 9, 9))
    found = outcome(path, TAILED if op == "Exp" else GOOD)
    assert found.layers == ["conv+act"]
    assert found.errors[0] is not None
    assert found.errors[0] <= 1


SWISH = [
    helper.make_node("Sigmoid", ["a"], ["g"]),
    helper.make_node("Mul", ["a", "g"], ["y"]),
]
HARD_SWISH = [
    helper.make_node("Add", ["a", "three"], ["b"]),
    helper.make_node("Clip", ["b", "zero", "six"], ["c"]),
    helper.make_node("Mul", ["a", "c"], ["d"]),
    helper.make_node("Div", ["d", "six"], ["y"]),
]


@pytest.mark.parametrize("nodes", [SWISH, HARD_SWISH], ids=["swish", "hard_swish"])
def test_an_activation_spelled_in_several_nodes_becomes_one_table(
    nodes: Sequence[onnx.NodeProto], tmp_path: Path
) -> None:
    numbers = {"three": np.array(3), "zero": np.array(0), "six": np.array(6)}
    constants = {"w": weights(20, 3, 3, 3, gain=3)} | (numbers if len(nodes) > 2 else {})
    path = model(tmp_path / "m.onnx", [conv("x", "w", "a"), *nodes], constants, (1, 3, 9, 9))
    assert outcome(path).layers == ["conv+act"]


def test_a_chain_goes_over_depthwise_convolution_addition_and_activation(tmp_path: Path) -> None:
    nodes = [
        conv("x", "w1", "a"),
        helper.make_node("HardSwish", ["a"], ["b"]),
        conv("b", "w2", "c", group=20),
        helper.make_node("Mish", ["c"], ["d"]),
        conv("d", "w3", "e"),
        helper.make_node("Add", ["e", "b"], ["f"]),
        helper.make_node("Gelu", ["f"], ["y"]),
    ]
    constants = {
        "w1": weights(20, 3, 3, 3),
        "w2": weights(20, 1, 3, 3, seed=1),
        "w3": weights(20, 20, 3, 3, seed=2),
    }
    path = model(tmp_path / "m.onnx", nodes, constants, (1, 3, 8, 8))
    expected = ["conv+act", "dwconv+act", "conv+add+act"]
    found = outcome(path, Tolerance(22, 0.99))
    assert found.layers == expected


def test_an_activation_whose_input_is_read_again_stands_alone(tmp_path: Path) -> None:
    nodes = [
        conv("x", "w1", "a"),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"w1": weights(8, 3, 3, 3)}, (1, 3, 8, 8))
    assert outcome(path).layers == ["conv", "act", "add"]


def test_activations_stand_at_the_input_behind_pools_and_on_rows(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        conv("a", "w1", "b"),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Sigmoid", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "w2"], ["f"], transB=1),
        helper.make_node("Elu", ["f"], ["y"]),
    ]
    constants = {"w1": weights(18, 3, 3, 3), "w2": weights(7, 18 * 16, gain=3)}
    found = outcome(model(tmp_path / "m.onnx", nodes, constants, (1, 3, 8, 8)), Tolerance(22, 0.99))
    assert found.layers == ["act", "conv", "maxpool", "act", "conv", "act"]


def test_more_than_256_channels_are_several_words_with_one_table_each(tmp_path: Path) -> None:
    nodes = [conv("x", "w", "a"), helper.make_node("HardSwish", ["a"], ["y"])]
    path = model(tmp_path / "m.onnx", nodes, {"w": weights(300, 2, 3, 3)}, (1, 2, 12, 12))
    assert set(outcome(path).layers) == {"conv+act"}


@pytest.mark.parametrize(
    ("low", "high", "layers"),
    [(0.0, 2.0, ["conv_relu"]), (-1.0, 1.0, ["conv+act"]), (0.25, None, ["conv+act"])],
)
def test_a_clip_is_a_saturating_relu_from_zero_and_a_table_elsewhere(
    low: float, high: float | None, layers: list[str], tmp_path: Path
) -> None:
    limits = {"low": np.array(low)} | ({} if high is None else {"high": np.array(high)})
    nodes = [conv("x", "w", "a"), helper.make_node("Clip", ["a", *limits], ["y"])]
    constants = {"w": weights(8, 3, 3, 3)} | limits
    assert outcome(model(tmp_path / "m.onnx", nodes, constants, (1, 3, 9, 9))).layers == layers


SLOPES = np.linspace(-1.3, 1.6, 20).reshape(20, 1, 1)


def prelu_model(path: Path, slopes: Array) -> Path:
    nodes = [
        conv("x", "w1", "a"),
        helper.make_node("PRelu", ["a", "slopes"], ["b"], name="prelu"),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        conv("c", "w2", "y"),
    ]
    constants = {"w1": weights(20, 3, 3, 3), "w2": weights(4, 20, 3, 3), "slopes": slopes}
    return model(path, nodes, constants, (1, 3, 8, 8))


def test_a_slope_per_channel_is_a_word_of_the_extension(tmp_path: Path) -> None:
    found = outcome(prelu_model(tmp_path / "m.onnx", SLOPES))
    assert found.layers == ["conv+prelu", "maxpool", "conv"]
    assert found.program.manifest["isa"] == "extended"


def test_one_slope_for_all_channels_is_a_table(tmp_path: Path) -> None:
    found = outcome(prelu_model(tmp_path / "m.onnx", np.full((20, 1, 1), 0.125)))
    assert found.layers == ["conv+act", "maxpool", "conv"]


def test_documented_words_compute_slopes_from_both_signs(tmp_path: Path) -> None:
    found = outcome(prelu_model(tmp_path / "m.onnx", SLOPES), isa="documented")
    assert found.layers == ["conv_relu", "conv", "maxpool", "conv"]
    assert found.program.manifest["isa"] == "documented"


def test_a_slope_per_pixel_is_one_per_channel_of_an_image_of_one_pixel(tmp_path: Path) -> None:
    found = outcome(prelu_model(tmp_path / "m.onnx", np.random.default_rng(0).random((20, 8, 8))))
    assert "prelu" in found.layers


def test_the_verbose_report_names_the_error_of_the_tables(tmp_path: Path) -> None:
    from npuc.reports.summaries import compile_summary

    nodes = [conv("x", "w", "a"), helper.make_node("Sigmoid", ["a"], ["b"]), conv("b", "w2", "y")]
    constants = {"w": weights(8, 3, 3, 3), "w2": weights(4, 8, 3, 3)}
    path = model(tmp_path / "m.onnx", nodes, constants, (1, 3, 8, 8))
    report = outcome(path).program.manifest["report"]
    header, first, second = compile_summary(report, (), path, verbose=True).splitlines()[-3:]
    assert header.endswith("table LSB")
    assert first.endswith(str(report["layers"][0]["table_error_lsb"]))
    assert second.endswith("-")


def test_the_face_detector_with_slopes_per_channel_is_exact(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "pnet.onnx"
    path.write_bytes((shared / "models" / "mtcnn_pnet.onnx").read_bytes())
    found = outcome(path, Tolerance(15, 0.98), machine="large")
    assert found.layers.count("conv+prelu") == 3


def test_a_chain_ends_where_the_bias_and_scale_pads_are_full(tmp_path: Path) -> None:
    ops = ("Sigmoid", "Tanh", "Erf", "Softplus", "Mish")
    names = ["a", *(f"t{number}" for number in range(len(ops) - 1)), "y"]
    nodes = [conv("x", "w", "a")]
    nodes += [helper.make_node(op, [x], [y]) for op, x, y in zip(ops, names, names[1:], strict=False)]
    found = outcome(model(tmp_path / "m.onnx", nodes, {"w": weights(8, 3, 3, 3)}, (1, 3, 9, 9)))
    assert found.layers == ["conv+act+act+act", "act+act"]  # a table takes 16 of 64 entries, the convolution one


@pytest.mark.parametrize("isa", ["documented", "extended"])
@pytest.mark.parametrize(("channels", "layers"), [(16, ["act"]), (40, ["act"]), (16, ["conv", "act"])])
def test_a_table_fills_the_parameter_pads_of_the_author(
    channels: int, layers: list[str], isa: str, tmp_path: Path
) -> None:
    """16 entries: a table alone for any number of channels, and not behind a convolution, which needs more."""
    nodes, constants, x = [helper.make_node("HardSwish", ["x"], ["y"], name="y")], {}, (1, channels, 4, 4)
    if len(layers) == 2:
        nodes = [conv("x", "w", "c"), helper.make_node("HardSwish", ["c"], ["y"], name="y")]
        constants = {"w": weights(channels, channels, 3, 3)}
    found = outcome(model(tmp_path / "m.onnx", nodes, constants, x), machine="author", flags={"isa": isa})
    assert set(found.layers) == set(layers)
