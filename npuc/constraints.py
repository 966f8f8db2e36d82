"""Constraints on operators shared by targets: one function each, whose docstring is the sentence for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX, MIN

Constraint = Callable[[Graph, Node], str | None]
"""Describes how a node violates the constraint; None if it does not."""


SPLIT = "split the layer"
"""The remedy if an extent exceeds a field."""


def exceeding(shape: Sequence[int], most: Sequence[int]) -> str | None:
    """An extent of a map (N, C, H, W), or of an array that is broadcast to one, that exceeds its limit; or None.

    most: channels, rows, columns.
    """
    axes = zip(most[::-1], ("columns", "rows", "channels"), strict=True)
    for extent, (limit, name) in zip(shape[::-1], axes, strict=False):
        if extent > limit:
            return f"{extent:,} {name} exceed {limit:,}"
    return None


def constant_weights(graph: Graph, node: Node) -> str | None:
    """Weights and bias are constants."""
    missing = [name for name in node.inputs[1:] if name and name not in graph.constants]
    return f"'{missing[0]}' is computed at run time" if missing else None


def finite_constants(graph: Graph, node: Node) -> str | None:
    """Constants are finite."""
    wrong = [
        name for name in node.inputs if name in graph.constants and not np.isfinite(graph.constants[name]).all()
    ]
    return f"'{wrong[0]}' holds an infinity or NaN" if wrong else None


def clips_at_zero(_graph: Graph, node: Node) -> str | None:
    """A fused Clip has the lower limit 0 (ReLU6 and the like) and a positive upper limit."""
    if ACTIVATION(node) != "Clip":
        return None
    low, high = MIN(node), MAX(node)
    return None if low == 0 and high > 0 else f"it clips to {low}..{high}"
