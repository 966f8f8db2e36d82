"""Activations, Gemm and Softmax, in all the forms that exporters write."""

from __future__ import annotations

from itertools import product
from math import inf, pi, sqrt

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.passes.recognition.recognise_activations import recognise_activations, recognise_softmax
from npuc.passes.recognition.recognise_gemm import recognise_gemm
from tests.passes.networks import assert_same_meaning, becomes, network, node, operators, sources

NUMBERS = {
    "half": 0.5, "one": 1, "three": 3, "six": 6, "sixth": 1 / 6, "zero": 0, "tenth": 0.1, "root": sqrt(2),
    "r": sqrt(0.5), "cube": 0.044715, "c": sqrt(2 / pi), "power": 3, "fifth": 0.2, "minus": -1,
}  # fmt: skip


def _graph(*nodes: Node, outputs: str = "y") -> Graph:
    used = {name for each in nodes for name in each.inputs}
    return network((1, 3, 4, 4), outputs, *nodes, **{k: v for k, v in NUMBERS.items() if k in used})


def _only(graph: Graph) -> Node:
    found = recognise_activations(graph)
    assert_same_meaning(graph, found)
    assert len(found.nodes) == 1
    assert found.nodes[0].sources == tuple(each.name for each in graph.nodes)
    return found.nodes[0]


def _either_way(op: str, inputs: str, output: str) -> tuple[Node, Node]:
    return node(op, inputs, output), node(op, " ".join(reversed(inputs.split())), output)


SWISH = list(product([node("Sigmoid", "x", "s")], _either_way("Mul", "x s", "y")))
HARD_SWISH = [
    *product(_either_way("Add", "x three", "a"), [node("Clip", "a", "b", min=0.0, max=6.0)],
     _either_way("Mul", "x b", "m"), [node("Div", "m six", "y"), *_either_way("Mul", "m sixth", "y")]),
    *product(_either_way("Add", "x three", "a"), [node("Clip", "a", "b", min=0.0, max=6.0)],
     [node("Div", "b six", "m"), *_either_way("Mul", "b sixth", "m")], _either_way("Mul", "x m", "y")),
    (node("Mul", "x sixth", "d"), node("Add", "x three", "a"), node("Clip", "a", "b", min=0.0, max=6.0),
     node("Mul", "d b", "y")),
    (node("HardSigmoid", "x", "h", alpha=1 / 6, beta=0.5), node("Mul", "x h", "y")),
    (node("Add", "x three", "a"), node("Relu", "a", "r0"), node("Min", "r0 six", "b"), node("Mul", "x b", "m"),
     node("Div", "m six", "y")),
    (node("Mul", "x sixth", "d"), node("Add", "d half", "a"), node("Clip", "a", "b", min=0.0, max=1.0),
     node("Mul", "b x", "y")),
]  # fmt: skip
GELU = [
    *product([node("Div", "x root", "a"), *_either_way("Mul", "x r", "a")], [node("Erf", "a", "b")],
     _either_way("Add", "b one", "e"), _either_way("Mul", "x e", "m"), _either_way("Mul", "m half", "y")),
    (node("Mul", "x half", "h"), node("Div", "x root", "a"), node("Erf", "a", "b"), node("Add", "one b", "e"),
     node("Mul", "h e", "y")),
    (node("Div", "x root", "a"), node("Erf", "a", "b"), node("Mul", "b half", "e"), node("Add", "e half", "f"),
     node("Mul", "x f", "y")),
]  # fmt: skip
TANH_GELU = [
    (node("Pow", "x power", "p"), node("Mul", "p cube", "q"), node("Add", "x q", "s"), node("Mul", "s c", "t"),
     node("Tanh", "t", "u"), node("Add", "u one", "v"), node("Mul", "x v", "m"), node("Mul", "m half", "y")),
    (node("Mul", "x x", "p"), node("Mul", "p cube", "q"), node("Add", "one q", "s"), node("Mul", "x c", "t"),
     node("Mul", "t s", "t2"), node("Tanh", "t2", "u"), node("Add", "one u", "v"), node("Mul", "x half", "h"),
     node("Mul", "v h", "y")),
]  # fmt: skip


@pytest.mark.parametrize(("op", "nodes"), [
    *(("Swish", nodes) for nodes in SWISH), *(("HardSwish", nodes) for nodes in HARD_SWISH),
    *(("Gelu", nodes) for nodes in (*GELU, *TANH_GELU)),
])  # fmt: skip
def test_a_product_with_a_function_of_x_is_recognised(op: str, nodes: tuple[Node, ...]) -> None:
    assert _only(_graph(*nodes)).op == op


def test_gelu_says_which_definition_it_is() -> None:
    assert _only(_graph(*GELU[0])).text("approximate") == "none"
    assert _only(_graph(*TANH_GELU[0])).text("approximate") == "tanh"


def test_swish_keeps_the_factor_inside_the_sigmoid() -> None:
    found = _only(_graph(node("Mul", "x fifth", "a"), node("Sigmoid", "a", "s"), node("Mul", "s x", "y")))
    assert (found.op, found.number("alpha")) == ("Swish", pytest.approx(0.2))


@pytest.mark.parametrize(
    "softplus",
    [(node("Softplus", "x", "s"),), (node("Exp", "x", "e"), node("Add", "one e", "p"), node("Log", "p", "s"))],
)
def test_mish_is_recognised(softplus: tuple[Node, ...]) -> None:
    assert _only(_graph(*softplus, node("Tanh", "s", "t"), node("Mul", "x t", "y"))).op == "Mish"


@pytest.mark.parametrize(
    "last", [node("Div", "one p", "y"), node("Reciprocal", "p", "y")], ids=lambda each: each.op
)
def test_sigmoid_spelled_with_exp_is_recognised(last: Node) -> None:
    spelled = (node("Exp", "n", "e"), node("Add", "e one", "p"), last)
    assert _only(_graph(node("Neg", "x", "n"), *spelled)).op == "Sigmoid"
    grown = node("Mul", "x k", "a"), node("Neg", "a", "n")
    graph = network((2, 3), "y", *grown, *spelled, k=np.full((1, 1, 1), 2.0, np.float32), one=1)
    becomes(recognise_activations, graph, ["Mul", "Sigmoid"])


@pytest.mark.parametrize(("nodes", "alpha"), [
    ((node("Add", "x three", "a"), node("Clip", "a", "b", min=0.0, max=6.0), node("Div", "b six", "y")), 1 / 6),
    ((node("Add", "three x", "a"), node("Clip", "a", "b", min=0.0, max=6.0), node("Mul", "sixth b", "y")),
     1 / 6),
    ((node("Mul", "x fifth", "a"), node("Add", "a half", "b"), node("Clip", "b", "y", min=0.0, max=1.0)), 0.2),
])  # fmt: skip
def test_hard_sigmoid_is_recognised(nodes: tuple[Node, ...], alpha: float) -> None:
    found = _only(_graph(*nodes))
    assert found.op == "HardSigmoid"
    assert (found.number("alpha"), found.number("beta")) == (pytest.approx(alpha), pytest.approx(0.5))


@pytest.mark.parametrize(("nodes", "low", "high"), [
    ((node("Max", "x zero", "y"),), 0, inf), ((node("Max", "zero x", "y"),), 0, inf),
    ((node("Clip", "x", "y", min=0.0, max=inf),), 0, inf), ((node("Clip", "x", "y", min=0.0),), 0, inf),
    ((node("Min", "six x", "y"),), -inf, 6), ((node("Relu", "x", "a"), node("Min", "a six", "y")), 0, 6),
    ((node("Min", "x six", "a"), node("Relu", "a", "y")), 0, 6),
    ((node("Relu", "x", "a"), node("Clip", "a", "y", min=-1.0, max=6.0)), 0, 6),
    ((node("Relu", "x", "a"), node("Relu", "a", "y")), 0, inf),
    ((node("Clip", "x", "a", min=2.0, max=3.0), node("Clip", "a", "y", min=4.0, max=5.0)), 4, 4),
])  # fmt: skip
def test_limits_become_relu_or_one_clip(nodes: tuple[Node, ...], low: float, high: float) -> None:
    found = _only(_graph(*nodes))
    assert found.op == ("Relu" if (low, high) == (0, inf) else "Clip")
    if found.op == "Clip":
        assert (found.number("min"), found.number("max")) == (low, high)


def test_leaky_relu_spelled_as_a_maximum_is_recognised() -> None:
    found = _only(_graph(node("Mul", "tenth x", "a"), node("Max", "x a", "y")))
    assert (found.op, found.number("alpha")) == ("LeakyRelu", pytest.approx(0.1))


def test_prelu_spelled_with_two_relus_is_recognised() -> None:
    slopes = np.linspace(-0.5, 0.5, 3, dtype=np.float32).reshape(3, 1, 1)
    nodes = (
        node("Relu", "x", "p"),
        node("Neg", "x", "n"),
        node("Relu", "n", "q"),
        node("Mul", "k q", "m"),
        node("Add", "m p", "y"),
    )
    found = _only(network((1, 3, 4, 4), "y", *nodes, k=slopes))
    assert found.op == "PRelu"


def test_a_product_with_more_than_the_function_is_left() -> None:
    graph = _graph(
        node("Relu", "x", "g"), node("Sigmoid", "x", "s"), node("Mul", "x s", "m"), node("Mul", "m g", "y")
    )
    assert operators(recognise_activations(graph)) == ["Relu", "Swish", "Mul"]


@pytest.mark.parametrize("nodes", [
    (node("Sigmoid", "x", "s"), node("Neg", "x", "n"), node("Mul", "n s", "y")),
    (node("Add", "x one", "a"), node("Clip", "a", "b", min=0.0, max=6.0), node("Mul", "x b", "m"),
     node("Div", "m six", "y")),
    (node("Add", "x three", "a"), node("Clip", "a", "b", min=0.0, max=6.0), node("Mul", "x b", "y")),
    (node("Mul", "three x", "a"), node("Max", "x a", "y")),
    (node("Div", "x six", "a"), node("Erf", "a", "b"), node("Add", "b one", "e"), node("Mul", "x e", "m"),
     node("Mul", "m half", "y")),
    (node("Add", "x one", "a"), node("Clip", "a", "y", min=0.0, max=1.0)),
])  # fmt: skip
def test_a_similar_spelling_that_means_something_else_is_left(nodes: tuple[Node, ...]) -> None:
    graph = _graph(*nodes)
    assert recognise_activations(graph) is graph


def test_a_result_inside_the_pattern_that_is_a_graph_output_keeps_the_pattern() -> None:
    graph = _graph(*SWISH[0], outputs="y s")
    assert recognise_activations(graph) is graph


def test_a_result_inside_the_pattern_with_a_second_reader_keeps_the_pattern() -> None:
    clip = node("Clip", "a", "b", min=0.0, max=6.0)
    graph = _graph(
        node("Add", "x three", "a"),
        clip,
        node("Mul", "x b", "m"),
        node("Div", "m six", "h"),
        node("Add", "h b", "y"),
    )
    assert recognise_activations(graph) is graph


def test_a_maximum_of_two_computed_tensors_is_left() -> None:
    graph = _graph(node("Sigmoid", "x", "s"), node("Max", "x s", "y"))
    assert recognise_activations(graph) is graph


def test_a_maximum_with_a_constant_that_broadcasts_is_left() -> None:
    graph = network((1, 3), "y", node("Max", "x c", "y"), c=np.zeros((1, 1, 1), np.float32))
    assert recognise_activations(graph) is graph


def test_sources_are_the_nodes_of_the_pattern_in_graph_order() -> None:
    graph = _graph(
        node("Neg", "x", "n"), node("Sigmoid", "n", "s"), node("Mul", "s n", "w"), node("Relu", "w", "y")
    )
    assert sources(recognise_activations(graph), "w") == ("s", "w")


SCALED = {"s": np.float32([0.5, 0.25]), "z": np.int8([0, 0])}


@pytest.mark.parametrize("add", [node("Add", "m b", "y"), node("Add", "b m", "y")])
@pytest.mark.parametrize("bias", [(2,), (1, 2), ()])
def test_matmul_and_add_of_a_row_become_gemm(add, bias: tuple[int, ...]) -> None:
    graph = network((3, 5), "y", node("MatMul", "x w", "m"), add, w=(5, 2), b=bias)
    found = recognise_gemm(graph)
    assert operators(found) == ["Gemm"]
    assert found.shape(found.nodes[0].inputs[1]) == (2, 5)
    assert found.shape(found.nodes[0].inputs[2]) == (2,)
    assert sources(found, "y") == ("m", "y")
    assert_same_meaning(graph, found)


def test_rows_of_more_than_two_dimensions_are_flattened_and_the_sum_still_becomes_the_bias() -> None:
    graph = network((2, 3, 5), "y", node("MatMul", "x w", "m"), node("Add", "m b", "y"), w=(5, 2), b=(2,))
    found = becomes(recognise_gemm, graph, ["Reshape", "Gemm", "Reshape"])
    assert len(found.nodes[1].inputs) == 3


def test_two_sums_become_one_bias() -> None:
    graph = network((3, 5), "y", node("Gemm", "x w b", "m"), node("Add", "m c", "y"), w=(2, 5), b=(2,), c=(2,))
    becomes(recognise_gemm, graph, ["Gemm"])


def test_weight_and_bias_behind_dequantize_linear_stay_integers() -> None:
    graph = network((3, 5), "y", node("DequantizeLinear", "q s z", "w", axis=1),
        node("DequantizeLinear", "c t", "b"), node("MatMul", "x w", "m"), node("Add", "m b", "y"),
        q=np.arange(10, dtype=np.int8).reshape(5, 2), c=np.int32([7, -3]), t=0.125, **SCALED)  # fmt: skip
    found = recognise_gemm(graph)
    assert sorted(operators(found)) == ["DequantizeLinear", "DequantizeLinear", "Gemm"]
    weight = found.producers[found.producers["y"].inputs[1]]
    assert weight.integer("axis") == 0
    np.testing.assert_array_equal(found.constants[weight.inputs[0]], np.arange(10).reshape(5, 2).T)
    assert_same_meaning(graph, found)


def test_a_product_with_a_second_reader_keeps_its_sum_apart() -> None:
    graph = network(
        (3, 5), "y", node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Mul", "a m", "y"), w=(5, 2), b=(2,)
    )
    becomes(recognise_gemm, graph, ["Gemm", "Add", "Mul"])


def test_a_product_of_two_computed_matrices_is_left() -> None:
    graph = network((3, 3), "y", node("Relu", "x", "a"), node("MatMul", "x a", "y"))
    assert recognise_gemm(graph) is graph


def test_a_sum_with_a_matrix_or_a_larger_constant_is_left() -> None:
    whole = network((3, 5), "y", node("Gemm", "x w", "m"), node("Add", "m b", "y"), w=(2, 5), b=(3, 2))
    larger = network((1, 5), "y", node("Gemm", "x w", "m"), node("Add", "m b", "y"), w=(2, 5), b=(3, 2))
    assert recognise_gemm(whole) is whole
    assert recognise_gemm(larger) is larger


MAXIMUM = node("ReduceMax", "x", "m", axes=(1,), keepdims=1)
SHIFT = node("Sub", "x m", "s")
TOTAL = node("ReduceSum", "e", "t", axes=(1,), keepdims=1)
STABLE = (MAXIMUM, SHIFT, node("Exp", "s", "e"), TOTAL)
PLAIN = (node("Exp", "x", "e"), TOTAL)
LOG = node("Log", "t", "l")
SPELLINGS = {
    "softmax": ("Softmax", (*STABLE, node("Div", "e t", "y"))),
    "softmax without the maximum": ("Softmax", (*PLAIN, node("Div", "e t", "y"))),
    "log softmax": ("LogSoftmax", (*STABLE, LOG, node("Sub", "s l", "y"))),
    "log softmax without the maximum": ("LogSoftmax", (*PLAIN, LOG, node("Sub", "x l", "y"))),
}
LOOK_ALIKES = {
    "the sum is over two axes": (*STABLE[:3], node("ReduceSum", "e", "t", axes=(1, 2), keepdims=1),
     node("Div", "e t", "y")),
    "a sum without its dimension broadcasts along another axis": (*STABLE[:3],
     node("ReduceSum", "e", "t", axes=(1,), keepdims=0), node("Div", "e t", "y")),
    "the sum is divided": (*STABLE, node("Div", "t e", "y")),
    "the sum is of something else": (*STABLE[:3], node("ReduceSum", "x", "t", axes=(1,), keepdims=1),
     node("Div", "e t", "y")),
    "the mean": (*STABLE[:3], node("ReduceMean", "e", "t", axes=(1,), keepdims=1), node("Div", "e t", "y")),
    "the logarithm is taken off x, not of what the sum is": (*STABLE, LOG, node("Sub", "x l", "y")),
    "the powers are read by another node, too": (*STABLE, node("Div", "e t", "d"), node("Mul", "d e", "y")),
    "the sum is an output": (*STABLE, node("Div", "e t", "y"), node("Identity", "t", "z")),
}  # fmt: skip


def _graph_of_recognise_softmax(nodes: tuple[Node, ...]) -> Graph:
    return network((1, 4, 4), "y t" if any(each.output == "z" for each in nodes) else "y", *nodes)


@pytest.mark.parametrize(("op", "nodes"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_becomes_one_operator_that_names_all_its_nodes(op: str, nodes: tuple[Node, ...]) -> None:
    before = _graph_of_recognise_softmax(nodes)
    found = recognise_softmax(before)
    assert_same_meaning(before, found)
    (made,) = found.nodes
    assert (made.op, made.attrs["axis"]) == (op, 1)
    assert sorted(made.sources) == sorted(each.name for each in nodes)


@pytest.mark.parametrize("nodes", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_what_only_looks_like_it_stays(nodes: tuple[Node, ...]) -> None:
    before = _graph_of_recognise_softmax(nodes)
    becomes(recognise_softmax, before, operators(before))


def test_a_maximum_along_another_axis_stays_before_the_operator() -> None:
    wide = node("ReduceMax", "x", "m", axes=(2,), keepdims=1)
    before = _graph_of_recognise_softmax((wide, *STABLE[1:], node("Div", "e t", "y")))
    becomes(recognise_softmax, before, ["ReduceMax", "Sub", "Softmax"])
