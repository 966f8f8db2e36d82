"""Charts of the report: timeline, memory maps, roofline, histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import numpy as np

from npuc.ir import Array
from npuc.reports.svg import Bands, PlotScale, horizontal_axis, picture, tag, text, vertical_axis, with_title
from npuc.text.terminal import count, short
from npuc.view import BufferUse, Timeline

WIDTH = 1080
LEFT = 90
LANE = 26
MEMORY_HEIGHT = 200
MOSTLY_EMPTY = 8
"""A memory this many times as large as the bytes in use is drawn in parts."""
NAME = 28
"""The most characters of a name on a bar."""
LETTER, LINE = 6, 12
"""The usual width of a letter and the height of a line, in pixels."""

Layer = Mapping[str, Any]


def engines(timeline: Timeline, names: Sequence[str]) -> str:
    """A lane per engine with a bar per activity, over cycles; names: short ones of the report's layers."""
    lanes = timeline.engines
    scale = PlotScale(max(timeline.cycles, 1), LEFT, WIDTH - 20)
    bottom = 10 + LANE * len(lanes)
    parts = [horizontal_axis(scale, 6, bottom, "cycles")]
    for row, engine in enumerate(lanes):
        top = 10 + LANE * row
        parts.append(text(engine, x=LEFT - 8, y=top + 15, class_="label end"))
        for each in (each for each in timeline.activities if each.engine == engine):
            width = max(scale.at(each.end) - scale.at(each.start), 0.4)
            bar = tag(
                "rect", x=scale.at(each.start), y=top, width=width, height=LANE - 6, class_=f"busy series{row % 6}"
            )
            cost = f"{count(each.end - each.start)} cycles from {count(each.start)}"
            moved = f"\n{count(each.bytes)} bytes" if each.bytes else ""
            hint = f"{each.tensor or each.label}\n{each.label}\n{cost}{moved}"
            name = short(each.label if each.layer is None else names[each.layer], NAME)
            fits = LETTER * len(name) + 8 < width  # the page's script writes names anew, also cut ones
            label = text(name, x=scale.at(each.start) + 4, y=top + 14, class_="inside") if fits else ""
            parts.append(with_title(bar + label, hint, data_layer=each.layer, data_name=name))
    return picture(WIDTH, bottom + 34, "Timeline of the engines", parts)


def memory(
    timeline: Timeline, name: str, capacity: int, layers: Mapping[str, int], names: Mapping[str, str]
) -> str:
    """The buffers of a memory: cycles to the right, addresses upward.

    layers: layer index by tensor. names: of the model's tensors, by those that hold their values.
    """
    found = [each for each in timeline.buffers if each.memory == name]
    capacity = max(capacity, *(each.address + each.size for each in found), 0)
    across, up = PlotScale(max(timeline.cycles, 1), LEFT, WIDTH - 20), _addresses(found, capacity)
    parts = [
        horizontal_axis(across, 20, MEMORY_HEIGHT + 20, "cycles"),
        vertical_axis(up, LEFT, WIDTH - 20, "bytes"),
    ]
    bank = timeline.banks.get(name, 0)
    for edge in range(bank, capacity, bank) if bank and isinstance(up, PlotScale) else ():
        line = tag("line", x1=LEFT, x2=WIDTH - 20, y1=up.at(edge), y2=up.at(edge), class_="bank")
        parts.append(with_title(line, f"a bank begins at byte {count(edge)}"))
    parts += [
        _buffer(each, across, up, number, _layer(each, layers), names.get(each.label, each.label))
        for number, each in enumerate(found)
    ]
    return picture(WIDTH, MEMORY_HEIGHT + 54, f"What the {name} memory holds over time", parts)


def _layer(each: BufferUse, layers: Mapping[str, int]) -> int | None:
    """The layer that computes a buffer's tensor, or the first of several."""
    return next((layers[name] for name in (each.label, *each.label.split(", ")) if name in layers), None)


def _addresses(found: Sequence[BufferUse], capacity: int) -> PlotScale | Bands:
    """The address scale: all addresses, or only the used parts of a mostly empty memory."""
    used: list[tuple[float, float]] = []
    for first, last in sorted((each.address, each.address + each.size) for each in found):
        if used and first - used[-1][1] <= capacity / MOSTLY_EMPTY:
            used[-1] = used[-1][0], max(used[-1][1], last)
        else:
            used.append((first, last))
    if sum(last - first for first, last in used) * MOSTLY_EMPTY > capacity:
        return PlotScale(max(capacity, 1), MEMORY_HEIGHT + 20, 20)
    return Bands(tuple(used), MEMORY_HEIGHT + 20, 20)


def _buffer(
    each: BufferUse, across: PlotScale, up: PlotScale | Bands, number: int, layer: int | None, called: str
) -> str:
    left, top = across.at(each.start), up.at(each.address + each.size)
    width, height = max(across.at(each.end) - left, 0.6), max(up.at(each.address) - top, 0.6)
    bar = tag("rect", x=left, y=top, width=width, height=height, class_=f"buffer series{number % 6}")
    last = each.address + each.size - 1
    where = f"bytes {count(each.address)} to {count(last)}, cycles {count(each.start)} to {count(each.end)}"
    name = short(called, NAME) if height > 12 else None
    drawn = with_title(bar, f"{each.label}\n{where}", data_layer=layer, data_name=name)
    if each.used is None:
        return drawn
    begun = across.at(each.used)
    late = tag("rect", x=begun, y=top, width=left + width - begun, height=height, class_="late")
    hint = f"{each.label}\nlast used in cycle {count(each.used)}, freed {count(each.end - each.used)} cycles later"
    return drawn + with_title(late, hint, data_layer=layer)


def roofline(layers: Sequence[Layer], names: Sequence[str], peak: float, bandwidth: float) -> str:
    """MACs per cycle over MACs per byte, one point per layer, under the roof set by PEs and bus.

    names: short ones of the layers; those of the costliest that do not cover one another are shown.

    peak: MACs per cycle; bandwidth: bytes per cycle. Only layers with a byte count (`bytes`) are drawn.
    """
    points = [
        (layer["macs"] / layer["bytes"], layer["macs"] / layer["cycles"], number)
        for number, layer in enumerate(layers)
        if layer["macs"] and layer.get("bytes") and layer["cycles"]
    ]
    if not points:
        return ""
    least, most = min(x for x, _, _ in points), max(x for x, _, _ in points)
    ridge = peak / bandwidth
    left, right = 10 ** (log10(min(least, ridge)) - 0.3), 10 ** (log10(max(most, ridge)) + 0.3)
    low = min(min(y for _, y, _ in points), left * bandwidth) * 0.8
    across, up = PlotScale(right, LEFT, WIDTH - 20, left, True), PlotScale(peak * 1.5, 320, 20, low, True)
    roof = [(left, left * bandwidth), (ridge, peak), (right, peak)]
    line = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in roof)
    parts = [horizontal_axis(across, 20, 320, "MACs a byte"), vertical_axis(up, LEFT, WIDTH - 20, "MACs a cycle")]
    parts.append(tag("polyline", points=line, class_="roof"))
    longest = max(layers[number]["cycles"] for _, _, number in points)
    taken = [(across.at(ridge), up.at(peak) - 1, across.at(right), up.at(peak) + 1)]
    taken += [_circle(across.at(x), up.at(y), _radius(layers[number], longest)) for x, y, number in points]
    for x, y, number in sorted(points, key=lambda each: -layers[each[2]]["cycles"]):
        layer = layers[number]
        radius = _radius(layer, longest)
        dot = tag("circle", cx=across.at(x), cy=up.at(y), r=radius, class_="dot series0")
        parts.append(
            with_title(
                dot,
                f"{layer['name']}\n{x:.1f} MACs a byte, {y:.2f} MACs a cycle\n{count(layer['cycles'])} cycles",
                data_layer=number,
            )
        )
        parts += _label(short(names[number], NAME), across.at(x), up.at(y), radius, taken)
    return picture(WIDTH, 354, "Roofline", parts)


Area = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def _radius(layer: Layer, longest: int) -> float:
    return 3 + 9 * (layer["cycles"] / longest) ** 0.5


def _circle(x: float, y: float, radius: float) -> Area:
    return x - radius, y - radius, x + radius, y + radius


def _label(name: str, x: float, y: float, radius: float, taken: list[Area]) -> list[str]:
    """A name beside, above or below a point, in the first place free of all areas taken; none if there is none."""
    width, beside = LETTER * len(name), radius + 4
    middle = min(max(x - width / 2, 0), WIDTH - width)
    places = ((x + beside, y + 4), (x - beside - width, y + 4), (middle, y - beside), (middle, y + beside + 8))
    for left, bottom in places:
        area = (left, bottom - LINE, left + width, bottom)
        if left < 0 or area[2] > WIDTH or any(_meet(area, each) for each in taken):
            continue
        taken.append(area)
        return [text(name, x=left, y=bottom, class_="note inside")]
    return []


def _meet(a: Area, b: Area) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def at_limits(zero_point: int) -> Array:
    """Which of the 256 values of an int8 tensor are saturated: the limits, unless one of them stands for 0."""
    return (np.abs(np.arange(-127.5, 128)) > 127) & (np.arange(-128, 128) != zero_point)


def histogram(values: Array, zero_point: int) -> str:
    """Counts of the 256 values of an int8 tensor on a logarithmic scale, with saturated values highlighted."""
    limits = at_limits(zero_point)
    most = float(values.max()) or 1.0
    parts = [tag("line", x1=0, x2=256, y1=40, y2=40, class_="grid")]
    for at, number in enumerate(values.tolist()):
        if number:
            height = 2 + 36 * log10(1 + number) / log10(1 + most)
            kind = "limit" if limits[at] else "series0"
            parts.append(tag("rect", x=at, y=40 - height, width=1, height=height, class_=kind))
    return picture(256, 42, "Histogram of an int8 tensor", [with_title("".join(parts), "-128 to 127")])
