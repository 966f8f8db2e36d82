"""The layers of a report: as rows with derived figures, and laid over the model for viewers of ONNX files.

Source: Model Explorer, custom node data (node_data_builder): results by graph and node, colours between the least
and the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npuc.account import Entry
from npuc.frontend.origins import file_nodes
from npuc.text.terminal import csv_table

if TYPE_CHECKING:
    import onnx


Report = Mapping[str, Any]
SUMMED = ("cycles", "bytes", "macs")
"""Figures of layers that can be added up."""
TEXTS = {"nodes": "; ", "tile": "x", "tile_runner_up": "x"}
"""Columns with several values, and the separator between them in a file."""


def layers_of(report: Report, verification: Report | None = None) -> Iterator[dict[str, Any]]:
    """Every layer with its share of the cycles in %, its utilisation (0..1), and its signal to noise in dB.

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


PREFIX = "npuc."
METADATA_IR = 10
"""The oldest IR version whose nodes have metadata."""
OF_LAYER = ("op", "cycles", "macs", "bytes", "tile", "weight_form", "bound", "instruction", "sqnr_db")
"""The layer figures that a node is annotated with: of the last of several layers, or the sum."""


def annotated(model: onnx.ModelProto, report: Report, entries: Sequence[Entry]) -> onnx.ModelProto:
    """A copy of a model whose nodes have metadata: where each runs, and its layer with cycles, bytes, tile, and
    signal to noise in dB if the report's layers have it.

    entries: the account. Weights in separate files stay there.
    """
    import onnx

    found = onnx.ModelProto()
    found.CopyFrom(model)
    found.ir_version = max(found.ir_version, METADATA_IR)
    known = {entry.node: _told(entry, report) for entry in entries}
    for node, own in zip(found.graph.node, file_nodes(model), strict=True):
        for key, value in known.get(own.key, {}).items():
            node.metadata_props.add(key=f"{PREFIX}{key}", value=value)
    totals = {"target": report["target"], "machine": report["machine"], "cycles": report["cycles"]}
    for key, value in totals.items():
        found.metadata_props.add(key=f"{PREFIX}{key}", value=str(value))
    return found


def _told(entry: Entry, report: Report) -> dict[str, str]:
    """The known facts about a node."""
    told = {"place": entry.place}
    if found := [report["layers"][at] for at in entry.layers]:
        sums = {key: sum(each[key] or 0 for each in found) for key in SUMMED if key in found[-1]}
        layer = {**found[-1], **sums}
        told["layer"] = " + ".join(each["name"] for each in found)
        told |= {key: _text(layer[key]) for key in OF_LAYER if layer.get(key) is not None}
        told["share"] = f"{100 * layer['cycles'] / max(report['cycles'], 1):.1f} %"
    return told


def _text(value: object) -> str:
    match value:
        case list():
            return "x".join(map(str, value))
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


PALE, STRONG = "#eef3f8", "#d9480f"
COLOURS = {"npu": "#b7ddc8", "host": "#f3b59a"}


def node_data(model: onnx.ModelProto, report: Report, entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """A file's content for each known quantity, and for the place of nodes: by graph, then by node."""
    named = {node.name for node in model.graph.node if node.name}
    layers = report["layers"]
    found: dict[str, dict[str, Any]] = {}
    for key in SUMMED:
        values = {node: {"value": round(value, 3)} for node, value in _shares(layers, key, named).items()}
        if any(each["value"] for each in values.values()):
            found[key] = {model.graph.name: {"results": values, "gradient": _gradient(PALE, STRONG)}}
    noise = {
        node: {"value": round(layer["sqnr_db"], 3)}
        for layer in layers
        if math.isfinite(layer.get("sqnr_db") or math.inf)
        for node in layer["nodes"]
        if node in named
    }
    if noise:
        found["sqnr_db"] = {model.graph.name: {"results": noise, "gradient": _gradient(STRONG, PALE)}}
    results = {
        each.node: {"value": each.place, "bgColor": COLOURS.get(each.place, PALE)}
        for each in entries
        if each.node in named
    }
    return {**found, "place": {model.graph.name: {"results": results}}} if results else found


def _gradient(least: str, largest: str) -> list[dict[str, Any]]:
    return [{"stop": 0, "bgColor": least}, {"stop": 1, "bgColor": largest}]


def _shares(layers: Sequence[Report], key: str, named: set[str]) -> dict[str, float]:
    """Every node's share of a quantity: the nodes of a layer share it evenly, so that the sum is the program's."""
    found: dict[str, float] = {}
    for layer in layers:
        nodes = [node for node in layer["nodes"] if node in named]
        for node in nodes:
            found[node] = found.get(node, 0) + (layer.get(key) or 0) / len(nodes)
    return found
