"""Explicit padding: merged into the window that reads it, or split from a convolution that cannot have it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import (
    ACTIVATION,
    CEIL_MODE,
    COUNT_INCLUDE_PAD,
    DILATIONS,
    KERNEL_SHAPE,
    MIN,
    PAD_MODE,
    PADS,
    SIDES,
    VALUE,
)
from npuc.passes.rewriting.patterns import conv_window
from npuc.passes.rewriting.rules import Rewriter, Rule, rewrite

LOWEST = -1e38
"""Padding of this value or less never wins a float32 maximum (models write -inf or -3.4e38)."""


def merge_pads(graph: Graph) -> Graph:
    """Pad merged into the following Conv, AveragePool or MaxPool, if that is equivalent.

    The padding must be zeros around the image for Conv, and for AveragePool if every window counts its padding;
    for MaxPool a value that is not above any element of the image.
    """
    return rewrite(graph, *PAD_RULES)


def _pad_before(rewriter: Rewriter, node: Node) -> Node | None:
    """A Pad in front of the node that only adds constant elements around the image."""
    pad = rewriter.producer(node.inputs[0])
    if pad is None or pad.op != "Pad" or PAD_MODE(pad) != "constant":
        return None
    pads = SIDES(pad)
    rank = len(pads) // 2
    outside = pads[:2] + pads[rank : rank + 2]
    return pad if not any(outside) and min(pads) >= 0 else None


def _spatial(pad: Node) -> tuple[int, ...]:
    pads = SIDES(pad)
    rank = len(pads) // 2
    return pads[2:rank] + pads[rank + 2 :]


def _sum(node: Node, pad: Node) -> tuple[int, ...]:
    more = _spatial(pad)
    return tuple(a + b for a, b in zip((PADS(node) or (0,) * len(more)), more, strict=True))


def _merge(rewriter: Rewriter, node: Node, pad: Node) -> bool:
    merged = replace(node, inputs=(*pad.inputs[:1], *node.inputs[1:]), sources=rewriter.sources(pad, node))
    rewriter.replace(node, merged.with_attrs(pads=_sum(node, pad)))
    return True


def _into_conv(rewriter: Rewriter, node: Node) -> bool:
    pad = _pad_before(rewriter, node) if node.op == "Conv" else None
    return pad is not None and VALUE(pad) == 0 and _merge(rewriter, node, pad)


def _fits_pool(node: Node, pad: Node) -> bool:
    """Pools require padding below their number of taps; with ceil_mode it would change the number of windows."""
    small = all(amount < taps for amount, taps in zip(_sum(node, pad), KERNEL_SHAPE(node) * 2, strict=True))
    return small and not CEIL_MODE(node)


def _into_average(rewriter: Rewriter, node: Node) -> bool:
    pad = _pad_before(rewriter, node) if node.op == "AveragePool" else None
    if pad is None or VALUE(pad) != 0 or not _fits_pool(node, pad):
        return False
    if any(PADS(node)) and not COUNT_INCLUDE_PAD(node):
        return False
    return _merge(rewriter, node.with_attrs(count_include_pad=1), pad)


def _into_maximum(rewriter: Rewriter, node: Node) -> bool:
    pad = _pad_before(rewriter, node) if node.op == "MaxPool" else None
    if pad is None or not _fits_pool(node, pad) or rewriter.types[node.output].dtype != "float32":
        return False
    if max(DILATIONS(node), default=1) > 1:
        return False  # all taps of a window may lie in the padding, whose value is then the result
    value = VALUE(pad)
    never_wins = value <= LOWEST or value <= _least(rewriter, pad.inputs[0])
    return never_wins and _merge(rewriter, node, pad)


def _least(rewriter: Rewriter, tensor: str) -> float:
    """A lower bound of the tensor's elements, from operators that are bounded below."""
    node = rewriter.producer(tensor)
    if node is None:
        return -inf
    if "Relu" in (node.op, ACTIVATION(node)) or node.op in ("Sigmoid", "HardSigmoid", "Softmax"):
        return 0.0
    if "Clip" in (node.op, ACTIVATION(node)):
        return MIN(node)
    if node.op in ("MaxPool", "Concat", "Reshape", "Transpose"):
        return min(_least(rewriter, name) for name in node.inputs)
    return -inf


PAD_RULES: tuple[Rule, ...] = (_into_conv, _into_average, _into_maximum)


@frozen
class SplitPads:
    """A Conv of an image keeps at most this much padding on each side; a Pad with zeros adds the rest.

    It undoes merge_pads where the sum is too much, and applies to wide kernels.
    """

    most_padding: int
    __name__ = "split_pads"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without larger padding."""
        return rewrite(graph, partial(_split, self.most_padding))


def _split(most: int, rewriter: Rewriter, node: Node) -> bool:
    window = conv_window(rewriter, node)
    if window is None or max(*window.begins, *window.ends) <= most:
        return False
    sides = (*window.begins, *window.ends)
    top, left, bottom, right = (max(side - most, 0) for side in sides)
    pads, stem = (0, 0, top, left, 0, 0, bottom, right), f"{node.output}/padded"
    pad = rewriter.part(node, "Pad", node.inputs[:1], stem, pads=pads, mode="constant", value=0.0)
    rest = tuple(min(side, most) for side in sides)
    rewriter.replace(node, pad, replace(node, inputs=(pad.output, *node.inputs[1:])).with_attrs(pads=rest))
    return True
