"""The fate of each node of a model, as node data that Model Explorer lays over its graph.

Source: Model Explorer, custom node data (node_data_builder): results by graph and node, colours between the least
and the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npuc.account import Entry
from npuc.reports.layers import SUMMED

if TYPE_CHECKING:
    import onnx

Report = Mapping[str, Any]
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
