"""Maps surrounded by a zero point: as a copy with padding, or by words over a pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from npuc.ir import Attr, Graph
from npuc.ops import build
from npuc.ops.attributes import PADDING, PADS
from npuc.ops.interpreter import run
from npuc.targets.easynpu.layers.rewrites import pads_cheaply, with_borders
from npuc.targets.easynpu.layers.views import views_of
from npuc.targets.easynpu.layers.windows import MapWindow, whole
from tests.passes.networks import network, node

RANDOM = np.random.default_rng(3)


def padded(w: tuple[int, ...], attrs: Mapping[str, Attr], readers: int = 1) -> Graph:
    """An integer graph of one convolution, or several of the same map, that read -128 around it."""
    names = [f"y{number}" for number in range(readers)]
    nodes = [node("IntConv", "x w b s", name, padding=-128, **attrs) for name in names]
    constants = {
        "w": RANDOM.integers(-127, 128, w).astype(np.int8),
        "b": RANDOM.integers(-900, 900, w[0]).astype(np.int32),
        "s": np.full(w[0], 9, np.int8),
    }
    channels = w[1] * int(str(attrs.get("group", 1)))
    x = network((1, channels, 7, 6), "y", node("Relu", "x", "y")).tensors["x"]
    return build("test", nodes, {"x": type(x)(x.shape, "int8")}, names, constants)


@pytest.mark.parametrize(("w", "attrs", "copied"), [
    ((16, 16, 3, 3), {"pads": (1, 1, 1, 1)}, True),
    ((16, 16, 3, 3), {"pads": (0, 1, 1, 0), "strides": (2, 2)}, True),
    ((4, 4, 3, 3), {"pads": (0, 2, 2, 0), "dilations": (2, 2)}, True),
    ((20, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 20}, True),
    ((20, 1, 1, 1), {"pads": (1, 1, 1, 1), "group": 20}, False),
    ((16, 1, 1, 1), {"pads": (1, 1, 1, 1)}, False),
])  # fmt: skip
def test_the_cheaper_of_both_has_the_same_results(
    w: tuple[int, ...], attrs: dict[str, Attr], copied: bool
) -> None:
    graph = padded(w, attrs)
    found = with_borders(graph)
    (conv,) = (each for each in found.nodes if each.output == "y0")
    assert (not any(PADS(conv)) and not PADDING(conv)) is copied
    x = {"x": RANDOM.integers(-128, 128, graph.shape("x")).astype(np.int8)}
    np.testing.assert_array_equal(run(found, x)["y0"], run(graph, x)["y0"])


def test_readers_with_the_same_padding_share_a_copy() -> None:
    graph = with_borders(padded((16, 16, 3, 3), {"pads": (1, 1, 1, 1)}, readers=2))
    assert [each.op for each in graph.nodes] == ["IntPixel", "IntConv", "IntConv", "IntConv"]
    assert len({each.inputs[0] for each in graph.nodes[2:]}) == 1


@pytest.mark.parametrize(("rows", "columns", "inside"), [
    ((0, 9), (0, 8), True), ((1, 8), (1, 7), True), ((2, 9), (0, 8), False), ((0, 7), (0, 8), False),
    ((0, 9), (2, 8), False), ((0, 9), (0, 6), False),
])  # fmt: skip
def test_a_map_lies_in_its_copy_where_that_holds_all_of_it(
    rows: tuple[int, int], columns: tuple[int, int], inside: bool
) -> None:
    """Rows 1..7 and columns 1..6 of the copy are the map."""
    graph = with_borders(padded((16, 16, 3, 3), {"pads": (1, 1, 1, 1)}))
    copy = graph.nodes[1].output
    windows = {name: whole(graph, name) for name in graph.tensors if name not in graph.constants}
    views = views_of(graph, graph.nodes, windows | {copy: MapWindow((0, 16), rows, columns)})
    assert (views.tensors["x"].buffer == copy) is inside


@pytest.mark.parametrize("name", ["x/padded1_1_1_1_-128", "x/padded1_1_1_1_-128/w", "padding/-128"])
def test_a_tensor_of_the_network_may_have_the_name_of_a_copy(name: str) -> None:
    graph = padded((16, 16, 3, 3), {"pads": (1, 1, 1, 1)})
    conv = replace(graph.nodes[0], outputs=(name,))
    graph = build("test", [conv], {"x": graph.tensors["x"]}, (name,), graph.constants)
    x = {"x": RANDOM.integers(-128, 128, graph.shape("x")).astype(np.int8)}
    np.testing.assert_array_equal(run(with_borders(graph), x)[name], run(graph, x)[name])


@pytest.mark.parametrize(
    ("w", "group", "cheap"),
    [((16, 16, 3, 3), 1, True), ((16, 3, 3, 3), 1, True), ((14, 3, 3, 3), 1, False), ((16, 1, 3, 3), 16, False)],
)
def test_a_copy_is_cheap_beside_twelve_times_its_cycles(w: tuple[int, ...], group: int, cheap: bool) -> None:
    """Two words of one tap: 27 products for each of 16 outputs of 3 channels are 13.5 times a copy."""
    conv = node("Conv", "x w", "y", pads=(1, 1, 1, 1), group=group)
    graph = network((1, w[1] * group, 8, 8), "y", conv, w=w)
    assert pads_cheaply(graph, graph.nodes[0]) is cheap
