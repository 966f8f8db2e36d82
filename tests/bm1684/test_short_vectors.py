"""Softmax of short vectors, and slopes up to 1: values and the calls that they take."""

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array, Graph
from npuc.ops.interpreter import run
from npuc.targets.bm1684.lowering import rules
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.plan import planner
from tests.bm1684.kernels import need_compiler
from tests.graphs.compiling import Case, check_compile
from tests.passes.networks import network, node


def _checked(graph: Graph, folder: Path) -> list[str]:
    """The names of a graph's calls, after its program has been compared with the interpreter."""
    need_compiler()
    samples = np.random.default_rng(0).standard_normal((2, *graph.shape("x"))).astype(np.float32) * 8
    values: list[dict[str, Array]] = [{"x": each, **run(graph, {"x": each})} for each in samples]
    assert check_compile(graph, values, Case("bm1684", "fp32"), folder) == "ok"
    return [call.name for step in rules.lower(graph, Machine()).steps for call in step.calls]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_softmax_of_few_channels_compares_images(classes: int, channels_last: bool, tmp_path: Path) -> None:
    shape = (1, classes, 30, 27)
    nodes = [node("Relu", "x", "r"), node("Softmax", "r", "y" if not channels_last else "s", axis=1)]
    nodes += [node("Transpose", "s", "y", perm=(0, 2, 3, 1))] if channels_last else []
    calls = _checked(network(shape, "y", *nodes), tmp_path)
    assert "bdc_max_pool2d" not in calls and calls.count("bdc_max") == classes - 1
    assert "gdma_32bit_cpy_S2S" not in calls


@pytest.mark.parametrize("shape", [(2, 3, 30, 27), (1, 9, 30, 27), (1, 2, 3, 5)])
def test_other_softmaxes_take_windows(shape: tuple[int, ...], tmp_path: Path) -> None:
    calls = _checked(network(shape, "y", node("Relu", "x", "r"), node("Softmax", "r", "y", axis=1)), tmp_path)
    assert "bdc_max_pool2d" in calls


@pytest.mark.parametrize(("largest", "name"), [(1.0, "bdc_max"), (1.5, "bdc_relu")])
@pytest.mark.parametrize("shape", [(1, 3, 5, 4), (2, 3)])
def test_slopes_up_to_1_need_no_limit_at_0(
    shape: tuple[int, ...], largest: float, name: str, tmp_path: Path
) -> None:
    slope = np.array([-0.5, 0.25, largest], np.float32).reshape((3, 1, 1) if len(shape) == 4 else (3,))
    graph = network(shape, "y", node("Neg", "x", "n"), node("PRelu", "n slope", "y"), slope=slope)
    assert name in _checked(graph, tmp_path)


def test_a_store_runs_beside_a_computation_of_something_else() -> None:
    graph = network((1, 8, 40, 40), "y z", node("Conv", "x a", "c"), node("Conv", "x b", "z"),
        node("Transpose", "c", "y", perm=(0, 2, 3, 1)), a=(6, 8, 1, 1), b=(70, 8, 3, 3))  # fmt: skip
    regions = planner.plan(rules.lower(graph, Machine()), Machine()).regions
    beside = [each for each in regions if each.bdc and any(call.name.endswith("L2S") for call in each.gdma)]
    assert beside and beside[0].bdc[0].name == "bdc_conv2d"
