"""One model on several machines, or over a grid of them: the cost and the accuracy of each program."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from npuc import running
from npuc.account import account_of, reasons
from npuc.driver import compile_model
from npuc.errors import ArtefactError, DataError, ModelError, NpucError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import Program, as_loaded
from npuc.reference import custom_ops, libraries
from npuc.regions.composite import target_of
from npuc.registry import target
from npuc.samples.loading import Samples
from npuc.samples.loading import load as load_samples
from npuc.storage import mapped
from npuc.storage.records import as_toml
from npuc.system import budget, interrupts
from npuc.system.cluster import on_cluster
from npuc.target import Options, Request, Shapes
from npuc.text.terminal import SILENT, Progress
from npuc.verification import metrics
from npuc.verification.equivalence import expected_outputs

Report = Mapping[str, Any]
FIGURES = ("cycles", "utilization", "traffic_bytes", "instructions", "npu_macs_share")
"""Figures copied from the compile report into a row; null if a target from another package lacks them."""


@frozen
class Candidate:
    """A target and one of its machines: a shipped one by name, or a TOML file."""

    target: str
    machine: str | None = None


@frozen
class ComparedModel:
    """The model to compile, its input shapes, calibration data and test data."""

    model: Path
    shapes: Shapes
    calibration: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()


def compare(
    subject: ComparedModel, candidates: Sequence[Candidate], options: Options, bar: Progress = SILENT
) -> dict[str, Any]:
    """The report of `npuc compare`: one row per candidate, in order; a refusing target's row has its problems.

    Raises ModelError and DataError, which concern all targets.
    """
    rows: list[dict[str, Any]] = []
    exact: dict[str, Array] | None = None
    samples: Samples | None = None
    bar.begin("compiling for every machine", len(candidates))
    for each in candidates:
        program, row = compile_candidate(subject, each, options)
        if program is not None and subject.data:
            samples = samples or load_samples(subject.data, running.program_inputs(program), images=program.images)
            exact = exact or expected_outputs(subject.model, samples, program.images)
            row |= _scores(program, samples, exact)
        rows.append(row)
        bar.advance(1)
    refused = all(row["status"] == "refused" for row in rows)
    return {
        "status": "error" if refused else "ok",
        "model": subject.model.name,
        "samples": None if samples is None else len(samples),
        "fp32_top1": None
        if samples is None or exact is None
        else metrics.task(next(iter(exact.values())), samples.labels)["top1"],
        "rows": rows,
        "errors": [problem for row in rows for problem in row["errors"]] if refused else [],
    }


def compile_candidate(
    subject: ComparedModel, each: Candidate, options: Options
) -> tuple[Program | None, dict[str, Any]]:
    """The program of a candidate and its row, without accuracy; no program if the target refuses.

    Raises ModelError and DataError.
    """
    machine = target(each.target)
    options = replace(options, machine=each.machine, precision=machine.precisions[0])
    try:
        request = Request(subject.model, machine, options, subject.calibration, subject.shapes)
        program, _ = compile_model(replace(request, synthetic=not subject.data))  # costs need no ranges
    except (ModelError, DataError):
        raise
    except NpucError as error:
        return None, _refusal_row(each, error)
    program = as_loaded(program)
    return program, _row(program, program.manifest["report"])


def _row(program: Program, report: Report) -> dict[str, Any]:
    """The costs of a program. Bytes: the sum of its peaks in all memories."""
    clock = report.get("clock_mhz")
    return {
        "target": report["target"],
        "machine": report["machine"],
        "status": "ok",
        "precision": program.precision,
        **{key: report.get(key) for key in FIGURES},
        "clock_mhz": clock,
        "milliseconds": None if clock is None else report["cycles"] / clock / 1e3,
        "peak_bytes": sum(use["peak_bytes"] for use in report["memory"].values()),
        "memory": report["memory"],
        "host_steps": len(report["host_steps"]),
        **metrics.UNKNOWN,
        "errors": [],
    }


def _refusal_row(each: Candidate, error: NpucError) -> dict[str, Any]:
    known = ("precision", *FIGURES, "clock_mhz", "milliseconds", "peak_bytes", "memory", "host_steps")
    problems = [problem.as_json() for problem in error.problems]
    place = {"target": each.target, "machine": each.machine or "default", "status": "refused"}
    return {**place, **dict.fromkeys(known), **metrics.UNKNOWN, "errors": problems}


def _scores(program: Program, samples: Samples, exact: Mapping[str, Array]) -> dict[str, Any]:
    """Scores of the simulated outputs; the problem if the program cannot be simulated here."""
    try:
        outputs = running.run_program(program, target_of(program), samples)
    except NpucError as error:
        return {"errors": [problem.as_json() for problem in error.problems]}
    return metrics.scores(exact, outputs, samples.labels)


Row = Mapping[str, Any]
Advance = Callable[[int], None]
COSTS = ("peak_bytes", "traffic_bytes", "instructions")
"""Report figures that can be traded off against cycles, besides the grid's own numeric parameters."""


@frozen
class MachineGrid:
    """Machines that differ from a base machine in the values of some parameters."""

    target: str
    machine: str | None
    axes: Mapping[str, tuple[Any, ...]]
    """The values of each parameter, in the order of the points."""

    def points(self) -> list[dict[str, Any]]:
        """The parameters of every machine; the last axis varies fastest."""
        return [dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())]


@frozen
class GridPoint:
    """A point of the grid, with everything that a process needs to compile it."""

    subject: ComparedModel
    target: str
    machine: Mapping[str, Any]
    parameters: Mapping[str, Any]
    options: Options
    limits: budget.ProcessLimits
    libraries: tuple[str, ...]


def sweep(
    subject: ComparedModel,
    grid: MachineGrid,
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
    surroundings = budget.limits(), libraries()
    tasks = [
        GridPoint(subject, grid.target, {**base, **point, "name": name_of(point)}, point, options, *surroundings)
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


def compiled_point(task: GridPoint) -> dict[str, Any]:
    """The row of a point; its machine is passed as a file, like a user's.

    A machine that leaves nodes to the host for their form or size is refused: it does not run the model.
    """
    allowed = budget.set_limits(task.limits.memory, task.limits.seconds)
    with TemporaryDirectory() as folder, allowed, custom_ops(task.libraries):
        path = Path(folder) / "machine.toml"
        path.write_text(as_toml(task.machine), encoding="utf-8")
        candidate = Candidate(task.target, str(path))
        program, row = compile_candidate(task.subject, candidate, task.options)
        left = () if program is None else [each.problem for each in reasons(account_of(program.manifest))]
        if problems := [each for each in left if each.code.startswith("E")]:
            row = _refusal_row(candidate, NpucError.of(problems))
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


def _in_processes(tasks: Sequence[GridPoint], jobs: int, advance: Advance) -> Iterator[dict[str, Any]]:
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
