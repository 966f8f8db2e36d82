"""Separates limits that a saturating ReLU cannot express from the operator they were fused into."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX, MIN
from npuc.passes.rewriting.rules import Rewriter, rewrite


def separate_clips(graph: Graph) -> Graph:
    """A fused Clip with a lower limit other than 0, or without room above it, becomes a node of its own again.

    For machines whose fused activation is a ReLU, which saturation turns into a ReLU6.
    """
    return rewrite(graph, _separate)


def _separate(rewriter: Rewriter, node: Node) -> bool:
    if ACTIVATION(node) != "Clip" or MIN(node) == 0 < MAX(node):
        return False
    limits = {key: node.attrs[key] for key in ("min", "max") if key in node.attrs}
    attrs = {key: value for key, value in node.attrs.items() if key not in ("activation", *limits)}
    free = rewriter.fresh(f"{node.output}/free")
    own = node.sources[-1:]  # fusing appended the Clip's: if the machine refuses it, the operator still runs
    clip = Node("Clip", (free,), node.outputs, limits, f"{node.name}/clip", own)
    rewriter.replace(node, replace(node, outputs=(free,), attrs=attrs), clip)
    return True
