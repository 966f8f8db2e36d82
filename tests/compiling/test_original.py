"""The judge is the user's file: what the frontend takes wrong is refused by the proof, on the host's road too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import npuc
from npuc.errors import Mismatch, ModelError, NpucError
from npuc.frontend import forms as rewriting
from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers import IMPORTERS
from npuc.ir import Array
from npuc.target import Options
from npuc.verification import equivalence
from npuc.verification.equivalence import Original
from tests.onnx_models import parse

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
NETWORK = """g (float[1,3,5,5] x) => (float[1,4,3,3] y) <float half = {0.5}, float two = {2}> {
    a = Conv <pads = [0,0,1,1], strides = [2,2]> (x, w)
    scale = Mul (half, two)
    shift = Sub (two, half)
    b = Mul (a, v)
    c = Sub (v, b)
    d = Mul (c, scale)
    e = Add (d, shift)
    f = Identity (e)
    t = Transpose <perm = [0,1,3,2]> (f)
    LAST
}"""
LAST = {"whole": "y = Relu (t)", "with a host region": "y = Atan (t)"}


def _model(last: str) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    held: dict[str, Any] = {"w": random.standard_normal((4, 3, 2, 2)), "v": random.uniform(0.5, 2, (1, 4, 1, 1))}
    return parse(f"{HEAD} {NETWORK.replace('LAST', last)}", **held)


def _drop(node: OnnxNode, to: NodeBuilder) -> None:
    to.alias(node, node.inputs[0])


def _with(change: Callable[[OnnxNode], OnnxNode]) -> Callable[[str], Callable[[OnnxNode, NodeBuilder], None]]:
    def of(op: str) -> Callable[[OnnxNode, NodeBuilder], None]:
        importer = IMPORTERS[op]
        return lambda node, to: importer(change(node), to)

    return of


MUTANTS: dict[str, tuple[str, Callable[[str], Callable[[OnnxNode, NodeBuilder], None]]]] = {
    "a Mul is dropped": ("Mul", lambda _: _drop),
    "operands are swapped": ("Sub", _with(lambda node: replace(node, inputs=node.inputs[::-1]))),
    "a pad is changed": ("Conv", _with(lambda node: replace(node, attrs={**node.attrs, "pads": (1, 0, 0, 1)}))),
    "an operand is read twice": ("Add", _with(lambda node: replace(node, inputs=node.inputs[:1] * 2))),
    "a permutation is dropped": ("Transpose", lambda _: _drop),
}


@pytest.mark.parametrize("place", LAST)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_frontend_that_reads_an_operator_wrong_is_refused(
    name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(LAST[place])
    assert npuc.compile(model, "bm1684", precision="fp32", level="0").report["proof"]["model"] is True
    op, mutant = MUTANTS[name]
    monkeypatch.setitem(IMPORTERS, op, mutant(op))
    with pytest.raises(Mismatch, match="E603"):
        npuc.compile(model, "bm1684", precision="fp32", level="0")


@pytest.mark.parametrize("place", LAST)
def test_a_constant_that_is_folded_wrong_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are proved with the constants that the frontend folded: only the whole shows these."""
    add = NodeBuilder.add_constant

    def wrong(self: NodeBuilder, name: str, value: Array) -> None:
        add(self, name, value * 1.01 if name == "shift" else value)

    monkeypatch.setattr(NodeBuilder, "add_constant", wrong)
    with pytest.raises(Mismatch, match="E603"):
        npuc.compile(_model(LAST[place]), "bm1684", precision="fp32", level="0")


DYNAMIC = """g (float[1,8] x) => (float[1,4] y) <float k = {0.01}, uint8 wz = {100}> {
    q, s, z = DynamicQuantizeLinear (x)
    a = MatMulInteger (q, w, z, wz)
    f = Cast <to = 1> (a)
    t = Mul (s, k)
    y = Mul (f, t)
}"""


def _dynamic() -> onnx.ModelProto:
    w = np.random.default_rng(0).integers(0, 255, (8, 4)).astype(np.uint8)
    return parse(f"{HEAD} {DYNAMIC}", w=w)


def _half() -> onnx.ModelProto:
    w = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float16)
    return parse(f"{HEAD} g (float16[1,8] x) => (float16[1,4] y) {{ y = MatMul (x, w) }}", w=w)


@pytest.mark.parametrize(
    ("made", "text", "least"),
    [(_dynamic, "dynamic quantisation is read as the values", 25), (_half, "half precision is read", 55)],
)
def test_a_deliberate_difference_is_measured_and_named(
    made: Callable[[], onnx.ModelProto], text: str, least: float
) -> None:
    model, x = made(), np.random.default_rng(1).standard_normal((4, 1, 8)).astype(np.float32)
    program = npuc.compile(model, "bm1684", precision="fp32", calibration={"x": x})
    (warning,) = program.report["warnings"]
    assert warning["code"] == "W303" and text in warning["reason"]
    report = npuc.verify(model, program, x)
    (read,) = report["read_as"]
    assert report["status"] == "ok" and text in read["rewrite"] and least < read["sqnr_db"] < 90
    assert report["outputs"][0]["sqnr_db"] == pytest.approx(_decibels(model, x, program.run(x)["y"]), abs=0.1), (
        "the distance is that from the file"
    )


def _decibels(model: onnx.ModelProto, x: Array, found: Array) -> float:
    """Signal to noise against the file, opened by onnxruntime alone."""
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    kind = np.float16 if "16" in session.get_inputs()[0].type else np.float32
    wanted = np.concatenate([session.run(None, {"x": each.astype(kind)})[0] for each in x]).astype(float)
    return float(10 * np.log10(np.square(wanted).sum() / np.square(found.reshape(wanted.shape) - wanted).sum()))


@pytest.mark.parametrize("at", range(len(rewriting.REWRITES)))
def test_a_rewrite_that_changes_the_model_is_refused_by_name(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: onnx.ModelProto, _: Path | None) -> onnx.ModelProto:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        made.graph.node[-1].op_type = "Add"
        return made

    whole = rewriting.REWRITES
    mutated = replace(whole[at], apply=wrong)
    monkeypatch.setattr(rewriting, "REWRITES", (*whole[:at], mutated, *whole[at + 1 :]))
    with pytest.raises(Mismatch, match=whole[at].name):
        npuc.compile(_dynamic(), "bm1684", precision="fp32", level="0")


def test_what_onnxruntime_computes_in_two_ways_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its optimisations as the second witness."""
    run = equivalence.JudgedModel.run

    def other(self: Any, feed: Any, *, optimised: bool = True, twice: bool = False) -> Any:
        found = run(self, feed, optimised=optimised, twice=twice)
        return found if optimised else {name: each + 0.1 for name, each in found.items()}

    model = _model(LAST["whole"])
    monkeypatch.setattr(equivalence.JudgedModel, "run", other)
    with pytest.raises(ModelError, match="with its optimisations than without"):
        npuc.compile(model, "bm1684", precision="fp32", level="0")


@pytest.mark.parametrize(("score", "noisy"), [(0.5 + 1e-6, True), (0.51, False)])
def test_boxes_may_be_more_or_fewer_if_the_models_own_noise_changes_their_number(
    score: float, noisy: bool, tmp_path: Path
) -> None:
    text = """g (float[1,1,4] x) => (int64[n,3] y) <int64 most = {4}, float overlap = {0.5}, float least = {0.5}> {
        s = Mul (x, one)
        y = NonMaxSuppression (boxes, s, most, overlap, least)
    }"""
    corners = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], [6, 6, 7, 7]]], np.float32)
    onnx.save(parse(f"{HEAD} {text}", boxes=corners, one=np.ones(1, np.float32)), tmp_path / "m.onnx")
    feed = {"x": np.array([[[0.9, score, 0.8, 0.1]]], np.float32)}
    form = equivalence.JudgedModel(tmp_path / "m.onnx", tmp_path)
    wanted = form.run(feed)
    assert wanted["y"].tolist() == [[0, 0, 0], [0, 0, 2], [0, 0, 1]]
    fewer = {"y": wanted["y"][:2]}
    assert form.beyond(feed, wanted, fewer) == (None if noisy else "y")
    assert form.resized_outputs(feed, wanted, fewer) == ({"y"} if noisy else set())
    assert form.beyond(feed, wanted, {"y": wanted["y"][:, :2].ravel()}) == "y"
    assert form.resized_outputs(feed, wanted, wanted) == set()


@pytest.mark.parametrize(("level", "place"), [(4, "y = Relu (t)"), (4, "y = Atan (t)"), (1, "y = Relu (t)")])
def test_matmul_nbits_is_exact_whether_or_not_onnxruntime_rounds_its_activations(
    level: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # level 4 permits int8 activations, which onnxruntime's packed kernels then have and the others have not
    random = np.random.default_rng(1)
    packed = random.integers(0, 256, (8, 2, 16), dtype=np.uint8)
    scales = random.uniform(0.01, 0.03, (8, 2)).astype(np.float32)
    product = f"t = com.microsoft.MatMulNBits <N=8, K=64, bits=4, block_size=32, accuracy_level={level}> (x, w, s)"
    head = HEAD.replace("17]", '17, "com.microsoft": 1]')
    model = parse(f"{head} g (float[1,4,64] x) => (float[1,4,8] y) {{ {product} {place} }}", w=packed, s=scales)
    x = random.normal(0.3, 1, (2, 4, 64)).astype(np.float32)
    w = (np.stack([packed & 15, packed >> 4], axis=-1).reshape(8, 2, 32) - 8.0) * scales[..., None]
    exact = x @ w.reshape(8, 64).T
    expected = np.maximum(exact, 0) if "Relu" in place else np.arctan(exact)
    found = npuc.compile(model, "bm1684", precision="fp32", level="0").run(x)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    importer = IMPORTERS["MatMulNBits"]
    monkeypatch.setitem(IMPORTERS, "MatMulNBits", lambda node, to: importer(_with_swapped_scales(node, to), to))
    with pytest.raises(Mismatch, match="E603"):
        npuc.compile(model, "bm1684", precision="fp32", level="0")


def _with_swapped_scales(node: OnnxNode, to: NodeBuilder) -> OnnxNode:
    return replace(node, inputs=(*node.inputs[:2], to.constant(node, "turned", to.value(node, 2)[::-1])))


def test_a_model_that_onnxruntime_refuses_is_judged_by_the_first_form_that_it_runs(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    half = TensorProto.BFLOAT16
    ports = [helper.make_tensor_value_info("x", half, [1, 8])], [helper.make_tensor_value_info("y", half, [1, 4])]
    graph = helper.make_graph(nodes, "g", *ports, [helper.make_tensor("w", half, (8, 4), w.ravel())])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m")
    assert Original(tmp_path / "m").read_as == ["half precision is read as float32"]
    program = npuc.compile(tmp_path / "m", "bm1684", precision="fp32")
    (warning,) = program.report["warnings"]
    assert warning["code"] == "W303" and "refuses the model as it is" in warning["reason"]


@pytest.mark.parametrize(
    ("kind", "value", "right"),
    [
        ("int64", 1.5, False), ("int64", -3, True), ("uint8", 255, True), ("uint8", 256, False),
        ("uint8", -1, False), ("bool", 1, True), ("bool", 2, False), ("float", 0.1, True),
        ("int32", float("nan"), False), ("int32", float("inf"), False),
    ],
)  # fmt: skip
def test_a_bound_value_is_one_of_the_inputs_type(kind: str, value: float, right: bool) -> None:
    text = f"g (float[1,4] x, {kind} k) => (float[1,4] y) {{ c = Cast <to = 1> (k)\n y = Mul (x, c) }}"
    model = parser.parse_model(f"{HEAD} {text}")
    options = Options(precision="fp32", bind=(("k", value),))
    if right:
        x = np.ones((1, 1, 4), np.float32)
        program = npuc.compile(model, "bm1684", options=options)
        assert program.run({"x": x})["y"].reshape(4).tolist() == pytest.approx([value] * 4)
        assert npuc.verify(model, program, {"x": x})["status"] == "ok"
    else:
        with pytest.raises(NpucError, match="E109"):
            npuc.compile(model, "bm1684", options=options)


OUTPUTS = {
    "int32": "y = Cast <to = 6> (x)",
    "int64": "y = ArgMax <axis = 1> (x)",
    "bool": "a = Relu (x)\n y = Greater (a, zero)",
    "uint8": "y = QuantizeLinear (x, scale, point)",
    "int32 of a product": "a = QuantizeLinear (x, scale, point)\n y = MatMulInteger (a, w8, point)",
    "a scalar": "y = ReduceSum <keepdims = 0> (x)",
}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize(
    ("target", "precision"), [("easynpu", "int8"), ("bm1684", "fp32"), ("nvdla-full", "fp16")]
)
def test_outputs_have_the_types_of_onnxruntime(kind: str, target: str, precision: str) -> None:
    held = "<float zero = {0}, float scale = {0.5}, uint8 point = {128}>"
    model = parser.parse_model(f"{HEAD} g (float[1,8] x) => (y) {held} {{ {OUTPUTS[kind]} }}")
    if "w8" in OUTPUTS[kind]:
        w = np.arange(32).reshape(8, 4).astype(np.uint8)
        model.graph.initializer.append(numpy_helper.from_array(w, "w8"))
    x = np.linspace(-6, 6, 8, dtype=np.float32).reshape(1, 1, 8)
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x[0]})
    program = npuc.compile(model, target, precision=precision, calibration={"x": x})
    (port,) = program.program.outputs
    found = program.run({"x": x})["y"]
    assert (found.dtype, port.dtype, port.shape) == (wanted.dtype, str(wanted.dtype), wanted.shape)
