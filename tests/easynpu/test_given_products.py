"""Products, and slopes per channel, of tensors whose steps a model gives: against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import npuc
from npuc.errors import UnsupportedOperator
from npuc.ir import Node, TensorType
from npuc.ops import build
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.model_scales import Steps
from npuc.reference import session
from npuc.verification.metrics import Difference
from tests.onnx_models import network

SHAPE = [1, 8, 2, 2]


class _Model:
    """An ONNX model under construction: inputs a and b of SHAPE, pairs of conversions, one output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}

    def add(self, op: str, inputs: str, **attrs: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs.split(), [name], name, **attrs))
        return name

    def rounded(self, tensor: str, scale: float, zero: int) -> str:
        self.constants |= {f"{tensor}_s": np.float32(scale), f"{tensor}_z": np.int8(zero)}
        steps = f"{tensor}_s {tensor}_z"
        return self.add("DequantizeLinear", f"{self.add('QuantizeLinear', f'{tensor} {steps}')} {steps}")

    def model(self, output: str) -> onnx.ModelProto:
        return network(self.nodes, dict.fromkeys("ab", SHAPE), self.constants, output)


def _sqnr(model: onnx.ModelProto) -> float:
    random = np.random.default_rng(7)
    feeds = {name: random.standard_normal((16, *SHAPE)).astype(np.float32) for name in "ab"}
    (found,) = npuc.compile(model, target="easynpu", calibration=feeds).run(feeds).values()
    run = session(model.SerializeToString())
    wanted = [run.run(None, {name: values[k] for name, values in feeds.items()})[0] for k in range(16)]
    difference = Difference()
    difference.add(np.stack(wanted), found)
    return difference.sqnr_db or 200.0


@pytest.mark.parametrize("limit", ["Relu", "Clip", "MaxPool", "Reshape", "Neg"])
@pytest.mark.parametrize("zeros", [(-29, 16, -8), (0, 16, 0), (100, -100, 3)])
def test_a_factor_behind_a_function_that_hands_its_steps_on_is_rescaled(
    limit: str, zeros: tuple[int, int, int]
) -> None:
    made = _Model()
    made.constants |= {"low": np.float32(0), "high": np.float32(3), "shape": np.array([1, 8, 4, 1], np.int64)}
    a, b = made.rounded("a", 0.0224, zeros[0]), made.rounded("b", 0.00496, zeros[1])
    inputs = {"Clip": f"{b} low high", "Reshape": f"{b} shape"}
    b = made.add(
        limit,
        inputs.get(limit, b),
        **({"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]} if limit == "MaxPool" else {}),
    )
    if limit == "Reshape":
        a = made.add("Reshape", f"{a} shape")
    product = made.add("Mul", f"{a} {b}")
    assert _sqnr(made.model(made.rounded(product, 0.00367, zeros[2]))) > 30


@pytest.mark.parametrize("move", ["MaxPool", "Relu"])
def test_a_product_whose_steps_are_given_behind_a_function_that_hands_them_on_is_rescaled(move: str) -> None:
    made = _Model()
    product = made.add("Mul", f"{made.rounded('a', 0.0224, 0)} {made.rounded('b', 0.0224, 0)}")
    moved = made.add(
        move, product, **({"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]} if move == "MaxPool" else {})
    )
    assert _sqnr(made.model(made.rounded(moved, 0.0153, -77))) > 30


def test_slopes_per_channel_behind_a_maximum_of_given_steps_are_rescaled() -> None:
    made = _Model()
    made.constants["slopes"] = np.linspace(-0.5, 0.9, 8, dtype=np.float32).reshape(8, 1, 1)
    total = made.add("Add", f"{made.rounded('a', 0.0224, 31)} {made.rounded('b', 0.0296, -16)}")
    pooled = made.add("MaxPool", made.rounded(total, 0.04, 40), kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    assert _sqnr(made.model(made.add("PRelu", f"{pooled} slopes"))) > 30


@pytest.mark.parametrize("name", ["a", "b", "y"])
def test_a_product_with_a_zero_point_is_refused_rather_than_computed_wrongly(name: str) -> None:
    shape = TensorType((1, 2, 3, 3))
    graph = build("g", [Node("Mul", ("a", "b"), ("y",), name="m")], {"a": shape, "b": shape}, ("y",), {})
    steps = {each: Steps(2.0**-6, 5 if each == name else 0) for each in "aby"}
    with pytest.raises(UnsupportedOperator) as caught:
        quantise(graph, graph.nodes, {}, given=steps)
    problem = caught.value.problems[0]
    assert (problem.code, problem.node, problem.tensor) == ("E205", "m", name)
