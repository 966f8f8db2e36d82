"""Results of ONNX operators on constants, in numpy: onnxruntime takes longer to fold a node when it opens a model.

Every operator here gives the same bits in both: it selects or moves values, adds integers, or rounds each value
once, as IEEE 754 demands. Forms that npuc does not write, such as sums of floats or shapes with 0, are not met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
from onnx import helper

from npuc.ir import Array, Attr

MOST_BYTES = 1 << 16
"""The largest result that is folded, so that weights stay in integers and a model's size stays bounded."""


def _cast(x: Array, *, to: int) -> Array:
    return x.astype(helper.tensor_dtype_to_np_dtype(to))


def _gather(x: Array, places: Array, *, axis: int = 0) -> Array:
    return np.take(x, places, axis)


def _gather_elements(x: Array, places: Array, *, axis: int = 0) -> Array:
    return np.take_along_axis(x, places, axis)


def _max(*values: Array) -> Array:
    return reduce(np.maximum, values)


def _reduce_sum(x: Array, axes: Array, *, keepdims: int = 1) -> Array:
    return x.sum(tuple(axes), x.dtype, keepdims=bool(keepdims))


FOLDED: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Cast": _cast,
    "Clip": np.clip,
    "Floor": np.floor,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GreaterOrEqual": np.greater_equal,
    "Max": _max,
    "Mul": np.multiply,
    "ReduceSum": _reduce_sum,
    "Reshape": np.reshape,
    "Sub": np.subtract,
}
"""Operators on constants: their inputs in order, and attributes by name."""


def result_of(op_type: str, inputs: Sequence[Array | None], attrs: Mapping[str, Attr]) -> Array | None:
    """The result of an ONNX operator on these values; None if an input is no constant or it is not folded."""
    function = FOLDED.get(op_type)
    values = [each for each in inputs if each is not None]
    if function is None or len(values) < len(inputs) or sum(each.nbytes for each in values) > MOST_BYTES:
        return None
    result = np.asarray(function(*values, **attrs))
    return result if result.nbytes <= MOST_BYTES else None
