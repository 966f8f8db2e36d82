"""Arrays of .npz files that are read block by block, in order: files may be larger than memory.

A compressed member is decompressed as it is read and is not kept.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from os import SEEK_CUR
from pathlib import Path
from tokenize import TokenError
from typing import IO, Protocol

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.system.budget import fits

LARGE = 1 << 26
"""Arrays of more bytes are streamed instead of loaded."""


DAMAGED = (
    ValueError,
    TypeError,
    EOFError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of numpy for a file that is damaged, encrypted or pickled, or claims more than memory can hold."""


class Rows(Protocol):
    """An array that is read by rows, along its first axis."""

    def __len__(self) -> int: ...

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """The rows from `start` on in order, at most `size` at a time."""
        ...


@frozen
class InMemory:
    """An array in memory."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """Slices of the array."""
        return (self.values[at : at + size] for at in range(start, len(self), size))


@frozen
class Member:
    """An array in an .npz file: in C order, or small enough to be read whole."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    convert: Callable[[Array], Array] = np.asarray
    """Applied to each block that is read."""
    fortran: bool = False
    """Whether the array is in Fortran order: its rows are not contiguous."""

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """The blocks, read from the file anew on each call; in C order one block at a time.

        Raises DataError (E401) if the file turns out to be damaged.
        """
        with zipfile.ZipFile(self.path) as archive, archive.open(self.name) as file:
            npy_header(file)
            whole = self._read(file, self.shape[::-1]).T if self.fortran else None
            if whole is None and start:
                self._pass_over(file, start)
            for at in range(start, len(self), size):
                count = min(size, len(self) - at)
                rows = self._read(file, (count, *self.shape[1:])) if whole is None else whole[at : at + size]
                yield self.convert(rows)

    def _pass_over(self, file: IO[bytes], rows: int) -> None:
        try:
            file.seek(rows * prod(self.shape[1:]) * self.dtype.itemsize, SEEK_CUR)
        except (OSError, *DAMAGED) as error:
            raise self._damage_error(error) from None

    def _read(self, file: IO[bytes], shape: tuple[int, ...]) -> Array:
        try:
            content = file.read(prod(shape) * self.dtype.itemsize)
            return np.frombuffer(content, self.dtype).reshape(shape)
        except (OSError, *DAMAGED) as error:
            raise self._damage_error(error) from None

    def _damage_error(self, error: Exception) -> DataError:
        reason = f"'{self.path}' has an array '{self.name.removesuffix('.npy')}' that is damaged: {error}"
        return DataError("E401", reason, remedy="save plain numbers with numpy.savez")


@frozen
class Joined:
    """Several arrays, concatenated."""

    parts: Sequence[Rows]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """Blocks of exactly this size, except for the last, so that they line up with those of other inputs."""
        left: list[Array] = []
        for block in chain.from_iterable(part.blocks(size, first) for part, first in self._from(start)):
            left.append(block)
            if sum(map(len, left)) >= size:
                whole = np.concatenate(left)
                yield whole[:size]
                left = [whole[size:]]
        rest = sum(map(len, left))
        if rest:
            yield np.concatenate(left)

    def _from(self, start: int) -> Iterator[tuple[Rows, int]]:
        """The parts that have rows from `start` on, each with its own first row."""
        for part in self.parts:
            if start < len(part):
                yield part, start
            start = max(start - len(part), 0)


@frozen
class Batches:
    """Rows of one element each, (1, ..), so many together: (batch, ..)."""

    rows: Rows
    batch: int

    def __len__(self) -> int:
        return len(self.rows) // self.batch

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """Blocks of whole batches."""
        for each in self.rows.blocks(size * self.batch, start * self.batch):
            yield each.reshape(-1, self.batch, *each.shape[2:])


@frozen
class RowRange:
    """The rows from `first` up to, but not including, `stop`."""

    rows: Rows
    first: int
    stop: int

    def __len__(self) -> int:
        return max(min(self.stop, len(self.rows)) - self.first, 0)

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """The blocks of these rows; no further rows are read."""
        count = len(self)
        found = self.rows.blocks(size, self.first + start)
        for at in range(start, count, size):
            yield next(found)[: count - at]


@frozen
class Streamed(Mapping[str, Array]):
    """Arrays by name; each is read as a whole only when it is accessed."""

    rows: Mapping[str, Rows]

    def __getitem__(self, name: str) -> Array:
        return np.concatenate(list(self.rows[name].blocks(256)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def rows_of(arrays: Mapping[str, Array]) -> Mapping[str, Rows]:
    """The arrays as rows, whether they are in memory or not."""
    return arrays.rows if isinstance(arrays, Streamed) else {name: InMemory(each) for name, each in arrays.items()}


def member(path: Path, name: str, most: int) -> Member | None:
    """An array of an .npz file that is too large to load; None if it is smaller or cannot be streamed."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = next((each for each in archive.infolist() if each.filename in (name, f"{name}.npy")), None)
            if found is None or (found.file_size <= most and fits(found.file_size)):
                return None
            with archive.open(found) as file:
                shape, fortran, dtype = npy_header(file)
    except (OSError, *DAMAGED):
        return None
    readable = shape and dtype.kind in "fiub" and prod(shape) * dtype.itemsize < found.file_size
    if not readable or (fortran and found.file_size > LARGE):
        return None
    return Member(path, found.filename, shape, dtype, fortran=fortran)


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether the order is Fortran's, and type; leaves the file positioned at the elements.

    Raises ValueError, SyntaxError or TokenError if there is no valid header.
    """
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in read:
        raise ValueError(f"version {version} of the .npy format is not known")
    return read[version](file)
