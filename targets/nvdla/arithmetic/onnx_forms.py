"""NVDLA's integer operators in standard ONNX operators, so that onnxruntime computes them exactly.

Sums of a convolution come from npuc.ops.integer_onnx; everything behind them is in double: products of 33-bit sums
and 16-bit multipliers stay below 2^53. Rounding half away from zero is Sign * Floor(Abs + 1/2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.ops.accumulators import EXACT_FLOAT32, accumulator_bound
from npuc.ops.attributes import KERNEL_SHAPE, SIZE
from npuc.ops.integer_onnx import DOUBLE, FLOAT, as_float, wide_sums, windowed
from npuc.targets.nvdla.arithmetic.attributes import RECIPROCALS, TRUNCATE, WINOGRAD, ZERO
from npuc.targets.nvdla.arithmetic.integer import (
    ALU,
    INT32,
    LE_ENTRIES,
    Stage,
    Table,
    converter,
    lrn_tables,
    operands,
    stages,
    tables,
)
from npuc.targets.nvdla.arithmetic.normalisation import FRACTION_BITS, START
from npuc.targets.nvdla.arithmetic.rounding_onnx import clipped, half_away
from npuc.targets.nvdla.arithmetic.transformed_onnx import winograd_sums
from npuc.targets.nvdla.model.averages import RECIPROCAL_BITS

if TYPE_CHECKING:
    from npuc.export_onnx import Emitter

INT64 = "int64"


def conv(node: Node, emit: Emitter) -> None:
    """The exact sums of a convolution, and the pass behind it."""
    w = emit.graph.constants[node.inputs[1]]
    bound = _magnitude(node, emit) // 128 * int(accumulator_bound(w, np.zeros(len(w), np.int32)).max())
    acc = winograd_sums(node, emit, w) if WINOGRAD(node) else _summed(node, emit, w, bound)
    if TRUNCATE(node):
        factor = emit.constant(np.ldexp(np.float64(1), -TRUNCATE(node)), "truncate")
        acc, bound = half_away(emit, emit.step("Mul", acc, factor)), (bound >> TRUNCATE(node)) + 1
    _through(node, emit, acc, bound)


def _summed(node: Node, emit: Emitter, w: Array, bound: int) -> str:
    """The sums of a convolution in double, none above the bound."""
    x, attrs = windowed(node, emit, w)
    if bound < EXACT_FLOAT32:
        return _sums(emit, emit.step("Cast", x, to=FLOAT), as_float(emit, w), attrs)
    return wide_sums(emit, x, w, attrs) if _magnitude(node, emit) == 128 else _wider_sums(emit, x, w, attrs)


def _sums(emit: Emitter, x: str, w: str, attrs: Mapping[str, Attr]) -> str:
    """Sums of float32 values, exact in float32, as double."""
    return emit.step("Cast", emit.step("Conv", x, w, **attrs), to=DOUBLE)


def _wider_sums(emit: Emitter, x: str, w: Array, attrs: Mapping[str, Attr]) -> str:
    """The sums of an int16 map and 16-bit weights in double, as products of digits.

    Sums of products of digits stay below 2^24, so that they are exact in float32.
    """
    taps = w[0].size
    bits = 8 if taps < 1 << 15 else 4
    parts = list(_parts(emit, emit.step("Cast", x, to=FLOAT), bits))
    total = ""
    for position, digit in _digits(w, int(np.clip(np.log2(EXACT_FLOAT32 / taps) - bits + 1, 2, 8))):
        weights = as_float(emit, digit)
        for exponent, part in parts:
            scale = emit.constant(np.ldexp(np.float64(1), exponent + position), "scale")
            term = emit.step("Mul", _sums(emit, part, weights, attrs), scale)
            total = emit.step("Add", total, term) if total else term
    return total


def _parts(emit: Emitter, x: str, bits: int) -> Iterator[tuple[int, str]]:
    """An int16 as float32 parts of so many bits, the last one signed: exponent and part."""
    for exponent in range(0, 16 - bits, bits):
        upper = emit.step("Floor", emit.step("Mul", x, emit.constant(np.float32(2.0**-bits))))
        yield exponent, emit.step("Sub", x, emit.step("Mul", upper, emit.constant(np.float32(2.0**bits))))
        x = upper
    yield 16 - bits, x


def _digits(w: Array, bits: int) -> list[tuple[int, Array]]:
    """Weights as signed digits of so many bits: exponent and digits (int8)."""
    rest, found = w.astype(np.int32), list[tuple[int, Array]]()
    while rest.any() or not found:
        digit = (rest + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        found.append((bits * len(found), digit.astype(np.int8)))
        rest = (rest - digit) >> bits
    return found


def _magnitude(node: Node, emit: Emitter) -> int:
    """The largest magnitude of an element of the node's map."""
    return -int(np.iinfo(emit.graph.tensors[node.inputs[0]].dtype).min)


def elementwise(node: Node, emit: Emitter) -> None:
    """A map and the pass behind it."""
    _through(node, emit, emit.step("Cast", node.inputs[0], to=DOUBLE), _magnitude(node, emit))


def _through(node: Node, emit: Emitter, x: str, bound: float) -> None:
    """X1, X2, table and converter of a double x with |x| <= bound."""
    alu1, mul1, alu2, mul2, table = operands(node)
    rectified = False
    for stage, alu, mul in zip(stages(node), (alu1, alu2), (mul1, mul2), strict=True):
        x, bound = _staged(emit, x, bound, stage, alu, mul)
        rectified = bool(stage.relu) or (rectified and stage.idle)
    placed = tables(node)
    if placed is not None:
        x = _interpolated(emit, x, placed, emit.graph.constants[table])
    elif table:
        index = emit.step("Add", clipped(emit, x, -128, 127), emit.constant(np.float64(128)))
        values = emit.constant(emit.graph.constants[table].astype(np.float64), "table")
        x = emit.step("Gather", values, emit.step("Cast", index, to=INT64))
    offset, scale, shift = converter(node)
    if offset:
        x = emit.step("Sub", x, emit.constant(np.float64(offset)))
    if (scale, shift) != (1, 0):
        scaled = emit.step("Mul", x, emit.constant(np.ldexp(np.float64(scale), -shift)))
        x = half_away(emit, scaled, positive=rectified and not table and offset <= 0 <= scale)
    _saturated(node, emit, x)


def _interpolated(emit: Emitter, x: str, placed: tuple[Table, Table], entries: Array) -> str:
    """LE in its range, LO elsewhere."""
    le, lo = (_of_table(emit, x, *each) for each in zip(placed, np.split(entries, [LE_ENTRIES]), strict=True))
    limits = (emit.constant(np.float64(each)) for each in (placed[0].start, placed[0].end(LE_ENTRIES)))
    above, below = (emit.step(op, x, limit) for op, limit in zip(("Greater", "Less"), limits, strict=True))
    return emit.step("Where", emit.step("And", above, below), le, lo)


def _of_table(emit: Emitter, x: str, table: Table, entries: Array) -> str:
    """A table's value between entries, with the slope beyond the last one."""
    values = emit.constant(entries.astype(np.float64), "entries")
    distance = emit.step("Sub", x, emit.constant(np.float64(table.start)))
    place = emit.step("Mul", distance, emit.constant(np.ldexp(np.float64(1), -table.select)))
    before = clipped(emit, emit.step("Floor", place), 0, len(entries) - 2)
    part = clipped(emit, emit.step("Sub", place, before), 0, 1)
    first = emit.step("Cast", before, to=INT64)
    y0 = emit.step("Gather", values, first)
    y1 = emit.step("Gather", values, emit.step("Add", first, emit.constant(np.int64(1))))
    inside = half_away(emit, emit.step("Add", y0, emit.step("Mul", emit.step("Sub", y1, y0), part)))
    if not table.beyond:
        return inside
    end = emit.constant(np.float64(table.end(len(entries))))
    further = emit.step("Max", emit.step("Sub", x, end), emit.constant(np.float64(0)))
    slope = emit.constant(np.ldexp(np.float64(table.beyond), -table.shift))
    return emit.step("Add", inside, half_away(emit, emit.step("Mul", further, slope)))


def _saturated(node: Node, emit: Emitter, x: str) -> None:
    """The node's result: a double saturated to the type of its output."""
    dtype = emit.graph.tensors[node.output].dtype
    limits = np.iinfo(dtype)
    emit.node("Cast", [clipped(emit, x, int(limits.min), int(limits.max))], [node.output], to=dtype)


def _staged(emit: Emitter, x: str, bound: float, stage: Stage, alu: str, mul: str) -> tuple[str, float]:
    """The result of a stage and a bound of its magnitude; emits saturation only where it can happen."""
    if stage.alu:
        operand, reach = _operand(emit, alu, stage.alu_shift)
        x = emit.step({"sum": "Add", "max": "Max", "min": "Min"}[ALU[stage.alu]], x, operand)
        bound += reach
    if stage.multiply:
        factor, reach = _operand(emit, mul, -stage.shift)
        product = half_away(emit, emit.step("Mul", x, factor), positive=bool(stage.relu))
        if stage.prelu:
            product = emit.step("Where", emit.step("Greater", x, emit.constant(np.float64(0))), x, product)
        x, bound = product, max(bound * reach + 1, bound if stage.prelu else 0)
    if bound > INT32[1]:
        x, bound = clipped(emit, x, *INT32), INT32[1]
    if stage.relu:
        x = emit.step("Max", x, emit.constant(np.float64(0)))
    return x, bound


def _operand(emit: Emitter, name: str, shift: int) -> tuple[str, float]:
    """An operand times 2^shift as double, and its largest magnitude."""
    value = emit.graph.constant(name)
    if value is not None:
        scaled = np.ldexp(value.astype(np.float64), shift)
        return emit.constant(scaled, "operand"), float(np.abs(scaled).max(initial=0))
    scaled = emit.step("Mul", emit.step("Cast", name, to=DOUBLE), emit.constant(np.ldexp(1.0, shift)))
    return scaled, -float(np.iinfo(emit.graph.tensors[name].dtype).min) * 2.0**shift


def average(node: Node, emit: Emitter) -> None:
    """Sums times both reciprocals."""
    channels = emit.graph.shape(node.inputs[0])[1]
    taps = np.ones((channels, 1, *KERNEL_SHAPE(node)), np.float32)
    x, attrs = windowed(node.with_attrs(group=channels), emit, taps)
    values = emit.step("Cast", x, to=FLOAT)
    total = emit.step("Cast", emit.step("Conv", values, emit.constant(taps, "taps"), **attrs), to=DOUBLE)
    for reciprocal in RECIPROCALS(node):
        factor = emit.constant(np.ldexp(np.float64(reciprocal), -RECIPROCAL_BITS), "reciprocal")
        total = half_away(emit, emit.step("Mul", total, factor))
    _saturated(node, emit, total)


def lrn(node: Node, emit: Emitter) -> None:
    """In double throughout, which is exact for sums of 17-bit squares and products of 33 and 16 bits."""
    shape, size = emit.graph.shape(node.inputs[0]), SIZE(node)
    zero = emit.constant(np.float64(ZERO(node)))
    centred = emit.step("Sub", emit.step("Cast", node.inputs[0], to=DOUBLE), zero)
    near = np.abs(np.subtract.outer(np.arange(shape[1]), np.arange(shape[1]))) <= size // 2
    rows, whole = (emit.constant(np.array(each), "shape") for each in ((shape[1], -1), shape))
    squares = emit.step("Reshape", emit.step("Mul", centred, centred), rows)
    sums = emit.step("MatMul", emit.constant(near.astype(np.float64), "neighbours"), squares)
    sums = emit.step("Reshape", sums, whole)
    distance = emit.step("Sub", sums, emit.constant(np.float64(START)))
    tables = lrn_tables(node, *(emit.graph.constants[name] for name in node.inputs[1:3]))
    fine, coarse = (
        _between_entries(emit, distance, np.array(entries, np.float64), each)
        for entries, each in ((tables.le, tables.le_step), (tables.lo, tables.lo_step))
    )
    near_start = emit.step("Less", distance, emit.constant(np.float64(tables.le_end)))
    value = emit.step("Where", near_start, fine, coarse)
    product = emit.step("Mul", value, centred)
    offset, scale, shift = converter(node)
    centred_product = emit.step("Sub", product, emit.constant(np.float64(offset)))
    factor = emit.constant(np.ldexp(np.float64(scale), -shift))
    result = half_away(emit, emit.step("Mul", centred_product, factor))
    _saturated(node, emit, result)


def _between_entries(emit: Emitter, distance: str, entries: Array, digits: int) -> str:
    """Interpolation between entries 2^digits apart, with 16 fractional bits."""
    place = emit.step("Mul", distance, emit.constant(np.ldexp(1.0, -digits)))
    place = clipped(emit, place, 0, np.nextafter(len(entries) - 1.0, 0))
    index = emit.step("Floor", place)
    at = emit.step("Cast", index, to=INT64)
    below, rise = emit.constant(entries[:-1], "entries"), emit.constant(np.diff(entries), "rise")
    fraction = emit.step("Sub", place, index)
    if digits > FRACTION_BITS:
        counted = emit.step("Mul", fraction, emit.constant(np.float64(2.0**FRACTION_BITS)))
        fraction = emit.step("Mul", emit.step("Floor", counted), emit.constant(np.float64(2.0**-FRACTION_BITS)))
    part = emit.step("Mul", emit.step("Gather", rise, at), fraction)
    return emit.step("Add", emit.step("Gather", below, at), half_away(emit, part))
