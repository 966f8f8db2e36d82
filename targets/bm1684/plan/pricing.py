"""Cycles of a kernel's calls, by the formulas of `timing`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npuc.targets.bm1684.lowering.kernel import Call, Local, Padding, Pair
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.local_memory import Dim4, Position
from npuc.targets.bm1684.machine.parameters import Machine

ELEMENT_BYTES = 4
TABLES, TABLE_BYTES = "gdma_fix8b_tables", 1024
"""The call that loads tables, and the bytes of one."""
SYSTEM_ENDS = {"S2L": 1, "L2S": 1, "L2L": 0, "S2S": 2}
"""The number of sides of a move that are in system memory."""


def cycles(call: Call, machine: Machine) -> int:
    """Cycles of a call on its engine."""
    name = call.name
    args: tuple[Any, ...] = call.args
    if name.startswith("gdma_32bit_matrix"):
        return _matrix(name, args, machine)
    if call.on_gdma:
        return _move(name, args, machine)
    match name.removeprefix("bdc_"):
        case "conv2d":
            return _conv(args, machine)
        case "depthwise2d":
            groups = _windows(args[4], args[5:7], args[8], args[9], args[10], args[0], None, machine)
            return timing.depthwise2d(groups, args[5], args[6], args[9].w, machine)
        case "max_pool2d" | "avg_pool2d" as pool:
            groups = _windows(args[2], args[3:5], args[5], args[6], Pair(1, 1), args[0], None, machine)
            price = timing.max_pool2d if pool == "max_pool2d" else timing.avg_pool2d
            return price(groups, args[3], args[4], args[6].w, machine)
        case "fix8b_conv2d":
            groups = _windows(args[4], args[6:8], args[8], args[9], args[10], args[0], args[5], machine)
            return timing.fix8b_conv2d(
                groups, args[4].c, args[6], args[7], min(args[9].h, args[9].w), args[14] > 0
            )
        case "fix8b_depthwise2d":
            return _pool(args[4], args[5:7], args[7], args[8], args[0], args[12], machine, weighted=True)
        case "fix8b_max_pool2d":
            return _pool(args[2], args[3:5], args[5], args[6], args[0], args[8], machine, weighted=False)
        case "fix8b_sum":
            groups = timing.groups(args[4], _npu(args[0]), machine)
            return timing.fix8b_elementwise(groups, 2, limited=args[9] and (args[7] or args[8]))
        case "fix8b_rescale":
            groups = timing.groups(args[3], _npu(args[0]), machine)
            return timing.fix8b_elementwise(groups, 1, limited=args[7] and args[6])
        case "fix8b_product":
            return timing.fix8b_product(timing.groups(args[4], _npu(args[0]), machine), args[10])
        case "fix8b_lookup":
            return timing.fix8b_lookup(timing.groups(args[3]._replace(n=1), _npu(args[0]), machine), args[5])
        case "matmul":
            return timing.matmul(args[4], args[5], args[6], args[8], _npu(args[0]), args[9], args[10], machine)
        case "exp_tunable" | "sigmoid_tunable" | "tanh_tunable" as series:
            return timing.series(series, timing.groups(args[3], _npu(args[0]), machine), args[4])
        case function:
            shape = next(arg for arg in args if isinstance(arg, Dim4))
            strided = any(isinstance(arg, Dim4) for arg in args[args.index(shape) + 1 :])
            return timing.elementwise(function, timing.groups(shape, _npu(args[0]), machine), strided)


def system_bytes(call: Call) -> int:
    """Bytes that a GDMA call reads from and writes to system memory."""
    args: tuple[Any, ...] = call.args
    if call.name.startswith("gdma_32bit_matrix"):
        return ELEMENT_BYTES * args[2] * args[3]
    if call.name == TABLES:
        return TABLE_BYTES * args[1]
    return SYSTEM_ENDS[call.name[-3:]] * timing.move(args[2], args[3], args[4], ELEMENT_BYTES).size


def _npu(at: Local | Position) -> int:
    return at.npu


def _conv(args: tuple[Any, ...], machine: Machine) -> int:
    shape, outputs, kernel = args[4], args[5], args[6:8]
    groups = _windows(shape, kernel, args[12], args[13], args[14], args[0], outputs, machine)
    return timing.conv2d(groups, shape.c, kernel[0], kernel[1], args[13].w, args[10], machine)


def _pool(
    shape: Dim4,
    kernel: tuple[int, ...],
    pads: Padding,
    stride: Pair,
    out: Local | Position,
    images: int,
    machine: Machine,
    *,
    weighted: bool,
) -> int:
    """Windows over each channel of so many 8-bit images, four times as many elements at a time."""
    wide = replace(machine, lanes=timing.WORD_IMAGES * machine.lanes)
    groups = images * _windows(shape._replace(n=1), kernel, pads, stride, Pair(1, 1), out, None, wide)
    return timing.fix8b_pool2d(groups, kernel[0], kernel[1], stride.w, weighted)


def _windows(
    shape: Dim4,
    kernel: tuple[int, ...],
    pads: Padding,
    stride: Pair,
    dilation: Pair,
    out: Local | Position,
    channels: int | None,
    machine: Machine,
) -> int:
    """The groups of a window operator's output."""
    rows = shape.h + pads.top + pads.bottom - (kernel[0] - 1) * dilation.h - 1
    columns = shape.w + pads.left + pads.right - (kernel[1] - 1) * dilation.w - 1
    result = Dim4(shape.n, channels or shape.c, rows // stride.h + 1, columns // stride.w + 1)
    return timing.groups(result, out.npu, machine)


def _move(name: str, args: tuple[Any, ...], machine: Machine) -> int:
    if name == TABLES:
        return timing.cpy_S2L(timing.Move(TABLE_BYTES * args[1], 1), machine)
    moved = timing.move(args[2], args[3], args[4])
    prices = {"S2L": timing.cpy_S2L, "L2S": timing.cpy_L2S, "L2L": timing.cpy_L2L, "S2S": timing.cpy_S2L}
    return prices[name[-3:]](moved, machine)


def _matrix(name: str, args: tuple[Any, ...], machine: Machine) -> int:
    price = timing.matrix_S2L if name.endswith("S2L") else timing.matrix_L2S
    return price(args[2], args[3], args[4], machine)
