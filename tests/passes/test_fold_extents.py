"""Maps beyond a field: folded where no pixel meets its neighbours, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.expansion.fold_extents import FoldExtents

fold_extents = FoldExtents(64)


def conv(shape: tuple[int, ...], kernel: tuple[int, int] = (1, 1), group: int = 1, **attrs: Any) -> Graph:
    w = np.random.default_rng(0).normal(0.1, 1, (4, shape[1] // group, *kernel)).astype(np.float32)
    node = Node("Conv", ("x", "w"), ("y",), {"activation": "Relu", "group": group, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {"w": w})


def pair(op: str, left: tuple[int, ...], right: tuple[int, ...]) -> Graph:
    node = Node(op, ("x", "z"), ("y",), {}, "n", ("n",))
    return build("g", [node], {"x": TensorType(left), "z": TensorType(right)}, ["y"], {})


def function(op: str, shape: tuple[int, ...]) -> Graph:
    return build("g", [Node(op, ("x",), ("y",), {}, "n", ("n",))], {"x": TensorType(shape)}, ["y"], {})


def normalisation(shape: tuple[int, ...]) -> Graph:
    scale = np.random.default_rng(0).uniform(0.5, 2, (2, shape[1])).astype(np.float32)
    node = Node("InstanceNormalization", ("x", "s", "b"), ("y",), {}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {"s": scale[0], "b": scale[1]})


@pytest.mark.parametrize(
    ("before", "folded"),
    [
        (normalisation((1, 4, 1, 100)), (10, 10)),
        (normalisation((1, 4, 8, 8)), None),
        (conv((1, 4, 1, 65)), (5, 13)),
        (conv((1, 4, 4, 100)), (20, 20)),
        (conv((2, 4, 90, 1)), (9, 10)),
        (conv((1, 4, 65, 65)), None),
        (conv((1, 4, 1, 64 * 64), group=4), (64, 64)),
        (conv((1, 4, 1, 64)), None),
        (conv((1, 4, 1, 67)), None),
        (conv((1, 4, 1, 64 * 65)), None),
        (conv((1, 4, 1, 100), (1, 2)), None),
        (conv((1, 4, 1, 100), strides=(1, 2)), None),
        (conv((1, 4, 1, 100), pads=(0, 0, 0, 1)), None),
        (function("Sigmoid", (1, 4, 2, 100)), (10, 20)),
        (function("Sigmoid", (1, 4, 100)), None),
        (function("Sigmoid", (1, 4, 0, 100)), None),
        (pair("Mul", (1, 4, 1, 100), (1, 4, 1, 100)), (10, 10)),
        (pair("Add", (1, 4, 1, 100), (1, 4, 1, 1)), None),
    ],
)  # fmt: skip
def test_a_map_is_folded_where_pixels_do_not_meet(before: Graph, folded: tuple[int, int] | None) -> None:
    after = fold_extents(before)
    if folded is None:
        assert after is before
        return
    assert [node.op for node in after.nodes if node.op != "Reshape"] == [before.nodes[0].op]
    (inner,) = (node for node in after.nodes if node.op != "Reshape")
    assert after.shape(inner.output)[2:] == folded
    random = np.random.default_rng(1)
    feeds = {name: random.normal(0.3, 1, before.shape(name)).astype(np.float32) for name in before.inputs}
    np.testing.assert_array_equal(run(after, feeds)["y"], run(before, feeds)["y"])
    assert fold_extents(after) is after


def test_maps_of_a_chain_stay_folded() -> None:
    w = np.random.default_rng(0).normal(0.1, 1, (4, 4, 1, 1)).astype(np.float32)
    nodes = [
        Node("Conv", ("x", "w"), ("a",), {}, "m", ("m",)),
        Node("Sigmoid", ("a",), ("b",), {}, "n", ("n",)),
        Node("Mul", ("a", "b"), ("y",), {}, "o", ("o",)),
    ]
    after = fold_extents(build("g", nodes, {"x": TensorType((1, 4, 1, 100))}, ["y"], {"w": w}))
    assert [node.op for node in after.nodes] == ["Reshape", "Conv", "Sigmoid", "Mul", "Reshape"]
