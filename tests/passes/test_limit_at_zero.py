"""limit_at_zero."""

from __future__ import annotations

import pytest

from npuc.ir import Graph
from npuc.targets.easynpu.network.passes import limit_at_zero
from tests.passes.networks import assert_same_meaning, network, node, operators


def _rounded(zero_point: int, dtype: str, **attrs: str) -> Graph:
    rounding = node("FakeQuantize", "a", "y", scale=0.25, zero_point=zero_point, dtype=dtype)
    return network((1, 4, 3, 3), "y", node("Conv", "x w", "a", **attrs), rounding, w=(4, 4, 1, 1))


@pytest.mark.parametrize(("zero_point", "dtype"), [(-128, "int8"), (0, "uint8")])
def test_steps_from_zero_on_put_the_relu_back(zero_point: int, dtype: str) -> None:
    graph = _rounded(zero_point, dtype)
    found = limit_at_zero(graph)
    assert operators(found) == ["Conv+Relu", "FakeQuantize"]
    assert_same_meaning(graph, found)
    assert limit_at_zero(found) is found


@pytest.mark.parametrize(("zero_point", "dtype"), [(0, "int8"), (-127, "int8"), (128, "uint8")])
def test_steps_below_zero_limit_nothing(zero_point: int, dtype: str) -> None:
    graph = _rounded(zero_point, dtype)
    assert limit_at_zero(graph) is graph


def test_an_activation_stays() -> None:
    graph = _rounded(-128, "int8", activation="Relu")
    assert limit_at_zero(graph) is graph
