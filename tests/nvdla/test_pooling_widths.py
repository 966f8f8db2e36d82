"""Pools around the borders of PDP's line buffer: none is beyond it, and every result is right in every bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.nvdla.against_plain import compared
from tests.nvdla.networks import verified

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
    inputs: dict[int, onnx.ValueInfoProto] = {}
    w = random.standard_normal((8, 3, 1, 1)).astype(np.float32)
    for number, (kernel, stride, width) in enumerate(windows):
        op = ("MaxPool", "AveragePool")[number % 2]
        x, height = f"x{width}", 11 + width % 7
        inputs[width] = helper.make_tensor_value_info(x, TensorProto.FLOAT, (1, 3, height, width))
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
    outputs = [
        helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, None) for number in range(len(windows))
    ]
    constants = [numpy_helper.from_array(w, "w")] if behind else []
    graph = helper.make_graph(nodes, "pools", list(inputs.values()), outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), TARGETS)
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("kernel", range(1, 9))
def test_pools_of_every_kernel_stride_and_width(
    kernel: int, behind: bool, name: str, precision: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(kernel)
    drawn = [
        (kernel, stride, width)
        for stride in range(1, 9)
        for width in [*((each - 1) * stride + kernel for each in BORDERS), *random.integers(1, 601, 5).tolist()]
        if width <= 600
    ]
    random.shuffle(drawn)
    for first in range(0, len(drawn), 40):
        expect_right(pools(drawn[first : first + 40], first, behind=behind), tmp_path, name, precision)
