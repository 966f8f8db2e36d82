"""gemm_to_conv."""

from __future__ import annotations

from npuc.passes.expansion.gemm_to_conv import GemmToConv, gemm_to_conv
from tests.passes.networks import assert_same_meaning, network, node, operators


def test_a_kernel_covers_the_map_behind_a_flattened_one() -> None:
    flat = node("Reshape", "x", "a", shape=(1, 3 * 2 * 48))
    before = network((1, 3, 2, 48), "y", flat, node("Gemm", "a w", "y"), w=(5, 288))
    after = gemm_to_conv(before)
    assert after.shape(after.producers[after.nodes[-1].inputs[0]].inputs[1]) == (5, 3, 2, 48)
    assert_same_meaning(before, after)


def test_a_map_larger_than_a_kernel_may_be_is_folded() -> None:
    flat = node("Reshape", "x", "a", shape=(1, 3 * 2 * 48))
    before = network((1, 3, 2, 48), "y", flat, node("Gemm", "a w", "y"), w=(5, 288))
    after = GemmToConv(32)(before)
    assert operators(after) == ["Reshape", "Reshape", "Conv", "Reshape"]
    assert max(after.shape(after.nodes[2].inputs[1])[2:]) <= 32
    assert_same_meaning(before, after)
