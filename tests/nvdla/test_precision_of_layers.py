"""int16 beside int8 on nv_full: every pair of neighbours against plain numpy, and where layers may be in int16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.account import account_of, reasons
from npuc.driver import compile_model
from npuc.errors import ModelError
from npuc.ir import Array
from npuc.models import MODELS
from npuc.program import Program, load, save
from npuc.quantize.table import table_of
from npuc.reference import session
from npuc.target import Options, Request, target
from npuc.targets.nvdla.machine.parameters import CONFIGURATIONS
from npuc.targets.nvdla.model.sdp import surfaces_of
from tests.cli.process import SYNTHETIC, Outcome, npuc
from tests.compiled import causes
from tests.given import Given
from tests.nvdla.against_plain import SAMPLES, compared
from tests.nvdla.networks import expect_exact, verified
from tests.onnx_models import network, node, parse, weights

CHANNELS = 12
"""Fewer than the lanes of an atom in int16: SDP then converts from int8 into an atom more."""
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Array]]] = {
    "Conv": ("w", {"pads": [1, 1, 1, 1]}, {"w": weights(CHANNELS, CHANNELS, 3, 3)}),
    "LeakyRelu": ("", {"alpha": 0.3}, {}),
    "Abs": ("", {}, {}),
    "HardSwish": ("", {}, {}),
    "MaxPool": ("", {"kernel_shape": [2, 2], "strides": [1, 1]}, {}),
    "AveragePool": ("", {"kernel_shape": [3, 3], "strides": [1, 1]}, {}),
}


def _pair(first: str, second: str) -> onnx.ModelProto:
    """Both operators, named a and b, between convolutions."""
    constants: dict[str, Array] = {"v": weights(CHANNELS, 5, 1, 1), "u": weights(4, CHANNELS, 1, 1)}
    nodes = [node("Conv", "x v", "before")]
    for name, op, x in (("a", first, "before"), ("b", second, "a")):
        more, attrs, given = KINDS[op]
        named = {each: f"{name}_{each}" for each in more.split()}
        constants |= {named[key]: value for key, value in given.items()}
        nodes.append(node(op, " ".join([x, *named.values()]), name, **attrs))
    nodes.append(node("Conv", "b u", "y"))
    return network(nodes, (1, 5, 9, 11), constants)


@pytest.mark.parametrize("wide", ["a", "b"])
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_neighbours_of_different_precision_compute_what_numpy_does(
    first: str, second: str, wide: str, tmp_path: Path
) -> None:
    layer = ((wide, "int16"),)
    count, wrong = compared(_pair(first, second), tmp_path, "nvdla-full", "int8", layer=layer)
    assert not wrong
    assert count >= 4 * SAMPLES  # of at most six: PDP takes some maps on the fly


@pytest.mark.parametrize("shape", [(1, 5, 1, 1), (1, 40, 1, 1), (1, 40, 3, 2)])
def test_maps_of_a_pixel_and_of_several_atoms_are_converted(shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Conv", "r v", "y")]
    model = network(nodes, shape, {"w": weights(50, shape[1], 1, 1), "v": weights(33, 50, 1, 1)})
    for wide in "ay":
        count, wrong = compared(model, tmp_path, "nvdla-full", "int8", layer=((wide, "int16"),))
        assert (count, wrong) == (3 * SAMPLES, [])


def test_both_operands_of_a_sum_are_brought_to_its_format(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Conv", "x v", "b"),
        node("Add", "a b", "c"),
        node("Conv", "c w", "y"),
    ]
    model = network(nodes, (1, 12, 5, 5), {"w": weights(12, 12, 1, 1), "v": -weights(12, 12, 1, 1)})
    for layer in ((("c", "int16"),), (("a", "int16"),), (("a", "int16"), ("c", "int16"))):
        count, wrong = compared(model, tmp_path, "nvdla-full", "int8", layer=layer)
        assert not wrong
        assert count >= 3 * SAMPLES


def test_a_constant_beside_a_wide_map_is_in_int8_and_so_is_their_concatenation(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Concat", "a k", "c", axis=2), node("Conv", "c w", "y")]
    model = network(nodes, (1, 12, 5, 5), {"w": weights(12, 12, 1, 1), "k": weights(1, 12, 2, 5)})
    count, wrong = compared(model, tmp_path, "nvdla-full", "int8", layer=(("a", "int16"), ("y", "int16")))
    assert not wrong
    assert count >= 3 * SAMPLES


@pytest.mark.parametrize("model", ["digits", "resnet8", "ds_cnn"])
def test_a_network_with_every_second_layer_in_int16_is_exact_in_every_bit(model: str, tmp_path: Path) -> None:
    made = MODELS[model]()
    computing = [each.name for each in made.graph.node if each.op_type in ("Conv", "Gemm", "Add")]
    layer = tuple((name, "int16") for name in computing[::2])
    report = verified(made, tmp_path, "nvdla-full", samples=1, layer=layer)
    expect_exact(report)
    assert not report["compiled"]["host_steps"]


def test_the_worst_layers_of_a_network_in_int16_gain_accuracy(tmp_path: Path) -> None:
    """A large constant between two layers needs all of int8 for itself: the rest survives in int16 alone."""
    w = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)
    rough = network(
        [node("Conv", "x w b", "a"), node("Conv", "a w c", "y")],
        (1, 8, 6, 6),
        {"w": w, "b": np.full(8, 100, np.float32), "c": np.full(8, -100, np.float32)},
    )
    narrow = verified(rough, tmp_path, "nvdla-full", tolerance=None)["outputs"][0]["sqnr_db"]
    layer = (("a", "int16"), ("y", "int16"))
    wide = verified(rough, tmp_path, "nvdla-full", layer=layer)["outputs"][0]["sqnr_db"]
    assert wide > narrow + 30


ELSEWHERE = {
    "nvdla-small": ("int16", "int8"),
    "nvdla-full": ("fp16", "int8, int16"),
    "easynpu": ("int16", "int8"),
    "bm1684": ("fp32", "int8"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_precision_that_a_program_has_not_is_the_hosts_with_the_reason(name: str, tmp_path: Path) -> None:
    precision, limit = ELSEWHERE[name]
    program = _compiled(name, tmp_path, (("b", precision),))
    (problem,) = (each.problem for each in reasons(account_of(program.manifest)))
    assert (problem.code, problem.node, problem.limit) == ("E202", "b", limit)
    assert f"--layer asks for {precision}" in problem.reason


def test_the_last_pattern_counts(tmp_path: Path) -> None:
    layer = (("*", "int16"), ("b", "int8"), ("nothing*", "int8"))
    with pytest.raises(ModelError, match=r"--layer nothing\*=int8: the model has no such node") as error:
        _compiled("nvdla-full", tmp_path, layer)
    assert error.value.problems[0].code == "E109"
    assert not causes(_compiled("nvdla-full", tmp_path, layer[:2]))
    assert "a/int16" in (tmp_path / "out.npu" / "graph.json").read_text("utf-8")


def _compiled(name: str, folder: Path, layer: tuple[tuple[str, str], ...]) -> Program:
    w = weights(8, 8, 3, 3)
    nodes = [node("Conv", "x w", "a"), node("Conv", "a w", "b"), node("Conv", "b w", "y")]
    model = network(nodes, (1, 8, 12, 12), {"w": w})
    onnx.save(model, folder / "m.onnx")
    options = Options(level="0", layer=layer, proof="off")
    program, _ = compile_model(Request(folder / "m.onnx", target(name), options))
    save(program, folder / "out.npu")
    return load(folder / "out.npu")


@pytest.fixture(scope="module")
def calibrated(shared: Given) -> tuple[Path, Path, dict[str, Array]]:
    """mnist_cnn, its calibration samples, and its test."""
    task = shared / "tasks" / "mnist_cnn"
    with np.load(task / "test.npz") as test:
        return shared / "models" / "mnist_cnn.onnx", task / "calibration.npz", {"x": test["x"].astype(np.float32)}


WORST = ("conv_1", "gemm_11", "gemm_13")
"""The layers that lose the most alone, and those that --precision mixed takes."""


@pytest.mark.slow
def test_three_layers_of_a_trained_network_gain_6_db_in_int16(
    calibrated: tuple[Path, Path, dict[str, Array]], tmp_path: Path
) -> None:
    model, samples, test = calibrated

    def sqnr(*options: str) -> float:
        common = ("--target", "nvdla-full", "--calibration", samples, "--proof", "off", "--force", "-q")
        npuc("compile", model, "-o", tmp_path / "p", *common, *options).done()
        runs = [session(each.read_bytes()) for each in (model, tmp_path / "p" / "reference.onnx")]
        feeds = [{runs[0].get_inputs()[0].name: each[None]} for each in test["x"]]
        exact, found = (
            np.stack([run.run(["output"], feed)[0] for feed in feeds]).astype(np.float64) for run in runs
        )
        return float(10 * np.log10((exact**2).sum() / ((found - exact) ** 2).sum()))

    narrow = sqnr()
    chosen = tmp_path / "layers.txt"
    chosen.write_text("# the worst\n" + "".join(f"{name}=int16\n" for name in WORST), "utf-8")
    assert sqnr("--layer", f"@{chosen}") > narrow + 6
    report = json.loads((tmp_path / "p" / "manifest.json").read_text("utf-8"))["report"]
    assert not report["host_steps"]
    assert [each["precision"] for each in report["layers"] if each["macs"]].count("int16") == len(WORST)
    assert sqnr("--mixed", "auto") > narrow + 6
    *_, step = json.loads((tmp_path / "p" / "manifest.json").read_text("utf-8"))["report"]["quantization"]["steps"]
    assert step["name"].startswith("in int16: 'conv_1', 'gemm_11', 'gemm_13'")


@pytest.mark.parametrize(
    ("channels", "kind", "processed", "surfaces"),
    [(12, "int16", "int8", 2), (33, "int16", "int8", 4), (12, "int16", "int16", 1), (33, "int8", "int8", 2)],
)
def test_sdp_accesses_16_bits_in_pairs_of_atoms_where_it_converts(
    channels: int, kind: str, processed: str, surfaces: int
) -> None:
    """2 * ceil(C / 32), as the shared reference reads the RTL; otherwise as many as hold the channels."""
    assert surfaces_of(channels, kind, processed, CONFIGURATIONS["nvdla-full"]) == surfaces


def test_what_is_no_layer_or_no_precision_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(network([node("Conv", "x w", "y")], (1, 4, 5, 5), {"w": weights(4, 4, 1, 1)}), path)

    def asked(*options: str, name: str = "nvdla-full") -> Outcome:
        return npuc("compile", path, "--target", name, *SYNTHETIC, "-o", tmp_path / "p", *options)

    assert "has no such node. Did you mean 'y'?" in asked("--layer", "yy=int16").refused("E109")
    assert "is not NODE=PRECISION" in asked("--layer", "y").usage()
    assert "is not NODE=PRECISION" in asked("--layer", "y=int4").usage()
    assert "takes no --layer" in asked("--layer", "y=int8", "--precision", "fp16").usage()
    assert "--layer asks for int16" in asked("--layer", "y=int16", "--strict", name="nvdla-small").refused("E202")
    assert "cannot be read" in asked("--layer", f"@{tmp_path / 'none'}").refused("E401")


def test_a_table_gives_scales_in_the_format_of_each_tensor(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("MaxPool", "a", "p", kernel_shape=[2, 2]), node("Conv", "p w", "y")]
    model = network(nodes, (1, 4, 5, 5), {"w": weights(4, 4, 1, 1)})
    onnx.save(model, tmp_path / "m.onnx")

    def asked(precision: str, layer: str) -> Outcome:
        table = f'[x]\nscale = 0.5\n[a]\nscale = 0.001\nprecision = "{precision}"\n'
        (tmp_path / "t.toml").write_text(table, "utf-8")
        common = ("compile", tmp_path / "m.onnx", "--target", "nvdla-full", "-o", tmp_path / "p", *SYNTHETIC)
        return npuc(*common, "--force", "--scales-in", tmp_path / "t.toml", "--layer", layer)

    assert "tensor 'a'" in asked("int16", "y=int8").refused("E406")
    for precision in ("int8", "int16"):  # the layer reads x in int16, too
        assert "tensor 'x'" in asked(precision, "a=int16").refused("E406")
    (tmp_path / "t.toml").write_text('[a]\nscale = 0.001\nprecision = "int16"\n', "utf-8")
    common = ("compile", tmp_path / "m.onnx", "--target", "nvdla-full", "-o", tmp_path / "p", *SYNTHETIC)
    npuc(*common, "--force", "--scales-in", tmp_path / "t.toml", "--layer", "a=int16").done()
    tensors = json.loads((tmp_path / "p" / "graph.json").read_text("utf-8"))["tensors"]
    assert tensors["a/int16"]["scale"] == tensors["p/int16"]["scale"] == np.float32(0.001)


def test_a_table_ties_what_a_concatenation_joins_on_both_sides_of_a_border(tmp_path: Path) -> None:
    """c and the int8 copy of a hold the same integers, so both have the scale that the table gives c."""
    nodes = [node("Conv", "x w", "a"), node("Conv", "x v", "b"), node("Concat", "a b", "c", axis=1)]
    constants = {"w": weights(4, 4, 1, 1), "v": -weights(4, 4, 1, 1), "u": weights(4, 8, 1, 1)}
    model = network([*nodes, node("Conv", "c u", "y")], (1, 4, 5, 5), constants)
    count, wrong = compared(
        model, tmp_path, "nvdla-full", "int8", layer=(("a", "int16"),), scales_in=table_of({"c": {"scale": 0.03}})
    )
    assert (count, wrong) == (4 * SAMPLES, [])
    program = _saved(model, tmp_path, layer=(("a", "int16"),), scales_in=table_of({"c": {"scale": 0.03}}))
    tensors = json.loads(program.evidence["graph.json"])["tensors"]
    joined = {name: each["scale"] for name, each in tensors.items() if each["float"] in ("c", "b", "a/narrow")}
    assert set(joined.values()) == {float(np.float32(0.03))}
    assert len(joined) >= 2


def _saved(model: onnx.ModelProto, folder: Path, **options: Any) -> Program:
    onnx.save(model, folder / "m.onnx")
    program, _ = compile_model(Request(folder / "m.onnx", target("nvdla-full"), Options(level="0", **options)))
    return program


def test_a_quantised_model_keeps_its_integers(tmp_path: Path) -> None:
    text = """network (float[1,2,4,4] x) => (float[1,2,4,4] y) {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  [c] y = Conv(d, w) }"""
    onnx.save(parse(text, s=np.float32(0.5), z=np.int8(0), w=weights(2, 2, 1, 1)), tmp_path / "m.onnx")
    common = ("compile", tmp_path / "m.onnx", "--target", "nvdla-full", "-o", tmp_path / "p", *SYNTHETIC)
    assert "the model is quantised already" in npuc(*common, "--layer", "c=int16", "--strict").refused("E202")
