"""Graphs drawn from the declarations of operators, through every pass and through whole compiles.

    python benchmarks/random_graphs.py [--count N] [--seed S] [--target NAME]... [--out FOLDER] [--json]

A target is `exposed` (networks as exporters write them, of which any inner tensor may be an output or have a
second reader, for every target and precision in turn), `passes` (each pass separately, and all passes of a target
in order, against the float interpreter and onnxruntime), or a target with a precision such as `easynpu/int8`
(compiled, run on the chip model, compared bit for bit with the integer network, and with onnxruntime); default:
all in turn. Every finding is minimised and written to the folder as a model, its inputs and a description. Exit
code 1 if anything was found.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import click
import numpy as np

from npuc.onnx_files.export import to_onnx
from npuc.registry import TARGETS
from tests.graphs import exposing
from tests.graphs.checking import Finding, check_passes
from tests.graphs.compiling import CASES, HOSTED, Case, check_compile, varied
from tests.graphs.drawn import drawn
from tests.graphs.minimising import Sample, minimised

SECONDS = 20
"""The CPU time limit of a graph; a pass that never ends is also a finding."""
EVERY = 60.0
"""Seconds between lines of progress."""
PASSES, EXPOSED = "passes", "exposed"
STEPS = {PASSES: (1, 9)}
"""Operators or patterns in a graph; fewer in one that is compiled, so that fewer are refused."""
FEW = (1, 5)

Check = Callable[[Sample], "Finding | str"]


def out_of_time(_signal: int, _frame: FrameType | None) -> None:
    """Ends a check that takes too long."""
    raise TimeoutError(f"more than {SECONDS} s")


def passes_check(seed: int) -> Check:
    """Checks all passes separately, and the passes of one target in order, which alternates with the seed."""
    names = tuple(TARGETS)
    name = names[seed % len(names)]

    def check(sample: Sample) -> Finding | str:
        return next(check_passes(sample.graph, sample.feeds, sample.values, targets=(name,)), "ok")

    return check


def compile_check(case: Case, folder: Path) -> Check:
    """A whole compile for one target and precision."""

    def check(sample: Sample) -> Finding | str:
        return check_compile(sample.graph, sample.values, case, folder)

    return check


def exposed_check(seed: int, folder: Path) -> Check:
    """Such a network for one of the cases, which alternate; what is found is written to the folder."""
    what, model = exposing.drawn(seed)
    case = CASES[seed // len(exposing.PATTERNS) % len(CASES)]

    def check(_sample: Sample) -> Finding | str:
        found = exposing.check(model, case, what)
        if isinstance(found, Finding):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{EXPOSED}-{seed}.onnx").write_bytes(model.SerializeToString())
        return found

    return check


def run_check(check: Check, sample: Sample) -> Finding | str:
    """The finding of a check; every exception is a finding."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return check(sample)
    except Exception as error:
        return Finding("check", type(error).__name__, str(error)[:200])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def smallest(check: Check, sample: Sample, found: Finding) -> Sample:
    """A minimised sample with the same finding."""

    def fails(candidate: Sample) -> bool:
        again = run_check(check, candidate)
        return isinstance(again, Finding) and (again.where, again.kind) == (found.where, found.kind)

    return minimised(sample, fails)


def write_finding(folder: Path, name: str, seed: int, sample: Sample, found: Finding) -> None:
    """Writes the reproducer: model.onnx, inputs.npz, finding.txt."""
    place = folder / f"{name.replace('/', '-')}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "finding.txt").write_text(f"seed {seed}\n{found}\n\n{sample.graph}\n", encoding="utf-8")
    stacked = {each: np.stack([feed[each] for feed in sample.feeds]) for each in sample.graph.inputs}
    np.savez(place / "inputs.npz", **stacked)
    with suppress(Exception):  # the finding may be that the exporter fails; its text is written anyway
        (place / "model.onnx").write_bytes(to_onnx(sample.graph).SerializeToString())


@click.command()
@click.option("--count", default=1000, show_default=True, help="Graphs, over all targets together.")
@click.option("--seed", default=0, show_default=True, help="Of the first graph; each further one has the next.")
@click.option(
    "--target", "targets", multiple=True, help="passes, exposed, or TARGET/PRECISION; more than one may be given."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("found"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON.")
def main(count: int, seed: int, targets: Sequence[str], out: Path, as_json: bool) -> None:
    """Graphs drawn from the declarations of operators, through every pass and through whole compiles."""
    warnings.simplefilter("ignore")
    known = {PASSES: None, EXPOSED: None, **{str(case): case for case in CASES}}
    if unknown := [name for name in targets if name not in known]:
        raise click.UsageError(f"unknown target {unknown[0]}; known: {', '.join(known)}")
    names = list(targets) or [*known, *[PASSES] * 4]
    signal.signal(signal.SIGPROF, out_of_time)
    gc.disable()
    outcomes: Counter[tuple[str, str]] = Counter()
    findings: dict[str, int] = {}
    began, told, spent = perf_counter(), perf_counter(), Counter[str]()
    with TemporaryDirectory() as scratch, suppress(KeyboardInterrupt):  # the results so far are reported
        for number in range(seed, seed + count):
            name = names[number % len(names)]
            started = process_time()
            case = known[name]
            turn = number // len(names)
            if case is not None:
                check = compile_check(varied(case, turn), Path(scratch))
            else:
                check = exposed_check(turn, out) if name == EXPOSED else passes_check(turn)
            graph, net = drawn(number, steps=STEPS.get(name, FEW))
            sample = Sample(graph, net.values)
            found = run_check(check, sample)
            spent[name] += process_time() - started
            outcomes[name, found if isinstance(found, str) else "found"] += 1
            if isinstance(found, Finding):
                key = f"{name}: {found.where}: {found.kind}"
                findings[key] = findings.get(key, 0) + 1
                if findings[key] <= 2 and name != EXPOSED:
                    write_finding(out, name, number, smallest(check, sample, found), found)
                    click.echo(f"seed {number}: {found}", err=True)
            if number % 100 == 0:
                gc.collect()
            if perf_counter() - told > EVERY:
                told = perf_counter()
                click.echo(f"{number - seed + 1} graphs, {sum(findings.values())} findings", err=True)
    report(names, outcomes, findings, spent, perf_counter() - began, as_json=as_json)
    sys.exit(bool(findings))


def report(
    names: Sequence[str],
    outcomes: Counter[tuple[str, str]],
    findings: dict[str, int],
    spent: Counter[str],
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """The numbers of graphs that ran, were refused and had findings, by target."""
    rows: list[dict[str, object]] = []
    for name in dict.fromkeys(names):
        said = {what: number for (each, what), number in outcomes.items() if each == name}
        wrong, total = said.get("found", 0), sum(said.values())
        ran = sum(number for what, number in said.items() if what.startswith("ok"))
        rate = total / spent[name] if spent[name] else 0.0
        row = {
            "target": name,
            "graphs": total,
            "ran": ran,
            "partly_host": said.get(HOSTED, 0),
            "refused": total - ran - wrong,
            "found": wrong,
        }
        rows.append({**row, "per_cpu_second": round(rate, 1)})
    refusals: dict[str, int] = {}
    for (name, what), number in outcomes.most_common():
        if not what.startswith("ok") and what != "found":
            refusals[f"{name}: {what}"] = number
    if as_json:
        click.echo(
            json.dumps(
                {"targets": rows, "findings": findings, "refusals": refusals, "seconds": round(seconds, 1)},
                indent=2,
            )
        )
        return
    for row in rows:
        click.echo("  ".join(f"{key} {value}" for key, value in row.items()))
    for key, number in sorted(findings.items(), key=lambda each: -each[1]):
        click.echo(f"{number:6d}  {key}")
    for key, number in refusals.items():
        click.echo(f"{number:6d}  refused  {key}")
    click.echo(f"{sum(outcomes.values())} graphs in {seconds:.0f} s")


if __name__ == "__main__":
    main()
