"""What becomes part of a layer: activations, residual sums, batch normalisation, limits, short-cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.ir import Array, Attr, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.passes.fusion import fold_batch_norm, fold_mixtures, fuse_activation, mark_residual_add, separate_clips
from npuc.passes.recognition.recognise_batch_norm import recognise_batch_norm
from npuc.quantize.calibration.histograms import histograms
from npuc.targets.easynpu.network.passes import limit_at_zero
from npuc.targets.easynpu.network.quantising import FoldShortCuts
from npuc.targets.nvdla.network.passes import upper_limits_to_minima
from tests.passes.networks import assert_same_meaning, becomes, network, node, operators, sources

WEIGHT = {"w": (4, 4, 1, 1)}


@pytest.mark.parametrize("activation", [node("Relu", "a", "y"), node("Clip", "a", "y", min=0.5, max=6.0)])
@pytest.mark.parametrize(
    "layer", [node("Conv", "x w", "a"), node("ConvTranspose", "x w", "a"), node("Add", "x x", "a")]
)
def test_an_activation_becomes_part_of_the_layer_before_it(layer: Node, activation: Node) -> None:
    graph = network((1, 4, 3, 3), "y", layer, activation, **(WEIGHT if "w" in layer.inputs else {}))
    found = becomes(fuse_activation, graph, [f"{layer.op}+{activation.op}"])
    assert sources(found, "y") == ("a", "y")


def test_an_activation_becomes_part_of_gemm() -> None:
    graph = network((2, 3), "y", node("Gemm", "x w", "a"), node("Relu", "a", "y"), w=(4, 3))
    assert operators(fuse_activation(graph)) == ["Gemm+Relu"]


def test_relu_and_clip_become_one_activation() -> None:
    clip = node("Clip", "r", "y", min=-1.0, max=6.0)
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Relu", "a", "r"), clip, **WEIGHT)
    found = becomes(fuse_activation, graph, ["Conv+Clip"])
    assert (found.nodes[0].number("min"), found.nodes[0].number("max")) == (0, 6)


def test_an_activation_behind_a_maximum_moves_in_front_of_it() -> None:
    pool = node("MaxPool", "a", "p", kernel_shape=(2, 2), strides=(2, 2), pads=(0, 0, 1, 1))
    graph = network((1, 4, 5, 5), "y", node("Conv", "x w", "a"), pool, node("Relu", "p", "y"), **WEIGHT)
    becomes(fuse_activation, graph, ["Conv+Relu", "MaxPool"])


def test_an_activation_behind_an_average_stays() -> None:
    pool = node("AveragePool", "a", "p", kernel_shape=(2, 2))
    graph = network((1, 4, 5, 5), "y", node("Conv", "x w", "a"), pool, node("Relu", "p", "y"), **WEIGHT)
    assert fuse_activation(graph) is graph


def test_relu_with_two_readers_is_fused() -> None:
    nodes = (node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Sigmoid", "r", "s"), node("Mul", "r s", "y"))
    graph = network((1, 4, 3, 3), "y", *nodes, **WEIGHT)
    assert operators(fuse_activation(graph)) == ["Conv+Relu", "Sigmoid", "Mul"]


def test_a_convolution_with_two_readers_is_not_fused() -> None:
    nodes = (node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Add", "a r", "y"))
    graph = network((1, 4, 3, 3), "y", *nodes, **WEIGHT)
    assert fuse_activation(graph) is graph


def test_a_convolution_that_is_a_graph_output_is_not_fused() -> None:
    graph = network((1, 4, 3, 3), "y a", node("Conv", "x w", "a"), node("Relu", "a", "y"), **WEIGHT)
    assert fuse_activation(graph) is graph


def test_only_one_activation_is_fused() -> None:
    graph = network(
        (1, 4, 3, 3), "y", node("Conv", "x w", "a", activation="Relu"), node("Clip", "a", "y", max=6.0), **WEIGHT
    )
    assert fuse_activation(graph) is graph


def test_other_activations_are_not_fused() -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("HardSwish", "a", "y"), **WEIGHT)
    assert fuse_activation(graph) is graph


def _mark(graph: Graph) -> object:
    marked = mark_residual_add(graph)
    assert_same_meaning(graph, marked)
    assert mark_residual_add(marked) is marked
    return marked.producers["y"].attrs.get("fused_input")


def test_the_operand_that_a_convolution_computes_is_marked() -> None:
    first = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Add", "a x", "y"), **WEIGHT)
    second = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Add", "x a", "y"), **WEIGHT)
    assert (_mark(first), _mark(second)) == (0, 1)


def test_of_two_convolutions_the_later_one_is_marked() -> None:
    branches = (node("Conv", "x w", "a"), node("Conv", "x w", "b"))
    assert _mark(network((1, 4, 3, 3), "y", *branches, node("Add", "a b", "y"), **WEIGHT)) == 1
    assert _mark(network((1, 4, 3, 3), "y", *branches[::-1], node("Add", "a b", "y"), **WEIGHT)) == 0


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ((node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Add", "a r", "y")), "y"),  # two readers
        ((node("Conv", "x w", "a"), node("Add", "a x", "y")), "y a"),  # a graph output
        ((node("Conv", "x w", "a"), node("Add", "a a", "y")), "y"),  # both operands at once
        (
            (node("Relu", "x", "a"), node("Add", "a x", "y"), node("Conv", "y w", "z")),
            "z",
        ),  # no layer with weights
        (
            (node("GlobalAveragePool", "x", "p"), node("Conv", "p w", "a"), node("Add", "a x", "y")),
            "y",
        ),  # broadcast
    ],
)
def test_an_operand_that_cannot_be_the_last_step_is_not_marked(nodes: tuple[Node, ...], outputs: str) -> None:
    assert _mark(network((1, 4, 3, 3), outputs, *nodes, **WEIGHT)) is None


def test_the_other_operand_may_broadcast() -> None:
    nodes = (node("GlobalAveragePool", "x", "p"), node("Conv", "x w", "a"), node("Add", "p a", "y"))
    assert _mark(network((1, 4, 3, 3), "y", *nodes, **WEIGHT)) == 1


def test_a_sum_with_a_constant_is_no_residual() -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Add", "a c", "y"), c=(1, 4, 3, 3), **WEIGHT)
    assert _mark(graph) is None


def test_a_mark_that_no_longer_holds_is_taken_away() -> None:
    graph = network((1, 4, 3, 3), "y", node("Relu", "x", "a"), node("Add", "a x", "y", fused_input=0))
    assert _mark(graph) is None


STATISTICS = {"g": (4,), "s": (4,), "m": (4,), "v": (4,)}


def norm(x: str, y: str) -> Node:
    return node("BatchNormalization", f"{x} g s m v", y, epsilon=1e-3)


@pytest.mark.parametrize("constant", [(4, 1, 1), (1, 4, 1, 1), (1, 1, 1), (1,), ()])
@pytest.mark.parametrize("inputs", ["x c", "c x"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_arithmetic_per_channel_becomes_batch_norm(op: str, inputs: str, constant: tuple[int, ...]) -> None:
    graph = network((2, 4, 3, 3), "y", node(op, inputs, "y"), c=constant)
    becomes(recognise_batch_norm, graph, ["BatchNormalization"])


def test_division_and_negation_become_batch_norm_and_a_chain_becomes_one() -> None:
    graph = network((2, 4, 3, 3), "y", node("Neg", "x", "a"), node("Div", "a c", "b"), node("Add", "b d", "e"),
        norm("e", "y"), c=(4, 1, 1), d=2, **STATISTICS)  # fmt: skip
    found = becomes(recognise_batch_norm, graph, ["BatchNormalization"])
    assert sources(found, "y") == ("a", "b", "e", "y")


@pytest.mark.parametrize(("arithmetic", "constant"), [
    (node("Div", "c x", "y"), (4, 1, 1)), (node("Add", "x c", "y"), (3, 3)), (node("Add", "x c", "y"), (4, 3, 3)),
    (node("Mul", "x c", "y"), (5, 1, 4, 3, 3)), (node("Div", "x c", "y"), np.float32(0)),
    (node("Div", "x c", "y"), np.float32(1e-40)),
])  # fmt: skip
def test_other_arithmetic_is_left(arithmetic: Node, constant: Any) -> None:
    graph = network((2, 4, 3, 3), "y", arithmetic, c=constant)
    assert recognise_batch_norm(graph) is graph


def test_a_sum_of_two_computed_tensors_or_of_integers_is_left() -> None:
    computed = network((2, 4), "y", node("Relu", "x", "r"), node("Add", "x r", "y"))
    integers = network(
        (2, 4), "y", node("Cast", "x", "i", to="int32"), node("Add", "i c", "y"), c=np.ones(4, np.int32)
    )
    assert recognise_batch_norm(computed) is computed
    assert recognise_batch_norm(integers) is integers


LAYERS: list[tuple[str, dict[str, Attr], tuple[int, ...]]] = [
    ("Conv", {}, (4, 4, 3, 3)),
    ("Conv", {"pads": (1, 1, 1, 1), "strides": (2, 1)}, (4, 4, 3, 3)),
    ("Conv", {"group": 4}, (4, 1, 3, 3)),
    ("Conv", {"group": 2}, (4, 2, 1, 1)),
    ("ConvTranspose", {"strides": (2, 2)}, (4, 4, 2, 2)),
    ("ConvTranspose", {"group": 2}, (4, 2, 2, 2)),
]


@pytest.mark.parametrize("bias", ["", " b"])
@pytest.mark.parametrize(("op", "attrs", "weight"), LAYERS)
def test_batch_norm_behind_a_convolution_is_folded_into_it(
    op: str, attrs: dict[str, Attr], weight: tuple[int, ...], bias: str
) -> None:
    constants = {"w": weight, **STATISTICS, **({"b": (4,)} if bias else {})}
    graph = network((1, 4, 6, 6), "y", node(op, f"x w{bias}", "c", **attrs), norm("c", "y"), **constants)
    found = becomes(fold_batch_norm, graph, [op])
    assert sources(found, "y") == ("c", "y")


def test_batch_norm_behind_gemm_is_folded_into_it() -> None:
    graph = network((3, 5), "y", node("Gemm", "x w", "c"), norm("c", "y"), w=(4, 5), **STATISTICS)
    becomes(fold_batch_norm, graph, ["Gemm"])


@pytest.mark.parametrize(("op", "attrs", "weight"), [LAYERS[0], LAYERS[2], LAYERS[3]])
def test_batch_norm_before_a_convolution_without_padding_is_folded_into_it(
    op: str, attrs: dict[str, Attr], weight: tuple[int, ...]
) -> None:
    graph = network((1, 4, 6, 6), "y", norm("x", "n"), node(op, "n w", "y", **attrs), w=weight, **STATISTICS)
    becomes(fold_batch_norm, graph, ["Conv"])


def test_batch_norm_before_flatten_and_gemm_is_folded_into_the_columns() -> None:
    flatten = node("Reshape", "n", "f", shape=(2, 24))
    graph = network(
        (2, 4, 2, 3), "y", norm("x", "n"), flatten, node("Gemm", "f w b", "y"), w=(5, 24), b=(5,), **STATISTICS
    )
    becomes(fold_batch_norm, graph, ["Reshape", "Gemm"])


def tokens(*nodes: Node, outputs: str = "y", **constants: Any) -> Graph:
    """Tokens (2, 3, 4) scaled and shifted to `t`, and their products; `r` are their rows."""
    row = {"s": (4,), "b": (1, 4), "w": (5, 4), "v": (6, 4), "c": (5,)} | constants
    rows = node("Reshape", "t", "r", shape=(6, 4))
    return network((2, 3, 4), outputs, node("Mul", "x s", "m"), node("Sub", "m b", "t"), rows, *nodes, **row)


def test_rows_that_scale_and_shift_tokens_are_folded_into_their_products() -> None:
    found = becomes(fold_batch_norm, tokens(node("Gemm", "r w c", "y")), ["Reshape", "Gemm"])
    assert sources(found, "y") == ("m", "t", "y")
    products = node("Gemm", "r w", "y"), node("Gemm", "r v", "z")
    becomes(fold_batch_norm, tokens(*products, outputs="y z"), ["Reshape", "Gemm", "Reshape", "Gemm"])


@pytest.mark.parametrize(
    ("reader", "outputs"),
    [("Relu t", "y z"), ("Relu r", "y z"), ("", "y t"), ("", "y r"), ("Reshape t", "y z")],
)
def test_tokens_that_something_else_reads_keep_their_rows(reader: str, outputs: str) -> None:
    op, _, read = reader.partition(" ")
    others = [node(op, read, "z", **({"shape": (8, 3)} if op == "Reshape" else {}))] if op else []
    graph = tokens(node("Gemm", "r w", "y"), *others, outputs=outputs)
    assert fold_batch_norm(graph) is graph


@pytest.mark.parametrize("constants", [
    {"s": (3, 1), "b": (3, 1)}, {"s": (2, 1, 1), "b": (2, 1, 1)},
    {"b": np.full(4, 1e30, np.float32), "w": np.full((5, 4), 1e30, np.float32)},
])  # fmt: skip
def test_factors_of_tokens_and_sums_beyond_float32_stay(constants: dict[str, Any]) -> None:
    graph = tokens(node("Gemm", "r w", "y"), **constants)
    assert fold_batch_norm(graph) is graph


def test_rows_before_a_product_with_computed_weights_stay() -> None:
    graph = tokens(node("Relu", "w", "u"), node("Gemm", "r u", "y"))
    assert fold_batch_norm(graph) is graph


def test_batch_norm_before_a_convolution_with_padding_stays() -> None:
    conv = node("Conv", "n w", "y", pads=(1, 1, 1, 1))
    graph = network((1, 4, 6, 6), "y", norm("x", "n"), conv, w=(4, 4, 3, 3), **STATISTICS)
    assert fold_batch_norm(graph) is graph


def test_a_convolution_with_two_readers_is_not_folded() -> None:
    graph = network((1, 4, 6, 6), "y", node("Conv", "x w", "c"), norm("c", "n"), node("Add", "c n", "y"),
        w=(4, 4, 1, 1), **STATISTICS)  # fmt: skip
    assert fold_batch_norm(graph) is graph


def test_a_convolution_that_is_a_graph_output_is_not_folded() -> None:
    graph = network((1, 4, 6, 6), "y c", node("Conv", "x w", "c"), norm("c", "y"), w=(4, 4, 1, 1), **STATISTICS)
    assert fold_batch_norm(graph) is graph


def test_a_convolution_with_an_activation_is_not_folded() -> None:
    conv = node("Conv", "x w", "c", activation="Relu")
    graph = network((1, 4, 6, 6), "y", conv, norm("c", "y"), w=(4, 4, 1, 1), **STATISTICS)
    assert fold_batch_norm(graph) is graph


def test_a_weight_that_is_computed_is_not_folded() -> None:
    graph = network(
        (4, 4, 1, 1), "y", node("Relu", "x", "w"), node("Conv", "x w", "c"), norm("c", "y"), **STATISTICS
    )
    assert fold_batch_norm(graph) is graph


@pytest.mark.parametrize("op", ["Conv", "BatchNormalization"])
def test_factors_whose_product_leaves_float32_stay_apart(op: str) -> None:
    large = np.full((4, 1, 1), 1e30, np.float32)
    first = node("Conv", "x w", "a") if op == "Conv" else node("Mul", "x c", "a")
    w = np.full((4, 4, 1, 1), 1e30, np.float32)
    graph = network((1, 4, 3, 3), "y", first, node("Mul", "a c", "y"), c=large, w=w)
    found = fold_batch_norm(recognise_batch_norm(graph))
    assert operators(found) == [op, "BatchNormalization"]
    assert all(np.isfinite(each).all() for each in found.constants.values())


def test_a_bias_that_leaves_float32_is_not_moved_into_the_reader() -> None:
    graph = network((1, 4, 3, 3), "y", node("Add", "x c", "a"), node("Conv", "a w", "y"),
        c=np.full((4, 1, 1), 1e30, np.float32), w=np.full((4, 4, 1, 1), 1e30, np.float32))  # fmt: skip
    assert operators(fold_batch_norm(recognise_batch_norm(graph))) == ["BatchNormalization", "Conv"]


@pytest.mark.parametrize(
    "limits", [{"min": -1.0, "max": 1.0}, {"min": 0.5}, {"max": 3.0}, {"min": 0.0, "max": 0.0}]
)
@pytest.mark.parametrize("inputs", ["x w", "x x"])
def test_a_clip_that_is_no_relu_leaves_its_operator(inputs: str, limits: dict[str, float]) -> None:
    layer = node("Conv" if "w" in inputs else "Add", inputs, "a")
    weight = {"w": (4, 4, 1, 1)} if "w" in inputs else {}
    fused = fuse_activation(network((1, 4, 3, 3), "y", layer, node("Clip", "a", "y", **limits), **weight))
    assert operators(fused) == [f"{layer.op}+Clip"]
    found = becomes(separate_clips, fused, [layer.op, "Clip"])
    assert sources(found, "y") == ("y",)


def test_a_clip_from_zero_stays() -> None:
    graph = network(
        (1, 4, 3, 3), "y", node("Conv", "x w", "y", activation="Clip", min=0.0, max=6.0), w=(4, 4, 1, 1)
    )
    assert separate_clips(graph) is graph


def test_an_operator_without_limits_stays() -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "y", activation="Relu"), w=(4, 4, 1, 1))
    assert separate_clips(graph) is graph


def _rounded(zero_point: int, dtype: str, **attrs: str) -> Graph:
    rounding = node("FakeQuantize", "a", "y", scale=0.25, zero_point=zero_point, dtype=dtype)
    return network((1, 4, 3, 3), "y", node("Conv", "x w", "a", **attrs), rounding, w=(4, 4, 1, 1))


@pytest.mark.parametrize(("zero_point", "dtype"), [(-128, "int8"), (0, "uint8")])
def test_steps_from_zero_on_put_the_relu_back(zero_point: int, dtype: str) -> None:
    becomes(limit_at_zero, _rounded(zero_point, dtype), ["Conv+Relu", "FakeQuantize"])


@pytest.mark.parametrize(("zero_point", "dtype"), [(0, "int8"), (-127, "int8"), (128, "uint8")])
def test_steps_below_zero_limit_nothing(zero_point: int, dtype: str) -> None:
    graph = _rounded(zero_point, dtype)
    assert limit_at_zero(graph) is graph


def test_an_activation_stays() -> None:
    graph = _rounded(-128, "int8", activation="Relu")
    assert limit_at_zero(graph) is graph


@pytest.mark.parametrize(("limits", "found"), [
    ({"max": 0.5}, ["Min"]), ({"max": -0.5}, ["Min"]), ({"min": -1.0, "max": -0.25}, ["Clip", "Min"]),
    ({"min": -1.0, "max": 0.0}, ["Clip", "Min"]), ({"min": 1.0, "max": 0.5}, ["Clip", "Min"]),
])  # fmt: skip
def test_limits_that_saturation_cannot_be_become_minima(limits: dict[str, float], found: list[str]) -> None:
    becomes(upper_limits_to_minima, network((1, 3, 4, 4), "y", node("Clip", "x", "y", **limits)), found)


@pytest.mark.parametrize("limits", [{"min": 0.0, "max": 6.0}, {"min": -1.0, "max": 1.0}, {"min": 0.5}])
def test_other_limits_stay(limits: dict[str, float]) -> None:
    before = network((1, 3, 4, 4), "y", node("Clip", "x", "y", **limits))
    assert upper_limits_to_minima(before) is before


C, SIZE = 8, 10


def conv(y: str = "c", w: str = "w", **attrs: Any) -> Node:
    return Node("Conv", ("x", w, "b"), (y,), {"pads": (1, 1, 1, 1), "group": C, **attrs}, y, (y,))


def add(*inputs: str, **attrs: Any) -> Node:
    return Node("Add", inputs, ("y",), {"fused_input": 0, **attrs}, "y", ("y",))


def graph(*nodes: Node, outputs: tuple[str, ...] = ("y",)) -> Graph:
    random = np.random.default_rng(0)
    shapes = {"w": (C, 1, 3, 3), "even": (C, 1, 2, 2), "dense": (C, C, 3, 3), "b": (C,)}
    used = {name for node in nodes for name in node.inputs}
    weights = {
        name: (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    held = {name: value for name, value in weights.items() if name in used}
    return build("g", nodes, {"x": TensorType((1, C, SIZE, SIZE))}, outputs, held)


def feeds(count: int = 3) -> list[dict[str, Array]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((1, C, SIZE, SIZE)).astype(np.float32)} for _ in range(count)]


def folded(before: Graph) -> Graph:
    tensors = [*before.inputs, *(name for node in before.nodes for name in node.outputs)]
    return FoldShortCuts(histograms(before, feeds(), tensors))(before)


FOLDED = {
    "second operand": (conv(), add("c", "x")),
    "first operand": (conv(), add("x", "c")),
    "with an activation": (conv(), add("c", "x", activation="Relu")),
    "limited": (conv(), add("c", "x", activation="Clip", min=0.0, max=2.0)),
    "dilated": (conv(pads=(2, 2, 2, 2), dilations=(2, 2)), add("c", "x")),
    "padded at one side": (conv(w="even", pads=(0, 1, 1, 0)), add("c", "x")),
}


@pytest.mark.parametrize("nodes", FOLDED.values(), ids=FOLDED)
def test_a_convolution_and_its_input_become_one_convolution(nodes: tuple[Node, ...]) -> None:
    before = graph(*nodes)
    after = folded(before)
    (node,) = after.nodes
    assert (node.op, node.inputs[0], node.outputs, node.sources) == ("Conv", "x", ("y",), ("c", "y"))
    for values in feeds():
        np.testing.assert_allclose(run(after, values)["y"], run(before, values)["y"], rtol=1e-5, atol=1e-5)


KEPT = {
    "an activation lies between": (conv(activation="Relu"), add("c", "x")),
    "another map is added": (conv(), conv("d"), add("c", "d")),
    "no tap lies over the pixel": (conv(w="even", pads=(1, 1, 1, 1), dilations=(2, 2)), add("c", "x")),
    "dense, and 1 would leave the weights too few steps": (conv(w="dense", group=1), add("c", "x")),
}


@pytest.mark.parametrize("nodes", KEPT.values(), ids=KEPT)
def test_a_sum_stays_where(nodes: tuple[Node, ...]) -> None:
    before = graph(*nodes)
    assert folded(before) is before


def test_a_convolution_that_others_read_stays() -> None:
    before = graph(conv(), add("c", "x"), outputs=("y", "c"))
    assert folded(before) is before


def test_without_calibrated_values_nothing_is_folded() -> None:
    before = graph(*FOLDED["second operand"])
    assert FoldShortCuts({})(before) is before


PLACES = {
    "i": np.array([2, 0, 1]), "m": (3, 4, 1, 1), "o": (3,), "w": (5, 3, 3, 3), "k": (3, 4, 3, 3),
    "f": (5, 4, 1, 1), "v": (2, 5, 3, 3),
}  # fmt: skip
CUT = {"axes": (1,), "starts": (3,), "ends": (0,), "steps": (-1,)}


@pytest.mark.parametrize(
    ("mixing", "weight", "pad", "folded"),
    [
        (node("Gather", "x i", "a", axis=1), "w", 1, True),
        (node("Slice", "x", "a", **CUT), "w", 1, True),
        (node("Conv", "x m", "a"), "w", 1, True),
        (node("Conv", "x m o", "a"), "w", 0, True),
        (node("Conv", "x m o", "a"), "w", 1, False),  # padding is not mixed
        (node("Conv", "x m", "a", activation="Relu"), "w", 0, False),
        (node("Conv", "x m", "a", strides=(2, 2)), "w", 0, False),
        (node("Conv", "x m", "a", pads=(1, 1, 1, 1)), "w", 0, False),
        (node("Conv", "x k", "a"), "w", 0, False),
        (node("Conv", "x f", "a"), "v", 0, False),  # five channels
        (node("Slice", "x", "a", **{**CUT, "axes": (2,), "starts": (5,), "ends": (1,)}), "f", 0, False),
    ],
)
def test_the_order_or_mixture_of_channels_becomes_part_of_weights(
    mixing: Node, weight: str, pad: int, folded: bool
) -> None:
    nodes = (mixing, node("Conv", f"a {weight}", "y", pads=(pad,) * 4))
    graph = network((1, 4, 7, 7), "y", *nodes, **PLACES)
    if folded:
        becomes(fold_mixtures, graph, ["Conv"])
    else:
        assert fold_mixtures(graph) is graph


def test_an_image_of_elements_of_a_table_has_no_channels_to_mix() -> None:
    table = {
        "table": np.arange(5.0, dtype=np.float32),
        "i": np.arange(8).reshape(1, 2, 2, 2) % 5,
        "w": (3, 2, 1, 1),
    }
    graph = network((1, 2, 2, 2), "y", node("Gather", "table i", "a", axis=0), node("Conv", "a w", "y"), **table)
    assert fold_mixtures(graph) is graph


def test_a_mixture_with_two_readers_stays() -> None:
    nodes = (node("Gather", "x i", "a", axis=1), node("Conv", "a w", "y"), node("Relu", "a", "z"))
    graph = network((1, 4, 7, 7), "y z", *nodes, **PLACES)
    assert fold_mixtures(graph) is graph
