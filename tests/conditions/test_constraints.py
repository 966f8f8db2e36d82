"""Constraints that targets share: what each refuses, and what it lets pass."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.conditions.constraints import (
    Constraint,
    clips_at_zero,
    constant_weights,
    exceeding,
    finite_constants,
    slope_per_channel,
    whole_windows,
)
from npuc.conditions.host import only_converts
from npuc.ir import Graph
from tests.passes.networks import network, node

MAP = (1, 4, 4, 4)
CONV = node("Conv", "x w b", "y")
W, B = np.ones((4, 4, 1, 1), np.float32), np.zeros(4, np.float32)
INFINITE = np.where(np.arange(4) == 2, np.inf, 0).astype(np.float32)


def clipped(low: float, high: float) -> Graph:
    return network(MAP, "y", node("Conv", "x w b", "y", activation="Clip", min=low, max=high), w=W, b=B)


def sloped(*shape: int) -> Graph:
    return network(MAP, "y", node("PRelu", "x s", "y"), s=np.linspace(0, 1, 4).astype(np.float32).reshape(shape))


def averaged(**attrs: object) -> Graph:
    return network((1, 4, 5, 5), "y", node("AveragePool", "x", "y", kernel_shape=(3, 3), **attrs))


AROUND, BEHIND = (1, 1, 1, 1), {"strides": (3, 3), "ceil_mode": 1}
KEPT = {
    "weights and a bias": (constant_weights, network(MAP, "y", CONV, w=W, b=B)),
    "finite numbers": (finite_constants, network(MAP, "y", CONV, w=W, b=B)),
    "a limit of 6": (clips_at_zero, clipped(0, 6)),
    "a limit of 1": (clips_at_zero, clipped(0, 1)),
    "no limit": (clips_at_zero, network(MAP, "y", CONV, w=W, b=B)),
    "a slope per channel": (slope_per_channel, sloped(4, 1, 1)),
    "the same with a batch": (slope_per_channel, sloped(1, 4, 1, 1)),
    "one slope": (slope_per_channel, network(MAP, "y", node("PRelu", "x s", "y"), s=np.full(1, 0.2, np.float32))),
    "averages without padding": (whole_windows, averaged()),
    "counted padding": (whole_windows, averaged(pads=AROUND, count_include_pad=1)),
    "an average of all": (whole_windows, network(MAP, "y", node("GlobalAveragePool", "x", "y"))),
}  # fmt: skip
VIOLATED = {
    "computed weights": (constant_weights, network(MAP, "y", node("Relu", "x", "v"), node("Conv", "x v", "y"))),
    "an infinite bias": (finite_constants, network(MAP, "y", CONV, w=W, b=INFINITE)),
    "a limit below zero": (clips_at_zero, clipped(-1, 6)),
    "a limit above zero": (clips_at_zero, clipped(1, 6)),
    "no positive limit": (clips_at_zero, clipped(0, 0)),
    "a slope per column": (slope_per_channel, sloped(4)),
    "a slope per row": (slope_per_channel, sloped(4, 1)),
    "a computed slope": (slope_per_channel, network(MAP, "y", node("PRelu", "x x", "y"))),
    "padding that does not count": (whole_windows, averaged(pads=AROUND)),
    "windows that reach beyond all padding": (whole_windows, averaged(count_include_pad=1, **BEHIND)),
}  # fmt: skip


@pytest.mark.parametrize(("constraint", "graph"), KEPT.values(), ids=KEPT)
def test_a_constraint_that_is_kept_says_nothing(constraint: Constraint, graph: Graph) -> None:
    assert constraint(graph, graph.nodes[-1]) is None


@pytest.mark.parametrize(("constraint", "graph"), VIOLATED.values(), ids=VIOLATED)
def test_a_constraint_that_is_violated_says_by_what(constraint: Constraint, graph: Graph) -> None:
    assert constraint(graph, graph.nodes[-1])


def test_extents_may_reach_their_limits() -> None:
    assert exceeding((1, 8, 16, 32), (8, 16, 32)) is None
    assert exceeding((1, 9, 16, 32), (8, 16, 32)) == "9 channels exceed 8"
    assert exceeding((8, 17, 32), (8, 16, 32)) == "17 rows exceed 16"
    assert exceeding((33,), (8, 16, 32)) == "33 columns exceed 32"


def test_what_only_converts_lies_before_the_array_or_behind_it() -> None:
    conv = node("Conv", "d w", "a"), node("Conv", "t w", "c")
    border = node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d")
    moves = node("Transpose", "a", "t", perm=(0, 1, 3, 2)), node("Reshape", "r", "y", shape=(4, 16))
    nodes = (*border, conv[0], moves[0], conv[1], node("Relu", "c", "r"), moves[1])
    graph = network(MAP, "y", *nodes, w=W, s=0.1, z=np.int8(0))
    found = [each.output for each in graph.nodes if only_converts(graph, each, {*conv})]
    assert found == ["q", "d", "y"]
