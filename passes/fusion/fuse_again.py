"""Repeats the last fusions, for operators made by a target's own passes."""

from __future__ import annotations

from npuc.ir import Graph
from npuc.passes.fusion.fuse_activation import fuse_activation
from npuc.passes.fusion.mark_residual_add import mark_residual_add


def fuse_again(graph: Graph) -> Graph:
    """Fuses activations into new convolutions and sums, and marks sums that can end a new convolution."""
    return mark_residual_add(fuse_activation(graph))
