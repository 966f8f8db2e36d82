"""Heavy values in temporary files that are mapped into memory, and file contents in pieces of them.

Only the pages in use occupy memory. A graph, the onnxruntime sessions that run it and a program thus share one
copy of a network's weights, and `release` frees the pages that were read. The folder is private and is removed
when the process ends; unlike a user's own file, a mapped file cannot change or shrink while in use. Contents in
pieces are never in memory together: large parts are arrays kept elsewhere.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import shutil
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike

from npuc.frozen import frozen
from npuc.ir import Array

HEAVY = 1 << 20
"""Bytes from which a constant is mapped instead of copied."""
BLOCK = 1 << 20
"""Bytes copied at a time."""


class Mapped(mmap.mmap):
    """A file's content, read-only."""

    path: Path


_maps: weakref.WeakSet[Mapped] = weakref.WeakSet()
_copies: weakref.WeakValueDictionary[tuple[int, ...], Mapped] = weakref.WeakValueDictionary()
"""Mapped copies by file identity (device, inode, size, times), start and length."""


@frozen
class FilePlace:
    """The location of values: a file and a byte offset."""

    file: Path
    offset: int


def folder() -> Path:
    """The folder of this process's temporary files. Raises OSError if it cannot be created."""
    return _folder_of(os.getpid())


@cache
def _folder_of(process: int) -> Path:
    path = Path(mkdtemp(prefix="npuc-"))
    atexit.register(_remove, process, path)
    return path


def _remove(process: int, path: Path) -> None:
    """Removes a file or folder, unless another process created it."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def _new() -> Generator[tuple[Path, IO[bytes]]]:
    """A new file; it is removed if the block fails."""
    path = folder() / token_hex(8)
    try:
        with path.open("xb", buffering=0) as file:
            yield path, file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _map(path: Path) -> Mapped:
    with path.open("rb") as file:
        found = Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    found.path = path
    weakref.finalize(found, _remove, os.getpid(), path).atexit = False
    _maps.add(found)
    return found


def release() -> None:
    """Frees the memory of all mapped values; the next access reads them from their files again."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is not None:
        for each in list(_maps):
            each.madvise(advice)


def trim() -> None:
    """Returns freed heap memory that the C library would keep to the system, then calls `release`."""
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)
    release()


M_MMAP_THRESHOLD, LARGE_BLOCK = -3, 1 << 20
"""glibc's number of the size, in bytes, from which a block is no part of the heap and goes back when it is freed.

glibc raises it to the largest block that was freed: the maps of the next sample then lie in the heap, among gaps.
"""


@cache
def _malloc_trim() -> Any:
    """glibc's malloc_trim, once large blocks are kept out of the heap; None with another C library."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
        return library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def keep(values: Array) -> Array:
    """The same values, mapped; unchanged if they are small or no file can be created."""
    if values.nbytes < HEAVY or values.dtype.hasobject or place_of(values) is not None:
        return values
    try:
        with _new() as (path, file):
            for first in range(0, len(values), step := max(1, BLOCK * len(values) // values.nbytes)):
                _write(file, np.ascontiguousarray(values[first : first + step]))
            found = _map(path)
    except OSError:
        return values
    return np.frombuffer(found, values.dtype).reshape(values.shape)


def map_copy(source: Path, start: int, length: int, dtype: DTypeLike) -> Array:
    """Elements of a file, (elements,), mapped from a private copy that is made once.

    If no copy can be made, they are read into memory. Raises OSError if the file cannot be read, ValueError if it
    is too short.
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
    with source.open("rb", buffering=0) as read, _new() as (path, file):
        if _move(read, start, length, file) < length:
            raise ValueError(f"{source} has become shorter")
        return _map(path)


def _move(source: IO[bytes], start: int, length: int, file: IO[bytes]) -> int:
    """Appends bytes of a file to an unbuffered file, within the kernel if it can; returns how many there were."""
    left = length
    with suppress(OSError, AttributeError):  # another file system, an old kernel, not Linux
        while left and (count := os.copy_file_range(source.fileno(), file.fileno(), left, start + length - left)):
            left -= count
    source.seek(start + length - left)
    while left and (block := source.read(min(left, BLOCK))):
        _write(file, block)
        left -= len(block)
    return length - left


def append(file: IO[bytes], piece: bytes | Array) -> None:
    """Appends a piece to an unbuffered file; a mapped one does not pass through this process's memory."""
    place = None if isinstance(piece, bytes) else place_of(piece)
    if place is None or isinstance(piece, bytes):
        _write(file, piece)
        return
    with place.file.open("rb", buffering=0) as source:
        _move(source, place.offset, piece.nbytes, file)


def link(values: Array, path: Path) -> bool:
    """Gives the file of values another name, `path`; false if it holds more, or the system has reasons against it.

    Both names then have the same content: only for values that are not used afterwards.
    """
    place = place_of(values)
    if place is None:
        return False
    try:
        told, group = place.file.stat(), path.parent.stat().st_gid
        if told.st_size != values.nbytes or told.st_gid != group:  # a new file would be its folder's group's
            return False
        os.link(place.file, path)
    except (OSError, AttributeError):  # another file system, or none with links
        return False
    return True


class Growing:
    """Bytes that are added at the end: in memory while they are few or a disk is full, otherwise in a file."""

    def __init__(self) -> None:
        self._light = bytearray()
        """The last bytes, which are not in the file."""
        self._path: Path | None = None
        self._filed = 0
        self._full = False

    def __len__(self) -> int:
        return self._filed + len(self._light)

    def append(self, data: Array) -> None:
        """Adds bytes (count,) uint8."""
        if len(self._light) + len(data) < HEAVY or not self._file(bytes(self._light), data):
            self._light += data.data

    def _file(self, *parts: bytes | Array) -> bool:
        """Writes the last bytes and some more to the file; whether there was room."""
        if self._full:
            return False
        try:
            if self._path is None:
                with _new() as (self._path, _):
                    self._removal = weakref.finalize(self, _remove, os.getpid(), self._path)
            with self._path.open("r+b", buffering=0) as file:
                file.seek(self._filed)
                for each in parts:
                    _write(file, each)
        except OSError:
            self._full = True
            return False
        self._filed += sum(map(len, parts))
        self._light.clear()
        return True

    def read(self, at: int, count: int) -> bytes:
        """Bytes that were added in one call."""
        if self._path is None or at >= self._filed:
            return bytes(self._light[at - self._filed :][:count])
        with self._path.open("rb") as file:
            file.seek(at)
            return file.read(count)

    def content(self) -> Content:
        """All bytes; there must be no more to come."""
        if self._path is None:
            return bytes(self._light)
        self._file(bytes(self._light))
        self._removal.detach()
        return Pieces([np.frombuffer(_map(self._path), np.uint8)[: self._filed], bytes(self._light)])


def _write(file: IO[bytes], data: bytes | Array) -> None:
    """Writes all of it: an unbuffered file may accept less at a time."""
    left = view_of(data)
    while left:
        left = left[file.write(left) :]


def place_of(values: Array) -> FilePlace | None:
    """The location of mapped values; None for others, and for those not in C order."""
    whole: Any = values
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    behind = whole.base.obj if isinstance(whole.base, memoryview) else None
    if not isinstance(behind, Mapped) or not values.flags.c_contiguous:
        return None
    return FilePlace(behind.path, values.ctypes.data - whole.ctypes.data)


def size_of(piece: bytes | Array) -> int:
    """The size of a piece in bytes."""
    return len(piece) if isinstance(piece, bytes) else piece.nbytes


def view_of(piece: bytes | Array) -> memoryview:
    """The bytes of a piece. Arrays must be in C order and not empty."""
    return memoryview(piece) if isinstance(piece, bytes) else piece.data.cast("B")


class Pieces:
    """A sequence of pieces that reads as one run of bytes; some pieces are the elements of arrays in C order."""

    def __init__(self, pieces: Sequence[bytes | Array]) -> None:
        filled = (each for each in pieces if size_of(each))
        groups = groupby(filled, lambda each: isinstance(each, bytes))
        self.pieces = tuple(each for light, group in groups for each in _join(group, light))
        self.starts = np.cumsum([0, *map(size_of, self.pieces)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, at: slice, /) -> bytes:
        start, end, _ = at.indices(len(self))
        return b"".join(bytes(each) for each in self._between(start, end))

    def __bytes__(self) -> bytes:
        return self[:]

    def array(self, span: tuple[int, int]) -> Array | None:
        """The array that covers exactly this span; None if there is none."""
        number = int(np.searchsorted(self.starts, span[0]))
        piece = self.pieces[number] if number < len(self.pieces) else b""
        fits = int(self.starts[number]) == span[0] and size_of(piece) == span[1] - span[0]
        return piece if fits and not isinstance(piece, bytes) else None

    def _between(self, start: int, end: int) -> Iterator[memoryview]:
        number = max(int(np.searchsorted(self.starts, start, "right")) - 1, 0)
        while start < end:
            first = int(self.starts[number])
            piece = view_of(self.pieces[number])[start - first : end - first]
            yield piece
            start, number = start + len(piece), number + 1


def _join(pieces: Iterable[bytes | Array], light: bool) -> Iterable[bytes | Array]:
    """Bytes joined into one piece; arrays unchanged."""
    return [b"".join(bytes(each) for each in pieces)] if light else pieces


Content = bytes | Pieces


@frozen(eq=False)
class Files(Mapping[str, bytes]):
    """Contents by name; each is assembled only when it is accessed."""

    contents: Mapping[str, Content]

    def __getitem__(self, name: str) -> bytes:
        return bytes(self.contents[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)


def contents_of(*files: Mapping[str, bytes]) -> dict[str, Content]:
    """The contents of several mappings together, none of them assembled."""
    found: dict[str, Content] = {}
    for each in files:
        found |= each.contents if isinstance(each, Files) else each
    return found


def pieces_of(content: Content) -> Sequence[bytes | Array]:
    """The pieces of a content."""
    return (content,) if isinstance(content, bytes) else content.pieces
