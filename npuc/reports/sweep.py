"""A model over a grid of machines: every point is compiled, in parallel processes or on a Dask cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.registry import target
from npuc.reports.comparison import Candidate, Subject, compiled
from npuc.storage import mapped
from npuc.storage.machine_files import as_toml
from npuc.system import budget, interrupts
from npuc.system.cluster import on_cluster
from npuc.target import Options

Row = Mapping[str, Any]
Advance = Callable[[int], None]
COSTS = ("peak_bytes", "traffic_bytes", "instructions")
"""Report figures that can be traded off against cycles, besides the grid's own numeric parameters."""


@frozen
class Grid:
    """Machines that differ from a base machine in the values of some parameters."""

    target: str
    machine: str | None
    axes: Mapping[str, tuple[Any, ...]]
    """The values of each parameter, in the order of the points."""

    def points(self) -> list[dict[str, Any]]:
        """The parameters of every machine; the last axis varies fastest."""
        return [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]


@frozen
class Task:
    """A point of the grid, with everything that a process needs to compile it."""

    subject: Subject
    target: str
    machine: Mapping[str, Any]
    parameters: Mapping[str, Any]
    options: Options
    limits: budget.Limits


def sweep(
    subject: Subject,
    grid: Grid,
    options: Options,
    costs: Sequence[str],
    jobs: int = 1,
    scheduler: str | None = None,
    advance: Advance = lambda _: None,
) -> dict[str, Any]:
    """The report of `npuc sweep`: one point per machine in the grid's order, whichever process computed it.

    costs: from COSTS or the grid's parameters; each point lists those for which it is on the Pareto front with
    cycles. Raises ModelError and DataError, ArtefactError (E507) if the cluster fails.
    """
    base = target(grid.target).machine_values(grid.machine)
    tasks = [
        Task(subject, grid.target, {**base, **point, "name": name_of(point)}, point, options, budget.limits())
        for point in grid.points()
    ]
    if scheduler:
        rows = list(on_cluster(compiled_point, lambda _: tasks, scheduler, advance))
    else:
        rows = list(_in_processes(tasks, jobs, advance))
    fronts = {cost: front(rows, cost) for cost in costs}
    refused = all(row["status"] == "refused" for row in rows)
    points = [
        {**row, "front": [cost for cost in costs if number in fronts[cost]]} for number, row in enumerate(rows)
    ]
    return {
        "status": "error" if refused else "ok",
        "model": subject.model.name,
        "target": grid.target,
        "machine": base["name"],
        "grid": {name: list(values) for name, values in grid.axes.items()},
        "costs": list(costs),
        "points": points,
        "errors": [problem for row in rows for problem in row["errors"]] if refused else [],
    }


def name_of(point: Mapping[str, Any]) -> str:
    """The name of a point's machine.

    >>> name_of({"psum_entries": 32, "pe_rows": 2})
    'psum_entries=32 pe_rows=2'
    """
    return " ".join(f"{name}={json.dumps(value)}" for name, value in point.items())


def compiled_point(task: Task) -> dict[str, Any]:
    """The row of a point; its machine is passed as a file, like a user's."""
    allowed = budget.limited(task.limits.memory, task.limits.seconds)
    with TemporaryDirectory() as folder, allowed:
        path = Path(folder) / "machine.toml"
        path.write_text(as_toml(task.machine), encoding="utf-8")
        _, row = compiled(task.subject, Candidate(task.target, str(path)), task.options)
    return {**row, "machine": task.machine["name"], "parameters": dict(task.parameters)}


def front(rows: Sequence[Row], cost: str) -> set[int]:
    """The indices of the Pareto-optimal rows in cycles and a cost.

    >>> points = [{"pe_rows": rows} for rows in (1, 2, 3, 4)]
    >>> cycles = (10, 8, 9, 8)
    >>> rows = [{"status": "ok", "cycles": c, "parameters": p} for c, p in zip(cycles, points)]
    >>> sorted(front(rows, "pe_rows"))
    [0, 1]
    """
    found: set[int] = set()
    best = (float("inf"), 0.0)
    priced = [(price(row, cost), row["cycles"], at) for at, row in enumerate(rows) if tells(row, cost)]
    for paid, cycles, at in sorted(priced):
        if cycles < best[0]:
            best = (cycles, paid)
        if (cycles, paid) == best:
            found.add(at)
    return found


def tells(row: Row, cost: str) -> bool:
    """Whether the machine ran the model, and its target reports this cost."""
    return row["status"] == "ok" and (cost in row["parameters"] or row.get(cost) is not None)


def price(row: Row, cost: str) -> float:
    """The cost of a row: a report figure, or a parameter of its machine."""
    return row["parameters"][cost] if cost in row["parameters"] else row[cost]


def _in_processes(tasks: Sequence[Task], jobs: int, advance: Advance) -> Iterator[dict[str, Any]]:
    """The rows in order; with one job they are computed in this process."""
    if min(jobs, len(tasks)) == 1:
        for task in tasks:
            yield compiled_point(task)
            advance(1)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    try:
        workers = min(jobs, len(tasks)), get_context("spawn"), interrupts.as_worker, (mapped.folder(),)
        with ProcessPoolExecutor(*workers) as pool, _ending():
            with interrupts.unheard():
                rows = [pool.submit(compiled_point, task) for task in tasks]  # map would cancel after an error
            for row in rows:
                yield row.result()
                advance(1)
    except BrokenProcessPool:
        reason = "a process of the sweep was killed, perhaps for lack of memory"
        raise ArtefactError("E507", reason, remedy="run fewer side by side with --jobs") from None


@contextmanager
def _ending() -> Generator[None]:
    """Ends the processes of a sweep that stops early."""
    from multiprocessing import active_children

    try:
        yield
    except BaseException:
        for each in active_children():
            each.terminate()
        raise
