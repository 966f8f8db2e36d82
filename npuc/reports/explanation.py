"""Explanation of a node: from the ONNX node over passes and layers to instructions, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npuc.account import Entry, account_of, as_json, nodes_named
from npuc.errors import NEEDLESS
from npuc.program import Program
from npuc.target import Target

Report = Mapping[str, Any]
WINDOWED = ("Conv", "MaxPool", "AveragePool", "ConvTranspose", "Gemm")
"""Ends of the names of operators that read more than one pixel per result: IntConv, NvConv."""


def explanation(
    program: Program, target: Target, graph: Report, asked: str, verification: Report | None = None
) -> dict[str, Any]:
    """The report of `npuc explain`.

    graph: graph.json. verification: the report of `npuc verify`, for errors. asked: the number of an instruction,
    or a name as `npuc.account.nodes_named` accepts it.
    Raises ArtefactError (E508) if the program has nothing of that name.
    """
    listing, report, entries = target.listing(program), program.report, account_of(program.manifest)
    nodes = nodes_named(entries, asked, other_names(report, graph, listing), listing)
    own = [each for each in entries if each.node in nodes]
    layers = [layer for layer in report["layers"] if nodes & set(layer["nodes"])]
    names = set(nodes).union(*(layer["nodes"] for layer in layers))
    integer = [each for each in graph.get("layers", ()) if names & set(each["nodes"])]
    tensors = {each["tensor"] for each in integer}
    buffers = target.timeline(program).buffers
    stored = {each.label for each in buffers}
    return {
        "status": "ok",
        "asked": asked,
        "nodes": sorted(names),
        "account": as_json(own),
        "passes": [each for each in graph.get("rewrites", ()) if names & set(each["nodes"])],
        "host_tensors": [
            _host_tensor(entries, each, name)
            for each in own
            if each.problems
            for name in each.tensors
            if asked not in each.tensors or asked == name
        ],
        "layers": layers,
        "tensors": [_tensor(each, graph, verification, stored=each["tensor"] in stored) for each in integer],
        "buffers": [
            {"memory": each.memory, "tensor": each.label, "address": each.address, "bytes": each.size,
             "from_cycle": each.start, "to_cycle": each.end}
            for each in buffers
            if each.label in tensors
        ],
        "instructions": [entry for entry in listing if names & set(entry["nodes"])],
    }  # fmt: skip


def other_names(report: Report, graph: Report, listing: Sequence[Report]) -> dict[str, Sequence[str]]:
    """The names that are not the model's: of layers and tensors of the program, with the model's nodes.

    graph: graph.json, or empty. A part of a program, whose nodes have no account, has those of its instructions.
    """
    found: dict[str, Sequence[str]] = {}
    for each in graph.get("layers", ()):
        tensor = graph["tensors"].get(each["tensor"], {})
        found |= dict.fromkeys((each["name"], each["tensor"], tensor.get("float", each["tensor"])), each["nodes"])
    found |= {layer["name"]: layer["nodes"] for layer in report.get("layers", ())}
    found |= {entry["tensor"]: entry["nodes"] for entry in listing if entry["tensor"]}
    return found | {node: [node] for entry in listing for node in entry["nodes"]}


def _host_tensor(entries: Sequence[Entry], writer: Entry, name: str) -> dict[str, Any]:
    """A tensor that the host writes: its writer and readers, and what keeps them on the host."""
    hosted = [each for each in entries if each.problems and each.paths == writer.paths]
    readers = [each for each in hosted if name in each.reads]
    return {
        "tensor": name,
        "path": next(iter(writer.paths), None),
        "from": _explain(writer),
        "to": [_explain(each) for each in readers],
        "kept_by": [_explain(each) for each in _keepers(hosted, [writer, *readers])],
    }


def _explain(entry: Entry) -> dict[str, Any]:
    problem = entry.problems[0]
    told = {"code": problem.code, "reason": problem.reason, "remedy": problem.help}
    return {"node": entry.node, "op": entry.op, **told}


def _needless(entry: Entry) -> bool:
    return all(each.code == NEEDLESS for each in entry.problems)


def _keepers(hosted: Sequence[Entry], nodes: Sequence[Entry]) -> list[Entry]:
    """The nodes that the NPU does not run, reached from these over nodes that merely lie between them."""
    reached: dict[str, Entry] = {}
    waiting = list(nodes)
    while waiting:
        entry = waiting.pop()
        if entry.node in reached:
            continue
        reached[entry.node] = entry
        if _needless(entry):
            beside = {*entry.reads, *entry.tensors}
            waiting += [each for each in hosted if not beside.isdisjoint((*each.reads, *each.tensors))]
    return [each for each in hosted if each.node in reached and not _needless(each)]


def _tensor(layer: Report, graph: Report, verification: Report | None, *, stored: bool) -> dict[str, Any]:
    """The result of an integer layer: shape, scale, error, and readers, which decide whether it is stored."""
    found = graph["tensors"].get(layer["tensor"], {})
    name = found.get("float", layer["tensor"])
    rows = verification["layers"] if verification else ()
    errors = next((each for each in rows if each["name"] == name), {})
    readers = [each for each in graph["layers"] if layer["tensor"] in each["inputs"]]
    return {
        "tensor": layer["tensor"],
        "float": found.get("float"),
        "shape": found.get("shape"),
        "scale": found.get("scale"),
        "entire": errors.get("entire"),
        "single": errors.get("single"),
        "readers": [each["name"] for each in readers],
        "kept": _storage_reason(readers, stored=stored),
    }


def _storage_reason(readers: Sequence[Report], *, stored: bool) -> str:
    """Why a result is stored in memory, or need not be. stored: whether a memory holds it under its own name."""
    lies = ", so it lies in memory" if stored else ""
    windowed = [f"'{each['name']}'" for each in readers if each["op"].endswith(WINDOWED)]
    if not readers:
        return "it leaves the network, so it lies in memory"
    if windowed:
        return f"{windowed[0]} reads a window of it{lies}"
    if len(readers) > 1:
        return f"{len(readers)} layers read it{lies}"
    return f"'{readers[0]['name']}' reads it pixel by pixel and may be fused"
