"""Dynamic dimensions of inputs, and the shapes that bind them."""

from __future__ import annotations

import onnx
import pytest

from npuc.errors import ModelError, NpucError, Problem, UnsupportedOperator
from npuc.frontend import import_model
from npuc.frontend.binding import with_bound
from tests.onnx_models import parse, tensors

Shapes = dict[str, tuple[int, ...]]


def two_inputs(a: str, b: str) -> onnx.ModelProto:
    return parse(f"g (float{a} a, float{b} b) => (float[q,3] y) {{ y = Add(a, b) }}")


def problems(model: onnx.ModelProto, shapes: Shapes) -> tuple[Problem, ...]:
    with pytest.raises(NpucError) as refused:
        import_model(model, None, shapes)
    return refused.value.problems


def test_a_bound_input_has_the_given_shape() -> None:
    graph = import_model(two_inputs("[N,3]", "[1,3]"), None, {"a": (4, 3)})
    assert graph.shape("a") == (4, 3) and graph.shape("y") == (4, 3)


def test_a_dimension_bound_once_binds_its_name_everywhere() -> None:
    assert import_model(two_inputs("[N,3]", "[N,3]"), None, {"b": (4, 3)}).shape("a") == (4, 3)


@pytest.mark.parametrize("placeholder", ["?", "None"])
def test_a_placeholder_for_any_size_binds_nothing_else(placeholder: str) -> None:
    model = two_inputs("[N,M]", "[N,M]")
    for dim in (dim for each in model.graph.input for dim in each.type.tensor_type.shape.dim):
        dim.dim_param = placeholder
    graph = import_model(model, None, {"a": (4, 3), "b": (1, 3)})
    assert (graph.shape("a"), graph.shape("b")) == ((4, 3), (1, 3))
    (problem,) = problems(model, {"a": (4, 3)})
    assert (problem.code, problem.remedy) == ("E106", "--input-shape b=1,<dim1>")


def test_every_unbound_input_is_reported_with_the_flag_that_binds_it() -> None:
    found = problems(two_inputs("[N,3]", "[?,height]"), {})
    assert [(each.code, each.tensor) for each in found] == [("E106", "a"), ("E106", "b")]
    assert [each.remedy for each in found] == ["--input-shape a=1,3", "--input-shape b=1,<height>"]


def test_an_input_without_a_shape_can_be_bound() -> None:
    model = two_inputs("[N,3]", "[1,3]")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert import_model(model, None, {"a": (4, 3)}).shape("y") == (4, 3)
    (problem,) = problems(model, {})
    assert problem.code == "E106" and "--input-shape a=" in (problem.remedy or "")


def test_an_empty_input_is_unsupported_but_can_be_bound_if_0_meant_unknown() -> None:
    model = two_inputs("[0,3]", "[1,3]")
    with pytest.raises(UnsupportedOperator) as refused:
        import_model(model, None, {})
    (problem,) = refused.value.problems
    assert (problem.code, problem.tensor) == ("E202", "a") and "--input-shape a=1,3" in (problem.remedy or "")
    assert import_model(model, None, {"a": (4, 3)}).shape("y") == (4, 3)


def test_a_dynamic_input_is_the_models_fault() -> None:
    with pytest.raises(ModelError):
        import_model(two_inputs("[N,3]", "[1,3]"), None, {})


@pytest.mark.parametrize(("shapes", "reason"), [
    ({"c": (1, 3)}, "no such input"), ({"a": (1, 3, 1)}, "has 3 dimensions"),
    ({"a": (1, 4)}, "has 4 where the model has 3"), ({"a": (0, 3)}, "not positive"),
    ({"a": (2, 3), "b": (5, 3)}, "has 5 where the model has 2"),
])  # fmt: skip
def test_a_shape_that_does_not_fit_is_refused(shapes: Shapes, reason: str) -> None:
    (problem,) = problems(two_inputs("[N,3]", "[N,3]"), shapes)
    assert problem.code == "E109" and reason in problem.reason


def test_a_bound_shape_that_the_network_cannot_take_is_the_nodes_problem() -> None:
    with pytest.raises(ModelError) as refused:
        import_model(two_inputs("[N,3]", "[M,3]"), None, {"a": (2, 3), "b": (5, 3)})
    assert refused.value.problems[0].code == "E105"


def test_an_initialiser_that_is_also_listed_as_input_is_a_constant() -> None:
    model = two_inputs("[1,3]", "[1,3]")
    model.graph.initializer.extend(tensors({"b": [[1.0] * 3]}))
    graph = import_model(model)
    assert graph.inputs == ("a",) and graph.constants["b"].tolist() == [[1, 1, 1]]


def test_a_scalar_input_may_be_bound_to_a_constant() -> None:
    model = with_bound(two_inputs("[1,1]", "[1,3]"), {"a": 2.0})
    assert [each.name for each in model.graph.input] == ["b"]
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).tolist() == [[2.0]]


def test_a_named_dimension_is_bound_in_every_input() -> None:
    model = with_bound(two_inputs("[batch,3]", "[batch,width]"), {"batch": 2.0, "width": 3.0})
    shapes = [[dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in model.graph.input]
    assert shapes == [[2, 3], [2, 3]]


@pytest.mark.parametrize(("name", "value", "reason"), [
    ("b", 2.0, "one value is given"), ("c", 2.0, "the model has no such input and no such dimension"),
    ("?", 2.0, "the model has no such input and no such dimension"), ("batch", 0.0, "0 is no extent"),
    ("batch", 1.5, "1.5 is no extent"), ("batch", float("inf"), "inf is no extent"),
    ("batch", float("nan"), "nan is no extent"),
])  # fmt: skip
def test_nothing_else_may(name: str, value: float, reason: str) -> None:
    with pytest.raises(ModelError) as refused:
        with_bound(two_inputs("[1,1]", "[batch,3]"), {name: value})
    assert refused.value.problems[0].code == "E109" and reason in refused.value.problems[0].reason
