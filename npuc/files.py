"""Files that appear whole or not at all."""

from __future__ import annotations

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
