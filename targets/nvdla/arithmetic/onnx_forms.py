"""NVDLA's integer operators in standard ONNX operators, so that onnxruntime computes them exactly.

Sums of a convolution come from npuc.ops.integer_onnx; everything behind them is in double: products of 33-bit sums
and 16-bit multipliers stay below 2^53.

The sums of transformed weights in standard ONNX operators, each exact in float32 or double.

Steps: padding; phases as channels; C^T d C as a grouped Conv with stride 2; rounding; a product for each of the 16
positions; A^T m A as one product; tiles back to a map; cropping to the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.ops.accumulators import EXACT_FLOAT32, accumulator_bound
from npuc.ops.attributes import KERNEL_SHAPE, PADDING, SIZE
from npuc.ops.integer_onnx import DOUBLE, EVERY, FLOAT, as_float, looked_up, pad_window, wide_sums
from npuc.targets.nvdla.arithmetic.integer import (
    ALU,
    DATA_TRANSFORM,
    IDLE,
    INT32,
    LE_ENTRIES,
    PRA_TRUNCATE,
    RECIPROCALS,
    RESULT_TRANSFORM,
    TILE_STEP,
    TRUNCATE,
    WINOGRAD,
    ZERO,
    SdpStage,
    TablePlacement,
    converter,
    lrn_tables,
    operands,
    split_phases,
    stages,
    strides_of,
    tables,
    tile_padding,
)
from npuc.targets.nvdla.arithmetic.normalisation import FRACTION_BITS, START
from npuc.targets.nvdla.formats.weights import TILE, extended_extent
from npuc.targets.nvdla.model.arithmetic import RECIPROCAL_BITS

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


POSITIONS = TILE * TILE
Real = type[np.floating]

EXACT_PRODUCTS = 2.0**48
"""Products of integers below this are rounded by `emit_scaling` in three operators."""


def winograd_sums(node: Node, emit: OnnxEmitter, u: Array) -> str:
    """The sums (1, K, Ho, Wo) of a node with transformed weights, in double."""
    result = emit.graph.shape(node.output)
    weights = split_phases(u, *strides_of(node))
    kernels, channels, *_ = weights.shape
    tiles = [(extended_extent(extent) - TILE) // TILE_STEP + 1 for extent in result[2:]]
    taps = np.tile(
        np.einsum("ip,jq->ijpq", DATA_TRANSFORM, DATA_TRANSFORM).reshape(POSITIONS, 1, TILE, TILE),
        (channels, 1, 1, 1),
    )
    taps = emit.constant(taps.astype(np.float32), "taps")
    data = emit.step("Conv", _data(node, emit), taps, group=channels, strides=(TILE_STEP, TILE_STEP))
    shifted = emit.step("Mul", data, emit.constant(np.float32(2.0 ** -PRA_TRUNCATE(node))))
    limits = np.iinfo(emit.graph.tensors[node.inputs[0]].dtype)
    t = emit_clip(emit, half_away(emit, shifted, np.float32), limits.min, limits.max, np.float32)
    t = emit.step("Cast", t, to=DOUBLE)
    t = _emit_transpose(emit, t, (channels, POSITIONS, tiles[0] * tiles[1]), (1, 0, 2))
    factors = weights.reshape(kernels, channels, POSITIONS).transpose(2, 0, 1).astype(np.float64)
    products = emit.step("MatMul", emit.constant(factors, "u"), t)
    back = emit.constant(np.kron(RESULT_TRANSFORM, RESULT_TRANSFORM).astype(np.float64), "back")
    m = emit.step("MatMul", back, _emit_reshape(emit, products, (POSITIONS, -1)))
    rows = _emit_transpose(emit, m, (TILE_STEP, TILE_STEP, kernels, *tiles), (2, 3, 0, 4, 1))
    return _cut(emit, _emit_reshape(emit, rows, (1, kernels, *(TILE_STEP * each for each in tiles))), result[2:])


def _data(node: Node, emit: OnnxEmitter) -> str:
    """The padded data (1, strides * C, H, W) in float32, phases as channels."""
    x, result = emit.graph.shape(node.inputs[0]), emit.graph.shape(node.output)
    (top, bottom), (left, right) = tile_padding(node, x, result)
    pads = emit.constant(np.array([0, 0, top, left, 0, 0, bottom, right]), "pads")
    value = emit.constant(np.float32(PADDING(node)), "value")
    padded = emit.step("Pad", emit.step("Cast", node.inputs[0], to=FLOAT), pads, value)
    stride_y, stride_x = strides_of(node)
    height, width = (extended_extent(extent) for extent in result[2:])
    split = _emit_transpose(emit, padded, (x[1], height, stride_y, width, stride_x), (2, 4, 0, 1, 3))
    return _emit_reshape(emit, split, (1, x[1] * stride_y * stride_x, height, width))


def _emit_reshape(emit: OnnxEmitter, x: str, shape: Sequence[int]) -> str:
    return emit.step("Reshape", x, emit.constant(np.array(shape, np.int64), "shape"))


def _emit_transpose(emit: OnnxEmitter, x: str, shape: Sequence[int], order: tuple[int, ...]) -> str:
    """x reshaped, with its axes then permuted."""
    return emit.step("Transpose", _emit_reshape(emit, x, shape), perm=order)


def _cut(emit: OnnxEmitter, x: str, extents: Sequence[int]) -> str:
    """x cropped to its first rows and columns."""
    limits = ([0, 0], list(extents), [2, 3])
    return emit.step("Slice", x, *(emit.constant(np.array(each, np.int64), "limit") for each in limits))


INT64 = "int64"


def conv(node: Node, emit: OnnxEmitter) -> None:
    """The exact sums of a convolution, and the pass behind it."""
    w = emit.graph.constants[node.inputs[1]]
    bound = _magnitude(node, emit) // 128 * int(accumulator_bound(w, np.zeros(len(w), np.int32)).max())
    bias = None if WINOGRAD(node) or TRUNCATE(node) else _bias(node, emit, bound)
    acc = winograd_sums(node, emit, w) if WINOGRAD(node) else _emit_bounded_sums(node, emit, w, bound, bias)
    if TRUNCATE(node):
        acc, bound = emit_scaling(emit, acc, bound, np.int64(1), TRUNCATE(node)), (bound >> TRUNCATE(node)) + 1
    if bias is None:
        _emit_stages(node, emit, acc, bound, stages(node))
    else:
        first, second = stages(node)
        _emit_stages(node, emit, acc, EXACT_FLOAT32, (replace(first, alu=0), second))


def _bias(node: Node, emit: OnnxEmitter, bound: int) -> Array | None:
    """X1's operand as a bias, if sums with it are exact in float32; bound: of those without."""
    stage, operand = stages(node)[0], emit.graph.constant(operands(node)[0])
    if ALU[stage.alu] != "sum" or operand is None or operand.shape[-2:] != (1, 1):
        return None
    bias = np.ldexp(operand.astype(np.float64), stage.alu_shift).ravel()
    if bound + np.abs(bias).max() >= EXACT_FLOAT32:
        return None
    return np.broadcast_to(bias, len(emit.graph.constants[node.inputs[1]])).astype(np.float32)


def _emit_bounded_sums(node: Node, emit: OnnxEmitter, w: Array, bound: int, bias: Array | None) -> str:
    """The sums of a convolution in double, none above the bound."""
    x, attrs = pad_window(node, emit, w)
    if bound < EXACT_FLOAT32:
        inputs = [emit.step("Cast", x, to=FLOAT), as_float(emit, w)]
        inputs += [] if bias is None else [emit.constant(bias, "bias")]
        return _emit_conv(emit, inputs, attrs)
    return wide_sums(emit, x, w, attrs) if _magnitude(node, emit) == 128 else _emit_wide_conv(emit, x, w, attrs)


def _emit_conv(emit: OnnxEmitter, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> str:
    """Sums of float32 values, exact in float32, as double."""
    return emit.step("Cast", emit.step("Conv", *inputs, **attrs), to=DOUBLE)


def _emit_wide_conv(emit: OnnxEmitter, x: str, w: Array, attrs: Mapping[str, Attr]) -> str:
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
            term = emit.step("Mul", _emit_conv(emit, (part, weights), attrs), scale)
            total = emit.step("Add", total, term) if total else term
    return total


def _parts(emit: OnnxEmitter, x: str, bits: int) -> Iterator[tuple[int, str]]:
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


def _magnitude(node: Node, emit: OnnxEmitter) -> int:
    """The largest magnitude of an element of the node's map."""
    return -int(np.iinfo(emit.graph.tensors[node.inputs[0]].dtype).min)


def elementwise(node: Node, emit: OnnxEmitter) -> None:
    """A map and the pass behind it; if all its elements go through the same, results are looked up."""
    if _is_function_of_byte(node, emit):
        results = emit.fresh("results")
        every = emit.constant(EVERY.reshape(-1, 1, 1).astype(np.float64), "every")
        _emit_stages(node, emit, every, _magnitude(node, emit), stages(node), results)
        flat = emit.step("Reshape", results, emit.integers("flat", [-1]))
        looked_up(emit, flat, node.inputs[0], node.output)
    else:
        _emit_stages(
            node, emit, emit.step("Cast", node.inputs[0], to=DOUBLE), _magnitude(node, emit), stages(node)
        )


def _is_function_of_byte(node: Node, emit: OnnxEmitter) -> bool:
    """Whether a result depends only on an element of 8 bits: operands are constants of one value."""
    values = [emit.graph.constant(name) for name in operands(node)[:4] if name]
    return _magnitude(node, emit) == 128 and all(value is not None and value.size == 1 for value in values)


def _emit_stages(
    node: Node, emit: OnnxEmitter, x: str, bound: float, passed: tuple[SdpStage, SdpStage], output: str = ""
) -> None:
    """X1, X2, table and converter of a double x with |x| <= bound. output: instead of the node's."""
    alu1, mul1, alu2, mul2, table = operands(node)
    offset, scale, shift = converter(node)
    rectified = not table and (scale, shift) == (1, 0) and bool((passed[0] if passed[1].idle else passed[1]).relu)
    if rectified:  # the result's lower limit does the same
        passed = (passed[0], replace(passed[1], relu=0)) if passed[1].relu else (replace(passed[0], relu=0), IDLE)
    for stage, alu, mul in zip(passed, (alu1, alu2), (mul1, mul2), strict=True):
        x, bound = _emit_stage(emit, x, bound, stage, alu, mul)
    placed = tables(node)
    if placed is not None:
        x = _emit_interpolation(emit, x, placed, emit.graph.constants[table])
    elif table:
        index = emit.step("Add", emit_clip(emit, x, -128, 127), emit.constant(np.float64(128)))
        values = emit.constant(emit.graph.constants[table].astype(np.float64), "table")
        x = looked_up(emit, values, index)
    if offset:
        x = emit.step("Sub", x, emit.constant(np.float64(offset)))
    if (scale, shift) != (1, 0):
        x = emit_scaling(emit, x, inf if table else bound + abs(offset), np.int64(scale), shift)
    _emit_saturation(node, emit, x, -offset if rectified else -inf, output)


def _emit_interpolation(
    emit: OnnxEmitter, x: str, placed: tuple[TablePlacement, TablePlacement], entries: Array
) -> str:
    """LE in its range, LO elsewhere."""
    le, lo = (_emit_table(emit, x, *each) for each in zip(placed, np.split(entries, [LE_ENTRIES]), strict=True))
    limits = (emit.constant(np.float64(each)) for each in (placed[0].start, placed[0].end(LE_ENTRIES)))
    above, below = (emit.step(op, x, limit) for op, limit in zip(("Greater", "Less"), limits, strict=True))
    return emit.step("Where", emit.step("And", above, below), le, lo)


def _emit_table(emit: OnnxEmitter, x: str, table: TablePlacement, entries: Array) -> str:
    """A table's value between entries, with the slope beyond the last one."""
    values = emit.constant(entries.astype(np.float64), "entries")
    distance = emit.step("Sub", x, emit.constant(np.float64(table.start)))
    place = emit.step("Mul", distance, emit.constant(np.ldexp(np.float64(1), -table.select)))
    before = emit_clip(emit, emit.step("Floor", place), 0, len(entries) - 2)
    part = emit_clip(emit, emit.step("Sub", place, before), 0, 1)
    y0 = looked_up(emit, values, before)
    y1 = looked_up(emit, values, emit.step("Add", before, emit.constant(np.float64(1))))
    inside = half_away(emit, emit.step("Add", y0, emit.step("Mul", emit.step("Sub", y1, y0), part)))
    if not table.beyond:
        return inside
    end = emit.constant(np.float64(table.end(len(entries))))
    further = emit.step("Max", emit.step("Sub", x, end), emit.constant(np.float64(0)))
    slope = emit.constant(np.ldexp(np.float64(table.beyond), -table.shift))
    return emit.step("Add", inside, half_away(emit, emit.step("Mul", further, slope)))


def _emit_saturation(node: Node, emit: OnnxEmitter, x: str, lowest: float = -inf, output: str = "") -> None:
    """A double, at least `lowest`, saturated to the type of the node's output. output: instead of that one."""
    dtype = emit.graph.tensors[node.output].dtype
    limits = np.iinfo(dtype)
    low = min(max(int(limits.min), lowest), int(limits.max))
    emit.node("Cast", [emit_clip(emit, x, low, int(limits.max))], [output or node.output], to=dtype)


def _emit_stage(emit: OnnxEmitter, x: str, bound: float, stage: SdpStage, alu: str, mul: str) -> tuple[str, float]:
    """The result of a stage and a bound of its magnitude; emits saturation only where it can happen."""
    if stage.alu:
        operand, reach = _operand(emit, alu, stage.alu_shift)
        x = emit.step({"sum": "Add", "max": "Max", "min": "Min"}[ALU[stage.alu]], x, operand)
        bound += reach
    if stage.multiply:
        product, reach = _product(emit, x, bound, mul, stage.shift)
        if stage.prelu:
            product = emit.step("Where", emit.step("Greater", x, emit.constant(np.float64(0))), x, product)
        x, bound = product, max(bound * reach + 1, bound if stage.prelu else 0)
    if bound > INT32[1]:
        return emit_clip(emit, x, 0 if stage.relu else INT32[0], INT32[1]), INT32[1]
    if stage.relu:
        x = emit.step("Max", x, emit.constant(np.float64(0)))
    return x, bound


def _product(emit: OnnxEmitter, x: str, bound: float, name: str, shift: int) -> tuple[str, float]:
    """x, with |x| <= bound, times an operand over 2^shift, rounded, and that operand's largest magnitude."""
    value = emit.graph.constant(name)
    if value is not None:
        return emit_scaling(emit, x, bound, value, shift), float(
            np.abs(value.astype(np.float64)).max()
        ) * 2.0**-shift
    factor, reach = _operand(emit, name, 0)
    product = emit.step("Mul", x, factor)
    return emit_scaling(
        emit, product, bound * reach, np.int64(1), shift
    ) if shift else product, reach * 2.0**-shift


def _operand(emit: OnnxEmitter, name: str, shift: int) -> tuple[str, float]:
    """An operand times 2^shift as double, and its largest magnitude."""
    value = emit.graph.constant(name)
    if value is not None:
        scaled = np.ldexp(value.astype(np.float64), shift)
        return emit.constant(scaled, "operand"), float(np.abs(scaled).max(initial=0))
    whole = emit.step("Cast", name, to=DOUBLE)
    scaled = emit.step("Mul", whole, emit.constant(np.ldexp(1.0, shift))) if shift else whole
    return scaled, -float(np.iinfo(emit.graph.tensors[name].dtype).min) * 2.0**shift


def average(node: Node, emit: OnnxEmitter) -> None:
    """Sums times both reciprocals."""
    channels = emit.graph.shape(node.inputs[0])[1]
    taps = np.ones((channels, 1, *KERNEL_SHAPE(node)), np.float32)
    x, attrs = pad_window(node.with_attrs(group=channels), emit, taps)
    values = emit.step("Cast", x, to=FLOAT)
    total = emit.step("Cast", emit.step("Conv", values, emit.constant(taps, "taps"), **attrs), to=DOUBLE)
    bound = float(_magnitude(node, emit) * taps[0].size)
    for reciprocal in RECIPROCALS(node):
        total = emit_scaling(emit, total, bound, np.int64(reciprocal), RECIPROCAL_BITS)
    _emit_saturation(node, emit, total)


def lrn(node: Node, emit: OnnxEmitter) -> None:
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
    _emit_saturation(node, emit, result)


def _between_entries(emit: OnnxEmitter, distance: str, entries: Array, digits: int) -> str:
    """Interpolation between entries 2^digits apart, with 16 fractional bits."""
    place = emit.step("Mul", distance, emit.constant(np.ldexp(1.0, -digits)))
    place = emit_clip(emit, place, 0, np.nextafter(len(entries) - 1.0, 0))
    index = emit.step("Floor", place)
    below, rise = emit.constant(entries[:-1], "entries"), emit.constant(np.diff(entries), "rise")
    fraction = emit.step("Sub", place, index)
    if digits > FRACTION_BITS:
        counted = emit.step("Mul", fraction, emit.constant(np.float64(2.0**FRACTION_BITS)))
        fraction = emit.step("Mul", emit.step("Floor", counted), emit.constant(np.float64(2.0**-FRACTION_BITS)))
    part = emit.step("Mul", looked_up(emit, rise, index), fraction)
    return emit.step("Add", looked_up(emit, below, index), half_away(emit, part))


def half_away(emit: OnnxEmitter, x: str, dtype: Real = np.float64) -> str:
    """x rounded half away from zero."""
    half = emit.constant(np.array(0.5, dtype), "half")
    magnitude = emit.step("Floor", emit.step("Add", emit.step("Abs", x), half))
    return emit.step("Mul", magnitude, emit.step("Sign", x))


def emit_scaling(emit: OnnxEmitter, x: str, bound: float, factor: Array | np.integer, shift: int) -> str:
    """Integers x, a double, with |x| <= bound, times integers over 2^shift, rounded half away from zero.

    The factor is larger by 2^-50 of itself, and so is a product: one halfway between two integers lies beyond that
    half, away from zero, where Floor(product + 1/2) rounds as it should for both signs. No other product reaches a
    half: all are multiples of 2^-shift, and below 2^48 that is twice what the increase and rounding move them.
    """
    exact = np.ldexp(np.asarray(factor, np.float64), -shift)
    if bound * float(np.abs(exact).max(initial=0)) * 2.0**shift >= EXACT_PRODUCTS:
        return half_away(emit, emit.step("Mul", x, emit.constant(exact, "factor")))
    product = emit.step("Mul", x, emit.constant(exact * (1 + 2.0**-50), "factor"))
    return emit.step("Floor", emit.step("Add", product, emit.constant(np.float64(0.5), "half")))


def emit_clip(emit: OnnxEmitter, x: str, low: float, high: float, dtype: Real = np.float64) -> str:
    """x clipped to limits."""
    limits = (emit.constant(np.array(each, dtype), "limit") for each in (low, high))
    return emit.step("Clip", x, *limits)
