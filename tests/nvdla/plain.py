"""What NVDLA makes of integers, in plain numpy from its description: none of npuc's arithmetic is used.

Right shifts round half away from zero, then saturate. The integer graph names the layers; each is computed on the
inputs that the program itself had, and compared with what the program left, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.ir import Array, Graph, Node

SUM, MAX, MIN = 1, 2, 3
"""X1's and X2's adder, as the graph numbers its uses."""
LE_ENTRIES = 65


def shifted(values: Array, digits: int) -> Array:
    """int64 divided by a power of two, rounded half away from zero."""
    half = (1 << digits) >> 1
    magnitude = (np.abs(values) + half) >> digits
    return np.where(values < 0, -magnitude, magnitude)


def saturated(values: Array, bits: int) -> Array:
    """Within a signed number of bits."""
    return np.clip(values, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def padded(x: Array, node: Node) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """The map (C, H, W) with its padding, strides and dilations."""
    strides, dilations = (node.integers(key, (1, 1)) for key in ("strides", "dilations"))
    top, left, bottom, right = node.integers("pads", (0, 0, 0, 0))
    around = ((0, 0), (top, bottom), (left, right))
    return np.pad(x, around, constant_values=node.integer("padding")), strides, dilations


def windows(x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """(C, R, S, Ho, Wo) of a padded map (C, H, W)."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(1, 2))
    cut = view[:, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    return cut.transpose(0, 3, 4, 1, 2)


def convolution(node: Node, x: Array, w: Array, *more: Array) -> Array:
    """CACC's sums through SDP."""
    data, strides, dilations = padded(x[0].astype(np.int64), node)
    groups = node.integer("group", 1)
    per_group, kernels = w.shape[1], len(w) // groups
    found: list[Array] = []
    for group in range(groups):
        taken = windows(data[group * per_group : (group + 1) * per_group], w.shape[2:], strides, dilations)
        part = w[group * kernels : (group + 1) * kernels].astype(np.float64)  # exact: sums stay below 2^53
        found.append(np.tensordot(part, taken.astype(np.float64), axes=3).astype(np.int64))
    total = saturated(shifted(np.concatenate(found), node.integer("truncate")), 32)
    return through_sdp(node, total, more, x.dtype)


def elementwise(node: Node, x: Array, *more: Array) -> Array:
    """SDP on a map."""
    return through_sdp(node, x[0].astype(np.int64), more, np.dtype(str(node.attrs.get("result") or x.dtype)))


def through_sdp(node: Node, values: Array, operands: Sequence[Array], dtype: np.dtype[np.generic]) -> Array:
    """X1, X2, table, converter."""
    given = [*operands, *[np.empty(0)] * (5 - len(operands))]
    for key, alu, mul in (("x1", *given[:2]), ("x2", *given[2:4])):
        values = stage(node.integers(key, (0,) * 6), values, alu, mul)
    if given[4].size:
        values = looked_up(node, values, given[4].astype(np.int64))
    offset, scale, digits = node.integers("converter", (0, 1, 0))
    wide = saturated(shifted((values - offset) * scale, digits), 17)
    return saturated(wide, 8 * dtype.itemsize).astype(dtype)[None]


def stage(fields: Sequence[int], values: Array, alu: Array, mul: Array) -> Array:
    """Operand shifted left to 32 bits; sum, maximum or minimum; product, shift, 32 bits; ReLU."""
    use, left, multiplies, prelu, right, relu = fields
    operand = saturated(np.reshape(alu, alu.shape[-3:]).astype(np.int64) << left, 32) if use else 0
    before = {
        0: values,
        SUM: values + operand,
        MAX: np.maximum(values, operand),
        MIN: np.minimum(values, operand),
    }[use]
    after = before
    if multiplies:
        after = shifted(before * np.reshape(mul, mul.shape[-3:]).astype(np.int64), right)
        after = np.where(before >= 0, before, after) if prelu else after
    after = saturated(after, 32)
    return np.maximum(after, 0) if relu else after


def looked_up(node: Node, x: Array, entries: Array) -> Array:
    """A value for each int8, or LE where it reaches and LO elsewhere."""
    if not node.attrs.get("lo"):
        return entries[np.clip(x, -128, 127) + 128]
    le, lo = (
        straight(node.numbers(key), x, part)
        for key, part in (("le", entries[:LE_ENTRIES]), ("lo", entries[LE_ENTRIES:]))
    )
    start, select = node.numbers("le")[:2]
    end = start + (LE_ENTRIES - 1) * 2.0 ** int(select)
    return np.where((x > start) & (x < end), le, lo)


def straight(place: Sequence[float], x: Array, entries: Array) -> Array:
    """Between the entries, and behind the last one along a line."""
    start, select, beyond, digits = int(place[0]), int(place[1]), int(place[2]), int(place[3])
    last = len(entries) - 1
    distance = np.clip(x - start, 0, last << select)
    index = np.minimum(distance >> select, last - 1)
    part = distance - (index << select)
    y = shifted((entries[index] << select) + (entries[index + 1] - entries[index]) * part, select)
    further = np.maximum(x - start - (last << select), 0) * beyond
    return y + shifted(further, digits)


def average(node: Node, x: Array) -> Array:
    """Sums times two reciprocals, which leave what 11 (19) and 8 (16) bits hold."""
    kernel = node.integers("kernel_shape")
    data, strides, dilations = padded(x[0].astype(np.int64), node)
    total = windows(data, kernel, strides, dilations).sum(axis=(1, 2))
    for reciprocal, bits in zip(
        node.integers("reciprocals"), (11, 8) if x.itemsize == 1 else (19, 16), strict=True
    ):
        total = shifted(total * reciprocal, 16)
        assert np.array_equal(total, saturated(total, bits)), "an average wraps"
    return total.astype(x.dtype)[None]


def maximum(node: Node, x: Array) -> Array:
    """The largest of each window, of which padding is no part."""
    kernel = node.integers("kernel_shape")
    lowest = node.with_attrs(padding=int(np.iinfo(x.dtype).min))
    data, strides, dilations = padded(x[0], lowest)
    return windows(data, kernel, strides, dilations).max(axis=(1, 2))[None]


LAYERS: Mapping[str, Callable[..., Array]] = {
    "NvConv": convolution,
    "NvElementwise": elementwise,
    "NvAveragePool": average,
    "MaxPool": maximum,
}


def differences(graph: Graph, seen: Mapping[str, Array], sample: int) -> tuple[int, list[str]]:
    """How many layers were compared, and of which the program left something else.

    seen: what the program showed of tensors, (samples, 1, C, H, W). What PDP took on the fly is computed here.
    """
    known: dict[str, Array] = {name: values[sample] for name, values in seen.items()}
    compared, wrong = 0, list[str]()
    for node in graph.nodes:
        inputs = _inputs(graph, node, known)
        if inputs is None:
            continue
        found = LAYERS[node.op](node, *inputs)
        left = known.setdefault(node.output, found)
        if node.output in seen:
            compared += 1
            if not np.array_equal(found.reshape(left.shape), left):
                wrong.append(node.output)
    return compared, wrong


def _inputs(graph: Graph, node: Node, known: Mapping[str, Array]) -> list[Array] | None:
    """What a layer of integers reads, absent operands as empty arrays; None where that is not known."""
    whole = node.op in LAYERS and graph.tensors[node.output].dtype in ("int8", "int16")
    if not whole or node.integer("winograd") or len(graph.shape(node.inputs[0])) != 4:
        return None
    found: list[Array] = []
    for name in node.inputs:
        value = graph.constants.get(name, known.get(name)) if name else np.empty(0)
        if value is None:
            return None
        found.append(value.reshape(graph.shape(name)) if name else value)
    return found
