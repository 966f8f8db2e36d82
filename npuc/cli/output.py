"""Output of several commands, the artefacts that they open, and the paths that they may write.

No output replaces, holds or is written into what the command reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from npuc.errors import NpucError
from npuc.frozen import frozen
from npuc.text.escaping import terminal_lines
from npuc.text.terminal import CLEAR, Progress, fold, progress, report_json

if TYPE_CHECKING:
    from npuc.program import Program
    from npuc.quantize.improvement.search import Trial
    from npuc.samples.loading import Samples
    from npuc.target import Target


class CannotPrint(OSError):
    """Standard output or error cannot be written."""


QUIET, VERBOSE = f"{__name__}.quiet", f"{__name__}.verbose"
"""Keys of a context's metadata: whether -q was given, and how often -v."""


def _level(key: str) -> int:
    ctx = click.get_current_context(silent=True)
    return ctx.meta.get(key, 0) if ctx else 0


def quiet() -> bool:
    """Whether only errors are printed, and what other programs read."""
    return bool(_level(QUIET))


def verbose() -> int:
    """How much more is printed: 0, 1 with -v, 2 with -vv."""
    return _level(VERBOSE)


def working(label: str) -> AbstractContextManager[Progress]:
    """The progress of a command: with -v its stages, with -q nothing."""
    return progress(label, quiet=quiet(), stages=verbose() > 0)


def note(text: str) -> None:
    """Prints what is no error on stderr, unless quiet."""
    if not quiet():
        say(text, err=True)


def say(text: str, *, err: bool = False, exact: bool = False) -> None:
    """Prints lines; characters that a terminal would not show are escaped, and its lines end between words.

    err: an error. exact: for other programs to read; only a terminal gets escapes. Other text is for people, and
    not printed if quiet.
    """
    if quiet() and not err and not exact:
        return
    stream = sys.stderr if err else sys.stdout
    if stream.isatty() and not exact:
        text = fold(text, get_terminal_size().columns)
    try:
        over = CLEAR if err and stream.isatty() else ""  # the line that tells the progress
        click.echo(over + (text if exact and not stream.isatty() else terminal_lines(text)), err=err)
    except OSError as error:
        raise CannotPrint(error.errno, error.strerror) from None


def print_json(value: Mapping[str, Any]) -> None:
    """Prints the single JSON object of a command."""
    say(report_json(value), exact=True)


def answer(report: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Prints a command's result: the report as JSON, or the text."""
    if as_json:
        print_json(report)
    else:
        say(text)


def write_output(output: Path, content: bytes, as_json: bool, more: str = "", **told: object) -> None:
    """Writes a command's file, and prints its path, its size and what else the command tells: as text or JSON."""
    from npuc.storage.files import replacing

    with replacing(output) as staging:
        staging.write_bytes(content)
    report = {"status": "ok", "output": str(output), "bytes": len(content), **told}
    answer(report, f"{output}: {len(content):,} bytes{more}", as_json)


def announce_synthetic(done: str, remedy: str, samples: Sized | None, kind: str = "normal") -> None:
    """Reports on stderr that synthetic data were used. samples: if known; kind: a description of the data."""
    number = "" if samples is None else f"{len(samples)} "
    noun = "sample" if number == "1 " else "samples"
    note(f"note: {done} on synthetic data ({number}{kind} {noun}, fixed seed); give real data with {remedy}")


SHOWN = 3
"""The most warnings printed; the report has all of them."""


def tell_warnings(warnings: Sequence[Mapping[str, Any]]) -> None:
    """Prints the warnings of a compile report on stderr."""
    from npuc.errors import Problem

    for each in warnings[:SHOWN]:
        note(str(Problem(**each)))
    if len(warnings) > SHOWN:
        note(f"warning: {len(warnings) - SHOWN} more like these (--json lists them all)")


def announce_left_out(samples: Samples) -> None:
    """Reports on stderr that labels of the data are not used, and why."""
    if samples.left_out:
        note(f"note: {samples.left_out}; they are left out")


def with_seconds(report: Mapping[str, Any], tried: Sequence[Trial]) -> dict[str, Any]:
    """A compile report with CPU seconds for every accuracy step."""
    found = report.get("quantization")
    if found is None:
        return dict(report)
    steps = [{**said, "seconds": step.seconds} for said, step in zip(found["steps"], tried, strict=True)]
    return {**report, "quantization": {**found, "steps": steps}}


def write_folder(files: Mapping[str, bytes], folder: Path, as_json: bool) -> None:
    """Writes exported files into a new folder, and lists them."""
    from npuc.program import save_files

    save_files(files, folder)
    text = "\n".join(f"{folder / name}  {len(files[name]):,} bytes" for name in sorted(files))
    answer({"status": "ok", "files": sorted(files), "output": str(folder)}, text, as_json)


@frozen
class Artefact:
    """The artefact that a command works on, loaded."""

    path: Path
    program: Program
    target: Target
    allow_modified: bool

    def graph(self) -> Mapping[str, Any]:
        """Its graph.json. Raises ArtefactError if npuc did not write it."""
        from npuc.evidence import read_graph

        return read_graph(self.with_evidence())

    def with_evidence(self) -> Program:
        """The program with its evidence. Raises ArtefactError (E502)."""
        from npuc.program import load_evidence

        evidence = load_evidence(self.path, self.program, allow_modified=self.allow_modified)
        return replace(self.program, evidence=evidence)

    def samples(self, data: Sequence[Path]) -> Samples:
        """The samples of these files."""
        from npuc.regions.running import samples_of

        return samples_of(self.program, data)

    def verify(self, model: Path, samples: Samples, chip_model: str = "own") -> dict[str, Any]:
        """The report of `npuc verify` by the default criterion, with the errors of every layer."""
        from npuc.verification.checking import verify
        from npuc.verification.criterion import criterion

        tolerance = criterion(model, self.program, samples)
        return verify(
            model, self.path, self.program, self.target, samples, tolerance,
            allow_modified=self.allow_modified, chip_model=chip_model,
        )  # fmt: skip


def open_artefact(path: Path, allow_modified: bool) -> Artefact:
    """An artefact with a single program; modified files are named on stderr.

    Raises ArtefactError (E508) for an artefact with several programs.
    """
    import warnings

    from npuc import program
    from npuc.regions.composite import target_of
    from npuc.regions.variants import choice_error, variants_of

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = program.load(path, allow_modified=allow_modified)
    for each in caught:
        note(f"warning: {each.message}")
    if found := variants_of(loaded.manifest):
        raise choice_error(path, found)
    return Artefact(path, loaded, target_of(loaded), allow_modified)


WRITTEN = ("output", "trace", "cache", "scales_out")
"""Parameters that a command writes to."""


class _Path(click.Path):
    """A path. An empty one, as of an unset shell variable, would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Fails for an empty text, and for an output that would harm what the command reads."""
        if not value:
            self.fail("the path is empty", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if param is not None and ctx is not None:
            others: list[tuple[Path, str]] = ctx.meta.setdefault(__name__, [])
            name = param.name or ""
            for other, given in others:
                if (name in WRITTEN) != (given in WRITTEN):
                    output, read, kind = (path, other, given) if name in WRITTEN else (other, path, name)
                    if reason := _harm(output, read, kind):
                        self.fail(reason, param, ctx)
            others.append((path, name))
        return path


class _Machine(_Path):
    """A shipped machine's name, or a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text. Fails for an output that would harm the file."""
        if os.path.isfile(value):  # noqa: PTH113  Path.is_file raises for a folder that may not be entered
            super().convert(value, param, ctx)
        return value


PATH = _Path(path_type=Path)
"""Existence is checked and reported when the path is opened."""
MACHINE = _Machine(path_type=Path)


def check_output(path: Path) -> Path:
    """The default of an output. Fails as an output that the user names does."""
    ctx = click.get_current_context()
    param = next(each for each in ctx.command.params if each.name == "output")
    return PATH.convert(path, param, ctx)


def _harm(output: Path, read: Path, kind: str) -> str | None:
    """Why an output would harm what is read; None if it does not."""
    with suppress(OSError, RuntimeError):  # of names and links that the system refuses
        if _in_artefact(output, read):
            return f"'{output}' would be written into '{read}', which is read"
        for file in _files(read, kind) if output.exists() else ():
            if file.exists() and output.samefile(file):
                return f"'{file}' would be both read and written"
            if output.is_dir() and (_holds(output.absolute(), file) or _holds(output.resolve(), file.resolve())):
                return f"'{output}' would be replaced, and '{file}' in it is read"
    return None


def _files(read: Path, kind: str) -> Iterator[Path]:
    """A path that is read, and the files that it stands for."""
    from npuc.samples.sources import files_of

    yield read
    with suppress(NpucError):  # the command itself reports what is wrong with its inputs
        if kind == "model":  # its external data is read too
            from npuc.frontend.reading import files_with_data

            yield from files_with_data(read)
        else:
            yield from files_of([read])


def _holds(folder: Path, file: Path) -> bool:
    return folder in Path(os.path.abspath(file)).parents  # noqa: PTH100  links are not followed


def _in_artefact(path: Path, artefact: Path) -> bool:
    from npuc.program import MANIFEST

    return (artefact / MANIFEST).is_file() and artefact.resolve() in path.resolve().parents
