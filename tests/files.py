"""Files of samples and outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npuc.ir import Array


def arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, which is closed again: `numpy.load` leaves that to the garbage collector."""
    with np.load(path) as file:
        return dict(file)


def split(folder: Path, values: Array, sizes: tuple[int, ...], **labels: Array) -> Path:
    """The values in several files, named so that their order by character is that of the values."""
    folder.mkdir()
    start = 0
    for number, size in enumerate(sizes):
        part = slice(start, start + size)
        np.savez(
            folder / f"{number:03}.npz", x=values[part], **{name: each[part] for name, each in labels.items()}
        )
        start += size
    assert start == len(values)
    return folder
