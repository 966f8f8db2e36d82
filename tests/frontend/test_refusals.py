"""Bad models: each gives one error block with the right code, and never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from npuc.errors import ModelError, NpucError, Problem, UnsupportedOperator
from npuc.frontend import import_model, load
from npuc.frontend.reading import NEWEST_OPSET
from npuc.ops.interpreter import run
from tests.conftest import Reference
from tests.onnx_models import parse


def model_of(text: str, opset: int = 17) -> onnx.ModelProto:
    """A model written in ONNX's own textual form: `name (inputs) => (outputs) {nodes}`."""
    return parse(text, opset)


def problems_of(model: onnx.ModelProto) -> tuple[Problem, ...]:
    with pytest.raises(NpucError) as refused:
        import_model(model)
    return refused.value.problems


def problem_of(model: onnx.ModelProto) -> Problem:
    (problem,) = problems_of(model)
    return problem


def file_problem(path: Path) -> Problem:
    with pytest.raises(ModelError) as refused:
        load(path)
    (problem,) = refused.value.problems
    return problem


RELU = "g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Relu(x) }"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    problem = file_problem(tmp_path / "absent.onnx")
    assert problem.code == "E101" and "absent.onnx" in problem.reason and problem.remedy


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert file_problem(tmp_path).code == "E101"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="every file is readable for this user")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"x")
    path.chmod(0)
    assert file_problem(path).code == "E101"


@pytest.mark.parametrize("data", [b"", b"hello, world\n", b"\x89PNG\r\n\x1a\n", b"\x00" * 64, b"\x08\x08"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert file_problem(path).code == "E102"


def test_every_truncation_is_refused_or_still_a_whole_model(tmp_path: Path) -> None:
    data, path = model_of(RELU).SerializeToString(), tmp_path / "m.onnx"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(NpucError):
            load(path)


@pytest.mark.parametrize("opset", [0, NEWEST_OPSET + 1, 99])
def test_an_opset_outside_the_range_is_refused_with_the_range(opset: int) -> None:
    model = model_of(RELU)
    model.opset_import[0].version = opset
    problem = problem_of(model)
    assert problem.code == "E103" and str(opset) in problem.reason
    assert problem.limit == f"opset 7 to {NEWEST_OPSET}"


def test_a_model_without_an_opset_is_refused() -> None:
    model = model_of(RELU)
    del model.opset_import[:]
    assert problem_of(model).code == "E103"


def test_all_unknown_operators_are_reported_at_once() -> None:
    text = """g (float[1,3] x) => (float[1,3] y) {
        a = Sin(x)
        b = Relu(a)
        c = Cos(b)
        y = Add(c, x)
    }"""
    model = model_of(text)
    model.graph.node[0].name = "first"
    with pytest.raises(UnsupportedOperator) as refused:
        import_model(model)
    found = [(each.code, each.op, each.node) for each in refused.value.problems]
    assert found == [("E201", "Sin", "first"), ("E201", "Cos", "Cos_2")]


def test_arithmetic_on_shapes_behind_an_unknown_operator_is_not_blamed() -> None:
    text = """g (float[2,3] x) => (float y) {
        a = NonZero(x)
        s = Shape(a)
        p = ReduceProd(s)
        z = Cast <to = 1> (p)
        y = Relu(z)
    }"""
    assert [each.op for each in problems_of(model_of(text))] == ["NonZero"]


def test_unknown_operators_and_contradictions_are_reported_together() -> None:
    text = "g (float[2,3] x, float[4,5] z) => (float[2,3] y, float[2,3] w) { y = Sin(x)\n w = Add(x, z) }"
    with pytest.raises(ModelError) as refused:
        import_model(model_of(text))
    assert [each.code for each in refused.value.problems] == ["E201", "E105"]


def test_an_operator_of_another_domain_is_unknown_and_the_domain_is_named() -> None:
    model = model_of(RELU)
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    problem = problem_of(model)
    assert problem.code == "E201" and "com.microsoft" in problem.reason


def test_an_operator_that_the_opset_no_longer_has_is_refused() -> None:
    model = model_of(RELU)
    model.graph.node[0].op_type = "Upsample"
    problem = problem_of(model)
    assert problem.code == "E105" and "opset 17" in problem.reason


def test_a_loop_is_refused_by_name() -> None:
    body = parser.parse_graph(
        "b (int64 i, bool c, float[1,3] a) => (bool d, float[1,3] e) { d = Identity(c)\n e = Relu(a) }"
    )
    model = model_of("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
    del model.graph.node[:]
    count = numpy_helper.from_array(np.array(3), "n")
    model.graph.initializer.append(count)
    model.graph.node.append(helper.make_node("Loop", ["n", "", "x"], ["y"], name="loop", body=body))
    problem = problem_of(model)
    assert (problem.code, problem.op, problem.node) == ("E201", "Loop", "loop")


def test_a_cycle_is_refused() -> None:
    model = model_of("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Add", ["x", "q"], ["p"], name="first"))
    model.graph.node.append(helper.make_node("Relu", ["p"], ["q"], name="second"))
    model.graph.node.append(helper.make_node("Relu", ["q"], ["y"]))
    problem = problem_of(model)
    assert problem.code == "E104" and "cycle" in problem.reason and problem.node == "first"


def test_a_tensor_that_nothing_writes_is_refused() -> None:
    model = model_of(RELU)
    model.graph.node[0].input[0] = "nowhere"
    problem = problem_of(model)
    assert (problem.code, problem.tensor) == ("E104", "nowhere")


def test_an_output_that_nothing_writes_is_refused() -> None:
    model = model_of(RELU)
    model.graph.output[0].name = "nowhere"
    problem = problem_of(model)
    assert (problem.code, problem.tensor) == ("E104", "nowhere")


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_tensor_that_is_written_twice_is_refused(name: str) -> None:
    model = model_of(RELU)
    model.graph.node.append(helper.make_node("Relu", ["x"], [name]))
    problem = problem_of(model)
    assert (problem.code, problem.tensor) == ("E104", name)


def _with_function(name: str, domain: str) -> onnx.ModelProto:
    """A model that calls a function of this name and domain, which doubles its input."""
    call = f"{domain}.{name}" if domain else name
    own = f', "{domain}": 1' if domain else ""
    header = f'<ir_version: 10, opset_import: ["": 20{own}]> g (float[1,4] x) => (float[1,4] y)'
    function = f'<domain: "{domain}", opset_import: ["": 20]> {name} (a) => (b) {{ b = Add(a, a) }}'
    return parser.parse_model(f"{header} {{ y = {call}(x) }} {function}")


@pytest.mark.parametrize("name", ["Relu", "Gelu"])
def test_a_function_with_the_name_of_an_operator_is_refused(name: str) -> None:
    """onnxruntime computes the operator, ONNX's inliner the function; ONNX leaves it to the runtime."""
    problem = problem_of(_with_function(name, ""))
    assert (problem.code, problem.op) == ("E104", name)


@pytest.mark.parametrize("name", ["Gelu", "QuickGelu", "BiasGelu"])
def test_a_function_with_the_name_of_an_operator_of_onnxruntime_is_refused(name: str) -> None:
    """onnxruntime computes the operator there too; before, a compile ended in E603."""
    problem = problem_of(_with_function(name, "com.microsoft"))
    assert (problem.code, problem.op) == ("E104", name)
    assert "com.microsoft" in problem.reason


def test_other_functions_in_the_domain_of_onnxruntime_are_their_bodies(onnxruntime_values: Reference) -> None:
    model, feeds = _with_function("Double", "com.microsoft"), {"x": np.array([[1, -2, 3, -0.5]], np.float32)}
    np.testing.assert_array_equal(run(import_model(model), feeds)["y"], onnxruntime_values(model, feeds)["y"])


@pytest.mark.parametrize("name", ["Relu", "Gelu", "Double"])
def test_a_function_of_another_domain_is_its_body(name: str, onnxruntime_values: Reference) -> None:
    model, feeds = _with_function(name, "own"), {"x": np.array([[1, -2, 3, -0.5]], np.float32)}
    np.testing.assert_array_equal(run(import_model(model), feeds)["y"], onnxruntime_values(model, feeds)["y"])


def test_outputs_need_names() -> None:
    model = model_of(RELU)
    model.graph.output.add()
    assert problem_of(model).code == "E104"


def test_a_tensor_may_be_an_output_twice() -> None:
    model = model_of(RELU)
    model.graph.output.append(model.graph.output[0])
    onnx.checker.check_model(model, full_check=True)
    assert import_model(model).outputs == ("y",)


def test_nodes_in_any_order_are_accepted() -> None:
    model = model_of("g (float[1] x) => (float[1] y) { a = Relu(x)\n y = Neg(a) }")
    model.graph.node.insert(0, model.graph.node.pop())
    assert [node.op for node in import_model(model).nodes] == ["Relu", "Neg"]


def test_a_wrong_weight_shape_is_refused_with_node_and_tensor() -> None:
    model = model_of("g (float[1,3,5,5] x, float[8,4,3,3] w) => (float[1,8,3,3] y) { y = Conv(x, w) }")
    model.graph.node[0].name = "stem/conv"
    problem = problem_of(model)
    assert (problem.code, problem.node, problem.op, problem.tensor) == ("E105", "stem/conv", "Conv", "w")
    assert problem.limit == "[P, 3, K, T...]"


@pytest.mark.parametrize(("node", "reason"), [
    (helper.make_node("Relu", ["x", "x"], ["y"]), "2 inputs"),
    (helper.make_node("Relu", [], ["y"]), "0 inputs"),
    (helper.make_node("Relu", [""], ["y"]), "input 0 is absent"),
    (helper.make_node("Concat", ["x", ""], ["y"], axis=0), "input 1 is absent"),
    (helper.make_node("Relu", ["x"], ["y", "z"]), "2 outputs"),
    (helper.make_node("Relu", ["x"], ["y"], alpha=1.0), "no attribute 'alpha'"),
    (helper.make_node("LeakyRelu", ["x"], ["y"], alpha=1), "'alpha' is INT, not FLOAT"),
    (helper.make_node("Concat", ["x", "x"], ["y"]), "'axis' is missing"),
    (helper.make_node("Softmax", ["x"], ["y"], axis=4), "axis 4"),
    (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 1]), "perm is [0, 1]"),
    (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], auto_pad="SAME"), "auto_pad is 'SAME'"),
    (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2]), "strides is [2]"),
    (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2]), "a kernel of shape [2]"),
    (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1 << 40] * 4), "pads is"),
    (helper.make_node("Pad", ["x", "x"], ["y"]), "input 1 is computed at run time"),
    (helper.make_node("Reshape", ["x", "bad"], ["y"]), "do not fit into"),
    (helper.make_node("Unsqueeze", ["x", "bad"], ["y"]), "axis 7"),
])  # fmt: skip
def test_a_malformed_node_is_refused(node: onnx.NodeProto, reason: str) -> None:
    model = model_of(RELU)
    del model.graph.node[:]
    node.name = "here"
    model.graph.node.append(node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([7, -1]), "bad"))
    problem = problem_of(model)
    assert problem.code in ("E105", "E106") and problem.node == "here" and problem.op == node.op_type
    assert reason in problem.reason


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16", "string", "complex64"])
def test_an_input_of_another_float_type_is_refused_by_name(dtype: str) -> None:
    problem = problem_of(model_of(f"g ({dtype}[1,3] x) => ({dtype}[1,3] y) {{ y = Identity(x) }}"))
    assert (problem.code, problem.tensor) == ("E107", "x") and problem.remedy


def test_a_model_of_mixed_precision_is_refused_at_its_cast() -> None:
    text = "g (float[1,3] x) => (float[1,3] y) { h = Cast <to = 10> (x)\n r = Relu(h)\n y = Cast <to = 1> (r) }"
    problem = problem_of(model_of(text))
    assert (problem.code, problem.op, problem.tensor) == ("E107", "Cast", "h")


def test_half_precision_weights_without_a_cast_are_refused_by_name() -> None:
    model = model_of("g (float[1,3,5,5] x, float16[8,3,3,3] w) => (float[1,8,3,3] y) { y = Conv(x, w) }")
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((8, 3, 3, 3), np.float16), "w"))
    problem = problem_of(model)
    assert (problem.code, problem.tensor) == ("E107", "w")


def test_half_precision_constants_that_are_cast_to_float_are_accepted() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { f = Cast <to = 1> (h)\n y = Add(x, f) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array([0.5, 2], np.float16), "h"))
    graph = import_model(model)
    assert graph.constants["f"].dtype == np.float32 and graph.constants["f"].tolist() == [0.5, 2]


def test_a_sequence_as_input_is_refused() -> None:
    model = model_of(RELU)
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None))
    assert problem_of(model).code == "E107"


@pytest.mark.parametrize("change", ["dims", "negative", "type"])
def test_a_constant_that_contradicts_itself_is_refused_by_name(change: str) -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Add(x, c) }")
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "c")
    if change == "type":
        tensor.data_type = 77
    else:
        tensor.dims[0] = 3 if change == "dims" else -1
    model.graph.initializer.append(tensor)
    problem = problem_of(model)
    assert problem.code in ("E105", "E107") and problem.tensor == "c"


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(RELU).SerializeToString().replace(b"Relu", b"Re\xfflu"[:4]))
    assert file_problem(path).code == "E102"


def test_an_output_that_is_not_computed_may_be_there_but_not_read() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,2,2] y) { y, i = MaxPool <kernel_shape = [3, 3]> (x) }"
    assert import_model(model_of(text)).outputs == ("y",)
    model = model_of(text)
    model.graph.output.append(helper.make_tensor_value_info("i", TensorProto.INT64, [1, 2, 2, 2]))
    problem = problem_of(model)
    assert (problem.code, problem.op) == ("E202", "MaxPool") and "'i'" in problem.reason


CORNERS = 'Resize <coordinate_transformation_mode = "align_corners", mode = "linear"> (x, r, s)'


@pytest.mark.parametrize(("node", "reason"), [
    ("BatchNormalization <training_mode = 1> (x, c, c, c, c)", "training mode"),
    (CORNERS, "align_corners with scales that give fractional sizes"),
    ('Resize <axes = [-1], keep_aspect_ratio_policy = "not_larger"> (x, , , z)',
     "not_larger along negative axes"),
    ("Squeeze (x, e)", "an empty list of axes"),
    ("Celu <alpha = -2.0> (x)", "alpha is -2"),
])  # fmt: skip
def test_a_sound_form_that_npuc_lacks_is_refused_with_a_remedy(node: str, reason: str) -> None:
    model = model_of(f"g (float[1,3,4,4] x, float[3] c) => (float[1,3,4,4] y) {{ y = {node} }}", opset=18)
    for name, value in (("r", []), ("s", [1, 1, 0.6, 2])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    for name, axes in (("z", [8]), ("e", [])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), name))
    problem = problem_of(model)
    assert (problem.code, problem.reason) == ("E202", reason) and problem.remedy


@pytest.mark.parametrize(("ratio", "identity"), [(0.0, True), (0.25, False)])
def test_dropout_in_training_is_the_identity_only_where_it_drops_nothing(ratio: float, identity: bool) -> None:
    model = model_of("g (float[1,3] x) => (float[1,3] y) { d = Dropout(x, r, t)\n y = Relu(d) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array(ratio, np.float32), "r"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "t"))
    if identity:
        assert [node.op for node in import_model(model).nodes] == ["Relu"]
    else:
        assert problem_of(model).reason == "training mode"
