"""conv_transpose_to_convs: phases of transposed convolutions, against onnxruntime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.interpreter import run
from npuc.ir import Attr, Graph
from npuc.onnx_files.export import to_onnx
from npuc.passes.expansion.conv_transpose_to_convs import ConvTransposeToConvs
from tests.conftest import Reference
from tests.passes.networks import assert_close, assert_same_meaning, feeds, network, node, operators, sources

conv_transpose_to_convs = ConvTransposeToConvs(16)


def transposed(x: tuple[int, ...], w: tuple[int, ...], **attrs: Attr) -> Graph:
    bias = w[1] * int(attrs.get("group", 1))  # pyright: ignore
    return network(
        x, "y", node("ConvTranspose", "x w b", "y", **attrs), w=np.float32(noise(*w)), b=np.float32(noise(bias))
    )


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@pytest.mark.parametrize(
    ("kernel", "attrs", "convs", "sliced"),
    [
        ((2, 2), {"strides": (2, 2)}, 4, False),
        ((3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}, 4, False),
        ((3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, 4, True),
        ((4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, 4, False),
        ((5, 5), {"strides": (2, 2), "pads": (0, 1, 2, 3)}, 4, True),
        ((5, 4), {"strides": (3, 3), "pads": (1, 0, 2, 1), "output_padding": (2, 0)}, 9, True),
        ((1, 1), {"strides": (2, 2)}, 4, True),
        ((2, 2), {"strides": (3, 3), "output_padding": (1, 1)}, 9, False),
        ((16, 16), {"strides": (8, 8), "pads": (4, 4, 4, 4)}, 64, False),
        ((4, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}, 4, True),
        ((3, 6), {"strides": (2, 3), "pads": (1, 2, 0, 1)}, 36, True),
        ((3, 3), {"strides": (2, 2), "dilations": (2, 3)}, 4, True),
        ((3, 2), {"strides": (2, 4), "dilations": (3, 6), "output_padding": (1, 3)}, 16, True),
    ],
)
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
    found = conv_transpose_to_convs(graph)
    assert operators(found) == ["Conv"] * convs + ["Concat", "DepthToSpace"] + ["Slice"] * sliced
    assert_same_meaning(graph, found)
    assert conv_transpose_to_convs(found) is found
    given_values = feeds(graph)
    expected = onnxruntime_values(to_onnx(graph), given_values)
    assert_close(expected["y"], run(found, given_values)["y"], "y")


@pytest.mark.parametrize(
    ("kernel", "attrs", "pads"),
    [
        ((3, 3), {}, (2, 2, 2, 2)),
        ((3, 2), {"pads": (1, 0, 0, 1)}, (1, 1, 2, 0)),
        ((4, 4), {"pads": (3, 3, 3, 3)}, (0, 0, 0, 0)),
        ((3, 3), {"dilations": (2, 1), "output_padding": (1, 0)}, (4, 2, 5, 2)),
    ],
)
def test_with_stride_one_it_is_one_convolution(
    kernel: tuple[int, int], attrs: dict[str, Attr], pads: tuple[int, ...]
) -> None:
    graph = transposed((1, 3, 5, 6), (3, 2, *kernel), **attrs)
    found = conv_transpose_to_convs(graph)
    assert operators(found) == ["Conv"]
    assert found.nodes[0].integers("pads") == pads
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("kernel", "attrs", "window"),
    [
        ((2, 2), {"strides": (2, 2)}, (1, 1)),
        ((4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, (3, 3)),
        ((9, 9), {"strides": (3, 3), "pads": (4, 4, 4, 4), "output_padding": (2, 2)}, (4, 4)),
        ((3, 4), {"strides": (2, 1), "pads": (1, 0, 0, 2)}, (2, 5)),
    ],
)
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
    found = conv_transpose_to_convs(graph)
    assert operators(found) == ["Conv+Clip"] * 4 + ["Concat", "DepthToSpace"]
    assert_same_meaning(graph, found)
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
