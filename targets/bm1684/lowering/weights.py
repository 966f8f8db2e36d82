"""The weight region of system memory: constants, without duplicates."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.storage.mapped import Content, Growing, release

ALIGNMENT = 128
"""Alignment in bytes of tensors in local memory and of data in system memory."""
PART = 1 << 24
"""Bytes after which the memory of constants that were read is released."""
SAMPLE = 256
"""About so many bytes of a constant are compared before all of them are."""


class ConstantRegion:
    """A region that grows as constants are added; their offsets do not change."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[int, bytes, int], list[int]] = {}
        """Offsets of constants that may be equal: by size, a sample, and the sum of their 64-bit words."""
        self._zeros: dict[int, int] = {}
        self._bytes = Growing()

    @property
    def content(self) -> Content:
        """The content of the region, which is complete."""
        return self._bytes.content()

    def image(self, values: Array) -> int:
        """The byte offset of fp32 values; equal values are stored once."""
        data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        if behind := -len(data) % ALIGNMENT:
            data = np.pad(data, (0, behind))
        sample = data[:: len(data) // SAMPLE | 1].tobytes()
        alike = self._offsets.setdefault((len(data), sample, int(data.view(np.uint64).sum())), [])
        found = next((at for at in alike if self._bytes.read(at, len(data)) == data.tobytes()), None)
        if found is None:
            found = len(self._bytes)
            alike.append(found)
            self._bytes.append(data)
            if found // PART < len(self._bytes) // PART:
                release()
        return found

    def zeros(self, count: int) -> int:
        """The byte offset of at least `count` zeros."""
        if count not in self._zeros:
            self._zeros[count] = self.image(np.zeros(count, np.float32))
        return self._zeros[count]
