"""IntTable and IntPRelu: numpy's meaning against onnxruntime's reading of the exported formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npuc.errors import ModelError
from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.quantize.arithmetic.tables import SegmentTable, domains
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import tensors_of
from npuc.targets.easynpu.layers.tables import best_table
from tests.passes.networks import network, node

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]
EVERY = np.arange(-128, 128).astype(np.int8)


def graph(op: str, shape: tuple[int, ...], constants: Mapping[str, Array], **attrs: int) -> Graph:
    nodes = [Node(op, ("x", *constants), ("y",), attrs, op)]
    return build("g", nodes, {"x": TensorType(shape, "int8")}, ("y",), dict(constants))


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Array], int]:
    """Constants of a table with 1 to 16 segments, and its shift."""
    count = draw(st.integers(1, 16))
    starts = draw(st.lists(st.integers(-127, 127), min_size=count - 1, max_size=count - 1, unique=True))
    shift = draw(st.integers(0, 31))
    reach = min(1 << (shift + 8), (1 << 31) - (1 << 15))
    bytes_of = st.lists(st.integers(-128, 127), min_size=count, max_size=count)
    offsets = st.lists(st.integers(-reach, reach), min_size=count, max_size=count)
    return {
        "starts": np.array([-128, *sorted(starts)], np.int8),
        "a": np.array(draw(bytes_of), np.int8),
        "b": np.array(draw(offsets), np.int32),
    }, shift


@given(tables())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_means_the_same_to_onnxruntime(
    onnxruntime_values: Reference, table: tuple[dict[str, Array], int]
) -> None:
    constants, shift = table
    found = graph("IntTable", (1, 4, 8, 8), constants, shift=shift)
    feeds = {"x": EVERY.reshape(1, 4, 8, 8)}
    model = to_onnx(found)
    assert "GatherElements" in [each.op_type for each in model.graph.node]  # several times as fast as Gather
    np.testing.assert_array_equal(run(found, feeds)["y"], onnxruntime_values(model, feeds)["y"])


@given(st.integers(0, 2**32 - 1), st.sampled_from([(1, 3, 16, 16), (1, 3)]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slopes_mean_the_same_to_onnxruntime(
    onnxruntime_values: Reference, seed: int, shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(seed)
    names = ("positive", "positive_shift", "negative", "negative_shift")
    constants = {
        name: random.integers(*((0, 15) if name.endswith("shift") else (-128, 128)), 3).astype(np.int8)
        for name in names
    }
    found = graph("IntPRelu", shape, constants)
    values = np.tile(EVERY.reshape(16, 16), (3, 1, 1)) if len(shape) == 4 else random.choice(EVERY, 3)
    feeds = {"x": values.reshape(shape)}
    expected = onnxruntime_values(to_onnx(found), feeds)["y"]
    np.testing.assert_array_equal(run(found, feeds)["y"], expected)


def test_segments_of_different_number_are_refused() -> None:
    constants = {"starts": np.array([-128, 0], np.int8), "a": np.zeros(2, np.int8), "b": np.zeros(1, np.int32)}
    with pytest.raises(ModelError, match="has shape"):
        graph("IntTable", (1, 4), constants, shift=0)


def test_slopes_for_another_number_of_channels_are_refused() -> None:
    constants = {name: np.zeros(3, np.int8) for name in "abcd"}
    with pytest.raises(ModelError, match="has shape"):
        graph("IntPRelu", (1, 4, 2, 2), constants)


def test_saturation_outside_the_domain_of_the_reader_costs_nothing() -> None:
    """x histograms over -100..10; tanh is flat beyond 3.5, so the scale is fine as if x stayed within."""
    float_graph = network((1, 1, 100, 10), "y", node("Tanh", "x", "y"))
    x = np.linspace(-100, 10, 1000, dtype=np.float32).reshape(1, 1, 100, 10)
    limits = domains(float_graph, float_graph.nodes)
    assert limits == {"x": (-3.5, 3.5)}
    found = histograms(float_graph, [{"x": x}], tensors_of(float_graph.nodes), limits)
    scales = quantise(float_graph, float_graph.nodes, found, "mse", tabulate=best_table).scales
    assert 2.5 < 127 * scales["x/int8"] < 4.5


def test_another_reader_lifts_the_limits() -> None:
    add = node("Add", "x t", "y")
    float_graph = network((1, 1, 4, 4), "y", node("Tanh", "x", "t"), add)
    assert domains(float_graph, float_graph.nodes) == {}


def test_the_target_makes_the_table_from_both_scales() -> None:
    seen: list[Array] = []

    def tabulate(values: Array) -> SegmentTable:
        seen.append(values)
        return best_table(values)

    float_graph = network((1, 1, 8, 8), "y", node("LeakyRelu", "x", "y", alpha=0.5))
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    found = histograms(float_graph, [{"x": x}], tensors_of(float_graph.nodes))
    scales = quantise(float_graph, float_graph.nodes, found, "mse", tabulate=tabulate).scales
    inputs = np.arange(-128, 128) * scales["x/int8"]
    np.testing.assert_allclose(seen[0], np.where(inputs < 0, inputs / 2, inputs) / scales["y/int8"], rtol=1e-6)
