"""Names of the model: no pass gives one to another tensor, not even that of a tensor which was removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from npuc.ir import Graph
from npuc.ops import build
from npuc.pipeline import Pass, run_passes
from tests.graphs.checking import pipelines
from tests.passes.networks import assert_same_meaning
from tests.passes.random_graphs import random_graph


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph as a model whose tensors have other names."""
    nodes = [
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    ]
    constants = {names.get(name, name): value for name, value in graph.constants.items()}
    types = {name: graph.tensors[name] for name in graph.inputs}
    made = build(graph.name, nodes, types, graph.outputs, constants)
    return replace(made, reserved=frozenset(made.tensors))


def with_names_of_passes(graph: Graph, passes: tuple[Pass, ...]) -> Graph | None:
    """The graph with names for the tensors that passes remove which they give to the tensors they make."""
    met: dict[str, None] = {}
    last = run_passes(graph, passes, lambda *told: met.update(dict.fromkeys(told[2].tensors)))
    made = [name for name in met if name not in graph.tensors]
    inner = set(graph.tensors) - {*graph.inputs, *graph.outputs}
    lost = [name for name in graph.tensors if name in inner and name not in last.tensors]
    stems = [name for name in made if any(name.startswith(each) for each in graph.tensors if each not in lost)]
    return renamed(graph, dict(zip(lost, stems, strict=False))) if lost and stems else None


@pytest.mark.parametrize("pipeline", pipelines())
def test_a_removed_tensor_s_name_is_not_used_again(pipeline: str) -> None:
    tried, passes = 0, pipelines()[pipeline]
    for seed in range(12):
        graph = with_names_of_passes(random_graph(seed), passes)
        if graph is None:
            continue
        tried += 1
        assert_same_meaning(graph, run_passes(graph, passes))
    assert tried > 3
