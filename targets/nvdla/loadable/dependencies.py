"""The dependency graph of a task: which events of other operations each operation waits for.

An operation can name one consumer per engine. Engines run their operations in order, in two register groups: an
operation is programmed when the one before its predecessor has ended. So it suffices that the first operation of
an engine waits for what it needs, that each successor is enabled after its predecessor, and that neighbours of one
engine wait for one another if they share memory.

Source: The loadable (facts), Rules the firmware follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from npuc.targets.nvdla.loadable.accesses import Accesses, Needed, before
from npuc.targets.nvdla.loadable.descriptors import COMPLETED, ENABLED, ENGINES, NONE, PROGRAMMED, Common, Consumer


def graph(operations: Sequence[Accesses]) -> list[Common]:
    """The dependencies of operations, given in an order that computes correct results."""
    edges = _Edges(operations)
    edges.chains()
    edges.hazards(before(operations))
    edges.engines()
    return edges.result()


class _Edges:
    """Collects the edges of the graph."""

    def __init__(self, operations: Sequence[Accesses]) -> None:
        self.operations = operations
        self.consumers: list[dict[int, tuple[int, int]]] = [{} for _ in operations]
        """By operation and engine: the consumer and its event."""
        self.parents: dict[int, int] = {}
        self.waits: list[dict[int, int]] = [{} for _ in operations]
        """By operation and engine: the last operation that must have ended before it is enabled."""

    def chains(self) -> None:
        """Edges through the pipe: a consumer waits until its producer is programmed, which waits until that is
        enabled.
        """
        for at, each in enumerate(self.operations):
            if each.behind:
                self.consumers[at - 1][each.engine] = (at, PROGRAMMED)
                self.parents[at] = at - 1

    def hazards(self, needed: Sequence[Needed]) -> None:
        """Edges across engines: an operation waits for the last operation of each engine that it depends on."""
        for at, each in enumerate(self.operations):
            before = needed[at].to_read | needed[at].to_write
            for other in sorted(before):
                self.waits[at][self.operations[other].engine] = other
            for engine, other in self.waits[at].items():
                if engine != each.engine and each.engine not in self.consumers[other]:
                    self.consumers[other][each.engine] = (at, COMPLETED)

    def engines(self) -> None:
        """Edges between successive operations of each engine."""
        for engine in range(len(ENGINES)):
            own = [at for at, each in enumerate(self.operations) if each.engine == engine]
            for first, second in pairwise(own):
                self.consumers[first][engine] = (second, self._event(first, second))

    def _event(self, first: int, second: int) -> int:
        """What the second of two neighbours waits for: the first's end if they share memory, else its start.

        Waiting for the first to be programmed is not enough: the consumer of the second's result could enable the
        second first, and the firmware, which assumes that the group enabled last ends last, would then use the
        groups in another order than the hardware.
        """
        engine = self.operations[second].engine
        return COMPLETED if self.waits[second].get(engine) == first else ENABLED

    def result(self) -> list[Common]:
        """The descriptors, each with its number of incoming edges."""
        incoming = [0] * len(self.operations)
        for each in self.consumers:
            for consumer, _ in each.values():
                incoming[consumer] += 1
        for parent in self.parents.values():
            incoming[parent] += 1
        return [self._common(at, count) for at, count in enumerate(incoming)]

    def _common(self, at: int, count: int) -> Common:
        common = Common(index=at, engine=self.operations[at].engine, dependency_count=count)
        for engine, (consumer, event) in self.consumers[at].items():
            common = replace(common, **{ENGINES[engine].lower(): Consumer(index=consumer, event=event)})
        parent = self.parents.get(at, NONE)
        event = ENABLED if parent != NONE else COMPLETED
        return replace(common, fused_parent=Consumer(index=parent, event=event))
