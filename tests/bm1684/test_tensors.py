"""Views of system memory count as numpy's reshape, transpose and slices do."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.bm1684.lowering.kernel import Local
from npuc.targets.bm1684.lowering.tensors import SystemView, Tensor, local_shape
from npuc.targets.bm1684.machine.local_memory import Dim4
from npuc.targets.bm1684.machine.parameters import Machine

X = np.arange(2 * 6 * 4 * 5)
SHAPE = (2, 6, 4, 5)


def _read(view: SystemView, memory: Array) -> Array:
    """The elements of a view, one index after another."""
    offsets = [
        [
            sum(i * s for i, (_, s) in zip(index, axis, strict=True))
            for index in product(*(range(e) for e, _ in axis))
        ]
        for axis in view.axes
    ]
    return np.array([memory[view.offset + sum(parts)] for parts in product(*offsets)]).reshape(view.shape)


def _whole() -> SystemView:
    return SystemView.continuous("input0", 0, SHAPE)


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_a_transposed_view_reads_what_numpy_transposes(perm: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(_read(_whole().transpose(perm), X), X.reshape(SHAPE).transpose(perm))


@pytest.mark.parametrize("shape", [(2, 120), (12, 20), (2, 2, 3, 4, 5), (240,), (4, 3, 20), (1, 240, 1, 1)])
def test_a_reshaped_view_keeps_the_order_of_elements(shape: tuple[int, ...]) -> None:
    view = _whole().reshape(shape)
    assert view is not None
    np.testing.assert_array_equal(_read(view, X), X.reshape(shape))


def test_shuffled_channels_are_one_view() -> None:
    """Reshape, Transpose, Reshape, as ShuffleNet has it."""
    groups = _whole().reshape((2, 3, 2, 4, 5))
    assert groups is not None
    shuffled = groups.transpose((0, 2, 1, 3, 4)).reshape(SHAPE)
    assert shuffled is not None
    np.testing.assert_array_equal(
        _read(shuffled, X), X.reshape(2, 3, 2, 4, 5).transpose(0, 2, 1, 3, 4).reshape(SHAPE)
    )


def test_a_reshape_that_no_strides_describe_is_none() -> None:
    assert _whole().transpose((0, 2, 3, 1)).reshape((2, 8, 15)) is None


def test_a_slice_with_steps_reads_what_numpy_slices() -> None:
    view = _whole().slice_axis(2, 1, 2, 2)
    assert view is not None
    np.testing.assert_array_equal(_read(view, X), X.reshape(SHAPE)[:, :, 1::2])


def test_a_repeated_view_broadcasts_as_numpy_does() -> None:
    view = SystemView.continuous("weights", 0, (6, 1, 1)).broadcast(SHAPE)
    np.testing.assert_array_equal(_read(view, X), np.broadcast_to(X[:6].reshape(6, 1, 1), SHAPE))


@pytest.mark.parametrize(("shape", "width", "expected"), [
    ((), 1, (1, 1, 1, 1)), ((10,), 4, (1, 3, 1, 4)), ((3, 10), 5, (3, 2, 1, 5)), ((1, 8, 7), 1, (1, 8, 1, 7)),
    ((1, 8, 7, 6), 1, (1, 8, 7, 6)), ((1, 8, 2, 3, 4), 1, (1, 8, 6, 4)),
])  # fmt: skip
def test_every_rank_has_four_dimensions_in_local_memory(
    shape: tuple[int, ...], width: int, expected: tuple[int, ...]
) -> None:
    assert local_shape(shape, width) == expected
    assert prod(local_shape(shape, width)) >= prod(shape)


def test_channels_of_a_tensor_start_at_the_npu_and_block_row_that_they_lie_in() -> None:
    """64 NPUs: channel 70 of a tensor that starts at NPU 60 is in NPU 2 of the third block row."""
    tensor = Tensor(Dim4(1, 200, 4, 5), Local("x", 60))
    part = tensor.channels(70, 80, Machine())
    assert part.shape == (1, 10, 4, 5)
    assert part.at == Local("x", 2, 2 * 32 * 4)
