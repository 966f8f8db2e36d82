"""`npuc run` and `npuc verify`: commands on a program and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc.cli.options import (
    artefact_options,
    chip_options,
    data_option,
    expect_chip_model,
    labels_option,
    removed_options,
)
from npuc.cli.output import (
    PATH,
    Artefact,
    announce_left_out,
    announce_synthetic,
    answer,
    open_artefact,
    verbose,
    working,
)
from npuc.text.escaping import escape_report, terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuc.program import Program
    from npuc.samples.loading import Samples
    from npuc.verification.answers import Reader


@click.command()
@click.argument("artefact", type=PATH)
@data_option
@click.option(
    "-o", "--output", type=PATH, help="The file to write outputs to (.npz), or a picture with boxes (.png)."
)
@labels_option
@click.option(
    "--trace", type=PATH, metavar="FILE.vcd", help="Write the waveforms of the first sample (--chip-model rtl)."
)
@click.option("--integer", is_flag=True, help="Run the integer network under onnxruntime in place of the words.")
@removed_options("stepping")
@chip_options
@artefact_options
def run(
    artefact: Path,
    data: tuple[Path, ...],
    output: Path | None,
    labels: Path | None,
    trace: Path | None,
    integer: bool,
    chip_model: str,
    allow_modified: bool,
    as_json: bool,
) -> None:
    """Simulate a program on samples.

    Prints what the outputs say: the best classes, boxes, text, or numbers. In a file they are floats in the
    model's own names and shapes.

    \b
    Examples:
      npuc run resnet8.npu --data test.npz -o y.npz
      npuc run mobilenet.npu --data cat.jpg --labels names.txt
      npuc run yolo.npu --data street.jpg -o boxes.png
      npuc run resnet8.npu --data test.npz -o y.npz --integer
      npuc run resnet8.npu --data test.npz -o y.npz --chip-model rtl --trace s.vcd
    """
    from npuc import running
    from npuc.images.description import labels_of
    from npuc.regions.variants import choose_variant
    from npuc.reports import summaries
    from npuc.samples.loading import save
    from npuc.target import cycles_of
    from npuc.verification.answers import Reader, answers, picture_files
    from npuc.verification.batches import integer_runner

    if not data:
        raise click.UsageError("Missing option '--data'.")
    artefact = choose_variant(artefact, data, allow_modified=allow_modified)
    found = open_artefact(artefact, allow_modified)
    program, target = found.program, found.target
    expect_chip_model(target, chip_model)
    if integer:
        _expect_integer(program, others=chip_model != "own" or trace is not None)
    if trace is not None and chip_model != "rtl":
        raise click.UsageError("--trace needs --chip-model rtl: the waveforms are those of the hardware")
    traced = None if trace is None else target.trace_runner(program, trace)
    if trace is not None and traced is None:
        raise click.UsageError(f"{target.name} has no waveforms for --trace")
    samples = found.samples(data)
    reader = Reader.of(program, labels_of(labels) if labels is not None else ())
    with working("running") as bar:
        bar.begin("simulating", len(samples))
        runner = integer_runner(found.with_evidence()) if integer else traced or target.runner(program, chip_model)
        outputs = running.run_batches(runner, samples, bar.advance, running.batch_of(program))
        files = picture_files(data, len(samples) * reader.batch)
        said = answers(reader, outputs, len(samples)) if output is None or files else []
        if output is not None:
            bar.begin("writing")
            if output.suffix.lower() == ".png":
                _draw(output, reader, files, said)
            else:
                save(output, outputs)
    shapes = {name: list(values.shape) for name, values in outputs.items()}
    cycles = cycles_of(runner)
    counts = {} if cycles is None else {"cycles": cycles}
    lines = [] if cycles is None else [f"{summaries.count(cycles)} cycles a sample"]
    if output is not None:
        lines += [f"{terminal(name)}: {shape} -> {output}" for name, shape in shapes.items()]
    lines += _answer_lines(files, said)
    told = [{"sample": str(files[at]) if files else at, **each} for at, each in enumerate(said)]
    where = None if output is None else str(output)
    report = {"status": "ok", "output": where, "samples": len(samples), "outputs": shapes, **counts}
    answer(report | ({"answers": told} if told else {}), "\n".join(lines), as_json)


ANSWERED = 20
"""The most samples whose answers are printed; -v prints all, as --json does."""


def _answer_lines(files: Sequence[Path], said: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of what the first samples say."""
    from npuc.verification.answers import as_text

    lines: list[str] = []
    most = len(said) if verbose() else ANSWERED
    for at, each in enumerate(said[:most]):
        lines.append(terminal(str(files[at])) if files else f"sample {at}")
        lines += [f"  {terminal(line)}" for line in as_text(each)]
    return [*lines, f"{len(said) - most} more (-v shows them all)"] if len(said) > most else lines


def _draw(output: Path, reader: Reader, files: Sequence[Path], said: Sequence[Mapping[str, Any]]) -> None:
    """Writes the boxes of the only sample into a picture. Raises UsageError for anything else."""
    from npuc.storage.files import replacing
    from npuc.verification.answers import draw_answer

    if len(files) != 1 or reader.described is None or "boxes" not in said[0]:
        raise click.UsageError(f"'{output}': boxes are drawn for one picture, and a program that gives boxes")
    content = draw_answer(files[0], reader.described, said[0])
    with replacing(output) as staging:
        staging.write_bytes(content)


def _expect_integer(program: Program, *, others: bool) -> None:
    """Raises UsageError for --integer beside options of simulators, or for a floating-point program."""
    from npuc.verification.batches import has_integer_network

    if others:
        raise click.UsageError("--integer simulates nothing: it excludes --chip-model and --trace")
    if not has_integer_network(program):
        raise click.UsageError(f"the program computes in {program.precision}, and has no integer network")


@click.command()
@click.argument("model", type=PATH)
@click.argument("artefact", type=PATH)
@data_option
@click.option("--samples", "count", type=click.IntRange(min=1), help="Use at most this many samples.")
@click.option(
    "--min-sqnr",
    type=float,
    metavar="DB",
    help="Least SQNR of outputs [fp32: 60; else relative to the format's best].",
)
@click.option(
    "--min-cosine",
    type=float,
    metavar="C",
    help="Least cosine of outputs [fp32: 0.9999; else relative to the format's best].",
)
@chip_options
@removed_options("sort")
@click.option(
    "--bisect", is_flag=True, help="Find the first difference, and write a small case that reproduces it."
)
@click.option("-o", "--output", type=PATH, metavar="DIR", help="Where --bisect writes [default: ./STEM.bisect].")
@click.option("--dump", type=PATH, metavar="FOLDER", help="Compare dumps from hardware instead of the simulator.")
@artefact_options
def verify(
    model: Path,
    artefact: Path,
    data: tuple[Path, ...],
    count: int | None,
    min_sqnr: float | None,
    min_cosine: float | None,
    chip_model: str,
    bisect: bool,
    output: Path | None,
    dump: Path | None,
    allow_modified: bool,
    as_json: bool,
) -> int:
    """Compare a program with onnxruntime. MODEL must be what it was compiled from; every layer is compared.

    \b
    Examples:
      npuc verify resnet8.onnx resnet8.npu --data test.npz
      npuc verify resnet8.onnx resnet8.npu --samples 4 --min-sqnr 20 --json
      npuc verify resnet8.onnx resnet8.npu --bisect --allow-modified
      npuc verify resnet8.onnx resnet8.npu --data one.npz --dump from_board
    """
    from npuc.cutting import compiled_part
    from npuc.regions.variants import choose_variant
    from npuc.reports import summaries
    from npuc.verification import checking
    from npuc.verification.criterion import tolerance as tolerance_of

    artefact = choose_variant(artefact, data, allow_modified=allow_modified)
    subject = open_artefact(artefact, allow_modified)
    program, target = subject.program, subject.target
    expect_chip_model(target, chip_model)
    if dump is not None:
        _expect_comparable(program, bisect=bisect)
    model, data = click.get_current_context().with_resource(compiled_part(model, program, data))
    samples = _samples(subject, data, count)
    if dump is not None:
        return _compare_dumps(model, subject, samples, dump, as_json)
    with working("verifying") as bar:
        bar.begin("what rounding allows")
        tolerance = tolerance_of(model, program, samples, min_sqnr, min_cosine)
        report = checking.verify(
            model, artefact, program, target, samples, tolerance,
            allow_modified=allow_modified, bar=bar, chip_model=chip_model,
        )  # fmt: skip
        if bisect:
            bar.begin("finding the first difference")
            folder = output or Path(f"{artefact.stem}.bisect")
            report["bisect"] = _bisect(model, subject, samples, report, folder)
    answer(report, summaries.verify_summary(escape_report(report), tolerance), as_json)
    return 0 if report["status"] == "ok" else 1


def _bisect(
    model: Path, artefact: Artefact, samples: Samples, report: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """The first difference or the largest loss, and the files that reproduce it."""
    from dataclasses import asdict

    from npuc.evidence import read_graph
    from npuc.regions.artefact import is_composite
    from npuc.verification import bisection

    program, target = artefact.with_evidence(), artefact.target
    graph = read_graph(program)
    whole = not is_composite(program)
    difference = bisection.first_difference(model, program, target, samples) if whole else None
    found = asdict(difference) if difference else bisection.largest_loss(report, graph)
    if found is None:
        return {"kind": "none", "folder": None, "files": []}
    feed = {name: values[found.get("sample", 0), ...] for name, values in samples.inputs.items()}
    files = bisection.reproduction(model, graph, found["tensor"], feed, program.images)
    names = bisection.save(files, bisection.commands(target, model, artefact.path), folder)
    return {"kind": "difference" if difference else "loss", **found, "folder": str(folder), "files": names}


def _expect_comparable(program: Program, *, bisect: bool) -> None:
    """Raises UsageError if there is no integer reference to compare dumps with."""
    from npuc.regions.artefact import is_composite
    from npuc.target import FLOATING

    if bisect:
        raise click.UsageError("--dump and --bisect exclude each other")
    if is_composite(program):
        raise click.UsageError("--dump is for programs without host regions")
    if program.precision in FLOATING:
        raise click.UsageError(f"--dump compares integers bit by bit; the program computes in {program.precision}")


def _compare_dumps(model: Path, artefact: Artefact, samples: Samples, folder: Path, as_json: bool) -> int:
    """Compares dumps from hardware with the integer network; returns the exit code."""
    from dataclasses import asdict

    from npuc.reports import summaries
    from npuc.verification import dumps
    from npuc.verification.checking import check_model

    check_model(model, artefact.program, artefact.allow_modified)
    rows, difference = dumps.compare_dumps(folder, artefact.with_evidence(), artefact.target, samples)
    report: dict[str, Any] = {
        "status": "ok" if difference is None else "mismatch",
        "samples": len(samples),
        "dumps": rows,
        "difference": None if difference is None else asdict(difference),
    }
    answer(report, summaries.dump_summary(escape_report(report)), as_json)
    return 0 if difference is None else 1


def _samples(artefact: Artefact, data: tuple[Path, ...], count: int | None) -> Samples:
    """The samples of the data files, or announced synthetic ones."""
    from npuc.running import program_inputs
    from npuc.samples.loading import varied_samples

    if data:
        samples = artefact.samples(data).first(count)
        announce_left_out(samples)
        return samples
    samples = varied_samples(program_inputs(artefact.program)).first(count)
    announce_synthetic("verified", "--data DATA.npz", samples, "varied")
    return samples
