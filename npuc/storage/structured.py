"""Samples that no array of numbers holds: strings, sequences, maps, optional values, and tensors of many shapes.

In an .npz file a tensor that has another shape in every sample is one array a sample, `NAME/0`, `NAME/1` and so
on. Of a sequence in sample S, `NAME/S/I` is element I (of a map `NAME/S/I/keys` and `NAME/S/I/values`), and
`NAME/lengths` has the number of elements for every sample, -1 where there is no value. Strings are Unicode arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from npuc.ir import Array

NONE = -1
"""The length of a value that is not there."""
LENGTHS = "lengths"


def members(name: str, values: Array) -> Iterator[tuple[str, Array]]:
    """The arrays of an .npz file that hold these values, (samples, *shape); objects are one value a sample."""
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
    """The elements of a sequence; anything else is one element."""
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


def gathered(name: str, arrays: Mapping[str, Array]) -> Array | None:
    """The values of a name, an object a sample; None where the arrays have none of it. Inverse of `members`."""
    if f"{name}/{LENGTHS}" in arrays:
        lengths = arrays[f"{name}/{LENGTHS}"]
        return objects([_sequence(f"{name}/{at}", int(length), arrays) for at, length in enumerate(lengths)])
    found: list[Array] = []
    while f"{name}/{len(found)}" in arrays:
        found.append(_read(arrays[f"{name}/{len(found)}"]))
    return objects(found) if found else None


def _sequence(key: str, length: int, arrays: Mapping[str, Array]) -> list[Any] | None:
    """The elements of a sequence. Raises KeyError for one that is missing."""
    return None if length == NONE else [_read(arrays[f"{key}/{number}"]) for number in range(length)]


def _read(values: Array) -> Array:
    return values.astype(object) if values.dtype.kind in "US" else values


def objects(values: Sequence[Any]) -> Array:
    """One object a sample."""
    found = np.empty(len(values), object)
    for at, each in enumerate(values):
        found[at] = each
    return found


def row(values: Array, at: int) -> Any:
    """The value of a sample: an array, or what else it is."""
    if values.dtype != object:
        return values[at, ...]
    return np.array(values[at], object) if isinstance(values[at], str) else values[at]


def leaves(value: Any) -> list[Array]:
    """The tensors that a value is made of, in order; none of a value that is not there."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [np.asarray(list(value)), np.asarray(list(value.values()))]
    if isinstance(value, list | tuple):
        return [each for element in value for each in leaves(element)]
    return [np.asarray(value)]


def comparable(wanted: Any, found: Any) -> bool:
    """Whether two values have the same structure: as many tensors, of the same shapes and kinds."""
    pairs = leaves(wanted), leaves(found)
    return len(pairs[0]) == len(pairs[1]) and all(
        a.shape == b.shape and (a.dtype.kind in "fiub") == (b.dtype.kind in "fiub")
        for a, b in zip(*pairs, strict=True)
    )
