"""Models as TensorFlow's exporters write them become the CNN that they mean, with the same results.

Images are (N, H, W, C); every convolution stands between two Transposes; dense layers are MatMul and Add;
padding is a node; the classifier's head has many spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.frontend import import_model
from npuc.ir import Graph
from npuc.ops.interpreter import run
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import run_passes
from tests.passes.networks import assert_close, feeds, operators

Layer = Callable[["Export"], None]
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class Export:
    """Writes ONNX nodes one behind the other; `here` is the last result."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.random = np.random.default_rng(3)
        self.input = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.here = "input"

    def constant(self, value: Any) -> str:
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape).astype(np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def then(self, op: str, *more: str, first: str | None = None, **attrs: Any) -> str:
        name = f"{op}_{len(self.nodes)}:0"
        inputs = [first or self.here, *more]
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attrs))
        self.here = name
        return name

    def finish(self) -> onnx.ModelProto:
        result = helper.make_tensor_value_info(self.here, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "export", [self.input], [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)

    # what the exporters write for a layer

    def to_last(self) -> None:
        self.then("Transpose", perm=LAST)

    def to_first(self) -> None:
        self.then("Transpose", perm=FIRST)

    def conv(self, Co: int, Ci: int, kernel: int = 3, **attrs: Any) -> None:
        self.to_first()
        self.then("Conv", self.normal(Co, Ci, kernel, kernel), **attrs)
        self.to_last()

    def bias_add(self, C: int) -> None:
        self.then("Add", self.normal(C))

    def fused_batch_norm(self, C: int) -> None:
        self.to_first()
        var = self.constant(self.random.uniform(0.5, 2, C).astype(np.float32))
        self.then("BatchNormalization", self.normal(C), self.normal(C), self.normal(C), var)
        self.to_last()

    def relu6(self) -> None:
        self.then("Relu")
        self.then("Min", self.constant(np.float32(6)))

    def dense(self, units: int, features: int) -> None:
        self.then("MatMul", self.normal(features, units))
        self.then("Add", self.normal(units))


def _optimised(export: Export, onnxruntime_values: Any) -> Graph:
    """The graph behind all passes, after a comparison with onnxruntime on the exported model."""
    model = export.finish()
    graph = run_passes(import_model(model), FLOAT_PASSES)
    given = feeds(graph)
    (name,) = graph.outputs
    assert_close(onnxruntime_values(model, given)[name], run(graph, given)[name], name)
    return graph


@pytest.fixture
def body() -> Export:
    """8x8x3 -> 4x4x8: preprocessing, Pad, Conv, BiasAdd, BatchNorm, Relu6, a residual block, a MaxPool."""
    e = Export((1, 8, 8, 3))
    e.then("Mul", e.constant(np.float32(1 / 127.5)))
    e.then("Sub", e.constant(np.float32(1)))
    e.then("Pad", e.integers(0, 1, 1, 0, 0, 1, 1, 0), e.constant(np.float32(0)))
    e.conv(8, 3)
    e.bias_add(8)
    e.fused_batch_norm(8)
    e.relu6()
    skip = e.here
    e.conv(8, 8, pads=(1, 1, 1, 1))
    e.fused_batch_norm(8)
    e.then("Add", skip)
    e.then("Relu")
    e.to_first()
    e.then("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
    e.to_last()
    return e


BODY = ["Transpose", "Conv+Clip", "Conv", "Add+Relu", "MaxPool"]


def test_the_body_of_an_export_is_a_clean_cnn(body: Export, onnxruntime_values: Any) -> None:
    graph = _optimised(body, onnxruntime_values)
    # the scaling of the image stands before a padding with zeros, so it cannot be folded into the convolution
    assert operators(graph) == ["Transpose", "BatchNormalization", *BODY[1:], "Transpose"]


def _flatten(e: Export) -> None:
    e.then("Flatten", axis=1)


def _reshape(e: Export) -> None:
    e.then("Reshape", e.integers(-1, 128))


def _reshape_to_the_batch(e: Export) -> None:
    e.then("Reshape", e.integers(0, -1))


@pytest.mark.parametrize("flatten", [_flatten, _reshape, _reshape_to_the_batch])
def test_flatten_and_dense_read_the_map_as_it_lies(flatten: Layer, body: Export, onnxruntime_values: Any) -> None:
    flatten(body)
    body.dense(10, 128)
    body.then("Relu")
    body.dense(4, 10)
    body.then("Softmax", axis=-1)
    graph = _optimised(body, onnxruntime_values)
    head = ["Reshape", "Gemm+Relu", "Gemm", "Softmax"]
    assert operators(graph) == ["Transpose", "BatchNormalization", *BODY[1:], *head]


def _mean(e: Export) -> None:
    e.then("ReduceMean", axes=[1, 2], keepdims=0)


def _mean_and_squeeze(e: Export) -> None:
    e.then("ReduceMean", axes=[1, 2], keepdims=1)
    e.then("Squeeze", e.integers(1, 2))


def _mean_and_reshape(e: Export) -> None:
    e.then("ReduceMean", axes=[-3, -2], keepdims=1)
    e.then("Reshape", e.integers(1, 8))


def _global_pool_and_squeeze(e: Export) -> None:
    e.to_first()
    e.then("GlobalAveragePool")
    e.then("Squeeze", e.integers(2, 3))


def _global_pool_and_flatten(e: Export) -> None:
    e.to_first()
    e.then("GlobalAveragePool")
    e.to_last()
    e.then("Flatten")


def _window_and_reshape(e: Export) -> None:
    e.to_first()
    e.then("AveragePool", kernel_shape=(4, 4), strides=(4, 4))
    e.to_last()
    e.then("Reshape", e.integers(-1, 8))


MEANS = [
    _mean,
    _mean_and_squeeze,
    _mean_and_reshape,
    _global_pool_and_squeeze,
    _global_pool_and_flatten,
    _window_and_reshape,
]


@pytest.mark.parametrize("mean", MEANS)
def test_every_spelling_of_the_global_mean_is_global_average_pooling(
    mean: Layer, body: Export, onnxruntime_values: Any
) -> None:
    mean(body)
    body.dense(4, 8)
    graph = _optimised(body, onnxruntime_values)
    head = ["GlobalAveragePool", "Reshape", "Gemm"]
    assert operators(graph) == ["Transpose", "BatchNormalization", *BODY[1:], *head]


def test_a_dense_layer_over_the_pixels_is_rows_of_gemm(onnxruntime_values: Any) -> None:
    e = Export((1, 4, 4, 3))
    e.dense(5, 3)
    e.then("Relu")
    assert operators(_optimised(e, onnxruntime_values)) == ["Reshape", "Gemm+Relu", "Reshape"]


def test_depthwise_separable_blocks_lose_every_transpose(onnxruntime_values: Any) -> None:
    e = Export((1, 12, 12, 4))
    for stride in (1, 2):
        e.then("Pad", e.integers(0, 0, 0, 0, 0, 1, 1, 0), e.constant(np.float32(0)))
        e.to_first()
        e.then("Conv", e.normal(4, 1, 3, 3), group=4, strides=(stride, stride))
        e.to_last()
        e.fused_batch_norm(4)
        e.relu6()
        e.conv(4, 4, kernel=1)
        e.bias_add(4)
        e.relu6()
    e.then("ReduceMean", axes=[1, 2], keepdims=0)
    e.dense(3, 4)
    assert operators(_optimised(e, onnxruntime_values)) == [
        *["Transpose", *["Conv+Clip"] * 4],
        *["GlobalAveragePool", "Reshape", "Gemm"],
    ]


def test_squeeze_and_excite_with_swish_is_found_between_the_transposes(onnxruntime_values: Any) -> None:
    e = Export((1, 6, 6, 4))
    e.conv(4, 4)
    x = e.here
    gate = e.then("Sigmoid")
    x = e.then("Mul", gate, first=x)
    e.then("ReduceMean", axes=[1, 2], keepdims=1)
    e.conv(2, 4, kernel=1)
    e.bias_add(2)
    e.then("Relu")
    e.conv(4, 2, kernel=1)
    gate = e.then("Sigmoid")
    e.then("Mul", gate, first=x)
    e.conv(3, 4)
    assert operators(_optimised(e, onnxruntime_values)) == [
        *["Transpose", "Conv", "Swish", "GlobalAveragePool", "Conv+Relu", "Conv", "Sigmoid", "Mul", "Conv"],
        "Transpose",
    ]


def test_one_dimensional_convolutions_lose_squeeze_and_transpose(onnxruntime_values: Any) -> None:
    # tf.keras Conv1D: ExpandDims, convolution over (N, 1, L, C), Squeeze
    e = Export((1, 16, 4))
    for _ in range(2):
        e.then("Unsqueeze", e.integers(1))
        e.to_first()
        e.then("Conv", e.normal(4, 4, 1, 3), pads=(0, 2, 0, 0))
        e.to_last()
        e.then("Squeeze", e.integers(1))
        e.bias_add(4)
        e.then("Relu")
    e.then("ReduceMean", axes=[1], keepdims=0)
    e.dense(3, 4)
    assert operators(_optimised(e, onnxruntime_values)) == [
        *["Reshape", "Transpose", "Conv+Relu", "Conv+Relu"],
        *["GlobalAveragePool", "Reshape", "Gemm"],
    ]


def test_zero_padding_before_a_maximum_of_relus_is_merged(onnxruntime_values: Any) -> None:
    e = Export((1, 9, 9, 3))
    e.conv(4, 3)
    e.then("Relu")
    e.then("Pad", e.integers(0, 1, 1, 0, 0, 1, 1, 0), e.constant(np.float32(0)))
    e.to_first()
    e.then("MaxPool", kernel_shape=(3, 3), strides=(2, 2))
    assert operators(_optimised(e, onnxruntime_values)) == ["Transpose", "Conv+Relu", "MaxPool"]


def test_branches_joined_along_the_last_axis_are_joined_along_the_channels(onnxruntime_values: Any) -> None:
    e = Export((1, 8, 8, 3))
    e.conv(4, 3)
    e.then("Relu")
    stem = e.here
    e.conv(2, 4, kernel=1)
    left = e.then("Relu")
    e.here = stem
    e.conv(3, 4, pads=(1, 1, 1, 1))
    right = e.then("Relu")
    e.then("Concat", right, first=left, axis=3)
    e.conv(2, 5, kernel=1)
    graph = _optimised(e, onnxruntime_values)
    assert operators(graph) == [
        *["Transpose", "Conv+Relu", "Conv+Relu", "Conv+Relu", "Concat", "Conv", "Transpose"]
    ]
    (concat,) = (each for each in graph.nodes if each.op == "Concat")
    assert concat.integer("axis") == 1
