"""Elementwise calls, divided where a tensor exceeds the interface's extents.

A call without strides treats each channel as one row of elements, so its rows and columns may be regrouped freely;
if no even grouping fits, it is divided further, by images and channels. A call with strides is divided along its
axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from npuc.targets.bm1684.lowering.kernel import Arg, Call, Local
from npuc.targets.bm1684.machine.local_memory import Dim4, block, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine

MOST = Dim4(65_535, 4095, 2047, 2047)
"""The largest extents of a tensor in a BDC call."""
OTHERS = (
    *("conv2d", "depthwise2d", "max_pool2d", "avg_pool2d", "matmul"),
    *("fix8b_conv2d", "fix8b_depthwise2d", "fix8b_max_pool2d", "fix8b_sum", "fix8b_rescale"),
    *("fix8b_product", "fix8b_lookup"),
)
"""BDC calls that are not elementwise."""
PER_CHANNEL = {"bdc_bias": 1, "bdc_scale": 1, "bdc_scale_bias": 2}
"""How many of a call's last operands hold one number per channel."""
ELEMENT, RUN = 4, 32
"""Bytes of an element; elements in 128 bytes."""


class _Parts(NamedTuple):
    """The arguments of a call: addresses and numbers, the shape, then a stride per address and any others."""

    operands: tuple[Arg, ...]
    shape: Dim4
    rest: tuple[Arg, ...]


def split_extents(call: Call, machine: Machine) -> Iterator[Call]:
    """The call, or equivalent calls on parts of its tensors."""
    if call.on_gdma or call.name.removeprefix("bdc_") in OTHERS:
        yield call
        return
    at = next(index for index, arg in enumerate(call.args) if isinstance(arg, Dim4))
    shape = call.args[at]
    assert isinstance(shape, Dim4)
    if _fits(shape):
        yield call
        return
    parts = _Parts(call.args[:at], shape, call.args[at + 1 :])
    strided = any(isinstance(arg, Dim4) for arg in parts.rest)
    yield from (_split_axes if strided else _split_dense)(call, parts, machine)


def _fits(shape: Dim4) -> bool:
    return all(extent <= most for extent, most in zip(shape, MOST, strict=True))


def _split_dense(call: Call, parts: _Parts, machine: Machine) -> Iterator[Call]:
    shape = parts.shape
    size = shape.h * shape.w
    columns = next((w for w in range(min(MOST.w, size), 0, -1) if size % w == 0 and size // w <= MOST.h), None)
    even = None if columns is None else Dim4(shape.n, shape.c, size // columns, columns)
    if even is not None and _fits(even):
        yield _replace_shape(call, parts.operands, even, parts.rest)
        return
    inner = [(0, even.h, even.w)] if even is not None else list(_runs(size))
    step = MOST.c // machine.npus * machine.npus if even is not None else machine.npus
    npu = next(arg.npu for arg in parts.operands if isinstance(arg, Local))
    stride = okk_128_byte_aligned_stride_for_32bit(npu, shape, machine)
    for image, (first, behind), (start, h, w) in product(range(shape.n), _cuts(npu, shape.c, step), inner):
        at_npu, row = block(first, npu, machine)
        offset = ELEMENT * (image * stride.n + row * stride.c + start)
        operands = _move_operands(call, parts.operands, at_npu, offset, ELEMENT * row)
        yield _replace_shape(call, operands, Dim4(1, behind - first, h, w), parts.rest)


def _runs(size: int) -> Iterator[tuple[int, int, int]]:
    """The start, rows and columns of pieces that start at multiples of 128 bytes."""
    step = MOST.w // RUN * RUN
    for start in range(0, size, step):
        yield start, 1, min(step, size - start)


def _cuts(npu: int, channels: int, step: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, behind) of at most `step` channels; every one but the first starts at NPU 0."""
    first = 0
    while first < channels:
        behind = min(channels, first + step - (npu if first == 0 else 0))
        yield first, behind
        first = behind


def _move_operands(call: Call, operands: tuple[Arg, ...], npu: int, offset: int, row: int) -> tuple[Arg, ...]:
    """The operands of a part that starts at an NPU. row: the offset of per-channel operands."""
    full = len(operands) - PER_CHANNEL.get(call.name, 0)
    return tuple(
        replace(arg.shift(offset if at < full else row), npu=npu) if isinstance(arg, Local) else arg
        for at, arg in enumerate(operands)
    )


def _split_axes(call: Call, parts: _Parts, machine: Machine) -> Iterator[Call]:
    shape, places = parts.shape, [arg for arg in parts.operands if isinstance(arg, Local)]
    assert len(places) == len(parts.rest), call
    strides = [
        given if isinstance(given, Dim4) else okk_128_byte_aligned_stride_for_32bit(place.npu, shape, machine)
        for place, given in zip(places, parts.rest, strict=True)
    ]
    npu = places[0].npu
    steps = MOST._replace(c=MOST.c // machine.npus * machine.npus)
    channels = list(_cuts(npu, shape.c, steps.c)) if shape.c > MOST.c else [(0, shape.c)]
    others = [range(0, extent, most) for extent, most in zip(shape, steps, strict=True)]
    for n, (first, behind), h, w in product(others[0], channels, others[2], others[3]):
        at_npu, row = block(first, npu, machine)
        moved = iter(
            replace(place.shift(ELEMENT * (n * s.n + row * s.c + h * s.h + w * s.w)), npu=at_npu)
            for place, s in zip(places, strides, strict=True)
        )
        operands = tuple(next(moved) if isinstance(arg, Local) else arg for arg in parts.operands)
        sizes = (min(steps.n, shape.n - n), behind - first, min(steps.h, shape.h - h), min(steps.w, shape.w - w))
        yield _replace_shape(call, operands, Dim4(*sizes), tuple(strides))


def _replace_shape(call: Call, operands: tuple[Arg, ...], shape: Dim4, rest: tuple[Arg, ...]) -> Call:
    return replace(call, args=(*operands, shape, *rest))
