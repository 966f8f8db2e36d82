"""Explicit padding becomes padding of the window that reads it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

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
from npuc.passes.rewriting.rules import Draft, Rule, rewrite

LOWEST = -1e38
"""Padding of this value or less never wins a maximum over float32 (models write -inf or -3.4e38)."""


def merge_pads(graph: Graph) -> Graph:
    """Pad merged into the Conv, AveragePool or MaxPool behind it, where that means the same.

    Zeros around the image for Conv, and for AveragePool if every window counts its padding; for MaxPool a
    value that no element of the image is below.
    """
    return rewrite(graph, *PAD_RULES)


def _pad_before(draft: Draft, node: Node) -> Node | None:
    """A Pad in front of the node that only adds constant elements around the image."""
    pad = draft.producer(node.inputs[0])
    if pad is None or pad.op != "Pad" or PAD_MODE(pad) != "constant":
        return None
    pads = SIDES(pad)
    rank = len(pads) // 2
    outside = pads[:2] + pads[rank : rank + 2]
    return pad if rank > 2 and not any(outside) and min(pads) >= 0 else None


def _spatial(pad: Node) -> tuple[int, ...]:
    pads = SIDES(pad)
    rank = len(pads) // 2
    return pads[2:rank] + pads[rank + 2 :]


def _sum(node: Node, pad: Node) -> tuple[int, ...]:
    more = _spatial(pad)
    return tuple(a + b for a, b in zip((PADS(node) or (0,) * len(more)), more, strict=True))


def _merge(draft: Draft, node: Node, pad: Node) -> bool:
    merged = replace(node, inputs=(*pad.inputs[:1], *node.inputs[1:]), sources=draft.sources(pad, node))
    draft.replace(node, merged.with_attrs(pads=_sum(node, pad)))
    return True


def _into_conv(draft: Draft, node: Node) -> bool:
    pad = _pad_before(draft, node) if node.op == "Conv" else None
    return pad is not None and VALUE(pad) == 0 and _merge(draft, node, pad)


def _fits_pool(node: Node, pad: Node) -> bool:
    """Pools demand padding smaller than their window; with ceil_mode it would change how many windows count."""
    kernel = KERNEL_SHAPE(node)
    dilations = DILATIONS(node) or (1,) * len(kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    small = all(amount < span for amount, span in zip(_sum(node, pad), reach * 2, strict=True))
    return small and not CEIL_MODE(node)


def _into_average(draft: Draft, node: Node) -> bool:
    pad = _pad_before(draft, node) if node.op == "AveragePool" else None
    if pad is None or VALUE(pad) != 0 or not _fits_pool(node, pad):
        return False
    if any(PADS(node)) and not COUNT_INCLUDE_PAD(node):
        return False
    return _merge(draft, node.with_attrs(count_include_pad=1), pad)


def _into_maximum(draft: Draft, node: Node) -> bool:
    pad = _pad_before(draft, node) if node.op == "MaxPool" else None
    if pad is None or not _fits_pool(node, pad) or draft.types[node.output].dtype != "float32":
        return False
    if max(DILATIONS(node), default=1) > 1:
        return False  # a window's taps may all lie in the padding, whose value is then the result
    value = VALUE(pad)
    never_wins = value <= LOWEST or value <= _least(draft, pad.inputs[0])
    return never_wins and _merge(draft, node, pad)


def _least(draft: Draft, tensor: str) -> float:
    """A lower bound of the tensor's elements, from the operators that are bounded below."""
    node = draft.producer(tensor)
    if node is None:
        return -inf
    if "Relu" in (node.op, ACTIVATION(node)) or node.op in ("Sigmoid", "HardSigmoid", "Softmax"):
        return 0.0
    if "Clip" in (node.op, ACTIVATION(node)):
        return MIN(node)
    if node.op in ("MaxPool", "Concat", "Reshape", "Transpose"):
        return min(_least(draft, name) for name in node.inputs)
    return -inf


PAD_RULES: tuple[Rule, ...] = (_into_conv, _into_average, _into_maximum)
