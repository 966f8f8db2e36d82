"""Differences between two programs: totals, memories, layers and their instructions, aligned by source node.

Layers with common ONNX nodes are matched, however each program fused or split them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from npuc.account import Entry, account_of
from npuc.program import Program
from npuc.reports.layers import figure_text
from npuc.rewrites import sharing
from npuc.target import Target
from npuc.text.escaping import Shown
from npuc.text.terminal import plural

Report = Mapping[str, Any]
MOST_ALIGNED = 4000
"""The most lines per layer in both programs to be aligned, which takes quadratic time."""
IDENTITY = ("name", "nodes", "instruction")
"""Fields that identify a layer instead of stating its cost."""


def difference(first: tuple[Program, Target], second: tuple[Program, Target]) -> dict[str, Any]:
    """The report of `npuc diff`; in lists of two values, the first program's comes first."""
    a, b = (program.report for program, _ in (first, second))
    before, after = dict(_numbers(a)), dict(_numbers(b))
    totals = {key: [before.get(key), after.get(key)] for key in dict.fromkeys([*before, *after])}
    listings = [_instructions(target.listing(program)) for program, target in (first, second)]
    groups = [_group(pair, listings) for pair in align(a["layers"], b["layers"])]
    changed = [group for group in groups if group["changed"] or group["removed"] or group["added"]]
    return {
        "status": "ok",
        "same": first[0].files == second[0].files and a == b,
        "totals": {key: values for key, values in totals.items() if values[0] != values[1]},
        "places": _places(*(account_of(program.manifest) for program, _ in (first, second))),
        "layers": changed,
        "unchanged_layers": len(groups) - len(changed),
    }


def _places(a: Sequence[Entry], b: Sequence[Entry]) -> dict[str, list[str]]:
    """The nodes that run elsewhere, with both places."""
    after = {each.node: each.place for each in b}
    pairs = ((each.node, [each.place, after[each.node]]) for each in a if each.node in after)
    return {node: places for node, places in pairs if places[0] != places[1]}


def _numbers(report: Report, within: str = "") -> Iterator[tuple[str, Any]]:
    """Figures of the whole program, with dotted paths: memory.fmap.peak_bytes."""
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{within}{key}.")
        elif not isinstance(value, list):
            yield f"{within}{key}", value


def align(a: Sequence[Report], b: Sequence[Report]) -> list[tuple[list[Report], list[Report]]]:
    """Layers of both programs in groups with common ONNX nodes, in the first program's order."""
    return sharing((a, b), lambda layer: layer["nodes"] or [f"layer {layer['name']}"])


def _instructions(listing: Sequence[Report]) -> dict[tuple[str, ...], list[str]]:
    """The instructions' text by their ONNX nodes."""
    found: dict[tuple[str, ...], list[str]] = {}
    for entry in listing:
        found.setdefault(tuple(entry["nodes"]), []).append(entry["text"])
    return found


def _group(
    pair: tuple[Sequence[Report], Sequence[Report]], listings: Sequence[Mapping[tuple[str, ...], list[str]]]
) -> dict[str, Any]:
    """A group of layers: changed figures, and removed and added instructions."""
    a, b = pair
    lines = [
        [
            text
            for nodes in dict.fromkeys(tuple(layer["nodes"]) for layer in layers)
            for text in listing.get(nodes, [])
        ]
        for layers, listing in zip(pair, listings, strict=True)
    ]
    removed, added = changed_lines(*lines)
    return {
        "nodes": list(dict.fromkeys(node for layer in (*a, *b) for node in layer["nodes"])),
        "layers": [[layer["name"] for layer in layers] for layers in pair],
        "cycles": [sum(layer["cycles"] or 0 for layer in layers) for layers in pair],
        "changed": _changes(a, b),
        "removed": removed,
        "added": added,
    }


def _changes(a: Sequence[Report], b: Sequence[Report]) -> dict[str, list[Any]]:
    """The figures that changed, with the number of their layer if there are several; the numbers of layers."""
    if len(a) != len(b):
        return {"layers": [len(a), len(b)]}
    pairs = [_fields(each, other) for each, other in zip(a, b, strict=True)]
    return {
        key if len(a) == 1 else f"layer {at}, {key}": values
        for at, found in enumerate(pairs, 1)
        for key, values in found.items()
    }


def _fields(a: Report, b: Report) -> dict[str, list[Any]]:
    keys = [key for key in dict.fromkeys([*a, *b]) if key not in IDENTITY]
    return {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}


CHOICES = ("op", "tile", "weight_form")
"""The fields of a layer whose values are told in a line; of the others only how many changed."""


def changes_line(group: Shown) -> str:
    """What changed in a group of layers besides cycles: choices, and how many fields and instructions."""
    changed, removed, added = group["changed"], len(group["removed"]), len(group["added"])
    told = [f"{key} {' -> '.join(map(figure_text, changed[key]))}" for key in CHOICES if key in changed]
    left = [key for key in changed if key not in (*CHOICES, "cycles")]
    told += [plural(len(left), "more field" if told else "field")] if left else []
    return ", ".join([*told, *([f"instructions -{removed} +{added}"] if removed or added else [])])


def changed_lines(a: Sequence[str], b: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines that only the first has, and those that only the second has.

    Above MOST_ALIGNED lines nothing is aligned: the lines that occur more often in one are given.
    """
    if len(a) + len(b) > MOST_ALIGNED:
        return _more_often(a, b), _more_often(b, a)
    removed: list[str] = []
    added: list[str] = []
    for tag, start, end, begin, stop in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += a[start:end]
            added += b[begin:stop]
    return removed, added


def _more_often(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """The lines of a, in order, without as many of each as b has.

    >>> _more_often(["x", "y", "x", "z"], ["x", "z", "z"])
    ['y', 'x']
    """
    left, found = Counter(b), list[str]()
    for line in a:
        left[line] -= 1
        if left[line] < 0:
            found.append(line)
    return found
