"""Batches whose images are computed one after the other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.ops.interpreter import run
from npuc.targets.bm1684.lowering.slicing import split_images
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.plan import planner
from npuc.targets.bm1684.target import _plan_cheapest, _plan_graph  # pyright: ignore[reportPrivateUsage]
from tests.bm1684.kernels import need_compiler
from tests.graphs.compiling import Case, check_compile
from tests.passes.networks import network, node


def _network(*, images: int = 3, extent: int = 20) -> Graph:
    half = extent // 2
    return network((images, 6, extent, extent), "y s", node("Conv", "x a", "c", pads=(1, 1, 1, 1)),
        node("PRelu", "c slope", "p"), node("MaxPool", "p", "m", kernel_shape=(2, 2), strides=(2, 2)),
        node("Add", "m bias", "b"), node("Reshape", "b", "g", shape=(images, 2, 5, half, half)),
        node("Transpose", "g", "t", perm=(0, 2, 1, 3, 4)), node("Reshape", "t", "h",
        shape=(images, 10, half, half)), node("Softmax", "h", "s", axis=1), node("Concat", "h b", "k", axis=1),
        node("GlobalAveragePool", "k", "v"), node("Reshape", "v", "f", shape=(images, 20)),
        node("MatMul", "f w", "y"), a=(10, 6, 3, 3), slope=(10, 1, 1), bias=(1, 10, 1, 1), w=(20, 7))  # fmt: skip


def test_every_image_has_a_network_with_the_same_meaning() -> None:
    for graph in (_network(), _upwards()):
        found = split_images(graph)
        assert found is not None and len(found.nodes) > 3 * len(graph.nodes)
        x = np.random.default_rng(0).standard_normal((3, 6, 20, 20)).astype(np.float32)
        wanted, got = (run(each, {"x": x}) for each in (graph, found))
        assert all(np.allclose(wanted[name], got[name], atol=1e-5) for name in graph.outputs)


MEETING: dict[str, tuple[tuple[Node, ...], dict[str, object]]] = {
    "another order": ((node("Transpose", "x", "y", perm=(1, 0, 2)),), {}),
    "joined": ((node("Concat", "x x", "y", axis=0),), {}),
    "compared": ((node("Softmax", "x", "y", axis=0),), {}),
    "counted anew": ((node("Reshape", "x", "y", shape=(2, 6, 3)),), {}),
    "padded": ((node("Pad", "x", "p", pads=(0, 0, 0, 1, 0, 0)), node("Slice", "p", "y", axes=(0,), starts=(1,),
        ends=(5,), steps=(1,))), {}),
    "larger": ((node("Resize", "x", "y", sizes=(4, 6, 3), scales=(1.2, 2.0, 1.0)),), {}),
    "the largest": ((node("ReduceMax", "x", "m", axes=(0, 1), keepdims=1), node("Add", "x m", "y")), {}),
    "a constant of its own": ((node("Add", "x c", "y"),), {"c": (4, 3, 3)}),
    "one for all": ((node("ReduceMean", "x", "m", axes=(0,), keepdims=1), node("Add", "x m", "y")), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETING)
def test_images_that_meet_stay_together(name: str) -> None:
    nodes, constants = MEETING[name]
    assert split_images(network((4, 3, 3), "y", *nodes, **constants)) is None


def test_one_image_stays() -> None:
    assert split_images(network((1, 3, 3), "y", node("Relu", "x", "y"))) is None


def test_images_take_names_that_the_model_has_not() -> None:
    graph = network((2, 3, 3), "y", node("Neg", "x", "x@images0:1"), node("Relu", "x@images0:1", "y"))
    found = split_images(graph)
    assert found is not None
    x = np.arange(-9, 9, dtype=np.float32).reshape(2, 3, 3)
    np.testing.assert_array_equal(run(found, {"x": x})["y"], np.maximum(-x, 0))


def _upwards(*, images: int = 3, extent: int = 20) -> Graph:
    """A way up, as in a U-Net, and what else keeps images apart."""
    enlarged = (images, 6, 2 * extent, 2 * extent)
    return network((images, 6, extent, extent), "y m", node("LRN", "x", "l", size=3),
        node("Resize", "l", "r", sizes=enlarged, scales=(1.0, 1.0, 2.0, 2.0), mode="nearest",
        nearest_mode="floor"), node("Resize", "l", "i", sizes=enlarged, scales=(1.0, 1.0, 2.0, 2.0),
        mode="linear"), node("Add", "r i", "s"), node("Pad", "s", "p", pads=(0, 0, 1, 0, 0, 0, 1, 2)),
        node("Conv", "p a", "y", pads=(0, 0, 0, 0)), node("ReduceMax", "y", "m", axes=(1, 3), keepdims=1),
        a=(10, 6, 3, 3))  # fmt: skip


@pytest.mark.parametrize(("build", "images", "extent"), [(_network, 3, 20), (_network, 4, 160), (_upwards, 4, 16)])
def test_programs_are_right_and_no_image_costs_more_than_alone(
    build: Callable[..., Graph], images: int, extent: int, tmp_path: Path
) -> None:
    need_compiler()
    graph, machine = build(images=images, extent=extent), Machine()
    one = planner.cost(_plan_graph(build(images=1, extent=extent), machine)[2].regions, machine).cycles
    kernel = _plan_cheapest(graph, machine)[2]
    assert planner.cost(kernel.regions, machine).cycles <= images * one
    x = np.random.default_rng(0).standard_normal((2, *graph.shape("x"))).astype(np.float32)
    values = [{"x": each, **run(graph, {"x": each})} for each in x]
    assert check_compile(graph, values, Case("bm1684", "fp32"), tmp_path) == "ok"
