"""Files that appear whole or not at all, and the folder of those that can be made again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from npuc.errors import ArtefactError


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A temporary name beside the file, to be written; it takes the file's place when the block has succeeded.

    Raises ArtefactError (E506) where the system refuses.
    """
    try:
        staging = path.with_name(f".{path.name}.partial")
    except ValueError:  # "." and "/" have no name
        raise ArtefactError("E506", f"'{path}' cannot be written: it is a folder") from None
    try:
        yield staging
        staging.replace(path)
    except OSError as error:
        raise ArtefactError("E506", f"'{path}' cannot be written: {error.strerror or error}") from None
    finally:
        staging.unlink(missing_ok=True)


def cache_folder() -> Path:
    """The user's own cache folder, which nobody else can write; else a new temporary one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "npuc"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, AttributeError):  # not writable; no users on this system
        pass
    return Path(tempfile.mkdtemp(prefix="npuc-"))
