"""The last fusions once more, for operators that a target's own passes made."""

from __future__ import annotations

from npuc.ir import Graph
from npuc.passes.fusion.fuse_activation import fuse_activation
from npuc.passes.fusion.mark_residual_add import mark_residual_add


def fuse_again(graph: Graph) -> Graph:
    """Activations become part of new convolutions and sums; sums are marked that a new convolution can end."""
    return mark_residual_add(fuse_activation(graph))
