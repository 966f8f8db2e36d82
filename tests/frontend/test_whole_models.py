"""Models once refused whole: sparse constants, functions of other opsets, types that only onnxruntime knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from npuc import running
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.program import as_loaded
from npuc.reference import session
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
