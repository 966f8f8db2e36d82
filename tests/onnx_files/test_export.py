from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import OnnxEmitter, to_onnx
from npuc.ops import OPS, build, with_operators
from npuc.ops.interpreter import run

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


def graph_of(*nodes: Node, shape: tuple[int, ...] = (1, 2, 4, 4), **constants: Array) -> Graph:
    return build("net", nodes, {"x": TensorType(shape)}, [nodes[-1].output], constants)


def small_net() -> Graph:
    weight = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    return graph_of(
        Node("Conv", ("x", "w"), ("c",), {"pads": (1, 1, 1, 1), "activation": "Relu"}, "conv", ("conv",)),
        Node("MaxPool", ("c",), ("p",), {"kernel_shape": (2, 2), "strides": (2, 2)}, "pool", ("pool",)),
        Node("Reshape", ("p",), ("f",), {"shape": (1, 12)}, "flat", ("flat",)),
        w=weight,
    )


def test_the_model_is_valid_and_plain() -> None:
    model = to_onnx(small_net())
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    assert [each.op_type for each in model.graph.node] == ["Conv", "Relu", "MaxPool", "Reshape"]
    assert [each.name for each in model.graph.node] == ["conv", "conv/Relu", "pool", "flat"]


def test_export_and_import_keep_the_meaning() -> None:
    graph, x = small_net(), np.random.default_rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32)
    again = import_model(to_onnx(graph))
    np.testing.assert_array_equal(run(again, {"x": x})["f"], run(graph, {"x": x})["f"])


def test_the_bytes_depend_on_the_graph_alone() -> None:
    first, second = (to_onnx(small_net()).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_inner_tensors_constants_and_inputs_can_be_outputs(onnxruntime_values: Reference) -> None:
    graph, x = small_net(), np.ones((1, 2, 4, 4), np.float32)
    found = onnxruntime_values(to_onnx(graph, ["c", "f", "c"]), {"x": x})
    assert list(found) == ["c", "f"]
    for name, value in run(graph, {"x": x}, ["c", "f"]).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    weight = onnxruntime_values(to_onnx(graph, ["w", "f"]), {"x": x})["w"]
    np.testing.assert_array_equal(weight, graph.constants["w"])


@pytest.mark.parametrize(("op", "attrs", "expected"), [
    ("Swish", {}, ["Sigmoid", "Mul"]), ("Swish", {"alpha": 2.0}, ["Mul", "Sigmoid", "Mul"]),
    ("Mish", {}, ["Softplus", "Tanh", "Mul"]),
    ("Pad", {"pads": (0, 0, 1, 0, 0, 0, 1, 2), "mode": "wrap"}, ["Gather", "Gather", "Identity"]),
])  # fmt: skip
def test_young_operators_are_written_in_older_ones(op: str, attrs: dict[str, Any], expected: list[str]) -> None:
    model = to_onnx(graph_of(Node(op, ("x",), ("y",), attrs, "n")))
    assert [each.op_type for each in model.graph.node] == expected
    assert model.opset_import[0].version == 17


def test_a_form_that_needs_a_younger_opset_gets_it() -> None:
    pool = Node("AveragePool", ("x",), ("y",), {"kernel_shape": (2, 2), "dilations": (2, 2)}, "n")
    mean = Node("ReduceMean", ("y",), ("z",), {"axes": (2, 3), "keepdims": 0}, "m")
    model = to_onnx(graph_of(pool, mean))
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 19


def test_a_reduction_of_no_axes_is_none_in_onnx_either(onnxruntime_values: Reference) -> None:
    graph, x = graph_of(Node("ReduceMean", ("x",), ("y",), {"axes": ()}, "n")), np.ones((1, 2, 4, 4), np.float32)
    np.testing.assert_array_equal(onnxruntime_values(to_onnx(graph), {"x": x})["y"], x)


def test_a_last_window_of_a_pool_needs_no_more_padding_than_onnx_allows(onnxruntime_values: Reference) -> None:
    attrs = {"kernel_shape": (3,), "pads": (2, 2), "strides": (2,), "dilations": (2,), "ceil_mode": 1}
    graph = graph_of(Node("MaxPool", ("x",), ("y",), attrs, "n"), shape=(1, 1, 2))
    x = np.array([[[1, 2]]], np.float32)
    expected = onnxruntime_values(to_onnx(graph), {"x": x})["y"]
    again = onnxruntime_values(to_onnx(import_model(to_onnx(graph))), {"x": x})["y"]
    np.testing.assert_array_equal(again, expected)


def test_a_resize_whose_scale_rounds_below_its_size_is_written_with_sizes() -> None:
    """20 * 1.55 is 31 in float32, and 30.999999 in the float64 in which onnxruntime infers shapes."""
    attrs: dict[str, Any] = {"scales": (1.0, 1.0, 1.55, 1.0), "sizes": (1, 2, 31, 3), "mode": "linear"}
    resize = Node("Resize", ("x",), ("y",), attrs, "resize", ("resize",))
    written = to_onnx(graph_of(resize, shape=(1, 2, 20, 3)))
    assert written.graph.node[0].input[2] == "" and len(written.graph.node[0].input) == 4
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(written, strict_mode=True, data_prop=True))


def test_a_zero_point_beyond_its_type_is_refused_before_it_is_written() -> None:
    fake = Node("FakeQuantize", ("x",), ("y",), {"scale": 0.1, "zero_point": -129, "dtype": "int8"}, "n")
    with pytest.raises(NpucError, match="The zero point is an integer of the type"):
        graph_of(fake)


def test_new_tensors_never_take_a_name_of_the_graph() -> None:
    graph = build(
        "g",
        [Node("Clip", ("x",), ("y",), {"min": 0.0}, "n"), Node("Add", ("y", "y/min"), ("z",), {}, "a")],
        {"x": TensorType((2,))},
        ["z"],
        {"y/min": np.ones(2, np.float32)},
    )
    model = to_onnx(graph)
    assert sorted(each.name for each in model.graph.initializer) == ["y/min", "y/min_2"]


def test_a_package_exports_its_own_operators() -> None:
    def twice(node: Node, emitter: OnnxEmitter) -> None:
        emitter.node("Mul", [*node.inputs, emitter.constant(np.float32(2), "two")], node.outputs)

    operators = with_operators(OPS, replace(OPS["Identity"], name="Twice", to_onnx=twice))
    graph = build("g", [Node("Twice", ("x",), ("y",), {}, "t")], {"x": TensorType((2,))}, ["y"], {}, operators)
    (node,) = to_onnx(graph).graph.node
    assert (node.op_type, node.name, list(node.input)) == ("Mul", "t/Mul", ["x", "y/two"])
