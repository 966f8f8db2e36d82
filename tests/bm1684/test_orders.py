"""Tensors that are stored in the order in which what follows reads them."""

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Graph
from npuc.ops.interpreter import run
from npuc.targets.bm1684.lowering import rules
from npuc.targets.bm1684.machine.parameters import Machine
from tests.bm1684.kernels import need_compiler
from tests.graphs.compiling import Case, check_compile
from tests.passes.networks import network, node


def _shuffled(groups: int, channels: int) -> Graph:
    """A channel shuffle between convolutions, as ShuffleNet has it."""
    each = channels // groups
    return network((1, 8, 9, 7), "y", node("Conv", "x a", "c"), node("Reshape", "c", "g",
        shape=(1, groups, each, 9, 7)), node("Transpose", "g", "t", perm=(0, 2, 1, 3, 4)),
        node("Reshape", "t", "s", shape=(1, channels, 9, 7)), node("Conv", "s b", "y"), a=(channels, 8, 1, 1),
        b=(5, channels, 1, 1))  # fmt: skip


def _turned() -> Graph:
    """Images that an output has with channels last."""
    return network(
        (1, 8, 9, 7), "y", node("Conv", "x a", "c"), node("Transpose", "c", "y", perm=(0, 2, 3, 1)), a=(6, 8, 1, 1)
    )


GRAPHS = {"shuffle 4 x 17": _shuffled(4, 68), "shuffle 17 x 4": _shuffled(17, 68), "channels last": _turned()}


@pytest.mark.parametrize("name", GRAPHS)
def test_moved_tensors_are_stored_once_and_not_copied(name: str, tmp_path: Path) -> None:
    need_compiler()
    graph = GRAPHS[name]
    calls = [call.name for step in rules.lower(graph, Machine()).steps for call in step.calls]
    assert "gdma_32bit_cpy_L2S" in calls and "gdma_32bit_cpy_S2S" not in calls
    samples = np.random.default_rng(0).standard_normal((2, 1, 8, 9, 7)).astype(np.float32)
    values = [{"x": each, **run(graph, {"x": each})} for each in samples]
    assert check_compile(graph, values, Case("bm1684", "fp32"), tmp_path) == "ok"


def test_a_tensor_that_something_else_reads_keeps_its_order() -> None:
    graph = network(
        (1, 8, 9, 7),
        "y c",
        node("Conv", "x a", "c"),
        node("Transpose", "c", "y", perm=(0, 2, 3, 1)),
        a=(6, 8, 1, 1),
    )
    calls = [call.name for step in rules.lower(graph, Machine()).steps for call in step.calls]
    assert "gdma_32bit_cpy_S2S" in calls
