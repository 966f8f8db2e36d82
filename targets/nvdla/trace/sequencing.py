"""Orders the calls of a test program as its sequencers may run them.

In nv_small's environment every block has a sequencer; sync_wait blocks one until an event is announced by
sync_notify of another, or by the monitor of an interrupt (intr_notify). The file's order may differ.

Source: the verification guide; nv_large's own test programs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from npuc.frozen import frozen


@frozen
class Call:
    """A call and its line number."""

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
    """Every sequencer waits for an event that no interrupt announces."""


def in_order(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls in a valid order; in file order for a program without sync_wait.

    Interrupts are waited for as late as possible: when nothing else can run, or at the end. Raises Deadlock.
    """
    given = list(calls)
    if not any(each.name == "sync_wait" for each in given):
        yield from given
        return
    yield from (each for each in given if each.name in AROUND)
    yield from _run([each for each in given if each.name not in (*AROUND, *CHECKS)])
    yield from (each for each in given if each.name in CHECKS)


def _run(calls: list[Call]) -> Iterator[Call]:
    """Simulates the sequencers and monitors."""
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
        first = next(each for each in monitors if _source(each) == source)  # in file order
        monitors.remove(first)
        announced.add(first.words[-1])
        yield first
    yield from monitors


def _source(call: Call) -> str:
    """The block that raises an interrupt, in either group."""
    return call.words[0].rpartition("_")[0].upper()
