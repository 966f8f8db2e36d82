"""The declarations of NVDLA's layers, and the table of operators in its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npuc.ir import Node, TensorType
from npuc.ops import OPS, Op, Operators, Parameter, with_operators
from npuc.ops.attributes import (
    AVERAGE,
    CEIL_MODE,
    DILATIONS,
    GROUP,
    KERNEL_SHAPE,
    PADDING,
    PADS,
    SIZE,
    STRIDES,
    WINDOW,
)
from npuc.ops.pooling import pool_types
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic import integer, onnx_forms
from npuc.targets.nvdla.arithmetic.integer import (
    CONVERTER,
    LE,
    LO,
    PRA_TRUNCATE,
    RECIPROCALS,
    RESULT,
    SHARING,
    TRUNCATE,
    WINOGRAD,
    X1,
    X2,
    ZERO,
    kernel_extents,
    operands,
)
from npuc.targets.nvdla.arithmetic.normalisation import SIZES
from npuc.targets.nvdla.formats.precision import HOST_DTYPES

MAPS = tuple(HOST_DTYPES.values())
CONSTANTS = (*MAPS, "float16")
"""Types of weights, operands and table entries."""


def _operands_fit(node: Node, types: Sequence[TensorType]) -> bool:
    """An operand of a stage has the extents of the result, or 1."""
    named = dict(zip(node.inputs, types, strict=True))
    extents = [named[name].shape for name in operands(node)[:4] if name]
    y = _conv_types(node, types)[0].shape if node.op == "NvConv" else types[0].shape
    return all(
        len(each) in (3, 4) and all(n in (1, m) for n, m in zip(each[-3:], y[-3:], strict=True))
        for each in extents
    )


def _map_or_copied_row(node: Node, types: Sequence[TensorType]) -> bool:
    """The input is a map (1, C, H, W), or a row (1, C) that is copied: without operands."""
    x = types[0].shape
    return x[:1] == (1,) and (len(x) == 4 or (len(x) == 2 and not any(node.inputs[1:])))


def _known_size(node: Node, _types: Sequence[TensorType]) -> bool:
    """CDP sums 3, 5, 7 or 9 channels."""
    return SIZE(node) in SIZES


def _conv_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, w = types[0].shape, types[1].shape
    extents = window_of(node, kernel_extents(node, w)).extents(node, x[2:])
    return (TensorType((1, w[0], *extents), types[0].dtype),)


def _elementwise_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (replace(types[0], dtype=RESULT(node) or types[0].dtype),)


OPERANDS = tuple(
    Parameter(name, CONSTANTS, optional=True) for name in ("x1_alu", "x1_mul", "x2_alu", "x2_mul", "table")
)
PASS = (X1, X2, CONVERTER, LE, LO)
X, Y = Parameter("x", MAPS, "1 C H W"), Parameter("y", MAPS, like="x")

OPERATORS: Operators = with_operators(
    OPS,
    Op(
        "NvConv",
        "Convolution through both stages of SDP and its converter.",
        (Parameter("x", MAPS, "1 group*I H W"), Parameter("w", CONSTANTS, "group*P I Hk Wk"), *OPERANDS),
        (Y,),
        integer.conv,
        (
            *(KERNEL_SHAPE, STRIDES, PADS, DILATIONS, GROUP, PADDING, AVERAGE),
            *(WINOGRAD, TRUNCATE, PRA_TRUNCATE, SHARING),
            *PASS,
        ),
        (_operands_fit,),
        _conv_types,
        onnx_forms.conv,
        origin="nvdla",
    ),
    Op(
        "NvElementwise",
        "Elements through both stages of SDP and its converter.",
        (Parameter("x", MAPS, "*X"), *OPERANDS),
        (Parameter("y", MAPS, "*X"),),
        integer.elementwise,
        (RESULT, *PASS),
        (_map_or_copied_row, _operands_fit),
        _elementwise_types,
        onnx_forms.elementwise,
        origin="nvdla",
    ),
    Op(
        "NvAveragePool",
        "PDP's average: sums times two reciprocals.",
        (X,),
        (Y,),
        integer.average,
        (WINDOW, STRIDES, PADS, DILATIONS, CEIL_MODE, PADDING, RECIPROCALS),
        infer=pool_types,
        to_onnx=onnx_forms.average,
        origin="nvdla",
    ),
    Op(
        "NvLrn",
        "CDP's normalisation: tables of a sum of squares times the input.",
        (X, Parameter("le", CONSTANTS, "E"), Parameter("lo", CONSTANTS, "O")),
        (Parameter("y", MAPS, "1 C H W", "x"),),
        integer.lrn,
        (SIZE, LE, LO, ZERO, CONVERTER),
        (_known_size,),
        to_onnx=onnx_forms.lrn,
        origin="nvdla",
    ),
)
"""All of npuc's operators, and NVDLA's layers."""
