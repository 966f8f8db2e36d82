"""rescale_coarse_operands: where a copy is made, and what that does to a whole program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.passes.scales.rescale_coarse_operands import RescaleCoarseOperands
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.scales.constraints import constraints_of, tensors_of
from tests.graphs.compiling import Case, verified
from tests.passes.networks import IMAGES, assert_same_meaning, network, node, operators

GAIN = np.eye(4, dtype=np.float32)[..., None, None]


def _network(gain: float, *tail: Node) -> Graph:
    """t = tanh(x), b = t * gain by a convolution, and what follows."""
    return network((1, 4, 5, 5), "y", node("Tanh", "x", "t"), node("Conv", "t w", "b"), *tail, w=GAIN * gain)


def _copied(graph: Graph) -> Graph:
    x = np.linspace(-3, 5, 100, dtype=np.float32).reshape(1, 4, 5, 5)
    nodes = tuple(graph.nodes)
    found = histograms(graph, [{"x": x}], tensors_of(nodes))
    copies = RescaleCoarseOperands(
        found,
        lambda each: tuple(each.nodes),
        lambda each, some, free: constraints_of(each, some, (), free),
        IMAGES,
    )
    after = copies(graph)
    assert_same_meaning(graph, after)
    return after


SUM, JOINED = node("Add", "t b", "y"), node("Concat", "t b", "y", axis=1)


@pytest.mark.parametrize("tail", [(SUM,), (JOINED,)])
def test_what_a_convolution_reads_keeps_its_steps_beside_a_result_sixty_four_times_as_large(
    tail: tuple[Node],
) -> None:
    after = _copied(_network(64, *tail))
    assert operators(after) == ["Tanh", "Conv", "Rescale", tail[0].op]
    assert after.nodes[1].inputs[0] == "t" and after.nodes[2].inputs == ("t",)


@pytest.mark.parametrize("tail", [(SUM,), (JOINED,)])
def test_beside_a_result_eight_times_as_large_sixteen_steps_are_left(tail: tuple[Node]) -> None:
    graph = _network(8, *tail)
    assert _copied(graph) is graph


def test_a_move_in_between_is_of_the_same_tensor() -> None:
    moved = node("Reshape", "t", "r", shape=(1, 4, 25, 1)), node("Reshape", "b", "s", shape=(1, 4, 25, 1))
    after = _copied(_network(64, *moved, node("Add", "r s", "y")))
    assert operators(after) == ["Tanh", "Conv", "Reshape", "Reshape", "Rescale", "Add"]


def test_where_only_the_sum_reads_an_operand_nothing_is_gained() -> None:
    tail = node("Tanh", "x", "u"), node("Add", "u b", "y")
    graph = _network(64, *tail)
    assert _copied(graph) is graph


def test_a_result_as_coarse_gains_nothing_from_a_copy() -> None:
    """The smaller of two is as small as the operand, and shares the scale of both."""
    pool = (
        node("Concat", "t b", "c", axis=2),
        node("Slice", "c", "y", starts=(0,), ends=(5,), axes=(2,), steps=(1,)),
    )
    graph = _network(64, *pool)
    assert _copied(graph) is graph


@pytest.mark.parametrize("join", ["Max", "Add", "Sub"])
def test_an_exponential_has_the_steps_of_its_input(join: str, tmp_path: Path) -> None:
    """exp(2.5 x) reaches into the thousands where x is 3."""
    nodes = node("Mul", "x k", "t"), node("Exp", "t", "e"), node(join, "e t", "y")
    graph = network((1, 4, 5, 5), "y", *nodes, k=np.float32(2.5))
    report = verified(graph, Case("easynpu", "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 18


@pytest.mark.parametrize("target", ["easynpu", "bm1684"])
def test_a_convolution_has_the_steps_of_its_input(target: str, tmp_path: Path) -> None:
    graph = network(
        (1, 4, 5, 5), "y", node("Conv", "x v", "t"), node("Conv", "t w", "b"), JOINED, v=GAIN / 2, w=GAIN * 400
    )
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 25
