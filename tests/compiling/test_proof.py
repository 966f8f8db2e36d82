"""A compile proves itself: what is wrong with a program or a pass is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from npuc.api import compile
from npuc.driver import compile_model
from npuc.errors import ArtefactError, Mismatch
from npuc.ir import Graph, Node, TensorType
from npuc.models.digits import FOLDER
from npuc.program import Program
from npuc.quantize.network.build import IntegerBuilder
from npuc.reference import graph_session
from npuc.regions import planning
from npuc.samples.loading import KINDS, varied_samples
from npuc.target import Options, Request, Target, target, usual_options
from npuc.verification.criterion import Nearness
from npuc.verification.equivalence import Equivalence
from tests.cli.process import npuc
from tests.compiled import optimised
from tests.passes.networks import network, node

MODEL, CALIBRATION = FOLDER / "digits.onnx", FOLDER / "digits_calibration.npz"
FAST = Options(level="0")
TARGETS = ("easynpu", "nvdla-small", "nvdla-full", "bm1684")


def _proved(name: str, model: Path = MODEL, **options: Any) -> dict[str, Any]:
    kind = target(name)
    asked = replace(FAST, **{"precision": kind.precisions[0], **options})
    program, _ = compile_model(Request(model, kind, asked, [CALIBRATION] if model == MODEL else ()))
    found: dict[str, Any] = program.manifest["report"]["proof"]
    return found


def _spoilt(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Program], Program]) -> Target:
    """The target, whose programs come out changed."""
    kind = target(name)
    lower = kind.lower

    def lowered(*arguments: Any) -> Program:
        return change(lower(*arguments))

    monkeypatch.setattr(kind, "lower", lowered)
    return kind


def _with_byte(name: str, at: int, value: int) -> Callable[[Program], Program]:
    """What sets a byte of a file of a program."""

    def change(program: Program) -> Program:
        data = bytearray(program.files[name])
        data[at] = value
        return replace(program, files={**program.files, name: bytes(data)})

    return change


@pytest.mark.parametrize("name", TARGETS)
def test_a_sound_program_says_what_was_proved(name: str) -> None:
    exact = None if name == "bm1684" else True
    assert _proved(name) == {"samples": 1, "bit_exact": exact, "model": True}


def test_floating_point_programs_are_proved_layer_by_layer() -> None:
    assert _proved("nvdla-full", precision="fp16") == {"samples": 1, "bit_exact": None, "model": True}


def test_all_are_the_calibration_samples_and_off_is_none() -> None:
    with np.load(CALIBRATION) as file:
        count = len(file["x"])
    assert _proved("easynpu", proof="all")["samples"] == count
    assert _proved("easynpu", proof="off") == {"samples": 0, "bit_exact": None, "model": None}


def test_proving_changes_nothing_but_what_the_report_says_of_it() -> None:
    programs = [
        compile_model(Request(MODEL, target("easynpu"), replace(FAST, proof=each)))[0] for each in ("one", "off")
    ]
    assert programs[0].files == programs[1].files and programs[0].evidence == programs[1].evidence
    manifests = [dict(each.manifest) | {"report": {**each.manifest["report"], "proof": None}} for each in programs]
    assert manifests[0] == manifests[1]


def test_a_wrong_weight_is_refused_by_the_layer_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def flipped(program: Program) -> Program:
        data = np.frombuffer(program.files["weight.bin"], np.int8).copy()
        data[5 * 16 : 5 * 16 + 64] ^= -1  # behind the first layer's bias-scale block
        return replace(program, files={**program.files, "weight.bin": data.tobytes()})

    _spoilt(monkeypatch, "easynpu", flipped)
    command = ("compile", MODEL, "--target", "easynpu", "--calibration", CALIBRATION, "-o", tmp_path / "out.npu")
    said = npuc(*command).refused("E603")
    assert "'n0_Conv'" in said and "--proof off" in said and "report it with the model" in said
    assert list(tmp_path.iterdir()) == []
    assert "not proved: the program was not run\n" in npuc(*command, "--proof", "off").done()
    assert (tmp_path / "out.npu" / "manifest.json").is_file()


def test_a_word_that_the_chip_model_refuses_is_a_defect_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    _spoilt(monkeypatch, "easynpu", _with_byte("itcm.bin", 0, 0xFE))
    with pytest.raises(Mismatch) as caught:
        compile(MODEL, "easynpu", calibration="synthetic", options=FAST)
    (problem,) = caught.value.problems
    assert problem.code == "E603" and "refuses the program" in problem.reason


def test_a_wrong_constant_of_a_floating_point_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = _spoilt(monkeypatch, "bm1684", _with_byte("weights.bin", 3, 0x41))  # the sign and exponent of a weight
    with pytest.raises(Mismatch) as caught:
        compile_model(Request(MODEL, kind, Options(precision="fp32")))
    assert caught.value.problems[0].code == "E603"


def test_without_its_chip_model_a_program_is_written_with_proof_off_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise ArtefactError("E507", "the library of the chip model is missing")

    monkeypatch.setattr(target("easynpu"), "runner", missing)
    with pytest.raises(ArtefactError, match="missing") as caught:
        _proved("easynpu")
    assert "--proof off" in str(caught.value.problems[0].remedy)
    assert _proved("easynpu", proof="off")["samples"] == 0


def _scaled_by(factor: float) -> Callable[[Graph], Graph]:
    """A pass that takes one weight wrong."""

    def wrong_weight(graph: Graph) -> Graph:
        name = next(node.inputs[1] for node in graph.nodes if node.op == "Conv")
        weight = graph.constants[name].copy()
        weight.flat[weight.size // 2] *= factor
        return replace(graph, constants={**graph.constants, name: weight})

    return wrong_weight


@pytest.mark.parametrize("factor", [-1.0, 1.01])
def test_a_pass_that_changes_the_meaning_is_refused(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(planning, "FLOAT_PASSES", (*planning.FLOAT_PASSES, _scaled_by(factor)))
    with pytest.raises(Mismatch) as caught:
        compile(MODEL, "easynpu", calibration=str(CALIBRATION), options=FAST)
    (problem,) = caught.value.problems
    assert (problem.code, problem.op) == ("E603", "Conv")
    assert "the graph after the passes" in problem.reason


def test_what_float32_rounds_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FLOAT_PASSES", (*planning.FLOAT_PASSES, _scaled_by(1 + 2**-20)))
    assert compile(MODEL, "easynpu", calibration="synthetic", options=FAST).report["proof"]["model"] is True


def _differing(model: Path, graph: Graph, feed: dict[str, Any]) -> str | None:
    both = Equivalence(model, graph)
    return both.differing(feed, both.expected_outputs(feed))


CANCELLING = """<ir_version: 8, opset_import: ["": 17]> g (float[1,8,6,6] x) => (float[1,8,6,6] y)
    <float[1,8,1,1] b = {1e4, 2e4, 3e4, 4e4, 5e4, 6e4, 7e4, 8e4}> {
    a = Add(x, b)
    c = Sub(a, b)
    y = Relu(c)
}"""
"""Rounds away ten bits of x: a pass that leaves both out is more exact, and no wrong one."""


def test_a_network_that_enlarges_rounding_is_judged_by_its_own_sensitivity(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(CANCELLING), tmp_path / "m.onnx")
    graph = optimised(Request(tmp_path / "m.onnx", target("bm1684"), usual_options(target("bm1684"))))
    feed = next(varied_samples({"x": TensorType((1, 8, 6, 6), "float32")}).feeds())
    assert _differing(tmp_path / "m.onnx", graph, feed) is None


QUANTISED = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,6,6] x) => (float[1,4,6,6] y)
    <float s = {0.0625}, float t = {0.125}, int8 z = {0}> {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    c = Relu(b)
    d = QuantizeLinear(c, t, z)
    y = DequantizeLinear(d, t, z)
}"""
"""Every second value meets a tie: where arithmetic differs in the last bit, half of the results move by a step."""


def test_ties_of_a_quantised_model_are_no_difference(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(QUANTISED), tmp_path / "m.onnx")
    graph = optimised(Request(tmp_path / "m.onnx", target("easynpu"), usual_options(target("easynpu"))))
    feed = next(varied_samples({"x": TensorType((1, 4, 6, 6), "float32")}).feeds())

    def rescaled(factor: float) -> Graph:
        nodes = [
            node.with_attrs(scale=node.number("scale") * factor) if node.op == "FakeQuantize" else node
            for node in graph.nodes
        ]
        return replace(graph, nodes=tuple(nodes))

    assert _differing(tmp_path / "m.onnx", rescaled(1 - 2e-7), feed) is None
    assert _differing(tmp_path / "m.onnx", rescaled(8), feed) is not None


def test_a_model_with_external_data_is_compared(tmp_path: Path) -> None:
    model = onnx.load(MODEL)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    assert _proved("easynpu", tmp_path / "m.onnx")["model"] is True


def test_a_model_that_onnxruntime_does_not_open_is_proved_by_onnx_s_evaluator(tmp_path: Path) -> None:
    model = onnx.load(MODEL)
    model.ir_version = 99
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    report = compile(tmp_path / "m.onnx", "easynpu", calibration="synthetic", options=FAST).report
    assert report["proof"] == {"samples": 1, "bit_exact": True, "model": True}
    (warning,) = report["warnings"]
    assert warning["code"] == "W303" and "onnx's reference evaluator is the reference" in warning["reason"]


ROOT = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,3,3] x) => (float[1,4,3,3] y) { y = Sqrt(x) }"""


@pytest.mark.parametrize("wanted", [("one", 1), ("all", 3)])
def test_samples_on_which_the_model_gives_no_numbers_prove_nothing(
    tmp_path: Path, wanted: tuple[str, int]
) -> None:
    """The chip refuses the roots of negative numbers: of eight synthetic samples two are positive, one is high."""
    onnx.save(parser.parse_model(ROOT), tmp_path / "m.onnx")
    assert _proved("bm1684", tmp_path / "m.onnx", proof=wanted[0]) == {
        "samples": wanted[1],
        "bit_exact": None,
        "model": True,
    }


SMALL = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,3,3] x) => (float[1,2,3,3] y)
    <float[2,4,1,1] w = {1e-7, 1e-7, 1e-7, 1e-7, 1, 2, 3, 4}> { y = Conv(x, w) }"""


def test_what_fp16_has_few_bits_for_is_no_defect(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(SMALL), tmp_path / "m.onnx")
    assert _proved("nvdla-full", tmp_path / "m.onnx", precision="fp16", proof="all")["samples"] == 8


def test_made_up_samples_are_of_every_kind_and_always_the_same() -> None:
    types = {"x": TensorType((1, 3, 8, 8), "float32"), "b": TensorType((4,), "uint8")}
    types["index"] = TensorType((9,), "int64")
    samples, again = varied_samples(types), varied_samples(types)
    assert len(samples) == 2 * len(KINDS) and samples.synthetic
    assert all(np.array_equal(samples.inputs[name], again.inputs[name]) for name in types)
    ramp, noise, positive, highest, *_, lowest = samples.inputs["x"]
    assert ramp.mean() > 0.3 and ramp[0, 0, 0, 0] < ramp[0, -1, -1, -1]
    assert abs(noise.mean()) < 0.3 and noise.min() < -1
    assert positive.min() >= 0
    assert (highest == 3).all() and (lowest == -3).all()
    assert samples.inputs["b"].dtype == np.uint8 and set(samples.inputs["b"][3]) == {255}
    assert set(samples.inputs["b"][7]) == {0}
    assert {*samples.inputs["index"].flat} == {0, 1}, "more may be beyond what it is an index of"


def test_one_sample_of_a_model_without_data_has_a_mean_that_is_not_zero() -> None:
    first = varied_samples({"x": TensorType((1, 1, 4, 4), "float32")}).first(1)
    assert first.inputs["x"].shape == (1, 1, 1, 4, 4) and first.inputs["x"].mean() > 0.3


def _quantised(folder: Path) -> tuple[Path, Path]:
    """A model whose uint8 steps limit at 0 and whose int8 steps do not, and samples above 0 too."""
    text = """
        g (float[1,4,3,3] x) => (float[1,4,2,2] y)
        <float s = {0.1}, uint8 u = {255}, int8 z = {0}, float more = {1.5}>
        { w = Add(x, more)  a = QuantizeLinear(w, s, u)  b = DequantizeLinear(a, s, u)
          c = Transpose<perm = [0, 1, 3, 2]>(b)  d = QuantizeLinear(c, s, z)  e = DequantizeLinear(d, s, z)
          y = AveragePool<kernel_shape = [2, 2]>(e) }
    """
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    onnx.save(model, folder / "q.onnx")
    np.savez(folder / "x.npz", x=np.linspace(-3, 9, 36, dtype=np.float32).reshape(1, 1, 4, 3, 3))
    return folder / "q.onnx", folder / "x.npz"


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_quantised_model_that_loses_its_limits_is_refused(
    calibrated: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, samples = _quantised(tmp_path)
    options = Options(level="0", flags={"isa": "documented"})
    given = [samples] if calibrated else ()
    program, _ = compile_model(Request(model, target("easynpu"), options, given))
    assert program.manifest["report"]["proof"] == {"samples": 1, "bit_exact": True, "model": True}

    def never(_self: IntegerBuilder, _node: Node) -> bool:
        return False

    monkeypatch.setattr(IntegerBuilder, "clips", never)
    with pytest.raises(Mismatch) as caught:
        compile_model(Request(model, target("easynpu"), options, given))
    (problem,) = caught.value.problems
    assert problem.code == "E603" and problem.tensor == "y" and "quantised model" in problem.reason


STEPPED = {"scale": 0.5, "zero_point": 0, "dtype": "int8"}


@pytest.mark.parametrize(("nodes", "far"), [
    ((node("FakeQuantize", "x", "a", **STEPPED), node("Sub", "x a", "y")), None),
    ((node("Neg", "x", "a"), node("FakeQuantize", "a", "y", **STEPPED)), "y"),
    ((node("Neg", "x", "a"), node("Relu", "a", "y")), None),
], ids=["of like and like steps are left", "quantised", "not quantised"])  # fmt: skip
def test_an_output_is_far_where_ideal_rounding_would_leave_more_of_it(nodes: tuple[Node, ...], far: str) -> None:
    near = Nearness(network((1, 4, 3, 3), "y", *nodes), "int8")
    x = np.linspace(-30, 30, 36, dtype=np.float32).reshape(1, 4, 3, 3)
    (wanted,) = graph_session(near.graph, ["y"]).run(["y"], {"x": x})
    assert near.far({"x": x}, {"y": wanted}, {"y": wanted + 0.9}) is None
    assert near.far({"x": x}, {"y": wanted}, {"y": wanted + 40}) == far


UNNAMED = """<ir_version: 8, opset_import: ["": 13]> g (float[1,4,6,6] x) => (float[1,1,6,6] a, float[1,1,6,6] b)
    <int64[3] s = {1, 2, 1}> {
    a, , b = Split <axis = 1> (x, s)
}"""
"""onnxruntime dies of an output of Split without a name."""


def test_a_model_that_ends_onnxruntime_does_not_end_npuc(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(UNNAMED), tmp_path / "unnamed.onnx")
    outcome = npuc("compile", tmp_path / "unnamed.onnx", "--target", "bm1684", "-o", tmp_path / "o.npu", "--json")
    assert outcome.code == 0
    assert outcome.json["proof"]["model"] and "reference evaluator" in outcome.json["warnings"][0]["reason"]


NORMALISING = """<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y)
    <float[8] s = {1, 1, 1, 1, 1, 1, 1, 1}> {
    y = LayerNormalization <axis = 1> (x, s)
}"""


def test_equal_values_less_their_mean_leave_what_rounding_left(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(NORMALISING), tmp_path / "equal.onnx")
    np.savez(tmp_path / "equal.npz", x=np.full((1, 8), 0.1, np.float32))
    program = compile(str(tmp_path / "equal.onnx"), "bm1684", calibration=str(tmp_path / "equal.npz"))
    assert program.report["proof"]["samples"] == 1


TWICE = """<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y)
    <float narrow = {0.013}, float wide = {0.05}, int8 zero = {0}> {
    a = QuantizeLinear (x, narrow, zero)
    b = DequantizeLinear (a, narrow, zero)
    c = QuantizeLinear (x, wide, zero)
    d = DequantizeLinear (c, wide, zero)
    y = Sub (d, b)
}"""
"""Of an input that is rounded twice, the wider rounding must lose nothing to the narrower one."""


@pytest.mark.parametrize("name", ["easynpu", "nvdla-small"])
def test_an_input_that_two_quantise_reaches_as_far_as_both(name: str, tmp_path: Path) -> None:
    onnx.save(parser.parse_model(TWICE), tmp_path / "twice.onnx")
    x = np.float32([[0, 0.5, -0.5, 1.6, -1.6, 3, -4, 6]])
    program = compile(onnx.load(tmp_path / "twice.onnx"), name, calibration={"x": x})
    wanted = np.float32([[0, 0, 0, 0, 0, 1.35, -2.34, 4.35]])
    assert np.abs(program.run({"x": x})["y"] - wanted).max() < 0.1
