"""Gather with constant indices, as slices."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops.attributes import AXIS
from npuc.passes.expansion.images import TIDY
from npuc.passes.rewriting.rules import Rewriter, rewrite

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
