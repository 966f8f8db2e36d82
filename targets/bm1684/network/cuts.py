"""Maps with more rows, columns or channels than a call can have, in parts that a Concat joins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import CEIL_MODE, GROUP, KERNEL_SHAPE
from npuc.ops.windows import window_of
from npuc.passes.rewriting.maps import kernels_of
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

POOLS = ("MaxPool", "AveragePool")


@frozen
class CutMaps:
    """Conv, MaxPool and AveragePool of (N, C, H, W) beyond these extents are computed in parts.

    Parts of rows or columns read overlapping pieces of the input and are padded where it ends. Channels of results
    are parts with kernels of their own; results for parts of a dense convolution's input channels are added.
    """

    most_channels: int
    most_extent: int
    __name__ = "cut_maps"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such layers."""
        pixels = partial(_cut_pixels, self.most_extent)
        return rewrite(graph, pixels, *(partial(rule, self.most_channels) for rule in (_cut_inputs, _cut_results)))


def _is_cuttable(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node is one of these, with constant weights."""
    constant = all(not name or name in rewriter.constants for name in node.inputs[1:])
    fits = node.op in ("Conv", *POOLS) and not CEIL_MODE(node) and constant
    return fits and len(rewriter.shape(node.output)) == 4 and only_float(rewriter, *node.inputs[:1])


def _ranges(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, behind) of at most so many, as even as possible."""
    parts = -(-count // most)
    ends = [count * at // parts for at in range(parts + 1)]
    yield from pairwise(ends)


def _slice(rewriter: Rewriter, node: Node, x: str, axis: int, first: int, behind: int) -> Node:
    cut: dict[str, Attr] = {"axes": (axis,), "starts": (first,), "ends": (behind,), "steps": (1,)}
    return rewriter.part(node, "Slice", (x,), f"{node.output}/from_{first}", **cut)


def _join(rewriter: Rewriter, node: Node, nodes: list[Node], parts: list[Node], axis: int) -> bool:
    joined = Node(
        "Concat", tuple(each.output for each in parts), node.outputs, {"axis": axis}, node.name, node.sources
    )
    rewriter.replace(node, *nodes, joined)
    return True


def _cut_pixels(most: int, rewriter: Rewriter, node: Node) -> bool:
    if not _is_cuttable(rewriter, node):
        return False
    x, y = node.inputs[0], rewriter.shape(node.output)
    shape = rewriter.shape(x)
    axis = next((axis for axis in (2, 3) if max(shape[axis], y[axis]) > most), None)
    window = window_of(node, rewriter.shape(node.inputs[1])[2:] if node.op == "Conv" else KERNEL_SHAPE(node))
    if axis is None:
        return False
    begin, end, stride, reach = (
        each[axis - 2] for each in (window.begins, window.ends, window.strides, window.reach)
    )
    if max(begin, end) >= reach or reach > most:
        return False
    nodes, parts = list[Node](), list[Node]()
    for first, behind in _ranges(y[axis], (most - reach) // stride + 1):
        low, high = first * stride - begin, (behind - 1) * stride - begin + reach
        pads = [*window.begins, *window.ends]
        pads[axis - 2], pads[axis] = max(-low, 0), max(high - shape[axis], 0)
        nodes.append(_slice(rewriter, node, x, axis, max(low, 0), min(high, shape[axis])))
        attrs: dict[str, Attr] = {**node.attrs, "pads": tuple(pads)}
        inputs = (nodes[-1].output, *node.inputs[1:])
        parts.append(rewriter.part(node, node.op, inputs, f"{node.output}/part", **attrs))
        nodes.append(parts[-1])
    return _join(rewriter, node, nodes, parts, axis)


def _cut_inputs(most: int, rewriter: Rewriter, node: Node) -> bool:
    """The sum of convolutions of some input channels each; the last sum has the activation."""
    if not _is_cuttable(rewriter, node) or node.op != "Conv" or GROUP(node) > 1:
        return False
    x, weights, *bias = node.inputs
    if rewriter.shape(x)[1] <= most:
        return False
    w, nodes, total = rewriter.constants[weights], list[Node](), ""
    plain = {key: value for key, value in node.attrs.items() if key not in ("activation", "min", "max")}
    for first, behind in _ranges(rewriter.shape(x)[1], most):
        nodes.append(_slice(rewriter, node, x, 1, first, behind))
        taps = rewriter.constant(np.ascontiguousarray(w[:, first:behind]), f"{node.output}/weight")
        inputs = (nodes[-1].output, taps, *(bias if not total else ()))
        nodes.append(rewriter.part(node, "Conv", inputs, f"{node.output}/part", **plain))
        if total:
            nodes.append(rewriter.part(node, "Add", (total, nodes[-1].output), f"{node.output}/sum"))
        total = nodes[-1].output
    rest = {key: value for key, value in node.attrs.items() if key in ("activation", "min", "max")}
    last = nodes.pop()
    rewriter.replace(node, *nodes, replace(last, outputs=node.outputs, attrs=rest, name=node.name))
    return True


def _cut_results(most: int, rewriter: Rewriter, node: Node) -> bool:
    """Some channels each: of a depthwise layer also of its input."""
    count = rewriter.shape(node.output)[1] if _is_cuttable(rewriter, node) else 0
    if count <= most:
        return False
    apart = node.op in POOLS or GROUP(node) == rewriter.shape(node.inputs[0])[1] == count
    if not apart and GROUP(node) > 1:
        return False
    nodes, parts = list[Node](), list[Node]()
    for first, behind in _ranges(count, most):
        x = node.inputs[0]
        if apart:
            nodes.append(_slice(rewriter, node, x, 1, first, behind))
            x = nodes[-1].output
        part = rewriter.part(node, node.op, (x, *node.inputs[1:]), f"{node.output}/part", **node.attrs)
        if node.op == "Conv":
            part = kernels_of(rewriter, part, np.arange(first, behind), part.output)
            part = part.with_attrs(group=behind - first) if apart else part
        parts.append(part)
        nodes.append(part)
    return _join(rewriter, node, nodes, parts, 1)
