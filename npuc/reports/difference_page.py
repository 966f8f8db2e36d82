"""The page of a difference: totals, both networks next to each other, and every changed layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from npuc import __version__
from npuc.account import account_of, short_names
from npuc.frozen import frozen
from npuc.program import Program
from npuc.reports.difference import align, changes_line
from npuc.reports.drawing import Box, boxes_of, drawing
from npuc.reports.layers import figure_text, layers_of
from npuc.reports.svg import render
from npuc.text.escaping import Shown, escape_report, html_json
from npuc.text.terminal import count, short

Report = Mapping[str, Any]
MOST_LINES = 200
"""The most instructions shown per layer, removed and added ones each."""
SHADES = {"cycles": "difference in cycles", "bytes": "difference in bytes", "changed": "whether it changed"}


@frozen
class Side:
    """One of the two programs, with its name."""

    name: str
    program: Program


def difference_page(first: Side, second: Side, report: Report) -> str:
    """The page as one file. report: that of npuc.reports.difference."""
    from markupsafe import Markup

    sides = first, second
    groups = list(align(*(side.program.report["layers"] for side in sides)))
    names = short_names(layer["name"] for side in sides for layer in side.program.report["layers"])
    changed = {_key(each["layers"]): each for each in report["layers"]}
    keys = [_key([[layer["name"] for layer in layers] for layers in pair]) for pair in groups]
    shades = _shades(groups, [key in changed for key in keys])
    rows = [_row(number, changed[key], names) for number, key in enumerate(keys) if key in changed]
    found: dict[str, Any] = {
        "title": f"{first.name} and {second.name}",
        "lead": "; ".join(f"{side.name}: {_about(side.program)}" for side in sides),
        "names": [side.name for side in sides],
        "same": report["same"],
        "totals": [_total(key, *values) for key, values in report["totals"].items()],
        "outputs": report.get("outputs", ()),
        "networks": [(side.name, Markup(_draw_side(side, at, groups, shades))) for at, side in enumerate(sides)],
        "shades": [(key, name) for key, name in SHADES.items() if any(each.get(key) for each in shades)],
        "rows": rows,
        "data": Markup(
            html_json(escape_report({"layers": [{"name": _group_name(key), "nodes": []} for key in keys]}))
        ),
        "unchanged": count(report["unchanged_layers"]),
        "footer": f"npuc {__version__}; layers stand beside one another where they share nodes of the model.",
    }
    return render("difference.html", found)


def _about(program: Program) -> str:
    report = program.report
    return f"{report['target']}, machine {report['machine']}, {count(report['cycles'])} cycles"


def _total(key: str, a: Any, b: Any) -> dict[str, str]:
    """A line of the summary, with the change in per cent if both values are numbers."""
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (a, b))
    return {
        "key": key,
        "before": figure_text(a),
        "after": figure_text(b),
        "change": f"{100 * (b - a) / a:+.1f} %" if numbers and a else "",
    }


Pair = tuple[list[Report], list[Report]]


def _shades(groups: Sequence[Pair], changed: Sequence[bool]) -> list[dict[str, float]]:
    """The shades of each group's layers: their share of the largest difference."""
    found: list[dict[str, float]] = [{} for _ in groups]
    for key in ("cycles", "bytes"):
        apart = [abs(_sum(b, key) - _sum(a, key)) for a, b in groups]
        if any(apart):
            for shades, each in zip(found, apart, strict=True):
                shades[key] = each / max(apart)
    return [{**shades, "changed": float(each)} for shades, each in zip(found, changed, strict=True)]


def _sum(layers: Sequence[Report], key: str) -> int:
    return sum(layer.get(key) or 0 for layer in layers)


def _draw_side(side: Side, at: int, groups: Sequence[Pair], shades: Sequence[Mapping[str, float]]) -> str:
    """The network of one side; boxes carry the number of their group, so that a click selects it on both sides."""
    layers = list(layers_of(side.program.report))
    group_of = {layer["name"]: number for number, pair in enumerate(groups) for layer in pair[at]}
    boxes: list[Box] = []
    for box in boxes_of(account_of(side.program.manifest), layers):
        group = None if box.layer is None else group_of[layers[box.layer]["name"]]
        boxes.append(replace(box, layer=group, shades={} if group is None else shades[group]))
    return drawing(boxes)


def _key(layers: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The names of a group's layers in both programs."""
    return tuple(map(tuple, layers))


def _group_name(key: Sequence[Sequence[str]]) -> str:
    """A group in a link: its layers' names, the first program's if it has any."""
    return " + ".join(key[0] or key[1])


def _row(number: int, group: Report, names: Mapping[str, str]) -> dict[str, Any]:
    """A line of the table of layers."""
    before, after = (" + ".join(short(names[name], 40) for name in each) or "nothing" for each in group["layers"])
    a, b = group["cycles"]
    fields = {key: values for key, values in group["changed"].items() if key != "cycles"}
    return {
        "number": number,
        "name": before if before == after else f"{before} \u2192 {after}",
        "hint": ", ".join(group["nodes"]),
        "cycles": [count(a), count(b)],
        "change": {"text": f"{b - a:+,}" if a != b else "", "sort": b - a},
        "fields": [(key, figure_text(x), figure_text(y)) for key, (x, y) in fields.items()],
        "changed": changes_line(Shown(group)),
        "lines": [("-", each) for each in group["removed"][:MOST_LINES]]
        + [("+", each) for each in group["added"][:MOST_LINES]],
        "left_out": sum(max(len(group[key]) - MOST_LINES, 0) for key in ("removed", "added")),
    }
