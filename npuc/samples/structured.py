"""Samples that do not fit one numeric array: strings, sequences, maps, optional values, tensors of varying shape.

In an .npz file a tensor whose shape varies is stored as one array per sample: `NAME/0`, `NAME/1` and so on. In a
sequence, `NAME/S/I` is element I of sample S (for a map `NAME/S/I/keys` and `NAME/S/I/values`), and `NAME/lengths`
holds the number of elements per sample, -1 for an absent value. Strings are Unicode arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npuc.ir import Array

NONE = -1
"""The length that marks an absent value."""
LENGTHS = "lengths"


def members(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """The arrays of an .npz file for these values, (samples, *shape); an object array has one value per sample."""
    if values.dtype != object:
        yield name, values
    elif values.ndim != 1:
        yield name, values.astype(str)
    elif all(isinstance(each, np.ndarray | np.generic | str) for each in values):
        yield from ((f"{name}/{at}", _plain(each)) for at, each in enumerate(values))
    else:
        yield f"{name}/{LENGTHS}", np.array([NONE if each is None else len(_elements(each)) for each in values])
        for at, value in enumerate(values):
            for number, each in enumerate(() if value is None else _elements(value)):
                yield from _element(f"{name}/{at}/{number}", each)


def _elements(value: Any) -> Sequence[Any]:
    """The elements of a sequence; any other value is its own only element."""
    return value if isinstance(value, list | tuple) else [value]


def _element(key: str, each: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(each, Mapping):
        yield f"{key}/keys", _plain(list(each))
        yield f"{key}/values", _plain(list(each.values()))
    else:
        yield key, _plain(each)


def _plain(value: Any) -> Array:
    found = np.asarray(value)
    return found.astype(str) if found.dtype == object else found


def gather(name: str, arrays: Mapping[str, Array]) -> Array | None:
    """The values of a name, one object per sample; None if the arrays have none of it. Inverse of `members`."""
    if f"{name}/{LENGTHS}" in arrays:
        lengths = arrays[f"{name}/{LENGTHS}"]
        return objects([_sequence(f"{name}/{at}", int(length), arrays) for at, length in enumerate(lengths)])
    found: list[Array] = []
    while f"{name}/{len(found)}" in arrays:
        found.append(_read(arrays[f"{name}/{len(found)}"]))
    return objects(found) if found else None


def _sequence(key: str, length: int, arrays: Mapping[str, Array]) -> list[Any] | None:
    """The elements of a sequence. Raises KeyError if one is missing."""
    return None if length == NONE else [_read(arrays[f"{key}/{number}"]) for number in range(length)]


def _read(values: Array) -> Array:
    return values.astype(object) if values.dtype.kind in "US" else values


def objects(values: Sequence[Any]) -> Array:
    """An object array with one object per sample."""
    found = np.empty(len(values), object)
    for at, each in enumerate(values):
        found[at] = each
    return found


def row(values: Array, at: int) -> Any:
    """The value of one sample: an array or another object."""
    if values.dtype != object:
        return values[at, ...]
    return np.array(values[at], object) if isinstance(values[at], str) else values[at]


def leaves(value: Any) -> list[Array]:
    """The tensors that make up a value, in order; none for an absent value."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [np.asarray(list(value)), np.asarray(list(value.values()))]
    if isinstance(value, list | tuple):
        return [each for element in value for each in leaves(element)]
    return [np.asarray(value)]


def comparable(wanted: Any, found: Any) -> bool:
    """Whether two values have the same structure: as many tensors, with the same shapes and kinds."""
    pairs = leaves(wanted), leaves(found)
    return len(pairs[0]) == len(pairs[1]) and all(
        a.shape == b.shape and (a.dtype.kind in "fiub") == (b.dtype.kind in "fiub")
        for a, b in zip(*pairs, strict=True)
    )
