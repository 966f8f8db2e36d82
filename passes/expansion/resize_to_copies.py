"""Enlargement by repetition as interleaved copies, so that it only moves data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import SCALES
from npuc.ops.resize import interpolation
from npuc.passes.rewriting.interleaving import interleaved
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_SCALE = 8
"""Larger enlargements are done in several steps, since each takes the square of its scale in copies."""


def resize_to_copies(graph: Graph) -> Graph:
    """Resize that repeats every pixel s times each way becomes Concat of s * s times x -> DepthToSpace (DCR).

    The modes do not matter as long as row i of the output is row i // s of the input, and the same holds for
    columns. Other interpolations, and unequal scales, are left unchanged.
    """
    return rewrite(graph, _to_copies)


def _to_copies(rewriter: Rewriter, node: Node) -> bool:
    scale, across = repetitions(rewriter, node)
    if scale < 2 or across != scale:
        return False
    step = next(each for each in (*range(min(scale, MOST_SCALE), 1, -1), scale) if scale % each == 0)
    x = node.inputs[0]
    if step == scale:
        rewriter.replace(node, *interleaved(rewriter, node, (x,) * step**2, step))
        return True
    batch, channels, height, width = rewriter.shape(x)
    first = rewriter.fresh(f"{node.output}/{scale // step}x")
    sizes = batch, channels, height * scale // step, width * scale // step
    scales = (1.0, 1.0, scale / step, scale / step)
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    before = replace(node.with_attrs(sizes=sizes, scales=scales, **modes), outputs=(first,), name=first)
    after = node.with_attrs(scales=(1.0, 1.0, float(step), float(step)), **modes)
    rewriter.replace(node, before, replace(after, inputs=(first, *node.inputs[1:])))
    return True


def repetitions(rewriter: Rewriter, node: Node) -> tuple[int, int]:
    """How often a Resize repeats every row and every column; 0 if it does not just repeat them."""
    if node.op != "Resize":
        return 0, 0
    x, y = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)
    if len(x) != 4 or x[:2] != y[:2] or any(large % small for large, small in zip(y, x, strict=True)):
        return 0, 0
    scales = y[2] // x[2], y[3] // x[3]
    for axis, scale in zip((2, 3), scales, strict=True):
        indices, weights = interpolation(node, x[axis], y[axis], SCALES(node)[axis])
        wanted = np.arange(y[axis]) // scale
        if not ((indices == wanted) | (weights == 0)).all():
            return 0, 0
    return scales
