"""The weight region of system memory: constants, without duplicates."""

from __future__ import annotations

import hashlib

import numpy as np

from npuc.ir import Array
from npuc.storage.mapped import kept, release
from npuc.storage.pieces import Content, Pieces, view_of

ALIGNMENT = 128
"""Alignment in bytes of tensors in local memory and of data in system memory."""
PART = 1 << 24
"""Bytes that are collected in memory before they are written to a file: a multiple of every page size."""


class Weights:
    """A region that grows as constants are added; their offsets do not change."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}
        """Offsets by digest of the content."""
        self._zeros: dict[int, int] = {}
        self._parts: list[Array] = []
        self._last = bytearray()
        self._bytes = 0

    @property
    def content(self) -> Content:
        """The content of the region."""
        return Pieces([*self._parts, bytes(self._last)]) if self._parts else bytes(self._last)

    def image(self, values: Array) -> int:
        """The byte offset of fp32 values; equal values are stored once."""
        data = view_of(np.ascontiguousarray(values, np.float32)) if values.size else memoryview(b"")
        behind = bytes(-len(data) % ALIGNMENT)
        digest = hashlib.sha256(data)
        digest.update(behind)
        found = self._offsets.setdefault(digest.digest(), self._bytes)
        if found == self._bytes:
            self._append(data, behind)
        return found

    def _append(self, *parts: bytes | memoryview) -> None:
        for each in parts:
            self._last += each
            self._bytes += len(each)
        whole = len(self._last) // PART * PART
        if whole:
            self._parts.append(kept(np.frombuffer(self._last, np.uint8, whole)))
            self._last = self._last[whole:]
            release()

    def zeros(self, count: int) -> int:
        """The byte offset of at least `count` zeros."""
        if count not in self._zeros:
            self._zeros[count] = self.image(np.zeros(count, np.float32))
        return self._zeros[count]
