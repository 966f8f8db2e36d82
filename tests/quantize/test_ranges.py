"""The bound of accumulators: reached by the worst input, and never exceeded."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.integer import convolve
from npuc.quantize.arithmetic.ranges import bound


def _graph(node: Node, *inputs: str, **constants: Array) -> Graph:
    return build("g", [node], {name: TensorType((1, 2, 3, 3), "int8") for name in inputs}, node.outputs, constants)


@pytest.mark.parametrize("padding", [0, -128])
def test_a_convolution_reaches_its_bound_and_never_exceeds_it(padding: int) -> None:
    random = np.random.default_rng(0)
    w = random.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    bias, shift = np.array([5, -700, 90_000], np.int32), np.array([0, 1, 9], np.int8)
    attrs = {"pads": (1, 1, 1, 1), "padding": padding}
    node = Node("IntConv", ("x", "w", "b", "s"), ("y",), attrs, "y")
    limit = bound(_graph(node, "x", w=w, b=bias, s=shift), node)
    assert limit is not None
    reached = 0
    for channel in range(3):
        for sign in (-1, 1):
            worst = np.where(w[channel] * sign > 0, -128, 127).astype(np.int8)[None]
            acc = convolve(node, worst, w)[0, channel] + bias[channel]
            reached = max(reached, int(np.abs(acc).max()) + ((1 << int(shift[channel])) >> 1))
    assert reached <= limit
    if not padding:
        assert reached > 0.98 * limit  # 127 is not 128


@pytest.mark.parametrize(
    ("op", "shift", "expected"), [("IntAdd", 0, 256), ("IntAdd", 3, 260), ("IntMul", 7, 16_448)]
)
def test_sums_and_products(op: str, shift: int, expected: int) -> None:
    node = Node(op, ("x", "z"), ("y",), {"shift": shift}, "y")
    assert bound(_graph(node, "x", "z"), node) == expected


def test_a_table_is_bounded_at_the_ends_of_its_segments() -> None:
    starts, a, b = np.array([-128, 10], np.int8), np.array([-3, 2], np.int8), np.array([7, -1000], np.int32)
    node = Node("IntTable", ("x", "t", "a", "b"), ("y",), {"shift": 2, "error_lsb": 0}, "y")
    values = np.arange(-128, 128)
    exact = np.abs(np.where(values < 10, -3 * values + 7, 2 * values - 1000)).max() + 2
    assert bound(_graph(node, "x", t=starts, a=a, b=b), node) == exact


def test_a_sum_with_factors_reaches_its_bound() -> None:
    factors, bias = np.array([-90, 127], np.int8), np.array(-70_000, np.int32)
    node = Node("IntSum", ("x", "z", "w", "b"), ("y",), {"shift": 6, "relu": 0}, "y")
    worst = abs(-90 * 127 + 127 * -128 - 70_000) + 32
    limit = bound(_graph(node, "x", "z", w=factors, b=bias), node)
    assert limit is not None
    assert worst <= limit < 1.01 * worst  # 127 is not 128


def test_slopes_are_bounded_on_the_side_that_reaches_further() -> None:
    values = {"p": [64, 1], "ps": [6, 0], "n": [-128, 100], "ns": [0, 8]}
    constants = {name: np.array(value, np.int8) for name, value in values.items()}
    node = Node("IntPRelu", ("x", *constants), ("y",), {}, "y")
    assert bound(_graph(node, "x", **constants), node) == 128 * 128  # a slope of -128 without a shift


def test_a_movement_has_none() -> None:
    node = Node("MaxPool", ("x",), ("y",), {"kernel_shape": (2, 2)}, "y")
    assert bound(_graph(node, "x"), node) is None
