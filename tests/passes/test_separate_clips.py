"""separate_clips."""

import pytest

from npuc.passes.fusion.fuse_activation import fuse_activation
from npuc.passes.fusion.separate_clips import separate_clips
from tests.passes.networks import assert_same_meaning, network, node, operators, sources


@pytest.mark.parametrize(
    "limits", [{"min": -1.0, "max": 1.0}, {"min": 0.5}, {"max": 3.0}, {"min": 0.0, "max": 0.0}]
)
@pytest.mark.parametrize("inputs", ["x w", "x x"])
def test_a_clip_that_is_no_relu_leaves_its_operator(inputs: str, limits: dict[str, float]) -> None:
    layer = node("Conv" if "w" in inputs else "Add", inputs, "a")
    weight = {"w": (4, 4, 1, 1)} if "w" in inputs else {}
    fused = fuse_activation(network((1, 4, 3, 3), "y", layer, node("Clip", "a", "y", **limits), **weight))
    assert operators(fused) == [f"{layer.op}+Clip"]
    found = separate_clips(fused)
    assert operators(found) == [layer.op, "Clip"]
    assert sources(found, "y") == ("y",)
    assert_same_meaning(fused, found)


def test_a_clip_from_zero_stays() -> None:
    graph = network(
        (1, 4, 3, 3), "y", node("Conv", "x w", "y", activation="Clip", min=0.0, max=6.0), w=(4, 4, 1, 1)
    )
    assert separate_clips(graph) is graph


def test_an_operator_without_limits_stays() -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "y", activation="Relu"), w=(4, 4, 1, 1))
    assert separate_clips(graph) is graph
