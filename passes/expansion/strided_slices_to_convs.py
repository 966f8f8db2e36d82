"""Every n-th row or column of a map, taken by a convolution."""

from __future__ import annotations

from functools import partial

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import AXES
from npuc.passes.expansion.permute_channels_by_conv import MOVES
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class StridedSlicesToConvs:
    """Slice with steps along H or W becomes a Slice without steps and a depthwise 1x1 Conv with strides.

    The map (1, C, H, W) must be computed, and its result used in computations; between data movement, and before
    an output, nothing is done. Steps are at most the largest permitted stride; steps along other axes, and
    backward ones, are left unchanged.
    """

    most_stride: int
    __name__ = "strided_slices_to_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such slices."""
        return rewrite(graph, partial(_strided, self.most_stride))


def _strided(most: int, rewriter: Rewriter, node: Node) -> bool:
    x, shape = node.inputs[0], rewriter.shape(node.output)
    if node.op != "Slice" or len(shape) != 4 or shape[0] != 1 or not all(shape) or not only_float(rewriter, x):
        return False
    keys = ("starts", "ends", "steps")
    cuts = dict(zip(AXES(node), zip(*(node.integers(key) for key in keys), strict=True), strict=True))
    strides = tuple(cuts[axis][2] if axis in cuts else 1 for axis in (2, 3))
    others = [step for axis, (_, _, step) in cuts.items() if axis < 2]
    if max(strides) == 1 or not 1 <= min(strides) <= max(strides) <= most or any(s != 1 for s in others):
        return False
    if not _is_computed(rewriter, x) or all(reader.op in MOVES for reader in rewriter.readers(node.output)):
        return False
    ends = tuple(start + (shape[axis] - 1) * step + 1 for axis, (start, _, step) in cuts.items())
    unit: dict[str, Attr] = {**node.attrs, "ends": ends, "steps": (1,) * len(cuts)}
    window = rewriter.part(node, "Slice", (x,), f"{node.output}/window", **unit)
    ones = rewriter.constant(np.ones((shape[1], 1, 1, 1), np.float32), f"{node.output}/ones")
    attrs: dict[str, Attr] = {"kernel_shape": (1, 1), "strides": strides, "group": shape[1], "selects": 1}
    rewriter.replace(
        node, window, Node("Conv", (window.output, ones), node.outputs, attrs, node.name, node.sources)
    )
    return True


def _is_computed(rewriter: Rewriter, tensor: str) -> bool:
    """Whether it is more than a rearranged input of the network."""
    node = rewriter.producer(tensor)
    while node is not None and node.op in MOVES:
        node = rewriter.producer(node.inputs[0])
    return node is not None
