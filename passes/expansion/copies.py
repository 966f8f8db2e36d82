"""Copies as the least data movement: Expand and Pad as concatenations, Gather with constant indices as slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import numpy as np

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import AXIS, PAD_MODE, SHAPE, SIDES, VALUE
from npuc.passes.expansion.images import TIDY
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_COPIES = 256
"""The largest repetition along one axis; Expand by more stays."""

Step = Callable[..., str]
"""Adds a node of an operator with inputs and attributes; returns its output."""


def copies_to_concats(graph: Graph) -> Graph:
    """Expand becomes a Reshape to its result's rank and a Concat of copies per repeated axis.

    Pad becomes, per axis, a Slice if its pads are negative and a Concat with the padding: a constant, or Slices of
    the tensor itself (reflect, edge, wrap).
    """
    return rewrite(graph, _expand, _pad)


def expands_to_concats(graph: Graph) -> Graph:
    """The same of Expand alone."""
    return rewrite(graph, _expand)


def _replace(rewriter: Rewriter, node: Node, build: Callable[[Step, str], str]) -> bool:
    """Replaces the node by what `build` makes of its first input."""
    nodes: list[Node] = []

    def step(op: str, *inputs: str, **attrs: Attr) -> str:
        nodes.append(rewriter.part(node, op, inputs, f"{node.output}/{op.lower()}", **attrs))
        return nodes[-1].output

    build(step, node.inputs[0])
    last = nodes.pop()
    rewriter.replace(node, *nodes, Node(last.op, last.inputs, node.outputs, last.attrs, node.name, node.sources))
    return True


def _expand(rewriter: Rewriter, node: Node) -> bool:
    shape = SHAPE(node) if node.op == "Expand" else ()
    before = (*(1 for _ in shape[len(rewriter.shape(node.inputs[0])) :]), *rewriter.shape(node.inputs[0]))
    repeated = [axis for axis, extent in enumerate(shape) if extent != before[axis]]
    moves = repeated or before != rewriter.shape(node.inputs[0])
    if not moves or max((shape[axis] for axis in repeated), default=1) > MOST_COPIES or not all(shape):
        return False

    def build(step: Step, x: str) -> str:
        if before != rewriter.shape(x):
            x = step("Reshape", x, shape=before)
        for axis in repeated:
            x = step("Concat", *(x,) * shape[axis], axis=axis)
        return x

    return _replace(rewriter, node, build)


def _pad(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Pad" or not only_float(rewriter, node.inputs[0]) or not rewriter.types[node.output].size:
        return False
    shape, pads, mode = list(rewriter.shape(node.inputs[0])), SIDES(node), PAD_MODE(node)
    value, rank = VALUE(node), len(shape)
    if not any(pads) or not rewriter.types[node.inputs[0]].size or not isfinite(value):
        return False

    def cut(step: Step, x: str, axis: int, first: int, count: int, by: int = 1) -> str:
        return step("Slice", x, axes=(axis,), starts=(first,), ends=(max(first + count * by, -1),), steps=(by,))

    def beside(step: Step, x: str, axis: int, count: int, *, behind: bool) -> list[str]:
        extent = shape[axis]
        match mode:
            case "constant":
                block = np.full([count if at == axis else n for at, n in enumerate(shape)], value, np.float32)
                return [rewriter.constant(block, f"{node.output}/constant")]
            case "edge":
                return [cut(step, x, axis, extent - 1 if behind else 0, 1)] * count
            case "reflect":
                return [cut(step, x, axis, extent - 2 if behind else count, count, -1)]
            case _:
                whole, rest = divmod(count, extent)
                part = [cut(step, x, axis, 0 if behind else extent - rest, rest)] if rest else []
                return [x] * whole + part if behind else part + [x] * whole

    def build(step: Step, x: str) -> str:
        for axis in range(rank):
            begin, end = pads[axis], pads[rank + axis]
            if min(begin, end) < 0:
                first, count = max(-begin, 0), shape[axis] + min(begin, 0) + min(end, 0)
                x, shape[axis] = cut(step, x, axis, first, count), count
            parts = beside(step, x, axis, begin, behind=False) if begin > 0 else []
            parts += [x, *(beside(step, x, axis, end, behind=True) if end > 0 else [])]
            if len(parts) > 1:
                x = step("Concat", *parts, axis=axis)
            shape[axis] += max(begin, 0) + max(end, 0)
        return x

    return _replace(rewriter, node, build)


MOST_SLICES = 256
"""The most runs of indices; a Gather with more stays."""


def gathers_to_slices(graph: Graph) -> Graph:
    """Gather with constant indices becomes a Slice per run of equidistant ones, a Concat, and a Reshape."""
    return rewrite(graph, _slices, *TIDY)


def _slices(rewriter: Rewriter, node: Node) -> bool:
    indices = rewriter.constants.get(node.inputs[1]) if node.op == "Gather" else None
    if indices is None or not indices.size or node.inputs[0] in rewriter.constants:
        return False
    x, axis = node.inputs[0], AXIS(node)
    runs = _runs((indices.reshape(-1) % rewriter.shape(x)[axis]).tolist())
    if len(runs) > MOST_SLICES:
        return False
    nodes = [
        rewriter.part(
            node, "Slice", (x,), f"{node.output}/run",
            axes=(axis,), starts=(first,), ends=(max(first + count * step, -1),), steps=(step,),
        )
        for first, count, step in runs
    ]  # fmt: skip
    if len(nodes) > 1:
        parts = tuple(each.output for each in nodes)
        nodes.append(rewriter.part(node, "Concat", parts, f"{node.output}/runs", axis=axis))
    rewriter.replace(node, *nodes, replace(rewriter.back(node, nodes[-1].output), name=node.name))
    return True


def _runs(indices: list[int]) -> list[tuple[int, int, int]]:
    """(first, count, step) of runs of equidistant indices; a repeated index starts a new run."""
    found: list[tuple[int, int, int]] = []
    for index in indices:
        if found:
            first, count, step = found[-1]
            distance = index - (first + (count - 1) * step)
            if distance and (count == 1 or distance == step):
                found[-1] = first, count + 1, distance
                continue
        found.append((index, 1, 1))
    return found
