"""Constraints on operators shared by targets: one function each, whose docstring is the sentence for the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from npuc.errors import Problem
from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, COUNT_INCLUDE_PAD, KERNEL_SHAPE, MAX, MIN
from npuc.ops.windows import window_of

Constraint = Callable[[Graph, Node], str | None]
"""Describes how a node violates the constraint; None if it does not."""


@frozen
class Support:
    """An operator that a machine runs: in which form, its constraints, and the remedy for a violated one."""

    runs_as: str
    constraints: tuple[Constraint, ...] = ()
    remedy: str = ""


Rewritten = Mapping[str, tuple[str, str]]
"""Operators that passes replace: what runs in their place, and when."""


def refuse(
    node: Node, reason: str, *, remedy: str, limit: str | None = None, tensor: str | None = None
) -> Problem:
    """The problem (E202) of a node that a machine does not run."""
    return Problem("E202", reason, node.source, node.op, tensor, limit, remedy)


def unknown(node: Node, known: Iterable[str], rewritten: Rewritten, remedy: str) -> Problem:
    """Why a machine does not run an operator that it does not have. known: the operators to name instead."""
    if node.op in rewritten:
        return refuse(node, "no rewriting applies to it", limit=rewritten[node.op][1], remedy=remedy)
    return refuse(node, "the machine has no such operator", limit=", ".join(known), remedy=remedy)


ALIKE: Mapping[Constraint, str] = {}


def violation(
    graph: Graph,
    node: Node,
    constraints: Iterable[Constraint],
    remedy: str,
    remedies: Mapping[Constraint, str] = ALIKE,
) -> Problem | None:
    """The first constraint that a node violates; None if it violates none. remedies: in place of `remedy`."""
    for constraint in constraints:
        found = constraint(graph, node)
        if found is not None:
            told = remedies.get(constraint, remedy)
            return refuse(node, found, limit=sentence(constraint), tensor=node.inputs[0], remedy=told)
    return None


def sentence(constraint: Constraint) -> str:
    """A constraint in words."""
    return (constraint.__doc__ or "").strip()


def table(supported: Mapping[str, Support], rewritten: Rewritten) -> list[dict[str, str]]:
    """The rows of a supported-operators table: operators that a machine runs, then those that passes replace."""
    rows = [(op, row.runs_as, " ".join(map(sentence, row.constraints))) for op, row in supported.items()]
    rows += [(op, f"{place} (rewritten)", when) for op, (place, when) in rewritten.items()]
    return [{"op": op, "runs_as": place, "constraints": constraints} for op, place, constraints in rows]


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


def slope_per_channel(graph: Graph, node: Node) -> str | None:
    """The slope is a constant: one number, or one per channel."""
    slope, shape = graph.constants.get(node.inputs[1]), graph.shape(node.inputs[0])
    if slope is None:
        return f"'{node.inputs[1]}' is computed at run time"
    aligned = (1,) * (len(shape) - slope.ndim) + slope.shape
    fits = slope.size == 1 or (len(shape) > 1 and slope.size == shape[1] == aligned[1])
    return None if fits else f"the slope's shape is {list(slope.shape)}"


def finite_constants(graph: Graph, node: Node) -> str | None:
    """Constants are finite."""
    wrong = [
        name for name in node.inputs if name in graph.constants and not np.isfinite(graph.constants[name]).all()
    ]
    return f"'{wrong[0]}' holds an infinity or NaN" if wrong else None


def whole_windows(graph: Graph, node: Node) -> str | None:
    """An average is over a whole window: no padding, or padding that counts (count_include_pad = 1)."""
    if node.op.startswith("Global"):
        return None
    window = window_of(node, KERNEL_SHAPE(node))
    over = window.overhang(graph.shape(node.inputs[0])[2:], graph.shape(node.output)[2:])
    padded = any(window.begins) or max(over) > 0
    beyond = any(end > given for end, given in zip(over, window.ends, strict=True))
    if padded and (beyond or not COUNT_INCLUDE_PAD(node)):
        return f"the window reaches into padding of {list(window.begins)} and {[max(end, 0) for end in over]}"
    return None


def clips_at_zero(_graph: Graph, node: Node) -> str | None:
    """A fused Clip has the lower limit 0 (ReLU6 and the like) and a positive upper limit."""
    if ACTIVATION(node) != "Clip":
        return None
    low, high = MIN(node), MAX(node)
    return None if low == 0 and high > 0 else f"it clips to {low}..{high}"
