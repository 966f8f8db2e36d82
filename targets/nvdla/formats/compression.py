"""Sparse Compression option: nonzero weights, a bit for each element (WMB), a size for each group (WGS).

Every basic weight format can be compressed: elements are taken in its order. Bits are little endian, groups follow
each other without gaps; each of the three surfaces is padded with zeros to 128 bytes. A group's size is the number
of bytes of its nonzero weights.

Source: in-memory formats, Sparse Compression option, figure 17.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats.alignment import aligned
from npuc.targets.nvdla.formats.weights import Order, scanned

SURFACE = 128
"""Each surface is padded to a multiple of this many bytes."""


@frozen
class Compressed:
    """The three surfaces."""

    weights: bytes
    mask: bytes
    """WMB."""
    sizes: bytes
    """WGS: 32 bits a group."""


def compress(order: Order, w: Array) -> Compressed:
    """The surfaces of weights in an order. The negative zero of fp16 counts as zero."""
    groups = scanned(order, w)
    present = [group[group != 0] for group in groups]
    bits = np.packbits(np.concatenate(groups) != 0, bitorder="little")
    sizes = np.array([group.nbytes for group in present], "<u4")
    return Compressed(*(_filled(part.tobytes()) for part in (np.concatenate(present), bits, sizes)))


def _filled(data: bytes) -> bytes:
    return data.ljust(aligned(len(data), SURFACE), b"\0")
