"""`npuc diff`: what needs two programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc.cli.options import PATH, data_option, json_option, modified_option
from npuc.cli.output import load_program, print_json

if TYPE_CHECKING:
    from npuc.program import Program
    from npuc.target import Target


@click.command()
@click.argument("first", type=PATH)
@click.argument("second", type=PATH)
@data_option
@modified_option
@json_option
def diff(first: Path, second: Path, data: tuple[Path, ...], allow_modified: bool, as_json: bool) -> None:
    """Show what changed between two programs. With --data also how far their outputs are apart.

    \b
    npuc compile m.onnx --target easynpu -o a.npu
    npuc compile m.onnx --target easynpu -o b.npu --machine large
    npuc diff a.npu b.npu
    """
    from npuc import reports
    from npuc.difference import difference

    pair = load_program(first, allow_modified), load_program(second, allow_modified)
    report = difference(*pair)
    if data:
        report["outputs"] = _outputs(pair, data)
    if as_json:
        print_json(report)
    else:
        click.echo(reports.difference(report, first, second))


def _outputs(pair: tuple[tuple[Program, Target], tuple[Program, Target]], data: tuple[Path, ...]) -> list[Any]:
    """How far the second program's outputs are from the first's on the same samples.

    Raises DataError where the programs do not take the same samples, by the second's inputs.
    """
    from npuc import data as samples_of
    from npuc import driver
    from npuc.verification import Difference

    first, second = (
        driver.run_program(program, target, samples_of.load(data, driver.program_inputs(program)))
        for program, target in pair
    )
    found: list[Any] = []
    for name in [name for name in first if name in second and first[name].shape == second[name].shape]:
        apart = Difference()
        apart.add(first[name], second[name])
        found.append({"name": name, **apart.as_json()})
    return found
