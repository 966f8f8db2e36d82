"""rows_to_maps."""

from __future__ import annotations

import pytest

from npuc.ir import Node
from npuc.passes.expansion.gemm_to_conv import GemmToConv
from npuc.targets.nvdla.network.rows_to_maps import MOST_CHANNELS, rows_to_maps
from tests.passes.networks import IMAGES, assert_same_meaning, network, node, operators


@pytest.mark.parametrize(
    "between",
    [
        node("Tanh", "a", "b"), node("Clip", "a", "b", min=-0.5, max=0.5), node("Max", "a n", "b"),
        node("PRelu", "a slope", "b"), node("Mul", "a a", "b"), node("Add", "a a", "b", activation="Relu"),
    ],
    ids=lambda each: each.op,
)  # fmt: skip
def test_what_stands_between_fully_connected_layers_needs_no_movement(between: Node) -> None:
    constants = {"w": (5, 6), "v": (3, 5), "n": 0.25, "slope": (5,)}
    given = {name: value for name, value in constants.items() if name in "wv" or name in between.inputs}
    before = GemmToConv(IMAGES)(
        network((1, 6), "y", node("Gemm", "x w", "a"), between, node("Gemm", "b v", "y"), **given)
    )
    after = rows_to_maps(before)
    fused = f"{between.op}+Relu" if between.text("activation") else between.op
    assert operators(after) == ["Reshape", "Conv", fused, "Conv", "Reshape"]
    assert_same_meaning(before, after)
    assert rows_to_maps(after) is after


@pytest.mark.parametrize("op", ["Sub", "Min", "Add"])
def test_two_rows_become_two_maps(op: str) -> None:
    before = network((1, 7), "y", node("Neg", "x", "a"), node(op, "a x", "y"))
    after = rows_to_maps(before)
    assert operators(after) == ["Reshape", "Neg", op, "Reshape"]
    assert all(after.shape(name) == (1, 7, 1, 1) for each in after.nodes[1:3] for name in each.inputs)
    assert_same_meaning(before, after)


def test_a_row_of_more_elements_than_a_map_has_channels_is_folded() -> None:
    before = network((1, MOST_CHANNELS + 8), "y", node("Relu", "x", "y"))
    after = rows_to_maps(before)
    assert max(after.shape(after.nodes[1].output)) <= MOST_CHANNELS
    assert_same_meaning(before, after)


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        ((1, 6, 2, 2), [node("Relu", "x", "y")]),
        ((2, 6), [node("Relu", "x", "y")]),
        ((1, 6), [node("Softmax", "x", "y", axis=1)]),
        ((1, 6), [node("ReduceMax", "x", "a", axes=(1,), keepdims=1), node("Mul", "x a", "y")]),
    ],
    ids=["a map", "two rows", "no function of one element", "a row and a number"],
)
def test_what_is_no_elementwise_operator_on_rows_stays(shape: tuple[int, ...], nodes: list[Node]) -> None:
    before = network(shape, "y", *nodes)
    assert rows_to_maps(before) is before
