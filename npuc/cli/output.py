"""Output and loading shared by several commands."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc.escaping import printed
from npuc.text import as_json

if TYPE_CHECKING:
    from npuc.program import Program
    from npuc.quantize.improvement.search import Trial
    from npuc.storage.data import Samples
    from npuc.target import Target


def say(text: str, *, err: bool = False, exact: bool = False) -> None:
    """Prints lines; characters that a terminal would not show are escaped.

    exact: for other programs to read; only a terminal gets escapes.
    """
    stream = sys.stderr if err else sys.stdout
    click.echo(text if exact and not stream.isatty() else printed(text), err=err)


def print_json(value: object) -> None:
    """Prints the single JSON object of a command."""
    say(as_json(value))


def announce_synthetic(what: str, remedy: str, samples: Sized | None, kind: str = "normal") -> None:
    """Reports on stderr that synthetic data were used. samples: if known; kind: a description of the data."""
    number = "" if samples is None else f"{len(samples)} "
    noun = "sample" if number == "1 " else "samples"
    note = f"note: {what} on synthetic data ({number}{kind} {noun}, fixed seed); give real data with {remedy}"
    say(note, err=True)


SHOWN = 3
"""The most warnings printed; the report has all of them."""


def tell_warnings(warnings: Sequence[Mapping[str, Any]]) -> None:
    """Prints the warnings of a compile report on stderr."""
    from npuc.errors import Problem

    for each in warnings[:SHOWN]:
        say(str(Problem(**each)), err=True)
    if len(warnings) > SHOWN:
        say(f"warning: {len(warnings) - SHOWN} more like these (--json lists them all)", err=True)


def announce_left_out(samples: Samples) -> None:
    """Reports on stderr that labels of the data are not used, and why."""
    if samples.left_out:
        say(f"note: {samples.left_out}; they are left out", err=True)


def with_seconds(report: Mapping[str, Any], tried: Sequence[Trial]) -> dict[str, Any]:
    """A compile report with CPU seconds for every accuracy step."""
    quantisation = report.get("quantisation")
    if quantisation is None:
        return dict(report)
    steps = [{**said, "seconds": step.seconds} for said, step in zip(quantisation["steps"], tried, strict=True)]
    return {**report, "quantisation": {**quantisation, "steps": steps}}


def load_program(artefact: Path, allow_modified: bool) -> tuple[Program, Target]:
    """The program of an artefact and its target; modified files are named on stderr.

    Raises ArtefactError (E508) for an artefact with several programs.
    """
    import warnings

    from npuc import program
    from npuc.regions.composite import target_of
    from npuc.variants import undecided, variants_of

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = program.load(artefact, allow_modified=allow_modified)
    for each in caught:
        say(f"warning: {each.message}", err=True)
    if found := variants_of(loaded.manifest):
        raise undecided(artefact, found)
    return loaded, target_of(loaded)


def load_graph(artefact: Path, program: Program, allow_modified: bool) -> Mapping[str, Any]:
    """graph.json of a program. Raises ArtefactError if npuc did not write it."""
    from npuc.program import load_evidence
    from npuc.verification.described import described

    content = load_evidence(artefact, program, allow_modified=allow_modified)["graph.json"]
    return described(content, program.precision)


def verified(
    model: Path,
    artefact: Path,
    program: Program,
    target: Target,
    samples: Samples,
    chip_model: str,
    allow_modified: bool,
) -> dict[str, Any]:
    """The report of `npuc verify` by the default criterion, with the errors of every layer."""
    from npuc.verification.checking import verify
    from npuc.verification.criterion import criterion

    return verify(
        model, artefact, program, target, samples, criterion(model, program, samples),
        allow_modified=allow_modified, chip_model=chip_model,
    )  # fmt: skip
