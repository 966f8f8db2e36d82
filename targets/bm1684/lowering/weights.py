"""The weights' region of system memory: constants, each value once."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array

ALIGNMENT = 128
"""Bytes: tensors in local memory, and regions of system memory."""


class Weights:
    """Grows while constants are added; what lies in it does not move."""

    def __init__(self) -> None:
        self._images: dict[bytes, int] = {}
        self._zeros: dict[int, int] = {}
        self._bytes = 0

    @property
    def content(self) -> bytes:
        """The region."""
        return b"".join(self._images)

    def image(self, values: Array) -> int:
        """Offset in bytes of fp32 values; equal values lie there once."""
        data = np.ascontiguousarray(values, np.float32).tobytes()
        data += bytes(-len(data) % ALIGNMENT)
        if data not in self._images:
            self._images[data] = self._bytes
            self._bytes += len(data)
        return self._images[data]

    def zeros(self, count: int) -> int:
        """Offset in bytes of at least so many zeros."""
        if count not in self._zeros:
            self._zeros[count] = self.image(np.zeros(count, np.float32))
        return self._zeros[count]
