"""Pads that crop more than there is on one side and add on the other, by the definition of Pad.

onnxruntime 1.31 agrees; 1.23 ends in an overflow for some of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.interpreter import run
from tests.onnx_models import parse

X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


def model_of(pads: list[int], mode: str) -> onnx.ModelProto:
    return parse(f'g (float[2,4] x) => (float[a,b] y) {{ y = Pad<mode = "{mode}">(x, p) }}', 19, p=np.array(pads))


def shifted(begin: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Column i of the result is column i - begin of X, or 0 beside it."""
    return np.pad(X, ((0, 0), (16, 16)))[:, 16 - begin : 16 - begin + width]


@pytest.mark.parametrize("begin", [-6, -5, -4, -3, 3, 4, 5, 6])
@pytest.mark.parametrize("more", [1, 2, 4])
def test_a_crop_beyond_the_axis_takes_from_what_is_added(begin: int, more: int) -> None:
    for pads in ([0, begin, 0, more - begin - 4], [0, more - begin - 4, 0, begin]):
        model = model_of(pads, "constant")
        graph = import_model(model)
        (found,) = run(graph, {"x": X}, ["y"]).values()
        assert np.array_equal(found, shifted(pads[1], more))


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63 - 1])
def test_sizes_that_cancel_take_no_memory(size: int) -> None:
    graph = import_model(model_of([0, size, 0, -size], "constant"))
    (found,) = run(graph, {"x": X}, ["y"]).values()
    assert np.array_equal(found, np.zeros((2, 4)))


@pytest.mark.parametrize("mode", ["edge", "wrap"])
def test_nothing_can_be_repeated_if_nothing_is_left(mode: str) -> None:
    assert import_model(model_of([0, -3, 0, 3], mode)).nodes
    with pytest.raises(NpucError, match="crops 5 of 4") as error:
        import_model(model_of([0, -5, 0, 5], mode))
    assert error.value.problems[0].code == "E105"
