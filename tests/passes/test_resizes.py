"""What enlarges, shrinks and moves maps: interleaving, interpolation, copies, padding."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from npuc.ir import Attr, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.attributes import COORDINATES, NEAREST_MODE
from npuc.ops.interpreter import run
from npuc.passes.expansion.conv_transpose_to_convs import conv_transpose_to_phases
from npuc.passes.expansion.copies import copies_to_concats, gathers_to_slices
from npuc.passes.expansion.moves_to_convs import PadsToConvs
from npuc.passes.expansion.resizes import (
    MOST_PHASES,
    interpolation_to_convs,
    resize_to_copies,
)
from npuc.pipeline import Pass
from npuc.reference import graph_session
from npuc.targets.easynpu.network.passes import resize_to_products
from npuc.targets.nvdla.machine.parameters import MOST_KERNEL, MOST_STRIDE
from npuc.targets.nvdla.network.passes import enlargements_to_interleaves, space_to_depth_to_convs
from tests.conftest import Reference
from tests.passes.networks import (
    assert_close,
    assert_same_meaning,
    becomes,
    feeds,
    network,
    node,
    operators,
    sources,
)

FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("kernel", "attrs", "phases"), [
    ((2, 2), {"strides": (2, 2)}, (2, 2)), ((3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, (2, 2)),
    ((5, 5), {"strides": (2, 2), "pads": (0, 1, 2, 3)}, (2, 2)),
    ((3, 6), {"strides": (2, 3), "pads": (1, 2, 0, 1)}, (2, 3)), ((1, 1), {"strides": (2, 2)}, (2, 2)),
    ((3, 2), {"strides": (2, 4), "dilations": (3, 6), "output_padding": (1, 3)}, (2, 4)),
    ((4, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}, (2, 1)), ((3, 3), {}, (1, 1)),
])  # fmt: skip
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
    becomes(conv_transpose_to_phases, graph, ["Conv"] * 2 + ["Interleave"])


def _depth(mode: str, channels: int) -> Graph:
    nodes = node("Conv", "x w b", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode=mode)
    return network((1, 3, 4, 5), "y", *nodes, w=noise(channels, 3, 2, 2), b=noise(channels))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_a_convolution_gives_the_phases_of_depth_to_space_one_by_one(mode: str) -> None:
    becomes(enlargements_to_interleaves, _depth(mode, 12), ["Conv"] * 4 + ["Interleave"] * 3)


@pytest.mark.parametrize(
    ("mode", "channels", "taken"), [("DCR", 64, "Slice"), ("DCR", 12, "Conv"), ("CRD", 64, "Conv")]
)
def test_phases_of_another_map_are_slices_where_they_begin_with_a_word(
    mode: str, channels: int, taken: str
) -> None:
    nodes = node("Sigmoid", "x", "a"), node("DepthToSpace", "a", "y", blocksize=2, mode=mode)
    graph = network((1, channels, 4, 5), "y", *nodes)
    becomes(enlargements_to_interleaves, graph, ["Sigmoid"] + [taken] * 4 + ["Interleave"] * 3)


def test_joined_phases_are_interleaved_as_they_are() -> None:
    nodes = [node("Sigmoid", "x", "a"), node("Tanh", "x", "b"), node("Concat", "a b b a", "j", axis=1)]
    graph = network((1, 3, 4, 5), "y", *nodes, node("DepthToSpace", "j", "y", blocksize=2))
    becomes(enlargements_to_interleaves, graph, ["Sigmoid", "Tanh"] + ["Interleave"] * 3)


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
    becomes(enlargements_to_interleaves, graph, ["Sigmoid", "Relu", "Interleave", "Interleave"])


@pytest.mark.parametrize(("rows", "columns", "interleaves"), [(2, 2, 2), (3, 1, 1), (1, 4, 1)])
def test_repeated_pixels_are_the_same_map_interleaved(rows: int, columns: int, interleaves: int) -> None:
    sizes, scales = (1, 3, 4 * rows, 5 * columns), (1.0, 1.0, float(rows), float(columns))
    resize = node("Resize", "a", "y", sizes=sizes, scales=scales, **FLOOR)
    graph = network((1, 3, 4, 5), "y", node("Sigmoid", "x", "a"), resize)
    becomes(enlargements_to_interleaves, graph, ["Sigmoid"] + ["Interleave"] * interleaves)


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
    becomes(space_to_depth_to_convs, graph, ["Slice"] * 4 + ["Concat", "Conv"])


FORMS_OF_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def resize(shape: tuple[int, ...], scales: tuple[float, ...], coordinates: str, **attrs: Any) -> Graph:
    sizes = tuple(round(extent * scale) for extent, scale in zip(shape, scales, strict=True))
    found = {"mode": "linear", "coordinate_transformation_mode": coordinates, "scales": scales, "sizes": sizes}
    node = Node("Resize", ("x",), ("y",), {**found, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {})


def assert_same(before: Graph, after: Graph) -> None:
    """The meaning is onnxruntime's, in operators and fields that NVDLA has."""
    assert {node.op for node in after.nodes} <= {"Slice", "Concat", "Conv", "Interleave"}
    convs = [node for node in after.nodes if node.op == "Conv"]
    assert len(convs) <= MOST_PHASES
    for conv in convs:
        assert max(after.shape(conv.inputs[1])[2:]) <= MOST_KERNEL
        assert max(conv.integers("strides")) <= MOST_STRIDE
    x = np.random.default_rng(0).normal(0.5, 2, before.shape("x")).astype(np.float32)
    (wanted,) = graph_session(before, ["y"]).run(None, {"x": x})
    np.testing.assert_allclose(run(after, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    assert interpolation_to_convs(after) is after


@pytest.mark.parametrize("coordinates", FORMS_OF_COORDINATES)
@pytest.mark.parametrize(("shape", "size"), [
    ((1, 3, 5, 4), (10, 8)), ((1, 3, 5, 4), (15, 6)), ((2, 1, 4, 5), (16, 5)), ((1, 2, 3, 5), (3, 25)),
    ((1, 2, 3, 2), (9, 4)), ((1, 2, 10, 6), (15, 4)), ((1, 1, 7, 9), (4, 12)), ((1, 2, 5, 7), (2, 13)),
])  # fmt: skip
def test_linear_interpolation_is_what_onnxruntime_computes(
    shape: tuple[int, ...], size: tuple[int, int], coordinates: str
) -> None:
    before = resize(shape, (1.0, 1.0, size[0] / shape[2], size[1] / shape[3]), coordinates)
    after = interpolation_to_convs(before)
    assert after is not before
    assert_same(before, after)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("coordinates", FORMS_OF_COORDINATES)
def test_a_ratio_becomes_convolutions_or_stays(coordinates: str, mode: str) -> None:
    """Extents from 1 on, larger and smaller, ratios of small and of large numbers."""
    became = 0
    for extent, size in product((1, 2, 3, 7, 16, 33), (1, 2, 3, 5, 8, 12, 50)):
        if extent != size:
            before = resize((1, 1, extent, 2), (1.0, 1.0, size / extent, 1.0), coordinates, mode=mode)
            after = interpolation_to_convs(before)
            if after is not before:
                became += 1
                assert_same(before, after)
    assert became >= 18


def test_a_long_extent_takes_memory_in_proportion() -> None:
    """A dense matrix of taps would be 14 TiB."""
    before = resize((1, 1, 1_000_000, 1), (1.0, 1.0, 2.0, 1.0), "half_pixel")
    assert interpolation_to_convs(before) is not before


@pytest.mark.parametrize("scale", [1.3, 0.7, 2.5])
def test_a_scale_that_gives_no_whole_size_counts_as_it_is(scale: float) -> None:
    sizes = (1, 2, int(10 * scale), 7)
    before = resize((1, 2, 10, 7), (1.0, 1.0, scale, 1.0), "half_pixel", sizes=sizes)
    assert_same(before, interpolation_to_convs(before))


@pytest.mark.parametrize("before", [
    resize((1, 2, 4, 4), (1.0, 2.0, 2.0, 2.0), "half_pixel"),
    resize((1, 2, 40, 40), (1.0, 1.0, 1.4, 1.6), "align_corners"),
    resize((1, 2, 90, 4), (1.0, 1.0, 0.1, 1.0), "half_pixel"),
    resize((1, 2, 9, 9), (1.0, 1.0, 9.0, 9.0), "half_pixel"),
    resize((1, 2, 4, 4), (1.0, 1.0, 1.0, 1.0), "half_pixel"),
    resize((1, 2, 4, 4), (1.0, 1.0, 2.0, 2.0), "asymmetric", mode="nearest", nearest_mode="floor"),
    resize((1, 2, 8, 4), (1.0, 1.0, 2.0, 2.0), "half_pixel", mode="cubic", exclude_outside=1),
    resize((2, 4, 4), (1.0, 2.0, 2.0), "half_pixel"),
], ids=["channels", "many phases", "a long stride", "81", "1", "repeated", "excluding", "rank 3"])  # fmt: skip
def test_other_resizes_stay(before: Graph) -> None:
    assert interpolation_to_convs(before) is before


def resized(shape: tuple[int, ...], scales: tuple[float, ...], **attrs: str) -> Graph:
    sizes = tuple(int(extent * scale) for extent, scale in zip(shape, scales, strict=True))
    return network(shape, "y", node("Resize", "x", "y", sizes=sizes, scales=scales, **attrs))


@pytest.mark.parametrize(("scale", "steps"), [(2, [4]), (3, [9]), (8, [64]), (16, [4, 64]), (11, [121])])
def test_repeated_pixels_are_copies_of_the_map(
    scale: int, steps: list[int], onnxruntime_values: Reference
) -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    graph = resized((1, 2, 3, 4), (1.0, 1.0, scale, scale), **attrs)
    found = becomes(resize_to_copies, graph, ["Concat", "DepthToSpace"] * len(steps))
    assert [len(each.inputs) for each in found.nodes if each.op == "Concat"] == steps
    assert sources(found, "y") == ("y",)
    given = feeds(graph)
    assert_close(onnxruntime_values(to_onnx(graph), given)["y"], run(found, given)["y"], "y")


@pytest.mark.parametrize("nearest", NEAREST_MODE.choices)
@pytest.mark.parametrize("coordinates", COORDINATES.choices)
@pytest.mark.parametrize("scale", [2, 3])
def test_any_mode_that_repeats_pixels_is_recognised(coordinates: str, nearest: str, scale: int) -> None:
    shape = (1, 2, 4, 4)
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    graph = resized(shape, (1.0, 1.0, scale, scale), **attrs)
    x = feeds(graph)["x"]
    repeats = np.array_equal(run(graph, {"x": x})["y"], x.repeat(scale, 2).repeat(scale, 3))
    becomes(resize_to_copies, graph, ["Concat", "DepthToSpace"] if repeats else ["Resize"])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("scale", "steps"), [(6, 1), (12, 2)])
def test_one_pixel_is_repeated_in_every_mode_and_in_every_step(mode: str, scale: int, steps: int) -> None:
    graph = resized((1, 3, 1, 1), (1.0, 1.0, scale, scale), mode=mode)
    becomes(resize_to_copies, graph, ["Concat", "DepthToSpace"] * steps)


@pytest.mark.parametrize(("scales", "attrs"), [
    ((1.0, 1.0, 2.0, 2.0), {"mode": "linear"}), ((1.0, 1.0, 1.5, 1.5), {}), ((1.0, 1.0, 2.0, 4.0), {}),
    ((1.0, 1.0, 0.5, 0.5), {}), ((1.0, 2.0, 2.0, 2.0), {}),
])  # fmt: skip
def test_other_interpolation_stays(scales: tuple[float, ...], attrs: dict[str, str]) -> None:
    graph = resized((1, 2, 4, 4), scales, **attrs)
    assert resize_to_copies(graph) is graph


pads_to_convs = PadsToConvs(15)

CUBE = (3, 4, 5)
MOVES = {"Concat", "Slice", "Reshape"}


@pytest.mark.parametrize(("shape", "expected"), [
    ((2, 3, 4), ["Reshape", "Concat", "Concat"]), ((3, 4), ["Concat"]), ((1, 3, 1), ["Reshape"]),
])  # fmt: skip
def test_expand_is_a_concatenation_per_repeated_axis(shape: tuple[int, ...], expected: list[str]) -> None:
    becomes(copies_to_concats, network((3, 1), "y", node("Expand", "x", "y", shape=shape)), expected)


@pytest.mark.parametrize("pads", [(1, 0, 2, 2, 0, 3), (-1, 0, 2, 0, -2, 3), (0, 0, 0, 0, -1, -1)])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding_is_a_concatenation_per_padded_axis(mode: str, pads: tuple[int, ...]) -> None:
    graph = network(CUBE, "y", node("Pad", "x", "y", pads=pads, mode=mode, value=0.5))
    found = copies_to_concats(graph)
    assert set(operators(found)) <= MOVES
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("mode", ["constant", "edge", "wrap"])
def test_padding_may_exceed_the_tensor(mode: str) -> None:
    graph = network(CUBE, "y", node("Pad", "x", "y", pads=(9, 0, 0, 8, 0, 0), mode=mode))
    assert_same_meaning(graph, copies_to_concats(graph))


@pytest.mark.parametrize(("indices", "expected"), [
    (3, ["Slice", "Reshape"]),
    ([1], ["Slice"]),
    ([0, 1, 2], ["Slice"]),
    ([0, 2, 4], ["Slice"]),
    ([-1, -2, -3, -4, -5], ["Slice"]),
    ([0, 1, 4], ["Slice", "Slice", "Concat"]),
    ([1, 1, 1], ["Slice", "Slice", "Slice", "Concat"]),
    ([[0, 2], [4, 4]], ["Slice", "Slice", "Concat", "Reshape"]),
])  # fmt: skip
def test_a_gather_is_a_slice_per_run_of_indices(indices: Any, expected: list[str]) -> None:
    graph = network((2, 5), "y", node("Gather", "x i", "y", axis=1), i=np.array(indices))
    becomes(gathers_to_slices, graph, expected)


@pytest.mark.parametrize(("rule", "shape", "moved"), [
    (copies_to_concats, (3, 1), node("Expand", "x", "y", shape=(3, 257))),
    (copies_to_concats, (3, 0, 5), node("Pad", "x", "y", pads=(0, 1, 0, 0, 0, 0))),
    (copies_to_concats, (3, 5), node("Pad", "x", "y", pads=(0, 0, 0, 0))),
    (copies_to_concats, (3, 5), node("Pad", "x", "y", pads=(0, 1, 0, 0), value=-np.inf)),
    (gathers_to_slices, (2, 5), node("Gather", "x i", "y", axis=1)),
], ids=["many copies", "padding of nothing", "no padding", "endless padding", "many runs"])  # fmt: skip
def test_what_is_many_copies_or_none_stays(rule: Pass, shape: tuple[int, ...], moved: Node) -> None:
    graph = network(shape, "y", moved, i=np.array([0] * 257))
    assert rule(graph) is graph


@pytest.mark.parametrize(("value", "expected"), [(0.0, ["Conv"]), (1.5, ["Conv", "Conv"])])
def test_padding_around_an_image_is_that_of_a_convolution(value: float, expected: list[str]) -> None:
    pad = node("Pad", "x", "y", pads=(0, 0, 1, 2, 0, 0, 3, 4), value=value)
    becomes(pads_to_convs, network((1, 2, 3, 4), "y", pad), expected)


@pytest.mark.parametrize(("rule", "count"), [(pads_to_convs, 3), (PadsToConvs(15, 5), 4)])
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_more_padding_than_a_window_may_have_takes_several_convolutions(
    rule: PadsToConvs, count: int, value: float
) -> None:
    graph = network((1, 2, 3, 4), "y", node("Pad", "x", "y", pads=(0, 0, 40, 2, 0, 0, 17, 4), value=value))
    becomes(rule, graph, ["Conv"] * (count if value == 0 else count + 1))


@pytest.mark.parametrize(("shape", "attrs"), [
    ((1, 2, 3, 4), {"pads": (0, 1, 0, 0, 0, 0, 0, 0)}),
    ((2, 2, 3, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0)}),
    ((1, 2, 3, 4), {"pads": (0, 0, -1, 0, 0, 0, 0, 0)}),
    ((1, 2, 3, 4), {"pads": (0, 0, 121, 0, 0, 0, 0, 0)}),
    ((1, 2, 3, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0), "mode": "edge"}),
    ((1, 2, 3, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0), "value": -np.inf}),
    ((1, 2, 0, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0)}),
    ((2, 3, 4), {"pads": (0, 1, 0, 0, 0, 0)}),
])  # fmt: skip
def test_other_padding_stays(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    graph = network(shape, "y", node("Pad", "x", "y", **attrs))
    assert pads_to_convs(graph) is graph


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_interpolation_is_a_product_per_axis(mode: str, coordinates: str) -> None:
    modes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    resize = node("Resize", "x", "y", sizes=(1, 2, 7, 3), scales=(1.0, 1.0, 7 / 14, 3 / 5), **modes)
    graph = network((1, 2, 14, 5), "y", resize)
    becomes(resize_to_products, graph, ["Reshape", "MatMul", "Reshape", "MatMul", "Reshape"])


def test_interpolation_of_few_pixels_is_one_product() -> None:
    resize = node("Resize", "x", "y", mode="cubic", sizes=(1, 2, 7, 3), scales=(1.0, 1.0, 7 / 4, 3 / 5))
    becomes(resize_to_products, network((1, 2, 4, 5), "y", resize), ["Reshape", "MatMul", "Reshape"])


def test_an_axis_that_stays_takes_no_product() -> None:
    resize = node("Resize", "x", "y", mode="linear", sizes=(2, 4, 7), scales=(1.0, 1.0, 7 / 5))
    assert operators(resize_to_products(network((2, 4, 5), "y", resize))) == ["Reshape", "MatMul", "Reshape"]
