"""Nodes of integer graphs: words that fit their maps, and what the array runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.errors import ModelError
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.targets.easynpu.layers import support
from npuc.targets.easynpu.layers.nodes import OPERATORS, WORD_OP, interleaved, runs_on_array
from npuc.targets.easynpu.layers.windows import needed, ranges_for
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.network.quantising import integer
from tests.passes.networks import network, node


def _graph(shape: tuple[int, ...], made: Node) -> Graph:
    return build("g", [made], {"x": TensorType(shape, "int8")}, ["y"], {}, OPERATORS)


MAP = {"Ci": 4, "Hi": 1, "Wi": 1, "Co": 4, "Ho": 1, "Wo": 1}


@pytest.mark.parametrize("changes", [{}, {"flat": True}, {"Hi": 2, "Ho": 2}])
def test_a_word_that_fits_its_map_is_one(changes: dict[str, Any]) -> None:
    fields = {**MAP, **changes}
    assert _graph((1, 4, fields["Hi"], 1), node(WORD_OP, "x", "y", **fields))


@pytest.mark.parametrize(
    "changes",
    [{"Ci": 5, "Co": 5}, {"Co": 8}, {"split_c": 3}, {"Hi": 2, "Ho": 2, "flat": True}],
    ids=["another map", "another result", "parts that do not divide", "a row of two pixels"],
)
def test_a_word_that_does_not_fit_its_map_is_refused(changes: dict[str, Any]) -> None:
    fields = {**MAP, **changes}
    with pytest.raises(ModelError):
        _graph((1, 4, fields["Hi"], 1), node(WORD_OP, "x", "y", **fields))


@pytest.mark.parametrize("shape", [(2, 4, 1, 1), (1, 4, 1)])
def test_a_word_reads_a_map_of_one_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError):
        _graph(shape, node(WORD_OP, "x", "y", **MAP))


@pytest.mark.parametrize(
    ("shape", "axis", "runs"),
    [((1, 16, 2, 2), 0, False), ((1, 16, 2, 2), 1, True), ((1, 16, 2, 2), 2, True), ((1, 16, 2), 1, False)],
)
def test_the_array_joins_maps_but_not_batches(shape: tuple[int, ...], axis: int, runs: bool) -> None:
    graph = _graph(shape, node("Concat", "x x", "y", axis=axis))
    assert runs_on_array(graph, graph.nodes[0]) is runs


POOLED = {"kernel_shape": (2, 2)}
LAYERS = [
    node("Conv", "x w", "y"), node("MaxPool", "x", "y", **POOLED), node("AveragePool", "x", "y", **POOLED),
    node("GlobalMaxPool", "x", "y"), node("GlobalAveragePool", "x", "y"), node("Add", "x x", "y"),
    node("Mul", "x x", "y"), node("Relu", "x", "y"), node("Clip", "x", "y", min=0.0, max=6.0),
    node("PRelu", "x s", "y"), node("Sigmoid", "x", "y"),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("layer", LAYERS, ids=[each.op for each in LAYERS])
def test_the_array_takes_one_image(layer: Node, batch: int) -> None:
    graph = network((batch, 4, 6, 6), "y", layer, w=(4, 4, 1, 1), s=0.5)
    assert (support.refusal(graph, layer, Machine()) is None) is (batch == 1)
    assert (layer in integer(graph, Machine())) is (batch == 1)


JOINED = node("Concat", "x x x x", "m", axis=1)


@pytest.mark.parametrize(("before", "move", "phases"), [
    (JOINED, node("DepthToSpace", "m", "y", blocksize=2), 4), (JOINED, node("Relu", "m", "y"), 0),
    (JOINED, node("DepthToSpace", "m", "y", blocksize=2, mode="CRD"), 0),
    (JOINED, node("DepthToSpace", "m", "y", blocksize=1), 0),
    (node("Concat", "z z", "m", axis=2), node("DepthToSpace", "m", "y", blocksize=2), 0),
    (node("Relu", "z", "m"), node("DepthToSpace", "m", "y", blocksize=2), 0),
    (node("Relu", "x", "unread"), node("DepthToSpace", "z", "y", blocksize=2), 0),
])  # fmt: skip
def test_only_a_concat_of_phases_is_interleaved(before: Node, move: Node, phases: int) -> None:
    shapes = {"x": TensorType((1, 4, 3, 3), "int8"), "z": TensorType((1, 16, 3, 3), "int8")}
    graph = build("g", [before, move], shapes, ["y"], {}, OPERATORS)
    found = interleaved(graph, move)
    assert len(found.inputs if found else ()) == phases
    if found:  # rows 1..2 of the result are in blocks 0 and 1
        rows = ranges_for(graph, [before, move], {"y": (np.array(1), np.array(3))}, 1)
        assert [rows[name] for name in ("y", "x")] == [(0, 4), (0, 2)]


def test_a_row_that_a_sum_repeats_is_needed_for_all_of_its_rows() -> None:
    graph = network((1, 4, 5, 5), "y", node("ReduceMax", "x", "r", axes=(2,), keepdims=1), node("Add", "x r", "y"))
    for name, rows in (("x", (3, 5)), ("r", (0, 1))):
        assert needed(graph, graph.nodes[1], name, 1, np.array(3), np.array(5)) == rows
