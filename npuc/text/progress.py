"""Progress of long operations on a terminal; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from shutil import get_terminal_size
from time import monotonic

from npuc.text.escaping import terminal

CLEAR = "\r\x1b[K"
"""Returns to the start of a terminal's line, and empties it."""
OFTEN = 0.1
"""Seconds between two lines."""


class Progress:
    """Receives the progress of a command; this one shows nothing."""

    def begin(self, what: str, total: int | None = None) -> None:
        """Begins a part of the work; total: its number of steps, if known."""

    def advance(self, steps: int) -> None:
        """Reports that this many more steps are done."""


SILENT = Progress()


@contextmanager
def progress(label: str, *, quiet: bool = False, stages: bool = False) -> Generator[Progress]:
    """Shows progress on a terminal's stderr: what is done, its steps if they are counted, and the elapsed time.

    It disappears at the end. In a pipe, or if quiet, nothing is shown. stages: each part of the work is a line on
    stderr instead, with the seconds that it took.
    """
    if stages and not quiet:
        told = _Stages(label)
        yield told
        told.end()
        return
    if quiet or not sys.stderr.isatty():
        yield SILENT
        return
    try:
        yield _Line(label)
    finally:
        print(CLEAR, end="", file=sys.stderr, flush=True)


class _Stages(Progress):
    """A line for each part of the work when it is done."""

    def __init__(self, label: str) -> None:
        self.label, self.what, self.start = label, "", monotonic()

    def begin(self, what: str, total: int | None = None) -> None:
        self.end()
        self.what = what if total is None else f"{what} ({total})"

    def end(self) -> None:
        """Reports the part that is done."""
        now = monotonic()
        if self.what:
            print(terminal(f"{self.label}: {self.what}, {now - self.start:.1f} s"), file=sys.stderr, flush=True)
        self.start = now


class _Line(Progress):
    """One line of the terminal, written again and again."""

    def __init__(self, label: str) -> None:
        self.label, self.start, self.shown = label, monotonic(), 0.0
        self.what, self.total, self.done = "", None, 0

    def begin(self, what: str, total: int | None = None) -> None:
        self.what, self.total, self.done = what, total, 0
        self._show(monotonic())

    def advance(self, steps: int) -> None:
        self.done += steps
        if (now := monotonic()) - self.shown > OFTEN:
            self._show(now)

    def _show(self, now: float) -> None:
        steps = "" if self.total is None else f" {self.done}/{self.total}"
        text = terminal(f"{self.label}: {self.what}{steps}, {now - self.start:.0f} s")
        print(CLEAR + text[: get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
        self.shown = now
