"""Explanation of a node: from the ONNX node over passes and layers to instructions, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npuc.program import Program
from npuc.reports.hosted import hosted
from npuc.reports.hosted import tensors as tensors_of
from npuc.reports.naming import nodes_named, on_host
from npuc.target import Target

Report = Mapping[str, Any]
WINDOWED = ("Conv", "MaxPool", "AveragePool", "ConvTranspose", "Gemm")
"""Ends of the names of operators that read more than one pixel per result: IntConv, NvConv."""


def explanation(
    program: Program, target: Target, graph: Report, asked: str, verification: Report | None = None
) -> dict[str, Any]:
    """The report of `npuc explain`.

    graph: graph.json. verification: the report of `npuc verify`, for errors. asked: the number of an instruction,
    or a name as `naming.nodes_named` accepts it.
    Raises ArtefactError (E508) if the program has nothing of that name.
    """
    listing, report, regions = target.listing(program), program.report, hosted(program)
    nodes = nodes_named(
        asked, report, graph, listing, {name: each.node for each in regions for name in each.writes}
    )
    layers = [layer for layer in report["layers"] if nodes & set(layer["nodes"])]
    around = set(nodes).union(*(layer["nodes"] for layer in layers))
    integer = [each for each in graph.get("layers", ()) if around & set(each["nodes"])]
    tensors = {each["tensor"] for each in integer}
    buffers = target.timeline(program).buffers
    stored = {each.label for each in buffers}
    parts = report.get("partitions", ())
    return {
        "status": "ok",
        "asked": asked,
        "nodes": sorted(around),
        "partitions": [part for part in parts if nodes & set(part["nodes"])] if len(parts) > 1 else [],
        "passes": [each for each in graph.get("rewrites", ()) if around & set(each["nodes"])],
        "host_tensors": tensors_of(regions, asked, nodes),
        "host_steps": [step for step in on_host(report) if step["node"] in around],
        "layers": layers,
        "tensors": [_tensor(each, graph, verification, stored=each["tensor"] in stored) for each in integer],
        "buffers": [
            {"memory": each.memory, "tensor": each.label, "address": each.address, "bytes": each.size,
             "from_cycle": each.start, "to_cycle": each.end}
            for each in buffers
            if each.label in tensors
        ],
        "instructions": [entry for entry in listing if around & set(entry["nodes"])],
    }  # fmt: skip


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
        "kept": _kept(readers, stored=stored),
    }


def _kept(readers: Sequence[Report], *, stored: bool) -> str:
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
