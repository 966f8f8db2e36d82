"""Alignment of Start Address and Stride: table 35; its 32 bytes are an atom, its 128 a CBUF entry of nv_full.

Source: in-memory formats, table 35. nv_small has atoms of 8 bytes: its addresses and strides are aligned to 8.
Weight sizes are aligned to a CBUF entry, like the blobs of NVDLA's own compiler: 128 bytes on nv_full, 64 on
nv_large, 8 on nv_small.
"""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen


@frozen
class Alignment:
    """A row of table 35 in bytes of nv_full; 0 for NA."""

    start: int
    line: int = 0
    surface: int = 0
    plane: int = 0
    size: int = 0


TABLE: Mapping[str, Alignment] = {
    "feature": Alignment(32, 32, 32, 32),
    "weight": Alignment(256, size=128),
    "WMB": Alignment(256, size=128),
    "WGS": Alignment(256, size=128),
    "pixel": Alignment(32, 32),
    "bias": Alignment(32, 32, 32),
    "PReLU": Alignment(32),
    "batch normalization": Alignment(32),
    "element-wise": Alignment(32, 32, size=32),
}
"""Table 35. The surface stride of an element-wise cube is aligned too, as it is a stride of atoms."""

ATOM = 32
"""The atom size that the table assumes."""


def alignment(form: str, what: str, atom_bytes: int) -> int:
    """Bytes to which `what` (start, line, surface, plane, size) of a format is aligned; 1 for NA."""
    bytes_ = getattr(TABLE[form], what)
    return max(bytes_ * atom_bytes // ATOM, 1)


def align(value: int, to: int) -> int:
    """The smallest multiple of `to` that is not below the value."""
    return -(-value // to) * to
