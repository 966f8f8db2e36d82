"""merge_pads, unify_pooling, lift_to_2d."""

from math import inf

import numpy as np
import pytest

from npuc.ir import Attr
from npuc.passes.cleanup.merge_pads import merge_pads
from npuc.passes.recognition.lift_to_2d import lift_to_2d
from npuc.passes.recognition.unify_pooling import unify_pooling
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

AROUND = (0, 0, 1, 0, 0, 0, 2, 1)


def test_zeros_before_a_convolution_become_its_padding() -> None:
    graph = network(
        (1, 3, 6, 6),
        "y",
        node("Pad", "x", "p", pads=AROUND),
        node("Conv", "p w", "y", pads=(1, 1, 0, 0), kernel_shape=(3, 3)),
        w=(4, 3, 3, 3),
    )
    found = merge_pads(graph)
    assert operators(found) == ["Conv"]
    assert found.nodes[0].integers("pads") == (2, 1, 2, 1)
    assert sources(found, "y") == ("p", "y")
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    "pad",
    [
        node("Pad", "x", "p", pads=AROUND, value=1.0),
        node("Pad", "x", "p", pads=AROUND, mode="reflect"),
        node("Pad", "x", "p", pads=AROUND, mode="edge"),
        node("Pad", "x", "p", pads=(0, 0, 1, 0, 0, 0, -1, 0)),
        node("Pad", "x", "p", pads=(1, 0, 1, 0, 0, 0, 0, 0)),
    ],
)
def test_padding_that_is_not_zeros_around_the_image_stays(pad) -> None:
    graph = network((1, 3, 6, 6), "y", pad, node("Conv", "p w", "y"), w=(4, 3, 3, 3))
    assert merge_pads(graph) is graph


def test_padding_of_channels_stays() -> None:
    graph = network(
        (1, 2, 6, 6),
        "y",
        node("Pad", "x", "p", pads=(0, 1, 0, 0, 0, 0, 0, 0)),
        node("Conv", "p w", "y"),
        w=(4, 3, 3, 3),
    )
    assert merge_pads(graph) is graph


def test_padding_with_a_second_reader_stays_for_it() -> None:
    graph = network(
        (1, 3, 6, 6), "y p", node("Pad", "x", "p", pads=AROUND), node("Conv", "p w", "y"), w=(4, 3, 3, 3)
    )
    found = merge_pads(graph)
    assert operators(found) == ["Pad", "Conv"]
    assert found.nodes[1].inputs[0] == "x"
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ({}, True),
        ({"pads": (1, 0, 0, 0), "count_include_pad": 1}, True),
        ({"pads": (1, 0, 0, 0), "count_include_pad": 0}, False),
        ({"ceil_mode": 1}, False),
        ({"kernel_shape": (2, 2)}, False),  # as much padding as window
        ({"kernel_shape": (2, 2), "dilations": (2, 2)}, False),  # onnxruntime counts taps, not what they span
        ({"kernel_shape": (3, 3), "dilations": (2, 2)}, True),
    ],
)
def test_zeros_before_an_average_are_merged_if_every_window_counts_its_padding(
    own: dict[str, Attr], merged: bool
) -> None:
    attrs: dict[str, Attr] = {"kernel_shape": (4, 4), **own}
    graph = network((1, 3, 8, 8), "y", node("Pad", "x", "p", pads=AROUND), node("AveragePool", "p", "y", **attrs))
    found = merge_pads(graph)
    assert operators(found) == (["AveragePool"] if merged else ["Pad", "AveragePool"])
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("before", "value", "merged"),
    [
        (node("Neg", "x", "a"), -inf, True),
        (node("Neg", "x", "a"), -3.4028235e38, True),
        (node("Neg", "x", "a"), 0.0, False),
        (node("Relu", "x", "a"), 0.0, True),
        (node("Sigmoid", "x", "a"), 0.0, True),
        (node("Clip", "x", "a", min=-1.0, max=1.0), 0.0, False),
        (node("Clip", "x", "a", min=-1.0, max=1.0), -1.0, True),
    ],
)
def test_padding_before_a_maximum_is_merged_if_it_never_wins(before, value: float, merged: bool) -> None:
    pool = node("MaxPool", "p", "y", kernel_shape=(3, 3), strides=(2, 2))
    graph = network((1, 3, 8, 8), "y", before, node("Pad", "a", "p", pads=AROUND, value=value), pool)
    found = merge_pads(graph)
    assert ("Pad" in operators(found)) is not merged
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (node("ReduceMean", "x", "y", axes=(2, 3), keepdims=1), ["GlobalAveragePool"]),
        (node("ReduceMean", "x", "y", axes=(3, 2), keepdims=0), ["GlobalAveragePool", "Reshape"]),
        (node("ReduceMax", "x", "y", axes=(2, 3), keepdims=1), ["GlobalMaxPool"]),
        (node("ReduceMean", "x", "y", axes=(2,), keepdims=1), ["AveragePool"]),
        (node("ReduceMax", "x", "y", axes=(3,), keepdims=0), ["MaxPool", "Reshape"]),
        (node("AveragePool", "x", "y", kernel_shape=(4, 5)), ["GlobalAveragePool"]),
        (node("MaxPool", "x", "y", kernel_shape=(4, 5), strides=(2, 2)), ["GlobalMaxPool"]),
        (node("AveragePool", "x", "y", kernel_shape=(4, 4)), ["AveragePool"]),
        (node("AveragePool", "x", "y", kernel_shape=(4, 5), pads=(0, 1, 0, 0)), ["AveragePool"]),
        (node("ReduceMean", "x", "y", axes=(1,), keepdims=1), ["ReduceMean"]),
        (node("ReduceMean", "x", "y", axes=(1, 2, 3), keepdims=1), ["ReduceMean"]),
        (node("ReduceSum", "x", "y", axes=(2, 3), keepdims=1), ["ReduceSum"]),
    ],
)
def test_pooling_over_the_image_has_one_spelling(pool, expected: list[str]) -> None:
    graph = network((2, 3, 4, 5), "y", pool)
    found = unify_pooling(graph)
    assert operators(found) == expected
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("axes", "expected"), [((5,), "ReduceMean"), ((2, 3, 4, 5), "GlobalAveragePool")])
def test_a_mean_over_one_of_four_spatial_axes_is_no_window(axes: tuple[int, ...], expected: str) -> None:
    graph = network((1, 2, 3, 1, 4, 5), "y", node("ReduceMean", "x", "y", axes=axes, keepdims=1))
    found = unify_pooling(graph)
    assert operators(found) == [expected]
    assert_same_meaning(graph, found)


def test_a_mean_over_a_flattened_image_is_global_pooling() -> None:
    flat = node("Reshape", "x", "f", shape=(2, 3, 20))
    graph = network((2, 3, 4, 5), "y", flat, node("ReduceMean", "f", "y", axes=(2,), keepdims=0))
    found = unify_pooling(graph)
    assert operators(found) == ["GlobalAveragePool", "Reshape", "Reshape"]
    assert_same_meaning(graph, found)


def test_pooling_of_one_pixel_goes() -> None:
    graph = network(
        (2, 3, 1, 1), "y", node("Relu", "x", "a"), node("GlobalAveragePool", "a", "b"), node("Neg", "b", "y")
    )
    assert operators(unify_pooling(graph)) == ["Relu", "Neg"]


def test_a_one_dimensional_network_becomes_images_of_height_one() -> None:
    graph = network(
        (1, 3, 16),
        "y",
        node("Conv", "x w b", "a", pads=(1, 2), strides=(2,), kernel_shape=(3,)),
        node("BatchNormalization", "a c c c c", "n"),
        node("Relu", "n", "r"),
        node("Mul", "r k", "m"),
        node("Concat", "m r", "j", axis=1),
        node("MaxPool", "j", "p", kernel_shape=(2,), strides=(2,)),
        node("ConvTranspose", "p v", "t", strides=(2,), output_padding=(1,), dilations=(2,)),
        node("AveragePool", "t", "g", kernel_shape=(3,), pads=(1, 1)),
        node("GlobalAveragePool", "g", "h"),
        node("Reshape", "h", "y", shape=(1, 2)),
        w=(4, 3, 3),
        b=(4,),
        c=(4,),
        k=(4, 1),
        v=(8, 2, 2),
    )
    found = lift_to_2d(graph)
    kept = ["Conv", "BatchNormalization", "Relu", "Mul", "Concat", "MaxPool", "ConvTranspose", "AveragePool"]
    assert operators(found) == ["Reshape", *kept, "GlobalAveragePool", "Reshape"]
    assert all(len(found.shape(each.output)) == 4 for each in found.nodes[:-1])
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize(("scale", "size"), [(2.0, 32), (1.7, 27), (0.5, 8)])
def test_interpolation_along_one_axis_becomes_that_of_an_image(
    mode: str, coordinates: str, scale: float, size: int
) -> None:
    attrs = {"scales": (1.0, 1.0, scale), "sizes": (1, 3, size), "mode": mode}
    resize = node("Resize", "x", "y", coordinate_transformation_mode=coordinates, **attrs)
    graph = network((1, 3, 16), "y", resize)
    found = lift_to_2d(graph)
    assert operators(found) == ["Reshape", "Resize", "Reshape"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("sizes", [(3, 3, 16), (4, 2, 16), (3, 5, 8)])
def test_interpolation_of_samples_or_channels_is_not_lifted(sizes: tuple[int, ...]) -> None:
    scales = tuple(to / of for to, of in zip(sizes, (4, 3, 16), strict=True))
    resize = node("Resize", "x", "y", scales=scales, sizes=sizes, mode="nearest")
    graph = network((4, 3, 16), "y", resize)
    assert lift_to_2d(graph) is graph


def test_padding_in_front_of_a_one_dimensional_window_is_merged_before_it_is_lifted() -> None:
    graph = network(
        (1, 3, 16), "y", node("Pad", "x", "p", pads=(0, 0, 2, 0, 0, 0)), node("Conv", "p w", "y"), w=(4, 3, 3)
    )
    found = lift_to_2d(graph)
    assert operators(found) == ["Reshape", "Conv", "Reshape"]
    assert found.nodes[1].integers("pads") == (0, 2, 0, 0)
    assert_same_meaning(graph, found)


def test_an_integer_weight_keeps_its_scale_when_lifted() -> None:
    graph = network(
        (1, 2, 8),
        "y",
        node("DequantizeLinear", "q s z", "w", axis=0),
        node("Conv", "x w", "y"),
        q=np.arange(12, dtype=np.int8).reshape(2, 2, 3),
        s=np.float32([0.5, 0.25]),
        z=np.int8([0, 0]),
    )
    found = lift_to_2d(graph)
    assert sorted(operators(found)) == ["Conv", "DequantizeLinear", "Reshape", "Reshape"]
    assert_same_meaning(graph, found)


def test_images_are_left() -> None:
    graph = network((1, 3, 4, 4), "y", node("Conv", "x w", "y"), w=(4, 3, 3, 3))
    assert lift_to_2d(graph) is graph
