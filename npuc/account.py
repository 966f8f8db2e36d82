"""The account of a model: what became of each node of the user's file, by its own name and tensors.

It is made while compiling (`npuc.regions.accounting`), stored in the manifest, and read by every report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from npuc.errors import ArtefactError, Problem
from npuc.frozen import frozen
from npuc.storage.records import read
from npuc.text.terminal import closest

ACCOUNT = "account"
"""The entry of the manifest."""
NPU, HOST, BORDER, FOLDED, REMOVED = PLACES = "npu", "host", "border", "folded", "removed"
"""Where a node runs: on the NPU; on the host; on the host, where it only converts what enters or leaves a program;
nowhere, since its result is a constant; nowhere, since nothing is left to compute."""
MOST_SHOWN = 4
"""The most names shown in an error."""


@frozen
class Entry:
    """A node of the model's file. Names are those of the file, except in `layers`, `paths` and values of `tensors`."""

    node: str
    """Its name; its operator and number if it has none."""
    op: str
    place: str
    because: str
    """Why nothing, or nothing of its own, computes it; empty for other nodes."""
    into: tuple[str, ...]
    """The nodes with whose layers it is computed."""
    paths: tuple[str, ...]
    """The steps of a program of several steps that compute it."""
    layers: tuple[int, ...]
    """Indices of the report's layers that it became."""
    problems: tuple[Problem, ...]
    """Why it, or a part of it, is not on the NPU."""
    macs: int
    macs_on_npu: int
    cycles: float
    """Its share of the cycles of its layers, in proportion to MACs."""
    bytes_in: int
    """What crosses from the NPU to the host for it."""
    bytes_out: int
    reads: tuple[str, ...]
    tensors: Mapping[str, str]
    """The tensors that it writes, each with the name under which the program has its value now; empty for none."""
    within: tuple[str, ...]
    """Names inside it: of nodes and tensors of its subgraphs or of the function that it calls."""


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The manifest's entry."""
    return [asdict(each) for each in entries]


def account_of(manifest: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The account in a manifest; empty in a part of a program. Raises ArtefactError (E502) if it is damaged."""
    return read(tuple[Entry, ...], manifest.get(ACCOUNT, []), ACCOUNT)


@frozen
class Group:
    """Nodes that do not run on the NPU for one reason."""

    problem: Problem
    """Of the first."""
    nodes: tuple[str, ...]
    macs: int
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The fields of the command line's JSON contract."""
        found = self.problem
        told = {"code": found.code, "op": found.op, "reason": found.reason, "limit": found.limit}
        counted = {"count": len(self.nodes), "nodes": list(self.nodes), "macs": self.macs, "bytes": self.bytes}
        return {**told, "remedy": found.help, **counted}


def groups(entries: Sequence[Entry]) -> list[Group]:
    """Why nodes run on the host, by operator and cause, in the order of the first node of each."""
    found: dict[tuple[str | None, ...], list[tuple[Entry, Problem]]] = {}
    for entry in entries:
        for each in entry.problems:
            found.setdefault((each.op, each.code, each.reason, each.help), []).append((entry, each))
    return [
        Group(
            members[0][1],
            tuple(entry.node for entry, _ in members),
            sum(entry.macs - entry.macs_on_npu for entry, _ in members),
            sum(entry.bytes_in + entry.bytes_out for entry, _ in members),
        )
        for members in found.values()
    ]


def macs_share(entries: Sequence[Entry]) -> float | None:
    """The share of the model's MACs on the NPU, 0..1; None for a model without any."""
    whole = sum(each.macs for each in entries)
    return sum(each.macs_on_npu for each in entries) / whole if whole else None


def entries_named(entries: Sequence[Entry], asked: str, others: Mapping[str, Sequence[str]]) -> list[Entry]:
    """The entries of a name: of a node, a tensor, or anything else in the model; or of a part of such a name.

    others: further names, of layers and of their tensors, with their nodes. A name found exactly comes first; the
    parts are those between slashes, those of names joined by semicolons, and names without a converter's number.
    Raises ArtefactError (E508) if nothing matches, and for a part that several names share.
    """
    by_node = {each.node: each for each in entries}
    names = _names(entries)
    for name, nodes in others.items():
        names.setdefault(name, dict.fromkeys(node for node in nodes if node in by_node))
    if asked in names:
        return [by_node[node] for node in names[asked]]
    for alike in (_last_part, _part, _numbered, _end, _inside):
        found = {frozenset(nodes): (name, nodes) for name, nodes in names.items() if alike(asked, name)}
        if len(found) == 1:
            ((_, nodes),) = found.values()
            return [by_node[node] for node in nodes]
        if found:
            raise _ambiguous(asked, [name for name, _ in found.values()])
    parts = dict.fromkeys(part for name in names for part in (name, *name.split(";")))
    reason = f"the model has no node or tensor '{asked}'.{closest(asked, parts)}"
    limit, remedy = "a name of the model, or the number of an instruction", "npuc explain OUT lists the nodes"
    raise ArtefactError("E508", reason, limit=limit, remedy=remedy)


def _names(entries: Sequence[Entry]) -> dict[str, dict[str, None]]:
    """Every name of the model with its nodes: a node's own name, else that of a tensor's writer, else of readers."""
    found: dict[str, dict[str, None]] = {each.node: {each.node: None} for each in entries}
    kinds: tuple[Iterator[tuple[str, str]], ...] = (
        ((name, each.node) for each in entries for name in each.tensors),
        ((name, each.node) for each in entries for name in each.reads),
        ((name, each.node) for each in entries for name in each.within),
    )
    for kind in kinds:
        new: dict[str, dict[str, None]] = {}
        for name, node in kind:
            new.setdefault(name, {})[node] = None
        found = {**new, **found}
    return found


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
    reason, remedy = f"{len(names)} names have the part '{asked}'", "give more of the name"
    return ArtefactError("E508", reason, limit=shown, remedy=remedy)
