"""The report of a program as HTML: contents of the artefact, instructions, passes, and simulation results."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from itertools import groupby
from typing import Any

import numpy as np

from npuc import __version__
from npuc.account import Entry, account_of, fate, place_lines, reasons, short_names
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.program import Program
from npuc.reports import charts
from npuc.reports.drawing import SHADES, Box, boxes_of, by_node, drawing
from npuc.reports.layers import costliest, layer_facts, layers_of
from npuc.reports.svg import render
from npuc.samples.loading import Samples
from npuc.target import Runner, Target
from npuc.text.escaping import Shown, escape_report, html_json
from npuc.text.terminal import costs, count, short
from npuc.view import Timeline

Report = Mapping[str, Any]
MOST_LISTED = 20_000
"""The most instructions on a page: browsers are slow with more."""
MOST_HELD = 12
"""The most places in memories told of a layer."""
MOSTLY_EMPTY = 20
"""The least ratio of a memory's capacity to the bytes in use for it to count as nearly empty."""


@frozen
class Evidence:
    """Data in addition to the artefact; all of it may be missing."""

    graph: Report = field(default_factory=dict[str, Any])
    """graph.json."""
    histograms: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """Counts of each int8 value, -128 first, by tensor."""
    samples: str = ""
    """A description of the samples used for histograms."""
    verification: Report | None = None
    """The report of `npuc verify`."""
    passes: Sequence[tuple[str, Graph, Graph]] = ()
    """Name, graph before and graph after of each pass over the float graph."""
    pictures: Sequence[tuple[str, bytes, Sequence[str]]] = ()
    """Name, PNG and the lines of the answer of samples."""


@frozen
class LayerColumn:
    """A column of the layers' table."""

    key: str
    name: str
    meaning: str
    numeric: bool = True


COLUMNS = (
    LayerColumn("name", "layer", "the tensor that the layer computes", False),
    LayerColumn("op", "instruction", "the target's operations, fused ones joined by +", False),
    LayerColumn("tile", "tile", "rows by columns of an output tile", False),
    LayerColumn("tile_candidates", "candidates", "legal tiles that were enumerated"),
    LayerColumn("tile_runner_up", "runner-up", "the second best tile and its cycles", False),
    LayerColumn("macs", "MACs", "of convolutions and fully connected layers"),
    LayerColumn("cycles", "cycles", "by the cycle model"),
    LayerColumn("share", "share %", "of the program's cycles"),
    LayerColumn("utilization", "utilization %", "ideal cycles over cycles"),
    LayerColumn("bound", "bound by", "what takes the longest", False),
    LayerColumn("bytes", "bytes", "moved between memories and the array"),
    LayerColumn("weight_words", "weights", "words of weights, biases and shifts"),
    LayerColumn("weight_form", "weights as", "the form of the weights; what others would cost as a hint", False),
    LayerColumn("sqnr_db", "entire dB", "signal to noise against fp32, the network quantised up to here"),
    LayerColumn("single_db", "single dB", "signal to noise of this layer alone on exact inputs"),
)


def page(program: Program, target: Target, evidence: Evidence) -> str:
    """The page. Raises ArtefactError if the program cannot be run."""
    from markupsafe import Markup

    report, timeline, listing = program.report, target.timeline(program), target.listing(program)
    layers = list(layers_of(report, evidence.verification))
    entries = account_of(program.manifest)
    boxes, names = boxes_of(entries, layers), _short(layers)
    tensors = _by_tensor(timeline, evidence.graph, by_node(layers))
    found: dict[str, Any] = {
        **_summary(program, timeline, evidence.verification),
        "title": program.model.name,
        "lead": f"{report['target']}, machine {report['machine']}; {count(report['instructions'])} instructions",
        "network": Markup(drawing(boxes)) if boxes else "",
        "shades": [(key, SHADES[key]) for key in SHADES if any(key in box.shades for box in boxes)],
        "passes": passes_of(evidence.graph, evidence.passes, by_node(layers)),
        "columns": [each for each in COLUMNS if any(layer.get(each.key) is not None for layer in layers)],
        "timeline": Markup(charts.engines(timeline, names)),
        "late": any(each.used is not None for each in timeline.buffers),
        "maps": [(name, Markup(each)) for name, each in _maps(report, timeline, tensors, evidence.graph)],
        "roofline": Markup(_roofline(report, layers)),
        "histograms": [{**each, "drawing": Markup(each["drawing"])} for each in _histograms(evidence, tensors)],
        "samples": evidence.samples,
        "pictures": [(name, b64encode(png).decode(), lines) for name, png, lines in evidence.pictures],
        "instructions": list(_instructions(listing[:MOST_LISTED], layers)),
        "left_out": count(len(listing) - MOST_LISTED) if len(listing) > MOST_LISTED else "",
        "data": Markup(html_json(escape_report(_data(target, report, entries, layers, timeline, tensors)))),
        "footer": f"npuc {__version__}; every number is of this program and the cycle model of its machine.",
    }
    found["rows"] = [[_cell(layer, each) for each in found["columns"]] for layer in layers]
    found["sections"] = _sections(found)
    return render("report.html", found)


def summary(program: Program, target: Target) -> str:
    """The summary alone, as a part of a page; for notebooks."""
    return render("summary.html", _summary(program, target.timeline(program), None))


def _summary(program: Program, timeline: Timeline, verification: Report | None) -> dict[str, Any]:
    report, entries = program.report, account_of(program.manifest)
    layers = list(layers_of(report))
    names = _short(layers)
    return {
        "figures": _figures(report, timeline, verification),
        "memories": report["memory"],
        "placed": place_lines(entries, [*reasons(entries)], verbose=False),
        "ranges": str(program.ranges),
        "partitions": parts if len(parts := report.get("partitions", ())) > 1 else (),
        "costliest": [_costly(each, layers[each["layer"]], names) for each in costliest(layers)],
    }


def _short(layers: Sequence[Report]) -> list[str]:
    """The layers' names as far as they are told apart by them."""
    known = short_names(layer["name"] for layer in layers)
    return [known[layer["name"]] for layer in layers]


def _costly(each: Report, layer: Report, names: Sequence[str]) -> dict[str, Any]:
    """A line of the costliest layers: what bounds it, and what alternatives took."""
    told = [f"{what}: {change:+,} cycles" for what, change in each["alternatives"]]
    tiles = [f"{count(each['tiles'])} tiles"] if each["tiles"] else []
    faster = [line for line, (_, change) in zip(told, each["alternatives"], strict=True) if change < 0]
    none = (
        f"none of {' and '.join([*tiles, f'{len(told)} alternatives'])} is faster"
        if tiles or told
        else "nothing else was measured"
    )
    at: int = each["layer"]
    return {
        "layer": at,
        "name": short(names[at], 40),
        "cycles": count(layer["cycles"]),
        "share": f"{layer['share']:.1f} %",
        "bound": each["bound"] or "-",
        "ideal": "-" if each["ideal"] is None else f"{100 * each['ideal'] / layer['cycles']:.1f} %",
        "help": faster or [none],
        "hint": "\n".join(told),
    }


def _data(
    target: Target,
    report: Report,
    entries: Sequence[Entry],
    layers: Sequence[Report],
    timeline: Timeline,
    tensors: Mapping[str, int],
) -> dict[str, Any]:
    """What the page's script tells of a selection: layers, nodes of the model, fields of instructions."""
    held: dict[int | None, list[str]] = {}
    for each in timeline.buffers:
        where = f"bytes {count(each.address)} to {count(each.address + each.size - 1)}"
        when = f"cycles {count(each.start)} to {count(each.end)}"
        held.setdefault(tensors.get(each.label), []).append(f"{each.memory}: {each.label}, {where}, {when}")
    pairs = enumerate(zip(layers, report["layers"], strict=True))
    return {
        "fields": _meanings(target),
        "layers": [
            {
                **{key: layer[key] for key in ("name", "op", "nodes")},
                "held": held.get(at, [])[:MOST_HELD],
                "facts": [*layer_facts(Shown(known)), *_errors(layer)],
            }
            for at, (layer, known) in pairs
        ],
        "nodes": [
            {
                "name": each.node,
                "op": each.op,
                "layers": each.layers,
                "told": fate(Shown(asdict(each)), named=False),
                "tensors": dict(each.tensors),
            }
            for each in entries
        ],
    }


def _sections(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headings of the page's sections."""
    parts = {"samples": "pictures", "values": "histograms"}
    first = ("summary", "samples", "network", "passes", "layers", "roofline", "values")
    told = [name for name in first if found.get(parts.get(name, name), True)]
    return [(name, name.capitalize()) for name in (*told, "instructions", "timeline", "memory")]


def _figures(report: Report, timeline: Timeline, verification: Report | None) -> list[tuple[str, str]]:
    utilization = report["utilization"]
    found = [("cycles", count(report["cycles"]))]
    if timeline.cycles != report["cycles"]:
        found.append(("cycles with transfers", count(timeline.cycles)))
    found += [
        ("MACs", count(report["macs"])),
        ("utilization", "-" if utilization is None else f"{100 * utilization:.1f} %"),
        ("segments", count(report["segments"])),
        ("layers", count(len(report["layers"]))),
    ]
    if report.get("npu_macs_share") is not None:
        found.append(("MACs on the NPU", f"{100 * report['npu_macs_share']:.1f} %"))
    if verification is not None:
        if verification.get("cycles") is not None and verification["chip_model"] != "own":
            found.append((f"cycles, {verification['chip_model']}'s model", count(verification["cycles"])))
        exact = {True: "yes", False: "NO", None: "-"}[verification["bit_exact"]]
        found.append((f"bit exact, {count(verification['samples'])} samples", exact))
        worst = min(
            (each["sqnr_db"] for each in verification["outputs"] if each["sqnr_db"] is not None), default=None
        )
        found.append(("output SQNR", "exact" if worst is None else f"{worst:.1f} dB"))
    return found


def _cell(layer: Report, column: LayerColumn) -> dict[str, Any]:
    """A table cell: text, sort key, tooltip."""
    value = layer.get(column.key)
    hint = ", ".join(layer["nodes"]) if column.key == "name" else ""
    if column.key == "weight_form" and value is not None:
        hint = "\n".join(costs(layer["alternatives"], column.key))
    match value:
        case None:
            return {"text": "-", "sort": "-1" if column.numeric else None, "hint": hint, "numeric": column.numeric}
        case [rows, columns, *rest]:
            shown = f"{rows}x{columns}" + "".join(f" ({count(cycles)})" for cycles in rest)
            return {"text": shown, "sort": [rows, columns, *rest][-1], "hint": hint, "numeric": False}
        case float():
            text = f"{100 * value if column.key == 'utilization' else value:.1f}"
            return {"text": text, "sort": value, "hint": hint, "numeric": True}
        case int():
            return {"text": count(value), "sort": value, "hint": hint, "numeric": True}
        case _:
            return {"text": short(str(value), 44), "sort": None, "hint": hint, "numeric": False}


def _by_tensor(timeline: Timeline, graph: Report, numbers: Mapping[str, int]) -> dict[str, int]:
    """The index of the layer that computes each tensor. graph: graph.json. numbers: as `by_node`."""
    found = {
        each["tensor"]: numbers[node]
        for each in graph.get("layers", ())
        for node in reversed(each["nodes"])
        if node in numbers
    }
    busy = reversed(timeline.activities)
    return {each.tensor: each.layer for each in busy if each.tensor and each.layer is not None} | found


def _maps(
    report: Report, timeline: Timeline, layers: Mapping[str, int], graph: Report
) -> Iterator[tuple[str, str]]:
    """A drawing of every memory in the timeline."""
    names = {name: each["float"] for name, each in graph.get("tensors", {}).items() if "float" in each}
    for name, use in report["memory"].items():
        if any(each.memory == name for each in timeline.buffers):
            yield name, charts.memory(timeline, name, _height(use), layers, names)


def _height(use: Report) -> int:
    """The bytes shown in a memory's drawing: all, or the used part of a nearly empty one."""
    peak, capacity = use["peak_bytes"], use["capacity_bytes"]
    return peak if capacity is None or capacity > MOSTLY_EMPTY * peak else capacity


def _roofline(report: Report, layers: Sequence[Report]) -> str:
    if report.get("macs_per_cycle") is None or report.get("bytes_per_cycle") is None:
        return ""
    return charts.roofline(layers, _short(layers), report["macs_per_cycle"], report["bytes_per_cycle"])


def _histograms(evidence: Evidence, layers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    tensors = evidence.graph.get("tensors", {})
    for name, values in evidence.histograms.items():
        scale, zero = (tensors.get(name, {}).get(key) for key in ("scale", "zero_point"))
        limits = float(values[charts.at_limits(zero or 0)].sum()) / max(float(np.sum(values)), 1.0)
        note = f"scale {scale:.6g}, " if scale is not None else ""
        yield {
            "name": name,
            "layer": layers.get(name),
            "short": short(name, 38),
            "note": f"{note}{100 * limits:.2f} % at the limits",
            "drawing": charts.histogram(values, zero or 0),
        }


def _instructions(listing: Iterable[Report], layers: Sequence[Report]) -> Iterator[dict[str, Any]]:
    """The listing, in runs of instructions of a layer: its nodes, and lines with theirs if these are fewer."""
    numbers = by_node(layers)
    for layer, run in groupby(listing, lambda entry: _layer_of(entry["nodes"], numbers)):
        entries = list(run)
        nodes = list(dict.fromkeys(node for entry in entries for node in entry["nodes"]))
        yield {
            "layer": layer,
            "nodes": ", ".join(nodes),
            "text": "\n".join(_line(each, nodes) for each in entries),
        }


def _line(entry: Report, nodes: Sequence[str]) -> str:
    """An instruction: index, text, and behind a semicolon its nodes if they are not those of its run."""
    own = "" if set(entry["nodes"]) == set(nodes) else f"  ; {', '.join(entry['nodes'])}"
    return f"{entry['index']} {' '.join(entry['text'].split())}{own}"


def _errors(layer: Report) -> Iterator[str]:
    """How far the layer's result is from fp32."""
    if layer["sqnr_db"] is not None:
        alone = "" if layer["single_db"] is None else f", {layer['single_db']:.1f} dB alone on exact inputs"
        yield f"{layer['sqnr_db']:.1f} dB against fp32{alone}"


def _meanings(target: Target) -> dict[str, str]:
    """The meaning of each field of an instruction or register."""
    return {
        str(each["field"]): f"{each['field']}, bits {each['bits']}: {each['meaning']}"
        for fields in reversed(list(target.layout().values()))
        for each in fields
    }


MOST_BOXES = 1200
"""The most boxes in all graphs together: larger graphs are not drawn."""


def passes_of(
    graph: Report, steps: Sequence[tuple[str, Graph, Graph]], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The passes that changed something, in order, with their rewrites and, if known, the graph after each.

    graph: graph.json. steps: name, graph before and graph after of the passes over the float graph. numbers: the
    index of the layer that contains each node of the model.
    """
    from markupsafe import Markup

    drawn = {name: (before, after) for name, before, after in steps}
    boxes_left = MOST_BOXES
    found: list[dict[str, Any]] = []
    for name, group in groupby(graph.get("rewrites", ()), lambda each: each["pass"]):
        told = [_rewrite(each, numbers) for each in group]
        entry: dict[str, Any] = {"name": name, "rewrites": told, "nodes": None, "drawing": ""}
        if name in drawn:
            before, after = drawn[name]
            entry["nodes"] = len(before.nodes), len(after.nodes)
            boxes_left -= len(after.nodes)
            if boxes_left >= 0:
                entry["drawing"] = Markup(drawing(_graph_boxes(before, after, numbers)))
        found.append(entry)
    return found


def _layer_of(nodes: Iterable[str], numbers: Mapping[str, int]) -> int | None:
    """The layer that contains the first of these nodes of the model that is in any."""
    return next((numbers[node] for node in nodes if node in numbers), None)


def _rewrite(each: Report, numbers: Mapping[str, int]) -> dict[str, Any]:
    """The sentence of a rewrite, without the leading pass name, and the layer of its nodes."""
    return {"text": each["text"].removeprefix(f"{each['pass']}: "), "layer": _layer_of(each["nodes"], numbers)}


def _graph_boxes(before: Graph, after: Graph, numbers: Mapping[str, int]) -> list[Box]:
    """The graph's nodes; those made by the pass are shaded."""
    old = {*before.nodes}
    made = {name: node.output for node in after.nodes for name in node.outputs}
    return [
        Box(
            node.output,
            " ".join(each for each in (node.op, ACTIVATION(node)) if each),
            "\n".join([node.name or node.output, *_node_facts(after, node)]),
            tuple(made.get(name, "") for name in node.inputs),
            {"new": float(node not in old)},
            _layer_of(node.sources, numbers),
        )
        for node in after.nodes
    ]


def _node_facts(graph: Graph, node: Node) -> list[str]:
    """Shape and attributes of a node."""
    values = [f"{key} {value}" for key, value in node.attrs.items()]
    return ["shape " + " x ".join(map(str, graph.shape(node.output))), *values]


BATCH = 8
VALUES = 256


def histograms(run: Runner, samples: Samples) -> dict[str, Array]:
    """Counts of each int8 value in each tensor that the machine computes: (256,), -128 first."""
    found: dict[str, Array] = {}

    def observe(name: str, values: Array) -> None:
        computed = values[np.abs(values + 0.5) < VALUES // 2].astype(np.int64) + VALUES // 2
        found[name] = found.get(name, 0) + np.bincount(computed, minlength=VALUES)

    for batch in samples.batches(BATCH):
        run(batch.inputs, observe)
    return found
