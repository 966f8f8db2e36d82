"""`npuc dump`, `npuc assemble` and `npuc export`: the words and images of a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from npuc.cli.completing import LAYERS
from npuc.cli.options import (
    SuggestingChoice,
    TargetChoice,
    force_option,
    format_options,
    json_option,
    limit_options,
    modified_option,
    prefix_option,
    removed_options,
)
from npuc.cli.output import (
    PATH,
    Artefact,
    announce_synthetic,
    answer,
    note,
    open_artefact,
    quiet,
    say,
    write_folder,
)
from npuc.text.escaping import terminal, terminal_lines

if TYPE_CHECKING:
    from npuc.ir import Array
    from npuc.program import Program
    from npuc.reports.disassembly import Disassembly
    from npuc.target import Target

ANNOTATED, EXPLORED = OF_MODELS = "onnx-annotated", "model-explorer"
FORMATS = ("bin", "readmemh", "c", "okkernel", "nvdla-trace", "loadable", *OF_MODELS)
"""The formats of `export` that every target has: the model itself."""


@click.command()
@click.argument("path", type=PATH, required=False)
@format_options("text", "json", "csv")
@click.option("--layout", is_flag=True, help="Show the fields of every instruction word instead of a program.")
@click.option("--image", metavar="NAME", help="Show the bytes of an image and what they hold.")
@click.option("--target", type=TargetChoice(), help="Target machine family, for --layout and raw words.")
@click.option(
    "--layer",
    metavar="NAME",
    shell_complete=LAYERS,
    help="Show one node, layer or tensor (a part of its name will do).",
)
@click.option("--segment", type=click.IntRange(min=0), metavar="K", help="Show segment K only, counted from 0.")
@removed_options("full_names", "grep")
@modified_option
@limit_options
def dump(
    path: Path | None,
    form: str,
    layout: bool,
    image: str | None,
    target: str | None,
    layer: str | None,
    segment: int | None,
    allow_modified: bool,
) -> None:
    """Disassemble a program, raw words or an NVDLA loadable.

    With --layout: the fields of the words. With --image: the bytes of a file of the program. The text has a
    heading for each segment and a line for each layer; `npuc assemble` takes it as it is. A terminal gets colour
    (unless NO_COLOR is set) and lines that fit.

    \b
    Examples:
      npuc dump resnet8.npu
      npuc dump resnet8.npu --layer conv2d_1/Conv2D
      npuc dump resnet8.npu --segment 0
      npuc dump resnet8.npu --format csv > words.csv
      npuc dump resnet8.npu --image weight
      npuc dump --layout --target easynpu
    """
    from npuc.reports import tables

    if (layout or image is not None) and (layer, segment) != (None, None):
        raise click.UsageError("--layer and --segment are for instructions")
    if layout:
        if path is not None or image is not None:
            raise click.UsageError("--layout takes no PATH and no --image")
        say(tables.layout(_layout(target), form), exact=form != "text")
    elif path is None:
        raise click.UsageError("Missing argument 'PATH' (or --layout --target T).")
    elif image is not None:
        say(_image(open_artefact(path, allow_modified), image, form), exact=form != "text")
    else:
        found = _choose_part(*_disassemble(path, target, allow_modified), layer, segment)
        if form == "text":
            _print(found)
        else:
            say(tables.listing(found.entries, form), exact=form != "text")


def _layout(target: str | None) -> Mapping[str, Any]:
    """The instruction words of a target. Raises UsageError if it has none."""
    from npuc.registry import target as find

    if target is None:
        raise click.UsageError("--layout needs --target")
    words = find(target).layout()
    if not words:
        raise click.UsageError(f"{target} has no instruction words")
    return words


def _disassemble(path: Path, target: str | None, allow_modified: bool) -> tuple[Disassembly, Mapping[str, Any]]:
    """The instructions of a program, with its manifest, or of a file. Raises ArtefactError (E501) for none."""
    from npuc.errors import ArtefactError
    from npuc.reports.disassembly import Disassembly

    if not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises for a folder that may not be entered
        artefact = open_artefact(path, allow_modified)
        program, kind = artefact.program, artefact.target
        return Disassembly.of(kind.listing(program), kind.outline(program)), program.manifest
    entries = _target_of(path, target).raw_listing(path)
    if not entries:
        raise ArtefactError(
            "E501",
            f"'{path}' holds no instructions",
            limit="a program, or a file of its words",
            remedy="npuc compile MODEL.onnx --target T writes a program",
        )
    return Disassembly.of(entries, None), {}


def _target_of(path: Path, target: str | None) -> Target:
    """The target that lists a file: a loadable's own, the one asked for, or the first. Raises UsageError."""
    from npuc.registry import TARGETS
    from npuc.registry import target as find
    from npuc.targets.nvdla.machine.registers import REGISTER_TARGETS, is_loadable, is_register_program

    if is_loadable(path):
        return find(REGISTER_TARGETS[0])
    if target is None and is_register_program(path):
        raise click.UsageError(
            f"the file holds register records: --target {', '.join(REGISTER_TARGETS)} says whose"
        )
    return find(target or next(iter(TARGETS)))


def _choose_part(
    found: Disassembly, manifest: Mapping[str, Any], layer: str | None, segment: int | None
) -> Disassembly:
    """The requested part. Raises ArtefactError (E508) for an unknown name or segment."""
    from npuc.account import account_of, nodes_named
    from npuc.errors import ArtefactError
    from npuc.reports.explanation import other_names

    if segment is not None:
        number = len(found.segments)
        if segment >= number:
            limit = f"segments 0..{number - 1}" if number else "a program with segments"
            raise ArtefactError("E508", f"there is no segment {segment}", limit=limit)
        found = found.of_segment(segment)
    if layer is not None:
        others = other_names(manifest.get("report", {}), {}, found.entries)
        found = found.of_nodes(nodes_named(account_of(manifest), layer, others, found.entries))
    return found


COLOURS: Mapping[str, Mapping[str, Any]] = {
    "segment": {"fg": "cyan", "bold": True},
    "layer": {"fg": "green"},
    "operation": {"fg": "blue"},
    "unit": {"fg": "yellow"},
}


def _print(found: Disassembly) -> None:
    """Prints the disassembly, on a terminal in colour and truncated to its width."""
    terminal = sys.stdout.isatty()
    lines = found.lines(get_terminal_size().columns if terminal else None)
    if quiet() or not terminal or os.environ.get("NO_COLOR"):
        say("\n".join(each.text for each in lines))
        return
    for each in lines:
        colour = COLOURS.get(each.kind)
        click.echo(click.style(terminal_lines(each.text), **colour) if colour else terminal_lines(each.text))


def _image(artefact: Artefact, asked: str, form: str) -> str:
    """The hex view of an image."""
    from npuc.reports.disassembly import image_named, image_rows, image_view

    program = artefact.program
    name = image_named(program, asked)
    data = program.files[name]
    return image_view(name, len(data), image_rows(data, artefact.target.memory_annotations(program, name)), form)


@click.command()
@click.argument("listing", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The artefact to write.")
@click.option(
    "--image", "--images", "images", type=PATH, required=True, help="The artefact to copy the images from."
)
@force_option
@modified_option
@json_option
@limit_options
def assemble(listing: Path, output: Path, images: Path, force: bool, allow_modified: bool, as_json: bool) -> None:
    """Assemble a listing. The memory images come from another program.

    \b
    Examples:
      npuc dump resnet8.npu > resnet8.txt
      npuc assemble resnet8.txt --image resnet8.npu -o edited.npu
    """
    from dataclasses import replace

    from npuc import program as programs

    original = open_artefact(images, allow_modified)
    assembled = original.target.assemble(original.program, listing)
    programs.save(replace(assembled, evidence=original.with_evidence().evidence), output, force=force)
    words = assembled.manifest["report"]["instructions"]
    report = {"status": "ok", "instructions": words, "output": str(output)}
    answer(report, f"{words} instructions -> {output}", as_json)


def _of_model(artefact: Artefact, form: str, model: Path, data: tuple[Path, ...]) -> dict[str, bytes]:
    """The fate of each node of the model: inside the model, or for Model Explorer in a separate file.

    With data also the errors of layers on these samples.
    """
    from npuc.account import account_of
    from npuc.frontend.reading import read_model
    from npuc.program import file_sha256, showing
    from npuc.reports.layers import annotate, layers_of, node_data
    from npuc.text.escaping import json_text

    found, report = read_model(model), artefact.program.report
    entries = account_of(artefact.program.manifest)
    if data:
        checked = artefact.verify(model, artefact.samples(data))
        report = {**report, "layers": list(layers_of(report, checked))}
    if artefact.program.model.sha256 != file_sha256(model):
        told = f"{terminal(str(artefact.path))} was compiled from another file than {terminal(str(model))}"
        note(f"warning: {told}")
    with showing(artefact.path):
        if form == EXPLORED:
            known = node_data(found, report, entries)
            return {f"{key}.json": f"{json_text(each)}\n".encode() for key, each in known.items()}
        return {f"{model.stem}.onnx": annotate(found, report, entries).SerializeToString(deterministic=True)}


def _apply_prefix(program: Program, target: Target, form: str, prefix: str | None) -> Program:
    """The program with the name given by --prefix. Raises UsageError if it cannot have one, or not this one."""
    from npuc.host.c_text import identifier, with_prefix

    if prefix is None:
        return program
    if form not in target.named_exports:
        raise click.UsageError(f"--prefix is for files and functions with the network's name, not for '{form}'")
    if not identifier(prefix):
        raise click.UsageError(f"--prefix '{prefix}' has no letter or digit of ASCII for a name of C")
    return with_prefix(program, identifier(prefix))


SELF_TEST_SAMPLES = 2
"""A number that fits into firmware."""


def _vectors(program: Program, files: Sequence[Path]) -> Mapping[str, Array]:
    """The inputs of a self-test: the user's, or synthetic ones."""
    from npuc.running import program_inputs
    from npuc.samples import loading as samples_of

    inputs = program_inputs(program)
    if files:
        return samples_of.load(files, inputs, images=program.images).first(SELF_TEST_SAMPLES).inputs
    samples = samples_of.varied_samples(inputs, SELF_TEST_SAMPLES)
    announce_synthetic("self test", "--data DATA.npz", samples, "varied")
    return samples.inputs


@click.command()
@click.argument("artefact", type=PATH)
@click.option(
    "--format",
    "form",
    type=SuggestingChoice(FORMATS),
    metavar="FORMAT",
    required=True,
    help=f"One of {', '.join(FORMATS)}.",
)
@click.option(
    "--player",
    type=SuggestingChoice(("sequential", "sequencers", "verilator")),
    help="Who executes an nvdla-trace: sequential: a player that reads the file in order (default);"
    " sequencers: NVDLA's own environment, one sequencer per block; verilator: the test bench of NVDLA's tree.",
)
@click.option("--model", type=PATH, help=f"The model it was compiled from, for {' and '.join(OF_MODELS)}.")
@click.option(
    "--self-test",
    is_flag=True,
    help="Add samples, the outputs that npuc simulates, and a comparison (c, loadable, okkernel).",
)
@click.option(
    "--data",
    type=PATH,
    multiple=True,
    help="Samples (.npz) for the self test, which uses two, or for the errors of a model's layers.",
)
@prefix_option
@click.option("-o", "--output", type=PATH, required=True, help="The folder to create.")
@modified_option
@json_option
@limit_options
def export(
    artefact: Path,
    form: str,
    player: str | None,
    model: Path | None,
    self_test: bool,
    data: tuple[Path, ...],
    prefix: str | None,
    output: Path,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Write memory images for hardware. A map.json says what goes where.

    \b
    Examples:
      npuc export resnet8.npu --format readmemh -o images
      npuc export resnet8.npu --format c --self-test --data test.npz -o firmware
      npuc export resnet8.npu --format nvdla-trace --player sequencers -o trace
      npuc export r.npu --format onnx-annotated --model r.onnx --data t.npz -o a
      npuc export resnet8.npu --format model-explorer --model resnet8.onnx -o d
    """

    found = open_artefact(artefact, allow_modified)
    program, target = found.program, found.target
    if (model is None) == (form in OF_MODELS):
        raise click.UsageError(f"--model goes with {' and '.join(OF_MODELS)}")
    if form not in (*target.exports, *OF_MODELS):
        raise click.UsageError(f"{target.name} has no format '{form}'; it has: {', '.join(target.exports)}")
    if player is not None and (form != "nvdla-trace" or player not in target.players):
        raise click.UsageError(f"--player is for nvdla-trace, not for '{form}'")
    program = _apply_prefix(program, target, form, prefix)
    if data and not self_test and model is None:
        raise click.UsageError(f"--data is for --self-test, {' and '.join(OF_MODELS)}")
    if self_test and form not in target.self_tests:
        known = ", ".join(target.self_tests)
        raise click.UsageError(f"{target.name} has no self test in the format '{form}'; it has: {known or 'none'}")
    files = target.export(program, form, player) if model is None else _of_model(found, form, model, data)
    if self_test:
        files |= target.self_test(program, form, _vectors(program, data))
    write_folder(files, output, as_json)
