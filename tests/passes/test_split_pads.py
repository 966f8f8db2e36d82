"""Padding that a target does not have is added by a Pad in front of the convolution."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.passes.cleanup.split_pads import SplitPads
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

W = (np.random.default_rng(0).standard_normal((4, 2, 3, 41)) + 0.1).astype(np.float32)


@pytest.mark.parametrize("pads", [(1, 19, 1, 20), (1, 19, 1, 0), (17, 0, 0, 16)])
def test_only_what_is_too_much_is_added_in_front(pads: tuple[int, ...]) -> None:
    graph = network((1, 2, 5, 60), "y", node("Conv", "x w", "y", pads=pads, strides=(1, 2)), w=W)
    found = SplitPads(15)(graph)
    assert operators(found) == ["Pad", "Conv"] and sources(found, "y") == ("y",)
    assert found.nodes[1].attrs["pads"] == tuple(min(side, 15) for side in pads)
    assert_same_meaning(graph, found)
    assert SplitPads(15)(found) is found


def test_padding_that_the_target_has_stays_in_the_convolution() -> None:
    graph = network((1, 2, 5, 60), "y", node("Conv", "x w", "y", pads=(1, 15, 1, 15)), w=W)
    assert SplitPads(15)(graph) is graph
