"""The model, with the fate of each node as metadata that viewers of ONNX files show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npuc.account import Entry
from npuc.frontend.origins import file_nodes
from npuc.reports.layers import SUMMED

if TYPE_CHECKING:
    import onnx

Report = Mapping[str, Any]
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
