"""Files of samples and outputs, and scripts as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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


def script(name: str) -> ModuleType:
    """A script of the repository, such as `benchmarks/size.py`, as a module, anew."""
    path = Path(__file__).resolve().parents[1] / name
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
