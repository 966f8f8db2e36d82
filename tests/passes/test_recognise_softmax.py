"""Softmax and LogSoftmax as models spell them become one operator; what only looks like them stays."""

from __future__ import annotations

import pytest

from npuc.ir import Graph, Node
from npuc.passes.recognition.recognise_softmax import recognise_softmax
from tests.passes.networks import assert_same_meaning, network, node, operators

MAXIMUM = node("ReduceMax", "x", "m", axes=(1,), keepdims=1)
SHIFT = node("Sub", "x m", "s")
TOTAL = node("ReduceSum", "e", "t", axes=(1,), keepdims=1)
STABLE = (MAXIMUM, SHIFT, node("Exp", "s", "e"), TOTAL)
PLAIN = (node("Exp", "x", "e"), TOTAL)
LOG = node("Log", "t", "l")
SPELLINGS = {
    "softmax": ("Softmax", (*STABLE, node("Div", "e t", "y"))),
    "softmax without the maximum": ("Softmax", (*PLAIN, node("Div", "e t", "y"))),
    "log softmax": ("LogSoftmax", (*STABLE, LOG, node("Sub", "s l", "y"))),
    "log softmax without the maximum": ("LogSoftmax", (*PLAIN, LOG, node("Sub", "x l", "y"))),
}
LOOK_ALIKES = {
    "the sum is over two axes": (
        *STABLE[:3],
        node("ReduceSum", "e", "t", axes=(1, 2), keepdims=1),
        node("Div", "e t", "y"),
    ),
    "a sum without its dimension broadcasts along another axis": (
        *STABLE[:3],
        node("ReduceSum", "e", "t", axes=(1,), keepdims=0),
        node("Div", "e t", "y"),
    ),
    "the sum is divided": (*STABLE, node("Div", "t e", "y")),
    "the sum is of something else": (
        *STABLE[:3],
        node("ReduceSum", "x", "t", axes=(1,), keepdims=1),
        node("Div", "e t", "y"),
    ),
    "the mean": (*STABLE[:3], node("ReduceMean", "e", "t", axes=(1,), keepdims=1), node("Div", "e t", "y")),
    "the logarithm is taken off x, not of what the sum is": (*STABLE, LOG, node("Sub", "x l", "y")),
    "the powers are read by another node, too": (*STABLE, node("Div", "e t", "d"), node("Mul", "d e", "y")),
    "the sum is an output": (*STABLE, node("Div", "e t", "y"), node("Identity", "t", "z")),
}


def _graph(nodes: tuple[Node, ...]) -> Graph:
    return network((1, 4, 4), "y t" if any(each.output == "z" for each in nodes) else "y", *nodes)


@pytest.mark.parametrize(("op", "nodes"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_becomes_one_operator_that_names_all_its_nodes(op: str, nodes: tuple[Node, ...]) -> None:
    before = _graph(nodes)
    found = recognise_softmax(before)
    assert_same_meaning(before, found)
    (made,) = found.nodes
    assert (made.op, made.attrs["axis"]) == (op, 1)
    assert sorted(made.sources) == sorted(each.name for each in nodes)


@pytest.mark.parametrize("nodes", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_what_only_looks_like_it_stays(nodes: tuple[Node, ...]) -> None:
    before = _graph(nodes)
    found = recognise_softmax(before)
    assert_same_meaning(before, found)
    assert operators(found) == operators(before)


def test_a_maximum_along_another_axis_stays_before_the_operator() -> None:
    wide = node("ReduceMax", "x", "m", axes=(2,), keepdims=1)
    before = _graph((wide, *STABLE[1:], node("Div", "e t", "y")))
    found = recognise_softmax(before)
    assert_same_meaning(before, found)
    assert operators(found) == ["ReduceMax", "Sub", "Softmax"]
