"""Every operator's numpy meaning and shape rule against onnxruntime, through the exporter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from npuc.errors import NpucError
from npuc.ir import Array, Graph, Node, TensorType, type_of
from npuc.onnx_files.export import to_onnx
from npuc.ops import OPS, build
from npuc.ops.interpreter import run
from tests.runtime import RUNTIME

Shape = tuple[int, ...]


def single(
    op: str, inputs: list[Array], attrs: dict[str, Any], outputs: int = 1, constants: Sequence[int] = ()
) -> Graph:
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


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CONSTANT = {
    "Conv": 2, "ConvTranspose": 2, "Gemm": 2, "PRelu": 1, "BatchNormalization": 4, "InstanceNormalization": 2,
    "Gather": 1, "QuantizeLinear": 2, "DequantizeLinear": 2,
}  # fmt: skip
"""How many of an operator's inputs, behind the first, are constants."""
CONVOLUTIONS: list[tuple[str, Shape, Shape, dict[str, Any]]] = [
    ("Conv", (2, 3, 9, 8), (4, 3, 3, 3), {}),
    ("Conv", (1, 3, 9, 8), (4, 3, 3, 3), {"strides": (2, 1), "pads": (1, 0, 2, 1)}),
    ("Conv", (1, 4, 9, 8), (6, 2, 3, 2), {"group": 2, "dilations": (2, 3)}),
    ("Conv", (1, 4, 7, 7), (8, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ("Conv", (1, 4, 5, 6), (3, 4, 1, 1), {"strides": (2, 2)}),
    ("Conv", (2, 3, 11), (5, 3, 4), {"strides": (3,), "pads": (2, 1)}),
    ("Conv", (1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"pads": (1, 0, 0, 0, 1, 1)}),
    ("ConvTranspose", (1, 3, 5, 4), (3, 2, 3, 3), {}),
    ("ConvTranspose", (2, 3, 5, 4), (3, 2, 3, 3),
     {"strides": (2, 3), "pads": (1, 0, 1, 2), "output_padding": (1, 2)}),
    ("ConvTranspose", (1, 4, 5, 4), (4, 3, 2, 3), {"group": 2, "dilations": (2, 1), "strides": (1, 2)}),
    ("ConvTranspose", (1, 4, 5), (4, 3, 4), {"strides": (2,), "pads": (1, 1)}),
    ("Gemm", (3, 5), (4, 5), {}),
]  # fmt: skip
"""With and without a bias."""
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
FUSED = (
    {"activation": "Relu"},
    {"activation": "Clip", "min": 0.0, "max": 6.0},
    {"activation": "Clip", "max": 0.5},
)
ALONE = """
    Abs Ceil Clip Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Reciprocal Relu Round
    Sigmoid Softplus Softsign Swish Tanh
"""
ATTRIBUTES: list[tuple[str, dict[str, Any]]] = [
    ("Clip", {"min": -0.5}), ("Clip", {"min": -0.5, "max": 1.0}), ("LeakyRelu", {"alpha": 0.3}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("Swish", {"alpha": 1.7}), ("Elu", {"alpha": 0.5}),
    ("Gelu", {"approximate": "tanh"}),
]  # fmt: skip
LARGE = np.array([[-500.0, -90.0, 0.0, 80.0]], np.float32)
SLICES = [
    {"axes": (1,), "starts": (1,), "ends": (4,), "steps": (1,)},
    {"axes": (0, 2), "starts": (0, 6), "ends": (2, 1), "steps": (2, -2)},
    {"axes": (2,), "starts": (6,), "ends": (-1,), "steps": (-1,)},
    {"axes": (2,), "starts": (6,), "ends": (-1,), "steps": (-3,)},
]
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
Case = tuple[str, Sequence[Shape | Array], dict[str, Any]]


def _layers() -> Iterator[Case]:
    for op, x, w, attrs in CONVOLUTIONS:
        channels = w[1] * attrs.get("group", 1) if op == "ConvTranspose" else w[0]
        yield op, (x, w), attrs
        yield op, (x, w, (channels,)), attrs
    for attrs in FUSED:
        yield from (("Conv", ((1, 3, 5, 5), (2, 3, 3, 3), (2,)), attrs), ("Gemm", ((2, 5), (3, 5), (3,)), attrs))
        yield "Add", ((2, 5), (2, 5)), attrs
    yield from (
        ("MatMul", each, {}) for each in (((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)))
    )
    for x, attrs in POOLS:
        yield "MaxPool", (x,), attrs
        yield from (("AveragePool", (x,), {**attrs, "count_include_pad": include}) for include in (0, 1))
    for op, x in product(("GlobalAveragePool", "GlobalMaxPool"), ((2, 3, 5, 4), (2, 3, 7), (1, 2, 3, 4, 5))):
        yield op, (x,), {}
    x, c = (2, 3, 5, 4), (3,)
    yield "BatchNormalization", (x, c, c, c, np.abs(noise(3))), {"epsilon": 1e-3}
    yield "InstanceNormalization", (x, c, c), {"epsilon": 1e-3}
    yield from (
        ("LRN", ((1, 7, 3, 3),), {"size": size, "alpha": 0.02, "beta": 0.6, "bias": 1.5}) for size in (3, 5)
    )


def _elements() -> Iterator[Case]:
    for op, attrs in (*((op, {}) for op in ALONE.split()), *ATTRIBUTES):
        yield op, (3 * noise(2, 3, 5, 4),), attrs
    yield from ((op, (np.abs(noise(2, 30)) + np.float32(0.01),), {}) for op in ("Sqrt", "Log"))
    for op in ("Exp", "Sigmoid", "Softplus", "Tanh", "Mish", "Swish", "Gelu", "Elu", "Softmax"):
        yield op, (LARGE,), {"axis": 1} if op == "Softmax" else {}  # without a warning
    yield from (("PRelu", ((2, 3, 5, 4), slope), {}) for slope in ((1,), (3, 1, 1), (3, 5, 4), (4,)))
    shapes = (((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 1, 1)), ((2, 3), ()))
    yield from ((op, each, {}) for op, each in product(("Add", "Sub", "Mul", "Div", "Max", "Min"), shapes))
    yield "Pow", (np.abs(noise(3, 4)), (4,)), {}
    yield "Pow", ((3, 4), np.array([2], np.int64)), {}
    yield "Div", (np.array([-7, 7, 6], np.int64), np.array([2, 2, -4], np.int64)), {}  # cut towards zero
    for dtype in ("int8", "uint8", "int16", "uint16"):
        steps = np.array(0.07, np.float32), np.array(3, dtype)
        yield "QuantizeLinear", (9 * noise(3, 40), *steps), {}
        yield "DequantizeLinear", (np.random.default_rng(0).integers(0, 120, (3, 40)).astype(dtype), *steps), {}
    scale, q = np.abs(noise(4, seed=1)) / 20, np.arange(96, dtype=np.int8).reshape(4, 4, 6)
    for axis in (0, 1):
        yield "QuantizeLinear", ((4, 4, 6), scale, np.arange(4, dtype=np.int8)), {"axis": axis}
        yield "DequantizeLinear", (q, scale, np.zeros(4, np.int8)), {"axis": axis}
        yield "DequantizeLinear", (q.astype(np.int32), scale), {"axis": axis}


def _movement() -> Iterator[Case]:
    x = (2, 3, 4)
    yield "Concat", (x, (2, 1, 4), (2, 2, 4)), {"axis": 1}
    yield "Split", ((2, 6, 4),), {"axis": 1, "split": (1, 3, 2)}
    yield from (("Slice", ((3, 5, 7),), attrs) for attrs in SLICES)
    for mode, pads in product(("constant", "reflect", "edge", "wrap"), ((0, 1, 2, 0, 3, 1), (0, 0, 2, 0, 0, 2))):
        yield "Pad", ((2, 4, 5),), {"pads": pads, "mode": mode, "value": 1.5 if mode == "constant" else 0.0}
    yield "Pad", ((2, 4, 5),), {"pads": (0, -1, 2, 0, 1, -2)}  # negative ones cut
    yield "Reshape", (x,), {"shape": (4, 6)}
    yield "Transpose", (x,), {"perm": (2, 0, 1)}
    yield "Expand", ((3, 1),), {"shape": (2, 3, 4)}
    yield "Gather", (x, np.array([[2, 0], [-1, 1]])), {"axis": 1}
    yield "Gather", (x, np.array(1)), {"axis": 2}
    yield "Cast", (4 * noise(*x),), {"to": "int32"}
    yield "Cast", (np.array([0, 1, 200], np.uint8),), {"to": "float32"}
    yield from (("DepthToSpace", ((2, 12, 3, 2),), {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD"))
    yield "SpaceToDepth", ((2, 3, 4, 6),), {"blocksize": 2}
    for op, keepdims in product(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), (0, 1)):
        yield op, ((2, 3, 4, 5),), {"axes": (1, 3), "keepdims": keepdims}
    for op, axis in product(("Softmax", "LogSoftmax"), range(3)):
        yield op, (4 * noise(3, 4, 5),), {"axis": axis}
    for last, keepdims in product((0, 1), repeat=2):
        yield "ArgMax", (np.round(noise(3, 8, 2)),), {"axis": 1, "keepdims": keepdims, "select_last_index": last}


def _resizes() -> Iterator[Case]:
    sizes = ((10, 12), (7, 9), (3, 4), (5, 1), (15, 18))
    for mode, coordinates, size in product(("nearest", "linear", "cubic"), COORDINATES, sizes):
        scales = {"sizes": (1, 2, *size), "scales": (1.0, 1.0, size[0] / 5, size[1] / 6)}
        yield "Resize", ((1, 2, 5, 6),), {"mode": mode, "coordinate_transformation_mode": coordinates, **scales}
    roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for rounding, coordinates, (scale, size) in product(roundings, COORDINATES, ((2.0, 14), (2.6, 18), (0.5, 3))):
        attrs = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
        yield "Resize", ((1, 2, 7, 3),), {**attrs, "scales": (1.0, 1.0, scale, 1.0), "sizes": (1, 2, size, 3)}
    attrs = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}
    yield "Resize", ((1, 2, 5, 6),), {**attrs, "scales": (1.0, 1.0, 2.0, 2.0), "sizes": (1, 2, 10, 12)}


@pytest.mark.parametrize(("op", "inputs", "attrs"), [*_layers(), *_elements(), *_movement(), *_resizes()])
def test_an_operator_equals_onnxruntime(op: str, inputs: Sequence[Shape | Array], attrs: dict[str, Any]) -> None:
    if RUNTIME < (1, 29) and op == "AveragePool" and attrs["count_include_pad"] and "ceil_mode" in attrs:
        pytest.skip("this onnxruntime divides windows that reach beyond the padding by another size")
    given = [noise(*each, seed=at) if isinstance(each, tuple) else each for at, each in enumerate(inputs)]
    graph = single(
        op, given, attrs, len(attrs["split"]) if op == "Split" else 1, range(1, CONSTANT.get(op, 0) + 1)
    )
    feeds = {name: given[int(name[1:])] for name in graph.inputs}
    found = run(graph, feeds)
    for name, wanted in zip(graph.outputs, under_onnxruntime(graph, feeds), strict=True):
        assert type_of(wanted) == graph.tensors[name]
        assert type_of(found[name]) == graph.tensors[name]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


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
