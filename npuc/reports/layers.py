"""The layers of a report as rows, with derived figures and, if known, their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npuc.text.terminal import csv_table

Report = Mapping[str, Any]
SUMMED = ("cycles", "bytes", "macs")
"""Figures of layers that can be added up."""
TEXTS = {"nodes": "; ", "tile": "x", "tile_runner_up": "x"}
"""Columns with several values, and the separator between them in a file."""


def layers_of(report: Report, verification: Report | None = None) -> Iterator[dict[str, Any]]:
    """Every layer with its share of the cycles in %, its utilization (0..1), and its signal to noise in dB.

    verification: the report of `npuc verify`, if there is one.
    """
    checked: Sequence[Report] = verification["layers"] if verification else ()
    errors = {name: each for each in checked for name in (each.get("tensor"), each["name"])}
    total = max(report["cycles"], 1)
    for layer in report["layers"]:
        error = errors.get(layer["name"], {})
        ideal = layer.get("ideal_cycles")
        yield {
            **layer,
            "share": 100 * layer["cycles"] / total,
            "utilization": ideal / layer["cycles"] if ideal and layer["cycles"] else None,
            "sqnr_db": error.get("sqnr_db"),
            "single_db": (error.get("single") or {}).get("sqnr_db"),
        }


def as_csv(layers: Sequence[Report]) -> str:
    """A line per layer, and a column for every number or text that occurs in one."""
    keys = dict.fromkeys(key for layer in layers for key, value in layer.items() if _field(key, value) is not None)
    rows = [[_field(key, layer.get(key)) for key in keys] for layer in layers]
    return csv_table(list(keys), rows)


def _field(key: str, value: Any) -> int | float | str | None:
    match value:
        case list() if key in TEXTS:
            return TEXTS[key].join(map(str, value))
        case int() | float() | str():
            return value
        case _:
            return None
