"""NVDLA's layers as integer operators: what convolution, SDP and PDP compute on int8, exactly.

A layer is one pass through SDP: accumulators of a convolution, or the elements of a map, through two stages (X1,
X2), perhaps a table, and the output converter. Every right shift rounds half away from zero, then saturates.
Source: NVDLA's own simulators, which reproduce the golden results of its test programs.

| operator | inputs |
|--|--|
| NvConv | x, weights (Co, Ci/group, Hk, Wk) int8, operands, table |
| NvElementwise | x, operands, table |
| NvAveragePool | x |

Operands: those of X1's adder, X1's multiplier, X2's adder and X2's multiplier, each a constant (1, 1, 1), (C, 1,
1) or (C, H, W) int16, or an int8 tensor (1, C, 1, 1) or (1, C, H, W). An absent one is the empty string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.table import Op, bad_node, register
from npuc.ops.windows import window_of
from npuc.quantize.integer import convolve
from npuc.targets.nvdla.formats.precision import half_away

ALU = ("none", "sum", "max", "min")
RECIPROCAL_BITS = 16
"""PDP multiplies sums by reciprocals of this many fractional bits."""
INT32 = (-(1 << 31), (1 << 31) - 1)


@dataclass(frozen=True)
class Stage:
    """X1 or X2: adder (or comparison), multiplier, shift, ReLU; every field an integer, as attributes are."""

    alu: int = 0
    """Position in ALU."""
    alu_shift: int = 0
    """Left shift of the adder's operand."""
    multiply: int = 0
    prelu: int = 0
    """Positive values bypass multiplier and shift."""
    shift: int = 0
    """Right shift behind the multiplier."""
    relu: int = 0

    @property
    def idle(self) -> bool:
        """Whether the stage changes nothing."""
        return not (self.alu or self.multiply or self.relu)

    def as_attr(self) -> tuple[int, ...]:
        """The stage as a node's attribute."""
        return astuple(self)


IDLE = Stage()
IDENTITY = (0, 1, 0)
"""The converter that changes nothing: offset, scale, shift."""


def stages(node: Node) -> tuple[Stage, Stage]:
    """X1 and X2 of a node."""
    first, second = (node.integers(key, IDLE.as_attr()) for key in ("x1", "x2"))
    return Stage(*first), Stage(*second)


def converter(node: Node) -> tuple[int, int, int]:
    """Offset, scale and shift of the output converter."""
    offset, scale, shift = node.integers("converter", IDENTITY)
    return offset, scale, shift


def operands(node: Node) -> tuple[str, str, str, str, str]:
    """X1's adder operand and multiplier, X2's, and the table; the names of tensors."""
    found = node.inputs[2:] if node.op == "NvConv" else node.inputs[1:]
    first, second, third, fourth, table = (*found, *("",) * (5 - len(found)))
    return first, second, third, fourth, table


def staged(x: Array, stage: Stage, alu: Array, mul: Array) -> Array:
    """int64 values through a stage; operands broadcast against x, empty where absent."""
    match ALU[stage.alu]:
        case "sum":
            x = x + _widened(alu, stage.alu_shift)
        case "max":
            x = np.maximum(x, _widened(alu, stage.alu_shift))
        case "min":
            x = np.minimum(x, _widened(alu, stage.alu_shift))
        case _:
            pass
    if stage.multiply:
        product = half_away(x * mul.astype(np.int64), stage.shift)
        x = np.where(x > 0, x, product) if stage.prelu else product
    x = np.clip(x, *INT32)
    return np.maximum(x, 0) if stage.relu else x


def _widened(operand: Array, shift: int) -> Array:
    return np.clip(operand.astype(np.int64) << shift, *INT32)


def _through(node: Node, x: Array, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """int8 of accumulators or elements: X1, X2, table, converter."""
    for stage, alu, mul in zip(stages(node), inputs[0:4:2], inputs[1:4:2], strict=True):
        x = staged(x, stage, alu, mul)
    if len(inputs) > 4 and inputs[4].size:
        x = inputs[4].astype(np.int64)[np.clip(x, -128, 127) + 128]
    offset, scale, shift = converter(node)
    return (np.clip(half_away((x - offset) * scale, shift), -128, 127).astype(np.int8),)


def _filled(inputs: Sequence[Array]) -> list[Array]:
    return [*inputs, *[np.empty(0, np.int16)] * (5 - len(inputs))]


def _conv(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return _through(node, convolve(node, inputs[0], inputs[1]), _filled(inputs[2:]))


def _elementwise(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return _through(node, inputs[0].astype(np.int64), _filled(inputs[1:]))


def _average(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    channels = inputs[0].shape[1]
    taps = np.ones((channels, 1, *node.integers("kernel_shape")), np.int8)
    total = convolve(node.with_attrs(group=channels), inputs[0], taps)
    for reciprocal in node.integers("reciprocals"):
        total = half_away(total * reciprocal, RECIPROCAL_BITS)
    return (np.clip(total, -128, 127).astype(np.int8),)


def _expect_map(node: Node, x: TensorType) -> None:
    if len(x.shape) != 4 or x.shape[0] != 1 or x.dtype != "int8":
        raise bad_node(node, f"the input is {x}", tensor=node.inputs[0], limit="int8 (1, C, H, W)")


def _expect_operands(node: Node, y: tuple[int, ...], types: Sequence[TensorType]) -> None:
    for name, found in zip(operands(node)[:4], types, strict=False):
        extents = found.shape[-3:]
        fits = all(extent in (1, full) for extent, full in zip(extents, y[1:], strict=False))
        if name and (len(extents) != 3 or not fits):
            raise bad_node(node, f"an operand {found} for a result {list(y)}", tensor=name)


def _conv_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _expect_map(node, types[0])
    x, w = types[0].shape, types[1].shape
    if len(w) != 4 or w[1] * node.integer("group", 1) != x[1]:
        raise bad_node(node, f"weights {list(w)} for an input {list(x)}")
    y = (1, w[0], *window_of(node, w[2:]).extents(node, x[2:]))
    _expect_operands(node, y, types[2:])
    return (TensorType(y, "int8"),)


def _elementwise_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _expect_map(node, types[0])
    _expect_operands(node, types[0].shape, types[1:])
    return (types[0],)


def _average_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _expect_map(node, types[0])
    extents = window_of(node, node.integers("kernel_shape")).extents(node, types[0].shape[2:])
    return (TensorType((*types[0].shape[:2], *extents), "int8"),)


register(
    Op("NvConv", "int8 convolution through both stages of SDP and its converter.", _conv_types, _conv),
    Op(
        "NvElementwise",
        "int8 elements through both stages of SDP and its converter.",
        _elementwise_types,
        _elementwise,
    ),
    Op("NvAveragePool", "PDP's average: sums times two reciprocals.", _average_types, _average),
)
