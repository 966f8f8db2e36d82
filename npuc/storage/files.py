"""Files and folders written as a whole or not at all, the cache folder, and the text of files that people edit.

New content is staged beside its destination under a name with a random part, `.NAME.RANDOM.partial`, which the
writer keeps locked. An existing folder is swapped with the staged one atomically where the system supports it
(Linux); elsewhere it is moved aside as `.NAME.RANDOM.old`, and if the run is killed, the next run moves it back.
"""

from __future__ import annotations

import codecs
import ctypes
import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError
from npuc.system.interrupts import defer

try:
    import fcntl
except ImportError:  # without locks, leftovers of killed runs are not removed
    fcntl = None

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Arguments of renameat2(2)."""
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of kernels and file systems that cannot exchange two names."""


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A new empty file beside `path`, to be written in the block; it replaces `path` if the block succeeds.

    Of a link, the file that it points to is replaced. Raises ArtefactError (E506) if the system refuses, and for a
    device, a pipe or a socket.
    """
    with _convert_errors(path), _stage(path.resolve(), _new_file) as staging:
        yield staging
        staging.replace(path.resolve())


@contextmanager
def replacing_folder(path: Path) -> Generator[Path]:
    """A new empty folder beside `path`, to be filled in the block; it replaces `path` if the block succeeds.

    The old folder or file is removed once the new folder is in place. Raises ArtefactError (E506) if the system
    refuses.
    """
    with _convert_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        with _stage(path, Path.mkdir) as staging:
            yield staging
            _swap(staging, path)


def recover(path: Path) -> None:
    """Restores a folder that a killed run had moved aside, unless something has taken its place."""
    if path.exists() or path.is_symlink():
        return
    for aside in _leftovers(path, "old"):
        with _lock(aside) as free:
            if free:
                aside.rename(path)
                return


@contextmanager
def _convert_errors(path: Path) -> Generator[None]:
    """Turns OSErrors into ArtefactErrors (E506)."""
    if not path.name:
        raise ArtefactError("E506", f"'{path}' cannot be written: it is a folder")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ArtefactError("E506", f"'{path}' cannot be written: it is neither a file nor a folder")
        yield
    except OSError as error:
        reason = f"'{path}' cannot be written: {error.strerror or error}"
        raise ArtefactError("E506", reason, remedy="choose another place with -o") from None


@contextmanager
def _stage(path: Path, make: Callable[[Path], None]) -> Generator[Path]:
    """A new locked staging path beside `path`, removed at the end; leftovers of killed runs are removed too."""
    for left in _leftovers(path, "(partial|old)"):
        with _lock(left) as free:
            if free:
                _remove(left)
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with ExitStack() as ending:
        with defer():
            make(staging)
            ending.callback(_remove, staging)
            ending.enter_context(_lock(staging))
            if not staging.exists():  # another run took it for a leftover before it was locked
                make(staging)
        yield staging


def _new_file(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def _leftovers(path: Path, ending: str) -> Iterator[Path]:
    """Staged files and folders beside `path` with this suffix, of running or killed runs."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.{ending}")
    with suppress(OSError):
        yield from [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]


@contextmanager
def _lock(path: Path) -> Generator[bool]:
    """Locks a file or folder unless another process holds the lock; yields whether it is locked now."""
    if fcntl is None:
        yield False
        return
    with ExitStack() as held:
        free = False
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free


def _remove(path: Path) -> None:
    """Removes a file, link or folder; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _swap(staging: Path, path: Path) -> None:
    """Moves a staged folder into place; the old content ends up under the staged name or is removed."""
    if not path.exists() and not path.is_symlink():
        staging.rename(path)
        return
    if _exchange(staging, path):
        return
    aside = staging.with_suffix(".old")
    with _lock(path):
        path.rename(aside)
        try:
            staging.rename(path)
        except OSError:
            aside.rename(path)
            raise
    _remove(aside)


def _exchange(first: Path, second: Path) -> bool:
    """Whether the system swapped two paths atomically. Raises OSError if it refuses."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    if not renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))


@contextmanager
def exclusively(path: Path) -> Generator[None]:
    """Waits for the lock on a file, creating the file if necessary; without system support it does not wait."""
    with path.open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    """The user's own cache folder, if no other user can write to it; otherwise a new temporary folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "npuc"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, AttributeError):  # not writable, or the system has no user ids
        pass
    return Path(tempfile.mkdtemp(prefix="npuc-"))


def toml(data: bytes) -> dict[str, Any]:
    """The values of a TOML file. Raises ValueError, or RecursionError, for one that is none.

    >>> toml(b"bits = 12")
    {'bits': 12}
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # pyright: ignore
    return tomllib.loads(decode(data))


def decode(data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark; every line ends with a line feed.

    Raises ValueError, which names the first line that is neither.

    >>> decode(b"\\xef\\xbb\\xbfa\\r\\nb"), decode("a\\n".encode("utf-16"))
    ('a\\nb', 'a\\n')
    """
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {number}: it is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
