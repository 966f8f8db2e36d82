"""What is behind a convolution's results, against onnxruntime; and when a function counts as behind them."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.export_onnx import to_onnx
from npuc.ir import Array, Graph, Node
from npuc.quantize.improvement.activations import Behind, behind
from npuc.reference import session
from tests.passes.networks import network, node

SCALE = 0.0625


def graph(*nodes: Node, outputs: str = "y") -> Graph:
    """A convolution of weight 1 and these nodes."""
    return network((1, 1, 1, 41), outputs, *nodes, w=np.ones((1, 1, 1, 1), np.float32))


def by_onnxruntime(found: Graph, results: Array) -> Array:
    """The network's values for these results of its convolution, in steps of them."""
    x = (results * SCALE).astype(np.float32).reshape(1, 1, 1, -1)
    return session(to_onnx(found)).run(None, {"x": x})[0].ravel() / SCALE


@pytest.mark.parametrize(
    "function",
    [
        node("HardSwish", "c", "y"),
        node("Sigmoid", "c", "y"),
        node("Gelu", "c", "y"),
        node("LeakyRelu", "c", "y", alpha=0.1),
        node("Clip", "c", "y", min=-1.0, max=2.0),
    ],
)
def test_a_function_behind_a_convolution_is_tabulated(function: Node) -> None:
    found = graph(node("Conv", "x w", "c"), function)
    made = behind(found, found.nodes[0], SCALE, -128, 127)
    results = np.linspace(-120, 120, 41) // 0.125 * 0.125
    expected = by_onnxruntime(found, results)
    assert np.allclose(made(results.astype(np.float32)), expected, atol=1e-4)
    steps = 1.0
    slope = (by_onnxruntime(found, results + steps) - by_onnxruntime(found, results - steps)) / 2
    assert np.allclose(made.slope(results.astype(np.float32)), slope, atol=1e-4)


@pytest.mark.parametrize(
    ("attributes", "results", "expected"),
    [
        ({}, [-129, -128, 127, 128], [-128, -128, 127, 127]),
        ({"activation": "Relu"}, [-3, 0, 3, 128], [0, 0, 3, 127]),
        ({"activation": "Clip", "min": 0.0, "max": 4.0}, [-3, 0, 63, 65], [0, 0, 63, 64]),
    ],
)
def test_saturation_and_a_fused_activation_limit_the_results(
    attributes: dict[str, str | float], results: list[float], expected: list[float]
) -> None:
    found = graph(node("Conv", "x w", "y", **attributes))
    made = behind(found, found.nodes[0], SCALE, -128, 127)
    assert made(np.float32(results)).tolist() == expected


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ((node("HardSwish", "c", "h"), node("Add", "c h", "y")), "y"),  # another reader
        ((node("HardSwish", "c", "y"),), "c y"),  # the results are given out
        ((node("Add", "c x", "y"),), "y"),  # not a function of one element
    ],
)
def test_without_a_function_that_alone_reads_them_results_count_as_they_are(
    nodes: tuple[Node, ...], outputs: str
) -> None:
    found = graph(node("Conv", "x w", "c"), *nodes, outputs=outputs)
    assert behind(found, found.nodes[0], SCALE, -128, 127) == Behind(-128, 127)


def test_results_without_limits_have_no_table() -> None:
    found = graph(node("Conv", "x w", "c"), node("HardSwish", "c", "y"))
    assert behind(found, found.nodes[0], SCALE, -np.inf, np.inf) == Behind(-np.inf, np.inf)


def test_a_function_without_a_value_somewhere_is_left_out() -> None:
    found = graph(node("Conv", "x w", "c"), node("Log", "c", "y"))
    assert behind(found, found.nodes[0], SCALE, -128, 127).table is None


@pytest.mark.parametrize(("result", "slope"), [(-2, 0), (-1, 0), (0, 0.5), (1, 1), (126, 1), (127, 0.5), (128, 0)])
def test_a_slope_is_taken_over_a_step_to_either_side(result: float, slope: float) -> None:
    assert Behind(0, 127).slope(np.float32([result])).tolist() == [slope]
