"""PDP's average: the widths of the RTL, and reciprocals with which nothing wraps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.targets.nvdla.model.arithmetic import ONE, WIDTHS, average_sums, multiply_reciprocal
from npuc.targets.nvdla.network.passes import AveragesIntoConvs
from npuc.targets.nvdla.quantisation.integers import reciprocals

INT8, INT16 = WIDTHS[1], WIDTHS[2]


@pytest.mark.parametrize(
    ("product", "bits", "found"),
    [
        (1023 * ONE + 0x7FFF, 11, 1023),
        (1023 * ONE + 0x8000, 11, -1024),  # the carry of rounding reaches the sign
        (1024 * ONE, 11, 0),  # a positive product keeps its low 10 bits
        (-1024 * ONE, 11, -1024),
        (-1025 * ONE, 11, 1023),  # a negative one its low 11
        (127 * ONE + 0x8000, 8, -128),
        (-3 * ONE - 0x8000, 8, -4),  # halves go away from zero
        (3 * ONE + 0x8000, 8, 4),
    ],
)
def test_a_product_keeps_the_bits_of_the_reference(product: int, bits: int, found: int) -> None:
    assert multiply_reciprocal(np.array([product]), 1, bits).tolist() == [found]


@pytest.mark.parametrize("widths", [INT8, INT16], ids=["int8", "int16"])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7, 8, 9, 12, 16, 25, 36, 49, 56, 64])
@pytest.mark.parametrize("ratio", [1.0, 0.99, 0.7, 0.5, 1 / 3, 0.02])
def test_no_sum_of_any_elements_wraps(ratio: float, taps: int, widths: object) -> None:
    assert widths in (INT8, INT16)
    kept = INT8 if widths is INT8 else INT16
    factors = reciprocals(ratio, taps, kept)
    assert factors is not None
    most = 1 << (kept.element - 1)
    sums = np.linspace(-most * taps, (most - 1) * taps, 20_001).astype(np.int64)
    exact = sums * ratio / taps
    assert np.abs(average_sums(sums, factors, kept) - exact).max() < (0.6 if kept is INT8 else 4)


def test_an_average_that_would_have_to_saturate_has_no_reciprocals() -> None:
    assert reciprocals(1.01, 64, INT8) is None
    assert reciprocals(2.0, 4, INT8) is None
    assert reciprocals(1 / 500, 4, INT8) is None  # too small to be precise


def test_up_to_eight_elements_are_rounded_once() -> None:
    factors = reciprocals(1.0, 8, INT8)
    assert factors == (ONE, ONE // 8)
    sums = np.arange(-1024, 1017)
    away = np.sign(sums) * np.floor(np.abs(sums) / 8 + 0.5)
    np.testing.assert_array_equal(average_sums(sums, (ONE, ONE // 8), INT8), away)


# averages_into_convs: the mean of a map and the convolution behind it as averages of blocks and a larger one


def classifier(side: tuple[int, int], kernels: int, readers: int = 1, kernel: int = 1) -> Graph:
    """The mean of a map of six channels, and a convolution or two of it."""
    w = np.random.default_rng(0).standard_normal((kernels, 6, kernel, kernel)).astype(np.float32)
    nodes = [Node("GlobalAveragePool", ("x",), ("m",), {}, "mean")]
    nodes += [Node("Conv", ("m", "w"), (f"y{each}",), {}, f"conv{each}") for each in range(readers)]
    return build("g", nodes, {"x": TensorType((1, 6, *side))}, [f"y{each}" for each in range(readers)], {"w": w})


@pytest.mark.parametrize(
    ("side", "block"), [((8, 8), (4, 4)), ((8, 4), (2, 4)), ((6, 6), (3, 3)), ((1, 8), (1, 2)), ((7, 7), (1, 7))]
)
def test_the_convolution_adds_up_averages_of_blocks(side: tuple[int, int], block: tuple[int, int]) -> None:
    graph = classifier(side, 10)
    after = AveragesIntoConvs()(graph)
    assert [node.op for node in after.nodes] == ["AveragePool", "Conv"]
    assert int(np.prod(after.nodes[0].integers("kernel_shape"))) == int(np.prod(block))
    x = np.random.default_rng(1).standard_normal(graph.shape("x")).astype(np.float32) + 1
    np.testing.assert_allclose(run(after, {"x": x})["y0"], run(graph, {"x": x})["y0"], rtol=1e-4, atol=1e-5)
    assert AveragesIntoConvs()(after) is after


@pytest.mark.parametrize(
    "graph",
    [classifier((8, 8), 200), classifier((8, 8), 10, readers=2), classifier((12, 8), 10), classifier((1, 1), 10)],
    ids=["many weights", "two readers", "beyond the unit", "nothing to average"],
)
def test_other_averages_stay(graph: Graph) -> None:
    assert AveragesIntoConvs()(graph) is graph


@pytest.mark.parametrize("steps", [{}, {"dilations": (2, 2), "strides": (3, 1)}, {"strides": (1, 2)}])
def test_the_kernel_that_a_convolution_names_grows_with_its_weights(steps: dict[str, tuple[int, int]]) -> None:
    graph = classifier((8, 8), 10)
    named = replace(graph, nodes=(graph.nodes[0], graph.nodes[1].with_attrs(kernel_shape=(1, 1), **steps)))
    after = AveragesIntoConvs()(named)
    after.check()
    assert after.nodes[1].integers("kernel_shape") == (4, 1)
    x = np.random.default_rng(1).standard_normal(graph.shape("x")).astype(np.float32) + 1
    np.testing.assert_allclose(run(after, {"x": x})["y0"], run(graph, {"x": x})["y0"], rtol=1e-4, atol=1e-5)


def test_a_convolution_with_padding_stays() -> None:
    graph = classifier((8, 8), 10)
    conv = graph.nodes[1].with_attrs(pads=(1, 1, 1, 1), strides=(3, 3))
    padded = build("g", [graph.nodes[0], conv], {"x": graph.tensors["x"]}, ["y0"], graph.constants)
    assert AveragesIntoConvs()(padded) is padded
