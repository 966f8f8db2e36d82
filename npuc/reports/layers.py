"""The layers of a report: as rows with derived figures, and laid over the model for viewers of ONNX files.

Source: Model Explorer, custom node data (node_data_builder): results by graph and node, colours between the least
and the largest value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from npuc.account import Entry
from npuc.frontend.model import file_nodes
from npuc.text.escaping import Shown
from npuc.text.terminal import costs, count, csv_table

if TYPE_CHECKING:
    import onnx


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


MOST_COSTLY = 5


def alternatives(layer: Report) -> list[tuple[str, int]]:
    """What compiling measured beside what it chose: each alternative with its cycles more or fewer.

    An alternative of weight forms is compared with the chosen form as the layer alone would take it.
    """
    cycles, forms = layer["cycles"], layer.get("alternatives") or ()
    chosen = next((each["cycles"] for each in forms if each["weight_form"] == layer.get("weight_form")), None)
    found = [
        (f"weights as {each['weight_form']}", each["cycles"] - chosen)
        for each in forms
        if chosen is not None and each["weight_form"] != layer["weight_form"]
    ]
    if (layer.get("tile_fewest_cycles") or cycles) < cycles:
        found.append(("the fastest tiles, which move more words", layer["tile_fewest_cycles"] - cycles))
    if layer.get("tile_runner_up") and layer.get("jobs", 1) == 1:
        *tile, needed = layer["tile_runner_up"]
        found.append((f"tile {value_text(tile)}", needed - cycles))
    engines = [layer[key] for key in ("bdc_cycles", "gdma_cycles") if key in layer]
    if engines and max(engines) < cycles:
        found.append(("both engines at work all the time", max(engines) - cycles))
    if layer.get("padding_cycles"):
        found.append(("an input whose zero point is 0", -layer["padding_cycles"]))
    return sorted(found, key=lambda each: each[1])


def costliest(layers: Sequence[Report]) -> list[dict[str, Any]]:
    """The layers with the most cycles: index, what bounds each, and what alternatives compiling measured."""
    ordered = sorted(range(len(layers)), key=lambda at: -layers[at]["cycles"])[:MOST_COSTLY]
    return [
        {
            "layer": at,
            "bound": layers[at].get("bound"),
            "ideal": layers[at].get("ideal_cycles") or None,
            "alternatives": alternatives(layers[at]),
            "tiles": layers[at].get("tile_candidates"),
        }
        for at in ordered
        if layers[at]["cycles"]
    ]


def layer_facts(layer: Shown) -> list[str]:
    """The costs of a layer and the reasons for its layout, as far as its target gives them; zeros are left out."""
    known = {key: value for key, value in layer.items() if value is not None}
    lines = [f"{count(layer['cycles'])} cycles" + (f", bound by {known['bound']}" if "bound" in known else "")]
    if known.get("ideal_cycles"):
        lines[0] += f", {100 * layer['ideal_cycles'] / layer['cycles']:.1f} % of what the array can do"
    if "tile" in known:
        which = "chosen by hand from" if known.get("tile_by_hand") else "the best of"
        legal = f", {which} {count(known['tile_candidates'])} that are legal" if "tile_candidates" in known else ""
        lines.append(f"tile {value_text(layer['tile'])}{legal}")
    if known.get("tile_fewest_cycles", layer["cycles"]) < layer["cycles"]:
        lines.append(f"the fastest tiles take {count(known['tile_fewest_cycles'])} cycles, but move more words")
    if "tile_runner_up" in known:
        *runner_up, cycles = layer["tile_runner_up"]
        jobs = known.get("jobs", 1)
        of = "" if jobs == 1 else f" in the first of {jobs} jobs"
        best = "best" if known.get("tile_by_hand") else "next best"
        lines.append(f"{best} {value_text(runner_up)} with {count(cycles)} cycles{of}")
    told = ("name", "nodes", "op", "cycles", "bound", "ideal_cycles", "tile", "tile_candidates", "tile_runner_up")
    told += ("tile_fewest_cycles", "tile_by_hand", "weight_form", "alternatives", "instruction")
    if "weight_form" in known:
        lines.append(f"weights as {layer['weight_form']}; alone it would take")
        lines += [f"  {each}" for each in costs(layer["alternatives"], "weight_form")]
    return [
        *lines,
        *(
            f"{key.replace('_', ' ')} {value_text(value)}"
            for key, value in known.items()
            if value and key not in told
        ),
    ]


def figure_text(value: object) -> str:
    """A figure of a layer as text.

    >>> figure_text([6, 10, 2059]), figure_text([6, 10]), figure_text(True)
    ('6x10 (2,059 cycles)', '6x10', 'yes')
    >>> figure_text([{"W": 1, "channels": 2059}, {"W": 2, "channels": 10}])
    'W 1, channels 2,059; W 2, channels 10'
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case [int() as rows, int() as columns, int() as cycles]:
            return f"{rows}x{columns} ({count(cycles)} cycles)"
        case [{"weight_form": _}, *_]:
            return "; ".join(costs(cast("list[Report]", value), "weight_form"))
        case [Mapping(), *_]:
            rows = ((f"{key} {figure_text(x)}" for key, x in row.items()) for row in cast("list[Report]", value))
            return "; ".join(map(", ".join, rows))
        case _:
            return value_text(value)


def value_text(value: object) -> str:
    """A figure as text: numbers with separators, extents joined by x."""
    match value:
        case None:
            return "-"
        case list() | tuple():
            return "x".join(map(str, value))
        case float():
            return f"{value:.6g}"
        case _:
            return f"{value:,}" if isinstance(value, int) else str(value)


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


def annotate(model: onnx.ModelProto, report: Report, entries: Sequence[Entry]) -> onnx.ModelProto:
    """A copy of a model whose nodes have metadata: where each runs, and its layer with cycles, bytes, tile, and
    signal to noise in dB if the report's layers have it.

    entries: the account. Weights in separate files stay there.
    """
    import onnx

    found = onnx.ModelProto()
    found.CopyFrom(model)
    found.ir_version = max(found.ir_version, METADATA_IR)
    known = {entry.node: _facts(entry, report) for entry in entries}
    for node, own in zip(found.graph.node, file_nodes(model), strict=True):
        for key, value in known.get(own.key, {}).items():
            node.metadata_props.add(key=f"{PREFIX}{key}", value=value)
    totals = {"target": report["target"], "machine": report["machine"], "cycles": report["cycles"]}
    for key, value in totals.items():
        found.metadata_props.add(key=f"{PREFIX}{key}", value=str(value))
    return found


def _facts(entry: Entry, report: Report) -> dict[str, str]:
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
