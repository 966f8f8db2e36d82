"""wide_dilations."""

import pytest

from npuc.targets.bm1684.network.wide_dilations import WideDilations
from tests.passes.networks import assert_same_meaning, network, node, operators

MOVE = ["Reshape", "Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("dilations", "pads", "inner"),
    [
        ((6, 6), (6, 6, 6, 6), (3, 3)),
        ((8, 1), (8, 1, 8, 1), (4, 1)),
        ((5, 3), (0, 2, 3, 4), (1, 3)),
        ((6, 9), (1, 9, 9, 9), (3, 3)),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_a_wide_dilation_becomes_a_permitted_one(
    dilations: tuple[int, int], pads: tuple[int, ...], inner: tuple[int, int], group: int
) -> None:
    conv = node("Conv", "x w b", "y", dilations=dilations, pads=pads, group=group, activation="Relu")
    graph = network((2, 4, 13, 11), "y", conv, w=(6, 4 // group, 3, 3), b=(6,))
    found = WideDilations(4)(graph)
    assert operators(found) == ["Pad", *MOVE, "Conv+Relu", *MOVE, "Slice"]
    assert found.nodes[4].integers("dilations") == inner
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("attrs", [{"dilations": (4, 4)}, {"dilations": (5, 5), "strides": (2, 1)}])
def test_other_convolutions_stay(attrs: dict[str, tuple[int, int]]) -> None:
    graph = network((1, 4, 13, 13), "y", node("Conv", "x w", "y", **attrs), w=(6, 4, 3, 3))
    assert WideDilations(4)(graph) is graph
