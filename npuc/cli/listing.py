"""`npuc targets`, `operators`, `completion` and `rtl`: what there is, and a machine as a hardware description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuc.cli.options import (
    SuggestingChoice,
    json_option,
    limit_options,
    machine_option,
    modified_option,
    target_option,
)
from npuc.cli.output import PATH, announce_synthetic, answer, open_artefact, say, working, write_folder

if TYPE_CHECKING:
    from npuc.program import Program
    from npuc.samples.loading import Samples


@click.command()
@json_option
def targets(as_json: bool) -> None:
    """List the targets and their machines.

    \b
    Examples:
      npuc targets
      npuc targets --json
    """
    from npuc.registry import names
    from npuc.registry import target as find
    from npuc.reports import tables

    known = {name: find(name) for name in names()}
    found = [
        {"name": name, "summary": each.summary, "machines": each.machines(), "precisions": list(each.precisions)}
        for name, each in known.items()
    ]
    answer({"status": "ok", "targets": found}, tables.targets(found), as_json)


@click.command()
@target_option
@json_option
def operators(target: str, as_json: bool) -> None:
    """List the operators a target runs.

    \b
    Examples:
      npuc operators --target easynpu
      npuc operators --target bm1684 --json
    """
    from npuc.registry import target as find
    from npuc.reports import tables

    found = find(target).operators()
    answer({"status": "ok", "target": target, "operators": found}, tables.operators(found), as_json)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes commands, options, files, machines, passes, and the nodes and layers of a model or program.

    \b
    Examples:
      npuc completion bash > ~/.local/share/bash-completion/completions/npuc
      npuc completion zsh > ~/.zfunc/_npuc
      npuc completion fish > ~/.config/fish/completions/npuc.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    group = click.get_current_context().find_root().command
    say(found(group, {}, "npuc", "_NPUC_COMPLETE").source(), exact=True)


@click.command()
@click.argument("artefact", type=PATH, required=False)
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="The folder to create.")
@machine_option
@click.option("--data", type=PATH, multiple=True, help="The sample that the test bench runs (.npz).")
@click.option(
    "--resources",
    type=SuggestingChoice(("generic", "ice40", "ecp5")),
    multiple=True,
    help="Estimate the resources on a chip family with Yosys; takes minutes.",
)
@click.option("--system", is_flag=True, help="With ARTEFACT: its words and weights are in memory from the start.")
@modified_option
@limit_options
@json_option
def rtl(
    artefact: Path | None,
    output: Path,
    machine: str | None,
    data: tuple[Path, ...],
    resources: tuple[str, ...],
    system: bool,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Write EasyNPU as Verilog. With a test bench, and with ARTEFACT the steps of running it on a sample.

    \b
    Examples:
      npuc rtl -o core --machine mine.toml --resources ecp5
      npuc rtl resnet8.npu -o core --data test.npz
      npuc rtl digits.npu -o system --system
    """
    from npuc.registry import target

    if artefact is None:
        if data or system:
            raise click.UsageError("--data and --system need ARTEFACT")
        program, described = None, target("easynpu")
    else:
        if machine is not None:
            raise click.UsageError("ARTEFACT brings its machine: leave out --machine")
        found = open_artefact(artefact, allow_modified)
        program, described = found.program, found.target
    if not described.has_hardware:
        raise click.UsageError(f"{described.name} has no hardware description")
    samples = None if program is None else _samples(program, data)
    with working("rtl") as bar:
        bar.begin("writing Verilog" + (" and estimating resources" if resources else ""))
        files = described.hardware(machine, program, samples, resources, system=system)
    write_folder(files, output, as_json)


def _samples(program: Program, data: Sequence[Path]) -> Samples:
    """The user's samples, or a synthetic one."""
    from npuc.running import program_inputs
    from npuc.samples import loading as samples_of

    inputs = program_inputs(program)
    if data:
        return samples_of.load(data, inputs, images=program.images)
    samples = samples_of.synthetic(inputs, 1)
    announce_synthetic("run", "--data DATA.npz", samples)
    return samples
