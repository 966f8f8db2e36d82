"""PDP."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Node
from npuc.ops.windows import window_of
from npuc.targets.nvdla.integer import RECIPROCAL_BITS
from npuc.targets.nvdla.operations import (
    Pooling,
)
from npuc.targets.nvdla.selection.context import Context
from npuc.targets.nvdla.selection.parts import hardware_window


def select_pooling(context: Context, node: Node) -> Pooling:
    """PDP on a map in memory."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    kernel = node.integers("kernel_shape")
    window = window_of(node, kernel)
    spatial, extents = (x.view.height, x.view.width), (y.view.height, y.view.width)
    reach = [(n - 1) * s + k for n, s, k in zip(extents, window.strides, kernel, strict=True)]
    ends = [r - extent - begin for r, extent, begin in zip(reach, spatial, window.begins, strict=True)]
    pads = (window.begins[0], window.begins[1], max(ends[0], 0), max(ends[1], 0))
    used = [extent + min(end, 0) for extent, end in zip(spatial, ends, strict=True)]
    source = replace(x.surface(rows=used[0]), width=used[1])
    average = node.op == "NvAveragePool"
    reciprocals = node.integers("reciprocals") if average else (1 << RECIPROCAL_BITS,) * 2
    return Pooling(
        source,
        "AVERAGE" if average else "MAX",
        (kernel[0], kernel[1]),
        hardware_window(window.strides, (1, 1), pads, node.integer("padding")),
        (reciprocals[0], reciprocals[1]),
        y.surface(),
    )
