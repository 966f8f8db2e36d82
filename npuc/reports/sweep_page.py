"""The page of a sweep: cycles against each cost with the Pareto front, and every point in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npuc import __version__
from npuc.reports.svg import PlotScale, horizontal_axis, picture, render, tag, vertical_axis, with_title
from npuc.reports.tables import COST_NAMES, Column, filled_columns, points_columns, problem_line
from npuc.text.escaping import escape_report
from npuc.text.terminal import count

Report = Mapping[str, Any]
WIDTH, HEIGHT, LEFT = 1080, 340, 70
LOGARITHMIC = 30
"""The ratio of largest to smallest value above which an axis is logarithmic."""


def sweep_page(report: Report) -> str:
    """The page as one file."""
    from markupsafe import Markup

    from npuc.reports.comparison import tells

    points = report["points"]
    told_of = {cost: [point for point in points if tells(point, cost)] for cost in report["costs"]}
    charts = [
        (COST_NAMES.get(cost, cost), Markup(scatter(drawn, cost))) for cost, drawn in told_of.items() if drawn
    ]
    columns = filled_columns(points, points_columns(report))
    axes = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in report["grid"].items())
    return render(
        "sweep.html",
        {
            "title": f"{report['model']} on {report['target']}",
            "lead": f"machine {report['machine']} with {axes}: {count(len(points))} points",
            "charts": charts,
            "columns": columns,
            "rows": [{"front": bool(each["front"]), "cells": [_cell(each, column) for column in columns]}
                     for each in points],
            "refused": [
                f"{point['machine']}: {problem_line(problem)}"
                for point in escape_report(report)["points"]
                for problem in point["errors"]
            ],
            "footer": f"npuc {__version__}; cycles are those of each machine's cycle model.",
        },
    )  # fmt: skip


def scatter(points: Sequence[Report], cost: str) -> str:
    """Cycles over a cost, one dot per point; the front is joined by steps and highlighted."""
    from npuc.reports.comparison import price

    across = _scale([price(each, cost) for each in points], LEFT, WIDTH - 20)
    up = _scale([each["cycles"] for each in points], HEIGHT - 40, 24)
    best = sorted((price(each, cost), each["cycles"]) for each in points if cost in each["front"])
    parts = [
        horizontal_axis(across, 24, HEIGHT - 40, COST_NAMES.get(cost, cost)),
        vertical_axis(up, LEFT, WIDTH - 20, "cycles"),
        tag("polyline", points=_steps(best, across, up), class_="roof"),
    ]
    for each in sorted(points, key=lambda each: cost in each["front"]):
        x, y = across.at(price(each, cost)), up.at(each["cycles"])
        dot = tag("circle", cx=x, cy=y, r=6, class_="dot series1" if cost in each["front"] else "dot series0")
        hint = f"{each['machine']}\n{count(each['cycles'])} cycles\n{count(each['peak_bytes'])} bytes at the peak"
        parts.append(with_title(dot, hint))
    return picture(WIDTH, HEIGHT, f"Cycles against {COST_NAMES.get(cost, cost)}", parts)


def _scale(values: Sequence[float], start: float, end: float) -> PlotScale:
    """A scale from slightly below the least value to slightly above the largest."""
    low, high = min(values), max(values)
    if low > 0 and high / low > LOGARITHMIC:
        return PlotScale(high * 1.3, start, end, low / 1.3, True)
    margin = 0.08 * (high - low) or 0.1 * high or 1.0
    return PlotScale(
        high + margin, start, end, max(low - margin, 0.0), whole=all(isinstance(each, int) for each in values)
    )


def _steps(best: Sequence[tuple[float, int]], across: PlotScale, up: PlotScale) -> str:
    """The step line below which there is no point."""
    corners: list[tuple[float, float]] = []
    for paid, cycles in best:
        corners += [(paid, corners[-1][1])] if corners else []
        corners.append((paid, cycles))
    return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in corners)


def _cell(point: Report, column: Column) -> dict[str, Any]:
    """A table cell: text, sort key, and whether it is a number."""
    value = column.value(point)
    match value:
        case None if column.key == "front":
            return {"text": "", "sort": None, "numeric": False}
        case None:
            return {"text": "-", "sort": "-1", "numeric": True}
        case bool() | str():
            return {"text": str(value), "sort": None, "numeric": False}
        case float():
            return {"text": f"{value:.3f}", "sort": value, "numeric": True}
        case _:
            return {"text": count(value), "sort": value, "numeric": True}
