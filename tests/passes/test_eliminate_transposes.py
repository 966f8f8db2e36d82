import pytest

from npuc.ir import Node
from npuc.passes.cleanup.eliminate_transposes import eliminate_transposes
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def to_last(x: str, y: str) -> Node:
    return node("Transpose", x, y, perm=LAST)


def to_first(x: str, y: str) -> Node:
    return node("Transpose", x, y, perm=FIRST)


def test_a_pair_that_cancels_goes() -> None:
    graph = network(
        (1, 2, 3, 4), "y", node("Relu", "x", "r"), to_last("r", "a"), to_first("a", "b"), node("Neg", "b", "y")
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Relu", "Neg"]
    assert_same_meaning(graph, found)


def test_three_in_a_row_become_one() -> None:
    graph = network((1, 2, 3, 4), "y", to_last("x", "a"), to_last("a", "b"), to_first("b", "y"))
    found = eliminate_transposes(graph)
    assert [(each.op, each.integers("perm")) for each in found.nodes] == [("Transpose", LAST)]
    assert sources(found, "y") == ("a", "b", "y")
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    "inside",
    [
        node("Relu", "a", "b"),
        node("Add", "a c", "b"),
        node("Add", "c a", "b"),
        node("Mul", "a k", "b"),
        node("Div", "a a", "b"),
        node("PRelu", "a c", "b"),
        node("Concat", "a a", "b", axis=3),
        node("Pad", "a", "b", pads=(0, 1, 0, 0, 0, 2, 3, 0)),
        node("Slice", "a", "b", starts=(1, 0), ends=(3, 4), axes=(3, 1), steps=(1, 2)),
        node("Softmax", "a", "b", axis=3),
        node("ReduceMean", "a", "b", axes=(1, 2), keepdims=1),
        node("ReduceMax", "a", "b", axes=(3,), keepdims=1),
        node("Resize", "a", "b", scales=(1.0, 2.0, 2.0, 1.0), sizes=(2, 8, 10, 3)),
        node("QuantizeLinear", "a s", "b"),
        node("Cast", "a", "b", to="int32"),
    ],
    ids=lambda each: each.op,
)
def test_an_operator_between_transposes_computes_in_the_other_layout(inside: Node) -> None:
    used = {"c": (3,), "k": (1, 4, 5, 1), "s": 0.1}
    constants = {name: value for name, value in used.items() if name in inside.inputs}
    graph = network((2, 3, 4, 5), "y", to_last("x", "a"), inside, to_first("b", "y"), **constants)
    found = eliminate_transposes(graph)
    assert operators(found) == [inside.op]
    assert_same_meaning(graph, found)


def test_the_pieces_of_a_split_move_together() -> None:
    split = node("Split", "a", "b c", axis=3, split=(1, 2))
    graph = network(
        (2, 3, 4, 5),
        "y z",
        to_last("x", "a"),
        split,
        to_first("b", "y"),
        node("Relu", "c", "d"),
        to_first("d", "z"),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Split", "Relu"]
    assert found.nodes[0].integer("axis") == 1
    assert_same_meaning(graph, found)


def test_a_region_of_several_operators_and_a_residual_sum_moves_as_a_whole() -> None:
    graph = network(
        (1, 4, 5, 5),
        "y",
        node("Conv", "x w", "p"),
        to_last("p", "a"),
        node("Relu", "a", "r"),
        to_first("r", "f"),
        node("Conv", "f w", "q"),
        to_last("q", "b"),
        node("Add", "b c", "d"),
        node("Add", "d r", "e"),
        node("Sigmoid", "e", "s"),
        node("Mul", "e s", "m"),
        to_first("m", "g"),
        node("Conv", "g w", "y"),
        w=(4, 4, 1, 1),
        c=(4,),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Conv", "Relu", "Conv", "Add", "Add", "Sigmoid", "Mul", "Conv"]
    assert {"p", "f", "q", "g", "y"} <= set(found.tensors)  # names of the model that denote these tensors
    assert_same_meaning(graph, found)


def test_a_transpose_moves_over_elementwise_operators_to_the_input() -> None:
    graph = network(
        (1, 6, 6, 3),
        "y",
        node("Mul", "x k", "a"),
        node("Sub", "a m", "b"),
        to_first("b", "c"),
        node("Conv", "c w", "y"),
        k=0.5,
        m=(3,),
        w=(4, 3, 3, 3),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Transpose", "Mul", "Sub", "Conv"]
    assert_same_meaning(graph, found)


def test_a_transpose_moves_over_elementwise_operators_to_the_output() -> None:
    graph = network(
        (1, 3, 6, 6),
        "y",
        node("Conv", "x w", "a"),
        to_last("a", "b"),
        node("Softmax", "b", "y", axis=3),
        w=(4, 3, 3, 3),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Conv", "Softmax", "Transpose"]
    assert_same_meaning(graph, found)


def test_an_intermediate_result_that_is_a_graph_output_keeps_its_layout() -> None:
    graph = network(
        (1, 3, 6, 6),
        "y r",
        node("Conv", "x w", "a"),
        to_last("a", "b"),
        node("Relu", "b", "r"),
        to_first("r", "c"),
        node("Conv", "c v", "y"),
        w=(4, 3, 3, 3),
        v=(2, 4, 1, 1),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Conv", "Relu", "Transpose", "Conv"]
    assert found.producers["r"].op == "Transpose"
    assert_same_meaning(graph, found)


def test_a_region_stays_where_moving_would_cost_more() -> None:
    graph = network(
        (1, 3, 6, 6),
        "y z",
        to_last("x", "a"),
        node("Relu", "a", "b"),
        node("Concat", "b b", "y", axis=3),
        node("Neg", "b", "z"),
    )
    assert eliminate_transposes(graph) is graph


def test_a_transpose_before_flatten_and_gemm_is_folded_into_the_columns() -> None:
    graph = network(
        (2, 3, 4, 5),
        "y",
        node("Conv", "x k", "a"),
        to_last("a", "b"),
        node("Relu", "b", "r"),
        node("Reshape", "r", "f", shape=(2, 60)),
        node("Gemm", "f w b0", "y"),
        k=(3, 3, 1, 1),
        w=(7, 60),
        b0=(7,),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Conv", "Relu", "Reshape", "Gemm"]
    assert_same_meaning(graph, found)


def test_a_transpose_before_a_flatten_that_something_else_reads_stays() -> None:
    graph = network(
        (2, 3, 4, 5),
        "y f",
        to_last("x", "b"),
        node("Reshape", "b", "f", shape=(2, 60)),
        node("Gemm", "f w", "y"),
        w=(7, 60),
    )
    assert eliminate_transposes(graph) is graph


def test_a_mean_that_drops_the_image_takes_other_axes() -> None:
    graph = network((2, 3, 4, 5), "y", to_last("x", "a"), node("ReduceMean", "a", "y", axes=(1, 2), keepdims=0))
    found = eliminate_transposes(graph)
    assert operators(found) == ["ReduceMean"]
    assert found.nodes[0].integers("axes") == (2, 3)
    assert_same_meaning(graph, found)


def test_a_mean_whose_other_axes_would_change_places_keeps_its_transpose() -> None:
    graph = network((2, 3, 4, 5), "y", to_last("x", "a"), node("ReduceMean", "a", "y", axes=(2,), keepdims=0))
    assert eliminate_transposes(graph) is graph


def test_a_transpose_that_moves_only_axes_of_extent_one_becomes_a_reshape() -> None:
    graph = network((1, 49, 10, 1), "y", to_first("x", "a"), node("Conv", "a w", "y"), w=(8, 1, 3, 3))
    found = eliminate_transposes(graph)
    assert operators(found) == ["Reshape", "Conv"]
    assert_same_meaning(graph, found)


def test_two_readers_of_a_transposed_input_share_one_transpose() -> None:
    graph = network(
        (1, 6, 6, 3),
        "y",
        to_first("x", "a"),
        node("Conv", "a w", "b"),
        node("Relu", "x", "r"),
        to_first("r", "c"),
        node("Conv", "c w", "d"),
        node("Add", "b d", "y"),
        w=(4, 3, 3, 3),
    )
    found = eliminate_transposes(graph)
    assert operators(found) == ["Transpose", "Conv", "Relu", "Conv", "Add"]
    assert_same_meaning(graph, found)


def test_interpolation_stays_where_onnxruntime_has_it() -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "sizes": (1, 2, 6, 8), "scales": (1.0, 1.0, 2.0, 2.0)}
    graph = network(
        (1, 2, 3, 4),
        "y",
        node("Resize", "x", "a", mode="linear", **attrs),
        node("Relu", "a", "b"),
        node("Transpose", "b", "y", perm=(0, 3, 1, 2)),
    )
    found = eliminate_transposes(graph)
    assert next(each for each in found.nodes if each.op == "Resize").numbers("scales") == (1.0, 1.0, 2.0, 2.0)
    assert_same_meaning(graph, found)


def test_a_sum_of_a_tensor_and_its_own_transpose_stays() -> None:
    graph = network(
        (3, 3, 4, 4),
        "y",
        node("Relu", "x", "a"),
        node("Transpose", "a", "b", perm=(1, 0, 2, 3)),
        node("Add", "b a", "y"),
    )
    assert operators(eliminate_transposes(graph)) == ["Relu", "Transpose", "Add"]


def test_an_operand_of_lower_rank_that_is_computed_keeps_the_layout() -> None:
    graph = network(
        (2, 3, 4, 5),
        "y",
        node("ReduceMean", "x", "v", axes=(0, 2, 3), keepdims=0),
        to_last("x", "a"),
        node("Add", "a v", "b"),
        to_first("b", "y"),
    )
    found = eliminate_transposes(graph)
    assert operators(found).count("Transpose") == 2
    assert_same_meaning(graph, found)
