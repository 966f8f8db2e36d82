"""gemm_to_conv."""

from __future__ import annotations

import pytest

from npuc.passes.expansion.gemm_to_conv import GemmToConv
from tests.passes.networks import IMAGES, assert_same_meaning, network, node, operators


def test_a_kernel_covers_the_map_behind_a_flattened_one() -> None:
    flat = node("Reshape", "x", "a", shape=(1, 3 * 2 * 48))
    before = network((1, 3, 2, 48), "y", flat, node("Gemm", "a w", "y"), w=(5, 288))
    after = GemmToConv(IMAGES)(before)
    assert after.shape(after.producers[after.nodes[-1].inputs[0]].inputs[1]) == (5, 3, 2, 48)
    assert_same_meaning(before, after)


def test_a_map_larger_than_a_kernel_may_be_is_folded() -> None:
    flat = node("Reshape", "x", "a", shape=(1, 3 * 2 * 48))
    before = network((1, 3, 2, 48), "y", flat, node("Gemm", "a w", "y"), w=(5, 288))
    after = GemmToConv(IMAGES, 32)(before)
    assert operators(after) == ["Reshape", "Reshape", "Conv", "Reshape"]
    assert max(after.shape(after.nodes[2].inputs[1])[2:]) <= 32
    assert_same_meaning(before, after)


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (3, 2, 2, 2)])
def test_rows_that_are_no_images_are_folded_by_themselves(shape: tuple[int, ...]) -> None:
    """Three rows of eight are no kernel over one image of 24 elements; over three images they are."""
    before = network(shape, "y", node("Reshape", "x", "a", shape=(3, 8)), node("Gemm", "a w", "y"), w=(5, 8))
    after = GemmToConv(IMAGES, batches=True)(before)
    conv = next(each for each in after.nodes if each.op == "Conv")
    assert after.shape(conv.inputs[1]) == (5, *(shape[1:] if shape[0] == 3 else (8, 1, 1)))
    assert_same_meaning(before, after)


def test_several_rows_are_images_only_where_asked() -> None:
    before = network((3, 8), "y", node("Gemm", "x w", "y"), w=(5, 8))
    assert operators(GemmToConv(IMAGES)(before)) == ["Gemm"]
    assert "Conv" in operators(GemmToConv(IMAGES, batches=True)(before))
