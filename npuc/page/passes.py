"""The passes of a compile in order: the rewrites of each, and the graph after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.page import network

Report = Mapping[str, Any]
MOST_BOXES = 1200
"""The most boxes in all graphs together: larger graphs are not drawn."""


def passes(
    graph: Report, steps: Sequence[tuple[str, Graph, Graph]], numbers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The passes that changed something, in order, with their rewrites and, if known, the graph after each.

    graph: graph.json. steps: name, graph before and graph after of the passes over the float graph. numbers: the
    index of the layer that contains each node of the model.
    """
    from markupsafe import Markup

    drawn = {name: (before, after) for name, before, after in steps}
    room = MOST_BOXES
    found: list[dict[str, Any]] = []
    for name, group in groupby(graph.get("rewrites", ()), lambda each: each["pass"]):
        told = [_rewrite(each, numbers) for each in group]
        entry: dict[str, Any] = {"name": name, "rewrites": told, "nodes": None, "drawing": ""}
        if name in drawn:
            before, after = drawn[name]
            entry["nodes"] = len(before.nodes), len(after.nodes)
            room -= len(after.nodes)
            if room >= 0:
                entry["drawing"] = Markup(network.drawing(_boxes(before, after, numbers)))
        found.append(entry)
    return found


def _rewrite(each: Report, numbers: Mapping[str, int]) -> dict[str, Any]:
    """The sentence of a rewrite, without the leading pass name, and the layer of its nodes."""
    layer = next((numbers[node] for node in each["nodes"] if node in numbers), None)
    return {"text": each["text"].removeprefix(f"{each['pass']}: "), "layer": layer}


def _boxes(before: Graph, after: Graph, numbers: Mapping[str, int]) -> list[network.Box]:
    """The graph's nodes; those made by the pass are shaded."""
    old = {*before.nodes}
    made = {name: node.output for node in after.nodes for name in node.outputs}
    return [
        network.Box(
            node.output,
            " ".join(each for each in (node.op, ACTIVATION(node)) if each),
            "\n".join([node.name or node.output, *_told(after, node)]),
            tuple(made.get(name, "") for name in node.inputs),
            {"new": float(node not in old)},
            next((numbers[name] for name in node.sources if name in numbers), None),
        )
        for node in after.nodes
    ]


def _told(graph: Graph, node: Node) -> list[str]:
    """Shape and attributes of a node."""
    values = [f"{key} {value}" for key, value in node.attrs.items()]
    return ["shape " + " x ".join(map(str, graph.shape(node.output))), *values]
