"""Roundings limit; where the document's instructions cannot keep a model's steps, they keep its limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.ir import Graph, Node
from npuc.onnx_files.export import to_onnx
from npuc.program import as_loaded
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.spans import spans
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.targets.easynpu.layers.tables import best_table
from tests.compiled import compilation
from tests.passes.networks import network, node

EASYNPU = target("easynpu")


def _rounded(x: str, y: str, scale: float, zero: int = 0, dtype: str = "int8") -> Node:
    return node("FakeQuantize", x, y, scale=scale, zero_point=zero, dtype=dtype)


POOL = node("AveragePool", "b", "y", kernel_shape=(2, 2), strides=(1, 1))
CHAINS: Mapping[str, tuple[Node, ...]] = {
    "unsigned, then signed": (_rounded("x", "a", 0.1, 0, "uint8"), _rounded("a", "b", 0.1), POOL),
    "an odd zero point": (_rounded("x", "b", 0.1, -100), POOL),
    "all values below zero": (_rounded("x", "b", 0.02, 127), POOL),
    "two roundings of one tensor": (_rounded("x", "a", 0.1, 20), _rounded("x", "b", 0.02, -128),
        node("Add", "a b", "y")),
    "a ReLU6 that the rounding is": (node("Conv", "x w", "a", kernel_shape=(1, 1)),
        _rounded("a", "b", 6 / 255, 0, "uint8"), _rounded("x", "c", 0.25), node("Add", "b c", "y")),
}  # fmt: skip


BRANCHING = "two roundings of one tensor"
"""Both are tables; the document has one chain of words only."""


@pytest.mark.parametrize(
    ("chain", "isa"),
    [
        (chain, isa)
        for chain in CHAINS
        for isa in ("extended", "documented")
        if (chain, isa) != (BRANCHING, "documented")
    ],
)
def test_values_beyond_the_limits_of_a_rounding_are_limited(chain: str, isa: str, tmp_path: Path) -> None:
    graph = network((1, 4, 4, 4), "y", *CHAINS[chain], w=(4, 4, 1, 1))
    x = np.linspace(-30, 31, 64, dtype=np.float32).reshape(1, 4, 4, 4)
    model, calibration = tmp_path / "model.onnx", tmp_path / "samples.npz"
    model.write_bytes(to_onnx(graph).SerializeToString())
    data.save(calibration, {"x": x[None]})
    compiled = compilation(Request(model, EASYNPU, Options(flags={"isa": isa}), [calibration])).program
    found = EASYNPU.runner(as_loaded(compiled))({"x": x[None]})["y"]
    (wanted,) = session(onnx.load(model)).run(["y"], {"x": x})
    assert np.abs(found - wanted).max() <= 0.03 * np.abs(wanted).max()


def _tables(graph: Graph, scale: float) -> int:
    """How many tables there are where all tensors have this scale."""
    given = dict.fromkeys(tensors_of(graph.nodes), Steps(scale))
    found = quantise(graph, graph.nodes, {}, tabulate=best_table, given=given)
    return sum(each.op == "IntTable" for each in found.graph.nodes)


@pytest.mark.parametrize(("scale", "tables"), [(0.1, 0), (0.1 * 128 / 127, 0), (0.1 * 1.03, 1), (0.05, 0)])
def test_where_saturation_limits_within_a_step_no_table_is_needed(scale: float, tables: int) -> None:
    assert _tables(network((1, 4, 3, 3), "y", _rounded("x", "y", 0.1)), scale) == tables


@pytest.mark.parametrize(("before", "tables"), [
    (node("Relu", "x", "a"), 0), (node("Clip", "x", "a", min=0.0, max=6.0), 0),
    (node("Clip", "x", "a", min=-6.0, max=6.0), 1), (node("Neg", "x", "a"), 1), (_rounded("x", "a", 0.2, -128), 0),
    (_rounded("x", "a", 0.2, -126), 1),
])  # fmt: skip
def test_where_nothing_lies_beyond_the_limits_no_table_is_needed(before: Node, tables: int) -> None:
    graph = network(
        (1, 4, 3, 3), "y", before, node("Reshape", "a", "b", shape=(1, 2, 6, 3)), _rounded("b", "y", 0.1, -128)
    )
    before_it = _tables(network((1, 4, 3, 3), "a", before), 0.2)
    assert _tables(graph, 0.2) - before_it == tables


def test_a_span_is_of_all_that_a_concatenation_takes() -> None:
    graph = network((1, 4, 3, 3), "y", node("Relu", "x", "a"), _rounded("x", "b", 0.5, 28),
        node("MaxPool", "b", "p", kernel_shape=(1, 1), strides=(1, 1)), node("Concat", "a p", "c", axis=1),
        node("Concat", "c x", "y", axis=1))  # fmt: skip
    found = spans(graph)
    assert (found["a"], found["p"], found["c"]) == ((0.0, np.inf), (-78.0, 49.5), (-78.0, np.inf))
    assert "y" not in found
