"""At the border of what a pass may touch, the graph behind it computes what onnxruntime computes of it before."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Graph
from npuc.onnx_files.export import to_onnx
from npuc.ops.interpreter import run
from npuc.passes.cleanup.eliminate_transposes import eliminate_transposes
from npuc.passes.cleanup.pads import merge_pads
from npuc.passes.cleanup.sink_reshapes import sink_reshapes
from npuc.passes.expansion.averages import AverageLimits, SplitAveragePool
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batches import SplitBatch
from npuc.passes.expansion.maxima_to_pools import MaximaToPools
from npuc.passes.expansion.split_max_pool import MaxPoolLimits as MaximumLimits
from npuc.passes.expansion.split_max_pool import SplitMaxPool
from npuc.passes.fusion import fuse_activation
from npuc.passes.recognition.recognise_activations import recognise_activations
from npuc.passes.recognition.recognise_quantisation import recognise_quantisation
from npuc.pipeline import Pass
from npuc.targets.easynpu.network.passes import resize_to_products
from npuc.targets.nvdla.network.passes import enlargements_to_interleaves
from tests.conftest import Reference
from tests.passes.networks import IMAGES, assert_close, feeds, network, node, operators


def rewritten(once: Pass, graph: Graph, expected: Reference) -> Graph:
    """The graph after a pass, whose outputs are those of onnxruntime for the graph before."""
    after = once(graph)
    after.check()
    given = feeds(graph)
    found = run(after, given)
    for name, value in expected(to_onnx(graph), given).items():
        assert_close(value, found[name], name)
    return after


def test_a_concat_of_a_squeezed_vector_and_one_number_keeps_its_rank(onnxruntime_values: Reference) -> None:
    graph = network((1, 3), "y", node("Relu", "x", "positive"), node("Reshape", "positive", "vector", shape=(3,)),
        node("Concat", "vector one", "y", axis=0), one=np.array([5], np.float32))  # fmt: skip
    rewritten(sink_reshapes, graph, onnxruntime_values)


def test_a_conversion_without_zero_point_has_the_zero_point_0(onnxruntime_values: Reference) -> None:
    graph = network(
        (1, 3, 2, 2),
        "y",
        node("QuantizeLinear", "x scale", "steps"),
        node("DequantizeLinear", "steps scale", "y"),
        scale=np.float32(0.1),
    )
    (rounding,) = rewritten(recognise_quantisation, graph, onnxruntime_values).nodes
    assert (rounding.attrs["zero_point"], rounding.attrs["dtype"]) == (0, "uint8")


ALIKE = {"scale": np.full(3, 0.1, np.float32), "zero": np.full(3, 4, np.int8)}


def test_equal_scales_along_an_axis_do_not_hold_a_transpose_before_the_conversion(
    onnxruntime_values: Reference,
) -> None:
    graph = network(
        (1, 3, 2, 2),
        "y",
        node("QuantizeLinear", "x scale zero", "steps", axis=1),
        node("Transpose", "steps", "y", perm=(0, 2, 3, 1)),
        **ALIKE,
    )
    after = rewritten(recognise_quantisation, graph, onnxruntime_values)
    assert operators(after) == ["Transpose", "QuantizeLinear"]


def test_equal_scales_along_an_axis_do_not_hold_a_transpose_behind_the_conversion(
    onnxruntime_values: Reference,
) -> None:
    graph = network((1, 3, 2, 2), "y", node("QuantizeLinear", "x one none", "steps"),
        node("Transpose", "steps", "moved", perm=(0, 2, 3, 1)), node("DequantizeLinear", "moved scale zero", "y",
        axis=3), one=np.float32(0.1), none=np.int8(0), **ALIKE)  # fmt: skip
    rewritten(recognise_quantisation, graph, onnxruntime_values)


def test_a_resize_of_integers_is_no_product(onnxruntime_values: Reference) -> None:
    graph = network(
        (1, 3, 2, 2),
        "y",
        node("QuantizeLinear", "x scale zero", "steps"),
        node(
            "Resize", "steps", "y", mode="nearest", sizes=(1, 3, 3, 4), scales=(1.0, 1.0, 1.5, 2.0),
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        ),
        scale=np.float32(0.1),
        zero=np.int8(0),
    )  # fmt: skip
    assert rewritten(resize_to_products, graph, onnxruntime_values) is graph


@pytest.mark.parametrize(("kernel", "stride", "extent"), [(80, 41, 120), (96, 50, 140), (64, 9, 64), (66, 31, 96)])
def test_an_average_over_one_window_in_stages_stays_one_window(
    kernel: int, stride: int, extent: int, onnxruntime_values: Reference
) -> None:
    pool = node("AveragePool", "x", "y", kernel_shape=(1, kernel), strides=(1, stride))
    once = SplitAveragePool(None, AverageLimits(64, 32, 8))
    assert len(rewritten(once, network((1, 2, 1, extent), "y", pool), onnxruntime_values).nodes) > 1


@pytest.mark.parametrize(
    ("slope", "moves"), [((4, 4), False), ((2, 1, 1), True), ((1, 4, 1), False), ((1, 1, 1, 1), True)]
)
def test_slopes_that_vary_between_pixels_stay_behind_the_enlargement(
    slope: tuple[int, ...], moves: bool, onnxruntime_values: Reference
) -> None:
    graph = network((1, 8, 2, 2), "y", node("Conv", "x w", "c"), node("DepthToSpace", "c", "d", blocksize=2,
        mode="DCR"), node("PRelu", "d slope", "y"), w=(8, 8, 1, 1), slope=slope)  # fmt: skip
    after = rewritten(enlargements_to_interleaves, graph, onnxruntime_values)
    assert (after.nodes[-1].op == "Interleave") is moves


@pytest.mark.parametrize("most_lines", [0, 31])
def test_rows_that_are_no_samples_of_the_map_before_are_stacked_as_rows(
    most_lines: int, onnxruntime_values: Reference
) -> None:
    graph = network((1, 2, 3, 4), "y", node("Reshape", "x", "rows", shape=(3, 8)), node("Gemm", "rows w", "g"),
        node("Reshape", "g", "pixels", shape=(3, 5, 1, 1)), node("Conv", "pixels v", "y"), w=(5, 8),
        v=(4, 5, 1, 1))  # fmt: skip
    rewritten(SplitBatch(IMAGES, most_lines), graph, onnxruntime_values)


def test_rows_of_one_number_that_become_a_vector_are_stacked(onnxruntime_values: Reference) -> None:
    graph = network((2, 3, 4, 4), "y", node("Conv", "x v", "c"), node("Reshape", "c", "rows", shape=(2, 64)),
        node("Gemm", "rows w", "g"), node("Reshape", "g", "y", shape=(2,)), v=(4, 3, 1, 1), w=(1, 64))  # fmt: skip
    rewritten(SplitBatch(IMAGES, 31), graph, onnxruntime_values)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("once", [MaximaToPools(IMAGES), recognise_activations])
@pytest.mark.parametrize("other", ["x", "c"])
def test_the_larger_of_two_keeps_the_limit_that_is_part_of_it(
    op: str, once: Pass, other: str, onnxruntime_values: Reference
) -> None:
    graph = network((1, 4, 5, 6), "y", node(op, f"x {other}", "y", activation="Relu"), c=np.float32(-0.5))
    rewritten(once, graph, onnxruntime_values)


def test_a_batch_normalisation_of_nothing_stays() -> None:
    parameters = dict.fromkeys(("s", "b", "m", "v"), (4,))
    graph = network((3, 4, 0, 5), "y", node("BatchNormalization", "x s b m v", "y"), **parameters)
    assert batch_norm_to_conv(graph) is graph


def test_padding_that_alone_lies_under_a_dilated_window_is_its_maximum(onnxruntime_values: Reference) -> None:
    graph = network(
        (1, 1, 1, 1),
        "y",
        node("Relu", "x", "positive"),
        node("Pad", "positive", "padded", pads=(0, 0, 0, 1, 0, 0, 0, 1), mode="constant", value=0.0),
        node("MaxPool", "padded", "y", kernel_shape=(1, 2), dilations=(1, 2)),
    )
    assert rewritten(merge_pads, graph, onnxruntime_values) is graph


def test_a_limit_stays_behind_a_pool_whose_window_may_meet_padding_alone(onnxruntime_values: Reference) -> None:
    graph = network((1, 1, 1, 1), "y", node("Conv", "x w", "c"), node("MaxPool", "c", "p", kernel_shape=(1, 2),
        dilations=(1, 2), pads=(0, 1, 0, 1)), node("Clip", "p", "y", min=-1.0, max=1.0),
        w=(1, 1, 1, 1))  # fmt: skip
    assert rewritten(fuse_activation, graph, onnxruntime_values) is graph


def test_limits_that_contradict_each_other_are_no_hard_sigmoid(onnxruntime_values: Reference) -> None:
    graph = network((1, 4), "y", node("Mul", "x a", "scaled"), node("Add", "scaled b", "sum"),
        node("Clip", "sum", "limited", min=0.0, max=-2.0), node("Mul", "limited h", "y"), a=-2.0, b=-1.0,
        h=-0.5)  # fmt: skip
    after = rewritten(recognise_activations, graph, onnxruntime_values)
    assert "HardSigmoid" not in operators(after)


def test_a_transpose_that_moves_nothing_between_two_outputs_moves_no_region(onnxruntime_values: Reference) -> None:
    graph = network(
        (1, 130),
        "same y",
        node("Transpose", "x", "column", perm=(1, 0)),
        node("Relu", "column", "y"),
        node("Transpose", "y", "same", perm=(0, 1)),
    )
    rewritten(eliminate_transposes, graph, onnxruntime_values)


def test_a_maximum_with_as_much_padding_as_taps_stays(onnxruntime_values: Reference) -> None:
    """ceil_mode adds a fifth row to the four below the map, and the window has five taps."""
    pool = node(
        "MaxPool", "x", "y", kernel_shape=(5, 3), dilations=(2, 1), strides=(2, 1), pads=(4, 0, 4, 0), ceil_mode=1
    )
    graph = network((1, 4, 4, 3), "y", pool)
    split = SplitMaxPool(MaximumLimits(positions=6, extent=9, stride=2, dilation=2))
    assert rewritten(split, graph, onnxruntime_values) is graph


def test_the_taps_of_a_second_pool_are_as_far_apart_as_the_limit(onnxruntime_values: Reference) -> None:
    graph = network((1, 2, 12, 1), "y", node("MaxPool", "x", "y", kernel_shape=(10, 1)))
    split = SplitMaxPool(MaximumLimits(positions=9, extent=9, stride=2, dilation=2))
    first, second = rewritten(split, graph, onnxruntime_values).nodes
    assert (first.integers("kernel_shape"), second.integers("kernel_shape")) == ((8, 1), (2, 1))
    assert second.integers("dilations") == (2, 1)
    graph = network((1, 2, 24, 1), "y", node("MaxPool", "x", "y", kernel_shape=(10, 1), dilations=(2, 1)))
    assert split(graph) is graph
