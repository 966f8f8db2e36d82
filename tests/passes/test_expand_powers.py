"""Powers by constants are products and roots, for every exponent that has one, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.expansion.expand_powers import expand_powers
from npuc.reference import graph_session


def power(exponent: Array, shape: tuple[int, ...] = (2, 3)) -> Graph:
    nodes = [Node("Abs", ("x",), ("a",), {}, "m", ("m",)), Node("Pow", ("a", "e"), ("y",), {}, "n", ("n",))]
    return build("g", nodes, {"x": TensorType(shape)}, ["y"], {"e": exponent})


@pytest.mark.parametrize(
    ("exponent", "operators"),
    [
        (np.float32(1), []),
        (np.array([2], np.float32), ["Mul"]),
        (np.array([[3]], np.float32), ["Mul", "Mul"]),
        (np.int64(2), ["Mul"]),
        (np.float32(4), ["Mul", "Mul"]),
        (np.float32(0.5), ["Sqrt"]),
    ],
)
def test_a_power_with_a_small_exponent_is_expanded(exponent: Array, operators: list[str]) -> None:
    before = power(np.asarray(exponent))
    after = expand_powers(before)
    assert [node.op for node in after.nodes] == ["Abs", *operators]
    assert after.outputs == before.outputs
    x = np.array([[0.0, -1.5, 3.25], [80.0, -0.001, 1.0]], np.float32)
    (wanted,) = graph_session(before, ["y"]).run(None, {"x": x})
    np.testing.assert_allclose(run(after, {"x": x})["y"], wanted, rtol=1e-6)
    assert expand_powers(after) is after


@pytest.mark.parametrize(
    "exponent",
    [0.0, -1.0, -0.5, 1.7, 2.0000002, 5.0, np.nan, [2.0, 2.0, 2.0], [[[2.0]]]],
)
def test_other_powers_stay(exponent: float | list[float]) -> None:
    before = power(np.asarray(exponent, np.float32))
    assert expand_powers(before) is before


def test_an_exponent_at_run_time_stays() -> None:
    node = Node("Pow", ("x", "e"), ("y",), {}, "n", ("n",))
    before = build("g", [node], {"x": TensorType((2, 3)), "e": TensorType((2, 3))}, ["y"], {})
    assert expand_powers(before) is before
