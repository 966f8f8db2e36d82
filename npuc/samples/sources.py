"""The files that a path of samples stands for: .npz files, pictures, lists of both."""

from __future__ import annotations

from collections.abc import Iterable
from glob import escape, glob, has_magic
from pathlib import Path

from npuc.errors import DataError
from npuc.flag import SYNTHETIC
from npuc.frozen import frozen
from npuc.images.pictures import FORMATS, is_picture
from npuc.storage.files import decode
from npuc.system.budget import read_file

LISTS = (".txt", ".csv")
"""Suffixes of files that list others, one a line: PATH, or PATH,LABEL."""


@frozen
class Source:
    """A file of samples, and the label of a picture: its folder's name, or what a list gives."""

    path: Path
    label: str | None = None


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files that paths stand for, as `sources_of`, without labels."""
    return [each.path for each in sources_of(paths)]


def sources_of(paths: Iterable[Path]) -> list[Source]:
    """The files that paths stand for: a file itself, the files of a folder or list, the matches of a pattern.

    Of a folder these are the .npz files; if there are none the pictures in it; else those in its folders, each a
    class. A pattern contains `*`, `?`, `[..]` or `**`. All are sorted by path, character by character, a list's
    are in its order; hidden files are left out. Raises DataError (E401) for a folder without samples, a pattern
    without a match, a list that is damaged. A named file is not checked here; opening it reports a missing one.
    SYNTHETIC stands for no file, and alone.
    """
    paths = [*paths]
    if SYNTHETIC not in map(str, paths):
        return [source for path in paths for source in _sources(path)]
    if len(paths) > 1:
        reason = "synthetic samples are asked for beside files"
        raise DataError("E401", reason, remedy="give files, or the word synthetic alone")
    return []


def _sources(path: Path) -> list[Source]:
    try:
        if path.suffix.lower() in LISTS and path.is_file():
            return _list_sources(path)
        if path.is_dir():
            return _folder_sources(path)
        if not has_magic(str(path)) or path.exists():
            return [Source(path)]
        found = _matching(str(path))
    except OSError:  # a name that is too long, or a folder that cannot be entered
        return [Source(path)]
    if not found:
        remedy = "put the pattern in quotes, so that the shell leaves it to npuc, and check its folder"
        raise DataError("E401", f"no file matches '{path}'", remedy=remedy)
    return [Source(each) for each in found]


def _matching(pattern: str) -> list[Path]:
    """The files that match, sorted."""
    names = glob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes hidden files too)
    return [Path(name) for name in sorted(names) if Path(name).is_file()]


def _folder_sources(folder: Path) -> list[Source]:
    """The samples in a folder. Raises DataError (E401) if there are none."""
    inside = escape(str(folder))
    if found := _matching(str(Path(inside, "*.npz"))):
        return [Source(each) for each in found]
    if found := [each for each in _matching(str(Path(inside, "*"))) if is_picture(each)]:
        return [Source(each) for each in found]
    if found := [each for each in _matching(str(Path(inside, "*", "*"))) if is_picture(each)]:
        return [Source(each, each.parent.name) for each in found]
    reason, remedy = f"the folder '{folder}' has no .npz files", "name a folder, a pattern or files with samples"
    raise DataError("E401", reason, limit=f".npz files, or pictures: {', '.join(FORMATS)}", remedy=remedy)


def _list_sources(path: Path) -> list[Source]:
    """The files of a list, relative to its folder."""
    remedy = "write a path in each line, or a path, a comma and a label"
    try:
        lines = decode(read_file(path, "E401", remedy)).split("\n")
    except ValueError as error:
        raise DataError("E401", f"'{path}' cannot be read: {error}", remedy=remedy) from None
    found: list[Source] = []
    for line in map(str.strip, lines):
        name, comma, label = line.rpartition(",") if path.suffix.lower() == ".csv" else (line, "", "")
        if line and not line.startswith("#"):
            found.append(Source(path.parent / (name if comma else line).strip(), label.strip() or None))
    nested = next((each.path for each in found if each.path.suffix.lower() in LISTS or each.path.is_dir()), None)
    if nested is not None or not found:
        reason = f"'{path}' lists no files" if nested is None else f"'{path}' lists '{nested}', which is no sample"
        raise DataError("E401", reason, remedy=remedy)
    return found
