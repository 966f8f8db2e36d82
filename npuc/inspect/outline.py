"""Structure of a listing: headings above instructions, from segments down to units, and notes behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from npuc.frozen import frozen
from npuc.host.step import HostStep


@frozen
class Name:
    """A name of the model inside a line: shown shortened, and escaped."""

    text: str


Line = tuple["str | Name", ...]
"""The consecutive pieces of a line."""


@frozen
class Heading:
    """Comment lines above the instructions start..start + count - 1; a note follows its instruction."""

    kind: Literal["segment", "layer", "operation", "unit", "note"]
    start: int
    count: int
    lines: tuple[Line, ...]

    def covers(self, index: int) -> bool:
        """Whether an instruction belongs to the heading."""
        return self.start <= index < self.start + self.count


def names_of(nodes: Sequence[str]) -> Line:
    """Names separated by commas.

    >>> names_of(["a", "b"])
    (Name(text='a'), ', ', Name(text='b'))
    """
    pieces: list[str | Name] = []
    for node in nodes:
        pieces += [", "] * bool(pieces) + [Name(node)]
    return tuple(pieces)


def host_line(step: HostStep) -> Line:
    """A description of a host step between segments."""
    given = (" -> ", *names_of(step.outputs)) if step.outputs else ()
    return (f"host   {step.op} ", *names_of(step.inputs), *given)


def by_nodes(entries: Iterable[Mapping[str, Any]]) -> list[Heading]:
    """A heading for each run of instructions with the same nodes, if nothing more is known of them."""
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
