"""Heavy values in files of a temporary folder, mapped into memory: the system holds what is being read of them.

A graph, the sessions of onnxruntime that run it, and a program then share one copy of a network's weights, and
`release` gives the memory of what was read back. The folder is private and is gone when the process has ended;
what is mapped cannot change or shrink under it, as a user's own file could.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp, mkstemp
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike

from npuc.ir import Array
from npuc.storage.pieces import view_of

HEAVY = 1 << 20
"""Bytes of a constant that is better not copied."""
BLOCK = 1 << 20
"""Bytes that are copied at a time."""


class Mapped(mmap.mmap):
    """A file's content, read-only."""

    path: Path


_maps: weakref.WeakSet[Mapped] = weakref.WeakSet()
_copies: weakref.WeakValueDictionary[tuple[int, ...], Mapped] = weakref.WeakValueDictionary()
"""What was copied of files: by what tells a file, and by its start and length."""


@dataclass(frozen=True)
class Place:
    """Where values lie: a file, and the offset in it in bytes."""

    file: Path
    offset: int


def folder() -> Path:
    """The folder of all files of this process. Raises OSError where the system refuses it."""
    return _folder_of(os.getpid())


@cache
def _folder_of(process: int) -> Path:
    path = Path(mkdtemp(prefix="npuc-"))
    atexit.register(_remove, process, path)
    return path


def _remove(process: int, path: Path) -> None:
    """Removes a file or folder, unless another process made it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _new() -> Generator[tuple[Path, IO[bytes]]]:
    """A new file; it is gone where the block fails."""
    handle, name = mkstemp(dir=folder())
    path = Path(name)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            yield path, file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _mapped(path: Path) -> Mapped:
    with path.open("rb") as file:
        found = Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    found.path = path
    weakref.finalize(found, _remove, os.getpid(), path).atexit = False
    _maps.add(found)
    return found


def release() -> None:
    """Gives the memory back in which mapped values lie; whoever reads them again gets them from their files."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is not None:
        for each in list(_maps):
            each.madvise(advice)


def trim() -> None:
    """Gives back what the process has freed, as far as its C library would keep it; then `release`."""
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)
    release()


@cache
def _malloc_trim() -> Any:
    """The function of glibc; None where there is another library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def kept(values: Array) -> Array:
    """The same values, mapped; as they are where they are light, or where the system has no room for a file."""
    if values.nbytes < HEAVY or values.dtype.hasobject or place_of(values) is not None:
        return values
    try:
        with _new() as (path, file):
            for first in range(0, len(values), step := max(1, BLOCK * len(values) // values.nbytes)):
                _write(file, np.ascontiguousarray(values[first : first + step]))
            found = _mapped(path)
    except OSError:
        return values
    return np.frombuffer(found, values.dtype).reshape(values.shape)


def copied(source: Path, start: int, length: int, dtype: DTypeLike) -> Array:
    """Elements in a file, in a copy of its own that is mapped: (elements,). It is made once.

    Without room for a copy they are in memory. Raises OSError where the file cannot be read, ValueError where it
    ends before.
    """
    told = source.stat()
    key = (told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns, start, length)
    found = _copies.get(key)
    if found is None:
        try:
            found = _copies[key] = _copy(source, start, length)
        except OSError:
            return np.fromfile(source, dtype, length // np.dtype(dtype).itemsize, offset=start)
    return np.frombuffer(found, dtype)


def _copy(source: Path, start: int, length: int) -> Mapped:
    with source.open("rb") as read, _new() as (path, file):
        read.seek(start)
        while length:
            block = read.read(min(length, BLOCK))
            if not block:
                raise ValueError(f"{source} has become shorter")
            _write(file, block)
            length -= len(block)
        return _mapped(path)


def _write(file: IO[bytes], data: bytes | Array) -> None:
    """All of it: an unbuffered file may take less at a time."""
    left = view_of(data)
    while left:
        left = left[file.write(left) :]


def place_of(values: Array) -> Place | None:
    """Where mapped values lie; None for others, and for those that do not lie in C order."""
    whole: Any = values
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    behind = whole.base.obj if isinstance(whole.base, memoryview) else None
    if not isinstance(behind, Mapped) or not values.flags.c_contiguous:
        return None
    return Place(behind.path, values.ctypes.data - whole.ctypes.data)
