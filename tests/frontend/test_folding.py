"""What depends on constants and shapes only is a constant after import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array
from npuc.ops.interpreter import run
from tests.onnx_models import parse, tensors

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


def test_the_flatten_of_an_exported_network_becomes_one_reshape() -> None:
    text = """g (float[N,3,4,4] x) => (y)
        <int64 zero = {0}, int64[1] axes = {0}, int64[1] rest = {-1}> {
        s = Shape(x)
        n = Gather(s, zero)
        u = Unsqueeze(n, axes)
        t = Concat <axis = 0> (u, rest)
        y = Reshape(x, t)
    }"""
    graph = import_model(parse(text), None, {"x": (2, 3, 4, 4)})
    (node,) = graph.nodes
    assert (node.op, node.integers("shape")) == ("Reshape", (2, 48))
    assert not graph.constants


def test_the_resize_to_another_tensors_size_has_static_sizes() -> None:
    text = """g (float[1,2,5,6] x, float[1,7,9,11] z) => (y)
        <int64[1] two = {2}, int64[1] far = {99}, float[0] r = {}> {
        a = Shape(z)
        hw = Slice(a, two, far)
        b = Shape <end = 2> (x)
        size = Concat <axis = 0> (b, hw)
        y = Resize(x, r, r, size)
        unused = Relu(z)
    }"""
    graph = import_model(parse(text))
    assert graph.shape("y") == (1, 2, 9, 11) and [node.op for node in graph.nodes] == ["Resize"]


@pytest.mark.parametrize("node", [
    "Where(c, a, b)", "Range(one, nine, two)", "Mod(a, b)", "CumSum(a, zero)", "Equal(a, b)",
    "ReduceProd <keepdims = 0> (a)", "NonZero(a)", "ConstantOfShape(b)", "Cast <to = 11> (a)", "Div(a, b)",
    "Size(a)", "Tile(a, thrice)", "OneHot(a, nine, b2)",
])  # fmt: skip
def test_arithmetic_on_constants_equals_onnxruntime(node: str, onnxruntime_values: Reference) -> None:
    text = f"""g (float[1] x) => (y) <
        int64[3] a = {{7, -4, 2}}, int64[3] b = {{2, 3, 5}}, bool[3] c = {{1, 0, 1}}, int64 one = {{1}},
        int64 nine = {{9}}, int64 two = {{2}}, int64 zero = {{0}}, int64[1] thrice = {{3}}, int64[2] b2 = {{4, 5}}
    > {{ y = {node} }}"""
    model, feeds = parse(text), {"x": np.ones(1, np.float32)}
    graph = import_model(model)
    wanted = onnxruntime_values(model, feeds)["y"]
    assert not graph.nodes and graph.constants["y"].dtype == wanted.dtype
    np.testing.assert_array_equal(graph.constants["y"], wanted)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"])
def test_a_constant_saturates_where_it_is_cast_to_eight_bits(kind: str, onnxruntime_values: Reference) -> None:
    code = onnx.TensorProto.DataType.Value(kind)
    text = f"""g (float[4] x) => (y) <float[4] c = {{1.3, -500, 60000, 100000}}> {{
        q = Cast <to = {code}> (c)
        d = Cast <to = 1> (q)
        y = Add(x, d)
    }}"""
    model, feeds = parse(text, 19), {"x": np.zeros(4, np.float32)}
    wanted = onnxruntime_values(model, feeds)["y"]
    assert np.isfinite(wanted).all()
    np.testing.assert_array_equal(run(import_model(model), feeds)["y"], wanted)


@pytest.mark.parametrize(("attribute", "expected"), [
    ({"value": numpy_helper.from_array(np.array([[1, 2]], np.float32))}, np.array([[1, 2]], np.float32)),
    ({"value_float": 1.5}, np.array(1.5, np.float32)),
    ({"value_floats": [1.5, 2]}, np.array([1.5, 2], np.float32)), ({"value_int": 3}, np.array(3)),
    ({"value_ints": [3, 4]}, np.array([3, 4])), ({"value_string": "ab"}, np.array("ab", object)),
    ({"value_strings": ["ab", "c"]}, np.array(["ab", "c"], object)),
])  # fmt: skip
def test_a_constant_node_may_hold_its_value_in_any_form(attribute: dict[str, Any], expected: Array) -> None:
    model = parse("g (float[1] x) => (y) { y = Constant <value_int = 0> () }")
    model.graph.node[0].CopyFrom(helper.make_node("Constant", [], ["y"], **attribute))
    value = import_model(model).constants["y"]
    assert value.dtype == expected.dtype and value.shape == expected.shape and value.tolist() == expected.tolist()


def test_quantised_weights_become_float_constants() -> None:
    text = """g (float[1,2] x) => (y) <int8[2,2] q = {1, -2, 3, 4}, float[2] s = {0.5, 2}, int8[2] z = {0, 1}> {
        w = DequantizeLinear <axis = 1> (q, s, z)
        y = Add(x, w)
    }"""
    graph = import_model(parse(text))
    assert graph.constants["w"].tolist() == [[0.5, -6], [1.5, 6]]
    kept = import_model(parse(text), fold_weights=False)
    assert [node.op for node in kept.nodes] == ["DequantizeLinear", "Add"] and "q" in kept.constants


@pytest.mark.parametrize("taken", [True, False])
def test_a_constant_condition_chooses_its_branch(taken: bool) -> None:
    then_branch = parser.parse_graph("t () => (float[2] a) { d = Relu(x)\n a = Neg(d) }")
    else_branch = parser.parse_graph("e () => (float[2] a) <float[2] c = {1, 2}> { d = Exp(x)\n a = Add(d, c) }")
    model = parse("g (float[2] x) => (float[2] y) { b = Abs(x)\n y = Relu(b) }")
    del model.graph.node[1:]
    model.graph.initializer.extend(tensors({"cond": taken}))
    branches = {"then_branch": then_branch, "else_branch": else_branch}
    model.graph.node.append(helper.make_node("If", ["cond"], ["m"], name="if", **branches))
    model.graph.node.append(helper.make_node("Add", ["m", "b"], ["y"]))
    graph = import_model(model)
    inner = ["Relu", "Neg"] if taken else ["Exp", "Add"]
    assert sorted(node.op for node in graph.nodes) == sorted(["Abs", *inner, "Add"])
    x = np.array([1, -2], np.float32)
    wanted = -np.maximum(x, 0) + np.abs(x) if taken else np.exp(x) + np.arange(1, 3) + np.abs(x)
    np.testing.assert_allclose(run(graph, {"x": x})["y"], wanted, rtol=1e-6)


def test_a_condition_computed_at_run_time_is_refused() -> None:
    branch = parser.parse_graph("t () => (float[2] a) { a = Relu(x) }")
    model = parse("g (float[2] x, bool cond) => (float[2] y) { y = Relu(x) }")
    model.graph.node[0].CopyFrom(
        helper.make_node("If", ["cond"], ["y"], name="if", then_branch=branch, else_branch=branch)
    )
    with pytest.raises(NpucError) as refused:
        import_model(model)
    (problem,) = refused.value.problems
    assert (problem.code, problem.node) == ("E202", "if")


def test_a_models_own_functions_are_inlined() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[2] x) => (float[2] y) { a = own.twice(x)\n y = own.twice(a) }
    <domain: "own", opset_import: ["": 17]> twice (v) => (w) { w = Add(v, v) }"""
    graph = import_model(parse(text))
    assert [node.op for node in graph.nodes] == ["Add", "Add"]
    assert run(graph, {"x": np.array([1, -2], np.float32)})["y"].tolist() == [4, -8]


def test_an_attribute_that_a_call_leaves_out_has_the_functions_default(onnxruntime_values: Reference) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[4] x) => (y) { a = own.act(x)\n y = own.act <alpha = 0.5> (a) }
    <domain: "own", opset_import: ["": 17]>
    act <alpha: float = 0.25> (v) => (w) { w = LeakyRelu <alpha = @alpha> (v) }
    """
    model, x = parse(text), {"x": np.array([1, -2, 3, -4], np.float32)}
    np.testing.assert_allclose(run(import_model(model), x)["y"], onnxruntime_values(model, x)["y"], rtol=1e-5)
    assert run(import_model(model), x)["y"].tolist() == [1, -0.25, 3, -0.5]
    assert not model.graph.node[0].attribute


@pytest.mark.parametrize(("body", "ops"), [
    ("a = Relu(x)\n y = Identity(a)", ["Relu"]), ("y = Identity(x)", ["Identity"]),
    ("a = Identity(x)\n b = Identity(a)\n y = Neg(b)", ["Neg"]),
    ("a = Relu(x)\n y = Dropout(a)\n z = Neg(a)", ["Relu"]),
])  # fmt: skip
def test_identities_vanish_and_outputs_keep_their_names(body: str, ops: list[str]) -> None:
    graph = import_model(parse(f"g (float[2] x) => (y) {{ {body} }}"))
    assert graph.outputs == ("y",) and [node.op for node in graph.nodes] == ops


def test_two_names_of_one_tensor_can_both_be_outputs() -> None:
    graph = import_model(parse("g (float[2] x) => (y, z) { a = Relu(x)\n y = Identity(a)\n z = Identity(a) }"))
    found = run(graph, {"x": np.array([1, -1], np.float32)})
    assert found["y"].tolist() == found["z"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "node", ["ConstantOfShape(big)", "Range(zero, huge, one)", "Expand(one, big)", "Tile(v, big)"]
)
def test_a_constant_that_would_fill_the_memory_is_refused(node: str) -> None:
    text = f"""g (float[1] x) => (y) <
        int64[3] big = {{100000, 100000, 100000}}, int64 zero = {{0}}, int64 one = {{1}},
        int64 huge = {{1000000000000}}, int64[1,1,1] v = {{1}}
    > {{ y = {node} }}"""
    with pytest.raises(NpucError) as refused:
        import_model(parse(text))
    assert refused.value.problems[0].code == "E110"
