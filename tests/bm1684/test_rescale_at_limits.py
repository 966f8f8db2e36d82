"""Upper limits of int8 networks: what shares tensors with a Clip does not end at its limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Node
from tests.bm1684.kernels import need_compiler
from tests.graphs.compiling import Case, verified
from tests.passes.networks import network, node

CLIP = node("Clip", "x", "c", min=0.0, max=0.25)
CLIP_S = node("Clip", "s", "c", min=0.0, max=0.25)
RESHAPED = node("Reshape", "c", "r", shape=(1, 4, 4, 4))
TWICE = node("Mul", "x k", "z")
JOINED = node("Concat", "c z", "y", axis=1)
NARROW = node("Clip", "z", "d", min=0.0, max=0.125)


@pytest.mark.parametrize("nodes", [
    (CLIP, node("Add", "x c", "y")),
    (CLIP, node("Concat", "x c", "y", axis=1)),
    (TWICE, CLIP, JOINED),
    (TWICE, CLIP, node("Concat", "c z", "j", axis=2), node("MaxPool", "j", "y", kernel_shape=(2, 2))),
    (TWICE, CLIP, NARROW, node("Concat", "c d", "j", axis=1), node("Concat", "j z z", "y", axis=1)),
    (TWICE, node("Reshape", "x", "s", shape=(1, 2, 8, 4)), CLIP_S, RESHAPED, node("Concat", "r z", "y", axis=1)),
    (TWICE, CLIP, node("Conv", "c w", "v"), node("Concat", "v z c", "y", axis=1)),
    (node("Conv", "x w", "v"), node("Clip", "v", "c", min=0.0, max=0.25), TWICE, JOINED),
])  # fmt: skip
def test_what_stands_beside_a_limit_reaches_beyond_it(nodes: tuple[Node, ...], tmp_path: Path) -> None:
    need_compiler()
    weights = {"w": np.eye(4, dtype=np.float32)[..., None, None] * 4}
    graph = network((1, 4, 4, 4), "y", *nodes, **{"k": np.float32(2), **weights})
    report = verified(graph, Case("bm1684", "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 25


def test_a_graph_output_before_a_limit_reaches_beyond_it(tmp_path: Path) -> None:
    need_compiler()
    graph = network((1, 4, 4, 4), "z c", TWICE, node("Clip", "z", "c", min=0.0, max=0.25), k=np.float32(2))
    report = verified(graph, Case("bm1684", "int8"), tmp_path)
    assert report["bit_exact"] and min(each["sqnr_db"] for each in report["outputs"]) > 25


@pytest.mark.parametrize("shape", [(2, 4, 4, 4), (2, 16, 4), (2, 64)])
def test_rescaled_images_of_a_batch_stay_apart(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The convolution makes the first axis a batch."""
    need_compiler()
    weights = np.eye(4, dtype=np.float32)[..., None, None] * 4
    ends = (node("Clip", "v/flat", "c", min=0.0, max=0.25), node("Concat", "c x/flat", "y", axis=1))
    nodes = (node("Conv", "x w", "v"), *(node("Reshape", a, f"{a}/flat", shape=shape) for a in "vx"))
    graph = network((2, 4, 4, 4), "y", *nodes, *ends, w=weights)
    report = verified(graph, Case("bm1684", "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 25


@pytest.mark.parametrize("zero", [0, -128])
@pytest.mark.parametrize("operands", ["d x", "x d", "x d x", "d d x"])
def test_what_stands_beside_given_scales_reaches_beyond_them(operands: str, zero: int, tmp_path: Path) -> None:
    need_compiler()
    nodes = (
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Concat", operands, "j", axis=2),
        node("Conv", "j w", "y"),
    )
    given = {"s": np.float32(0.004), "z": np.int8(zero), "w": np.eye(4, dtype=np.float32)[..., None, None]}
    graph = network((1, 4, 4, 4), "y", *nodes, **given)
    report = verified(graph, Case("bm1684", "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 25
