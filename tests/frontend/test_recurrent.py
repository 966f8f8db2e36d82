"""LSTM, GRU and RNN as the operators of their steps, compared with onnxruntime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npuc import api
from npuc.account import account_of
from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array
from npuc.ops.interpreter import run
from npuc.reference import session
from npuc.target import Options
from tests.bm1684.kernels import need_compiler

STEPS, BATCH, INPUTS, HIDDEN = 5, 2, 6, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def model_of(
    op: str,
    *,
    bias: bool = True,
    states: bool = False,
    outputs: str = "yhc",
    steps: int = STEPS,
    batch: int = BATCH,
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node. outputs: those in use: the sequence, the last state, the last cell."""
    random, count = np.random.default_rng(0), GATES[op] * HIDDEN
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    extents = {"w": (directions, count, INPUTS), "r": (directions, count, HIDDEN), "b": (directions, 2 * count)}
    weights = [
        numpy_helper.from_array(random.normal(0.05, 0.5, shape).astype(np.float32), name)
        for name, shape in extents.items()
    ]
    state = (directions, batch, HIDDEN)
    inputs = {"x": (steps, batch, INPUTS)}
    given = [name for name in ("h0", "c0") if states and (name == "h0" or op == "LSTM")]
    results = {"y": (steps, directions, batch, HIDDEN), "h": state, "c": state}
    names = [name if name in outputs else "" for name in ("yhc" if op == "LSTM" else "yh")]
    node = helper.make_node(
        op, ["x", "w", "r", "b" if bias else "", "", *given], names, hidden_size=HIDDEN, **attrs
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in {**inputs, **dict.fromkeys(given, state)}.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, results[name]) for name in names if name],
        weights if bias else weights[:2],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed_of(model: onnx.ModelProto) -> dict[str, Array]:
    random = np.random.default_rng(1)
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: random.normal(0.2, 1, shape).astype(np.float32) for name, shape in shapes.items()}


FORMS: tuple[dict[str, Any], ...] = (
    {"states": True},
    {"bias": False, "direction": "reverse"},
    {"direction": "bidirectional", "states": True, "outputs": "hc"},
    {"direction": "bidirectional", "outputs": "y"},
    {"steps": 1},
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("op", "attrs"),
    [("LSTM", {}), ("GRU", {"linear_before_reset": 0}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})],
)
def test_the_steps_compute_what_onnxruntime_does(op: str, attrs: dict[str, Any], form: dict[str, Any]) -> None:
    model = model_of(op, **form, **attrs)
    feed, graph = feed_of(model), import_model(model)
    found = run(graph, feed)
    wanted = session(model).run(None, feed)
    for name, value in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


def test_every_direction_has_its_own_activations() -> None:
    activations = ["Sigmoid", "Relu", "Tanh", "Sigmoid", "Tanh", "Relu"]
    model = model_of("LSTM", direction="bidirectional", activations=activations)
    feed = feed_of(model)
    for name, value in zip("yhc", session(model).run(None, feed), strict=True):
        np.testing.assert_allclose(run(import_model(model), feed)[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("op", "attrs", "told"), [
    ("LSTM", {"clip": 1.0}, "the attribute clip is 1.0"),
    ("LSTM", {"input_forget": 1}, "the attribute input_forget is 1"),
    ("RNN", {"activations": ["Softsign"]}, "the activation is Softsign"),
    ("GRU", {"steps": 65}, "the input is [65"),
])  # fmt: skip
def test_other_forms_have_no_steps(op: str, attrs: dict[str, Any], told: str) -> None:
    with pytest.raises(NpucError, match=f"E202.*{re.escape(told)}"):
        import_model(model_of(op, **attrs))


TO_LAYOUT_1 = {"x": (1, 0, 2), "h0": (1, 0, 2), "c0": (1, 0, 2), "y": (2, 0, 1, 3), "h": (1, 0, 2), "c": (1, 0, 2)}
"""The axes of inputs and outputs with the batch first, by ONNX's tables of both layouts."""


def batch_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network in layout 1."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    for each in (*made.graph.input, *made.graph.output):
        extents = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for dim, axis in zip(each.type.tensor_type.shape.dim, TO_LAYOUT_1[each.name], strict=True):
            dim.dim_value = extents[axis]
    return made


@pytest.mark.parametrize("form", [{}, *FORMS[:4]])
@pytest.mark.parametrize("op", GATES)
def test_the_batch_may_come_first(op: str, form: dict[str, Any]) -> None:
    model = model_of(op, **form)
    feed, graph = feed_of(model), import_model(batch_first(model))
    found = run(graph, {name: value.transpose(TO_LAYOUT_1[name]) for name, value in feed.items()})
    for name, value in zip(graph.outputs, session(model).run(None, feed), strict=True):
        np.testing.assert_allclose(found[name], value.transpose(TO_LAYOUT_1[name]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("target", "share"), [("nvdla-full", 1), ("nvdla-small", 0)])
def test_a_file_with_the_batch_first_runs_on_npu_or_host(tmp_path: Path, target: str, share: int) -> None:
    """onnxruntime runs layout 0 only; ONNX's reference evaluator is asked."""
    model = batch_first(model_of("GRU", steps=3, batch=1))
    onnx.save(model, tmp_path / "m.onnx")
    precision = "fp16" if target == "nvdla-full" else "int8"
    found = api.compile(
        tmp_path / "m.onnx", target, calibration="synthetic", options=Options(precision=precision, level="0")
    )
    assert found.report["npu_macs_share"] == share
    feed = feed_of(model)
    outputs = found.run({name: value[None] for name, value in feed.items()})
    wanted: list[Any] = list(ReferenceEvaluator(model).run(None, feed))
    for name, value in zip("yh", wanted, strict=True):
        np.testing.assert_allclose(outputs[name].reshape(value.shape), value, rtol=0, atol=2e-3)


def test_the_batch_may_come_first_in_a_branch() -> None:
    model = batch_first(model_of("GRU"))
    feed = feed_of(model)
    wanted = ReferenceEvaluator(model).run(None, feed)
    node, outputs = model.graph.node[0], [*model.graph.output]
    branch = helper.make_graph([node], "branch", [], outputs)
    chosen = helper.make_node("If", ["true"], ["y", "h"], then_branch=branch, else_branch=branch)
    model.graph.node[0].CopyFrom(chosen)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    found = run(import_model(model), feed)
    for name, value in zip("yh", wanted, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("place", "told"), [(4, "sequence_lens"), (7, "P (peepholes)")])
def test_lengths_and_peepholes_have_no_steps(place: int, told: str) -> None:
    model = model_of("LSTM", states=True)
    model.graph.node[0].input.extend([""] * (8 - len(model.graph.node[0].input)))
    value = np.full(BATCH, 3, np.int32) if place == 4 else np.ones((1, 3 * HIDDEN), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, "more"))
    model.graph.node[0].input[place] = "more"
    with pytest.raises(NpucError, match=f"E202.*{re.escape(told)}"):
        import_model(model)


@pytest.mark.parametrize("op", GATES)
def test_bm1684_runs_them_whole(op: str) -> None:
    need_compiler()
    model = model_of(op, direction="bidirectional", states=True)
    found = api.compile(model, "bm1684", options=Options(precision="fp32", strict=True))
    feed = feed_of(model)
    outputs = found.run({name: value[None] for name, value in feed.items()})
    for each, value in zip(model.graph.output, session(model).run(None, feed), strict=True):
        np.testing.assert_allclose(outputs[each.name][0], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("op", "target", "options", "most"), [
    ("LSTM", "nvdla-full", Options(precision="fp16", level="0"), 2e-3),
    ("GRU", "nvdla-full", Options(precision="int16", level="0"), 5e-3),
    ("RNN", "nvdla-large", Options(precision="int8", level="0", allow=("recurrence",)), 0.1),
])  # fmt: skip
def test_nvdla_runs_their_steps_without_the_host_between_them(
    op: str, target: str, options: Options, most: float
) -> None:
    model = model_of(op, states=True, steps=3, batch=1)
    found, feed = api.compile(model, target, calibration="synthetic", options=options), feed_of(model)
    assert found.report["npu_macs_share"] == 1
    steps = [step["kind"] for step in found.program.manifest["steps"]]
    assert steps.count("segment") == 2  # x W + b of all steps, then all steps
    outputs = found.run({name: value[None] for name, value in feed.items()})
    for each, value in zip(model.graph.output, session(model).run(None, feed), strict=True):
        np.testing.assert_allclose(outputs[each.name].reshape(value.shape), value, rtol=0, atol=most)


@pytest.mark.parametrize(("target", "precision", "batch", "reason"), [
    ("easynpu", "int8", 1, "alternate"), ("bm1684", "int8", 2, "alternate"),
    ("nvdla-small", "int8", 1, "alternate"), ("nvdla-full", "fp16", 2, "alternate"),
    ("nvdla-full", "int8", 1, "8 bits"),
])  # fmt: skip
def test_the_host_runs_them_where_steps_would_alternate_or_lose_precision(
    target: str, precision: str, batch: int, reason: str
) -> None:
    found = api.compile(
        model_of("LSTM", batch=batch), target, calibration="synthetic", options=Options(precision=precision)
    )
    assert [part["place"] for part in found.report["partitions"]] == ["host"]
    assert reason in account_of(found.program.manifest)[0].problems[0].reason
    with pytest.raises(NpucError, match=reason):
        api.compile(
            model_of("LSTM", batch=batch),
            target,
            calibration="synthetic",
            options=Options(precision=precision, strict=True),
        )
