"""Batch normalisation that no weight takes: the bn word alone and in chains, in both orders with an activation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from npuc.targets.easynpu.simulate.walk import segments_of
from tests.easynpu_tables.test_networks import TAILED, Outcome, conv, model, outcome, weights

CHANNELS = 20


def norm(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("BatchNormalization", [x, *(f"{part}" for part in ("g", "b", "m", "v"))], [y], name=y)


def act(op: str, x: str, y: str) -> onnx.NodeProto:
    return helper.make_node(op, [x], [y], name=y)


def compiled(path: Path, nodes: Sequence[onnx.NodeProto], *, isa: str = "extended") -> Outcome:
    """Nodes from `x` (1, 3, 9, 9) to `y` (1, 20, 9, 9)."""
    random = np.random.default_rng(3)
    constants = {"w": weights(CHANNELS, 3, 3, 3), "w2": weights(CHANNELS, CHANNELS, 3, 3)}
    constants |= {"g": random.uniform(0.5, 2, CHANNELS) * random.choice([-1, 1], CHANNELS)}
    constants |= {"b": random.normal(size=CHANNELS), "m": random.normal(size=CHANNELS)}
    constants |= {"v": random.uniform(0.5, 2, CHANNELS)}
    used = {name for node in nodes for name in node.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return outcome(model(path, nodes, constants, (1, 3, 9, 9)), TAILED, isa=isa)


CHAINS = {
    "act then bn": ([conv("x", "w", "a"), act("Sigmoid", "a", "c"), norm("c", "y")], ["conv+act+bn"]),
    "relu then bn": ([conv("x", "w", "a"), act("Relu", "a", "c"), norm("c", "y")], ["conv_relu+bn"]),
    "act, bn, act": ([conv("x", "w", "a"), act("Tanh", "a", "c"), norm("c", "d"), act("HardSwish", "d", "y")],
        ["conv+act+bn+act"]),
    "relu, bn, relu": ([conv("x", "w", "a"), act("Relu", "a", "c"), norm("c", "d"), act("Relu", "d", "y")],
        ["conv_relu+bn+relu"]),
    "bn behind a pool": ([conv("x", "w", "a"), helper.make_node("MaxPool", ["a"], ["c"], name="c",
        kernel_shape=[3, 3], pads=[1, 1, 1, 1]), norm("c", "y")], ["conv", "maxpool", "bn"]),
    "bn then act behind a pool": ([conv("x", "w", "a"), helper.make_node("MaxPool", ["a"], ["c"], name="c",
        kernel_shape=[3, 3], pads=[1, 1, 1, 1]), norm("c", "d"), act("Sigmoid", "d", "y")],
        ["conv", "maxpool", "bn+act"]),
    "act with two readers": ([conv("x", "w", "a"), act("Sigmoid", "a", "c"), norm("c", "d"), conv("c", "w2", "e"),
        helper.make_node("Add", ["e", "d"], ["y"], name="y")], ["conv+act", "bn", "conv+add"]),
    "sum, bn": ([conv("x", "w", "a"), act("Relu", "a", "c"), conv("c", "w2", "e"),
        helper.make_node("Add", ["e", "c"], ["f"], name="f"), norm("f", "y")], ["conv_relu", "conv+add+bn"]),
}  # fmt: skip


@pytest.mark.parametrize("isa", ["extended", "documented"])
@pytest.mark.parametrize("name", CHAINS)
def test_a_batch_normalisation_continues_on_the_result_before_it(name: str, isa: str, tmp_path: Path) -> None:
    nodes, expected = CHAINS[name]
    if name == "act with two readers" and isa == "documented":
        pytest.skip("the activation and the normalisation would both be kept")
    assert compiled(tmp_path / "m.onnx", nodes, isa=isa).layers == expected


def test_with_extensions_a_batch_normalisation_with_relu_is_one_depthwise_pass(tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", ["a"], ["c"], name="c", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    nodes = [conv("x", "w", "a"), pool, norm("c", "d"), act("Relu", "d", "y")]
    assert compiled(tmp_path / "a.onnx", nodes).layers == ["conv", "maxpool", "dwconv_relu"]
    assert compiled(tmp_path / "b.onnx", nodes, isa="documented").layers == ["conv", "maxpool", "bn+relu"]


def test_a_second_sum_is_not_fused_behind_a_normalised_one(tmp_path: Path) -> None:
    """A chain reads one operand."""
    nodes = [
        conv("x", "w", "a"), act("Relu", "a", "c"), conv("c", "w2", "e"),
        helper.make_node("Add", ["e", "c"], ["f"], name="f"), norm("f", "h"),
        helper.make_node("Add", ["h", "c"], ["y"], name="y"),
    ]  # fmt: skip
    assert compiled(tmp_path / "m.onnx", nodes).layers == ["conv_relu", "conv+add+bn", "add"]


@pytest.mark.parametrize("name", CHAINS)
def test_normalising_chains_have_words_of_the_cycles_that_are_reported(name: str, tmp_path: Path) -> None:
    program = compiled(tmp_path / "m.onnx", CHAINS[name][0]).program
    costs = [each.cost for _, chains in segments_of(program) for each in chains]
    for row, cost in zip(program.manifest["report"]["layers"], costs, strict=True):
        assert (row["cycles"], row["bus_words"]) == (cost.cycles[0], cost.bus[0]), row["op"]
