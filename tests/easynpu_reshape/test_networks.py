"""Networks with data movement between layers: compiled, bit-exact, on the array where one word does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from npuc.ir import Graph, Node, TensorType
from npuc.ops import OPS
from npuc.targets.easynpu.export.assembling import expect_legal
from npuc.targets.easynpu.layers.nodes import WORD_OP
from npuc.targets.easynpu.layers.rewrites import with_reshape_words
from npuc.targets.easynpu.layers.windows import is_tileable
from npuc.targets.easynpu.simulate.walk import segments_of
from tests.easynpu_tables.test_networks import EASYNPU, Outcome, conv, model, outcome, weights

CHANNELS = 20


def between(
    path: Path, nodes: Sequence[onnx.NodeProto], shape: tuple[int, int, int], reshaped: tuple[int, int, int]
) -> Path:
    """conv, ReLU, the nodes from `r` to `m`, conv; shapes (C, H, W) of `r` and of `m`."""
    constants = {"w1": weights(shape[0], 3, 3, 3), "w2": weights(8, reshaped[0], 3, 3)}
    chain = [conv("x", "w1", "a"), helper.make_node("Relu", ["a"], ["r"], name="r"), *nodes]
    return model(path, [*chain, conv("m", "w2", "y")], constants, (1, 3, *shape[1:]))


def node(op: str, x: str, y: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, [x], [y], name=y, **attrs)


FUSED, APART = ["conv_relu+reshape", "conv"], ["conv_relu", "reshape", "conv"]
"""20 channels that all go to other pixels, or to four in turn, take 16 writes a result: more than a pass of their
own, which takes 16 + 4 for two."""
MOVEMENTS = [
    ("Transpose", {"perm": (0, 1, 3, 2)}, (20, 12, 8), FUSED),
    ("Transpose", {"perm": (0, 2, 3, 1)}, (8, 12, 20), APART),
    ("Transpose", {"perm": (0, 3, 1, 2)}, (12, 20, 8), APART),
    ("Transpose", {"perm": (0, 2, 1, 3)}, (8, 20, 12), APART),
    ("SpaceToDepth", {"blocksize": 2}, (80, 4, 6), FUSED),
    ("DepthToSpace", {"blocksize": 2}, (5, 16, 24), FUSED),
    ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}, (5, 16, 24), APART),
]


@pytest.mark.parametrize(("op", "attrs", "reshaped", "layers"), MOVEMENTS)
@pytest.mark.parametrize("isa", ["extended", "documented"])
def test_movement_between_layers_is_one_word(
    op: str, attrs: dict[str, Any], reshaped: tuple[int, int, int], layers: list[str], isa: str, tmp_path: Path
) -> None:
    shape = (CHANNELS, 8, 12)
    path = between(tmp_path / "m.onnx", [node(op, "r", "m", **attrs)], shape, reshaped)
    machine = "large" if isa == "documented" else "default"
    found = outcome(path, isa=isa, machine=machine)
    assert found.layers == layers
    assert host_steps(found) == []
    assert found.program.manifest["isa"] in ("documented", isa)


def host_steps(found: Outcome) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = found.program.manifest["report"]["host_steps"]
    return steps


def through(*steps: tuple[str, Any]) -> list[onnx.NodeProto]:
    """Reshapes (to a shape) and transposes (by a permutation), from `r` to `m`."""
    names = ["r", *(f"t{position}" for position in range(len(steps) - 1)), "m"]
    found: list[onnx.NodeProto] = []
    for (op, value), x, y in zip(steps, names, names[1:], strict=False):
        if op == "Transpose":
            found.append(helper.make_node("Transpose", [x], [y], name=y, perm=value))
        else:
            shape = onnx.numpy_helper.from_array(np.array(value, np.int64), f"{y}/shape")
            found.append(helper.make_node("Constant", [], [f"{y}/shape"], value=shape))
            found.append(helper.make_node("Reshape", [x, f"{y}/shape"], [y], name=y))
    return found


CHAINS = {
    "rows become channels": ([("Reshape", (1, 40, 4, 12))], (40, 4, 12)),
    "rows and columns are joined": ([("Reshape", (1, 20, 1, 96))], (20, 1, 96)),
    "pixels become channels": ([("Reshape", (1, 20, 96, 1)), ("Transpose", (0, 2, 1, 3))], (96, 20, 1)),
    "blocks of columns become rows": ([("Reshape", (1, 20, 8, 3, 4)), ("Transpose", (0, 1, 3, 2, 4)),
        ("Reshape", (1, 20, 24, 4))], (20, 24, 4)),
    "space to depth by hand": ([("Reshape", (1, 20, 4, 2, 6, 2)), ("Transpose", (0, 3, 5, 1, 2, 4)),
        ("Reshape", (1, 80, 4, 6))], (80, 4, 6)),
    "rows are shuffled": ([("Reshape", (1, 20, 4, 2, 12)), ("Transpose", (0, 1, 3, 2, 4)),
        ("Reshape", (1, 20, 8, 12))], (20, 8, 12)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_reshapes_and_transposes_is_one_word(name: str, tmp_path: Path) -> None:
    steps, reshaped = CHAINS[name]
    found = outcome(between(tmp_path / "m.onnx", through(*steps), (CHANNELS, 8, 12), reshaped))
    assert found.layers in (FUSED, APART)
    assert host_steps(found) == []


def test_a_reshape_behind_one_of_two_equal_layers_joins_its_own(tmp_path: Path) -> None:
    constants = {"w1": weights(20, 3, 3, 3), "w2": weights(20, 20, 3, 3), "w3": weights(20, 20, 3, 3, seed=1)}
    nodes = [conv("x", "w1", "a"), conv("a", "w2", "b"), conv("b", "w3", "r")]
    nodes += [node("SpaceToDepth", "r", "m", blocksize=2), conv("m", "w4", "y")]
    constants["w4"] = weights(8, 80, 3, 3)
    path = model(tmp_path / "m.onnx", nodes, constants, (1, 3, 8, 12))
    assert outcome(path).layers == ["conv", "conv", "conv+reshape", "conv"]


def test_what_no_word_expresses_runs_on_the_host(tmp_path: Path) -> None:
    """Every dimension gives a part to the next one, which takes three splits."""
    steps = through(("Reshape", (1, 32, 6, 9)))
    found = outcome(between(tmp_path / "m.onnx", steps, (18, 8, 12), (32, 6, 9)))
    assert [step["op"] for step in host_steps(found)] == ["Reshape"]
    assert "reshape" not in found.layers


def test_a_tensor_with_two_readers_is_not_inside_a_word(tmp_path: Path) -> None:
    steps = [node("Transpose", "r", "t", perm=(0, 1, 3, 2)), node("SpaceToDepth", "t", "m", blocksize=2)]
    path = tmp_path / "m.onnx"
    constants = {"w1": weights(20, 3, 3, 3), "w2": weights(20, 80, 3, 3), "w3": weights(20, 20, 3, 3)}
    nodes = [conv("x", "w1", "r"), *steps, conv("m", "w2", "b"), conv("t", "w3", "c", strides=[2, 2])]
    nodes.append(helper.make_node("Add", ["b", "c"], ["y"], name="y"))
    found = outcome(model(path, nodes, constants, (1, 3, 8, 12)))
    assert [layer for layer in found.layers if "reshape" in layer] == ["conv+reshape", "reshape"]
    assert host_steps(found) == []


@pytest.mark.parametrize("isa", ["documented", "extended"])
def test_a_map_that_is_added_later_is_stored_before_the_reshape_behind_it(isa: str, tmp_path: Path) -> None:
    """Both addresses of the document: `r` as it was in the skip DTCM, in blocks of 2 x 2 in the Fmap DTCM."""
    constants = {"w1": weights(20, 3, 3, 3), "w2": weights(80, 80, 1, 1)}
    nodes = [conv("x", "w1", "r"), node("SpaceToDepth", "r", "t", blocksize=2)]
    nodes += [helper.make_node("Conv", ["t", "w2"], ["c"], name="c"), node("DepthToSpace", "c", "b", blocksize=2)]
    nodes.append(helper.make_node("Add", ["b", "r"], ["y"], name="y"))
    found = outcome(model(tmp_path / "m.onnx", nodes, constants, (1, 3, 8, 12)), isa=isa)
    assert found.layers == ["conv+reshape", "conv+reshape", "add"]
    assert host_steps(found) == []
    expect_legal(found.program)
    rows = found.program.manifest["report"]["layers"]
    assert [row["cycles"] for row in rows] == [
        each.cycles for _, chains in segments_of(found.program) for each in chains
    ]
    text = [entry["text"].split()[0] for entry in EASYNPU.listing(found.program)]
    assert "conv.fused.stored" in text and (isa == "extended" or found.program.manifest["isa"] == "documented")


@pytest.mark.parametrize(("op", "attrs", "reshaped", "layers"), MOVEMENTS)
def test_a_reshape_has_words_of_the_cycles_that_are_reported(
    op: str, attrs: dict[str, Any], reshaped: tuple[int, int, int], layers: list[str], tmp_path: Path
) -> None:
    path = between(tmp_path / "m.onnx", [node(op, "r", "m", **attrs)], (CHANNELS, 8, 12), reshaped)
    program = outcome(path).program
    rows = program.manifest["report"]["layers"]
    assert [row["op"] for row in rows] == layers
    costs = [each.cost for _, chains in segments_of(program) for each in chains]
    for row, cost in zip(rows, costs, strict=True):
        assert (row["cycles"], row["bus_words"]) == (cost.cycles[0], cost.bus[0])


def test_exchanging_rows_and_columns_takes_two_cycles_for_a_word(tmp_path: Path) -> None:
    """Behind another reshape, which ends its chain, and whose result has two readers."""
    constants = {"w1": weights(20, 3, 3, 3), "w2": weights(8, 80, 3, 3), "w3": weights(8, 80, 3, 3)}
    swapped = {"perm": (0, 1, 3, 2)}
    nodes = [conv("x", "w1", "r"), node("SpaceToDepth", "r", "s", blocksize=2)]
    nodes += [node("Transpose", "s", "t", **swapped), conv("t", "w2", "a"), conv("s", "w3", "b")]
    nodes += [node("Transpose", "b", "c", **swapped), helper.make_node("Add", ["a", "c"], ["y"], name="y")]
    path = model(tmp_path / "m.onnx", nodes, constants, (1, 3, 8, 12))
    (row,) = (row for row in outcome(path).program.manifest["report"]["layers"] if row["op"] == "reshape")
    assert row["bus_words"] == 2 * 4 * 6 * 5  # five groups of channels, each read and written
    assert row["cycles"] == row["bus_words"] + 3 + 192  # two addresses and the word; its divisions


def graph_of(*nodes: Node, shapes: dict[str, tuple[int, ...]]) -> Graph:
    types = {name: TensorType(shape, "int8") for name, shape in shapes.items()}
    return Graph("g", nodes, ("x",), (nodes[-1].output,), {}, types, OPS)


def test_the_longest_chain_that_one_word_does_is_replaced_and_keeps_its_sources() -> None:
    first = Node("Transpose", ("x",), ("t",), {"perm": (0, 1, 3, 2)}, "first", ("a",))
    second = Node("SpaceToDepth", ("t",), ("y",), {"blocksize": 2}, "second", ("b",))
    graph = graph_of(first, second, shapes={"x": (1, 4, 6, 8), "t": (1, 4, 8, 6), "y": (1, 16, 4, 3)})
    (merged,) = with_reshape_words(graph, lambda _graph, _node: True).nodes
    assert (merged.op, merged.inputs, merged.outputs, merged.sources) == (WORD_OP, ("x",), ("y",), ("a", "b"))
    assert not any(is_tileable(graph, [merged], axis) for axis in (1, 2))


def test_nothing_is_replaced_where_the_machine_has_no_room() -> None:
    only = Node("Transpose", ("x",), ("y",), {"perm": (0, 1, 3, 2)}, "only", ("a",))
    graph = graph_of(only, shapes={"x": (1, 4, 6, 8), "y": (1, 4, 8, 6)})
    assert with_reshape_words(graph, lambda _graph, _node: False).nodes == (only,)


def test_an_alias_stays_address_arithmetic() -> None:
    only = Node("Reshape", ("x",), ("y",), {"shape": (1, 24)}, "only", ("a",))
    graph = graph_of(only, shapes={"x": (1, 24, 1, 1), "y": (1, 24)})
    assert with_reshape_words(graph, lambda _graph, _node: True).nodes == (only,)
