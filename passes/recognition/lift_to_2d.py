"""Convolution, pooling, normalisation and interpolation along one axis as those of images of height 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import PADS, SCALES, SIZES
from npuc.passes.cleanup.merge_pads import PAD_RULES
from npuc.passes.cleanup.sink_reshapes import RESHAPE_RULES
from npuc.passes.rewriting.patterns import quantisation_axis, restored_weight, stored_weight
from npuc.passes.rewriting.rules import Rewriter, rewrite

WINDOWED = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
CHANNELWISE = frozenset(
    ("GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "InstanceNormalization", "LRN")
)


def lift_to_2d(graph: Graph) -> Graph:
    """(N, C, L) operators compute on (N, C, 1, L), between Reshapes that merge between adjacent such operators.

    A Pad before its window is merged into it before a Reshape separates them.
    """
    return rewrite(graph, _merge_pad, _lift, *RESHAPE_RULES)


def _merge_pad(rewriter: Rewriter, node: Node) -> bool:
    along_one_axis = node.op in WINDOWED and len(rewriter.shape(node.inputs[0])) == 3
    return along_one_axis and any(rule(rewriter, node) for rule in PAD_RULES)


def _lift(rewriter: Rewriter, node: Node) -> bool:
    if node.op not in (*WINDOWED, *CHANNELWISE, "Resize") or len(rewriter.shape(node.inputs[0])) != 3:
        return False
    x, y = node.inputs[0], node.output
    (N, Ci, L), (samples, Co, Lo) = rewriter.shape(x), rewriter.shape(y)
    if node.op == "Resize" and (N, Ci) != (samples, Co):
        return False
    inputs, nodes = node.inputs[1:], list[Node]()
    if node.op in ("Conv", "ConvTranspose"):
        stored = stored_weight(rewriter, inputs[0])
        if stored is None:
            return False
        axis = quantisation_axis(rewriter, inputs[0])
        flat = np.expand_dims(stored, 2)
        weight, nodes = restored_weight(rewriter, inputs[0], flat, f"{y}/weight", axis + (axis > 1))
        inputs = (weight, *inputs[1:])
    image, result = rewriter.fresh(f"{x}@{N}x{Ci}x1x{L}"), rewriter.fresh(f"{y}@{N}x{Co}x1x{Lo}")
    attrs = {**node.attrs, **_second_dimension(node)}
    rewriter.replace(
        node,
        *nodes,
        Node("Reshape", (x,), (image,), {"shape": (N, Ci, 1, L)}, image, node.sources),
        replace(node, inputs=(image, *inputs), outputs=(result,), attrs=attrs),
        Node("Reshape", (result,), (y,), {"shape": (N, Co, Lo)}, y, node.sources),
    )
    return True


def _second_dimension(node: Node) -> dict[str, Attr]:
    """The attributes with one entry for each dimension, with another for the rows."""
    attrs: dict[str, Attr] = {}
    if node.op == "Resize":  # an axis of one element whose scale is 1 keeps its value in every mode
        (n, c, scale), (batch, channels, length) = SCALES(node), SIZES(node)
        return {"scales": (n, c, 1.0, scale), "sizes": (batch, channels, 1, length)}
    if node.op in WINDOWED:
        (begin, end) = PADS(node) or (0, 0)
        attrs["pads"] = (0, begin, 0, end)
    for key, neutral in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if key in node.attrs:
            attrs[key] = (neutral, *node.integers(key))
    return attrs
