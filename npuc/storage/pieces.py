"""File contents in pieces that are never in memory together: large parts are arrays kept elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array


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
        self.pieces = tuple(each for light, group in groups for each in _joined(group, light))
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


def _joined(pieces: Iterable[bytes | Array], light: bool) -> Iterable[bytes | Array]:
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
