"""What enlarges or shrinks maps by moving elements, for machines that interleave: against the graph before."""

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Attr, Graph
from npuc.onnx_files.export import to_onnx
from npuc.passes.expansion.conv_transpose_to_convs import conv_transpose_to_phases
from npuc.targets.nvdla.network.enlargements_to_interleaves import enlargements_to_interleaves
from npuc.targets.nvdla.network.passes import space_to_depth_to_convs
from tests.conftest import Reference
from tests.passes.networks import assert_close, assert_same_meaning, feeds, network, node, operators

FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("kernel", "attrs", "phases"),
    [
        ((2, 2), {"strides": (2, 2)}, (2, 2)),
        ((3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, (2, 2)),
        ((5, 5), {"strides": (2, 2), "pads": (0, 1, 2, 3)}, (2, 2)),
        ((3, 6), {"strides": (2, 3), "pads": (1, 2, 0, 1)}, (2, 3)),
        ((1, 1), {"strides": (2, 2)}, (2, 2)),
        ((3, 2), {"strides": (2, 4), "dilations": (3, 6), "output_padding": (1, 3)}, (2, 4)),
        ((4, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}, (2, 1)),
        ((3, 3), {}, (1, 1)),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_a_transposed_convolution_has_a_convolution_for_each_row_and_column_within_a_step(
    kernel: tuple[int, int],
    attrs: dict[str, Attr],
    phases: tuple[int, int],
    group: int,
    onnxruntime_values: Reference,
) -> None:
    w = noise(4, 6 // group, *kernel)
    transpose = node("ConvTranspose", "x w b", "y", group=group, activation="Relu", **attrs)
    graph = network((2, 4, 4, 5), "y", transpose, w=w, b=noise(6))
    found = conv_transpose_to_phases(graph)
    rows, columns = phases
    interleaves = (columns if rows > 1 else 0) + (columns > 1)
    assert operators(found) == ["Conv+Relu"] * (rows * columns) + ["Interleave"] * interleaves
    assert_same_meaning(graph, found)
    assert conv_transpose_to_phases(found) is found
    given = feeds(graph)
    assert_close(onnxruntime_values(to_onnx(found), given)["y"], run(graph, given)["y"], "y")


def test_of_fewer_lines_than_a_step_only_those_are_computed() -> None:
    graph = network((1, 4, 1, 5), "y", node("ConvTranspose", "x w", "y", strides=(3, 2)), w=noise(4, 6, 1, 2))
    found = conv_transpose_to_phases(graph)
    assert operators(found) == ["Conv"] * 2 + ["Interleave"]
    assert_same_meaning(graph, found)


def _depth(mode: str, channels: int) -> Graph:
    nodes = node("Conv", "x w b", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode=mode)
    return network((1, 3, 4, 5), "y", *nodes, w=noise(channels, 3, 2, 2), b=noise(channels))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_a_convolution_gives_the_phases_of_depth_to_space_one_by_one(mode: str) -> None:
    graph = _depth(mode, 12)
    found = enlargements_to_interleaves(graph)
    assert operators(found) == ["Conv"] * 4 + ["Interleave"] * 3
    assert_same_meaning(graph, found)
    assert enlargements_to_interleaves(found) is found


@pytest.mark.parametrize(
    ("mode", "channels", "taken"), [("DCR", 64, "Slice"), ("DCR", 12, "Conv"), ("CRD", 64, "Conv")]
)
def test_phases_of_another_map_are_slices_where_they_begin_with_a_word(
    mode: str, channels: int, taken: str
) -> None:
    nodes = node("Sigmoid", "x", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode=mode)
    graph = network((1, channels, 4, 5), "y", *nodes)
    found = enlargements_to_interleaves(graph)
    assert operators(found) == ["Sigmoid"] + [taken] * 4 + ["Interleave"] * 3
    assert_same_meaning(graph, found)


def test_joined_phases_are_interleaved_as_they_are() -> None:
    nodes = [node("Sigmoid", "x", "a"), node("Tanh", "x", "b"), node("Concat", "a b b a", "j", axis=1)]
    graph = network((1, 3, 4, 5), "y", *nodes, node("DepthToSpace", "j", "y", blocksize=2))
    found = enlargements_to_interleaves(graph)
    assert operators(found) == ["Sigmoid", "Tanh"] + ["Interleave"] * 3
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", "Sigmoid"])
def test_an_activation_behind_phases_becomes_that_of_their_convolutions(activation: str) -> None:
    conv, spread = node("Conv", "x w", "a"), node("DepthToSpace", "a", "d", blocksize=2)
    last = node(activation, "d s" if activation == "PRelu" else "d", "y")
    graph = network((1, 3, 4, 5), "y", conv, spread, last, w=noise(12, 3, 2, 2), s=noise(3, 1, 1))
    found = enlargements_to_interleaves(graph)
    taken = activation != "Sigmoid"
    assert operators(found).count(activation) == (4 if taken else 1)
    assert (found.nodes[-1].op == "Interleave") is taken
    assert_same_meaning(graph, found)


def test_an_activation_behind_repeated_pixels_is_computed_once_for_each() -> None:
    resize = node("Resize", "a", "b", sizes=(1, 3, 8, 10), scales=(1.0, 1.0, 2.0, 2.0), **FLOOR)
    graph = network((1, 3, 4, 5), "y", node("Sigmoid", "x", "a"), resize, node("Relu", "b", "y"))
    found = enlargements_to_interleaves(graph)
    assert operators(found) == ["Sigmoid", "Relu", "Interleave", "Interleave"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("rows", "columns", "interleaves"), [(2, 2, 2), (3, 1, 1), (1, 4, 1)])
def test_repeated_pixels_are_the_same_map_interleaved(rows: int, columns: int, interleaves: int) -> None:
    sizes, scales = (1, 3, 4 * rows, 5 * columns), (1.0, 1.0, float(rows), float(columns))
    resize = node("Resize", "a", "y", sizes=sizes, scales=scales, **FLOOR)
    graph = network((1, 3, 4, 5), "y", node("Sigmoid", "x", "a"), resize)
    found = enlargements_to_interleaves(graph)
    assert operators(found) == ["Sigmoid"] + ["Interleave"] * interleaves
    assert_same_meaning(graph, found)


def test_what_only_moves_stays_and_so_does_interpolation() -> None:
    moved = network((1, 12, 4, 5), "y", node("DepthToSpace", "x", "y", blocksize=2))
    assert enlargements_to_interleaves(moved) is moved
    shrunk = network((1, 3, 4, 6), "y", node("SpaceToDepth", "x", "y", blocksize=2))
    assert space_to_depth_to_convs(shrunk) is shrunk
    resize = node("Resize", "a", "y", sizes=(1, 3, 8, 10), scales=(1.0, 1.0, 2.0, 2.0), mode="linear")
    between = network((1, 3, 4, 5), "y", node("Sigmoid", "x", "a"), resize)
    assert enlargements_to_interleaves(between) is between
    empty = network(
        (1, 12, 0, 5), "y", node("Abs", "x", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode="CRD")
    )
    assert enlargements_to_interleaves(empty) is empty


@pytest.mark.parametrize(
    "attrs", [{}, {"pads": (1, 0, 2, 1), "strides": (2, 1)}, {"kernel_shape": (3, 2), "activation": "Relu"}]
)
def test_space_to_depth_is_part_of_the_convolution_that_reads_it(attrs: dict[str, Attr]) -> None:
    nodes = node("SpaceToDepth", "x", "a", blocksize=2), node("Conv", "a w", "y", **attrs)
    graph = network((2, 3, 8, 10), "y", *nodes, w=noise(5, 12, 3, 2))
    found = space_to_depth_to_convs(graph)
    assert [each.op for each in found.nodes] == ["Conv"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("attrs", [{"dilations": (2, 2)}, {"strides": (5, 5)}, {"pads": (16, 16, 16, 16)}])
def test_space_to_depth_before_a_convolution_that_has_no_room_for_it_is_slices(attrs: dict[str, Attr]) -> None:
    nodes = node("SpaceToDepth", "x", "a", blocksize=2), node("Conv", "a w", "y", **attrs)
    graph = network((1, 3, 20, 20), "y", *nodes, w=noise(5, 12, 2, 2))
    found = space_to_depth_to_convs(graph)
    assert operators(found) == ["Slice"] * 4 + ["Concat", "Conv"]
    assert_same_meaning(graph, found)
