"""Models once refused whole: sparse constants, functions, old opsets, half precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from npuc import running
from npuc.api import compile as compiled
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.frontend.upgrading import upgrade
from npuc.frontend.widening import is_half, widen_model
from npuc.ir import Array
from npuc.program import as_loaded
from npuc.reference import session
from npuc.regions.artefact import is_composite
from npuc.regions.composite import target_of
from npuc.samples.loading import Samples, synthetic
from npuc.target import Options, Request, target
from tests.compiled import checked, places, program_of
from tests.onnx_models import parse

SHAPE = (8, 8, 1, 1)
TYPES = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 6, 6]) for name in ("x", "y")]


def values(count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a sparse constant's elements, ascending, and their values."""
    random = np.random.default_rng(1)
    return np.sort(random.choice(64, count, replace=False)), random.standard_normal(count).astype(np.float32)


def sparse(indices: np.ndarray, found: np.ndarray, dims: Sequence[int] = SHAPE) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(found, "w"), numpy_helper.from_array(indices, "i"), list(dims)
    )


def model_of(nodes: Sequence[onnx.NodeProto], *weights: onnx.SparseTensorProto) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", TYPES[:1], TYPES[1:])
    graph.sparse_initializer.extend(weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CONV = helper.make_node("Conv", ["x", "w"], ["y"])


@pytest.mark.parametrize("form", ["positions", "rows and columns"])
@pytest.mark.parametrize("place", ["initialiser", "node", "branch"])
def test_a_sparse_constant_has_its_values_and_zeros(form: str, place: str) -> None:
    at, found = values()
    indices = at if form == "positions" else np.stack(np.unravel_index(at, SHAPE), axis=1)
    dense = np.zeros(64, np.float32)
    dense[at] = found
    constant = helper.make_node("Constant", [], ["w"], sparse_value=sparse(indices, found))
    if place == "initialiser":
        model = model_of([CONV], sparse(indices, found))
    elif place == "node":
        model = model_of([constant, CONV])
    else:
        inside = helper.make_node("Conv", ["x", "w"], ["b"])
        branch = helper.make_graph([constant, inside], "then", [], [helper.make_empty_tensor_value_info("b")])
        on = helper.make_node("Constant", [], ["on"], value=numpy_helper.from_array(np.array(True)))
        model = model_of([on, helper.make_node("If", ["on"], ["y"], then_branch=branch, else_branch=branch)])
    graph = import_model(model)
    (node,) = graph.nodes
    assert np.array_equal(graph.constants[node.inputs[1]], dense.reshape(SHAPE))


def test_a_host_region_reads_a_sparse_constant(tmp_path: Path) -> None:
    at, found = values()
    model = model_of([CONV, helper.make_node("CumSum", ["y", "k"], ["z"])], sparse(at, found))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "k"))
    model.graph.output[0].name = "z"
    assert checked(program_of(model, tmp_path), tmp_path)["status"] == "ok"


WRONG: Mapping[str, tuple[np.ndarray, np.ndarray, Sequence[int]]] = {
    "a position behind the end": (np.array([0, 64]), np.ones(2, np.float32), SHAPE),
    "a negative position": (np.array([-1, 3]), np.ones(2, np.float32), SHAPE),
    "a column behind the end": (np.array([[0, 8, 0, 0]]), np.ones(1, np.float32), SHAPE),
    "two values for one element": (np.array([3, 3]), np.ones(2, np.float32), SHAPE),
    "fewer values than positions": (np.array([3, 4]), np.ones(1, np.float32), SHAPE),
    "three indices for four axes": (np.array([[0, 0, 0]]), np.ones(1, np.float32), SHAPE),
    "indices of another type": (np.array([3], np.int32), np.ones(1, np.float32), SHAPE),
    "a negative extent": (np.array([3]), np.ones(1, np.float32), (8, -8, 1, 1)),
    "an extent beyond the limit": (np.array([3]), np.ones(1, np.float32), (2**40, 1, 1, 1)),
    "extents that overflow": (np.array([3]), np.ones(1, np.float32), (2**31, 2**31, 2**31, 1)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_sparse_constant_that_contradicts_itself_is_refused(case: str) -> None:
    with pytest.raises(NpucError) as error:
        import_model(model_of([CONV], sparse(*WRONG[case])))
    assert error.value.problems[0].code == "E105"


def test_the_last_position_and_the_largest_column_are_inside() -> None:
    for indices in (np.array([63]), np.array([[7, 7, 0, 0]])):
        graph = import_model(model_of([CONV], sparse(indices, np.ones(1, np.float32))))
        assert graph.constants[graph.nodes[0].inputs[1]].ravel()[63] == 1


def with_function(body: str, own: int, model: int) -> onnx.ModelProto:
    """A call of a function of opset `own`."""
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {model}, "my": 1]> '
        f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ y = my.F(x) }}"
        f'<domain: "my", opset_import: ["": {own}]> F (x) => (y) {{ {body} }}'
    )


@pytest.mark.parametrize("own", [14, 18])
def test_a_function_of_another_opset_runs_if_its_operators_are_the_same_there(own: int, tmp_path: Path) -> None:
    model = with_function("a = Sigmoid(x)\n y = Mul(a, x)", own, 17)
    program = program_of(model, tmp_path)
    assert checked(program, tmp_path)["status"] == "ok"


@pytest.mark.parametrize(("own", "body"), [(12, "y = Softmax(x)"), (5, "y = Clip<min = 0.0>(x)")])
def test_a_function_whose_operators_differ_is_refused_by_name(own: int, body: str) -> None:
    with pytest.raises(NpucError, match=f"F is of opset {own}, the model of opset 17") as error:
        import_model(with_function(body, own, 17))
    assert error.value.problems[0].code == "E103"


@pytest.mark.parametrize("body", ["y = Identity(x)", "a = Identity(x)\n y = Identity(a)"])
@pytest.mark.parametrize("name", ["easynpu", "bm1684"])
def test_a_model_of_identities_compiles(name: str, body: str, tmp_path: Path) -> None:
    model = parse(f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ {body} }}")
    onnx.save(model, tmp_path / "m.onnx")
    program, _ = compile_model(Request(tmp_path / "m.onnx", target(name), Options(precision="int8")))
    samples = synthetic(running.program_inputs(program), 2)
    loaded = as_loaded(program)
    found = running.run_program(loaded, target_of(loaded), samples)["y"].reshape(samples.inputs["x"].shape)
    tolerance = 0.05 if name == "easynpu" else 0
    assert np.abs(found - samples.inputs["x"]).max() <= tolerance * np.abs(found).max()


NARROW = {
    "fractions": ([0.5, -1.6, 2.5, 7.0], False),
    "beyond the range": ([7.0, 8.0, -8.0, -9.0], False),
    "the range of int4": ([7.0, 0.0, -8.0, 1.0], True),
}


@pytest.mark.parametrize("case", NARROW)
def test_a_constant_cast_to_int4_is_as_onnxruntime_has_it(case: str, tmp_path: Path) -> None:
    """onnxruntime rounds and saturates, onnx.reference truncates and wraps around."""
    numbers, folded = NARROW[case]
    model = parse(
        "g (float[1,4,6,6] x) => (float[1,4,6,6] y) "
        "{ i = Cast<to = 22>(c)\n f = Cast<to = 1>(i)\n a = Mul(x, f)\n y = Relu(a) }",
        21,
        c=np.array(numbers, np.float32).reshape(1, 4, 1, 1),
    )
    try:
        session(model)
    except NpucError:
        pytest.skip("this onnxruntime casts to no int4")
    program = program_of(model, tmp_path)
    assert checked(program, tmp_path)["status"] == "ok"
    hosted = "partitions" in program.manifest["report"] and any(place == "host" for place, _ in places(program))
    assert hosted is not folded


def test_layers_behind_an_operator_of_onnxruntime_run_on_the_npu(tmp_path: Path) -> None:
    """Without value_info only onnxruntime knows what its TransposeMatMul gives."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[4,8] x) => (float[4,8] y) '
        "{ a = com.microsoft.TransposeMatMul<alpha = 0.5>(x, v)\n y = MatMul(a, w) }"
    )
    random = np.random.default_rng(3)
    for name in "vw":
        weights = random.standard_normal((8, 8)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnxruntime.InferenceSession(model.SerializeToString())
    program = program_of(model, tmp_path)
    assert [place for place, _ in places(program)] == ["host", "npu"]
    assert checked(program, tmp_path)["status"] == "ok"


@pytest.mark.parametrize("name", ["easynpu", "bm1684"])
def test_an_input_that_is_an_output_too_needs_no_node(name: str, tmp_path: Path) -> None:
    """With calibration samples the search judged it as a result of the host, and found nothing that writes it."""
    random = np.random.default_rng(3)
    weights = random.standard_normal((4, 4, 1, 1)).astype(np.float32)
    model = parse("g (float[1,4,6,6] x) => (float[1,4,6,6] y, float[1,4,6,6] x) { y = Conv(x, w) }", w=weights)
    onnx.save(model, tmp_path / "m.onnx")
    x = random.standard_normal((4, 1, 4, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    options = Options(precision="int8")
    program = as_loaded(
        compile_model(Request(tmp_path / "m.onnx", target(name), options, [tmp_path / "c.npz"]))[0]
    )
    found = running.run_program(program, target_of(program), Samples({"x": x}))
    assert np.array_equal(found["x"].reshape(x.shape), x)


NODES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Add": ({"broadcast": 1}, (1,)),
    "PRelu": ({}, (8,)),
    "BatchNormalization": ({"is_test": 1, "epsilon": 1e-5}, (8,)),
}


def _old(op: str) -> onnx.ModelProto:
    """A convolution and an operator whose form was another before opset 7; constants are inputs as well."""
    attributes, shape = NODES[op]
    random = np.random.default_rng(5)
    constants = {"w": random.normal(0.05, 0.2, (8, 4, 3, 3)).astype(np.float32)}
    count = 4 if op == "BatchNormalization" else 1
    constants |= {f"c{at}": random.uniform(0.3, 1.5, shape).astype(np.float32) for at in range(count)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node(op, ["a", *[name for name in constants if name != "w"]], ["y"], **attributes),
    ]
    port = helper.make_tensor_value_info
    inputs = [port("x", TensorProto.FLOAT, [1, 4, 6, 6])]
    inputs += [port(name, TensorProto.FLOAT, each.shape) for name, each in constants.items()]
    initialisers = [numpy_helper.from_array(each, name) for name, each in constants.items()]
    graph = helper.make_graph(nodes, "old", inputs, [port("y", TensorProto.FLOAT, [1, 8, 6, 6])], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)


@pytest.mark.parametrize("target", ["easynpu", "nvdla-large", "bm1684"])
@pytest.mark.parametrize("op", NODES)
def test_an_old_model_runs_on_the_npu_as_onnxruntime_runs_it(op: str, target: str, tmp_path: Path) -> None:
    program = program_of(_old(op), tmp_path, target)
    assert not is_composite(program)
    found = checked(program, tmp_path)
    assert found["status"] == "ok"
    assert program.manifest["report"]["macs"] == 8 * 36 * 4 * 9


def test_a_slope_that_two_nodes_read_or_that_is_computed_stays_as_it_is() -> None:
    model = _old("PRelu")
    model.graph.node.append(helper.make_node("Neg", ["c0"], ["unused"]))
    assert upgrade(model).opset_import[0].version == 6
    del model.graph.node[-1]
    assert upgrade(model).opset_import[0].version == 7
    slope = next(each for each in upgrade(model).graph.initializer if each.name == "c0")
    assert list(slope.dims) == [8, 1, 1]


def test_an_operand_that_is_broadcast_from_an_axis_on_is_left_to_nobodys_guess() -> None:
    """ONNX's converter makes (8, 1, 1, 1) of (8,) at axis 1, which adds along the batch."""
    model = _old("Add")
    model.graph.node[1].attribute.append(helper.make_attribute("axis", 1))
    assert upgrade(model) is model


def test_newer_models_and_those_with_operators_of_other_domains_are_left() -> None:
    model = _old("Add")
    model.opset_import.append(helper.make_opsetid("demo", 1))
    assert upgrade(model) is model
    new = helper.make_model(model.graph, opset_imports=[helper.make_opsetid("", 7)])
    assert upgrade(new) is new


def test_multiplications_that_rewrites_add_do_not_count_as_use(tmp_path: Path) -> None:
    """Two groups of 4 x 4 channels: 36 pixels x 8 channels x 4 x 9 multiplications, whatever runs them."""
    w = numpy_helper.from_array(np.random.default_rng(1).normal(0.1, 0.3, (8, 4, 3, 3)).astype(np.float32), "w")
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w) }")
    model.graph.initializer.append(w)
    for name in ("easynpu", "nvdla-small", "bm1684"):
        report = compiled(
            model, name, calibration="synthetic", options=Options(precision="fp32") if name == "bm1684" else None
        )
        found = report.report
        assert found["macs"] == 36 * 8 * 4 * 9
        layers = sum(each["ideal_cycles"] for each in found["layers"])
        assert found["executed_macs"] >= found["macs"]
        assert found["ideal_cycles"] == pytest.approx(layers * found["macs"] / found["executed_macs"])
        assert found["utilization"] == pytest.approx(found["ideal_cycles"] / found["cycles"])


FLOAT16, BFLOAT16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
STORED: dict[int, np.dtype[Any]] = {each: helper.tensor_dtype_to_np_dtype(each) for each in (FLOAT16, BFLOAT16)}
TARGETS = ("easynpu", "nvdla-full", "bm1684")


def _model(half: int = FLOAT16, shape: tuple[int, int] = (8, 4), ir_version: int = 8) -> onnx.ModelProto:
    """relu(conv(x)) * 2 + 0.5 in half precision; 2 is a Constant node, 0.5 the result of a Cast."""
    random = np.random.default_rng(3)
    w = random.normal(0.02, 0.2, (*shape, 3, 3)).astype(STORED[half])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.full((), 2, STORED[half]))),
        helper.make_node("Mul", ["b", "two"], ["c"]),
        helper.make_node("Cast", ["s"], ["offset"], to=half),
        helper.make_node("Add", ["c", "offset"], ["y"]),
    ]
    port = helper.make_tensor_value_info
    inputs = [port("x", half, [1, shape[1], 6, 6])]
    if ir_version < 4:
        inputs.append(port("w", half, w.shape))
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.full((), 0.5, np.float32), "s")]
    graph = helper.make_graph(nodes, "half", inputs, [port("y", half, [1, shape[0], 6, 6])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def _images() -> Array:
    return np.random.default_rng(4).normal(0.4, 1, (4, 4, 6, 6)).astype(np.float16)


def _decibels(wanted: Array, got: Array) -> float:
    noise = np.square(wanted.astype(float) - got).sum()
    return float(10 * np.log10(np.square(wanted.astype(float)).sum() / noise))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ir_version", [3, 8])
def test_a_network_in_float16_runs_on_the_npu_as_onnxruntime_runs_it(target: str, ir_version: int) -> None:
    model, images = _model(ir_version=ir_version), _images()
    found = compiled(model, target, calibration=images)
    assert not is_composite(found.program)
    assert [port.dtype for port in (*found.program.inputs, *found.program.outputs)] == ["float32", "float32"]
    wanted = np.concatenate([session(model).run(["y"], {"x": each[None]})[0] for each in images])
    assert _decibels(wanted, found.run(images)["y"]) > (60 if target == "bm1684" else 35)


@pytest.mark.parametrize("target", TARGETS)
def test_a_network_in_bfloat16_runs_though_onnxruntime_refuses_it(target: str, tmp_path: Path) -> None:
    program = program_of(_model(BFLOAT16), tmp_path, target)
    assert not is_composite(program)
    assert checked(program, tmp_path)["status"] == "ok"


OF_BFLOAT16 = {
    "an input": ("bfloat16", "y = Tanh(x)", np.tanh),
    "an input that is cast": ("bfloat16", "a = Cast<to = 1>(x)\n b = Tanh(a)\n y = Cast<to = 16>(b)", np.tanh),
    "nodes inside": ("float", "a = Cast<to = 16>(x)\n b = Tanh(a)\n y = Cast<to = 1>(b)", np.tanh),
}


@pytest.mark.parametrize(("dtype", "body", "wanted"), OF_BFLOAT16.values(), ids=OF_BFLOAT16)
@pytest.mark.parametrize("target", TARGETS)
def test_what_computes_in_bfloat16_without_such_weights_runs(
    target: str, dtype: str, body: str, wanted: Callable[[Array], Array]
) -> None:
    model = parse(f"g ({dtype}[1,4,6,6] x) => ({dtype}[1,4,6,6] y) {{ {body} }}")
    onnx.checker.check_model(model, full_check=True)
    images = _images().astype(np.float32)
    found = compiled(model, target, calibration=images)
    assert not is_composite(found.program)
    assert _decibels(wanted(images), found.run(images)["y"]) > (60 if target == "bm1684" else 35)


@pytest.mark.parametrize("external", [False, True])
def test_heavy_weights_in_float16_stay_in_their_file(external: bool, tmp_path: Path) -> None:
    path = tmp_path / "heavy.onnx"
    images = np.random.default_rng(4).normal(0.4, 1, (1, 128, 6, 6)).astype(np.float16)
    onnx.save(_model(shape=(512, 128)), path, save_as_external_data=external, location="heavy.bin")
    (wanted,) = session(path).run(["y"], {"x": images})
    found = compiled(path, "bm1684", options=Options(precision="fp32"))
    assert not is_composite(found.program)
    assert _decibels(wanted, found.run(images)["y"]) > 60


def test_branches_and_functions_are_widened_too() -> None:
    x, y = (helper.make_tensor_value_info(name, FLOAT16, [2]) for name in "xy")
    one = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones(2, np.float16)))
    branches = [
        helper.make_graph([one, helper.make_node(op, ["x", "one"], ["y"])], op, [], [y]) for op in ("Add", "Sub")
    ]
    body = [one, helper.make_node("Mul", ["a", "one"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("f", ["a"], ["b"], domain="own"),
        helper.make_node("If", ["condition"], ["c"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    constants = [numpy_helper.from_array(np.array([1, 2], np.float16), "w")]
    graph = helper.make_graph(nodes, "nested", [x, condition], [y], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    made = widen_model(model)
    onnx.checker.check_model(made, full_check=True)
    feeds = {"x": np.array([0.5, 3], np.float16), "condition": np.array(False)}
    (wanted,), (got,) = (
        session(model).run(["y"], feeds),
        session(made).run(["y"], {**feeds, "x": feeds["x"].astype(np.float32)}),
    )
    assert got.dtype == np.float32
    assert got.tolist() == wanted.tolist() == [1, 7]


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_a_deliberate_rounding_to_half_precision_stays(half: int) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph(
        nodes, "rounded", [x], [y], [numpy_helper.from_array(np.array([1, 2], np.float32), "w")]
    )
    model = helper.make_model(graph)
    assert not is_half(model)
    assert widen_model(model) is model
