"""Short-cuts over one convolution become part of its weights where that is more accurate, and mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.quantize.calibration.histograms import histograms
from npuc.targets.easynpu.network.quantising import FoldShortCuts

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
