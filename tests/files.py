"""Files of samples and outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npuc.ir import Array


def arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, which is closed again: `numpy.load` leaves that to the garbage collector."""
    with np.load(path) as file:
        return dict(file)
