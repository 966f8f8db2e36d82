"""SVG elements as escaped text, and pages from templates: one file each, with embedded style and script.

Colours and fonts of the elements come from the page's style sheet, by class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from math import ceil, floor, inf, log10
from typing import Any, ClassVar

from npuc.frozen import frozen
from npuc.text.escaping import html, terminal_lines
from npuc.text.terminal import count

LETTERS = 10
"""The height of a value at an axis."""


def tag(name: str, content: str | Iterable[str] = "", **attributes: object) -> str:
    """An element; underscores in attribute names become hyphens, a trailing one is dropped; None is left out.

    >>> tag("rect", x=1, y=2.5, class_="bar")
    '<rect x="1" y="2.5" class="bar"/>'
    """
    inner = content if isinstance(content, str) else "".join(content)
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def text(content: str, **attributes: object) -> str:
    """A text element."""
    return tag("text", html(content), **attributes)


def with_title(content: str, hint: str, **attributes: object) -> str:
    """A group with a tooltip."""
    return tag("g", tag("title", html(hint)) + content, **attributes)


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def picture(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A drawing of this size, which scales or scrolls on narrow screens."""
    box = f"0 0 {_number(float(width))} {_number(float(height))}"
    return tag("svg", parts, viewBox=box, width=width, height=height, role="img", aria_label=label)


@frozen
class PlotScale:
    """A scale from 0 or a power of ten to `most`, on positions from `start` to `end`.

    >>> PlotScale(2, 0, 1).ticks, PlotScale(2, 0, 1, whole=True).ticks
    ([0.0, 0.5, 1.0, 1.5, 2.0], [0.0, 1.0, 2.0])
    """

    most: float
    start: float
    end: float
    least: float = 0.0
    logarithmic: bool = False
    whole: bool = False
    """Whether values, and thus ticks, are integers."""

    def at(self, value: float) -> float:
        """The position of a value."""
        if self.logarithmic:
            low, high = log10(self.least), log10(self.most)
            share = (log10(max(value, self.least)) - low) / (high - low or 1)
        else:
            share = (value - self.least) / ((self.most - self.least) or 1)
        return self.start + (self.end - self.start) * share

    @property
    def ticks(self) -> list[float]:
        """Round values, about five of them, or the powers of ten."""
        if self.logarithmic:
            return [10.0**power for power in range(ceil(log10(self.least)), floor(log10(self.most)) + 1)]
        span = self.most - self.least
        if span <= 0:
            return [self.least]
        step = 10.0 ** floor(log10(span / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
        step = max(step, 1.0) if self.whole else step
        return [step * number for number in range(ceil(self.least / step), floor(self.most / step + 1e-9) + 1)]


@frozen
class Bands:
    """A scale of several intervals on positions from `start` to `end`, with GAP between intervals."""

    intervals: tuple[tuple[float, float], ...]
    """In order and disjoint."""
    start: float
    end: float

    GAP: ClassVar[float] = 12

    def at(self, value: float) -> float:
        """The position of a value inside an interval."""
        length = sum(high - low for low, high in self.intervals) or 1
        gap = self.GAP if self.end > self.start else -self.GAP
        width = self.end - self.start - gap * (len(self.intervals) - 1)
        below = [max(min(value, high) - low, 0) for low, high in self.intervals]
        gaps = sum(value >= low for low, _ in self.intervals[1:])
        return self.start + gap * gaps + width * sum(below) / length

    @property
    def ticks(self) -> list[float]:
        """The ends of the intervals."""
        return [edge for interval in self.intervals for edge in interval]


def short_number(value: float) -> str:
    """A number for an axis.

    >>> [short_number(value) for value in (0, 0.5, 20480, 1500000)]
    ['0', '0.5', '20.5k', '1.5M']
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def horizontal_axis(scale: PlotScale, top: float, bottom: float, unit: str) -> str:
    """Vertical grid lines with their values under them, and the unit at the end."""
    lines = [
        tag("line", x1=scale.at(value), x2=scale.at(value), y1=top, y2=bottom, class_="grid")
        for value in scale.ticks
    ]
    labels = [
        text(short_number(value), x=scale.at(value), y=bottom + 14, class_="tick middle") for value in scale.ticks
    ]
    return "".join([*lines, *labels, text(unit, x=scale.end, y=bottom + 28, class_="tick end")])


def vertical_axis(scale: PlotScale | Bands, left: float, right: float, unit: str) -> str:
    """Horizontal grid lines, those that are apart with their values at the left, and the unit above."""
    lines = [
        tag("line", x1=left, x2=right, y1=scale.at(value), y2=scale.at(value), class_="grid")
        for value in scale.ticks
    ]
    labels, free = list[str](), inf
    for value in scale.ticks:
        if scale.at(value) <= free:
            labels.append(text(short_number(value), x=left - 6, y=scale.at(value) + 4, class_="tick end"))
            free = scale.at(value) - LETTERS
    return "".join([*lines, *labels, text(unit, x=left, y=scale.end - 8, class_="tick")])


def render(template: str, values: Mapping[str, Any]) -> str:
    """The page of a template in html/; text is escaped, Markup is not."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    loader = FunctionLoader(_asset)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_finalize
    )
    environment.filters["count"] = count
    style, script = (Markup(_asset(name)) for name in ("style.css", "script.js"))
    return environment.get_template(template).render({**values, "style": style, "script": script})


def _finalize(value: object) -> object:
    """A value as a template prints it; invisible characters in strings are escaped."""
    return terminal_lines(value) if type(value) is str else value


def _asset(name: str) -> str:
    return (files("npuc.reports") / "html" / name).read_text(encoding="utf-8")
