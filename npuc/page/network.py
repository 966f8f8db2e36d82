"""The network drawing, from top to bottom: a box per node, with regions outlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from npuc.frozen import frozen
from npuc.page.layering import layering
from npuc.page.svg import picture, tag, text, titled
from npuc.text.terminal import short

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
    return titled(tag("rect", x=left, y=top, width=width, height=height, rx=8, class_="region"), name)


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
    focus = 0
    return titled("".join(parts), box.hint, class_="box", data_layer=box.layer, data_node=box.name, tabindex=focus)
