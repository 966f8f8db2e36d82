"""Samples from .npz files, and made-up ones where there are none.

Keys are input names; a single input may be called `x`. Axis 0 is samples; labels are `y` unless an input has that
name; other keys are ignored; float16, float64 and integers are cast to the input's type.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npuc.errors import ArtefactError, DataError
from npuc.ir import Array, TensorType

SYNTHETIC_SAMPLES = 8


@dataclass(frozen=True)
class Samples:
    """Inputs by name, each (samples, *shape of one sample as the model takes it), and labels if there are any."""

    inputs: Mapping[str, Array]
    labels: Array | None = None
    synthetic: bool = False

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def feeds(self) -> Iterator[dict[str, Array]]:
        """One feed per sample, in the model's own shapes."""
        for index in range(len(self)):
            yield {name: values[index] for name, values in self.inputs.items()}

    def first(self, count: int | None) -> Samples:
        """At most this many samples."""
        labels = None if self.labels is None else self.labels[:count]
        return Samples({name: values[:count] for name, values in self.inputs.items()}, labels, self.synthetic)


def load(paths: Sequence[Path], inputs: Mapping[str, TensorType]) -> Samples:
    """The samples of one or more .npz files, one after the other.

    inputs: name and type of every input of the model. Raises DataError: E401 for a file that cannot be read or
    lacks an input, E402 for a wrong shape, type or number of samples.
    """
    parts = [_load_one(path, inputs) for path in paths]
    merged = {name: np.concatenate([part.inputs[name] for part in parts]) for name in inputs}
    labels = [part.labels for part in parts if part.labels is not None]
    return Samples(merged, np.concatenate(labels) if len(labels) == len(parts) else None)


def synthetic(inputs: Mapping[str, TensorType], count: int = SYNTHETIC_SAMPLES, seed: int = 0) -> Samples:
    """Standard normal values from a fixed seed: they show that a program runs, not how accurate it is."""
    random = np.random.default_rng(seed)
    return Samples(
        {name: random.standard_normal((count, *each.shape)).astype(each.dtype) for name, each in inputs.items()},
        synthetic=True,
    )


def save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays to an .npz file under a temporary name, then renames it. Raises ArtefactError (E506)."""
    staging = path.with_name(f".{path.name}.partial")
    try:
        with staging.open("wb") as file:
            np.savez(file, **dict(arrays))
        staging.replace(path)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise ArtefactError("E506", f"'{path}' cannot be written: {error.strerror or error}") from None


def _load_one(path: Path, inputs: Mapping[str, TensorType]) -> Samples:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files} if isinstance(file, np.lib.npyio.NpzFile) else {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a NumPy .npz file"
        raise DataError("E401", f"'{path}' cannot be read: {reason}", remedy="save it with numpy.savez") from None
    found = {name: _samples(path, _pick(path, name, arrays, inputs), name, each) for name, each in inputs.items()}
    counts = {len(values) for values in found.values()}
    if len(counts) > 1:
        raise DataError("E402", f"'{path}' has a different number of samples per input: {sorted(counts)}")
    if counts == {0}:
        raise DataError("E402", f"'{path}' has no samples")
    labels = arrays.get("y") if "y" not in inputs else None
    if labels is not None and (labels.ndim != 1 or len(labels) not in counts):
        labels = None
    return Samples(found, labels)


def _pick(path: Path, name: str, arrays: Mapping[str, Array], inputs: Mapping[str, TensorType]) -> Array:
    if name in arrays:
        return arrays[name]
    if len(inputs) == 1 and "x" in arrays:
        return arrays["x"]
    raise DataError(
        "E401",
        f"'{path}' has no array '{name}'",
        tensor=name,
        limit=f"found: {', '.join(arrays) or 'nothing'}",
        remedy="name the arrays as the model names its inputs" + (", or 'x'" if len(inputs) == 1 else ""),
    )


def _samples(path: Path, values: Array, name: str, wanted: TensorType) -> Array:
    """(samples, *shape): the model's leading 1 may be left out of the data."""
    shape = wanted.shape
    per_sample = shape[1:] if shape[:1] == (1,) and values.ndim == len(shape) else shape
    if values.shape[1:] != per_sample or values.dtype.kind not in "fiub":
        raise DataError(
            "E402",
            f"'{path}' has {values.dtype} {list(values.shape)}",
            tensor=name,
            limit=f"[samples, {', '.join(map(str, per_sample))}] of numbers",
        )
    cast = values.astype(wanted.dtype)
    if wanted.dtype == "float32" and not np.isfinite(cast).all():
        raise DataError("E402", f"'{path}' has values that are not finite", tensor=name)
    return cast.reshape(len(values), *shape)
