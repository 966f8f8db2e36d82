"""Every operator's numpy meaning and shape rule against onnxruntime, through the exporter."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from npuc.errors import NpucError
from npuc.interpreter import run
from npuc.ir import Array, Graph, Node, TensorType, type_of
from npuc.onnx_files.export import to_onnx
from npuc.ops import OPS, build
from tests.runtime import RUNTIME

Shape = tuple[int, ...]


def single(op: str, inputs: list[Array], attrs: dict[str, Any], outputs: int = 1, constants: Shape = ()) -> Graph:
    """A graph of one node; the inputs with the given indices are constants."""
    names = tuple(f"i{index}" for index in range(len(inputs)))
    node = Node(op, names, tuple(f"o{index}" for index in range(outputs)), attrs, "node", ("node",))
    values = dict(zip(names, inputs, strict=True))
    fed = {name: type_of(value) for index, (name, value) in enumerate(values.items()) if index not in constants}
    held = {name: value for name, value in values.items() if name not in fed}
    return build("g", [node], fed, node.outputs, held)


def under_onnxruntime(graph: Graph, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    model = to_onnx(graph).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(list(graph.outputs), feeds)]


def compare(op: str, inputs: list[Array], attrs: dict[str, Any], outputs: int = 1, constants: Shape = ()) -> None:
    graph = single(op, inputs, attrs, outputs, constants)
    feeds = {name: inputs[int(name[1:])] for name in graph.inputs}
    found = run(graph, feeds)
    for name, wanted in zip(graph.outputs, under_onnxruntime(graph, feeds), strict=True):
        assert type_of(wanted) == graph.tensors[name]
        assert type_of(found[name]) == graph.tensors[name]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CONVOLUTIONS = [
    ((2, 3, 9, 8), (4, 3, 3, 3), {}),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"strides": (2, 1), "pads": (1, 0, 2, 1)}),
    ((1, 4, 9, 8), (6, 2, 3, 2), {"group": 2, "dilations": (2, 3)}),
    ((1, 4, 7, 7), (8, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ((1, 4, 5, 6), (3, 4, 1, 1), {"strides": (2, 2)}),
    ((2, 3, 11), (5, 3, 4), {"strides": (3,), "pads": (2, 1)}),
    ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"pads": (1, 0, 0, 0, 1, 1)}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv_equals_onnxruntime(x: Shape, w: Shape, attrs: dict[str, Any], bias: bool) -> None:
    inputs = [noise(*x), noise(*w, seed=1), *([noise(w[0], seed=2)] if bias else [])]
    compare("Conv", inputs, attrs, constants=(1, 2))


@pytest.mark.parametrize(
    "attrs",
    [{"activation": "Relu"}, {"activation": "Clip", "min": 0.0, "max": 6.0}, {"activation": "Clip", "max": 0.5}],
)
def test_fused_activation_equals_a_separate_node(attrs: dict[str, Any]) -> None:
    compare("Conv", [noise(1, 3, 5, 5), noise(2, 3, 3, 3), noise(2)], attrs, constants=(1, 2))
    compare("Gemm", [noise(2, 5), noise(3, 5), noise(3)], attrs, constants=(1, 2))
    compare("Add", [noise(2, 5), noise(2, 5, seed=3)], attrs)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 3, 5, 4), (3, 2, 3, 3), {}),
        ((2, 3, 5, 4), (3, 2, 3, 3), {"strides": (2, 3), "pads": (1, 0, 1, 2), "output_padding": (1, 2)}),
        ((1, 4, 5, 4), (4, 3, 2, 3), {"group": 2, "dilations": (2, 1), "strides": (1, 2)}),
        ((1, 4, 5), (4, 3, 4), {"strides": (2,), "pads": (1, 1)}),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_conv_transpose_equals_onnxruntime(x: Shape, w: Shape, attrs: dict[str, Any], bias: bool) -> None:
    channels = w[1] * attrs.get("group", 1)
    inputs = [noise(*x), noise(*w, seed=1), *([noise(channels, seed=2)] if bias else [])]
    compare("ConvTranspose", inputs, attrs, constants=(1, 2))


@pytest.mark.parametrize("bias", [False, True])
def test_gemm_equals_onnxruntime(bias: bool) -> None:
    compare("Gemm", [noise(3, 5), noise(4, 5), *([noise(4)] if bias else [])], {}, constants=(1, 2))


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
    ],
)
def test_matmul_equals_onnxruntime(x: Shape, y: Shape) -> None:
    compare("MatMul", [noise(*x), noise(*y, seed=1)], {})


POOLS = [
    ((1, 2, 9, 8), {"kernel_shape": (3, 3)}),
    ((1, 2, 9, 8), {"kernel_shape": (2, 3), "strides": (2, 2), "pads": (1, 1, 0, 2)}),
    ((1, 2, 9, 8), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}),
    ((1, 2, 9, 8), {"kernel_shape": (3, 3), "strides": (3, 3), "pads": (1, 1, 1, 1), "ceil_mode": 1}),
    ((1, 2, 4, 4), {"kernel_shape": (1, 2), "strides": (3, 3), "pads": (0, 1, 0, 1), "ceil_mode": 1}),
    ((1, 2, 10, 9), {"kernel_shape": (3, 2), "dilations": (2, 3)}),
    ((1, 2, 10, 9), {"kernel_shape": (3, 2), "dilations": (2, 3), "pads": (2, 1, 1, 1), "strides": (2, 2)}),
    ((2, 3, 11), {"kernel_shape": (4,), "strides": (3,), "pads": (1, 2), "ceil_mode": 1}),
]


@pytest.mark.parametrize(("x", "attrs"), POOLS)
def test_max_pool_equals_onnxruntime(x: Shape, attrs: dict[str, Any]) -> None:
    compare("MaxPool", [noise(*x)], attrs)


@pytest.mark.parametrize(("x", "attrs"), POOLS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_equals_onnxruntime(x: Shape, attrs: dict[str, Any], include: int) -> None:
    if RUNTIME < (1, 29) and include and "ceil_mode" in attrs:
        pytest.skip("this onnxruntime divides windows that reach beyond the padding by another size")
    compare("AveragePool", [noise(*x)], {**attrs, "count_include_pad": include})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 7), (1, 2, 3, 4, 5)])
def test_global_pool_equals_onnxruntime(op: str, shape: Shape) -> None:
    compare(op, [noise(*shape)], {})


ALONE = """
    Abs Ceil Clip Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Reciprocal Relu Round
    Sigmoid Softplus Softsign Swish Tanh
"""
UNARY: list[tuple[str, dict[str, Any]]] = [
    *((op, {}) for op in ALONE.split()),
    ("Clip", {"min": -0.5}),
    ("Clip", {"min": -0.5, "max": 1.0}),
    ("LeakyRelu", {"alpha": 0.3}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("Swish", {"alpha": 1.7}),
    ("Elu", {"alpha": 0.5}),
    ("Gelu", {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("op", "attrs"), UNARY)
def test_activation_equals_onnxruntime(op: str, attrs: dict[str, Any]) -> None:
    compare(op, [3 * noise(2, 3, 5, 4)], attrs)


@pytest.mark.parametrize("op", ["Sqrt", "Log"])
def test_square_root_and_logarithm_equal_onnxruntime(op: str) -> None:
    compare(op, [np.abs(noise(2, 30)) + np.float32(0.01)], {})


@pytest.mark.parametrize("op", ["Exp", "Sigmoid", "Softplus", "Tanh", "Mish", "Swish", "Gelu", "Elu", "Softmax"])
def test_activation_of_large_values_neither_warns_nor_differs(op: str) -> None:
    compare(op, [np.array([[-500.0, -90.0, 0.0, 80.0]], np.float32)], {"axis": 1} if op == "Softmax" else {})


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (3, 5, 4), (4,)])
def test_prelu_equals_onnxruntime(slope: Shape) -> None:
    compare("PRelu", [noise(2, 3, 5, 4), noise(*slope, seed=1)], {}, constants=(1,))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize(
    ("x", "y"), [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 1, 1)), ((2, 3), ())]
)
def test_binary_operator_equals_onnxruntime(op: str, x: Shape, y: Shape) -> None:
    compare(op, [noise(*x), noise(*y, seed=1)], {})


def test_power_equals_onnxruntime() -> None:
    compare("Pow", [np.abs(noise(3, 4)), noise(4, seed=1)], {})
    compare("Pow", [noise(3, 4), np.array([2], np.int64)], {})


def test_integer_division_is_cut_towards_zero() -> None:
    compare("Div", [np.array([-7, 7, 6], np.int64), np.array([2, 2, -4], np.int64)], {})


def test_batch_and_instance_normalisation_equal_onnxruntime() -> None:
    x, c = noise(2, 3, 5, 4), noise(3, seed=1)
    compare("BatchNormalization", [x, c, c, c, np.abs(c)], {"epsilon": 1e-3}, constants=(1, 2, 3, 4))
    compare("InstanceNormalization", [x, c, c], {"epsilon": 1e-3}, constants=(1, 2))


@pytest.mark.parametrize("size", [3, 5])
def test_lrn_equals_onnxruntime(size: int) -> None:
    compare("LRN", [noise(1, 7, 3, 3)], {"size": size, "alpha": 0.02, "beta": 0.6, "bias": 1.5})


def test_concat_and_split_equal_onnxruntime() -> None:
    compare("Concat", [noise(2, 3, 4), noise(2, 1, 4), noise(2, 2, 4)], {"axis": 1})
    compare("Split", [noise(2, 6, 4)], {"axis": 1, "split": (1, 3, 2)}, outputs=3)


@pytest.mark.parametrize(
    "attrs",
    [
        {"axes": (1,), "starts": (1,), "ends": (4,), "steps": (1,)},
        {"axes": (0, 2), "starts": (0, 6), "ends": (2, 1), "steps": (2, -2)},
        {"axes": (2,), "starts": (6,), "ends": (-1,), "steps": (-1,)},
        {"axes": (2,), "starts": (6,), "ends": (-1,), "steps": (-3,)},
    ],
)
def test_slice_equals_onnxruntime(attrs: dict[str, Any]) -> None:
    compare("Slice", [noise(3, 5, 7)], attrs)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0, 3, 1), (0, 0, 2, 0, 0, 2)])
def test_pad_equals_onnxruntime(mode: str, pads: Shape) -> None:
    compare("Pad", [noise(2, 4, 5)], {"pads": pads, "mode": mode, "value": 1.5 if mode == "constant" else 0.0})


def test_negative_pads_cut() -> None:
    compare("Pad", [noise(2, 4, 5)], {"pads": (0, -1, 2, 0, 1, -2)})


def test_movement_equals_onnxruntime() -> None:
    x = noise(2, 3, 4)
    compare("Reshape", [x], {"shape": (4, 6)})
    compare("Transpose", [x], {"perm": (2, 0, 1)})
    compare("Expand", [noise(3, 1)], {"shape": (2, 3, 4)})
    compare("Gather", [x, np.array([[2, 0], [-1, 1]])], {"axis": 1}, constants=(1,))
    compare("Gather", [x, np.array(1)], {"axis": 2}, constants=(1,))
    compare("Cast", [4 * x], {"to": "int32"})
    compare("Cast", [np.array([0, 1, 200], np.uint8)], {"to": "float32"})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_of_pixels_and_channels_equal_onnxruntime(mode: str) -> None:
    compare("DepthToSpace", [noise(2, 12, 3, 2)], {"blocksize": 2, "mode": mode})
    compare("SpaceToDepth", [noise(2, 3, 4, 6)], {"blocksize": 2})


COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [(10, 12), (7, 9), (3, 4), (5, 1), (15, 18)])
def test_resize_equals_onnxruntime(mode: str, coordinates: str, size: Shape) -> None:
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates, "sizes": (1, 2, *size)}
    compare("Resize", [noise(1, 2, 5, 6)], {**attrs, "scales": (1.0, 1.0, size[0] / 5, size[1] / 6)})


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_resize_rounds_as_onnxruntime(rounding: str, coordinates: str) -> None:
    attrs = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    for scale, size in ((2.0, 14), (2.6, 18), (0.5, 3)):
        more = {"scales": (1.0, 1.0, scale, 1.0), "sizes": (1, 2, size, 3)}
        compare("Resize", [noise(1, 2, 7, 3)], {**attrs, **more})


def test_cubic_resize_can_exclude_what_lies_outside() -> None:
    attrs = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    compare("Resize", [noise(1, 2, 5, 6)], {**attrs, "scales": (1.0, 1.0, 2.0, 2.0), "sizes": (1, 2, 10, 12)})


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduction_equals_onnxruntime(op: str, keepdims: int) -> None:
    compare(op, [noise(2, 3, 4, 5)], {"axes": (1, 3), "keepdims": keepdims})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_equals_onnxruntime(op: str, axis: int) -> None:
    compare(op, [4 * noise(3, 4, 5)], {"axis": axis})


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_arg_max_equals_onnxruntime(last: int, keepdims: int) -> None:
    x = np.round(noise(3, 8, 2))
    compare("ArgMax", [x], {"axis": 1, "keepdims": keepdims, "select_last_index": last})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_quantisation_per_tensor_equals_onnxruntime(dtype: str) -> None:
    zero = np.array(3, dtype)
    compare("QuantizeLinear", [9 * noise(3, 40), np.array(0.07, np.float32), zero], {}, constants=(1, 2))
    x = np.random.default_rng(0).integers(0, 120, (3, 40)).astype(dtype)
    compare("DequantizeLinear", [x, np.array(0.07, np.float32), zero], {}, constants=(1, 2))


@pytest.mark.parametrize("axis", [0, 1])
def test_quantisation_per_axis_equals_onnxruntime(axis: int) -> None:
    x, scale = noise(4, 4, 6), np.abs(noise(4, seed=1)) / 20
    compare("QuantizeLinear", [x, scale, np.arange(4, dtype=np.int8)], {"axis": axis}, constants=(1, 2))
    q = np.arange(96, dtype=np.int8).reshape(4, 4, 6)
    compare("DequantizeLinear", [q, scale, np.zeros(4, np.int8)], {"axis": axis}, constants=(1, 2))
    compare("DequantizeLinear", [q.astype(np.int32), scale], {"axis": axis}, constants=(1,))


def test_every_operator_has_a_summary_that_is_one_sentence() -> None:
    for op in OPS.values():
        assert op.summary.endswith(".") and "\n" not in op.summary


F = TensorType
REFUSED: list[tuple[str, list[TensorType], dict[str, Any], str]] = [
    ("Conv", [F((1, 3, 5, 5)), F((2, 4, 3, 3))], {}, "w has shape [2, 4, 3, 3]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 3))], {}, "w float32[2, 3, 3]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 6, 3))], {}, "the kernel spans 6 elements, the padded input has 5"),
    ("Conv", [F((1, 4, 5, 5)), F((3, 2, 3, 3))], {"group": 2}, "w has shape [3, 2, 3, 3]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 3, 3))], {"group": 2}, "x has shape [1, 3, 5, 5]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 3, 3)), F((3,))], {}, "bias has shape [3]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 3, 3))], {"strides": (0, 1)}, "strides is [0, 1]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 3, 3))], {"pads": (1, 1)}, "pads is [1, 1]"),
    ("Conv", [F((1, 3, 5, 5)), F((2, 3, 3, 3))], {"kernel_shape": (5, 5)}, "kernel_shape [5, 5]"),
    ("Conv", [F((1, 3, 5, 5), "int8"), F((2, 3, 3, 3))], {}, "the element type of x is int8"),
    ("ConvTranspose", [F((1, 3, 5, 5)), F((2, 3, 3, 3))], {}, "w has shape [2, 3, 3, 3]"),
    ("ConvTranspose", [F((1, 3, 1, 1)), F((3, 3, 2, 2))], {"pads": (1, 1, 1, 1)}, "pads [1, 1, 1, 1]"),
    ("Gemm", [F((2, 5)), F((5, 3))], {}, "w has shape [5, 3]"),
    ("MatMul", [F((2, 5)), F((4, 3))], {}, "b float32[4, 3]"),
    ("MatMul", [F(()), F((4, 3))], {}, "a float32[]"),
    ("Add", [F((2, 3)), F((2, 4))], {}, "do not broadcast"),
    ("Add", [F((2, 3)), F((2, 3), "int64")], {}, "the element type of b is int64"),
    ("PRelu", [F((2, 3)), F((2, 2, 3))], {}, "slope float32[2, 2, 3]"),
    ("BatchNormalization", [F((1, 3, 2)), *[F((4,))] * 4], {}, "scale has shape [4]"),
    ("MaxPool", [F((1, 3, 5, 5))], {"kernel_shape": (2,)}, "kernel_shape is [2]"),
    ("MaxPool", [F((1, 3, 5, 5))], {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, "pads [2, 0, 0, 0]"),
    ("Concat", [F((2, 3)), F((3, 3))], {"axis": 1}, "inputs float32[3, 3]"),
    ("Concat", [F((2, 3)), F((3, 3))], {"axis": 2}, "axis is 2"),
    ("Split", [F((2, 5))], {"axis": 1, "split": (2,)}, "split [2]"),
    ("Pad", [F((2, 5))], {"pads": (0, 5, 0, 0), "mode": "reflect"}, "pads [0, 5, 0, 0]"),
    ("Pad", [F((2, 5))], {"pads": (0, 5)}, "pads is [0, 5]"),
    ("Reshape", [F((2, 5))], {"shape": (3, 3)}, "shape [3, 3]"),
    ("Transpose", [F((2, 5))], {"perm": (0, 0)}, "perm is [0, 0]"),
    ("Expand", [F((2, 5))], {"shape": (2, 6)}, "shape [2, 6]"),
    ("Gather", [F((2, 5)), F((1,))], {"axis": 0}, "the element type of indices is float32"),
    ("DepthToSpace", [F((1, 6, 2, 2))], {"blocksize": 2}, "x has shape [1, 6, 2, 2]"),
    ("SpaceToDepth", [F((1, 6, 3, 2))], {"blocksize": 2}, "x has shape [1, 6, 3, 2]"),
    ("ReduceMean", [F((2, 3))], {"axes": (1, 1)}, "axes is [1, 1]"),
    ("Softmax", [F((2, 3))], {"axis": 2}, "axis is 2"),
    ("DequantizeLinear", [F((2, 3), "int8"), F((2,))], {"axis": 1}, "scale float32[2]"),
    ("DequantizeLinear", [F((2, 3)), F(())], {}, "the element type of x is float32"),
    ("Resize", [F((1, 2))], {"sizes": (1, 2), "scales": (1.0, 1.0), "mode": "lanczos"}, "mode is 'lanczos'"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "reason"), REFUSED)
def test_contradiction_is_refused(op: str, types: list[TensorType], attrs: dict[str, Any], reason: str) -> None:
    names = tuple(f"i{index}" for index in range(len(types)))
    node = Node(op, names, ("y",), attrs, "node")
    with pytest.raises(NpucError) as refused:
        build("g", [node], dict(zip(names, types, strict=True)), ["y"], {})
    (problem,) = refused.value.problems
    assert problem.code in ("E105", "E107") and problem.node == "node" and problem.op == op
    assert reason in problem.reason


def test_index_outside_the_axis_is_refused() -> None:
    graph = single("Gather", [noise(2, 3), np.array([3])], {"axis": 1}, constants=(1,))
    with pytest.raises(NpucError, match="lies outside"):
        run(graph, {"i0": noise(2, 3)})
