"""Sums with factors of 8 bits: which scales they leave as they are, and what that is worth on EasyNPU."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import npuc
from npuc.ir import Node, TensorType
from npuc.ops import build
from npuc.quantize.scales.assignment import ScaleConstraints
from npuc.quantize.scales.exact_factors import with_exact_factors

TYPE = TensorType((1, 2, 3, 3), "float32")
SUMS = (("a", "b", "s"), ("s", "c", "y"))


def _scales(given: dict[str, float], **constraints: object) -> dict[str, float]:
    """The scales of (a + b) + c, where a has another reader."""
    nodes = [
        Node("Add", ("a", "b"), ("s",)),
        Node("Add", ("s", "c"), ("y",)),
        Node("Relu", ("a",), ("z",)),
    ]
    graph = build("sums", nodes, dict.fromkeys("abc", TYPE), ("y", "z"), {})
    return with_exact_factors(graph, given, ScaleConstraints(sums=SUMS, **constraints), {})  # pyright: ignore[reportArgumentType]


def test_the_scale_of_a_small_operand_becomes_coarser_to_the_next_whole_factor() -> None:
    """By hand: 1.76 / 64 of the result's step becomes 2 / 64; 40.5 / 64 becomes 41 / 64, after y is known."""
    found = _scales({"a": 1.0, "b": 1.76 / 64, "s": 1.0, "c": 40.5 / 64, "y": 1.0})
    assert found == pytest.approx({"a": 1.0, "b": 2 / 64, "s": 1.0, "c": 41 / 64, "y": 1.0})


def test_factors_of_full_length_stay() -> None:
    given = {"a": 100.4 / 128, "b": 65.5 / 128, "s": 1.0, "c": 1.0, "y": 1.0}
    assert _scales(given) == given


def test_operands_with_other_readers_become_little_coarser() -> None:
    """By hand: 3.5 to 4 would be 14 % for the other reader, too; 40.5 to 41 is 1.2 %."""
    assert _scales({"a": 3.5 / 64, "b": 1.0, "s": 1.0, "c": 1.0, "y": 1.0})["a"] == 3.5 / 64
    assert _scales({"a": 40.5 / 64, "b": 1.0, "s": 1.0, "c": 1.0, "y": 1.0})["a"] == pytest.approx(41 / 64)


@pytest.mark.parametrize(
    "constraints", [{"equal": (("b", "x"),)}, {"powers": ("b",)}, {"ceilings": {"b": 1.0}}, {"unsaturated": {"b"}}]
)
def test_scales_that_something_else_determines_stay(constraints: dict[str, object]) -> None:
    given = {"a": 1.0, "b": 1.76 / 64, "s": 1.0, "c": 1.0, "y": 1.0}
    assert _scales(given, **constraints) == given


POOL = helper.make_node("AveragePool", ["x"], ["m"], kernel_shape=[2, 2], strides=[2, 2])


def _doubled() -> list[onnx.NodeProto]:
    return [POOL, helper.make_node("Add", ["m", "m"], ["y"])]


def _with_its_positive_part() -> list[onnx.NodeProto]:
    return [POOL, helper.make_node("Relu", ["m"], ["r"]), helper.make_node("Add", ["m", "r"], ["y"])]


@pytest.mark.parametrize("nodes", [_doubled(), _with_its_positive_part()])
def test_level_1_is_not_worse_than_level_0_for_a_sum_of_a_tensor_with_itself(nodes: list[onnx.NodeProto]) -> None:
    shapes = {"x": (1, 4, 8, 8), "y": (1, 4, 4, 4)}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    made = helper.make_model(helper.make_graph(nodes, "sum", ports[:1], ports[1:]), ir_version=9)
    x = np.random.default_rng(2).normal(0.3, 1, (60, 4, 8, 8)).astype(np.float32)
    reference = ReferenceEvaluator(made)
    exact = np.concatenate([np.asarray(reference.run(["y"], {"x": each[None]}))[0] for each in x[40:]])
    noise = [_noise(made, x, exact, level) for level in "01"]
    assert noise[1] < noise[0] * 10**0.05  # half a decibel


def _noise(made: onnx.ModelProto, x: NDArray[np.float32], exact: NDArray[np.float32], level: str) -> float:
    program = npuc.compile(made, "easynpu", calibration={"x": x[:40]}, level=level)
    found = np.concatenate([next(iter(program.run({"x": each[None]}).values())) for each in x[40:]])
    return float(np.square(found.astype(np.float64) - exact).sum())
