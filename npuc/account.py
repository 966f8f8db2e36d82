"""What every program's manifest reports: common fields, and the account of its model as data and as text.

The account tells what became of each node of the user's file, by its own name and tensors: where it runs, and why
not on the NPU. It is made while compiling (`npuc.regions.accounting`), and read by every report.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from npuc.errors import NEEDLESS, ArtefactError, Problem
from npuc.frozen import frozen
from npuc.storage.records import read
from npuc.text.escaping import Shown, escape_report, terminal
from npuc.text.terminal import closest, count, plural, short


@frozen
class MemoryUse:
    """The use of a memory over the whole program."""

    peak_bytes: int
    capacity_bytes: int | None
    lower_bound_bytes: int


@frozen
class HostNode:
    """A node that the target's own program leaves to the host."""

    node: str
    op: str
    reason: str


@frozen
class ReportLayer:
    """A layer that the machine computes."""

    name: str
    op: str
    nodes: tuple[str, ...]
    macs: int
    cycles: int


@frozen
class Partition:
    """A part of the model. place: npu or host; bytes: what crosses to it and from it."""

    place: str
    path: str | None
    macs: int
    bytes_in: int
    bytes_out: int


@frozen
class PartLoss:
    """What an NPU part costs: the outputs' signal to noise in dB with only it in integers; None if exact."""

    path: str
    sqnr_db: float | None
    node: str
    """The node of the model whose layer adds the most noise within the part."""


@frozen
class WholeLoss:
    """The outputs' signal to noise in dB on held-out samples, and what the parts cost, the worst one first."""

    samples: int
    sqnr_db: float | None
    parts: tuple[PartLoss, ...]


@frozen
class Report:
    """The report of a compile; targets add fields of their own."""

    target: str
    machine: str
    instructions: int
    segments: int
    macs: int
    cycles: int
    ideal_cycles: float
    utilization: float | None
    memory: Mapping[str, MemoryUse]
    host_steps: tuple[HostNode, ...]
    layers: tuple[ReportLayer, ...]
    partitions: tuple[Partition, ...] = ()
    npu_macs_share: float | None = None
    executed_macs: int | None = None
    macs_per_cycle: float | None = None
    bytes_per_cycle: float | None = None
    whole: WholeLoss | None = None
    """Of a program of several parts that was calibrated on samples."""


ACCOUNT = "account"
"""The entry of the manifest."""
NPU, SPLIT, HOST, BORDER, FOLDED, REMOVED = "npu", "split", "host", "border", "folded", "removed"
"""Where a node runs: on the NPU; in part on the host; on the host; on the host, where it only converts what enters
or leaves a program; nowhere, since its result is a constant; nowhere, since nothing is left to compute."""
MOST_SHOWN = 4
"""The most names shown in an error."""


@frozen
class Entry:
    """A node of the model's file, in the file's own names."""

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
    """The manifest's entry, in JSON's own types."""
    found: list[dict[str, Any]] = json.loads(json.dumps([asdict(each) for each in entries]))
    return found


def account_of(manifest: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The account in a manifest; empty in a part of a program. Raises ArtefactError (E502) if it is damaged."""
    return read(tuple[Entry, ...], manifest.get(ACCOUNT, []), ACCOUNT)


@frozen
class Reason:
    """Why a node does not run on the NPU, and where it runs instead; its MACs, and the bytes that cross for it."""

    problem: Problem
    place: str = HOST
    macs: int = 0
    bytes: int = 0


def reasons(entries: Sequence[Entry]) -> Iterator[Reason]:
    """Why nodes run on the host; what a node costs is told with its first reason."""
    for entry in entries:
        for at, each in enumerate(entry.problems):
            costs = (0, 0) if at else (entry.macs - entry.macs_on_npu, entry.bytes_in + entry.bytes_out)
            yield Reason(replace(each, node=entry.node), HOST, *costs)


def groups(found: Iterable[Reason]) -> list[dict[str, Any]]:
    """Reasons by operator and cause, with their nodes, in the order of the first node of each."""
    gathered: dict[tuple[str | None, ...], list[Reason]] = {}
    for each in found:
        problem = each.problem
        gathered.setdefault((problem.op, problem.code, problem.reason, each.place), []).append(each)
    return [
        {
            "op": op,
            "code": code,
            "reason": reason,
            "limit": members[0].problem.limit,
            "remedy": members[0].problem.help,
            "count": len(members),
            "nodes": [each.problem.node for each in members],
            "macs": sum(each.macs for each in members),
            "bytes": sum(each.bytes for each in members),
            "place": place,
        }
        for (op, code, reason, place), members in gathered.items()
    ]


def macs_share(entries: Sequence[Entry]) -> float | None:
    """The share of the model's MACs on the NPU, 0..1; None for a model without any."""
    whole = sum(each.macs for each in entries)
    return sum(each.macs_on_npu for each in entries) / whole if whole else None


def nodes_named(
    entries: Sequence[Entry], asked: str, others: Mapping[str, Sequence[str]], listing: Sequence[Mapping[str, Any]]
) -> set[str]:
    """The nodes of a name: of a node, a tensor or anything else in the model, or of a part of such a name.

    others: further names, of layers and their tensors, with their nodes. listing: the instructions, whose numbers
    are names too. A name found exactly comes first; the parts are those between slashes, those of names joined by
    semicolons, and names without a converter's number. Raises ArtefactError (E508) if nothing matches, and for a
    part that several names share.
    """
    names = {name: {*nodes} for name, nodes in (*others.items(), *_names(entries).items())}
    numbers = {str(each["index"]): {*each["nodes"]} for each in listing}
    if asked in names or asked in numbers:
        return names[asked] if asked in names else numbers[asked]
    for alike in (_last_part, _part, _is_numbered, _end, _inside):
        found = {frozenset(nodes): name for name, nodes in names.items() if alike(asked, name)}
        if len(found) == 1:
            return {*next(iter(found))}
        if found:
            raise _ambiguity_error(asked, list(found.values()))
    parts = dict.fromkeys(part for name in names for part in (name, *name.split(";")))
    reason = f"the program has no node, tensor or layer '{asked}'.{closest(asked, parts)}"
    limit = f"a name of the model, or an instruction 0..{len(listing) - 1}"
    raise ArtefactError("E508", reason, limit=limit, remedy="npuc dump OUT shows the nodes of every instruction")


def _names(entries: Sequence[Entry]) -> dict[str, dict[str, None]]:
    """Every name of the model with its nodes: its own node, else a tensor's writer, else its readers."""
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


def _is_numbered(asked: str, name: str) -> bool:
    """Whether `name` is `asked` with a number, which converters append to make fused names unique: Conv2D1."""
    return any(part.startswith(asked) and part[len(asked) :].isdecimal() for part in name.split(";"))


def _end(asked: str, name: str) -> bool:
    return bool(asked) and any(part.endswith(f"/{asked}") for part in name.split(";"))


def _inside(asked: str, name: str) -> bool:
    return bool(asked) and any(f"/{asked}/" in f"/{part}/" for part in name.split(";"))


def _ambiguity_error(asked: str, names: Sequence[str]) -> ArtefactError:
    shown = ", ".join(f"'{each}'" for each in names[:MOST_SHOWN]) + ", ..." * (len(names) > MOST_SHOWN)
    reason, remedy = f"{len(names)} names have the part '{asked}'", "give more of the name"
    return ArtefactError("E508", reason, limit=shown, remedy=remedy)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """For each name the shortest suffix of whole parts that no other name has; the name itself if there is none.

    Parts are separated by slashes; of names joined with semicolons by fusion the last one counts.

    >>> short_names(["m/a/Relu;m/c1/Conv", "m/c2/Conv", "m/pool"])
    {'m/a/Relu;m/c1/Conv': 'c1/Conv', 'm/c2/Conv': 'c2/Conv', 'm/pool': 'pool'}
    """
    distinct = dict.fromkeys(names)
    ends = {name: _ends(name) for name in distinct}
    count: dict[str, int] = {}
    for each in ends.values():
        for end in each:
            count[end] = count.get(end, 0) + 1
    return {name: next((end for end in each if count[end] == 1), name) for name, each in ends.items()}


MOST_PARTS = 16
"""The most parts of a name that are tried; a longer name is shown in full."""


def _ends(name: str) -> list[str]:
    """The suffixes of a name's last part, shortest first."""
    parts = name.rsplit(";", 1)[-1].rsplit("/", MOST_PARTS)
    ends = ["/".join(parts[-count:]) for count in range(1, min(len(parts), MOST_PARTS) + 1)]
    return [end for end in ends if end.strip()]


PLACES = {
    NPU: "on the NPU",
    SPLIT: "in part on the host",
    HOST: "on the host",
    BORDER: "only changing layouts on the host",
    FOLDED: "folded into constants",
    REMOVED: "left out",
}
MOST_REASONS, MOST_NODES, MOST_LETTERS = 5, 3, 160
"""The most reasons, nodes of one, and letters of its limit that are shown unless asked for all."""


def check_summary(entries: Sequence[Entry], found: Sequence[Reason], what: str, *, verbose: bool) -> str:
    """The results of `npuc check`. what: the model and the target. found: why nodes do not run on the target."""
    if entries and not found:
        return f"{what} runs all of it: {place_lines(entries, found, verbose=verbose)[0]}"
    first, *others = place_lines(entries, found, verbose=verbose)
    return "\n".join([f"{what}: {first}", *(f"  {each}" for each in others)])


def place_lines(entries: Sequence[Entry], found: Sequence[Reason], *, verbose: bool) -> list[str]:
    """Where the model's nodes run: one line, and some for each reason. entries: empty if nothing runs it."""
    causes = [each for each in found if each.problem.code != NEEDLESS]
    grouped = [escape_report(each) for each in groups(causes)]
    places = Counter(each.place for each in entries)
    share, whole = macs_share(entries), sum(each.macs for each in entries)
    known = " known" if any(map(_is_uncounted, grouped)) else ""
    macs = "" if share is None else f", {100 * share:.1f} % of the{known} MACs"
    others = "".join(
        f"; {count(places[place])} {PLACES[place]}" for place in PLACES if place != NPU and places[place]
    )
    lines = [f"{places[NPU]:,} of {plural(len(entries), 'node')} on the NPU{macs}{others}"] if entries else []
    if entries and not places[NPU] and places[HOST]:
        lines = [f"NOTHING runs on the NPU: the host runs all of the model ({plural(len(entries), 'node')})"]
    most = len(grouped) if verbose else MOST_REASONS
    for each in grouped[:most]:
        lines += _reason(each, whole, verbose=verbose)
    left = grouped[most:]
    lines += [f"{plural(len(left), 'more reason')}: -v shows all"] if left else []
    return lines + _between([each for each in found if each.problem.code == NEEDLESS], verbose=verbose)


UNCOUNTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "If", "Loop", "Scan")
"""Operators that multiply, themselves or in subgraphs: MACs of 0 mean that their number is unknown."""


def _is_uncounted(each: Shown) -> bool:
    return each["op"] in UNCOUNTED and not each["macs"]


def _between(found: Sequence[Reason], *, verbose: bool) -> list[str]:
    """The nodes that run on the host for their neighbours' sake."""
    if not found:
        return []
    nodes = list(dict.fromkeys(each.problem.node or "" for each in found))
    named = ", ".join(f"'{short(terminal(name))}'" for name in (nodes if verbose else nodes[:MOST_NODES]))
    more = f" and {count(len(nodes) - MOST_NODES)} more" if len(nodes) > MOST_NODES and not verbose else ""
    return [f"host: {named}{more}: {found[0].problem.reason} [{NEEDLESS}]"]


def _reason(each: Shown, macs: int, *, verbose: bool) -> list[str]:
    """Why nodes run on the host, and how to avoid it."""
    costs = [f"{100 * each['macs'] / macs:.1f} % of the MACs"] if each["macs"] else []
    costs += ["MACs not known"] if _is_uncounted(each) else []
    costs += [f"{count(each['bytes'])} bytes cross"] if each["bytes"] else []
    told = f" ({', '.join(costs)})" if costs else ""
    names = each["nodes"] if verbose else each["nodes"][:MOST_NODES]
    named = ", ".join(f"'{short(name)}'" for name in names if name)
    more = f" and {count(each['count'] - len(names))} more" if each["count"] > len(names) else ""
    lines = [f"{each['place']}: {each['op']} {named}{more}{told}: {each['reason']} [{each['code']}]"]
    limit = each["limit"] or ""
    if len(limit) > MOST_LETTERS and not verbose:
        limit = f"{limit[:MOST_LETTERS]}..."
    lines += [f"  limit: {limit}"] if limit else []
    return lines + ([f"  remedy: {each['remedy']}"] if each["remedy"] else [])


def fate(entry: Shown, asked: str = "", *, named: bool = True) -> list[str]:
    """What became of a node of the model, whose name comes first if `named`. asked: one of its tensors may be."""
    where = [PLACES[entry["place"]], *entry["paths"], *([entry["because"]] if entry["because"] else [])]
    where += [f"with {', '.join(entry['into'])}"] if entry["into"] else []
    crossing = entry["bytes_in"] + entry["bytes_out"]
    where += [f"{count(entry['macs'])} MACs"] if entry["macs"] else []
    where += [f"{count(round(entry['cycles']))} cycles"] if entry["cycles"] else []
    where += [f"{count(crossing)} bytes cross"] if crossing else []
    lines = [f"{entry['op']} '{entry['node']}': " * named + ", ".join(where)]
    for why in entry["problems"]:
        lines.append(f"  {why['op']}: {why['reason']} [{why['code']}]")
        lines += [f"    limit: {why['limit']}"] if why["limit"] else []
        lines += [f"    remedy: {why['remedy']}"] if why["remedy"] else []
    if asked in entry["tensors"]:
        now = entry["tensors"][asked]
        lines.append(f"  tensor {asked}: " + (f"its value is {now}" if now else "its value is not kept"))
    return lines


def list_names(names: Sequence[str]) -> str:
    """Names of nodes, the first of many."""
    more = f" and {count(len(names) - MOST_NODES)} more" if len(names) > MOST_NODES else ""
    return ", ".join(map(short, names[:MOST_NODES])) + more
