"""A short seeded run of what `benchmarks/random_graphs.py` runs for long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.ops import OPS, rebuild
from npuc.registry import TARGETS
from tests.graphs.checking import Finding, check_passes, difference, same_meaning, single_passes
from tests.graphs.compiling import CASES, Case, check_compile, varied
from tests.graphs.drawn import drawn
from tests.graphs.minimising import Sample, minimised
from tests.graphs.splicing import patterns

BLOCKS, EACH = 8, 12
NEVER_DRAWN = {"Interleave", "Rescale", "FakeQuantize"}
"""Operators that passes alone make."""
OF_INTEGERS = ("Int", "Nv")
"""What operators of integer networks begin with, which no model has."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_passes_keep_what_drawn_graphs_mean(block: int) -> None:
    targets = tuple(TARGETS)
    for seed in range(block * EACH, (block + 1) * EACH):
        graph, net = drawn(seed)
        found = list(check_passes(graph, net.feeds(), net.values, targets=(targets[seed % len(targets)],)))
        assert not found, f"seed {seed}: {found[0]}\n{graph}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_drawn_graphs_compile_to_what_they_mean_or_are_refused(case: Case, tmp_path: Path) -> None:
    for seed in range(3):
        graph, net = drawn(seed, steps=(1, 5))
        found = check_compile(graph, net.values, varied(case, seed), tmp_path)
        assert isinstance(found, str), f"seed {seed}: {found}\n{graph}"


def test_a_seed_gives_the_same_graph_again() -> None:
    (first, _), (second, _) = drawn(7), drawn(7)
    assert str(first) == str(second)
    assert all(np.array_equal(value, second.constants[name]) for name, value in first.constants.items())


def test_every_operator_is_drawn() -> None:
    missing = {name for name in OPS if not name.startswith(OF_INTEGERS)} - NEVER_DRAWN
    for seed in range(3000):
        missing -= {node.op for node in drawn(seed)[1].nodes}
        if not missing:
            break
    assert not missing


def test_graphs_have_the_borders_of_conditions() -> None:
    graphs = [drawn(seed)[0] for seed in range(300)]
    ranks = {len(kind.shape) for graph in graphs for kind in graph.tensors.values()}
    assert {2, 3, 4, 5} <= ranks
    assert any(node.op == "Transpose" and node.integers("perm")[0] for graph in graphs for node in graph.nodes)
    assert any(min(node.integers("steps"), default=1) < 0 for graph in graphs for node in graph.nodes)
    assert any(len(graph.inputs) > 1 for graph in graphs)
    assert any(len(graph.outputs) > 1 for graph in graphs)
    assert any(graph.readers[name] for graph in graphs for name in graph.outputs)
    assert any(len(node.inputs) == 2 and len(set(node.inputs)) == 1 for graph in graphs for node in graph.nodes)
    assert any(len(graph.readers[name]) > 1 for graph in graphs for name in graph.constants)


def test_the_patterns_are_those_of_every_shared_pass() -> None:
    assert len(patterns()) > 300
    assert len(single_passes()) > 40


def test_a_pass_that_changes_the_meaning_is_found_and_its_graph_minimised() -> None:
    def wrong(graph: Graph) -> Graph:
        """Takes every Relu for an Abs."""
        nodes = [Node("Abs", n.inputs, n.outputs, {}, n.name) if n.op == "Relu" else n for n in graph.nodes]
        return rebuild(graph, nodes)

    def fails(sample: Sample) -> bool:
        return any(True for _ in same_meaning(wrong(sample.graph), sample.feeds, sample.values, "wrong"))

    seeds = (seed for seed in range(200) if len(drawn(seed)[0].nodes) > 5)
    samples = (Sample(graph, net.values) for graph, net in map(drawn, seeds))
    sample = next(each for each in samples if fails(each))
    smallest = minimised(sample, fails)
    assert [node.op for node in smallest.graph.nodes] == ["Relu"]


def test_a_difference_says_how_large_it_is() -> None:
    expected = np.array([1, 100], np.float32)
    assert not difference(expected, expected + np.float32(1e-3))
    assert "differs by 1 of 100" in difference(expected, expected + np.float32([0, 1]))
    assert "became" in difference(expected, expected[:1])
    assert "integers differ by 3" in difference(np.int8([1]), np.int8([4]))
    assert not difference(np.int8([1]), np.int8([2]), ties=True) and difference(np.int8([1]), np.int8([2]))
    assert "integers differ by 2" in difference(np.int8([1]), np.int8([3]), ties=True)
    assert "became" in difference(np.int8([1]), np.int16([1]), ties=True)
    assert str(Finding("somewhere", "other values")) == "somewhere: other values"
