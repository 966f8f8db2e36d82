"""Cycles of every OKKernel call and 8-bit layer, as the vendor's chip model counts them.

Measured call by call on that model: BDC calls agree to the cycle, GDMA calls within one cycle, except matrices
with a partial last channel (some cycles). The functions are named as the calls, without okk_bdc_ and okk_gdma_ and
the number of bits; their parameters are the values that the cycles depend on.

The 8-bit layers of the firmware library agree to the cycle.
"""

# ruff: noqa: N802  (the calls' names)

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from npuc.frozen import frozen
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div, matrix_shape, okk_channle_num_per_npu
from npuc.targets.bm1684.machine.parameters import Machine


@frozen
class EngineCycles:
    """Cycles of a program: in total, and busy per engine."""

    cycles: int
    bdc: int
    gdma: int

    @property
    def bound(self) -> int:
        """The cycles of the busier engine, a lower bound on any order of the same calls."""
        return max(self.bdc, self.gdma)


# BDC: 16 elements of every NPU at a time


def groups(shape: Dim4, start_idx: int, machine: Machine) -> int:
    """The number of groups (`lanes` elements on all NPUs) of an output of this shape that starts at an NPU."""
    rows = okk_channle_num_per_npu(start_idx, shape.c, machine)
    return shape.n * rows * ceil_div(shape.h * shape.w, machine.lanes)


def conv2d(
    groups: int, IC: int, kernel_h: int, kernel_w: int, stride_w: int, using_bias: bool, machine: Machine
) -> int:
    """Convolution: 3 input channels cost 2.5 times what 4 do, and few channels with a large stride cost more."""
    products = ceil_div(IC, machine.input_channels) * kernel_h * kernel_w
    over, by = (stride_w + 1, IC) if stride_w >= IC else (1, 1)
    if IC == 3:
        over, by = 5 * over, 2 * by
    return groups * (products * over + (3 + 2 * using_bias) * by) // by


def depthwise2d(groups: int, kernel_h: int, kernel_w: int, stride_w: int, machine: Machine) -> int:
    """Depthwise convolution, with or without a bias; average pooling costs the same."""
    return max_pool2d(groups, kernel_h, kernel_w, stride_w, machine) + 5 * groups


def max_pool2d(
    groups: int,
    kernel_h: int,
    kernel_w: int,
    stride_w: int,
    machine: Machine,  # noqa: ARG001  (as the other windows)
) -> int:
    """Max pooling."""
    return groups * (kernel_h * kernel_w * (stride_w + 1) - kernel_h)


def avg_pool2d(groups: int, kernel_h: int, kernel_w: int, stride_w: int, machine: Machine) -> int:
    """Average pooling."""
    return depthwise2d(groups, kernel_h, kernel_w, stride_w, machine)


def matmul(
    left_rows: int,
    left_cols: int,
    right_cols: int,
    right_cols_per_channel: int,
    start_idx: int,
    using_bias: bool,
    result_add: bool,
    machine: Machine,
) -> int:
    """Matrix product; W of the left matrix does not matter."""
    right = matrix_shape(1, right_cols, right_cols_per_channel)
    return left_rows * groups(right, start_idx, machine) * (left_cols + 6 + 2 * using_bias + 2 * result_add)


class PerGroup(NamedTuple):
    """Cycles per group if every stride is NULL, and if any stride is given."""

    aligned: int
    strided: int


ONE, TWO, DIVISION = PerGroup(1, 2), PerGroup(2, 2), PerGroup(30, 30)
ELEMENTWISE: Mapping[str, PerGroup] = {
    "32bit_cpy": PerGroup(1, 1),
    "32bit_set_C": TWO,
    "relu": ONE,
    "neg": ONE,
    "reciprocal": DIVISION,
    "add": ONE,
    "add_C": ONE,
    "sub": ONE,
    "sub_C": ONE,
    "C_sub": ONE,
    "mul": ONE,
    "mul_C": ONE,
    "div": DIVISION,
    "div_C": DIVISION,
    "C_div": DIVISION,
    "mac": PerGroup(1, 5),
    "mac_C": PerGroup(1, 5),
    "max": ONE,
    "max_C": ONE,
    "min": TWO,
    "min_C": TWO,
    "bias": PerGroup(4, 2),
    "scale": PerGroup(4, 2),
    "scale_bias": PerGroup(4, 4),
    "greater_select_value": TWO,
    "greater_C_select_value": TWO,
    "C_greater_select_value": TWO,
    "equal_select_value": TWO,
    "equal_C_select_value": TWO,
    "greater_select": TWO,
    "equal_select": PerGroup(4, 4),
    "32bit_arithmetic_shift": TWO,
    "32bit_arithmetic_shift_C": TWO,
    "32bit_logical_shift": TWO,
    "32bit_logical_shift_C": TWO,
    "fp32_to_int32": PerGroup(1, 1),
    "sqrt": PerGroup(57, 57),
    "rsqrt": PerGroup(27, 27),
    "lookup_exp": PerGroup(24, 24),
    "exp": PerGroup(182, 182),
    "sigmoid": PerGroup(214, 214),
    "tanh": PerGroup(247, 247),
}
"""Calls with a fixed number of cycles per group."""

SERIES: Mapping[str, int] = {"taylor_exp": 3, "exp_tunable": 54, "sigmoid_tunable": 86, "tanh_tunable": 119}
"""Calls with num_series: cycles per group in addition to 4 per term (exp, sigmoid and tanh have 32 terms)."""


def elementwise(call: str, groups: int, strided: bool) -> int:
    """A call of ELEMENTWISE. strided: whether any stride is given."""
    price = ELEMENTWISE[call]
    return groups * (price.strided if strided else price.aligned)


def series(call: str, groups: int, num_series: int) -> int:
    """A call of SERIES."""
    return groups * (4 * num_series + SERIES[call])


# GDMA: a start, then bytes or contiguous runs, whichever take longer

READ_START, WRITE_START, LOCAL_START, SET_START = 137.35, 45.45, 3.0, 7.0
RUN = 0.553977
"""The least cycles of a contiguous run in system memory."""
LOCAL_BYTES, SET_BYTES, LOCAL_RUN, SET_RUN = 32, 64, 1.0, 0.5


class Move(NamedTuple):
    """The values that a move's cycles depend on: its bytes and its contiguous runs."""

    size: int
    runs: int


def move(shape: Dim4, dst: Dim4 | None, src: Dim4 | None, element_bytes: int = 4) -> Move:
    """The bytes and runs of a copy to or from local memory. Strides of None: a layout with contiguous rows.

    A run is a channel if its rows are contiguous on both sides, else a row, or an element if W is 1.
    """
    rows = all(stride is None or stride.h == shape.w or shape.h == 1 for stride in (dst, src))
    runs = shape.n * shape.c * (1 if rows else shape.h)
    return Move(element_bytes * shape.n * shape.c * shape.h * shape.w, runs)


def cpy_S2L(moved: Move, machine: Machine) -> int:
    """System to local memory, and between two places of system memory."""
    return math.floor(READ_START + _system(moved, machine))


def cpy_L2S(moved: Move, machine: Machine) -> int:
    """Local to system memory."""
    return math.floor(WRITE_START + _system(moved, machine))


def cpy_L2L(moved: Move, machine: Machine) -> int:  # noqa: ARG001  (as the other moves)
    """Local to local memory."""
    return math.floor(LOCAL_START + max(moved.size / LOCAL_BYTES, moved.runs * LOCAL_RUN))


def set_C_system(moved: Move, machine: Machine) -> int:
    """Filling system memory with a constant."""
    return math.floor(SET_START + _system(moved, machine))


def set_C_local(moved: Move, machine: Machine) -> int:  # noqa: ARG001
    """Filling local memory with a constant."""
    return math.floor(SET_START + max(moved.size / SET_BYTES, moved.runs * SET_RUN))


def matrix_S2L(rows: int, cols: int, cols_per_channel: int, machine: Machine) -> int:
    """A matrix to local memory: whole channels, then the partial one."""
    whole, rest = divmod(cols, cols_per_channel)
    cycles = _system(Move(4 * rows * whole * cols_per_channel, rows * whole), machine)
    return math.floor(READ_START + cycles + _system(Move(4 * rows * rest, 0), machine))


def matrix_L2S(rows: int, cols: int, cols_per_channel: int, machine: Machine) -> int:
    """A matrix to system memory: a partial channel costs as much as a whole one."""
    channels = ceil_div(cols, cols_per_channel)
    moved = Move(4 * rows * channels * cols_per_channel, rows * channels)
    return math.floor(WRITE_START + _system(moved, machine))


def _system(moved: Move, machine: Machine) -> float:
    return max(moved.size / machine.dram_bytes_per_cycle, moved.runs * RUN)


# Parallel regions


def region(gdma: int, bdc: int) -> int:
    """Cycles of a parallel region: the larger of both engines' sums (outside, calls run in sequence)."""
    return max(gdma, bdc)


# 8-bit layers. A group is `lanes` words of every NPU, where a word has an element of four images; pooling and
# depthwise convolution compute four times as many elements of one image.

WORD_IMAGES = 4
"""Images in a word of 8 bits each."""
WORD_CHANNELS = 4
"""Input channels that a convolution multiplies in a cycle."""
# fmt: off
LOADING = (
    (6.82, 7.89, 9.56, 9.94, 11.27, 12.04, 7.31, 13.78, 14.18, 15.62),
    (3.91, 4.43, 5.26, 5.43, 6.07, 6.51, 5.11, 7.36, 7.56, 8.3),
    (1.55, 3.29, 3.84, 3.95, 4.38, 4.67, 3.98, 5.24, 5.37, 5.84),
    (1.3, 1.35, 3.12, 3.21, 3.53, 3.75, 3.4, 4.18, 4.28, 4.63),
    (1.15, 1.2, 1.34, 2.77, 3.02, 3.2, 3.04, 3.54, 3.62, 3.9),
    (1.05, 1.09, 1.21, 1.24, 1.23, 2.83, 2.74, 3.11, 3.18, 3.42),
    (1.0, 1.03, 1.12, 1.14, 1.15, 1.28, 2.5, 2.81, 2.87, 3.07),
    (1.0, 1.0, 1.05, 1.07, 1.09, 1.19, 1.22, 2.59, 2.64, 2.81),
    (1.0, 1.0, 1.01, 1.02, 1.04, 1.13, 1.16, 1.22, 2.42, 2.61),
    (1.0, 1.0, 1.0, 1.0, 1.01, 1.07, 1.1, 1.15, 1.19, 2.45),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.03, 1.05, 1.1, 1.13, 2.24),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05, 1.09, 1.14),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05, 1.09),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01, 1.06),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.02),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
)
# fmt: on
"""The factor on a convolution's multiply cycles where loading its input takes longer: by input channels / 4, and
by the smaller of its strides."""


def fix8b_conv2d(groups: int, IC: int, kernel_h: int, kernel_w: int, stride: int, limited: bool) -> int:
    """Convolution with a bias. stride: the smaller of the two; limited: it has an upper limit."""
    channels = -(-IC // WORD_CHANNELS)
    row = LOADING[min(channels, len(LOADING)) - 1]
    products = np.float32(channels * kernel_h * kernel_w) * np.float32(row[min(stride, len(row)) - 1])
    return int(np.float32(groups) * (products + np.float32(10 + limited)))


def fix8b_pool2d(groups: int, kernel_h: int, kernel_w: int, stride_w: int, weighted: bool) -> int:
    """Depthwise convolution or max pooling. groups: of four times `lanes` elements of one image."""
    return groups * (kernel_h * kernel_w * (stride_w + 1) - 1 + 2 * weighted)


def fix8b_product(groups: int, limited: bool) -> int:
    """A product. limited: its result has no sign."""
    return groups * (25 + 3 * limited)


def fix8b_lookup(groups: int, images: int) -> int:
    """Entries of a table. groups: of one word; images: in all words together."""
    return groups * (32 * images - 5 * -(-images // WORD_IMAGES))


def fix8b_elementwise(groups: int, operands: int, limited: bool) -> int:
    """A sum. limited: it ends with a ReLU, and an operand is signed."""
    return groups * (2 + 4 * operands + 3 * limited)
