"""`npuc sweep`: a model over a grid of machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc.cli.options import (
    TargetCommand,
    asked,
    calibration_option,
    format_options,
    limit_options,
    machine_option,
    scheduler_option,
    shape_option,
    strict_option,
    target_flags,
    target_option,
)
from npuc.cli.output import note, print_json, say, working
from npuc.cli.paths import PATH
from npuc.flag import SYNTHETIC
from npuc.text.terminal import closest

if TYPE_CHECKING:
    from npuc.reports.comparison import MachineGrid


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
    options = asked(find(target), strict=strict, **flags)
    with working("sweeping") as bar:
        bar.begin("compiling for every machine", len(grid.points()))
        report = swept(subject, grid, options, chosen, jobs or os.cpu_count() or 1, scheduler, bar.advance)
        if output is not None:
            bar.begin("drawing")
            _write_page(report, output)
    if form == "json":
        print_json({**report, "output": None if output is None else str(output)})
    else:
        say(tables.swept(report, form), exact=form != "text")
        if output is not None:
            note(f"{output}: {output.stat().st_size:,} bytes")
    return 0 if report["status"] == "ok" else 1


def _write_page(report: Mapping[str, Any], output: Path) -> None:
    from npuc.page.sweep import sweep_page
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
