"""The account of a model as text: where its nodes run, why not on the NPU, and what became of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from npuc.account import BORDER, FOLDED, HOST, NPU, REMOVED, SPLIT, Entry, Reason, groups, macs_share
from npuc.errors import NEEDLESS
from npuc.text.escaping import Shown, shown, terminal
from npuc.text.terminal import count, plural, short

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


def checked(entries: Sequence[Entry], found: Sequence[Reason], what: str, *, verbose: bool) -> str:
    """The results of `npuc check`. what: the model and the target. found: why nodes do not run on the target."""
    if entries and not found:
        return f"{what} runs all of it: {accounted(entries, found, verbose=verbose)[0]}"
    first, *others = accounted(entries, found, verbose=verbose)
    return "\n".join([f"{what}: {first}", *(f"  {each}" for each in others)])


def accounted(entries: Sequence[Entry], found: Sequence[Reason], *, verbose: bool) -> list[str]:
    """Where the model's nodes run: one line, and some for each reason. entries: empty if nothing runs it."""
    causes = [each for each in found if each.problem.code != NEEDLESS]
    grouped = [shown(each) for each in groups(causes)]
    places = Counter(each.place for each in entries)
    share, whole = macs_share(entries), sum(each.macs for each in entries)
    known = " known" if any(map(_uncounted, grouped)) else ""
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


def _uncounted(each: Shown) -> bool:
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
    costs += ["MACs not known"] if _uncounted(each) else []
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


def named(names: Sequence[str]) -> str:
    """Names of nodes, the first of many."""
    more = f" and {count(len(names) - MOST_NODES)} more" if len(names) > MOST_NODES else ""
    return ", ".join(map(short, names[:MOST_NODES])) + more
