"""The weights' region of system memory: constants, each value once."""

from __future__ import annotations

import hashlib

import numpy as np

from npuc.ir import Array
from npuc.storage.mapped import kept, release
from npuc.storage.pieces import Content, Pieces, view_of

ALIGNMENT = 128
"""Bytes: tensors in local memory, and regions of system memory."""
PART = 1 << 24
"""Bytes that are in memory before they go to a file."""


class Weights:
    """Grows while constants are added; what lies in it does not move."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}
        """By digest."""
        self._zeros: dict[int, int] = {}
        self._parts: list[Array] = []
        self._last = bytearray()
        self._bytes = 0

    @property
    def content(self) -> Content:
        """The region."""
        return Pieces([*self._parts, bytes(self._last)]) if self._parts else bytes(self._last)

    def image(self, values: Array) -> int:
        """Offset in bytes of fp32 values; equal values lie there once."""
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
        if len(self._last) >= PART:
            self._parts.append(kept(np.frombuffer(self._last, np.uint8)))
            self._last = bytearray()
            release()

    def zeros(self, count: int) -> int:
        """Offset in bytes of at least so many zeros."""
        if count not in self._zeros:
            self._zeros[count] = self.image(np.zeros(count, np.float32))
        return self._zeros[count]
