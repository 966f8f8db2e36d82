"""The boxes of the network drawing: one for every node of the model that is not folded into a constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from npuc.account import BORDER, FOLDED, HOST, NPU, SPLIT, Entry
from npuc.ir import Node, topological
from npuc.page.network import Box
from npuc.reports.accounts import fate
from npuc.text.escaping import Shown
from npuc.text.terminal import count

Report = Mapping[str, Any]
SHADES = {"cycles": "cycles", "bytes": "bytes", "error": "SQNR", "place": "place"}
"""Quantities by which boxes may be coloured, with their labels on the page."""
PLACE = {HOST: 1.0, SPLIT: 0.5, BORDER: 0.5}
"""The shade of a box by where the node runs; 0 for others."""


def boxes_of(entries: Sequence[Entry], layers: Sequence[Report]) -> list[Box]:
    """The boxes, each after all that it reads. entries: the account; layers: of the report."""
    written = {name for each in entries for name in each.tensors}
    known = {name for each in entries for name in each.reads} - written
    nodes = [Node(each.op, each.reads, tuple(each.tensors), name=each.node) for each in entries]
    by_name, shades = {each.node: each for each in entries}, _shades(layers)
    ordered = [by_name[node.name] for node in topological(nodes, known)]
    makers = {name: each.node for each in entries if each.place != FOLDED for name in each.tensors}
    most = max((each.cycles for each in entries), default=0)
    found: list[Box] = []
    for each in ordered:
        if each.place == FOLDED:
            continue
        own = {key: max(values[at] for at in each.layers) for key, values in shades.items() if each.layers}
        own |= {"cycles": each.cycles / most} if most else {}
        reads = tuple(makers[name] for name in each.reads if name in makers)
        layer = each.layers[0] if each.layers else None
        hint = "\n".join(told(each, layers))
        found.append(
            Box(each.node, each.op, hint, reads, own | {"place": PLACE.get(each.place, 0)}, layer, _region(each))
        )
    return found


def told(entry: Entry, layers: Sequence[Report]) -> Iterator[str]:
    """What a node became, line by line: its fate, its layers, its tensors."""
    yield from fate(Shown(asdict(entry)))
    for at in entry.layers:
        layer = layers[at]
        moved = f", {count(layer['bytes'])} bytes" if layer.get("bytes") else ""
        noise = "" if layer["sqnr_db"] is None else f", {layer['sqnr_db']:.1f} dB"
        yield f"layer {layer['name']}: {layer['op']}, {count(layer['cycles'])} cycles{moved}{noise}"
        if layer.get("accumulator_bound") is not None:
            yield f"  accumulators stay within {count(layer['accumulator_bound'])}"
    for name, now in entry.tensors.items():
        yield f"tensor {name}: " + (f"now {now}" if now else "not kept")


def by_node(layers: Sequence[Report]) -> dict[str, int]:
    """The index of the layer that contains each node of the model."""
    return {node: number for number, layer in enumerate(layers) for node in layer["nodes"]}


def _region(entry: Entry) -> str:
    """The part of the program to which a node belongs."""
    place = "on the NPU" if entry.place in (NPU, SPLIT) else "on the host"
    return f"{entry.paths[0]} {place}" if entry.paths else ""


def _shades(layers: Sequence[Report]) -> dict[str, list[float]]:
    """The shades of layers, for each known quantity: 0 (nothing) to 1 (the largest of all)."""
    found: dict[str, list[float]] = {}
    values = [layer.get("bytes") or 0 for layer in layers]
    if any(values):
        found["bytes"] = [value / max(values) for value in values]
    decibels = [layer["sqnr_db"] for layer in layers]
    known = [each for each in decibels if each is not None]
    if known:
        noisiest = min(known)
        found["error"] = [0.0 if each is None else max(1 - (each - noisiest) / 40, 0.0) for each in decibels]
    return found
