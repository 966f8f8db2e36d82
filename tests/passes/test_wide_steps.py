"""Strides, dilations and padding beyond the fields of an instruction word: rewritten exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.split_average_pool import Limits, SplitAveragePool
from npuc.pipeline import Pass
from npuc.targets.easynpu.network.passes import split_padding

fold_strides = FoldStrides(15, 256)


def conv(size: int, kernel: tuple[int, int], channels: int = 3, group: int = 1, **attrs: Any) -> Graph:
    random = np.random.default_rng(0)
    w = random.standard_normal((6, channels // group, *kernel)).astype(np.float32)
    b = random.standard_normal(6).astype(np.float32)
    node = Node("Conv", ("x", "w", "b"), ("y",), {"activation": "Relu", "group": group, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType((1, channels, size, size + 3))}, ["y"], {"w": w, "b": b})


def expect_same(each: Pass, before: Graph, *operators: str) -> Graph:
    """The graph after the pass, which has these operators and the meaning that it had."""
    after = each(before)
    assert [node.op for node in after.nodes] == list(operators)
    x = np.random.default_rng(1).standard_normal(before.shape("x")).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(before, {"x": x})["y"], rtol=1e-4, atol=1e-4)
    assert each(after).nodes == after.nodes
    return after


@pytest.mark.parametrize(
    ("before", "operators", "block"),
    [
        (conv(32, (16, 16), strides=(16, 16)), ("Slice", "SpaceToDepth", "Conv"), 8),
        (conv(49, (13, 13), strides=(18, 18)), ("Pad", "SpaceToDepth", "Conv"), 9),
        (conv(50, (5, 7), strides=(18, 18)), ("Slice", "SpaceToDepth", "Conv"), 9),
        (conv(48, (21, 20), strides=(16, 32), pads=(2, 3, 2, 3)), ("Pad", "Slice", "SpaceToDepth", "Conv"), 8),
        (conv(40, (17, 17), strides=(17, 17), channels=1), ("Slice", "SpaceToDepth", "Conv"), 17),
    ],
    ids=["patches", "no multiple of a block", "small kernel", "padded", "prime"],
)
def test_a_stride_above_15_is_taken_over_blocks_of_pixels(
    before: Graph, operators: tuple[str, ...], block: int
) -> None:
    after = expect_same(fold_strides, before, *operators)
    assert max(after.nodes[-1].integers("strides")) <= 15
    assert after.nodes[-2].integer("blocksize") == block


@pytest.mark.parametrize(
    "before",
    [
        conv(32, (3, 3), strides=(15, 15)),
        conv(40, (3, 3), strides=(17, 16)),
        conv(40, (3, 3), channels=6, group=6, strides=(16, 16)),
        conv(80, (3, 3), strides=(16, 16), dilations=(2, 2)),
    ],
    ids=["15", "no common block", "grouped", "dilated"],
)
def test_other_strides_stay(before: Graph) -> None:
    assert fold_strides(before) is before


def signal(
    length: int, kernel: int, *, down: bool = False, channels: int = 3, group: int = 1, **attrs: Any
) -> Graph:
    """A Conv along one axis of an image of one row, or of one column; attributes are those along that axis."""
    random = np.random.default_rng(0)
    w = random.standard_normal((6, channels // group, kernel, 1)).astype(np.float32)
    shape: tuple[int, ...] = (1, channels, length, 1)
    step, dilation, (begin, end) = attrs["stride"], attrs.get("dilation", 1), attrs.get("pads", (0, 0))
    found: dict[str, Any] = {"strides": (step, 1), "dilations": (dilation, 1), "pads": (begin, 0, end, 0)}
    if not down:
        w, shape = w.transpose(0, 1, 3, 2), (1, channels, 1, length)
        found = {"strides": (1, step), "dilations": (1, dilation), "pads": (0, begin, 0, end)}
    node = Node("Conv", ("x", "w"), ("y",), {"group": group, **found}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {"w": np.ascontiguousarray(w)})


@pytest.mark.parametrize(
    ("before", "operators", "strides", "kernel"),
    [
        (signal(512, 32, stride=16), "", (1, 1), (2, 16)),
        (signal(512, 31, stride=16, pads=(8, 8)), "", (1, 1), (3, 16)),
        (signal(512, 32, stride=16, pads=(16, 0), down=True), "", (1, 1), (2, 16)),
        (signal(500, 32, stride=16, pads=(3, 40)), "Pad", (1, 1), (3, 16)),
        (signal(517, 32, stride=16), "Slice", (1, 1), (2, 16)),
        (signal(600, 7, stride=17, dilation=3, down=True), "Pad", (1, 1), (2, 17)),
        (signal(1000, 20, stride=160, pads=(10, 10)), "Slice", (5, 1), (2, 32)),
        (signal(480, 24, stride=16, channels=6, group=6), "", (1, 1), (2, 16)),
        (signal(480, 24, stride=16, channels=6, group=2), "", (1, 1), (2, 16)),
        (signal(16, 9, stride=16, pads=(9, 16)), "", (1, 1), (1, 16)),
    ],
)
def test_a_signal_at_a_stride_above_15_is_laid_in_rows(
    before: Graph, operators: str, strides: tuple[int, int], kernel: tuple[int, int]
) -> None:
    after = expect_same(fold_strides, before, *operators.split(), "Reshape", "Conv", "Reshape")
    conv = after.nodes[-2]
    assert conv.integers("strides") == strides
    assert after.shape(conv.inputs[1])[2:] == kernel


def test_a_signal_at_a_stride_without_divisors_stays() -> None:
    for before in (signal(512, 5, stride=15), signal(512, 5, stride=37), signal(600, 5, stride=31 * 37)):
        assert fold_strides(before) is before


@pytest.mark.parametrize(
    ("pads", "rest", "copies"),
    [((18, 18, 18, 18), (15, 15), 1), ((0, 40, 20, 3), (0, 15), 2), ((16, 31, 0, 0), (15, 15), 2)],
)
def test_padding_above_15_is_part_of_a_copy(pads: tuple[int, ...], rest: tuple[int, int], copies: int) -> None:
    before = conv(33, (3, 3), pads=pads)
    after = expect_same(split_padding, before, *["Conv"] * (copies + 1))
    assert after.nodes[-1].integers("pads") == (*rest, *pads[2:])
    assert all(max(node.integers("pads")[:2]) <= 15 for node in after.nodes)


def test_padding_behind_the_image_needs_no_field() -> None:
    before = conv(33, (3, 3), pads=(15, 0, 40, 40))
    assert split_padding(before) is before


def test_an_average_at_a_stride_above_15_is_one_of_averages() -> None:
    attrs: dict[str, Any] = {"kernel_shape": (20, 20), "strides": (20, 20)}
    node = Node("AveragePool", ("x",), ("y",), attrs, "n")
    before = build("g", [node], {"x": TensorType((1, 2, 60, 60))}, ["y"], {})
    only_strides = SplitAveragePool(limits=Limits(positions=1 << 30, extent=1 << 30))
    after = expect_same(only_strides, before, "AveragePool", "AveragePool")
    assert all(max(node.integers("strides")) <= 15 for node in after.nodes)
    whole = build("g", [node], {"x": TensorType((1, 2, 20, 20))}, ["y"], {})
    assert only_strides(whole) is whole
