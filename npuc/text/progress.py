"""Progress of long operations on a terminal; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from npuc.frozen import frozen
from npuc.text.escaping import terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Receives the progress of a command; this one shows nothing."""

    def begin(self, what: str, total: int | None = None) -> None:
        """Begins a part of the work; total: its number of steps, if known."""

    def advance(self, steps: int) -> None:
        """Reports that this many more steps are done."""


SILENT = Progress()


@contextmanager
def progress(label: str, *, quiet: bool = False) -> Generator[Progress]:
    """Shows progress on a terminal's stderr: a bar, steps if they are counted, and the elapsed time.

    It disappears at the end. In a pipe, or if quiet, nothing is shown.
    """
    if quiet or not sys.stderr.isatty():
        yield SILENT
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    parts = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[steps]}")
    with Bar(*parts, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        bar.add_task(label, total=None, steps="")
        yield _Shown(label, bar)


@frozen
class _Shown(Progress):
    """The progress bar of one command, with a single task."""

    label: str
    bar: Bar

    def begin(self, what: str, total: int | None = None) -> None:
        self.bar.tasks[0].total = total
        self._update(f"{self.label}: {what}", 0)
        self.bar.refresh()

    def advance(self, steps: int) -> None:
        task = self.bar.tasks[0]
        self._update(task.description, task.completed + steps)

    def _update(self, description: str, done: float) -> None:
        task = self.bar.tasks[0]
        steps = "" if task.total is None else f"{done:.0f}/{task.total:.0f}"
        self.bar.update(task.id, description=terminal(description), completed=done, steps=steps)
