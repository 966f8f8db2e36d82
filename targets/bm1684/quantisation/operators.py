"""The integer operators that BM1684 adds to those of the shared quantiser: sums, products and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops import OPS, Op, Operators, Parameter, with_operators
from npuc.ops.attributes import Attribute
from npuc.ops.declaration import broadcast
from npuc.ops.integer_onnx import DOUBLE, EVERY, looked_up

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter

SUM, PRODUCT, LOOKUP = "ShiftedSum", "ShiftedProduct", "Lookup"
UNSIGNED = -128
"""The zero point of int8 tensors that are unsigned on the chip, where integers are larger by 128."""
SIXTEEN_BITS = (-(2**15), 2**15 - 1)

FACTORS, SHIFTS, ZEROS = (
    Attribute[tuple[int, ...]](name, "integers", meaning, low=low, internal=True)
    for name, meaning, low in (
        ("factors", "what each operand is multiplied by", 0),
        ("shifts", "the right shift of each product", 0),
        ("zeros", "the integers that stand for 0: of each operand, then of the result", -128),
    )
)


def limits(zero: int) -> tuple[int, int]:
    """The least and the largest integer of a result, relative to its zero point."""
    return (0, 255) if zero == UNSIGNED else (-128, 127)


def _sum(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    *zeros, zero = ZEROS(node)
    total = np.zeros((), np.int64)
    for x, z, factor, shift in zip(inputs, zeros, FACTORS(node), SHIFTS(node), strict=True):
        product = (x.astype(np.int64) - z) * factor
        total = total + np.clip((product + ((1 << shift) >> 1)) >> shift, *SIXTEEN_BITS)
    return ((np.clip(total, *limits(zero)) + zero).astype(np.int8),)


def _types(_node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(types[0].shape, "int8"),)


def _same_shapes(node: Node, types: Sequence[TensorType]) -> bool:
    """There is a factor and a shift for each operand, and all operands have one shape."""
    counts = (len(FACTORS(node)), len(SHIFTS(node)), len(ZEROS(node)) - 1)
    return counts == (len(types),) * 3 and all(each.shape == types[0].shape for each in types)


def _to_onnx(node: Node, emit: OnnxEmitter) -> None:
    """The operands and their sum, computed in double."""
    *zeros, zero = ZEROS(node)
    total = ""
    for name, z, factor, shift in zip(node.inputs, zeros, FACTORS(node), SHIFTS(node), strict=True):
        value = emit.step("Sub", emit.step("Cast", name, to=DOUBLE), emit.constant(np.float64(z), "zero"))
        value = emit.step("Mul", value, emit.constant(np.ldexp(np.float64(factor), -shift), "factor"))
        value = emit.step("Add", value, emit.constant(np.float64(0.5 if shift else 0), "half"))
        part = emit.step("Clip", emit.step("Floor", value), *_limits(emit, SIXTEEN_BITS))
        total = emit.step("Add", total, part) if total else part
    limited = emit.step("Clip", total, *_limits(emit, limits(zero)))
    moved = emit.step("Add", limited, emit.constant(np.float64(zero), "zero"))
    emit.node("Cast", [moved], [node.output], to="int8")


def _product(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    *zeros, zero = ZEROS(node)
    (factor,), (shift,) = FACTORS(node), SHIFTS(node)
    a, b = (x.astype(np.int64) - z for x, z in zip(inputs, zeros, strict=True))
    found = (a * b * factor + ((1 << shift) >> 1)) >> shift
    return ((np.clip(found, *limits(zero)) + zero).astype(np.int8),)


def _pair_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(broadcast(node, types[0].shape, types[1].shape), "int8"),)


def _product_to_onnx(node: Node, emit: OnnxEmitter) -> None:
    """The product, computed in double."""
    *zeros, zero = ZEROS(node)
    (factor,), (shift,) = FACTORS(node), SHIFTS(node)
    a, b = (
        emit.step("Sub", emit.step("Cast", name, to=DOUBLE), emit.constant(np.float64(z), "zero"))
        for name, z in zip(node.inputs, zeros, strict=True)
    )
    value = emit.step("Mul", emit.step("Mul", a, b), emit.constant(np.ldexp(np.float64(factor), -shift), "factor"))
    value = emit.step("Floor", emit.step("Add", value, emit.constant(np.float64(0.5 if shift else 0), "half")))
    limited = emit.step("Clip", value, *_limits(emit, limits(zero)))
    moved = emit.step("Add", limited, emit.constant(np.float64(zero), "zero"))
    emit.node("Cast", [moved], [node.output], to="int8")


def _lookup(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, table = inputs
    return (table[x.astype(np.int16) + 128],)


def _lookup_to_onnx(node: Node, emit: OnnxEmitter) -> None:
    table = emit.graph.constants[node.inputs[1]][EVERY.astype(np.int16) + 128]
    looked_up(emit, emit.constant(table, "table"), node.inputs[0], node.output)


def _limits(emit: OnnxEmitter, ends: tuple[int, int]) -> tuple[str, str]:
    low, high = (emit.constant(np.float64(each), "limit") for each in ends)
    return low, high


OPERATORS: Operators = with_operators(
    OPS,
    Op(
        SUM,
        "The sum of int8 tensors, each multiplied and shifted to 16 bits.",
        (Parameter("a", ("int8",), "*X"), Parameter("more", ("int8",), optional=True, variadic=True)),
        (Parameter("y", ("int8",), "*X"),),
        _sum,
        (FACTORS, SHIFTS, ZEROS),
        (_same_shapes,),
        _types,
        _to_onnx,
        origin="bm1684",
    ),
    Op(
        PRODUCT,
        "The product of two int8 tensors times a factor, shifted.",
        (Parameter("a", ("int8",)), Parameter("b", ("int8",))),
        (Parameter("y", ("int8",)),),
        _product,
        (FACTORS, SHIFTS, ZEROS),
        infer=_pair_types,
        to_onnx=_product_to_onnx,
        origin="bm1684",
    ),
    Op(
        LOOKUP,
        "The entry of a table for each int8 element, from -128 on.",
        (Parameter("x", ("int8",), "*X"), Parameter("table", ("int8",), "256")),
        (Parameter("y", ("int8",), "*X"),),
        _lookup,
        to_onnx=_lookup_to_onnx,
        origin="bm1684",
    ),
)
"""The operators of BM1684's integer graphs."""
