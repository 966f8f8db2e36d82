"""Paths on the command line: no output replaces, holds or is written into what the command reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from npuc.errors import NpucError

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


def unread(path: Path) -> Path:
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
