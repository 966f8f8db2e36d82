"""Conditions of EasyNPU's fused words and constraints: where one does not hold, another form is as exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array, Graph, TensorType
from npuc.ops import build
from npuc.targets.easynpu.layers import support
from tests.graphs.checking import Finding
from tests.graphs.compiling import HOSTED, Case, check_compile, compiled_program, samples_of, verified
from tests.passes.networks import network, node


def normal(seed: int, *shape: int) -> Array:
    """Weights that keep the variance."""
    found = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return found / np.float32(np.sqrt(np.prod(shape[1:])))


CHAINS = {
    "two operands behind each other": network((1, 16, 6, 6), "y", node("Conv", "x w", "a", kernel_shape=(3, 3),
        pads=(1, 1, 1, 1)), node("Add", "a x", "b"), node("BatchNormalization", "b scale bias mean var", "c"),
        node("MaxPool", "x", "d", kernel_shape=(3, 3), pads=(1, 1, 1, 1)), node("Add", "c d", "y"),
        w=normal(1, 16, 16, 3, 3), scale=(16,), bias=(16,), mean=(16,), var=(16,)),
    "a result that is read twice": network((1, 16, 6, 6), "y", node("Conv", "x w", "a", kernel_shape=(1, 1)),
        node("LeakyRelu", "a", "b", alpha=0.3), node("MaxPool", "a", "c", kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        node("Concat", "b c", "y", axis=1), w=normal(2, 16, 16, 1, 1)),
    "slices of a batch, of five axes": network((3, 3, 1, 1, 1), "y", node("Add", "x c", "a"),
        node("Conv", "a w", "y", group=3, kernel_shape=(1, 3, 3), pads=(0, 1, 1, 0, 1, 1), strides=(2, 1, 3)),
        w=np.random.default_rng(4).standard_normal((6, 1, 1, 3, 3)).astype(np.float32), c=(3, 3, 1, 1, 1)),
    "a result that is an output": network((1, 16, 6, 6), "a y", node("Conv", "x w", "a", kernel_shape=(1, 1)),
        node("LeakyRelu", "a", "y", alpha=0.3), w=normal(3, 16, 16, 1, 1)),
    "an average": network((1, 16, 6, 6), "y", node("AveragePool", "x", "a", kernel_shape=(2, 2), strides=(2, 2)),
        node("LeakyRelu", "a", "y", alpha=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_that_a_word_cannot_continue_is_exact_all_the_same(name: str, tmp_path: Path) -> None:
    report = verified(CHAINS[name], Case("easynpu", "int8"), tmp_path)
    assert report["bit_exact"]
    assert all(each["sqnr_db"] > 20 for each in report["outputs"])


@pytest.mark.parametrize(
    ("name", "layers"),
    [("two operands behind each other", ["conv+add+bn", "maxpool", "add"]), ("an average", ["avgpool", "act"])],
)
def test_a_chain_ends_where_the_document_has_it_end(name: str, layers: list[str], tmp_path: Path) -> None:
    graph = CHAINS[name]
    _, program = compiled_program(graph, samples_of(graph), Case("easynpu", "int8"), tmp_path)
    assert sorted(row["op"] for row in program.manifest["report"]["layers"]) == sorted(layers)


def test_of_two_words_of_a_chain_the_last_one_gives_the_tensor(tmp_path: Path) -> None:
    """The document has no depthwise word that rectifies."""
    graph = network((1, 16, 6, 6), "y", node("Conv", "x w", "a", group=16), node("Relu", "a", "y"),
        w=normal(1, 16, 1, 3, 3))  # fmt: skip
    _, program = compiled_program(graph, samples_of(graph), Case("easynpu", "int8", isa="documented"), tmp_path)
    words = [(each["mnemonic"], bool(each["tensor"])) for each in program.manifest["instructions"]]
    assert words == [("dwconv.fused", False), ("relu", True)]


def test_a_chain_ends_where_the_pads_are_full(tmp_path: Path) -> None:
    machine = tmp_path / "small.toml"
    machine.write_text("parameter_pad_entries = 24\n", encoding="ascii")
    graph = network((1, 16, 6, 6), "y", node("Conv", "x w", "a", kernel_shape=(1, 1)), node("Tanh", "a", "b"),
        node("LeakyRelu", "b", "y", alpha=0.3), w=normal(3, 16, 16, 1, 1))  # fmt: skip
    assert verified(graph, Case("easynpu", "int8", machine=str(machine)), tmp_path)["bit_exact"]


@pytest.mark.parametrize(
    ("outputs", "group", "refused"), [(8, 1, False), (4, 4, False), (8, 4, True), (4, 2, True)]
)
def test_groups_are_one_or_as_many_as_channels_on_both_sides(outputs: int, group: int, refused: bool) -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "y", group=group), w=(outputs, 4 // group, 1, 1))
    assert bool(support.dense_or_depthwise(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize(("axes", "refused"), [((2, 3), False), ((2,), False), ((1,), True), ((1, 2, 3), True)])
def test_a_sum_repeats_rows_and_columns_but_no_channel(axes: tuple[int, ...], refused: bool) -> None:
    graph = network(
        (1, 4, 5, 5), "y", node("ReduceMax", "x", "small", axes=axes, keepdims=1), node("Add", "x small", "y")
    )
    assert bool(support.whole_or_repeated(graph, graph.nodes[-1])) is refused


@pytest.mark.parametrize(
    ("shape", "refused"), [((4, 1, 1), False), ((1,), False), ((4, 5, 5), True), ((1, 5, 1), True), ((5,), True)]
)
def test_slopes_are_one_or_one_per_channel(shape: tuple[int, ...], refused: bool) -> None:
    graph = network((1, 4, 5, 5), "y", node("PRelu", "x slope", "y"), slope=shape)
    assert bool(support.slope_per_channel(graph, graph.nodes[0])) is refused


MOVED = {
    # What is mirrored is the host's, and so is the last border, which waits for the rows to be joined.
    "maps that the host joins for itself": network((1, 3, 6, 6), "y", node("Tanh", "x", "a"),
        node("Pad", "a", "b", mode="reflect", pads=(0, 0, 1, 0, 0, 0, 2, 1)), node("Conv", "b w", "y"),
        w=normal(4, 4, 3, 3, 3)),
    # Rows that the host cuts from a map reach the array behind a Reshape alone.
    "a batch that only changes shape": network((1, 2, 3, 4), "y", node("Tanh", "x", "t"),
        node("Reshape", "t", "r", shape=(3, 8)), node("Gemm", "r g", "a"),
        node("Reshape", "a", "b", shape=(3, 5, 1, 1)), node("Conv", "b w", "y"), g=normal(5, 5, 8),
        w=normal(6, 4, 5, 1, 1)),
    # What the host repeats for the array is no tensor of the quantised network, but is moved.
    "a row times a column": build("outer", (node("Mul", "c x", "y"),),
        {"x": TensorType((1, 5)), "c": TensorType((5, 1))}, ["y"], {}),
}  # fmt: skip


@pytest.mark.parametrize("isa", ["documented", "extended"])
@pytest.mark.parametrize("name", MOVED)
def test_what_the_host_moves_is_exact(name: str, isa: str, tmp_path: Path) -> None:
    assert _checked(MOVED[name], isa, tmp_path) in ("ok", HOSTED)


@pytest.mark.parametrize("isa", ["documented", "extended"])
def test_a_gate_is_repeated_for_all_pixels(isa: str, tmp_path: Path) -> None:
    graph = network((1, 16, 6, 6), "y", node("Conv", "x w", "a"), node("GlobalAveragePool", "a", "g"),
        node("Mul", "a g", "y"), w=normal(1, 16, 16, 1, 1))  # fmt: skip
    assert _checked(graph, isa, tmp_path) == "ok"


def _checked(graph: Graph, isa: str, folder: Path) -> Finding | str:
    """What a compile and a run of the graph give, on two samples."""
    stacked = samples_of(graph, 2)
    values = [{name: each[sample] for name, each in stacked.items()} for sample in range(2)]
    return check_compile(graph, values, Case("easynpu", "int8", isa=isa), folder)
