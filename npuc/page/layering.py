"""Layout of a graph's boxes: rows by the longest path from an input, few crossings, short edges.

The three steps of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures"
(1981): layers, their order by barycentres, positions. An edge over several rows gets a place in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from npuc.frozen import frozen

SWEEPS = 8
NARROW = 0.3
"""The width of an edge that crosses a row, in columns."""
MOST_PASSES = 4000
"""The most crossings of rows by edges that get places of their own: beyond, layout takes too long."""

Vertex = str | tuple[str, str, int]
"""A box, or the point where an edge (from, to) crosses a row."""


@frozen
class Layering:
    """Row and column of each box, and of the points on each edge, from top to bottom."""

    boxes: Mapping[str, tuple[int, float]]
    edges: Mapping[tuple[str, str], tuple[tuple[int, float], ...]]


def layering(reads: Mapping[str, Sequence[str]]) -> Layering:
    """The layout of boxes given in an order in which each follows all it reads; unknown names are ignored."""
    rank: dict[str, int] = {}
    for name, read in reads.items():
        rank[name] = 1 + max((rank[each] for each in read if each in rank), default=-1)
    edges = [(each, name) for name, read in reads.items() for each in dict.fromkeys(read) if each in rank]
    passed = sum(rank[below] - rank[above] - 1 for above, below in edges)
    paths = {edge: _path(edge, rank if passed <= MOST_PASSES else {}) for edge in edges}
    rows: list[list[Vertex]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    above: dict[Vertex, list[Vertex]] = {}
    below: dict[Vertex, list[Vertex]] = {}
    for name, row in rank.items():
        rows[row].append(name)
    for path in paths.values():
        for each in path:
            if isinstance(each, tuple):
                rows[each[2]].append(each)
        for first, second in pairwise(path):
            above.setdefault(second, []).append(first)
            below.setdefault(first, []).append(second)
    at = _columns(rows, above, below)
    boxes = {name: (rank[name], at[name]) for name in rank}
    points = {
        edge: tuple((each[2], at[each]) for each in path if isinstance(each, tuple))
        for edge, path in paths.items()
    }
    return Layering(boxes, points)


def _path(edge: tuple[str, str], rank: Mapping[str, int]) -> list[Vertex]:
    above, below = edge
    passed = range(rank[above] + 1, rank[below]) if rank else ()
    return [above, *((above, below, row) for row in passed), below]


def _columns(
    rows: Sequence[Sequence[Vertex]],
    above: Mapping[Vertex, Sequence[Vertex]],
    below: Mapping[Vertex, Sequence[Vertex]],
) -> dict[Vertex, float]:
    """Columns near the mean of the neighbours, by sweeps down and up, without overlap; the first is 0."""
    at: dict[Vertex, float] = {}
    for row in rows:
        at |= _spread([(float(number), each) for number, each in enumerate(row)])
    for sweep in range(SWEEPS):
        downward = sweep % 2 == 0
        neighbours = above if downward else below
        for row in rows if downward else reversed(rows):
            at |= _spread(
                [(_mean([at[other] for other in neighbours.get(each, ())], at[each]), each) for each in row]
            )
    least = min(at.values(), default=0.0)
    return {each: column - least for each, column in at.items()}


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _spread(wanted: list[tuple[float, Vertex]]) -> dict[Vertex, float]:
    """Columns of a row in the order of the wanted positions, without overlap and as close to them as possible."""
    found: list[tuple[float, Vertex]] = []
    ordered = sorted(wanted, key=lambda each: each[0])
    for column, each in ordered:
        least = found[-1][0] + (_width(found[-1][1]) + _width(each)) / 2 if found else column
        found.append((max(column, least), each))
    shift = _mean([got - asked for (got, _), (asked, _) in zip(found, ordered, strict=True)], 0.0)
    return {each: column - shift for column, each in found}


def _width(each: Vertex) -> float:
    return NARROW if isinstance(each, tuple) else 1.0
