"""`npuc report`, `npuc trace` and `npuc explain`: what a program is and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npuc.cli.completing import LAYERS
from npuc.cli.options import artefact_options, chip_options, data_option, expect_chip_model, removed_options
from npuc.cli.output import PATH, Artefact, answer, open_artefact, working, write_output
from npuc.text.escaping import escape_report

if TYPE_CHECKING:
    from npuc.reports.page import Evidence
    from npuc.samples.loading import Samples

SAMPLES = 64
"""The most samples of the data used for histograms and errors."""
PICTURES, THUMBNAIL, LINES = 8, 128, 8
"""The most pictures, pixels of their longer side, lines of what outputs say."""
SYNTHETIC, MACS = 4, 4_000_000_000
"""Synthetic samples: one of each kind, fewer for large networks, up to this number of MACs but at least one."""


@click.command()
@click.argument("artefact", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, metavar="F.html", help="The report to write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "csv", "json"]),
    default="html",
    show_default=True,
    help="html: a page; csv: a line per layer; json: the whole report.",
)
@click.option("--model", type=PATH, help="The model it was compiled from; adds the error of each layer.")
@data_option
@chip_options
@artefact_options
def report(
    artefact: Path,
    output: Path,
    form: str,
    model: Path | None,
    data: tuple[Path, ...],
    chip_model: str,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Write a program's report. One HTML file, which opens from disk without network.

    \b
    Examples:
      npuc report resnet8.npu -o resnet8.html
      npuc report resnet8.npu -o resnet8.csv --format csv
      npuc report resnet8.npu -o r.html --model resnet8.onnx --data samples.npz
    """
    from npuc.program import showing

    found = open_artefact(artefact, allow_modified)
    expect_chip_model(found.target, chip_model)
    if chip_model != "own" and model is None:
        raise click.UsageError(f"--chip-model {chip_model} needs --model")
    with working("reporting") as bar:
        bar.begin("simulating" if model is None else "simulating and verifying")
        if form == "html":
            from npuc.reports.page import page

            evidence = _evidence(found, model, data, chip_model)
            bar.begin("drawing")
            with showing(artefact):
                text = page(found.program, found.target, evidence).encode()
        else:
            text = _table(found, form, model, data, chip_model)
    write_output(output, text, as_json)


def _table(artefact: Artefact, form: str, model: Path | None, data: tuple[Path, ...], chip_model: str) -> bytes:
    """The report as CSV or JSON, with the errors of layers if a model is given."""
    from npuc.program import showing
    from npuc.reports.layers import as_csv, layers_of
    from npuc.text.escaping import json_text

    checked = (
        None if model is None else artefact.verify(model, _samples(artefact, data).first(SAMPLES), chip_model)
    )
    with showing(artefact.path):
        report = artefact.program.report
        layers = list(layers_of(report, checked))
        found = as_csv(layers) if form == "csv" else json_text({**report, "layers": layers})
    return f"{found}\n".encode()


def _evidence(artefact: Artefact, model: Path | None, data: tuple[Path, ...], chip_model: str) -> Evidence:
    """Results of simulation and verification on the data, or on a few synthetic samples."""
    from npuc.driver import float_passes
    from npuc.reports.page import Evidence, histograms
    from npuc.target import FLOATING

    program, target = artefact.program, artefact.target
    samples = _samples(artefact, data)
    pictures, samples = _pictures(artefact, data, samples), samples.first(SAMPLES)
    about = f"{len(samples)} {'synthetic ' if samples.synthetic else ''}samples"
    graph = artefact.graph()
    values = {} if program.precision in FLOATING else histograms(target.runner(program), samples)
    found = Evidence(graph, values, about, pictures=pictures)
    if model is None:
        return found
    checked = artefact.verify(model, samples, chip_model)
    told = [each["text"] for each in graph.get("rewrites", ())]
    return replace(found, verification=checked, passes=float_passes(model, program, target, told))


def _pictures(artefact: Artefact, data: Sequence[Path], samples: Samples) -> list[tuple[str, bytes, list[str]]]:
    """Name, PNG and answer of the first samples, if they are pictures."""
    from npuc.running import run_program
    from npuc.verification.answers import Reader, answers, as_text, draw_answer, picture_files

    reader, few = Reader.of(artefact.program, ()), samples.first(PICTURES)
    files = picture_files(data, len(samples) * reader.batch)[:PICTURES]
    if reader.described is None or not files:
        return []
    said = answers(reader, run_program(artefact.program, artefact.target, few), len(few))[: len(files)]
    return [
        (file.name, draw_answer(file, reader.described, each, THUMBNAIL), [*as_text(each)][:LINES])
        for file, each in zip(files, said, strict=True)
    ]


def _samples(artefact: Artefact, data: tuple[Path, ...]) -> Samples:
    """Samples of the data, or a few synthetic ones."""
    from npuc.running import program_inputs
    from npuc.samples.loading import varied_samples

    if data:
        return artefact.samples(data)
    few = min(SYNTHETIC, max(MACS // max(artefact.program.report["macs"], 1), 1))
    return varied_samples(program_inputs(artefact.program), few)


@click.command()
@click.argument("artefact", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, metavar="F.pftrace", help="The trace to write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["perfetto", "json"]),
    default="perfetto",
    show_default=True,
    help="Perfetto's own format, or Chrome's trace events. The Perfetto UI opens both.",
)
@removed_options("stepping")
@data_option
@chip_options
@artefact_options
def trace(
    artefact: Path,
    output: Path,
    form: str,
    data: tuple[Path, ...],
    chip_model: str,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Write a run of a program as a trace for Perfetto. A nanosecond is a cycle.

    https://ui.perfetto.dev opens it: a lane for every engine, counters for memories, bytes and multipliers, and
    flows from what computes a tensor to what reads it.

    \b
    Examples:
      npuc trace resnet8.npu -o resnet8.pftrace
      npuc trace resnet8.npu -o resnet8.json --format json
      npuc trace resnet8.npu -o resnet8.pftrace --chip-model rtl --data test.npz
    """
    from npuc.program import showing
    from npuc.reports import tracing

    subject = open_artefact(artefact, allow_modified)
    expect_chip_model(subject.target, chip_model)
    if data and chip_model == "own":
        raise click.UsageError("--data needs a chip model that counts cycles: --chip-model rtl")
    measured = None if chip_model == "own" else _measure_cycles(subject, data, chip_model)
    with showing(artefact):
        timeline = subject.target.timeline(subject.program)
        found = tracing.trace(subject.program, timeline if measured is None else timeline.with_cycles(measured))
        content = (tracing.perfetto if form == "perfetto" else tracing.chrome)(found)
    slices = len(found.slices)
    text = f", {slices} slices in {len(found.lanes)} lanes"
    counted = {"cycles": timeline.cycles, "slices": slices, "counters": len(found.counters)}
    write_output(output, content, as_json, text, **counted)


def _measure_cycles(artefact: Artefact, data: tuple[Path, ...], chip_model: str) -> Sequence[int]:
    """Cycles of each layer on the hardware description, for a sample of the data or a synthetic one.

    Raises Mismatch (E602) unless they add up to those of the cycle model.
    """
    from npuc.errors import Mismatch
    from npuc.target import layer_cycles_of

    target, found = artefact.target, None
    if chip_model == "rtl":
        runner = target.runner(artefact.program, chip_model)
        runner(_samples(artefact, data).first(1).inputs)
        found = layer_cycles_of(runner)
    if found is None:
        raise click.UsageError(f"{target.name}: the chip model '{chip_model}' counts no cycles of single layers")
    took, cycles = sum(found), artefact.program.report["cycles"]
    if took != cycles:
        raise Mismatch("E602", f"the chip model took {took} cycles", limit=f"{cycles} of the cycle model")
    return found


@click.command()
@click.argument("artefact", type=PATH)
@click.argument("node", shell_complete=LAYERS)
@click.option("--model", type=PATH, help="The model it was compiled from; adds measured errors.")
@data_option
@artefact_options
def explain(
    artefact: Path, node: str, model: Path | None, data: tuple[Path, ...], allow_modified: bool, as_json: bool
) -> None:
    """Explain what became of a node. NODE is a node, tensor or layer of the model, or an instruction's number.

    \b
    Examples:
      npuc explain resnet8.npu Conv_3
      npuc explain resnet8.npu 12
      npuc explain resnet8.npu Conv_3 --model resnet8.onnx --data test.npz
    """
    from npuc.program import showing
    from npuc.reports import summaries
    from npuc.reports.explanation import explanation

    subject = open_artefact(artefact, allow_modified)
    graph = subject.graph()
    if data and model is None:
        raise click.UsageError("--data needs --model")
    checked = None if model is None else subject.verify(model, _samples(subject, data).first(SAMPLES))
    with showing(artefact):
        found = explanation(subject.program, subject.target, graph, node, checked)
        answer(found, summaries.explanation(escape_report(found)), as_json)
