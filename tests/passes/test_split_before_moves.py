"""split_before_moves: the parts of what a network joins and moves at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import npuc
from npuc.ir import Array, Graph, Node
from npuc.passes.cleanup.split_before_moves import split_before_moves
from npuc.reference import session
from npuc.verification.metrics import Difference
from tests.passes.networks import assert_same_meaning, network, node, operators


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
    "both": (
        _both(
            node("Relu", "x", "r"),
            node("Transpose", "r", "t", perm=(0, 2, 3, 1)),
            node("Reshape", "t", "m", shape=(1, 24, 7)),
            axis=2,
        ),
        4,
    ),
    "Concat along another axis": (
        _both(node("Relu", "x", "r"), node("Abs", "x", "a"), node("Concat", "r a", "m", axis=2)),
        2,
    ),
}


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


def test_a_concat_whose_parts_are_no_whole_operands_stays() -> None:
    conv = node("Conv", "x w", "b"), node("Conv", "x v", "l")
    graph = _both(*conv, node("Concat", "b l", "m", axis=1), w=(5, 7, 1, 1), v=(2, 7, 1, 1))
    assert split_before_moves(graph) is graph


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_becomes_one_for_each_part(bias: bool) -> None:
    inputs = "x w k" if bias else "x w"
    constants = {"w": (7, 7, 3, 3), "k": (7,)} if bias else {"w": (7, 7, 3, 3)}
    graph = _both(node("Conv", inputs, "m", pads=(1, 1, 1, 1), activation="Relu"), **constants)
    found = split_before_moves(graph)
    assert_same_meaning(graph, found)
    assert operators(found) == ["Conv+Relu", "Conv+Relu", "Sigmoid"]


def test_slices_are_parts_as_well() -> None:
    graph = network(
        (1, 7, 4, 6),
        "boxes scores",
        node("Relu", "x", "r"),
        node("Reshape", "r", "m", shape=(1, 7, 24)),
        _slice("m", "boxes", 1, 0, 4),
        _slice("m", "logits", 1, 4, 7),
        node("Sigmoid", "logits", "scores"),
    )
    found = split_before_moves(graph)
    assert_same_meaning(graph, found)
    assert operators(found) == ["Relu", "Slice", "Reshape", "Slice", "Reshape", "Sigmoid"]


@pytest.mark.parametrize(
    "graph",
    [
        _both(
            node("Relu", "x", "r"), node("Reshape", "r", "m", shape=(1, 24, 7)), axis=2
        ),  # no axis is the old one
        _both(
            node("Relu", "x", "m"),
            behind=(node("Conv", "scores w", "y"),),
            w=(2, 3, 1, 1),
        ),
        _both(
            node("Relu", "x", "r"),
            node("Transpose", "r", "m", perm=(0, 1, 3, 2)),
            behind=(node("Conv", "scores w", "y"),),
            w=(2, 3, 1, 1),
        ),
        _both(node("Conv", "x w", "m", group=7), w=(7, 1, 1, 1)),
        network((1, 3, 7, 6), "a b", node("Conv", "x w", "m"), _split("m", "a b", 2, 4, 3), w=(7, 3, 1, 1)),
        network(  # another reader needs all of it
            (1, 7, 4, 6),
            "boxes logits y",
            node("Relu", "x", "r"),
            node("Reshape", "r", "m", shape=(1, 7, 24)),
            _split("m", "boxes logits", 1, 4, 3),
            node("Abs", "m", "y"),
        ),
        network(  # and so does the user
            (1, 7, 4, 6),
            "boxes logits m",
            node("Relu", "x", "r"),
            node("Reshape", "r", "m", shape=(1, 7, 24)),
            _split("m", "boxes logits", 1, 4, 3),
        ),
        network(
            (1, 9, 4, 6),
            " ".join(f"y{k}" for k in range(9)),
            node("Relu", "x", "r"),
            node("Reshape", "r", "m", shape=(1, 9, 24)),
            _split("m", " ".join(f"y{k}" for k in range(9)), 1, *[1] * 9),
        ),
    ],
    ids=["axes", "nothing moves", "layers behind", "groups", "rows of a Conv", "reader", "output", "many"],
)
def test_what_would_not_be_the_same_or_worth_it_stays(graph: Graph) -> None:
    assert split_before_moves(graph) is graph


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
    values: dict[str, Array] = {**constants, **integers}
    used = {name for each in nodes for name in each.input}
    shape = [1, 64, 4] if axis == 2 else [1, 4, 64]
    value = helper.make_tensor_value_info
    outputs = [value("boxes", TensorProto.FLOAT, shape)]
    outputs.append(value("scores", TensorProto.FLOAT, [3 if each == 4 else each for each in shape]))
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 8, 8, 8])],
        outputs,
        [numpy_helper.from_array(each, name) for name, each in values.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


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
