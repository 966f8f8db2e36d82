"""What operators demand of scales: which may not saturate, which are equal, which are powers of two."""

from __future__ import annotations

import pytest

from npuc.ir import Node
from npuc.quantize.scales.constraints import constraints_of, equal_scales
from tests.passes.networks import network, node

CONV = node("Conv", "x w", "a")


@pytest.mark.parametrize(
    "mover",
    [
        node("Transpose", "a", "y", perm=(0, 2, 3, 1)),
        node("MaxPool", "a", "y", kernel_shape=(2, 2)),
        node("AveragePool", "a", "y", kernel_shape=(2, 2)),
    ],
    ids=lambda each: each.op,
)
def test_what_is_only_moved_or_averaged_into_an_output_does_not_saturate(mover: Node) -> None:
    graph = network((1, 4, 6, 6), "y", CONV, mover, w=(4, 4, 1, 1))
    assert constraints_of(graph, graph.nodes).unsaturated == {"a", "y"}
    read = network((1, 4, 6, 6), "z", CONV, mover, node("Sigmoid", "y", "z"), w=(4, 4, 1, 1))
    assert constraints_of(read, read.nodes).unsaturated == {"z"}


def test_what_the_hosts_function_of_an_output_reads_does_not_saturate() -> None:
    graph = network((1, 4, 6, 6), "y", CONV, node("Sigmoid", "a", "y"), w=(4, 4, 1, 1))
    assert constraints_of(graph, graph.nodes).unsaturated == {"y"}
    assert constraints_of(graph, graph.nodes[:1]).unsaturated == {"a", "y"}


def test_a_relu_has_the_scale_of_its_input_unless_that_is_rounded_to_steps_of_its_own() -> None:
    steps = {"scale": 0.5, "zero_point": 0, "dtype": "int8"}
    plain = network((1, 4, 6, 6), "y", CONV, node("Relu", "a", "y"), w=(4, 4, 1, 1))
    assert equal_scales(plain, plain.nodes) == (("a", "y"),)
    for chain in (
        (node("FakeQuantize", "a", "f", **steps), node("Relu", "f", "y")),
        (node("Relu", "a", "r"), node("FakeQuantize", "r", "y", **steps)),
    ):
        graph = network((1, 4, 6, 6), "y", CONV, *chain, w=(4, 4, 1, 1))
        assert equal_scales(graph, graph.nodes) == ()


@pytest.mark.parametrize("operands", ["g a", "a g"])
def test_the_smaller_operand_of_a_product_has_a_power_of_two(operands: str) -> None:
    gate = node("GlobalAveragePool", "a", "g"), node("Mul", operands, "y")
    graph = network((1, 4, 6, 6), "y", CONV, *gate, w=(4, 4, 1, 1))
    assert constraints_of(graph, graph.nodes).powers == ("g",)
