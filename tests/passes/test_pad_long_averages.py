"""pad_long_averages."""

from __future__ import annotations

import pytest

from npuc.ir import Attr
from npuc.passes.expansion.pad_long_averages import PadLongAverages
from npuc.passes.expansion.split_average_pool import Limits
from tests.passes.networks import assert_same_meaning, network, node, operators

pad_long_averages = PadLongAverages(Limits(positions=64, extent=32, stride=8))


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((1, 3, 1, 61), ["AveragePool", "Conv"]),
        ((1, 3, 197, 1), ["AveragePool", "Conv"]),
        ((1, 3, 5, 43), ["AveragePool", "Conv", "AveragePool"]),
        ((1, 2, 37, 41), ["AveragePool", "Conv", "AveragePool", "Conv"]),
        ((1, 2, 2, 99), ["AveragePool", "Conv", "AveragePool"]),
        ((1, 2, 1, 2003), ["AveragePool", "AveragePool", "Conv"]),
        ((1, 2, 1, 2000), ["AveragePool", "AveragePool", "Conv"]),
    ],
)
def test_the_mean_of_pieces_is_that_of_all_elements(shape: tuple[int, ...], found: list[str]) -> None:
    before = network(shape, "y", node("GlobalAveragePool", "x", "y"))
    after = pad_long_averages(before)
    assert operators(after) == found
    for each in after.nodes:
        kernel = each.integers("kernel_shape", after.shape(each.inputs[1])[2:] if each.op == "Conv" else ())
        assert max(kernel) <= (37 if each is after.nodes[-1] else 32)
    assert_same_meaning(before, after)
    assert pad_long_averages(after) is after


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((1, 3, 24, 24), {"kernel_shape": (24, 24)}),
        ((1, 3, 64, 64), {"kernel_shape": (64, 64)}),
        ((1, 3, 1, 61), {"kernel_shape": (1, 59)}),
        ((1, 3, 1, 61), {"kernel_shape": (1, 63), "pads": (0, 1, 0, 1)}),
    ],
    ids=["small", "equal pieces", "more windows", "padded"],
)
def test_other_averages_stay(shape: tuple[int, ...], attrs: dict[str, Attr]) -> None:
    before = network(shape, "y", node("AveragePool", "x", "y", **attrs))
    assert pad_long_averages(before) is before
