"""rescale_mixed_concats."""

from __future__ import annotations

import pytest

from npuc.passes.scales.rescale_mixed_concats import RescaleMixedConcats
from tests.passes.networks import IMAGES, assert_same_meaning, network, node, operators

STEPS = {"scale": 0.05, "zero_point": 0, "dtype": "int8"}


@pytest.mark.parametrize(("shape", "axis", "ops"), [
    ((1, 4, 3, 3), 1, "Rescale"), ((1, 4), 1, "Rescale"), ((2, 4, 3, 3), 1, "Reshape Rescale Reshape"),
    ((2, 4, 2), 0, "Reshape Rescale Reshape"), ((4,), 0, "Reshape Rescale Reshape"), ((2, 0, 3), 2, "Rescale"),
])  # fmt: skip
def test_given_steps_are_rescaled_on_an_image(shape: tuple[int, ...], axis: int, ops: str) -> None:
    given = (node("Tanh", "x", "t"), node("FakeQuantize", "t", "q", **STEPS))
    graph = network(shape, "y", *given, node("Concat", "q x", "y", axis=axis))
    found = RescaleMixedConcats(IMAGES)(graph)
    assert operators(found) == ["Tanh", "FakeQuantize", *ops.split(), "Concat"]
    assert_same_meaning(graph, found)


def test_a_concat_of_given_steps_alone_stays() -> None:
    given = (node("FakeQuantize", "x", "q", **STEPS), node("FakeQuantize", "x", "r", **STEPS))
    graph = network((2, 4, 2), "y", *given, node("Concat", "q r", "y", axis=0))
    assert RescaleMixedConcats(IMAGES)(graph) is graph
