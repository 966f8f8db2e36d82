"""`npuc diff`, `npuc compare` and `npuc sweep`: comparison of programs, and of machines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc.cli.options import (
    TargetChoice,
    TargetCommand,
    artefact_options,
    calibration_option,
    data_option,
    format_options,
    input_option,
    limit_options,
    machine_option,
    parse_options,
    scheduler_option,
    shape_option,
    strict_option,
    target_flags,
    target_option,
)
from npuc.cli.output import PATH, Artefact, answer, note, open_artefact, print_json, say, verbose, working
from npuc.flag import SYNTHETIC
from npuc.text.escaping import escape_report
from npuc.text.terminal import closest

if TYPE_CHECKING:
    from npuc.reports.comparison import Candidate, MachineGrid


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@data_option
@click.option(
    "--model", type=PATH, help="The model that both were compiled from; compares their accuracy on --data."
)
@click.option("-o", "--output", type=PATH, metavar="F.html", help="A page with both networks side by side.")
@artefact_options
def diff(
    first: Path,
    second: Path,
    data: tuple[Path, ...],
    model: Path | None,
    output: Path | None,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Show what changed between two programs. With --data also how far their outputs are apart.

    \b
    Examples:
      npuc compile m.onnx --target easynpu -o a.npu
      npuc compile m.onnx --target easynpu -o b.npu --machine large
      npuc diff a.npu b.npu
      npuc diff a.npu b.npu -o difference.html
      npuc diff a.npu b.npu --data test.npz --model m.onnx
    """
    from npuc.program import showing
    from npuc.reports import summaries
    from npuc.reports.difference import difference
    from npuc.storage.files import replacing

    pair = open_artefact(first, allow_modified), open_artefact(second, allow_modified)
    with showing(first):
        report = difference(*((each.program, each.target) for each in pair))
    if model is not None and not data:
        raise click.UsageError("--model needs --data")
    if data:
        report["outputs"] = _outputs(pair, data)
    if model is not None:
        report["accuracy"] = _accuracy(pair, data, model)
    told = summaries.difference(escape_report(report), first, second, verbose=verbose() > 0)
    if output is not None:
        page = _page(pair, report).encode()
        with replacing(output) as staging:
            staging.write_bytes(page)
        told = f"{output}: {len(page):,} bytes"
    answer({**report, "output": None if output is None else str(output)}, told, as_json)


def _page(pair: tuple[Artefact, Artefact], report: dict[str, Any]) -> str:
    """The difference as a page; programs are labelled by file name, or by path if the names are equal."""
    from npuc.program import showing
    from npuc.reports.difference_page import Side, difference_page

    alike = pair[0].path.name == pair[1].path.name
    sides: list[Side] = []
    for each in pair:
        with showing(each.path):
            name = str(each.path) if alike else each.path.name
            sides.append(Side(name, each.program))
    return difference_page(sides[0], sides[1], report)


def _accuracy(pair: Sequence[Artefact], data: tuple[Path, ...], model: Path) -> dict[str, Any]:
    """Accuracy of both programs against the model in fp32, by measure: the first program's and the second's."""
    from npuc.running import run_program
    from npuc.verification import metrics
    from npuc.verification.equivalence import expected_outputs

    found: list[dict[str, Any]] = []
    for each in pair:
        samples = each.samples(data)
        exact = expected_outputs(model, samples, each.program.images)
        found.append(metrics.scores(exact, run_program(each.program, each.target, samples), samples.labels))
    return {key: [each[key] for each in found] for key in found[0]}


def _outputs(pair: Sequence[Artefact], data: tuple[Path, ...]) -> list[Any]:
    """Difference of the second program's outputs from the first's on the same samples.

    Raises DataError if the programs do not accept the same samples, by the second's inputs.
    """
    from npuc.running import run_program
    from npuc.verification.metrics import Difference

    first, second = (run_program(each.program, each.target, each.samples(data)) for each in pair)
    found: list[Any] = []
    for name in [name for name in first if name in second and first[name].shape == second[name].shape]:
        apart = Difference()
        apart.add(first[name], second[name])
        found.append({"name": name, **apart.as_json()})
    return found


@click.command(cls=TargetCommand)
@click.argument("model", type=PATH)
@click.option("--target", "named", type=TargetChoice(), multiple=True, help="A target; repeat for more.")
@click.option(
    "--targets",
    metavar="T,T:MACHINE,..",
    help="Targets, each with an optional machine NAME or FILE after a colon.",
)
@click.option("--machine", "machines", metavar="NAME|FILE", multiple=True, help="Machines of the one --target.")
@shape_option
@target_flags
@strict_option
@calibration_option
@data_option
@input_option
@limit_options
@format_options("text", "json", "csv")
def compare(
    model: Path,
    named: tuple[str, ...],
    targets: str | None,
    machines: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    strict: bool,
    calibration: tuple[Path, ...],
    data: tuple[Path, ...],
    input: str | None,
    form: str,
    **flags: str | None,
) -> int:
    """Compare targets and machines. MODEL is compiled for each: cycles, time, memory, traffic, instructions.

    With --data also the accuracy of each: SQNR and argmax agreement against the model under onnxruntime, top-1 if
    the samples have labels `y`. A target that refuses the model is a row with its problems. Without --target and
    --targets: all of them.

    \b
    Examples:
      npuc compare resnet8.onnx
      npuc compare resnet8.onnx --target easynpu --machine large --machine my.toml
      npuc compare resnet8.onnx --targets easynpu,easynpu:large --data test.npz
    """
    from npuc.images.description import describe
    from npuc.reports import tables
    from npuc.reports.comparison import ComparedModel
    from npuc.reports.comparison import compare as compared
    from npuc.target import Options

    found = _candidates(named, targets, machines)
    own = {name: value for name, value in flags.items() if value is not None}
    subject = ComparedModel(model, shapes, calibration, data)
    with working("comparing") as bar:
        images = () if input is None else describe(input)
        report = compared(subject, found, Options(strict=strict, flags=own, input=images), bar)
    say(tables.comparison(report, form), exact=form != "text")
    return 0 if report["status"] == "ok" else 1


def _candidates(named: tuple[str, ...], targets: str | None, machines: tuple[str, ...]) -> list[Candidate]:
    """The distinct candidates. Raises UsageError for an unknown target, or machines without a single target."""
    from npuc.registry import TARGETS, names
    from npuc.reports.comparison import Candidate

    if machines and (len(named) != 1 or targets is not None):
        raise click.UsageError("--machine goes with one --target; with several write --targets TARGET:MACHINE,..")
    if machines:
        return [Candidate(named[0], machine) for machine in dict.fromkeys(machines)]
    listed = [each.strip() for each in targets.split(",")] if targets is not None else []
    found = [Candidate(each) for each in named]
    known = names() if listed else TARGETS
    for each in listed:
        name, colon, machine = each.partition(":")
        if name not in known or (colon and not machine):
            hint = closest(name, known)
            raise click.UsageError(f"--targets: '{each}' is not TARGET or TARGET:MACHINE.{hint}")
        found.append(Candidate(name, machine or None))
    return list(dict.fromkeys(found)) or [Candidate(name) for name in TARGETS]


@click.command(cls=TargetCommand)
@click.argument("model", type=PATH)
@target_option
@click.option(
    "--grid",
    "axes",
    metavar="NAME=V,V,..",
    multiple=True,
    required=True,
    help="A machine parameter and its values; repeat for more.",
)
@machine_option
@click.option(
    "--cost",
    "costs",
    metavar="NAME",
    multiple=True,
    help="The cost to trade against cycles: peak_bytes, traffic_bytes, instructions or a grid parameter "
    "[default: peak_bytes and traffic_bytes].",
)
@click.option("-o", "--output", type=PATH, metavar="F.html", help="A page with the Pareto fronts drawn.")
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel processes [default: one per CPU].")
@scheduler_option
@shape_option
@target_flags
@strict_option
@calibration_option
@input_option
@limit_options
@format_options("text", "json", "csv")
def sweep(
    model: Path,
    target: str,
    axes: tuple[str, ...],
    machine: str | None,
    costs: tuple[str, ...],
    output: Path | None,
    jobs: int | None,
    scheduler: str | None,
    shapes: dict[str, tuple[int, ...]],
    strict: bool,
    calibration: tuple[Path, ...],
    form: str,
    **flags: str | None,
) -> int:
    """Sweep machine parameters. MODEL is compiled for every machine of a grid; the best trade-offs are marked.

    A point is on the Pareto front of a cost if no other has fewer cycles at no higher cost. A machine that
    is not valid, or refuses the model, is listed with its problems.

    \b
    Examples:
      npuc sweep m.onnx --target easynpu --grid pe_rows=1,2,4 -o sweep.html
      npuc sweep m.onnx --target easynpu --grid psum_entries=32,64,128 \\
          --grid fmap_words=640,1280 --cost fmap_words --format csv
      npuc sweep m.onnx --target bm1684 --grid local_bytes=262144,524288 \\
          --scheduler tcp://10.0.0.1:8786
    """
    from npuc.registry import target as find
    from npuc.reports import tables
    from npuc.reports.comparison import ComparedModel
    from npuc.reports.comparison import sweep as swept

    grid = _grid(target, machine, axes)
    chosen = _costs(grid, costs)
    files = tuple(each if str(each) == SYNTHETIC else each.absolute() for each in calibration)
    subject = ComparedModel(model.absolute(), shapes, files)
    options = parse_options(find(target), strict=strict, **flags)
    with working("sweeping") as bar:
        bar.begin("compiling for every machine", len(grid.points()))
        report = swept(subject, grid, options, chosen, jobs or os.cpu_count() or 1, scheduler, bar.advance)
        if output is not None:
            bar.begin("drawing")
            _write_page(report, output)
    if form == "json":
        print_json({**report, "output": None if output is None else str(output)})
    else:
        say(tables.sweep_text(report, form), exact=form != "text")
        if output is not None:
            note(f"{output}: {output.stat().st_size:,} bytes")
    return 0 if report["status"] == "ok" else 1


def _write_page(report: Mapping[str, Any], output: Path) -> None:
    from npuc.reports.sweep_page import sweep_page
    from npuc.storage.files import replacing

    text = sweep_page(report)
    with replacing(output) as staging:
        staging.write_text(text, encoding="utf-8")


def _grid(target: str, machine: str | None, axes: tuple[str, ...]) -> MachineGrid:
    """The grid given by the options. Raises UsageError for unknown parameters and wrong types."""
    from npuc.registry import target as find
    from npuc.reports.comparison import MachineGrid

    known = {name: value for name, value in find(target).machine_values(machine).items() if name != "name"}
    found: dict[str, tuple[Any, ...]] = {}
    for axis in axes:
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise click.UsageError(f"--grid: '{axis}' is not of the form NAME=VALUE,VALUE,..")
        if name not in known:
            hint = closest(name, known)
            raise click.UsageError(f"{target} has no parameter '{name}'.{hint} It has: {', '.join(known)}")
        if name in found:
            raise click.UsageError(f"--grid names '{name}' twice")
        found[name] = tuple(dict.fromkeys(_value(name, text.strip(), known[name]) for text in values.split(",")))
    return MachineGrid(target, machine, found)


def _value(name: str, text: str, like: bool | int | str) -> bool | int | str:
    """A parameter's value, in the parameter's type."""
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text not in ("true", "false"):
            raise click.UsageError(f"--grid: {name} is true or false, not '{text}'")
        return text == "true"
    if not text.isdecimal() or len(text) > 18:
        raise click.UsageError(f"--grid: {name} is a number, not '{text}'")
    return int(text)


def _costs(grid: MachineGrid, costs: tuple[str, ...]) -> tuple[str, ...]:
    """The costs to trade off against cycles. Raises UsageError for unknown and non-numeric ones."""
    from npuc.reports.comparison import COSTS

    known = [*COSTS, *(name for name, values in grid.axes.items() if type(values[0]) is int)]
    for cost in costs:
        if cost not in known:
            raise click.UsageError(f"--cost: no '{cost}'.{closest(cost, known)} There are: {', '.join(known)}")
    return tuple(dict.fromkeys(costs)) or COSTS[:2]
