"""The network drawn from top to bottom: a box per layer, in rows by the longest way from an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npuc.page.svg import picture, tag, text, titled
from npuc.text import short

BOX_WIDTH, BOX_HEIGHT = 150, 34
GAP_X, GAP_Y = 26, 22


@dataclass(frozen=True)
class Box:
    """A layer: what it reads is named by the tensors of other boxes."""

    tensor: str
    title: str
    hint: str
    reads: tuple[str, ...]
    shades: Mapping[str, float]
    """By what the boxes may be coloured: 0 (nothing) to 1 (the most of all)."""
    layer: int | None = None
    """Of the report, by number."""


def drawing(boxes: Sequence[Box]) -> str:
    """The graph as a picture; the shades become style properties that the page chooses from."""
    placed = _placed(boxes)
    rows = max((row for row, _ in placed.values()), default=0) + 1
    columns = max((column for _, column in placed.values()), default=0) + 1
    corners = {
        tensor: (10 + column * (BOX_WIDTH + GAP_X), 10 + row * (BOX_HEIGHT + GAP_Y))
        for tensor, (row, column) in placed.items()
    }
    edges = [_edge(corners[name], corners[box.tensor]) for box in boxes for name in box.reads if name in corners]
    drawn = [_box(box, *corners[box.tensor]) for box in boxes]
    width, height = 20 + columns * (BOX_WIDTH + GAP_X) - GAP_X, 20 + rows * (BOX_HEIGHT + GAP_Y) - GAP_Y
    return picture(width, height, "The network's layers", [*edges, *drawn])


def _placed(boxes: Sequence[Box]) -> dict[str, tuple[int, float]]:
    """Row and column of each box: a row below all it reads, in the column of the first thing it reads if free."""
    found: dict[str, tuple[int, float]] = {}
    taken: set[tuple[int, float]] = set()
    for box in boxes:
        known = [found[name] for name in box.reads if name in found]
        row = max((row + 1 for row, _ in known), default=0)
        column = known[0][1] if known else 0
        while (row, column) in taken:
            column += 1
        found[box.tensor] = row, column
        taken.add(found[box.tensor])
    return found


def _edge(above: tuple[float, float], below: tuple[float, float]) -> str:
    """From the bottom of one box to the top of the other; over several rows it swings aside."""
    x1, y1 = above[0] + BOX_WIDTH / 2, above[1] + BOX_HEIGHT
    x2, y2 = below[0] + BOX_WIDTH / 2, below[1]
    aside = BOX_WIDTH / 2 + GAP_X / 2 if y2 - y1 > GAP_Y and x1 == x2 else 0
    middle = (y1 + y2) / 2
    if not aside:
        return tag("path", d=f"M{x1:g} {y1:g} C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}", class_="edge")
    side = x1 + aside
    return tag(
        "path",
        d=f"M{x1:g} {y1:g} C{side:g} {y1:g} {side:g} {y1:g} {side:g} {middle:g} S{side:g} {y2:g} {x2:g} {y2:g}",
        class_="edge",
    )


def _box(box: Box, x: float, y: float) -> str:
    style = ";".join(f"--{key}:{100 * value:.0f}%" for key, value in box.shades.items())
    parts = [
        tag("rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=4, style=style),
        text(short(box.title, 22), x=x + BOX_WIDTH / 2, y=y + 14, class_="middle"),
        text(short(box.tensor, 24), x=x + BOX_WIDTH / 2, y=y + 27, class_="middle note"),
    ]
    focus = None if box.layer is None else 0
    return titled("".join(parts), box.hint, class_="box", data_layer=box.layer, tabindex=focus)
