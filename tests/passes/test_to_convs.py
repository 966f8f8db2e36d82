"""What becomes a convolution: products, batch normalisation, transposed convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.frontend import import_model
from npuc.ir import Attr, Graph, Node
from npuc.models import MODELS
from npuc.onnx_files.export import to_onnx
from npuc.ops.interpreter import run
from npuc.passes import FLOAT_PASSES
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.conv_transpose_to_convs import ConvTransposeToConvs
from npuc.passes.expansion.products import GemmToConv, products_to_convs
from npuc.pipeline import run_passes
from tests.conftest import Reference
from tests.passes.networks import (
    IMAGES,
    assert_close,
    assert_same_meaning,
    becomes,
    feeds,
    network,
    node,
    operators,
    sources,
)


def test_a_kernel_covers_the_map_behind_a_flattened_one() -> None:
    flat = node("Reshape", "x", "a", shape=(1, 3 * 2 * 48))
    before = network((1, 3, 2, 48), "y", flat, node("Gemm", "a w", "y"), w=(5, 288))
    after = GemmToConv(IMAGES)(before)
    assert after.shape(after.producers[after.nodes[-1].inputs[0]].inputs[1]) == (5, 3, 2, 48)
    assert_same_meaning(before, after)


def test_a_map_larger_than_a_kernel_may_be_is_folded() -> None:
    flat = node("Reshape", "x", "a", shape=(1, 3 * 2 * 48))
    before = network((1, 3, 2, 48), "y", flat, node("Gemm", "a w", "y"), w=(5, 288))
    after = becomes(GemmToConv(IMAGES, 32), before, ["Reshape", "Reshape", "Conv", "Reshape"])
    assert max(after.shape(after.nodes[2].inputs[1])[2:]) <= 32


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


Shape = tuple[int, ...]


def test_a_gemm_on_several_rows_is_a_convolution_over_them() -> None:
    graph = network((6, 5), "y", node("Gemm", "x w b", "y", activation="Relu"), w=(7, 5), b=(7,))
    found = becomes(products_to_convs, graph, ["Transpose", "Reshape", "Conv+Relu", "Reshape", "Transpose"])
    assert found.shape(found.nodes[2].output) == (1, 7, 2, 3)


def test_a_gemm_on_one_row_stays() -> None:
    graph = network((1, 5), "y", node("Gemm", "x w", "y"), w=(7, 5))
    assert products_to_convs(graph) is graph


@pytest.mark.parametrize(("x", "w", "group"), [
    ((2, 3, 4), (4, 5), 1), ((2, 3, 4), (2, 4, 5), 2), ((5, 2, 3, 4), (2, 4, 3), 2), ((3, 4), (2, 4, 3), 1),
    ((1, 3, 4), (2, 4, 3), 1),
    ((3, 1, 3, 4), (1, 2, 4, 2), 1), ((2, 3, 1, 3, 4), (2, 1, 5, 4, 2), 2),
])  # fmt: skip
def test_a_product_with_a_constant_behind_is_one_convolution(x: Shape, w: Shape, group: int) -> None:
    graph = network(x, "y", node("MatMul", "x w", "y"), w=w)
    found = products_to_convs(graph)
    (conv,) = (each for each in found.nodes if each.op not in ("Reshape", "Transpose"))
    assert conv.op == "Conv" and conv.integer("group") == group
    assert_same_meaning(graph, found)
    assert products_to_convs(found).nodes == found.nodes


@pytest.mark.parametrize(("w", "x"), [
    ((5, 4), (2, 4, 3)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((5, 3, 4), (2, 1, 4, 3)),
])  # fmt: skip
def test_a_product_with_a_constant_before_is_one_convolution(w: Shape, x: Shape) -> None:
    graph = network(x, "y", node("MatMul", "w x", "y"), w=w)
    found = products_to_convs(graph)
    assert [op for op in operators(found) if op not in ("Reshape", "Transpose")] == ["Conv"]
    assert_same_meaning(graph, found)


def test_matrices_from_the_left_take_no_transposition() -> None:
    graph = network((2, 4, 5), "y", node("MatMul", "w x", "y"), w=(2, 3, 4))
    assert operators(products_to_convs(graph)) == ["Reshape", "Conv", "Reshape"]


def test_a_product_of_two_computed_tensors_stays() -> None:
    graph = network((2, 4, 4), "y", node("Tanh", "x", "a"), node("MatMul", "x a", "y"))
    assert products_to_convs(graph) is graph


@pytest.mark.parametrize(("x", "w"), [((3, 0), (0, 5)), ((0, 3), (3, 4)), ((1, 0), (0, 1)), ((2, 3), (3, 0))])
def test_a_product_that_sums_or_gives_nothing_stays(x: Shape, w: Shape) -> None:
    for op, inputs, shapes in (("MatMul", "x w", (x, w)), ("MatMul", "w x", (x[::-1], w[::-1]))):
        graph = network(shapes[0], "y", node(op, inputs, "y"), w=shapes[1])
        assert products_to_convs(graph) is graph


def statistics(channels: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys("gsmv", (channels,))


def norm(x: str, y: str) -> Node:
    return node("BatchNormalization", f"{x} g s m v", y, epsilon=1e-3)


def sub_spectral(
    *before: Node, bands: int = 3, shape: tuple[int, ...] = (1, 2, 12, 5), **constants: object
) -> Graph:
    """x -> before -> a; a -> Reshape -> BatchNormalization -> Reshape -> y."""
    _, C, H, W = shape
    return network((1, 2, 12, 5), "y", *before, node("Reshape", "a", "b", shape=(1, C * bands, H // bands, W)),
        norm("b", "c"), node("Reshape", "c", "y", shape=shape), **statistics(C * bands), **constants)  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 4, 3, 5), (2, 4, 1, 1)])
def test_over_images_it_is_a_depthwise_convolution(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Relu", "x", "a"), norm("a", "y"), **statistics(4))
    found = becomes(batch_norm_to_conv, graph, ["Relu", "Conv"])
    assert found.nodes[1].integer("group") == 4
    assert found.shape(found.nodes[1].inputs[1]) == (4, 1, 1, 1)
    assert sources(found, "y") == ("y",)


def test_over_rows_it_is_one_over_a_map_of_one_pixel() -> None:
    graph = network((1, 6), "y", node("Relu", "x", "a"), norm("a", "y"), **statistics(6))
    becomes(batch_norm_to_conv, graph, ["Relu", "Reshape", "Conv", "Reshape"])


def test_computed_parameters_and_other_ranks_stay() -> None:
    graph = network((1, 4, 3), "y", node("Relu", "x", "a"), norm("a", "y"), **statistics(4))
    assert batch_norm_to_conv(graph) is graph
    mean = (node("ReduceMean", "x", "m", axes=(0, 2, 3), keepdims=0), norm("x", "y"))
    computed = network((1, 4, 3, 3), "y", *mean, g=(4,), s=(4,), v=(4,))
    assert batch_norm_to_conv(computed) is computed


def test_bands_of_rows_are_normalised_one_by_one() -> None:
    graph = sub_spectral(node("Relu", "x", "a"))
    found = becomes(batch_norm_to_conv, graph, ["Relu", *["Slice", "Conv"] * 3, "Concat"])
    assert [each.integers("starts") for each in found.nodes if each.op == "Slice"] == [(0,), (4,), (8,)]
    assert sources(found, "y") == ("b", "c", "y")


@pytest.mark.parametrize("conv", [
    node("Conv", "x w", "a", pads=(1, 0, 1, 2), group=2, kernel_shape=(3, 3)),
    node("Conv", "x w k", "a", pads=(2, 1, 2, 1), strides=(1, 1), dilations=(2, 1), group=2),
    node("Conv", "x w k", "a", pads=(1, 1, 0, 1), strides=(2, 1), group=2),
])  # fmt: skip
def test_a_convolution_before_the_bands_is_divided_and_takes_them(conv: Node) -> None:
    height = 12 // conv.integers("strides", (1,))[0]
    graph = sub_spectral(conv, bands=3, shape=(1, 2, height, 5), w=(2, 1, 3, 3), k=(2,))
    found = becomes(batch_norm_to_conv, graph, [*["Slice", "Conv"] * 3, "Concat"])
    assert sources(found, "y") == ("a", "b", "c", "y")


def test_a_convolution_with_an_activation_stays_whole() -> None:
    graph = sub_spectral(node("Conv", "x w", "a", activation="Relu"), w=(2, 2, 1, 1))
    becomes(batch_norm_to_conv, graph, ["Conv+Relu", *["Slice", "Conv"] * 3, "Concat"])


def test_a_convolution_that_something_else_reads_stays_whole() -> None:
    graph = network((1, 2, 6, 5), "y z", node("Conv", "x w", "a"), node("Reshape", "a", "b", shape=(1, 4, 3, 5)),
        norm("b", "c"), node("Reshape", "c", "y", shape=(1, 2, 6, 5)), node("Abs", "a", "z"), w=(2, 2, 1, 1),
        **statistics(4))  # fmt: skip
    found = batch_norm_to_conv(graph)
    assert sorted(operators(found)) == ["Abs", "Concat", *["Conv"] * 3, "Slice", "Slice"]
    assert_same_meaning(graph, found)


def test_an_activation_between_the_reshapes_is_no_obstacle() -> None:
    graph = network((1, 2, 6, 5), "y", node("Reshape", "x", "b", shape=(1, 4, 3, 5)), norm("b", "c"),
        node("Relu", "c", "d"), node("Reshape", "d", "y", shape=(1, 2, 6, 5)), **statistics(4))  # fmt: skip
    becomes(batch_norm_to_conv, graph, [*["Slice", "Conv"] * 2, "Concat", "Relu"])


def test_groups_of_channels_with_common_parameters_are_no_bands() -> None:
    graph = network((1, 4, 6, 5), "y", node("Reshape", "x", "b", shape=(1, 2, 12, 5)), norm("b", "c"),
        node("Reshape", "c", "y", shape=(1, 4, 6, 5)), **statistics(2))  # fmt: skip
    becomes(batch_norm_to_conv, graph, ["Conv"])


@pytest.mark.parametrize("folded", [(1, 20, 3, 1), (1, 60, 1, 1)])
def test_parameters_that_vary_along_a_row_are_normalised_where_they_stand(folded: tuple[int, ...]) -> None:
    reshape = node("Reshape", "x", "b", shape=folded)
    back = node("Reshape", "c", "y", shape=(1, 2, 6, 5))
    graph = network((1, 2, 6, 5), "y", reshape, norm("b", "c"), back, **statistics(folded[1]))
    becomes(batch_norm_to_conv, graph, ["Reshape", "Conv", "Reshape"])


def test_a_reshape_that_does_not_lead_back_stays() -> None:
    graph = network(
        (1, 2, 6, 5), "y", node("Reshape", "x", "b", shape=(1, 4, 3, 5)), norm("b", "y"), **statistics(4)
    )
    becomes(batch_norm_to_conv, graph, [*["Slice", "Conv"] * 2, "Concat", "Reshape"])


def test_bc_resnet_is_free_of_batch_normalisation() -> None:
    graph = run_passes(import_model(MODELS["bc_resnet"]()), FLOAT_PASSES)
    found = batch_norm_to_conv(graph)
    assert operators(graph).count("BatchNormalization") == 12
    assert operators(found).count("BatchNormalization") == 0
    assert operators(found).count("Reshape") == 1
    assert operators(found).count("Conv") == operators(graph).count("Conv") + 12 * 4
    assert_same_meaning(graph, found)
    assert np.array_equal(
        sources(found, "n9_Reshape"), ("n6_Conv", "n7_Reshape", "n8_BatchNormalization", "n9_Reshape")
    )


conv_transpose_to_convs = ConvTransposeToConvs(16)


def transposed(x: tuple[int, ...], w: tuple[int, ...], **attrs: Attr) -> Graph:
    bias = w[1] * int(attrs.get("group", 1))  # pyright: ignore
    return network(
        x, "y", node("ConvTranspose", "x w b", "y", **attrs), w=np.float32(noise(*w)), b=np.float32(noise(bias))
    )


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize(("kernel", "attrs", "convs", "sliced"), [
    ((2, 2), {"strides": (2, 2)}, 4, False),
    ((3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}, 4, False),
    ((3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, 4, True),
    ((4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, 4, False),
    ((5, 5), {"strides": (2, 2), "pads": (0, 1, 2, 3)}, 4, True),
    ((5, 4), {"strides": (3, 3), "pads": (1, 0, 2, 1), "output_padding": (2, 0)}, 9, True),
    ((1, 1), {"strides": (2, 2)}, 4, True), ((2, 2), {"strides": (3, 3), "output_padding": (1, 1)}, 9, False),
    ((16, 16), {"strides": (8, 8), "pads": (4, 4, 4, 4)}, 64, False),
    ((4, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}, 4, True),
    ((3, 6), {"strides": (2, 3), "pads": (1, 2, 0, 1)}, 36, True),
    ((3, 3), {"strides": (2, 2), "dilations": (2, 3)}, 4, True),
    ((3, 2), {"strides": (2, 4), "dilations": (3, 6), "output_padding": (1, 3)}, 16, True),
])  # fmt: skip
@pytest.mark.parametrize("group", [1, 2, 4])
def test_every_phase_of_the_output_is_a_convolution(
    kernel: tuple[int, int],
    attrs: dict[str, Attr],
    convs: int,
    sliced: bool,
    group: int,
    onnxruntime_values: Reference,
) -> None:
    graph = transposed((2, 4, 4, 5), (4, 16 if group == 1 else 4 // group, *kernel), group=group, **attrs)
    found = becomes(
        conv_transpose_to_convs, graph, ["Conv"] * convs + ["Concat", "DepthToSpace"] + ["Slice"] * sliced
    )
    given_values = feeds(graph)
    expected = onnxruntime_values(to_onnx(graph), given_values)
    assert_close(expected["y"], run(found, given_values)["y"], "y")


@pytest.mark.parametrize(("kernel", "attrs", "pads"), [
    ((3, 3), {}, (2, 2, 2, 2)), ((3, 2), {"pads": (1, 0, 0, 1)}, (1, 1, 2, 0)),
    ((4, 4), {"pads": (3, 3, 3, 3)}, (0, 0, 0, 0)),
    ((3, 3), {"dilations": (2, 1), "output_padding": (1, 0)}, (4, 2, 5, 2)),
])  # fmt: skip
def test_with_stride_one_it_is_one_convolution(
    kernel: tuple[int, int], attrs: dict[str, Attr], pads: tuple[int, ...]
) -> None:
    found = becomes(conv_transpose_to_convs, transposed((1, 3, 5, 6), (3, 2, *kernel), **attrs), ["Conv"])
    assert found.nodes[0].integers("pads") == pads


@pytest.mark.parametrize(("kernel", "attrs", "window"), [
    ((2, 2), {"strides": (2, 2)}, (1, 1)), ((4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, (3, 3)),
    ((9, 9), {"strides": (3, 3), "pads": (4, 4, 4, 4), "output_padding": (2, 2)}, (4, 4)),
    ((3, 4), {"strides": (2, 1), "pads": (1, 0, 0, 2)}, (2, 5)),
])  # fmt: skip
def test_few_channels_are_given_by_one_convolution(
    kernel: tuple[int, int], attrs: dict[str, Attr], window: tuple[int, int]
) -> None:
    graph = transposed((1, 24, 6, 6), (24, 1, *kernel), activation="Relu", **attrs)
    found = conv_transpose_to_convs(graph)
    assert operators(found)[:2] == ["Conv+Relu", "DepthToSpace"]
    assert found.nodes[0].integers("kernel_shape") == window
    assert_same_meaning(graph, found)
    assert conv_transpose_to_convs(found) is found


def test_channels_that_fill_words_are_given_phase_by_phase() -> None:
    for channels, convs in ((4, 1), (12, 4), (16, 4)):
        found = conv_transpose_to_convs(transposed((1, 24, 6, 6), (24, channels, 4, 4), strides=(2, 2)))
        assert operators(found).count("Conv") == convs


def test_a_computed_bias_is_read_by_every_phase() -> None:
    bias = node("Reshape", "s", "b", shape=(2,))
    mean = node("ReduceMean", "x", "s", axes=(2, 3), keepdims=1)
    transpose = node("ConvTranspose", "x w b", "y", strides=(2, 2))
    graph = network((1, 2, 3, 3), "y", mean, bias, transpose, w=(2, 2, 2, 2))
    found = conv_transpose_to_convs(graph)
    assert operators(found).count("Conv") == 4
    assert_same_meaning(graph, found)


def test_more_padding_than_kernel_becomes_taps_that_are_zero() -> None:
    graph = transposed((1, 1, 6, 6), (1, 1, 2, 2), pads=(2, 2, 3, 1))
    (conv,) = conv_transpose_to_convs(graph).nodes
    assert conv.integers("pads") == (0, 0, 0, 0)
    assert conv.integers("kernel_shape") == (5, 3)
    assert_same_meaning(graph, conv_transpose_to_convs(graph))


def test_taps_are_those_of_the_phase_in_reverse() -> None:
    w = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    graph = network(
        (1, 2, 2, 2), "y", node("ConvTranspose", "x w", "y", strides=(2, 2), group=2), w=w.repeat(2, axis=0)
    )
    found = conv_transpose_to_convs(graph)
    weights = [found.constants[each.inputs[1]][0, 0].tolist() for each in found.nodes if each.op == "Conv"]
    assert weights == [[[8, 6], [2, 0]], [[7], [1]], [[5, 3]], [[4]]]


def test_the_activation_goes_with_the_phases() -> None:
    graph = transposed((1, 2, 3, 3), (2, 16, 2, 2), strides=(2, 2), activation="Clip", min=0.0, max=0.5)
    found = becomes(conv_transpose_to_convs, graph, ["Conv+Clip"] * 4 + ["Concat", "DepthToSpace"])
    assert {source for each in found.nodes for source in each.sources} == {"y"}
    assert sources(found, "y") == ("y",)


def test_what_has_computed_weights_or_too_many_phases_stays() -> None:
    weights = node("Reshape", "x", "w", shape=(2, 1, 3, 3))
    computed = network((1, 2, 3, 3), "y", weights, node("ConvTranspose", "x w", "y"))
    assert conv_transpose_to_convs(computed) is computed
    far = transposed((1, 1, 2, 2), (1, 1, 32, 32), strides=(32, 32))
    assert conv_transpose_to_convs(far) is far


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_geometry_keeps_its_meaning(data: st.DataObject) -> None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    kernel, strides, dilations = pair(1, 5), pair(1, 4), pair(1, 3)
    extra = tuple(data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True))
    x = pair(1, 5)
    lengths = [
        (n - 1) * s + (k - 1) * d + e for n, s, k, d, e in zip(x, strides, kernel, dilations, extra, strict=True)
    ]
    begins = tuple(data.draw(st.integers(0, min(length, 6))) for length in lengths)
    ends = tuple(data.draw(st.integers(0, min(n - b, 6))) for n, b in zip(lengths, begins, strict=True))
    attrs: dict[str, Attr] = {"strides": strides, "dilations": dilations, "output_padding": extra}
    channels = data.draw(st.sampled_from((1, 16)))
    graph = transposed((1, 9, *x), (9, channels, *kernel), pads=(*begins, *ends), **attrs)
    found = conv_transpose_to_convs(graph)
    assert "ConvTranspose" not in operators(found)
    assert_same_meaning(graph, found)
