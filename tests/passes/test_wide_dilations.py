"""wide_dilations."""

import pytest

from npuc.passes.expansion.wide_dilations import SpreadKernels, WideDilations
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


@pytest.mark.parametrize(("factor", "extents"), [(2, (13, 11)), (3, (12, 9)), (2, (8, 8))])
@pytest.mark.parametrize("group", [1, 4])
def test_phases_apart_are_convolutions_of_their_own(factor: int, extents: tuple[int, int], group: int) -> None:
    conv = node(
        "Conv", "x w b", "y", dilations=(4 * factor,) * 2, pads=(7, 8, 9, 8), group=group, activation="Relu"
    )
    graph = network((2, 4, *extents), "y", conv, w=(8, 4 // group, 3, 3), b=(8,))
    found = WideDilations(4, apart=True)(graph)
    convs = [each for each in found.nodes if each.op == "Conv"]
    assert [each.integers("dilations") for each in convs] == [(4, 4)] * factor**2
    assert all(found.shape(each.output)[0] == 2 for each in found.nodes)
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("dilations", "inner"), [((8, 1), (4, 1)), ((2, 12), (2, 4)), ((5, 9), (1, 3)), ((32, 4), (4, 4))]
)
def test_phases_may_differ_between_rows_and_columns(dilations: tuple[int, int], inner: tuple[int, int]) -> None:
    conv = node("Conv", "x w", "y", dilations=dilations, pads=(*dilations, *dilations))
    graph = network((1, 4, 13, 11), "y", conv, w=(6, 4, 3, 3))
    found = WideDilations(4, apart=True)(graph)
    assert {each.integers("dilations") for each in found.nodes if each.op == "Conv"} == {inner}
    assert_same_meaning(graph, found)


def test_phases_that_are_too_many_stay() -> None:
    for dilations in ((36, 36), (1, 36)):
        conv = node("Conv", "x w", "y", dilations=dilations, pads=(36, 36, 36, 36))
        graph = network((1, 4, 13, 13), "y", conv, w=(6, 4, 2, 2))
        assert WideDilations(4, apart=True)(graph) is graph


@pytest.mark.parametrize("dilations", [(2, 2), (1, 3)])
def test_a_dilated_depthwise_kernel_is_spread(dilations: tuple[int, int]) -> None:
    conv = node("Conv", "x w b", "y", dilations=dilations, pads=(2, 3, 1, 0), strides=(1, 2), group=4)
    graph = network((2, 4, 13, 11), "y", conv, w=(4, 1, 3, 3), b=(4,))
    found = SpreadKernels(7)(graph)
    assert found.nodes[0].integers("dilations") == (1, 1)
    assert_same_meaning(graph, found)


def test_only_small_depthwise_kernels_are_spread() -> None:
    for group, dilation, outputs in ((4, 4, 4), (4, 2, 8), (2, 2, 4), (1, 2, 4)):
        conv = node("Conv", "x w", "y", dilations=(dilation, dilation), group=group)
        graph = network((1, 4, 13, 13), "y", conv, w=(outputs, 4 // group, 3, 3))
        assert SpreadKernels(7)(graph) is graph
