"""The command line: options in, calls to the driver, text or JSON out. Contract: docs/cli.md.

Everything heavy is imported by the command that needs it, so that `npuc --help` starts at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc import __version__
from npuc.errors import NpucError

if TYPE_CHECKING:
    from npuc.data import Samples
    from npuc.ir import Graph
    from npuc.program import Program
    from npuc.target import Target

TARGET_NAMES = ("easynpu",)


def main() -> None:
    """Entry point: exit code 0 done, 1 refused or out of tolerance, 2 usage."""
    wants_json = "--json" in sys.argv[1:] or _asks_for_json(sys.argv[1:])
    try:
        sys.exit(npuc.main(standalone_mode=False, prog_name="npuc") or 0)
    except NpucError as error:
        if wants_json:
            _print_json({"status": "error", "errors": [problem.as_json() for problem in error.problems]})
        click.echo(str(error), err=True)
        sys.exit(1)
    except click.ClickException as error:
        if wants_json:
            reason = error.format_message()
            fields = dict.fromkeys(("node", "op", "tensor", "limit"), None)
            entry = {"code": "usage", "reason": reason, **fields, "remedy": "npuc --help"}
            _print_json({"status": "error", "errors": [entry]})
        error.show()
        sys.exit(error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)


def _asks_for_json(arguments: list[str]) -> bool:
    pairs = zip(arguments, arguments[1:], strict=False)
    return "--format=json" in arguments or ("--format", "json") in pairs


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


class Shape(click.ParamType[tuple[str, tuple[int, ...]]]):
    """NAME=1,3,224,224, split at the last `=`."""

    name = "NAME=1,3,224,224"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        """The input's name and its extents."""
        if isinstance(value, tuple):
            return value
        name, equals, extents = str(value).rpartition("=")
        try:
            shape = tuple(int(extent) for extent in extents.split(",")) if extents else ()
        except ValueError:
            shape = (0,)
        if not equals or not name or any(extent < 1 for extent in shape):
            self.fail(f"'{value}' is not of the form NAME=1,3,224,224", param, ctx)
        return name, shape


def _path(**options: Any) -> click.Path:
    return click.Path(path_type=Path, **options)


target_option = click.option("--target", type=click.Choice(TARGET_NAMES), required=True, help="The machine's kind.")
machine_option = click.option("--machine", metavar="NAME|FILE", help="A shipped machine, or a TOML file.")
shape_option = click.option("--input-shape", "shapes", type=Shape(), multiple=True, help="Binds dynamic dimensions.")
data_option = click.option("--data", type=_path(), multiple=True, help="Samples (.npz).")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
modified_option = click.option("--allow-modified", is_flag=True, help="Load files that do not match their sha256.")
strict_option = click.option("--strict", is_flag=True, help="Refuse every host step but input/output conversion.")
isa_option = click.option(
    "--isa", type=click.Choice(("documented", "extended")), default="extended", help="Allow extension words or not."
)


@click.group(name="npuc", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="npuc")
def npuc() -> None:
    """Compiles ONNX models into programs for neural processing units, and proves each program."""


@npuc.command("compile")
@click.argument("model", type=_path())
@target_option
@click.option("-o", "--output", type=_path(), help="The artefact [default: ./STEM.npu].")
@click.option("--calibration", type=_path(), multiple=True, help="Samples to choose scales from (.npz).")
@machine_option
@shape_option
@click.option("--precision", type=click.Choice(("int8", "int16", "fp16")), default="int8", help="Number format.")
@isa_option
@strict_option
@click.option("-O", "level", type=click.Choice(("0", "1", "2")), default="1", help="0: min-max scales; 1, 2: MSE.")
@click.option("--allow", metavar="NAME", multiple=True, help="Allow one kind of inexact rewrite.")
@click.option("--dump-after", metavar="PASS", multiple=True, help="Print the graph after a pass.")
@click.option("--force", is_flag=True, help="Replace an output that is not an npuc artefact.")
@click.option("-v", "--verbose", is_flag=True, help="Passes with their times, and a line per layer.")
@json_option
def compile_command(
    model: Path,
    target: str,
    output: Path | None,
    calibration: tuple[Path, ...],
    machine: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    precision: str,
    isa: str,
    strict: bool,
    level: str,
    allow: tuple[str, ...],
    dump_after: tuple[str, ...],
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Compile MODEL.onnx into a program."""
    from npuc import driver, program, reports
    from npuc.target import Options
    from npuc.target import target as find

    machine_kind = find(target)
    _expect_known(machine_kind, precision, allow, dump_after)
    options = Options(machine, precision, isa, strict, "minmax" if level == "0" else "mse")

    def hook(name: str, before: Graph, after: Graph, seconds: float) -> None:
        if verbose:
            change = f"{len(before.nodes)} -> {len(after.nodes)} nodes"
            click.echo(f"pass {name:<24} {seconds * 1e3:7.2f} ms  {change}", err=True)
        if name in dump_after:
            click.echo(f"after {name}:\n{after}", err=True)

    directory = output or Path(f"{model.stem}.npu")
    program.expect_replaceable(directory, force=force)
    compiled, samples = driver.compile_model(model, machine_kind, options, dict(shapes), calibration, hook)
    if samples.synthetic:
        _announce_synthetic("calibrated", "--calibration DATA.npz")
    program.save(compiled, directory, force=force)
    report = {"status": "ok", **compiled.manifest["report"]}
    if as_json:
        _print_json(report)
    else:
        click.echo(reports.compiled(report, directory, verbose=verbose))


def _announce_synthetic(what: str, remedy: str) -> None:
    click.echo(f"note: {what} on synthetic data (8 normal samples, fixed seed); give real data with {remedy}", err=True)


def _expect_known(target: Target, precision: str, allow: tuple[str, ...], dump_after: tuple[str, ...]) -> None:
    """Raises UsageError for options that this target lacks."""
    from npuc.driver import passes_of

    if precision != "int8":
        raise click.UsageError(f"{target.name} computes in int8 only; --precision {precision} is not for it")
    if allow:
        raise click.UsageError(f"{target.name} has no inexact rewrite named '{allow[0]}'")
    known = [each.__name__ for each in passes_of(target)]
    for name in dump_after:
        if name not in known:
            raise click.UsageError(f"no pass is named '{name}'; passes: {', '.join(known)}")


@npuc.command()
@click.argument("artefact", type=_path())
@click.option("--data", type=_path(), multiple=True, required=True, help="Samples (.npz).")
@click.option("-o", "--output", type=_path(), required=True, help="Where the outputs go (.npz).")
@modified_option
@json_option
def run(artefact: Path, data: tuple[Path, ...], output: Path, allow_modified: bool, as_json: bool) -> None:
    """Simulate a program on samples; outputs are floats in the model's own names and shapes."""
    from npuc import data as samples_of
    from npuc import driver
    from npuc.text import progress

    program, target = _load(artefact, allow_modified)
    samples = samples_of.load(data, driver.program_inputs(program))
    with progress("simulating", len(samples)) as advance:
        outputs = driver.run_program(program, target, samples, advance)
    samples_of.save(output, outputs)
    shapes = {name: list(values.shape) for name, values in outputs.items()}
    if as_json:
        _print_json({"status": "ok", "samples": len(samples), "outputs": shapes})
    else:
        for name, shape in shapes.items():
            click.echo(f"{name}: {shape} -> {output}")


def _load(artefact: Path, allow_modified: bool) -> tuple[Program, Target]:
    import warnings

    from npuc import program
    from npuc.target import target

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = program.load(artefact, allow_modified=allow_modified)
    for each in caught:
        click.echo(f"warning: {each.message}", err=True)
    return loaded, target(loaded.target)


@npuc.command()
@click.argument("model", type=_path())
@click.argument("artefact", type=_path())
@data_option
@click.option("--samples", "count", type=click.IntRange(min=1), help="Use at most this many samples.")
@click.option("--min-sqnr", type=float, default=10.0, show_default=True, metavar="DB", help="Tolerance on outputs.")
@click.option("--min-cosine", type=float, default=0.95, show_default=True, metavar="C", help="Tolerance on outputs.")
@modified_option
@json_option
def verify(
    model: Path,
    artefact: Path,
    data: tuple[Path, ...],
    count: int | None,
    min_sqnr: float,
    min_cosine: float,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Compare a program with MODEL under onnxruntime, output by output and layer by layer."""
    from npuc import reports
    from npuc import verify as verification
    from npuc.text import progress

    program, target = _load(artefact, allow_modified)
    samples = _samples(program, data, count)
    tolerance = verification.Tolerance(min_sqnr, min_cosine)
    with progress("verifying", len(samples)) as advance:
        report = verification.verify(
            model, artefact, program, target, samples, tolerance, allow_modified=allow_modified, advance=advance
        )
    if as_json:
        _print_json(report)
    else:
        click.echo(reports.verified(report, tolerance))
    if report["status"] != "ok":
        sys.exit(1)


def _samples(program: Program, data: tuple[Path, ...], count: int | None) -> Samples:
    """The samples of the data files, or announced synthetic ones."""
    from npuc import data as samples_of
    from npuc.driver import program_inputs

    inputs = program_inputs(program)
    if data:
        return samples_of.load(data, inputs).first(count)
    _announce_synthetic("verified", "--data DATA.npz")
    return samples_of.synthetic(inputs, seed=1).first(count)


@npuc.command()
@click.argument("path", type=_path(), required=False)
@click.option("--format", "form", type=click.Choice(("text", "json", "csv")), default="text", help="Output format.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--layout", is_flag=True, help="The fields of every instruction word instead of a program.")
@click.option("--target", type=click.Choice(TARGET_NAMES), help="The machine's kind, for --layout and raw words.")
@modified_option
def dump(
    path: Path | None, form: str, as_json: bool, layout: bool, target: str | None, allow_modified: bool
) -> None:
    """Disassemble a program or a file of raw words, or print the instruction layout."""
    from npuc import reports
    from npuc.target import target as find

    form = "json" if as_json else form
    if layout:
        if target is None:
            raise click.UsageError("--layout needs --target")
        click.echo(reports.layout(find(target).layout(), form))
        return
    if path is None:
        raise click.UsageError("Missing argument 'PATH' (or --layout --target T).")
    if path.is_file():
        listing = find(target or TARGET_NAMES[0]).raw_listing(path)
    else:
        program, machine_kind = _load(path, allow_modified)
        listing = machine_kind.listing(program)
    click.echo(reports.listing(listing, form))


@npuc.command()
@click.argument("listing", type=_path())
@click.option("-o", "--output", type=_path(), required=True, help="The new artefact.")
@click.option("--images", type=_path(), required=True, help="The artefact whose images are copied.")
@click.option("--force", is_flag=True, help="Replace an output that is not an npuc artefact.")
@modified_option
@json_option
def assemble(listing: Path, output: Path, images: Path, force: bool, allow_modified: bool, as_json: bool) -> None:
    """Assemble LISTING into a program with the memory images of another."""
    from dataclasses import replace

    from npuc import program as programs

    original, target = _load(images, allow_modified)
    assembled = target.assembled(original, listing)
    evidence = programs.load_evidence(images, original, allow_modified=allow_modified)
    programs.save(replace(assembled, evidence=evidence), output, force=force)
    words = assembled.manifest["report"]["instructions"]
    if as_json:
        _print_json({"status": "ok", "instructions": words, "output": str(output)})
    else:
        click.echo(f"{words} instructions -> {output}")


@npuc.command()
@click.argument("artefact", type=_path())
@click.option("--format", "form", type=click.Choice(("bin", "readmemh")), required=True, help="File format.")
@click.option("-o", "--output", type=_path(), required=True, help="A new folder.")
@modified_option
@json_option
def export(artefact: Path, form: str, output: Path, allow_modified: bool, as_json: bool) -> None:
    """Write the memory images for hardware or a test bench, with a map of what goes where."""
    from npuc import program as programs

    program, target = _load(artefact, allow_modified)
    files = target.exported(program, form)
    programs.save_files(files, output)
    if as_json:
        _print_json({"status": "ok", "files": sorted(files), "output": str(output)})
    else:
        for name in sorted(files):
            click.echo(f"{output / name}  {len(files[name]):,} bytes")


@npuc.command()
@json_option
def targets(as_json: bool) -> None:
    """List the targets and the machines that ship with each."""
    from npuc import reports
    from npuc.target import TARGETS
    from npuc.target import target as find

    found = [{"name": name, "summary": TARGETS[name][2], "machines": find(name).machines()} for name in TARGETS]
    if as_json:
        _print_json({"status": "ok", "targets": found})
    else:
        click.echo(reports.targets(found))


@npuc.command()
@target_option
@json_option
def operators(target: str, as_json: bool) -> None:
    """List the operators a target runs, and their constraints."""
    from npuc import reports
    from npuc.target import target as find

    found = find(target).operators()
    if as_json:
        _print_json({"status": "ok", "target": target, "operators": found})
    else:
        click.echo(reports.operators(found))


@npuc.command()
@click.argument("model", type=_path())
@target_option
@machine_option
@shape_option
@isa_option
@strict_option
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def check(
    model: Path,
    target: str,
    machine: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    isa: str,
    strict: bool,
    form: str,
    as_json: bool,
) -> None:
    """List everything in MODEL that a target cannot run, all at once."""
    from npuc import driver
    from npuc.target import Options
    from npuc.target import target as find

    options = Options(machine=machine, isa=isa, strict=strict)
    found = driver.problems(model, find(target), dict(shapes), options)
    if as_json or form == "json":
        status = "error" if found else "ok"
        _print_json({"status": status, "target": target, "errors": [problem.as_json() for problem in found]})
    elif found:
        click.echo("\n".join(str(problem) for problem in found), err=True)
    else:
        click.echo(f"{model}: {target} runs all of it")
    if found:
        sys.exit(1)
