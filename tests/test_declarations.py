"""What declarations refuse, and that ONNX means the same: derived from the declarations, for every operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npuc.errors import ModelError, NpucError, UnsupportedOperator
from npuc.ir import Graph, Node, TensorType, type_of
from npuc.onnx_files.export import to_onnx
from npuc.ops import OPS, build, with_operators
from npuc.ops.attributes import Attribute
from npuc.ops.declaration import problem, tokens
from npuc.ops.interpreter import run
from npuc.reference import session
from tests.declared import TABLES, example

EVERY = sorted(TABLES)


@pytest.mark.parametrize("name", EVERY)
def test_the_example_of_an_operator_is_legal_and_computes_what_is_inferred(name: str) -> None:
    legal = example(name)
    graph = legal.graph()
    graph.check(fully=True)
    found = run(graph, {key: legal.values[key] for key in graph.inputs})
    assert {key: type_of(value) for key, value in found.items()} == {key: graph.tensors[key] for key in found}


@pytest.mark.parametrize("name", EVERY)
def test_onnxruntime_computes_the_same_of_what_is_exported(name: str) -> None:
    legal = example(name)
    graph = legal.graph()
    feeds = {key: legal.values[key] for key in graph.inputs}
    expected = session(to_onnx(graph)).run(list(graph.outputs), feeds)
    for key, value in zip(graph.outputs, expected, strict=True):
        found = run(graph, feeds)[key]
        assert type_of(np.asarray(value)) == type_of(found)
        if np.issubdtype(found.dtype, np.floating):
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(found, value)


def _refused(name: str, node: Node, types: tuple[TensorType, ...] | None = None) -> ModelError:
    legal = example(name)
    found = problem(legal.row, node, legal.types if types is None else types)
    assert isinstance(found, ModelError), f"{node} passes"
    (each,) = found.problems
    assert (each.node, each.op) == ("n", name) and each.code in ("E105", "E107")
    return found


@pytest.mark.parametrize("name", EVERY)
def test_an_attribute_of_another_name_is_refused(name: str) -> None:
    legal = example(name)
    assert "'nonsense' is not one of" in str(_refused(name, legal.node.with_attrs(nonsense=3)))
    for each in legal.row.attributes:
        value = legal.node.attrs.get(each.name, 1)
        assert each.name in str(_refused(name, legal.node.with_attrs(**{f"{each.name}s": value})))


def _illegal_values(attribute: Attribute[Any], rank: int) -> Iterator[Any]:
    """Values of other types, beside each end of the range, and of other counts."""
    several = attribute.kind in ("integers", "numbers", "axes", "permutation")
    yield 3 if attribute.kind == "text" else "text"
    if attribute.kind != "text":
        yield 1 if several else (1, 1)
        if attribute.kind not in ("number", "numbers"):
            yield (0.5,) * max(rank, 1) if several else 0.5
    if attribute.choices:
        yield "none of them"
    if attribute.kind == "flag":
        yield from (2, -1)
    for beyond in (attribute.low - 1, attribute.high + 1):
        if np.isfinite(beyond):
            yield (int(beyond),) * 12 if several else int(beyond)
    if attribute.kind == "axis":
        yield from (rank, -1)
    if attribute.kind in ("axes", "permutation"):
        yield from ((0, 0), (rank,), (-1,))
    if attribute.kind == "permutation":
        yield (0,)
    if attribute.per:
        yield (1,) * 11


@pytest.mark.parametrize("name", EVERY)
def test_a_value_that_an_attribute_does_not_allow_is_refused(name: str) -> None:
    legal = example(name)
    rank = len(legal.types[0].shape) if legal.types else 0
    for attribute in legal.row.attributes:
        for value in _illegal_values(attribute, rank):
            error = _refused(name, legal.node.with_attrs(**{attribute.name: value}))
            assert attribute.name in error.problems[0].reason and error.problems[0].limit == attribute.limit


@pytest.mark.parametrize("name", EVERY)
def test_a_required_attribute_that_is_missing_is_refused(name: str) -> None:
    legal = example(name)
    for attribute in legal.row.attributes:
        if attribute.required:
            rest = {key: value for key, value in legal.node.attrs.items() if key != attribute.name}
            node = replace(legal.node, attrs=rest)
            assert f"attribute {attribute.name} is missing" in str(_refused(name, node))
            with pytest.raises(ModelError, match=f"{attribute.name} is missing"):
                attribute(node)


@pytest.mark.parametrize("name", EVERY)
def test_a_node_without_one_of_its_inputs_or_with_more_is_refused(name: str) -> None:
    legal, declared = example(name), TABLES[name][name].inputs
    for at, each in enumerate(declared):
        if not each.optional:
            emptied = tuple("" if index == at else key for index, key in enumerate(legal.node.inputs))
            _refused(name, replace(legal.node, inputs=emptied))
            _refused(name, replace(legal.node, inputs=legal.node.inputs[:at]), legal.types[:at])
    if not declared or not declared[-1].variadic:
        more = (*legal.node.inputs, *(f"more{index}" for index in range(len(declared) + 1)))
        types = (*legal.types, *(TensorType((1,)) for _ in range(len(declared) + 1)))
        assert "inputs" in str(_refused(name, replace(legal.node, inputs=more), types))


@pytest.mark.parametrize("name", EVERY)
def test_a_node_with_another_number_of_outputs_is_refused(name: str) -> None:
    legal = example(name)
    for outputs in ((), ("a", "b", "c")):
        _refused(name, replace(legal.node, outputs=outputs))


@pytest.mark.parametrize("name", EVERY)
def test_an_input_of_another_element_type_is_refused(name: str) -> None:
    legal = example(name)
    for at, (key, found) in enumerate(zip(legal.node.inputs, legal.types, strict=True)):
        if key:
            types = (*legal.types[:at], TensorType(found.shape, "complex64"), *legal.types[at + 1 :])
            error = _refused(name, legal.node, types)
            assert (error.problems[0].code, error.problems[0].tensor) == ("E107", key)


@pytest.mark.parametrize("name", EVERY)
def test_an_input_of_another_rank_than_its_pattern_has_is_refused(name: str) -> None:
    legal = example(name)
    for at, (each, key) in enumerate(zip(legal.row.inputs, legal.node.inputs, strict=False)):
        fixed = not any(token[0].startswith("*") for token in tokens(each.shape))
        if key and fixed:
            found = legal.types[at]
            types = (*legal.types[:at], TensorType((*found.shape, 1, 1), found.dtype), *legal.types[at + 1 :])
            _refused(name, legal.node, types)


@pytest.mark.parametrize("fully", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_a_graph_whose_result_has_another_type_than_the_operator_gives_is_refused(name: str, fully: bool) -> None:
    graph = example(name).graph()
    given = graph.tensors[graph.outputs[0]]
    other_dtype = "uint8" if given.dtype == "int8" else "int8"
    for wrong in (TensorType((*given.shape, 1), given.dtype), TensorType(given.shape, other_dtype)):
        broken = replace(graph, tensors={**graph.tensors, graph.outputs[0]: wrong})
        with pytest.raises(ModelError, match="the operator gives") as refused:
            broken.check(fully=fully)
        assert refused.value.problems[0].code == "E104"


@pytest.mark.parametrize("name", EVERY)
def test_constants_beyond_the_range_of_their_parameter_are_refused(name: str) -> None:
    legal = example(name)
    for each in legal.row.inputs:
        if each.bounded and each.name in legal.values:
            value = np.full_like(legal.values[each.name], each.low - 1)
            graph = legal.graph()
            with pytest.raises(ModelError, match=f"{each.name} has values"):
                replace(graph, constants={**graph.constants, each.name: value}).check()


def _graph(node: Node) -> Graph:
    return build("g", [node], {"x": TensorType((1, 4))}, node.outputs, {})


def test_an_operator_that_is_not_declared_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="not known") as refused:
        _graph(Node("Reluu", ("x",), ("y",), {}, "n"))
    (found,) = refused.value.problems
    assert (found.code, found.op, found.node, found.remedy) == ("E201", "Reluu", "n", "did you mean Relu?")
    graph = _graph(Node("Relu", ("x",), ("y",), {}, "n"))
    with pytest.raises(UnsupportedOperator, match="not known"):
        replace(graph, nodes=(replace(graph.nodes[0], op="Banana"),)).check()


def test_a_target_knows_operators_that_other_graphs_have_not() -> None:
    node = Node("IntPixel", (), ("y",), {"value": 3}, "n")
    assert build("g", [node], {}, ["y"], {}, TABLES["IntPixel"]).shape("y") == (1, 16, 1, 1)
    with pytest.raises(UnsupportedOperator, match="not known"):
        build("g", [node], {}, ["y"], {})


def test_two_rows_of_the_same_name_are_refused() -> None:
    with pytest.raises(KeyError, match="declared twice"):
        with_operators(OPS, OPS["Relu"])


def test_a_node_is_verified_once_unless_everything_is_checked() -> None:
    calls: list[str] = []

    def counted(node: Node, _types: object) -> bool:
        """It is counted."""
        calls.append(node.name)
        return True

    operators = with_operators(OPS, replace(OPS["Relu"], name="Counted", requires=(counted,)))
    node = Node("Counted", ("x",), ("y",), {}, "n")
    graph = build("g", [node], {"x": TensorType((1, 4))}, ["y"], {}, operators)
    calls.clear()
    graph.check(fully=False)
    assert calls == []
    graph.check(fully=True)
    assert calls == ["n"]
    replace(graph, nodes=(replace(node, name="m"),)).check(fully=False)
    assert calls == ["n", "m"]


def test_every_graph_of_the_tests_is_checked_fully() -> None:
    graph = _graph(Node("Relu", ("x",), ("y",), {}, "n"))
    graph.nodes[0].typings[(TensorType((1, 4)),)] = (TensorType((9,)),)  # what is believed would be wrong
    graph.check()
    with pytest.raises(ModelError, match="the operator gives"):
        replace(graph, inputs=graph.inputs).check(fully=False)


def test_a_node_is_known_by_its_outputs() -> None:
    first, again = (Node("Relu", ("x",), ("y",), {"a": 1}) for _ in range(2))
    assert {first} == {again} and first.with_attrs(a=2) not in {first}
    with pytest.raises(NpucError):
        _graph(first)
