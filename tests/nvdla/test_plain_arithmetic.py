"""Random networks: what programs leave is what plain numpy makes of the description, in every element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.errors import NpucError
from npuc.ir import Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.targets.nvdla.arithmetic.operators import OPERATORS
from tests.graphs.drawn import drawn
from tests.nvdla import plain
from tests.nvdla.against_plain import CONFIGURATIONS, compared
from tests.nvdla.test_random_networks import BORDERS
from tests.onnx_models import network, node, weights


@pytest.mark.parametrize("seed", range(100, 140))
def test_a_random_network_leaves_what_plain_arithmetic_computes(seed: int, tmp_path: Path) -> None:
    name, precision = CONFIGURATIONS[seed % len(CONFIGURATIONS)]
    try:
        count, differing = compared(to_onnx(drawn(seed, **BORDERS)[0]), tmp_path, name, precision)
    except NpucError as error:
        assert all(each.code in ("E202", "E302") for each in error.problems)  # noqa: PT017
        return
    assert not differing, count


@pytest.mark.parametrize(("name", "precision"), CONFIGURATIONS)
@pytest.mark.parametrize("window", [(8, 8), (3, 3), (2, 4), (7, 1)])
def test_averages_of_extremes_do_not_wrap(
    window: tuple[int, int], name: str, precision: str, tmp_path: Path
) -> None:
    model = network([node("Conv", "x w", "c"), node("Relu", "c", "r"),
        node("AveragePool", "r", "y", kernel_shape=window, strides=[1, 1])], (1, 8, 10, 10),
        {"w": np.abs(weights(24, 8, 1, 1))})  # fmt: skip
    count, differing = compared(model, tmp_path, name, precision)
    assert count
    assert not differing


def test_plain_arithmetic_sees_what_is_wrong() -> None:
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2), "reciprocals": (1 << 16, 1 << 14)}
    layer = Node("NvAveragePool", ("x",), ("y",), attrs, "n")
    graph = build("g", [layer], {"x": TensorType((1, 1, 2, 2), "int8")}, ["y"], {}, OPERATORS)
    x = np.array([[[[1, 2], [3, 4]]]], np.int8)[None]
    right, wrong = (np.array([[[[value]]]], np.int8)[None] for value in (3, 2))  # 10 / 4, away from zero
    assert plain.differences(graph, {"x": x, "y": right}, 0) == (1, [])
    assert plain.differences(graph, {"x": x, "y": wrong}, 0) == (1, ["y"])
