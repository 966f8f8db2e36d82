"""Which inputs of a table matter follows the results that samples give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import npuc
from npuc.frontend import import_model
from npuc.ir import Array, Node, TensorType
from npuc.ops import build
from npuc.quantize.arithmetic.tables import domains, reached_domain
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.scales.results import node_histograms
from npuc.reference import session
from npuc.samples.loading import Samples
from npuc.verification.metrics import Difference
from tests.onnx_models import parse


def _sigmoid_of(bias: float, op: str = "Sigmoid") -> Any:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["logits"], "logits"),
        helper.make_node(op, ["logits"], ["y"], "scores"),
    ]
    random = np.random.default_rng(3)
    constants = {"w": random.standard_normal((4, 8, 1, 1)) * 0.3, "b": np.full(4, bias)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus"])
@pytest.mark.parametrize("bias", [-4.0, -9.0, -14.0])
@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "nvdla-full"])
def test_scores_that_are_all_small_keep_their_accuracy(target: str, bias: float, op: str) -> None:
    model = _sigmoid_of(bias, op)
    x = np.random.default_rng(5).standard_normal((16, 1, 8, 6, 6)).astype(np.float32)
    found = npuc.compile(model, target=target, calibration={"x": x}).run({"x": x})["y"]
    run = session(model.SerializeToString())
    difference = Difference()
    difference.add(np.stack([run.run(None, {"x": each})[0] for each in x]), found)
    assert (difference.sqnr_db or 0) > 25


@pytest.mark.parametrize(
    ("op", "largest", "low"),
    [
        ("Sigmoid", 1.0, -6.25),  # as wide as ever where some result is 1
        ("Sigmoid", np.exp(-10.0), -15.6),  # e^-15.6 is 1/256 of e^-10
        ("Softplus", np.exp(-10.0), -15.6),
        ("Tanh", 0.001, -3.5),  # a small result of it has a small input
        ("Elu", 0.001, -6.25),
    ],
)
def test_a_domain_begins_where_the_largest_result_drowns_the_others(op: str, largest: float, low: float) -> None:
    assert reached_domain(Node(op, ("x",), ("y",)), largest)[0] == pytest.approx(low, abs=0.25)


def _spread(values: Array) -> tuple[float, float]:
    shape = TensorType((1, 4))
    nodes = [Node("Neg", ("x",), ("a",)), Node("Sigmoid", ("a",), ("y",))]
    graph = build("g", nodes, {"x": shape}, ("y",), {})
    found = node_histograms(histograms, graph, Samples({"x": values}), ["x", "a", "y"], graph.nodes)
    assert found["x"].largest == pytest.approx(np.abs(values).max(), rel=1e-2)
    limited = histograms(graph, Samples({"x": values}).feeds(), ["a"], domains(graph, graph.nodes))
    return found["a"].largest, limited["a"].largest


def test_what_a_table_reads_is_limited_by_the_largest_result_of_all_samples() -> None:
    small = np.full((5, 1, 4), 10.0, np.float32)
    large = np.concatenate([small, np.full((1, 1, 4), -2, np.float32)])
    assert _spread(small) == pytest.approx((10.0, 6.25), rel=1e-2)
    assert _spread(large) == _spread(large[::-1]) == pytest.approx((6.25, 6.25), rel=1e-2)


BEFORE_MOVES = {
    "moved, then read by a table": ("t = Reshape(a, k)\n y = Sigmoid(t)", {"a", "t"}),
    "moved twice": ("s = Reshape(a, k)\n t = Transpose<perm = [1, 0]>(s)\n y = Sigmoid(t)", {"a", "s", "t"}),
    "concatenated": ("t = Concat<axis = 0>(a, a)\n y = Sigmoid(t)", {"a", "t"}),
    "halves for two tables": ("s, t = Split<axis = 0>(a)\n y = Sigmoid(s)\n z = Tanh(t)", {"a", "s", "t"}),
    "a half for no table": ("s, t = Split<axis = 0>(a)\n y = Sigmoid(s)\n z = MatMul(t, w)", {"s"}),
    "an output after the move": ("y = Reshape(a, k)\n z = Sigmoid(y)", set[str]()),
    "another reader": ("t = Reshape(a, k)\n y = Sigmoid(t)\n z = MatMul(a, w)", {"t"}),
    "a table before": ("b = Exp(a)\n t = Reshape(b, k)\n y = Sigmoid(t)", {"b", "t"}),
}


@pytest.mark.parametrize("case", BEFORE_MOVES)
def test_what_is_moved_to_tables_is_limited_as_what_they_read(case: str) -> None:
    body, limited = BEFORE_MOVES[case]
    outputs = "float[a,b] y" + (", float[c,d] z" if "z =" in body else "")
    model = parse(
        f"g (float[4,8] x) => ({outputs}) {{ a = MatMul(x, w)\n {body} }}",
        w=np.ones((8, 8), np.float32),
        k=np.array([4, 8]),
    )
    graph = import_model(model)
    assert set(domains(graph, graph.nodes)) == limited | ({"a"} if case == "a table before" else set())
    finite = {name for name, each in domains(graph, graph.nodes).items() if np.isfinite(each).all()}
    assert finite == limited


def test_a_mask_before_a_table_costs_no_accuracy() -> None:
    """A constant mask is added in another shape than the table's: 10 dB before, as -1e4 took the range."""
    random = np.random.default_rng(0)
    mask = np.where(random.random((1, 8, 6, 6)) < 0.5, 0, -1e4).astype(np.float32)
    weights = (random.standard_normal((8, 8, 1, 1)) / 2).astype(np.float32)
    model = parse(
        "g (float[1,8,6,6] x) => (float[1,8,6,6] y) "
        "{ a = Conv(x, w)\n s = Add(a, m)\n b = Sigmoid(s)\n y = Conv(b, w) }",
        w=weights,
        m=mask,
    )
    x = random.standard_normal((8, 1, 8, 6, 6)).astype(np.float32)
    found = npuc.compile(model, target="easynpu", calibration={"x": x}).run({"x": x})["y"]
    run = session(model.SerializeToString())
    difference = Difference()
    difference.add(np.stack([run.run(None, {"x": each})[0] for each in x]), found)
    assert (difference.sqnr_db or 0) > 30
