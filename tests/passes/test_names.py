"""Names of the model: no pass gives one to another tensor, not even that of a tensor which was removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ModelError
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build, rebuild
from npuc.passes.recognition.canonical_forms import lift_to_2d, unify_pooling
from npuc.pipeline import Pass, run_passes
from npuc.targets.easynpu.network.passes import expand_groups
from tests.graphs.checking import pipelines
from tests.graphs.drawn import drawn
from tests.passes.networks import assert_same_meaning


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

    def hook(_name: str, _before: Graph, after: Graph, _seconds: float) -> None:
        met.update(dict.fromkeys(after.tensors))

    last = run_passes(graph, passes, hook)
    made = [name for name in met if name not in graph.tensors]
    inner = set(graph.tensors) - {*graph.inputs, *graph.outputs}
    lost = [name for name in graph.tensors if name in inner and name not in last.tensors]
    stems = [name for name in made if any(name.startswith(each) for each in graph.tensors if each not in lost)]
    return renamed(graph, dict(zip(lost, stems, strict=False))) if lost and stems else None


@pytest.mark.parametrize("pipeline", pipelines())
def test_a_removed_tensor_s_name_is_not_used_again(pipeline: str) -> None:
    tried, passes = 0, pipelines()[pipeline]
    for seed in range(7):
        graph = with_names_of_passes(drawn(seed)[0], passes)
        if graph is None:
            continue
        tried += 1
        assert_same_meaning(graph, run_passes(graph, passes))
    assert tried > 2


def test_a_pass_that_takes_a_name_of_the_model_is_refused() -> None:
    graph = built([Node("Relu", ("x",), ("a",)), Node("Neg", ("a",), ("y",))])

    def careless(each: Graph) -> Graph:
        return rebuild(each, [Node("Abs", ("x",), ("lost",)), Node("Neg", ("lost",), ("y",))])

    with pytest.raises(ModelError, match="lost") as caught:
        run_passes(replace(graph, reserved=graph.reserved | {"lost"}), (careless,))
    assert caught.value.problems[0].code == "E104" and "careless" in str(caught.value)


def test_a_constant_called_as_dense_weights_keeps_its_values() -> None:
    random = np.random.default_rng(0)
    weights, factor = random.standard_normal((4, 2, 1, 1)), random.standard_normal((4, 4, 1, 1))
    conv = Node("Conv", ("x", "w"), ("a",), {"group": 2, "kernel_shape": (1, 1)}, "conv")
    nodes = [conv, Node("Mul", ("a", "a/dense"), ("y",), {}, "mul")]
    constants = {"w": weights.astype(np.float32), "a/dense": factor.astype(np.float32)}
    graph = built(nodes, constants, (4, 4, 3, 3))
    assert_same_meaning(graph, expand_groups(graph))


@pytest.mark.parametrize("op", ["ReduceMean", "Conv"])
def test_what_lifts_a_layer_to_two_dimensions_tells_its_source(op: str) -> None:
    """A refusal names the source; without one, a node of the model with a similar name was sent to the host."""
    attrs = {"ReduceMean": {"axes": (2,), "keepdims": 1}, "Conv": {"kernel_shape": (1,)}}[op]
    constants = {} if op == "ReduceMean" else {"w": np.ones((4, 4, 1), np.float32)}
    layer = Node(op, ("x", *constants), ("y",), attrs, "layer", ("layer",))
    graph = run_passes(built([layer], constants, (1, 4, 8)), (unify_pooling, lift_to_2d))
    assert len(graph.nodes) > 1 and all(node.sources == ("layer",) for node in graph.nodes)


def built(
    nodes: list[Node], constants: Mapping[str, Array] | None = None, shape: tuple[int, ...] = (1, 4)
) -> Graph:
    """A graph from x to y, as a model's."""
    made = build("g", nodes, {"x": TensorType(shape)}, ["y"], constants or {})
    return replace(made, reserved=frozenset(made.tensors))
