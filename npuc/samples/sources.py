"""The .npz files that a folder or a pattern stands for."""

from __future__ import annotations

from collections.abc import Iterable
from glob import escape, glob, has_magic
from pathlib import Path

from npuc.errors import DataError

SYNTHETIC = "synthetic"
"""In place of files: samples that npuc draws."""


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files that paths stand for: a file itself, the .npz files of a folder, the matches of a pattern.

    A pattern contains `*`, `?`, `[..]` or `**`. Files of a folder or pattern are sorted by path, character by
    character; hidden files are left out. Raises DataError (E401) for a folder without .npz files and a pattern
    without a match. A named file is not checked here; opening it reports that it is missing. SYNTHETIC alone
    stands for no file.
    """
    paths = [*paths]
    if [*map(str, paths)] == [SYNTHETIC]:
        return []
    return [file for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    try:
        return _matching(path)
    except OSError:  # a name that is too long, or a folder that cannot be entered
        return [path]


def _matching(path: Path) -> list[Path]:
    if path.is_dir():
        pattern = str(Path(escape(str(path)), "*.npz"))
        reason, remedy = f"the folder '{path}' has no .npz files", "name a folder, a pattern or files with samples"
    elif has_magic(str(path)) and not path.exists():
        pattern = str(path)
        reason = f"no file matches '{path}'"
        remedy = "put the pattern in quotes, so that the shell leaves it to npuc, and check its folder"
    else:
        return [path]
    names = glob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes hidden files too)
    found = sorted(name for name in names if Path(name).is_file())
    if not found:
        raise DataError("E401", reason, remedy=remedy)
    return [Path(name) for name in found]
