"""What stands above the instructions of a listing, segments down to units, and behind them: notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from npuc.host import HostStep


@dataclass(frozen=True)
class Name:
    """A name of the model inside a line: shown shortened, and escaped."""

    text: str


Line = tuple["str | Name", ...]
"""A line's pieces, one behind the other."""


@dataclass(frozen=True)
class Heading:
    """Comment lines above the instructions start..start + count - 1; a note stands behind the one it is for."""

    kind: Literal["segment", "layer", "operation", "unit", "note"]
    start: int
    count: int
    lines: tuple[Line, ...]

    def covers(self, index: int) -> bool:
        """Whether an instruction stands under it."""
        return self.start <= index < self.start + self.count


def names_of(nodes: Sequence[str]) -> Line:
    """Names between commas.

    >>> names_of(["a", "b"])
    (Name(text='a'), ', ', Name(text='b'))
    """
    pieces: list[str | Name] = []
    for node in nodes:
        pieces += [", "] * bool(pieces) + [Name(node)]
    return tuple(pieces)


def host_line(step: HostStep) -> Line:
    """What the host computes between segments."""
    given = (" -> ", *names_of(step.outputs)) if step.outputs else ()
    return (f"host   {step.op} ", *names_of(step.inputs), *given)


def by_nodes(entries: Iterable[Mapping[str, Any]]) -> list[Heading]:
    """A heading for each run of instructions that are for the same nodes, where nothing more is known of them."""
    found: list[Heading] = []
    for nodes, group in groupby(entries, lambda entry: tuple(entry["nodes"])):
        members = list(group)
        tensors = dict.fromkeys(entry["tensor"] for entry in members if entry["tensor"])
        if nodes or tensors:
            result: Line = (" -> ", *names_of(list(tensors))) if tensors else ()
            line = (*names_of(nodes), *result)
            found.append(Heading("layer", members[0]["index"], len(members), (line,)))
    return found


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Each name's shortest end, in whole parts, that no other name ends in; the name itself where there is none.

    Parts stand between slashes; of names fused with semicolons the last one counts.

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
"""Parts of a name that are tried; a longer one is shown as it is."""


def _ends(name: str) -> list[str]:
    """The ends of a name's last part, the shortest first."""
    parts = name.rsplit(";", 1)[-1].rsplit("/", MOST_PARTS)
    ends = ["/".join(parts[-count:]) for count in range(1, min(len(parts), MOST_PARTS) + 1)]
    return [end for end in ends if end.strip()]
