"""The calls of a test program in an order that its sequencers may run them in.

In the environment of nv_small every block has a sequencer; sync_wait holds one until sync_notify of another, or
the monitor of an interrupt (intr_notify), announces an event. The file need not have its calls in such an order.
Source: the verification guide; nv_large's own test programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A call, and where it stands."""

    line: int
    text: str
    name: str
    words: tuple[str, ...]

    @property
    def sequencer(self) -> str:
        """The block whose sequencer makes the call."""
        return self.words[0].partition(".")[0].upper()


AROUND = ("mem_init", "mem_load", "mem_reserve")
CHECKS = ("check_crc", "check_file", "check_nothing")


class Deadlock(ValueError):
    """Every sequencer waits, and no interrupt announces what for."""


def in_order(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls; those of a program without sync_wait as they stand.

    An interrupt is waited for as late as can be: where nothing else goes on, or at the end. Raises Deadlock.
    """
    given = list(calls)
    if not any(each.name == "sync_wait" for each in given):
        yield from given
        return
    yield from (each for each in given if each.name in AROUND)
    yield from _run([each for each in given if each.name not in (*AROUND, *CHECKS)])
    yield from (each for each in given if each.name in CHECKS)


def _run(calls: list[Call]) -> Iterator[Call]:
    """What sequencers and monitors do."""
    monitors = [each for each in calls if each.name == "intr_notify"]
    queues: dict[str, deque[Call]] = {}
    for each in calls:
        if each.name != "intr_notify":
            queues.setdefault(each.sequencer, deque()).append(each)
    announced: set[str] = set()
    while any(queues.values()):
        heads = sorted((queue[0] for queue in queues.values() if queue), key=lambda each: each.line)
        ready = next((each for each in heads if each.name != "sync_wait" or each.words[-1] in announced), None)
        if ready is not None:
            yield queues[ready.sequencer].popleft()
            if ready.name == "sync_notify":
                announced.add(ready.words[-1])
            continue
        wanted = {each.words[-1] for each in heads}
        source = next((_source(each) for each in monitors if each.words[-1] in wanted), None)
        if source is None:
            raise Deadlock(", ".join(sorted(wanted)))
        first = next(each for each in monitors if _source(each) == source)  # those of a source come in their order
        monitors.remove(first)
        announced.add(first.words[-1])
        yield first
    yield from monitors


def _source(call: Call) -> str:
    """The block that raises an interrupt, whichever group of it."""
    return call.words[0].rpartition("_")[0].upper()
