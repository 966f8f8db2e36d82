"""Whole networks on NVDLA: compiled, saved, loaded, and compared with onnxruntime in every layer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import program, running
from npuc.errors import ArtefactError, NpucError
from npuc.models import MODELS
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from tests.compiled import compilation
from tests.given import GIVEN
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")
SHARED = GIVEN


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> program.Program:
    """The trained network for nvdla-small, as read back from its artefact."""
    return compiled(MODELS["digits"](), tmp_path_factory.mktemp("digits"))[2]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *product(["digits", "lenet", "resnet8", "ds_cnn", "residual_awkward"], ["nvdla-small", "nvdla-full"]),
        ("resnet8", "nvdla-large"),
    ],
)
def test_a_network_is_bit_exact(model: str, name: str, tmp_path: Path) -> None:
    expect_exact(verified(MODELS[model](), tmp_path, name, samples=1), 12.0)


@pytest.mark.skipif(not SHARED.exists(), reason="the trained networks are not here")
@pytest.mark.parametrize(("model", "task", "name"), [
    ("tiny_resnet8_fp32", "cifar20_resnet8", "nvdla-small"),
    ("tiny_resnet8_fp32", "cifar20_resnet8", "nvdla-full"), ("mnist_cnn", "mnist_cnn", "nvdla-large"),
])  # fmt: skip
def test_a_trained_network_keeps_its_classes(model: str, task: str, name: str, tmp_path: Path) -> None:
    path = SHARED / "models" / f"{model}.onnx"
    calibration = SHARED / "tasks" / task / "calibration.npz"
    made = compilation(Request(path, target(name), Options(), [calibration])).program
    program.save(made, tmp_path / "out")
    loaded = program.load(tmp_path / "out")
    samples = data.load([SHARED / "tasks" / task / "test.npz"], running.program_inputs(loaded)).first(10)
    assert samples.labels is not None
    found = running.run_program(loaded, target(name), samples)
    agreeing = np.argmax(next(iter(found.values())), axis=-1) == samples.labels.reshape(-1)[:10]
    assert agreeing.sum() >= 7  # the fp32 networks themselves miss a few of these


def test_the_functional_model_needs_neither_reference_nor_graph(tmp_path: Path) -> None:
    _, directory, loaded = compiled(MODELS["digits"](), tmp_path)
    samples = data.synthetic(running.program_inputs(loaded), 2, seed=1)
    before = running.run_program(loaded, target("nvdla-small"), samples)
    for name in program.EVIDENCE:
        (directory / name).unlink()
    after = running.run_program(program.load(directory), target("nvdla-small"), samples)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)


def test_two_compilations_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    model = MODELS["resnet8"]()
    _, _, first = compiled(model, tmp_path / "a")
    _, _, second = compiled(model, tmp_path / "b")
    assert first.files == second.files and first.manifest == second.manifest


def test_every_register_write_of_a_program_is_listed_with_its_fields_and_nodes(digits: program.Program) -> None:
    listing = target("nvdla-small").listing(digits)
    texts = [entry["text"] for entry in listing]
    assert "wait for SDP_0" in texts and "wait for SDP_1" in texts and "wait for PDP_0" in texts
    assert any(text.startswith("CDMA.D_BANK DATA_BANK=") for text in texts)
    assert any("Conv" in source for entry in listing for source in entry["nodes"])


def test_a_program_that_writes_the_wrong_address_stops_at_the_block(digits: program.Program) -> None:
    listing = target("nvdla-small").listing(digits)
    number = next(e["index"] for e in listing if e["text"].startswith("SDP.D_DST_BASE_ADDR_LOW"))
    words = np.frombuffer(digits.files["registers.bin"], "<u4").reshape(-1, 4).copy()
    words[number, 3] = 0x1000
    broken = replace(digits, files={**digits.files, "registers.bin": words.tobytes()})
    samples = data.synthetic(running.program_inputs(digits), 1)
    with pytest.raises(ArtefactError, match="outside memory"):
        running.run_program(broken, target("nvdla-small"), samples)


@pytest.mark.parametrize("key", ["steps", "operations", "dram", "machine"])
def test_a_manifest_without_a_part_is_refused(key: str, digits: program.Program) -> None:
    manifest = {name: value for name, value in digits.manifest.items() if name != key}
    with pytest.raises(ArtefactError) as caught:
        target("nvdla-small").runner(replace(digits, manifest=manifest))
    assert caught.value.problems[0].code == "E502"


def test_a_missing_file_of_weights_is_named(digits: program.Program) -> None:
    files = {name: value for name, value in digits.files.items() if name != "weights.bin"}
    samples = data.synthetic(running.program_inputs(digits), 1)
    with pytest.raises(ArtefactError, match=r"weights\.bin"):
        running.run_program(replace(digits, files=files), target("nvdla-small"), samples)


def _concat(channels: tuple[int, int]) -> onnx.ModelProto:
    first, second = channels
    nodes = [
        node("Conv", "x u", "a"),
        node("Conv", "x v", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c w", "y"),
    ]
    constants = {
        "u": weights(first, 6, 1, 1), "v": weights(second, 6, 1, 1), "w": weights(9, first + second, 1, 1)
    }  # fmt: skip
    return network(nodes, (1, 6, 5, 7), constants)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("channels", [(8, 8), (5, 12), (40, 3)])
def test_concatenation_takes_no_operation_whatever_the_channels(
    channels: tuple[int, int], name: str, tmp_path: Path
) -> None:
    report = verified(_concat(channels), tmp_path, name)
    expect_exact(report)
    assert [layer["op"] for layer in report["compiled"]["layers"]] == ["convolution"] * 3
    assert not report["compiled"]["host_steps"]


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])
def test_slices_of_channels_rows_and_columns_take_no_operation(name: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x u", "a"),
        node("Slice", "a starts ends axes", "part"),
        node("Conv", "part w", "y", pads=[1, 1, 1, 1]),
    ]
    constants = {
        "u": weights(20, 3, 1, 1), "w": weights(4, 11, 3, 3), "starts": np.array([5, 2, 1]),
        "ends": np.array([16, 8, 7]), "axes": np.array([1, 2, 3]),
    }  # fmt: skip
    report = verified(network(nodes, (1, 3, 9, 9), constants), tmp_path, name)
    expect_exact(report)
    assert [layer["op"] for layer in report["compiled"]["layers"]] == ["convolution"] * 2


def test_a_map_that_two_concatenations_take_is_copied_once(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x u", "a"),
        node("Conv", "x u", "b", pads=[0, 0, 0, 0]),
        node("Concat", "a b", "c", axis=1),
        node("Concat", "b a", "d", axis=1),
        node("Conv", "c w", "e"),
        node("Conv", "d w", "f"),
        node("Add", "e f", "y"),
    ]
    constants = {"u": weights(8, 4, 1, 1), "w": weights(8, 16, 1, 1)}
    expect_exact(verified(network(nodes, (1, 4, 4, 4), constants), tmp_path))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("group", [1, 17])
def test_a_convolution_leaves_the_lanes_out_that_the_map_it_adds_has_not(
    group: int, name: str, tmp_path: Path
) -> None:
    nodes = [
        node("Conv", "x u", "a"),
        node("Conv", "x v", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c w", "d", group=group),
        node("Add", "d c", "y"),
    ]
    constants = {"u": weights(5, 6, 1, 1), "v": weights(12, 6, 1, 1), "w": weights(17, 17 // group, 1, 1)}
    expect_exact(verified(network(nodes, (1, 6, 5, 7), constants), tmp_path, name))


GAPPED = [
    node("Conv", "x u", "a"),
    node("Conv", "x v", "b"),
    node("Concat", "a b", "c", axis=1),
]
"""A map whose channels lie with gaps: 5, then 12, each from the start of an atom."""
GAPPED_WEIGHTS = {"u": weights(5, 6, 1, 1), "v": weights(12, 6, 1, 1)}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("op", ["Mul", "Add", "Max"])
def test_maps_whose_lanes_differ_are_put_in_order_first(op: str, name: str, tmp_path: Path) -> None:
    nodes = [
        *GAPPED,
        node("Conv", "x w", "d"),
        node("Relu", "d", "e"),
        node(op, "c e", "y"),
    ]
    constants = {**GAPPED_WEIGHTS, "w": weights(17, 6, 1, 1)}
    report = verified(network(nodes, (1, 6, 5, 7), constants), tmp_path, name)
    expect_exact(report)
    assert not report["compiled"]["host_steps"]


def test_factors_of_channels_that_lie_in_surfaces_of_their_own_are_put_in_order_first(tmp_path: Path) -> None:
    nodes = [
        *GAPPED,
        node("GlobalMaxPool", "c", "g"),
        node("Conv", "x w", "d"),
        node("Relu", "d", "e"),
        node("Mul", "e g", "y"),
    ]
    constants = {**GAPPED_WEIGHTS, "w": weights(17, 6, 1, 1)}
    expect_exact(verified(network(nodes, (1, 6, 5, 7), constants), tmp_path))


def test_maps_below_one_another_have_their_channels_in_the_same_places(tmp_path: Path) -> None:
    nodes = [
        *GAPPED,
        node("Conv", "x w", "d"),
        node("Concat", "d c", "t", axis=2),
        node("Conv", "t z", "y"),
    ]
    constants = {**GAPPED_WEIGHTS, "w": weights(17, 6, 1, 1)}
    constants["z"] = weights(4, 17, 1, 1)
    expect_exact(verified(network(nodes, (1, 6, 5, 7), constants), tmp_path))


def test_normalisation_of_a_concatenation_has_the_right_neighbours(tmp_path: Path) -> None:
    nodes = [
        *GAPPED,
        node("LRN", "c", "y", size=5, alpha=1.0),
    ]
    constants = GAPPED_WEIGHTS
    report = verified(network(nodes, (1, 6, 5, 7), constants), tmp_path)
    expect_exact(report)
    assert not report["compiled"]["host_steps"]


def test_fp16_maps_whose_lanes_differ_are_put_in_order_first(tmp_path: Path) -> None:
    nodes = [
        *GAPPED,
        node("Conv", "x w", "d"),
        node("Relu", "d", "e"),
        node("Mul", "c e", "y"),
    ]
    constants = {**GAPPED_WEIGHTS, "w": weights(17, 6, 1, 1)}
    report = verified(network(nodes, (1, 6, 5, 7), constants), tmp_path, "nvdla-full", precision="fp16")
    assert report["outputs"][0]["cosine"] > 0.9999 and not report["compiled"]["host_steps"]


ACTIVATIONS = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.1}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "Abs": {}, "Neg": {},
    "HardSwish": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large"])
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_an_activation_of_its_own_runs_on_the_elementwise_units(op: str, name: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Add", "a a", "twice"),
        node(op, "twice", "y", **ACTIVATIONS[op]),
    ]
    report = verified(network(nodes, (1, 4, 5, 6), {"w": weights(12, 4, 1, 1)}), tmp_path, name)
    expect_exact(report)
    assert not report["compiled"]["host_steps"]


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Elu", "Softplus"])
def test_a_function_is_a_table_where_there_is_one_and_a_host_step_on_nv_small(op: str, tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "a"), node(op, "a", "y")], (1, 4, 5, 6), {"w": weights(12, 4, 1, 1)})
    for name in TARGETS:
        folder = tmp_path / name
        folder.mkdir()
        report = verified(model, folder, name)
        expect_exact(report)
        hosts = [step["op"] for step in report["compiled"]["host_steps"]]
        assert hosts == ([op] if name == "nvdla-small" else [])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
@pytest.mark.parametrize("shape", [(1, 12, 5, 6), (1, 12, 1, 1)])
def test_two_maps_meet_in_one_pass(op: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [node("Conv", "x u", "a"), node("Conv", "x v", "b"), node("Relu", "a", "c")]
    nodes += [] if shape[2] > 1 else [node("GlobalAveragePool", "b", "pooled")]
    nodes.append(node(op, f"c {'b' if shape[2] > 1 else 'pooled'}", "y"))
    constants = {"u": weights(12, 4, 1, 1), "v": weights(12, 4, 1, 1)}
    report = verified(network(nodes, (1, 4, 5, 6), constants), tmp_path)
    expect_exact(report)
    assert not report["compiled"]["host_steps"]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max"])
@pytest.mark.parametrize("shape", [(1,), (12, 1, 1)])
def test_a_constant_operand_is_a_number_or_one_per_channel(
    op: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [node("Conv", "x u", "a"), node("Relu", "a", "b"), node(op, "b c", "y")]
    constants = {"u": weights(12, 4, 1, 1), "c": (RANDOM.random(shape) + 0.5).astype(np.float32)}
    expect_exact(verified(network(nodes, (1, 4, 5, 6), constants), tmp_path))


RANDOM = np.random.default_rng(2)


def test_what_neither_nvdla_nor_the_host_computes_is_refused_by_name(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "a"), node("Sin", "a", "y")], (1, 4, 5, 6), {"w": weights(4, 4, 1, 1)})
    with pytest.raises(NpucError) as caught:
        compiled(model, tmp_path)
    assert caught.value.problems[0].op == "Sin"


def test_strict_refuses_a_host_step_by_name(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "a"), node("Tanh", "a", "y")], (1, 4, 5, 6), {"w": weights(4, 4, 1, 1)})
    with pytest.raises(NpucError, match="it would run on the host") as caught:
        compiled(model, tmp_path, strict=True)
    assert caught.value.problems[0].code == "E203"


def test_no_program_remains_of_a_refused_model(tmp_path: Path) -> None:
    model = network([node("Conv", "x w", "a"), node("Sin", "a", "y")], (1, 4, 5, 6), {"w": weights(4, 4, 1, 1)})
    with pytest.raises(NpucError):
        compiled(model, tmp_path)
    shutil.rmtree(tmp_path / "network.npu", ignore_errors=True)
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]
