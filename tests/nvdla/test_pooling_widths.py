"""Pools around the borders of PDP's line buffer: none is beyond it, and every result is right in every bit."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from npuc.ir import Array, Attr, Node, TensorType
from npuc.ops import build
from npuc.targets.nvdla import model
from npuc.targets.nvdla.arithmetic.operators import OPERATORS
from npuc.targets.nvdla.emission import program
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.formats.precision import DTYPES, HOST_DTYPES
from npuc.targets.nvdla.machine.parameters import CONFIGURATIONS, Machine
from npuc.targets.nvdla.operations.surfaces import place
from npuc.targets.nvdla.selection import Constants, Context, Placed
from npuc.targets.nvdla.selection.pooling import select_pooling
from tests.nvdla import plain
from tests.nvdla.against_plain import compared
from tests.nvdla.networks import verified
from tests.nvdla.programs import RESULT, SOURCE, memory
from tests.onnx_models import network

TARGETS = (
    ("nvdla-small", "int8"),
    ("nvdla-large", "int8"),
    ("nvdla-full", "int8"),
    ("nvdla-full", "int16"),
    ("nvdla-full", "fp16"),
)
LINES = ((2, 2, 128), (3, 2, 64), (5, 4, 64), (3, 1, 32), (4, 1, 32), (7, 2, 32), (5, 1, 16), (8, 1, 16))
"""Height and vertical stride of a window, and the columns that PDP's buffer holds of its results, from the RTL."""
BORDERS = [each + more for each in (16, 32, 64, 128, 256, 512) for more in (0, 1)]


def pools(windows: list[tuple[int, int, int]], seed: int, *, behind: bool) -> onnx.ModelProto:
    """A network of pools side by side, by kernel, stride and width of the map; behind: each behind a convolution.

    Maxima and averages alternate; kernels and strides of rows, and padding, are drawn.
    """
    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    inputs: dict[str, tuple[int, ...]] = {}
    w = random.standard_normal((8, 3, 1, 1)).astype(np.float32)
    for number, (kernel, stride, width) in enumerate(windows):
        op = ("MaxPool", "AveragePool")[number % 2]
        x, height = f"x{width}", 11 + width % 7
        inputs[x] = (1, 3, height, width)
        if behind:
            nodes.append(helper.make_node("Conv", [x, "w"], [f"c{number}"]))
            x = f"c{number}"
        high, down = (kernel, stride) if random.random() < 0.7 else random.integers(1, 9, 2).tolist()
        pads = (
            [int(random.integers(0, (high, kernel)[at % 2])) for at in range(4)]
            if random.random() < 0.5
            else [0] * 4
        )
        most = [(height, width)[at % 2] * 2 for at in range(4)]
        pads = [min(pad, limit) for pad, limit in zip(pads, most, strict=True)]
        if width + pads[1] + pads[3] < kernel:
            pads[1] = pads[3] = kernel // 2
        attrs = {"count_include_pad": 1} if op == "AveragePool" else {}
        nodes.append(
            helper.make_node(
                op, [x], [f"y{number}"], kernel_shape=[high, kernel], strides=[down, stride], pads=pads, **attrs
            )
        )
    outputs = " ".join(f"y{number}" for number in range(len(windows)))
    made = network(nodes, inputs, {"w": w} if behind else {}, outputs, 19)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def expect_right(model: onnx.ModelProto, folder: Path, name: str, precision: str) -> None:
    """NVDLA computes every pool, and what the functional model leaves is right."""
    if precision == "fp16":
        report = verified(model, folder, name, samples=1, precision="fp16")
        assert report["status"] == "ok", report
        return
    count, differing = compared(model, folder, name, precision)
    assert not differing
    assert count >= len(model.graph.node)


@pytest.mark.parametrize(("name", "precision"), TARGETS)
@pytest.mark.parametrize("behind", [False, True])
def test_pools_at_the_borders_of_the_line_buffer(name: str, precision: str, behind: bool, tmp_path: Path) -> None:
    windows = [
        (kernel, stride, (columns + more - 1) * stride + kernel)
        for kernel, stride, columns in LINES
        for more in (behind, not behind)
    ]
    expect_right(pools(windows, 1, behind=behind), tmp_path, name, precision)


def left_by_pdp(machine: Machine, node: Node, x: Array, precision: str) -> Array:
    """What the operations selected for a pool leave (1, C, Ho, Wo), given the map (1, C, H, W) in memory."""
    kind = TensorType(x.shape, HOST_DTYPES[precision])
    graph = build("g", [node], {"x": kind}, ["y"], {}, OPERATORS)
    views = place(graph, [node], ["x"], machine, lambda each, known: known[each.inputs[0]]).views
    context = Context(
        graph,
        machine,
        {name: Placed(view, {"x": SOURCE, "y": RESULT}[name]) for name, view in views.items()},
        Constants(machine, 0, counted=True),
    )
    cubes = {
        name: feature.Cube.of(machine, view.width, view.height, x.shape[1], precision)
        for name, view in views.items()
    }
    before = memory({SOURCE: feature.pack(cubes["x"], x[0])})
    after = model.run(machine, program(machine, select_pooling(context, node)), before)
    return feature.unpack(cubes["y"], np.frombuffer(after.read(RESULT, cubes["y"].bytes), np.uint8))[None]


@pytest.mark.parametrize(("name", "precision"), TARGETS)
@pytest.mark.parametrize("kernel", range(1, 9))
def test_pools_from_memory_of_every_kernel_and_stride(kernel: int, name: str, precision: str) -> None:
    """Of integers that fp16 has, too; averages of few enough not to wrap."""
    random, machine = np.random.default_rng(kernel), CONFIGURATIONS[name]
    dtype = np.dtype(DTYPES[precision])
    for stride in range(1, 9):
        across = [
            *((each - 1) * stride + kernel for each in BORDERS),
            *BORDERS,
            *random.integers(1, 601, 2).tolist(),
        ]
        across = [each for each in across if each <= 600]
        for width in random.permutation(across)[:5].tolist():
            high, down = (kernel, stride) if random.random() < 0.6 else random.integers(1, 9, 2).tolist()
            height = high + int(random.integers(0, 2 * down + 2))
            pads = [int(random.integers(0, each)) for each in (high, kernel) * 2]
            pads[1] += max(kernel - width - pads[1] - pads[3], 0)
            if pads[1] >= kernel:
                continue
            attrs: dict[str, Attr] = {
                "kernel_shape": (high, kernel),
                "strides": (down, stride),
                "pads": tuple(pads),
            }
            average = bool(random.integers(2)) and precision != "fp16"
            if average:
                attrs |= {"reciprocals": ((1 << 16) // kernel, (1 << 16) // high)}
            node = Node("NvAveragePool" if average else "MaxPool", ("x",), ("y",), attrs, "n")
            x = random.integers(0 if average else -128, 15 if average else 128, (1, 9, height, width), np.int16)
            whole = x.astype(np.int8 if precision == "int8" else np.int16)
            expected = plain.average(node, whole) if average else plain.maximum(node, whole)
            found = left_by_pdp(machine, node, x.astype(dtype), precision)
            np.testing.assert_array_equal(found, expected.astype(dtype), err_msg=str((width, node)))


@pytest.mark.parametrize(("name", "precision"), TARGETS)
@pytest.mark.parametrize("behind", [False, True])
def test_pools_of_every_kernel_and_stride(behind: bool, name: str, precision: str, tmp_path: Path) -> None:
    """Every pair once, with a width at a border of the line buffer or between two."""
    random = np.random.default_rng((behind, *f"{name} {precision}".encode()))
    drawn: list[tuple[int, int, int]] = []
    for kernel, stride in product(range(1, 9), repeat=2):
        borders = [(each - 1) * stride + kernel for each in BORDERS]
        widths = [each for each in (*borders, *random.integers(1, 601, 5).tolist()) if each <= 600]
        drawn.append((kernel, stride, int(random.choice(widths))))
    random.shuffle(drawn)
    for first in range(0, len(drawn), 32):
        expect_right(pools(drawn[first : first + 32], first, behind=behind), tmp_path, name, precision)
