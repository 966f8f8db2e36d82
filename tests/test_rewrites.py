"""The sentences that say what a pass did and what it cost."""

from __future__ import annotations

import numpy as np

from npuc.ir import Attr, Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.expansion.averages import SplitAveragePool
from npuc.passes.expansion.split_max_pool import split_max_pool
from npuc.pipeline import Pass
from npuc.rewrites import Rewrite, rewrites
from npuc.targets.easynpu.network.passes import expand_groups

SHAPE = (1, 4, 14, 14)


def node(op: str, *inputs: str, y: str, **attrs: Attr) -> Node:
    return Node(op, inputs, (y,), attrs, y, (y,))


def graph(*nodes: Node) -> Graph:
    weights = {"w": np.ones((4, 2, 3, 3), np.float32)}
    used = {name for each in nodes for name in each.inputs}
    return build("g", nodes, {"x": TensorType(SHAPE)}, ["y"], {k: v for k, v in weights.items() if k in used})


def done(each: Pass, before: Graph, *, known: bool = True) -> list[Rewrite]:
    """The rewrites of a pass, where every node costs ten cycles (or nothing is known of large windows)."""

    def price(_graph: Graph, node: Node) -> int | None:
        return 10 if known or node.op != "GlobalMaxPool" else None

    return list(rewrites(each.__name__, before, each(before), price))


def test_a_maximum_in_two_stages_is_exact_and_costs_the_second_stage() -> None:
    (found,) = done(split_max_pool, graph(node("GlobalMaxPool", "x", y="y")))
    assert str(found) == "split_max_pool: 'y' GlobalMaxPool 14x14 -> MaxPool 14x1, MaxPool 1x14, +10 cycles, exact"
    assert (found.nodes, found.macs, found.roundings, found.lsb) == (("y",), 0, 0, 0)


def test_what_could_not_run_before_is_no_difference() -> None:
    (found,) = done(split_max_pool, graph(node("GlobalMaxPool", "x", y="y")), known=False)
    assert "MaxPool 1x14, 20 cycles, exact" in str(found)


def test_an_average_in_two_stages_is_rounded_once_more() -> None:
    before = graph(node("AveragePool", "x", y="y", kernel_shape=(14, 14)))
    (found,) = done(SplitAveragePool(), before)
    assert str(found).endswith("+10 cycles, rounded once more (at most 1 LSB)")


def test_the_products_with_zeros_of_a_grouped_convolution_are_counted() -> None:
    # 12 x 12 x 4 results of 2 x 9 products become results of 4 x 9
    (found,) = done(expand_groups, graph(node("Conv", "x", "w", y="y", group=2)))
    assert str(found) == "expand_groups: 'y' Conv 3x3 in 2 groups -> Conv 3x3, +10,368 MACs, exact"
    assert (found.macs, found.cycles) == (12 * 12 * 4 * 2 * 9, 0)


def test_two_places_are_two_sentences_and_nodes_that_are_only_wired_differently_none() -> None:
    before = graph(
        node("GlobalMaxPool", "x", y="a"), node("Add", "x", "a", y="b"), node("GlobalMaxPool", "b", y="y")
    )
    assert [each.nodes for each in done(split_max_pool, before)] == [("a",), ("y",)]

    def renames(given: Graph) -> Graph:
        wired = [each if each.output != "b" else node("Add", "a", "x", y="b") for each in given.nodes]
        return build("g", wired, {"x": TensorType(SHAPE)}, ["y"], {})

    assert done(renames, before) == []
