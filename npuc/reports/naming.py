"""Lookup of ONNX nodes by instruction number, name, or part of a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npuc.errors import ArtefactError
from npuc.text.terminal import closest

Report = Mapping[str, Any]
NONE: Mapping[str, str] = {}
MOST_SHOWN = 4
"""The most names shown in an error."""


def nodes_named(
    asked: str, report: Report, graph: Report, listing: Sequence[Report], hosted: Mapping[str, str] = NONE
) -> set[str]:
    """The ONNX nodes of an instruction, a node, a tensor or a layer.

    asked: a number of the listing, a name, one of the names joined by semicolons in a fused name (also without the
    number that a converter appended), or parts of such a name between slashes.
    report, graph: of the program, and graph.json; empty if there is none.
    hosted: the nodes that write the tensors of host regions.
    Raises ArtefactError (E508) if nothing matches, and for a part that several names share.
    """
    if asked.isdecimal():
        for entry in listing:
            if entry["index"] == int(asked):
                return set(entry["nodes"])
    names = {**{name: [node] for name, node in hosted.items()}, **dict(_names(report, graph, listing))}
    if asked in names:
        return set(names[asked])
    for alike in (_last_part, _part, _numbered, _end, _inside):
        found = {frozenset(nodes): name for name, nodes in names.items() if alike(asked, name)}
        if len(found) == 1:
            return set(next(iter(found)))
        if found:
            raise _ambiguous(asked, list(found.values()))
    parts = dict.fromkeys(part for name in names for part in (name, *name.split(";")))
    raise ArtefactError(
        "E508",
        f"the program has no node, tensor or layer '{asked}'.{closest(asked, parts)}",
        limit=f"instructions 0..{len(listing) - 1}, or a name of the model",
        remedy="npuc dump OUT shows the nodes of every instruction",
    )


def _last_part(asked: str, name: str) -> bool:
    return name.rsplit(";", 1)[-1] == asked


def _part(asked: str, name: str) -> bool:
    return asked in name.split(";")


def _numbered(asked: str, name: str) -> bool:
    """Whether `name` is `asked` with a number, which converters append to make fused names unique: Conv2D1."""
    return any(part.startswith(asked) and part[len(asked) :].isdecimal() for part in name.split(";"))


def _end(asked: str, name: str) -> bool:
    return bool(asked) and any(part.endswith(f"/{asked}") for part in name.split(";"))


def _inside(asked: str, name: str) -> bool:
    return bool(asked) and any(f"/{asked}/" in f"/{part}/" for part in name.split(";"))


def _ambiguous(asked: str, names: Sequence[str]) -> ArtefactError:
    shown = ", ".join(f"'{each}'" for each in names[:MOST_SHOWN]) + ", ..." * (len(names) > MOST_SHOWN)
    return ArtefactError(
        "E508",
        f"{len(names)} names have the part '{asked}'",
        limit=shown,
        remedy="give more of the name, or the number of an instruction",
    )


def regions_of(report: Report) -> list[Any]:
    """The host regions of a program, without nodes that a part leaves to the host."""
    told = report.get("partitions", ())
    return [each for each in told if each["place"] == "host" and (each["path"] or "").startswith("host/")]


def on_host(report: Report) -> list[dict[str, Any]]:
    """Every node that the host runs, and the reason: steps of the target's programs, and nodes of regions."""
    return [
        *report.get("host_steps", ()),
        *(
            {"node": node, "op": reason["op"], "reason": f"{reason['reason']} ({region['path']})"}
            for region in regions_of(report)
            for reason in region["reasons"]
            for node in reason["nodes"]
        ),
    ]


def _names(report: Report, graph: Report, listing: Sequence[Report]) -> Iterator[tuple[str, Sequence[str]]]:
    """Every name and the ONNX nodes behind it; an ONNX node's own name comes last, as it takes precedence."""
    for step in on_host(report):
        yield step["node"], [step["node"]]
    for part in report.get("partitions", ()):
        yield from ((node, [node]) for node in part["nodes"])
    for each in graph.get("layers", ()):
        tensor = graph["tensors"].get(each["tensor"], {})
        for name in (each["name"], each["tensor"], tensor.get("float", each["tensor"])):
            yield name, each["nodes"]
    for layer in report.get("layers", ()):
        yield layer["name"], layer["nodes"]
    for entry in listing:
        if entry["tensor"]:
            yield entry["tensor"], entry["nodes"]
    for rewrite in graph.get("rewrites", ()):
        yield from ((node, [node]) for node in rewrite["nodes"])
    for entry in listing:
        yield from ((node, [node]) for node in entry["nodes"])
