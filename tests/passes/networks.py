"""Small graphs for the tests of passes, and what is asserted of every rewritten graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.ir import Array, Attr, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.passes.expansion.images import ImageLimits
from npuc.pipeline import Pass

Shapes = Mapping[str, tuple[int, ...]]


def node(op: str, inputs: str, output: str, **attrs: Attr) -> Node:
    """A node named by its output, made by the ONNX node of that name. `inputs` are separated by blanks."""
    return Node(op, tuple(inputs.split()), tuple(output.split()), attrs, output, (output,))


IMAGES = ImageLimits(lanes=16, channels=256, extent=256, pixels=64)


def network(shape: tuple[int, ...], outputs: str, *nodes: Node, **constants: Any) -> Graph:
    """A graph with the float32 input `x`. Constants are arrays, numbers, or a shape for random weights."""
    random = np.random.default_rng(0)

    def value(given: Any) -> Array:
        if isinstance(given, tuple):
            return random.uniform(0.5, 1.5, given).astype(np.float32)
        return np.asarray(given) if isinstance(given, np.ndarray | np.generic) else np.array(given, np.float32)

    values = {name: value(given) for name, given in constants.items()}
    return build("test", nodes, {"x": TensorType(shape)}, outputs.split(), values)


def operators(graph: Graph) -> list[str]:
    """The operators in order, with their activations."""
    activations = [each.text("activation") for each in graph.nodes]
    return [each.op + (f"+{a}" if a else "") for each, a in zip(graph.nodes, activations, strict=True)]


def feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Normal numbers for float inputs, small integers for others."""
    random = np.random.default_rng(seed)
    types = {name: graph.tensors[name] for name in graph.inputs}
    return {
        name: random.standard_normal(each.shape).astype(np.float32)
        if each.dtype == "float32"
        else random.integers(0, 5, each.shape).astype(each.dtype)
        for name, each in types.items()
    }


def assert_close(expected: Array, found: Array, name: str) -> None:
    """Relative 1e-4 of the largest element: folding reorders float32 sums and products.

    A quantised tensor may differ by one step, where a rounding error meets a tie.
    """
    assert found.shape == expected.shape, name
    if expected.dtype.kind != "f":
        assert np.abs(found.astype(np.int64) - expected.astype(np.int64)).max(initial=0) <= 1, name
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), finite, err_msg=name)
    scale = np.abs(expected[finite]).max(initial=0)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=0, atol=1e-4 * scale + 1e-6, err_msg=name)


def assert_same_meaning(before: Graph, after: Graph, values: Mapping[str, Array] | None = None) -> None:
    """Interface and meaning are the same: every tensor of `after` that bears a name of `before` is that tensor.

    values: the tensors of `before`, with its inputs and constants, if they are known.
    """
    after.check()
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    given = feeds(before) if values is None else {name: values[name] for name in before.inputs}
    shared = [name for name in after.tensors if name in before.tensors]
    expected = values if values is not None else run(before, given, shared)
    found = run(after, given, shared)
    for name in shared:
        assert_close(expected[name], found[name], name)


def becomes(rewrite: Pass, graph: Graph, expected: Sequence[str]) -> Graph:
    """What a pass makes of a graph: these operators, which mean the same and to which it does nothing more."""
    found = rewrite(graph)
    assert operators(found) == [*expected]
    assert_same_meaning(graph, found)
    assert rewrite(found).nodes == found.nodes
    return found


def sources(graph: Graph, output: str) -> Sequence[str]:
    """The ONNX nodes behind the node that writes a tensor."""
    return graph.producers[output].sources
