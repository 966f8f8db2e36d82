"""For each condition of a pass a graph that does not meet it: the pass leaves what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.passes.cleanup.clutter import remove_dead_code
from npuc.passes.cleanup.eliminate_transposes import eliminate_transposes
from npuc.passes.cleanup.sink_reshapes import sink_reshapes
from npuc.passes.expansion.averages import split_average_borders
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batches import SplitBatch
from npuc.passes.expansion.moves_to_convs import StridedSlicesToConvs
from npuc.passes.expansion.products import GemmToConv
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.split_max_pool import MaxPoolLimits as MaximumLimits
from npuc.passes.expansion.split_max_pool import SplitMaxPool
from npuc.passes.fusion import fold_batch_norm
from npuc.passes.recognition.canonical_forms import unify_pooling
from npuc.passes.recognition.recognise_activations import recognise_activations
from npuc.passes.recognition.recognise_batch_norm import recognise_batch_norm
from npuc.passes.recognition.recognise_gemm import recognise_gemm
from npuc.passes.recognition.recognise_quantisation import recognise_quantisation
from npuc.pipeline import Pass
from npuc.targets.nvdla.network.passes import enlargements_to_interleaves
from tests.conftest import Reference
from tests.passes.networks import IMAGES, feeds, network, node

strided_slices_to_convs = StridedSlicesToConvs(15)


def fake(x: str, y: str, scale: float) -> Node:
    return node("FakeQuantize", x, y, scale=scale, zero_point=3, dtype="int8")


INTEGERS = build(
    "integers",
    [node("DequantizeLinear", "x s z", "a"), fake("a", "y", 0.25)],
    {"x": TensorType((2, 5), "int8")},
    ["y"],
    {"s": np.float32(0.1), "z": np.int8(3)},
)
BATCH = (3, 3, 4, 4)
CONV = node("Conv", "x w", "a")
KERNEL = (3, 3, 1, 1)

GRAPHS: dict[str, tuple[Pass, Graph]] = {
    "a permutation moves the batch before flattening": (eliminate_transposes,
        network((3, 2, 4), "y", node("Transpose", "x", "t", perm=(1, 0, 2)),
        node("Reshape", "t", "r", shape=(2, 12)), node("Gemm", "r w", "y"), w=(5, 12))),
    "a permutation before a reshape that mixes samples": (eliminate_transposes,
        network((2, 3, 4), "y", node("Transpose", "x", "t", perm=(0, 2, 1)),
        node("Reshape", "t", "r", shape=(4, 6)), node("Gemm", "r w", "y"), w=(5, 6))),
    "two outputs that are the same permutation": (eliminate_transposes,
        network((1, 2, 3, 4), "y z", node("Transpose", "x", "a", perm=(0, 2, 1, 3)),
        node("Transpose", "a", "y", perm=(0, 1, 3, 2)), node("Transpose", "x", "z", perm=(0, 2, 3, 1)))),
    "a sum with 0 that is limited": (remove_dead_code, network((2, 3), "y", node("Tanh", "x", "a"),
        node("Add", "a zero", "y", activation="Relu"), zero=0.0)),
    "a permutation of equal extents": (remove_dead_code, network((1, 3, 3), "y", node("Tanh", "x", "a"),
        node("Transpose", "a", "y", perm=(0, 2, 1)))),
    "a number of higher rank than what was reshaped": (sink_reshapes,
        network((1, 1, 2, 3), "y", node("Reshape", "x", "r", shape=(6,)), node("Add", "r c", "y"),
        c=np.full((1, 1), 2, np.float32))),
    "an operand that was not squeezed": (sink_reshapes, network((1, 3, 1, 4), "y",
        node("Reshape", "x", "r", shape=(3, 4)), node("ReduceMax", "x", "s", axes=(0, 2), keepdims=0),
        node("Add", "r s", "y"))),
    "a sum that keeps its axis behind a squeeze": (sink_reshapes, network((2, 1, 3), "y",
        node("Reshape", "x", "r", shape=(2, 3)), node("ReduceSum", "r", "y", axes=(1,), keepdims=1))),
    "a bias behind a reshape of columns": (recognise_gemm, network((4, 6), "y", node("Gemm", "x w", "g"),
        node("Reshape", "g", "r", shape=(8, 3)), node("Add", "r b", "y"), w=(6, 6), b=(3,))),
    "a bias behind an activation": (recognise_gemm, network((4, 6), "y",
        node("Gemm", "x w", "g", activation="Relu"), node("Add", "g b", "y"), w=(3, 6), b=(3,))),
    "a stack of matrices": (recognise_gemm, network((2, 5, 4), "y", node("MatMul", "x w", "y"), w=(2, 4, 3))),
    "a second bias that is stored as integers": (recognise_gemm, network((2, 4), "y", node("Gemm", "x w b", "g"),
        node("DequantizeLinear", "stored s z", "c"), node("Add", "g c", "y"), w=(3, 4), b=(3,),
        stored=np.array([5, 90, -100], np.int8), s=0.03, z=np.int8(0))),
    "a bias whose sum is limited": (recognise_gemm, network((4, 6), "y", node("Gemm", "x w", "g"),
        node("Add", "g b", "y", activation="Relu"), w=(3, 6), b=-np.ones(3, np.float32))),
    "a sum with a constant that is limited": (recognise_batch_norm,
        network((2, 3, 4, 4), "y", node("Add", "x c", "y", activation="Relu"), c=(3, 1, 1))),
    "a product with infinity": (recognise_batch_norm, network((2, 3), "y", node("Mul", "x c", "y"),
        c=np.array([1, np.inf, 2], np.float32))),
    "a scale that is computed": (fold_batch_norm, network((1, 3, 4, 4), "y", CONV,
        node("ReduceMax", "x", "scale", axes=(0, 2, 3), keepdims=0),
        node("BatchNormalization", "a scale bias mean var", "y"), w=KERNEL, bias=(3,), mean=(3,), var=(3,))),
    "batch normalisation before a reshape of samples": (fold_batch_norm,
        network((2, 3, 2), "y", node("BatchNormalization", "x scale bias mean var", "n"),
        node("Reshape", "n", "r", shape=(4, 3)), node("Gemm", "r w", "y"), scale=(3,), bias=(3,), mean=(3,),
        var=(3,), w=(5, 3))),
    "a maximum with twice the tensor": (recognise_activations, network((2, 3), "y", node("Mul", "x c", "a"),
        node("Max", "x a", "y"), c=2.0)),
    "a gate with an offset": (recognise_activations, network((2, 3), "y", node("Sigmoid", "x", "s"),
        node("Add", "s c", "g"), node("Mul", "x g", "y"), c=0.5)),
    "a gate times a number": (recognise_activations, network((2, 3), "y", node("Sigmoid", "x", "s"),
        node("Mul", "s c", "g"), node("Mul", "x g", "y"), c=2.0)),
    "a sigmoid of a sum": (recognise_activations, network((2, 3), "y", node("Sub", "one x", "n"),
        node("Exp", "n", "e"), node("Add", "e one", "s"), node("Div", "one s", "y"), one=1.0)),
    "a hard sigmoid from below zero": (recognise_activations, network((2, 3), "y", node("Mul", "x six", "m"),
        node("Add", "m three", "a"), node("Clip", "a", "b", min=-1.0, max=6.0), node("Div", "b six", "y"),
        three=3.0, six=6.0)),
    "samples along the channels of others": (SplitBatch(IMAGES), network(BATCH, "y", CONV,
        node("ReduceMax", "a", "v", axes=(1,), keepdims=0), node("Add", "a v", "y"), w=KERNEL)),
    "a sigmoid with another sum": (recognise_activations, network((2, 3), "y", node("Neg", "x", "n"),
        node("Exp", "n", "e"), node("Add", "e two", "s"), node("Reciprocal", "s", "y"), two=2.0)),
    "a sigmoid of the negative": (recognise_activations, network((2, 3), "y", node("Exp", "x", "e"),
        node("Add", "e one", "s"), node("Reciprocal", "s", "y"), one=1.0)),
    "a hard swish from 4": (recognise_activations, network((2, 3), "y", node("Add", "x three", "a"),
        node("Clip", "a", "b", min=4.0, max=6.0), node("Mul", "x b", "c"), node("Div", "c six", "y"), three=3.0,
        six=6.0)),
    "a hard sigmoid as the gate of another tensor": (recognise_activations,
        network((2, 3), "y", node("Tanh", "x", "z"), node("HardSigmoid", "x", "g", alpha=1 / 6, beta=0.5),
        node("Mul", "z g", "y"))),
    "a maximum with a number that is not 0": (recognise_activations,
        network((2, 3), "y", node("Max", "x c", "y"), c=0.5)),
    "padding between two steps": (recognise_quantisation, network((1, 2, 3, 3), "y", fake("x", "a", 0.1),
        node("Pad", "a", "b", pads=(0, 0, 1, 1, 0, 0, 1, 1), value=0.04), fake("b", "y", 0.1))),
    "coarser steps behind finer ones": (recognise_quantisation, network((2, 5), "y", fake("x", "a", 0.1),
        fake("a", "y", 0.25))),
    "coarser steps behind given integers": (recognise_quantisation, INTEGERS),
    "fractions that become integers": (recognise_quantisation, network((2, 5), "y", fake("x", "a", 0.1),
        node("Cast", "a", "i", to="int32"), node("Cast", "i", "y", to="float32"))),
    "a reshape of channels before global pooling": (unify_pooling,
        network((1, 4, 3, 3), "y", node("Reshape", "x", "r", shape=(1, 2, 6, 3)),
        node("GlobalAveragePool", "r", "y"))),
    "samples in reverse order": (SplitBatch(IMAGES), network(BATCH, "y", CONV,
        node("Slice", "a", "y", axes=(0,), starts=(2,), ends=(-1,), steps=(-1,)), w=KERNEL)),
    "samples as channels": (SplitBatch(IMAGES), network(BATCH, "y", CONV,
        node("Transpose", "a", "y", perm=(1, 0, 2, 3)), w=KERNEL)),
    "samples moved by padding": (SplitBatch(IMAGES), network(BATCH, "y", CONV,
        node("Pad", "a", "y", pads=(1, 0, 0, 0, -1, 0, 0, 0), value=2.0), w=KERNEL)),
    "a padded window as large as its map": (SplitBatch(IMAGES, 31),
        network((2, 3, 2, 2), "y", node("Conv", "x w", "y", pads=(1, 1, 1, 1)), w=(4, 3, 2, 2))),
    "a layer behind maxima of maps": (SplitBatch(IMAGES, 31), network(BATCH, "y",
        node("ReduceMax", "x", "r", axes=(2, 3), keepdims=0), node("Gemm", "r v", "g"),
        node("Reshape", "g", "a", shape=(3, 3, 1, 1)), node("Conv", "a w", "y"), w=KERNEL, v=(3, 3))),
    "rows by steps and columns backwards": (strided_slices_to_convs,
        network((1, 3, 5, 5), "y", node("Relu", "x", "a"), node("Slice", "a", "b", axes=(2, 3), starts=(0, 4),
        ends=(5, -1), steps=(2, -1)), node("Tanh", "b", "y"))),
    "a maximum mostly of padding": (SplitMaxPool(MaximumLimits(positions=8, extent=8, stride=8)),
        network((1, 2, 1, 9), "y", node("MaxPool", "x", "y", kernel_shape=(1, 9), pads=(0, 8, 0, 8)))),
    "a mean over channels and rows": (reductions_to_pools, network((1, 3, 4, 5), "y",
        node("ReduceMean", "x", "y", axes=(1, 2), keepdims=1))),
    "bands of rows of padding": (batch_norm_to_conv, network((1, 4, 6, 5), "y",
        node("Conv", "x w", "a", pads=(3, 0, 3, 0)), node("Reshape", "a", "b", shape=(1, 24, 2, 5)),
        node("BatchNormalization", "b scale bias mean var", "y"), w=(4, 4, 1, 1), scale=(24,), bias=(24,),
        mean=(24,), var=(24,))),
    "several rows": (GemmToConv(IMAGES), network((3, 8), "y", node("Gemm", "x w", "y"), w=(5, 8))),
    "phases whose channels lie together": (enlargements_to_interleaves,
        network((1, 2, 3, 3), "y", *(node(op, "x", op) for op in ("Relu", "Tanh", "Neg", "Abs")),
        node("Concat", "Relu Tanh Neg Abs", "c", axis=1), node("DepthToSpace", "c", "y", blocksize=2,
        mode="CRD"))),
    "a constant per sample": (SplitBatch(IMAGES), network(BATCH, "y", CONV, node("Add", "a c", "y"), w=KERNEL,
        c=(3, 1, 1, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_does_not_meet_a_condition_keeps_its_meaning(
    name: str, onnxruntime_values: Reference
) -> None:
    once, graph = GRAPHS[name]
    after = once(graph)
    after.check()
    given = feeds(graph)
    found = run(after, given)
    for output, value in onnxruntime_values(to_onnx(graph), given).items():
        assert found[output].shape == value.shape
        np.testing.assert_allclose(found[output], value, rtol=1e-4, atol=1e-5)


def test_an_average_of_one_window_that_is_partly_padding_is_of_what_it_meets(
    onnxruntime_values: Reference,
) -> None:
    pool = node("AveragePool", "x", "y", kernel_shape=(3, 3), pads=(1, 1, 0, 0))
    graph = network((1, 2, 2, 2), "y", pool)
    after = split_average_borders(graph)
    assert all(each.integer("count_include_pad") or not any(each.integers("pads", ())) for each in after.nodes)
    given = feeds(graph)
    expected = onnxruntime_values(to_onnx(graph), given)["y"]
    np.testing.assert_allclose(run(after, given)["y"], expected, rtol=1e-5)
