"""Constants, dead code, moved floats, split pads, and splits before moves."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from onnx import helper

import npuc
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.cleanup.boundary_moves import move_as_floats, split_before_moves
from npuc.passes.cleanup.clutter import fold_constants, merge_duplicates, remove_dead_code
from npuc.passes.cleanup.pads import SplitPads
from npuc.reference import session
from npuc.verification.metrics import Difference
from tests import onnx_models
from tests.passes.networks import assert_same_meaning, becomes, network, node, operators, sources


def test_a_chain_of_constants_becomes_one_constant() -> None:
    graph = network((1, 3), "y", node("Neg", "c", "d"), node("Sqrt", "e", "f"), node("Add", "d f", "g"),
        node("Add", "x g", "y"), c=np.float32([1, 2, 3]), e=np.float32([4, 9, 16]))  # fmt: skip
    folded = fold_constants(graph)
    assert operators(folded) == ["Add"]
    np.testing.assert_array_equal(folded.constants["g"], [1, 1, 1])
    assert set(folded.constants) == {"g"}


def test_all_pieces_of_a_split_constant_are_folded() -> None:
    graph = network((2,), "y", node("Split", "c", "a b", axis=0, split=(2, 2)), node("Add", "x a", "s"),
        node("Add", "s b", "y"), c=np.float32([1, 2, 3, 4]))  # fmt: skip
    becomes(fold_constants, graph, ["Add", "Add"])


def test_a_constant_graph_output_keeps_its_name() -> None:
    graph = network((1,), "y z", node("Relu", "x", "y"), node("Neg", "c", "z"), c=np.float32([1]))
    becomes(fold_constants, graph, ["Relu"])


def test_a_constant_is_not_blown_up_into_a_large_one() -> None:
    shape = (1, 1 << 11, 1 << 11)
    graph = network(shape, "y", node("Expand", "c", "d", shape=shape), node("Add", "x d", "y"), c=np.float32([1]))
    assert fold_constants(graph) is graph


QUANTISED = {"w": np.int8([[1, -2], [3, 4]]), "s": np.float32(0.5), "z": np.int8(0)}


def test_a_weight_stored_as_integers_is_folded_where_no_activation_is_quantised() -> None:
    graph = network((1, 2), "y", node("DequantizeLinear", "w s z", "v"), node("Gemm", "x v", "y"), **QUANTISED)
    assert operators(fold_constants(graph)) == ["Gemm"]


def test_a_weight_of_a_quantised_model_keeps_its_integers_and_scale() -> None:
    graph = network((1, 2), "y", node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w s z", "v"), node("Gemm", "d v", "y"), **QUANTISED)  # fmt: skip
    assert fold_constants(graph) is graph


MAP = (1, 4, 5, 6)


def _between(no_op: Node, **constants: float) -> Graph:
    return network(MAP, "y", node("Relu", "x", "a"), no_op, node("Sigmoid", "b", "y"), **constants)


@pytest.mark.parametrize("no_op", [
    node("Identity", "a", "b"),
    node("Reshape", "a", "b", shape=MAP),
    node("Transpose", "a", "b", perm=(0, 1, 2, 3)),
    node("Pad", "a", "b", pads=(0,) * 8),
    node("Slice", "a", "b", starts=(0, 0), ends=(5, 6), axes=(2, 3), steps=(1, 1)),
    node("Concat", "a", "b", axis=1),
    node("Split", "a", "b", axis=1, split=(4,)),
    node("Expand", "a", "b", shape=MAP),
    node("Cast", "a", "b", to="float32"),
    node("Clip", "a", "b", min=-inf, max=inf),
    node("MaxPool", "a", "b", kernel_shape=(1, 1)),
    node("AveragePool", "a", "b", kernel_shape=(1, 1)),
    node("Resize", "a", "b", scales=(1.0, 1.0, 1.0, 1.0), sizes=MAP),
    node("ReduceMean", "a", "b", axes=(0,), keepdims=1),
], ids=lambda each: each.op)  # fmt: skip
def test_a_node_that_gives_back_its_input_goes(no_op: Node) -> None:
    removed = becomes(remove_dead_code, _between(no_op), ["Relu", "Sigmoid"])
    assert sources(removed, "a") == ("a", "b")


@pytest.mark.parametrize(("op", "number"), [("Add", 0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0)])
def test_arithmetic_with_the_neutral_number_goes(op: str, number: float) -> None:
    assert operators(remove_dead_code(_between(node(op, "a c", "b"), c=number))) == ["Relu", "Sigmoid"]


@pytest.mark.parametrize("kept", [
    node("Slice", "a", "b", starts=(4,), ends=(-1,), axes=(2,), steps=(-1,)),
    node("Transpose", "a", "b", perm=(0, 1, 3, 2)),
    node("Pad", "a", "b", pads=(0, 0, 1, 0, 0, 0, -1, 0)),
    node("Clip", "a", "b", min=0.0, max=inf),
    node("MaxPool", "a", "b", kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
], ids=lambda each: each.op)  # fmt: skip
def test_a_node_that_changes_elements_or_their_order_stays(kept: Node) -> None:
    graph = _between(kept)
    assert remove_dead_code(graph) is graph


def test_a_sum_with_zeros_that_broadcasts_stays() -> None:
    graph = network((1, 1), "y", node("Add", "x c", "y"), c=np.zeros((4, 1), np.float32))
    assert remove_dead_code(graph) is graph


def test_the_name_of_a_graph_output_survives() -> None:
    graph = network((2,), "y", node("Relu", "x", "a"), node("Neg", "a", "b"), node("Identity", "b", "y"))
    removed = remove_dead_code(graph)
    assert [each.output for each in removed.nodes] == ["a", "y"]
    assert_same_meaning(graph, removed)


def test_readers_of_the_renamed_tensor_follow() -> None:
    graph = network((2,), "y z", node("Relu", "x", "a"), node("Identity", "a", "y"), node("Neg", "a", "z"))
    removed = remove_dead_code(graph)
    assert [(each.op, each.inputs) for each in removed.nodes] == [("Relu", ("x",)), ("Neg", ("y",))]
    assert_same_meaning(graph, removed)


def test_identity_between_a_graph_input_and_a_graph_output_stays() -> None:
    graph = network((2,), "y", node("Identity", "x", "y"))
    assert remove_dead_code(graph) is graph


def test_identity_between_two_graph_outputs_stays() -> None:
    graph = network((2,), "a y", node("Relu", "x", "a"), node("Identity", "a", "y"))
    assert remove_dead_code(graph) is graph


def test_two_equal_nodes_become_one() -> None:
    graph = network((1, 2, 3, 4), "y", node("Transpose", "x", "a", perm=(0, 3, 1, 2)),
        node("Transpose", "x", "b", perm=(0, 3, 1, 2)), node("Relu", "a", "c"), node("Relu", "b", "d"),
        node("Add", "c d", "y"))  # fmt: skip
    merged = becomes(merge_duplicates, graph, ["Transpose", "Relu", "Add"])
    assert sources(merged, "c") == ("c", "d")


def test_nodes_that_differ_in_an_attribute_or_are_graph_outputs_stay_two() -> None:
    clips = network(
        (2,), "y", node("Clip", "x", "a", max=1.0), node("Clip", "x", "b", max=2.0), node("Add", "a b", "y")
    )
    outputs = network((2,), "a b", node("Relu", "x", "a"), node("Relu", "x", "b"))
    assert merge_duplicates(clips) is clips
    assert merge_duplicates(outputs).nodes == outputs.nodes


STEPS = {"s": np.float32(0.05), "z": np.int8(-7)}


def test_moves_stand_outside_of_steps() -> None:
    graph = network((1, 2, 3, 4), "y", node("QuantizeLinear", "x s z", "q"),
        node("Transpose", "q", "t", perm=(0, 2, 3, 1)), node("DequantizeLinear", "t s z", "f"),
        node("Relu", "f", "r"), node("QuantizeLinear", "r s z", "o"), node("Reshape", "o", "y", shape=(1, 24)),
        **STEPS)  # fmt: skip
    becomes(
        move_as_floats,
        graph,
        [*("Transpose", "QuantizeLinear", "DequantizeLinear", "Relu", "Reshape", "QuantizeLinear")],
    )


def test_integers_of_an_input_are_dequantised_before_they_are_moved() -> None:
    nodes = (node("Transpose", "x", "t", perm=(0, 2, 3, 1)), node("DequantizeLinear", "t s z", "y"))
    constants = {name: np.asarray(value) for name, value in STEPS.items()}
    graph = build("test", nodes, {"x": TensorType((1, 2, 3, 4), "int8")}, ["y"], constants)
    becomes(move_as_floats, graph, ["DequantizeLinear", "Transpose"])


def test_integers_that_something_else_reads_and_scales_of_channels_stay() -> None:
    read_twice = network((1, 2, 3, 4), "y t", node("QuantizeLinear", "x s z", "q"), node("Relu", "x", "r"),
        node("QuantizeLinear", "r s z", "p"), node("Transpose", "p", "t", perm=(0, 2, 3, 1)),
        node("DequantizeLinear", "t s z", "y"), **STEPS)  # fmt: skip
    assert operators(move_as_floats(read_twice))[-1] == "DequantizeLinear"
    channels = network((1, 2, 3, 4), "y", node("QuantizeLinear", "x two zeros", "q", axis=1),
        node("Transpose", "q", "t", perm=(0, 2, 3, 1)), node("DequantizeLinear", "t two zeros", "y", axis=3),
        two=np.array([0.1, 0.2], np.float32), zeros=np.zeros(2, np.int8))  # fmt: skip
    assert move_as_floats(channels) is channels


W = (np.random.default_rng(0).standard_normal((4, 2, 3, 41)) + 0.1).astype(np.float32)


@pytest.mark.parametrize("pads", [(1, 19, 1, 20), (1, 19, 1, 0), (17, 0, 0, 16)])
def test_only_what_is_too_much_is_added_in_front(pads: tuple[int, ...]) -> None:
    graph = network((1, 2, 5, 60), "y", node("Conv", "x w", "y", pads=pads, strides=(1, 2)), w=W)
    found = SplitPads(15)(graph)
    assert operators(found) == ["Pad", "Conv"] and sources(found, "y") == ("y",)
    assert found.nodes[1].attrs["pads"] == tuple(min(side, 15) for side in pads)
    assert_same_meaning(graph, found)
    assert SplitPads(15)(found) is found


def test_padding_that_the_target_has_stays_in_the_convolution() -> None:
    graph = network((1, 2, 5, 60), "y", node("Conv", "x w", "y", pads=(1, 15, 1, 15)), w=W)
    assert SplitPads(15)(graph) is graph


def _split(source: str, outputs: str, axis: int, *sizes: int) -> Node:
    return Node("Split", (source,), tuple(outputs.split()), {"axis": axis, "split": sizes}, "split", ("split",))


def _slice(source: str, output: str, axis: int, start: int, end: int) -> Node:
    return node("Slice", source, output, axes=(axis,), starts=(start,), ends=(end,), steps=(1,))


def _both(*before: Node, axis: int = 1, behind: tuple[Node, ...] = (), **constants: Any) -> Graph:
    """Whatever gives `m`, split into boxes and logits, of which scores are made."""
    nodes = (*before, _split("m", "boxes logits", axis, 4, 3), node("Sigmoid", "logits", "scores"), *behind)
    return network((1, 7, 4, 6), "boxes scores" if not behind else "boxes y", *nodes, **constants)


MOVED = {
    "Reshape": (_both(node("Relu", "x", "r"), node("Reshape", "r", "m", shape=(1, 7, 24))), 2),
    "Transpose": (_both(node("Relu", "x", "r"), node("Transpose", "r", "m", perm=(0, 2, 3, 1)), axis=3), 2),
    "both": (_both(node("Relu", "x", "r"), node("Transpose", "r", "t", perm=(0, 2, 3, 1)),
     node("Reshape", "t", "m", shape=(1, 24, 7)), axis=2), 4),
    "Concat along another axis": (_both(node("Relu", "x", "r"), node("Abs", "x", "a"),
     node("Concat", "r a", "m", axis=2)), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_a_split_goes_before_what_moves(name: str) -> None:
    graph, moves = MOVED[name]
    found = split_before_moves(graph)
    assert_same_meaning(graph, found)
    names = [each for each in operators(found) if each not in ("Relu", "Abs")]
    assert names[0] == "Split"
    assert len([each for each in names if each not in ("Split", "Sigmoid")]) == moves
    assert split_before_moves(found) is found


def test_what_a_concat_joins_is_taken_apart() -> None:
    conv = node("Conv", "x w", "b", activation="Relu"), node("Conv", "x v", "l")
    graph = _both(*conv, node("Concat", "b l", "m", axis=1), w=(4, 7, 1, 1), v=(3, 7, 1, 1))
    found = split_before_moves(graph)
    assert_same_meaning(graph, found)
    assert "Concat" not in operators(found)
    assert "Split" not in operators(found)


def test_a_part_of_two_operands_is_their_concat() -> None:
    conv = node("Conv", "x w", "b", activation="Relu"), node("Conv", "x v", "l"), node("Conv", "x u", "k")
    weights = {"w": (4, 7, 1, 1), "v": (2, 7, 1, 1), "u": (1, 7, 1, 1)}
    graph = _both(*conv, node("Concat", "b l k", "m", axis=1), **weights)
    becomes(split_before_moves, graph, ["Conv+Relu", "Conv", "Conv", "Identity", "Concat", "Sigmoid"])


def test_a_concat_whose_parts_are_no_whole_operands_stays() -> None:
    conv = node("Conv", "x w", "b"), node("Conv", "x v", "l")
    graph = _both(*conv, node("Concat", "b l", "m", axis=1), w=(5, 7, 1, 1), v=(2, 7, 1, 1))
    assert split_before_moves(graph) is graph


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_becomes_one_for_each_part(bias: bool) -> None:
    inputs = "x w k" if bias else "x w"
    constants = {"w": (7, 7, 3, 3), "k": (7,)} if bias else {"w": (7, 7, 3, 3)}
    graph = _both(node("Conv", inputs, "m", pads=(1, 1, 1, 1), activation="Relu"), **constants)
    becomes(split_before_moves, graph, ["Conv+Relu", "Conv+Relu", "Sigmoid"])


def test_slices_are_parts_as_well() -> None:
    graph = network((1, 7, 4, 6), "boxes scores", node("Relu", "x", "r"),
        node("Reshape", "r", "m", shape=(1, 7, 24)), _slice("m", "boxes", 1, 0, 4), _slice("m", "logits", 1, 4, 7),
        node("Sigmoid", "logits", "scores"))  # fmt: skip
    becomes(split_before_moves, graph, ["Relu", "Slice", "Reshape", "Slice", "Reshape", "Sigmoid"])


NINE = " ".join(f"y{k}" for k in range(9))
RELU, ROWS = node("Relu", "x", "r"), node("Reshape", "r", "m", shape=(1, 7, 24))
LAYER = {"behind": (node("Conv", "scores w", "y"),), "w": (2, 3, 1, 1)}
LEFT = {
    "no axis is the old one": _both(RELU, node("Reshape", "r", "m", shape=(1, 24, 7)), axis=2),
    "nothing moves": _both(node("Relu", "x", "m"), **LAYER),
    "layers behind": _both(RELU, node("Transpose", "r", "m", perm=(0, 1, 3, 2)), **LAYER),
    "groups": _both(node("Conv", "x w", "m", group=7), w=(7, 1, 1, 1)),
    "rows of a Conv": network((1, 3, 7, 6), "a b", node("Conv", "x w", "m"), _split("m", "a b", 2, 4, 3),
        w=(7, 3, 1, 1)),
    "another reader needs all of it": network((1, 7, 4, 6), "boxes logits y", RELU, ROWS,
        _split("m", "boxes logits", 1, 4, 3), node("Abs", "m", "y")),
    "and so does the user": network((1, 7, 4, 6), "boxes logits m", RELU, ROWS,
        _split("m", "boxes logits", 1, 4, 3)),
    "many": network((1, 9, 4, 6), NINE, RELU, node("Reshape", "r", "m", shape=(1, 9, 24)),
        _split("m", NINE, 1, *[1] * 9)),
    "a constant operand": _both(RELU, node("Concat", "r c", "m", axis=2), c=(1, 7, 2, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_would_not_be_the_same_or_worth_it_stays(name: str) -> None:
    assert split_before_moves(LEFT[name]) is LEFT[name]


def test_a_softmax_ends_the_network_for_integers() -> None:
    graph = _both(
        node("Relu", "x", "r"),
        node("Transpose", "r", "m", perm=(0, 1, 3, 2)),
        behind=(node("Softmax", "scores", "p", axis=1), node("Conv", "p w", "y")),
        w=(2, 3, 1, 1),
    )
    assert operators(split_before_moves(graph))[1] == "Split"


def _detector(order: str) -> Any:
    """Boxes of 100 pixels and scores of biases -4 to -6, joined or split again as exporters do."""
    random = np.random.default_rng(0)
    w = {"w0": random.standard_normal((16, 8, 3, 3)) * 0.15, "wb": random.standard_normal((4, 16, 1, 1)) * 10}
    w |= {"ws": random.standard_normal((3, 16, 1, 1)) * 0.7, "bs": np.array([-5, -4, -6.0])}
    w |= {"bb": np.array([20, 40, 60, 80.0])}
    constants = {name: value.astype(np.float32) for name, value in w.items()}
    constants["w7"] = np.concatenate([constants["wb"], constants["ws"]])
    constants["b7"] = np.concatenate([constants["bb"], constants["bs"]])
    integers = {"r7": np.array([1, 7, 64]), "r67": np.array([1, 64, 7]), "sizes": np.array([4, 3])}
    make = helper.make_node
    nodes = [make("Conv", ["x", "w0"], ["c"], pads=[1] * 4), make("Relu", ["c"], ["r"])]
    axis = 2 if order == "transposed" else 1
    if order == "joined":
        nodes += [make("Conv", ["r", "wb", "bb"], ["b"]), make("Conv", ["r", "ws", "bs"], ["l"])]
        nodes += [make("Concat", ["b", "l"], ["k"], axis=1), make("Reshape", ["k", "r7"], ["m"])]
    else:
        nodes.append(make("Conv", ["r", "w7", "b7"], ["k"]))
        if order == "transposed":
            nodes.append(make("Transpose", ["k"], ["t"], perm=[0, 2, 3, 1]))
            nodes.append(make("Reshape", ["t", "r67"], ["m"]))
        else:
            nodes.append(make("Reshape", ["k", "r7"], ["m"]))
    nodes += [
        make("Split", ["m", "sizes"], ["boxes", "logits"], axis=axis),
        make("Sigmoid", ["logits"], ["scores"]),
    ]
    used = {name for each in nodes for name in each.input}
    held = {name: each for name, each in {**constants, **integers}.items() if name in used}
    return onnx_models.network(nodes, (1, 8, 8, 8), held, "boxes scores")


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "nvdla-full"])
@pytest.mark.parametrize("order", ["joined", "moved", "transposed"])
def test_scores_of_a_detector_keep_25_db_beside_its_boxes(order: str, target: str) -> None:
    model = _detector(order)
    x = np.random.default_rng(9).standard_normal((16, 1, 8, 8, 8)).astype(np.float32)
    found = npuc.compile(model, target=target, calibration={"x": x}).run({"x": x})
    run = session(model.SerializeToString())
    for name in ("boxes", "scores"):
        difference = Difference()
        difference.add(np.stack([run.run([name], {"x": each})[0] for each in x]), found[name])
        assert (difference.sqnr_db or 0) > 25
