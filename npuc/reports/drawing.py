"""The network drawing, from top to bottom: a box for each node of the model, with regions outlined.

Rows by the longest path from an input, few crossings, short edges: the three steps of Sugiyama, Tagawa and Toda,
"Methods for Visual Understanding of Hierarchical System Structures" (1981): layers, their order by barycentres,
positions. An edge over several rows gets a place in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from npuc.account import BORDER, FOLDED, HOST, NPU, SPLIT, Entry, fate
from npuc.frozen import frozen
from npuc.ir import Node, topological
from npuc.reports.svg import picture, tag, text, with_title
from npuc.text.escaping import Shown
from npuc.text.terminal import count, short

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


BOX_WIDTH, BOX_HEIGHT = 150, 34
GAP_X, GAP_Y = 26, 22
MARGIN, OUTLINE = 12, 8
"""Around the drawing; around a region."""


@frozen
class Box:
    """A node of the drawn graph; what it reads is referred to by the names of other boxes."""

    name: str
    title: str
    hint: str
    """What became of it, a fact a line."""
    reads: tuple[str, ...]
    shades: Mapping[str, float]
    """Shade by quantity: 0 (nothing) to 1 (the largest of all)."""
    layer: int | None = None
    """Index into the report's layers."""
    region: str = ""
    """The part of the program to which it belongs."""


def drawing(boxes: Sequence[Box]) -> str:
    """The graph as a picture; the shades become style properties among which the page selects."""
    placed = layering({box.name: box.reads for box in boxes})
    corners = {tensor: (_x(column), _y(row)) for tensor, (row, column) in placed.boxes.items()}
    edges = [
        _edge(corners[above], [(_x(column), _y(row)) for row, column in passed], corners[below])
        for (above, below), passed in placed.edges.items()
    ]
    width = max((x for x, _ in corners.values()), default=0) + BOX_WIDTH + MARGIN
    height = max((y for _, y in corners.values()), default=0) + BOX_HEIGHT + MARGIN
    passing = [_x(column) + BOX_WIDTH / 2 + MARGIN for passed in placed.edges.values() for _, column in passed]
    outlines = [
        _outline(name, [corners[box.name] for box in members]) for name, members in _regions(boxes).items()
    ]
    drawn = [_box(box, *corners[box.name]) for box in boxes]
    return picture(max([width, *passing]), height, "The network", [*outlines, *edges, *drawn])


def _x(column: float) -> float:
    return MARGIN + column * (BOX_WIDTH + GAP_X)


def _y(row: int) -> float:
    return MARGIN + row * (BOX_HEIGHT + GAP_Y)


def _regions(boxes: Sequence[Box]) -> dict[str, list[Box]]:
    """The boxes of each region; empty if there is only one."""
    found: dict[str, list[Box]] = {}
    for box in boxes:
        found.setdefault(box.region, []).append(box)
    return found if len(found) > 1 else {}


def _outline(name: str, corners: Sequence[tuple[float, float]]) -> str:
    """An outline around the consecutive boxes of a region, with its name as a tooltip."""
    left, top = min(x for x, _ in corners) - OUTLINE, min(y for _, y in corners) - OUTLINE
    width = max(x for x, _ in corners) + BOX_WIDTH + OUTLINE - left
    height = max(y for _, y in corners) + BOX_HEIGHT + OUTLINE - top
    return with_title(tag("rect", x=left, y=top, width=width, height=height, rx=8, class_="region"), name)


def _edge(above: tuple[float, float], passed: Sequence[tuple[float, float]], below: tuple[float, float]) -> str:
    """A line from the bottom of one box to the top of another, through the rows in between."""
    middle = BOX_WIDTH / 2
    stops = [(above[0], above[1] + BOX_HEIGHT)]
    stops += [stop for x, y in passed for stop in ((x, y), (x, y + BOX_HEIGHT))]
    stops.append(below)
    path = f"M{_number(stops[0][0] + middle)} {_number(stops[0][1])}"
    for number, ((x1, y1), (x2, y2)) in enumerate(pairwise(stops)):
        half = _number((y1 + y2) / 2)
        start, end = _number(x1 + middle), _number(x2 + middle)
        path += f" V{_number(y2)}" if number % 2 else f" C{start} {half} {end} {half} {end} {_number(y2)}"
    return tag("path", d=path, class_="edge")


def _number(value: float) -> str:
    return f"{round(value, 1):g}"


def _box(box: Box, x: float, y: float) -> str:
    style = ";".join(f"--{key}:{100 * value:.0f}%" for key, value in box.shades.items())
    parts = [
        tag("rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=4, style=style),
        text(short(box.title, 22), x=x + BOX_WIDTH / 2, y=y + 14, class_="middle"),
        text(short(box.name, 24), x=x + BOX_WIDTH / 2, y=y + 27, class_="middle note"),
    ]
    if box.layer is not None:
        parts.append(text("+", x=x + BOX_WIDTH - 12, y=y + 13, class_="fold"))
    focus = 0
    return with_title(
        "".join(parts), box.hint, class_="box", data_layer=box.layer, data_node=box.name, tabindex=focus
    )


Report = Mapping[str, Any]
SHADES = {"cycles": "cycles", "bytes": "bytes", "error": "SQNR", "place": "place"}
"""Quantities by which boxes may be coloured, with their labels on the page."""
PLACE = {HOST: 1.0, SPLIT: 0.5, BORDER: 0.5}
"""The shade of a box by where the node runs; 0 for others."""


def boxes_of(entries: Sequence[Entry], layers: Sequence[Report]) -> list[Box]:
    """The boxes, each after all that it reads. entries: the account; layers: of the report."""
    written = {name for each in entries for name in each.tensors}
    known = {name for each in entries for name in each.reads} - written
    nodes = [Node(each.op, each.reads, tuple(each.tensors), name=each.node) for each in entries]
    by_name, shades = {each.node: each for each in entries}, _shades(layers)
    ordered = [by_name[node.name] for node in topological(nodes, known)]
    makers = {name: each.node for each in entries if each.place != FOLDED for name in each.tensors}
    most = max((each.cycles for each in entries), default=0)
    found: list[Box] = []
    for each in ordered:
        if each.place == FOLDED:
            continue
        own = {key: max(values[at] for at in each.layers) for key, values in shades.items() if each.layers}
        own |= {"cycles": each.cycles / most} if most else {}
        reads = tuple(makers[name] for name in each.reads if name in makers)
        layer = each.layers[0] if each.layers else None
        hint = "\n".join(describe(each, layers))
        found.append(
            Box(each.node, each.op, hint, reads, own | {"place": PLACE.get(each.place, 0)}, layer, _region(each))
        )
    return found


def describe(entry: Entry, layers: Sequence[Report]) -> Iterator[str]:
    """What a node became, line by line: its fate, its layers, its tensors."""
    yield from fate(Shown(asdict(entry)))
    for at in entry.layers:
        layer = layers[at]
        moved = f", {count(layer['bytes'])} bytes" if layer.get("bytes") else ""
        noise = "" if layer["sqnr_db"] is None else f", {layer['sqnr_db']:.1f} dB"
        yield f"layer {layer['name']}: {layer['op']}, {count(layer['cycles'])} cycles{moved}{noise}"
        if layer.get("accumulator_bound") is not None:
            yield f"  accumulators stay within {count(layer['accumulator_bound'])}"
    for name, now in entry.tensors.items():
        yield f"tensor {name}: " + (f"now {now}" if now else "not kept")


def by_node(layers: Sequence[Report]) -> dict[str, int]:
    """The index of the layer that contains each node of the model."""
    return {node: number for number, layer in enumerate(layers) for node in layer["nodes"]}


def _region(entry: Entry) -> str:
    """The part of the program to which a node belongs."""
    place = "on the NPU" if entry.place in (NPU, SPLIT) else "on the host"
    return f"{entry.paths[0]} {place}" if entry.paths else ""


def _shades(layers: Sequence[Report]) -> dict[str, list[float]]:
    """The shades of layers, for each known quantity: 0 (nothing) to 1 (the largest of all)."""
    found: dict[str, list[float]] = {}
    values = [layer.get("bytes") or 0 for layer in layers]
    if any(values):
        found["bytes"] = [value / max(values) for value in values]
    decibels = [layer["sqnr_db"] for layer in layers]
    known = [each for each in decibels if each is not None]
    if known:
        noisiest = min(known)
        found["error"] = [0.0 if each is None else max(1 - (each - noisiest) / 40, 0.0) for each in decibels]
    return found
