"""Random calls of the layers of 8 bits as tables: what they say, and what integers in numpy make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.targets.bm1684.machine.local_memory import ceil_div
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine

NPU = Machine().local_bytes
X, OTHER, WEIGHTS, BIAS, OUT, WORK = (65536 * at for at in range(6))
"""Offsets in local memory."""
AT, SIZE = 393216, 786432
"""Where the result lies in system memory, and how much of that there is."""
ROW = 1024
"""Words of weights, and of biases, that every NPU has for every block row."""


@dataclass(frozen=True)
class Case:
    """A table, system memory before it, and the bytes (N / 4, C, H, W, 4) that it leaves at AT."""

    table: bytes
    memory: Array
    expected: Array


def windows(x: Array, kernel: tuple[int, int], stride: Sequence[int], pads: Sequence[int], fill: int = 0) -> Array:
    """The elements under each tap of a window: (taps, N, C, oh, ow) int64."""
    top, bottom, left, right = pads
    wide = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    oh, ow = ((extent - k) // s + 1 for extent, k, s in zip(wide.shape[2:], kernel, stride, strict=True))
    return np.stack(
        [
            wide[:, :, i : i + (oh - 1) * stride[0] + 1 : stride[0], j : j + (ow - 1) * stride[1] + 1 : stride[1]]
            for i in range(kernel[0])
            for j in range(kernel[1])
        ]
    )


def shifted(sums: Array, bits: int, least: int, most: int) -> Array:
    """floor(sum / 2^bits + 1/2), then the nearest number within limits."""
    return np.clip((sums + ((1 << bits) >> 1)) >> bits, least, most)


def case(seed: int) -> Case:
    """One of the layers with random operands over the whole range of their types, in a parallel region or not."""
    rng = np.random.default_rng(seed)
    layer = (_conv, _depthwise, _max, _sum, _product, _lookup)[seed % 6]
    groups, channels = int(rng.integers(1, 3)), int(rng.choice([1, 3, 4, 5, 20, 70]))
    shape = (groups, channels, int(rng.integers(5, 12)), int(rng.integers(5, 12)))
    memory = rng.integers(0, 256, SIZE).astype(np.uint8)
    memory[AT:] = 0
    npu = int(rng.choice([0, 0, 5, 60]))
    npu = npu if groups == 1 else 0  # of more than four images, those behind them
    call, result, expected = layer(rng, memory, shape, npu)
    other = call.split()[6] if "product" in call else _dims(shape)
    memory[BYTES : BYTES + 4 * TABLE_SIZE].view("<i4")[:] = TABLE
    start, beside = npu * NPU, bool(seed // 6 % 3)
    lines = [
        f"gdma_32bit_cpy_S2L @{start + X} $0+0 {_dims(shape)} - -",
        f"gdma_32bit_cpy_S2L @{start + OTHER} $0+{AT // 2} {other} - -",
        f"gdma_fix8b_tables $0+{BYTES - 4 * TABLE_SIZE} 2",
        f"gdma_32bit_cpy_S2L @{start + OUT} $0+{FILL} {_dims(result)} - -",
        *(f"gdma_32bit_cpy_S2L @{at} $0+{where} (1,64,1,{ROW}) - {ROWS}" for at, where in TABLES),
        *(("parallel_start", f"gdma_32bit_cpy_S2L @{7 * 65536} $0+0 (1,1,1,64) - -") if beside else ()),
        call,
        *(("parallel_end",) if beside else ()),
        f"gdma_32bit_cpy_L2S $0+{AT} @{start + OUT} {_dims(result)} - -",
        "layer 0",
    ]
    return Case("".join(f"{line}\n" for line in lines).encode(), memory, expected)


TABLE_SIZE, BYTES = 256, AT - 2048
"""Entries of a table; where the second of two lies in system memory."""
FILL = 65536
"""What the result's words are before the call: of absent images, some calls leave it."""
TABLE = np.random.default_rng(0).permutation(np.arange(-64, 192))
ROWS = f"({64 * ROW},{ROW},{ROW},1)"
TABLES = ((WEIGHTS, 4096), (BIAS, 8192))
ADDRESSES = np.array([SYSTEM_START], "<u8").tobytes()


def _dims(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))})"


def _images(memory: Array, at: int, shape: tuple[int, ...], signed: bool) -> Array:
    """(N, C, H, W) of the words of system memory."""
    raw = memory[at : at + 4 * int(np.prod(shape))].reshape(*shape, 4)
    return np.moveaxis(raw, -1, 1).reshape(-1, *shape[1:]).view(np.int8 if signed else np.uint8)


def _words(values: Array, shape: tuple[int, ...]) -> Array:
    wide = (values & 255).astype(np.uint8).reshape(shape[0], 4, *shape[1:])
    return np.moveaxis(wide, 1, -1)


def _row(memory: Array, table: int, npu: int, channel: int, count: int, step: int) -> Array:
    """The bytes that a channel's NPU has for it."""
    at = (npu + channel) % 64, (npu + channel) // 64
    start = TABLES[table][1] + 4 * ROW * at[0] + at[1] * step
    return memory[start : start + count]


def _window(rng: np.random.Generator) -> tuple[tuple[int, int], tuple[int, int], tuple[int, ...], str]:
    kernel = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
    stride = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    pads = tuple(int(each) for each in rng.integers(0, min(kernel), 4))
    return kernel, stride, pads, f"{kernel[0]} {kernel[1]} [{','.join(map(str, pads))}] <{stride[0]},{stride[1]}>"


Made = tuple[str, tuple[int, ...], Array]


def _conv(rng: np.random.Generator, memory: Array, shape: tuple[int, ...], npu: int) -> Made:
    kernel, stride, pads, text = _window(rng)
    signed, relu, shift = bool(rng.integers(2)), bool(rng.integers(2)), int(rng.integers(16))
    outputs, upper = int(rng.choice([3, 64, 70])), int(rng.choice([0, 127, 200])) if relu else 0
    inputs, taps = shape[1], kernel[0] * kernel[1]
    padded = ceil_div(inputs, 4) * 4
    biases = np.stack([_row(memory, 1, npu, o, 2, 2) for o in range(outputs)]).view("<i2")
    rows = np.stack([_row(memory, 0, npu, o, taps * padded, taps * padded) for o in range(outputs)])
    w = rows.view(np.int8).reshape(outputs, taps, padded)[:, :, :inputs].astype(np.int64)
    x = windows(_images(memory, X, shape, signed), kernel, stride, pads)
    sums = np.einsum("kncyx,okc->noyx", x, w) + biases.astype(np.int64)[:, 0, None, None]
    found = shifted(sums, shift, 0, upper or 255) if relu else shifted(sums, shift, -128, 127)
    result = (shape[0], outputs, *sums.shape[2:])
    at = npu * NPU
    flags = f"{shift} {int(signed)} {int(relu)} {upper}"
    places = f"@{at + OUT} @{at + X} @{at + WEIGHTS} @{at + BIAS}"
    window = f"{outputs} {text} <1,1>"
    return f"bdc_fix8b_conv2d {places} {_dims(shape)} {window} {flags}", result, _words(found, result)


def _depthwise(rng: np.random.Generator, memory: Array, shape: tuple[int, ...], npu: int) -> Made:
    kernel, stride, pads, text = _window(rng)
    signed, relu, shift = bool(rng.integers(2)), bool(rng.integers(2)), int(rng.integers(16))
    taps = kernel[0] * kernel[1]
    biases = np.stack([_row(memory, 1, npu, c, 2, 2) for c in range(shape[1])]).view("<i2")
    w = np.stack([_row(memory, 0, npu, c, taps, taps) for c in range(shape[1])]).view(np.int8).astype(np.int64)
    x = windows(_images(memory, X, shape, signed), kernel, stride, pads)
    sums = np.einsum("kncyx,ck->ncyx", x, w) + biases.astype(np.int64)[:, 0, None, None]
    found = shifted(sums, shift, 0, 255) if relu else shifted(sums, shift, -128, 127)
    result = (*shape[:2], *sums.shape[2:])
    at = npu * NPU
    places = f"@{at + OUT} @{at + X} @{at + WEIGHTS} @{at + BIAS}"
    images = 4 * shape[0] - int(rng.integers(4))
    call = f"bdc_fix8b_depthwise2d {places} {_dims(shape)} {text} {shift} {int(signed)} {int(relu)} {images}"
    return call, result, _only(images, _words(found, result), _filled(memory, result))


def _filled(memory: Array, result: tuple[int, ...]) -> Array:
    return memory[FILL : FILL + 4 * int(np.prod(result))].reshape(*result, 4)


def _only(images: int, words: Array, others: Array) -> Array:
    """The bytes of so many images, and others in the last word."""
    words[-1, ..., (images - 1) % 4 + 1 :] = others[-1, ..., (images - 1) % 4 + 1 :]
    return words


def _max(rng: np.random.Generator, memory: Array, shape: tuple[int, ...], npu: int) -> Made:
    kernel, stride, pads, text = _window(rng)
    signed = bool(rng.integers(2))
    x = _images(memory, X, shape, signed)
    found = windows(x, kernel, stride, pads, -128 if signed else 0).max(0)
    result = (*shape[:2], *found.shape[2:])
    images = 4 * shape[0] - int(rng.integers(4))
    call = f"bdc_fix8b_max_pool2d @{npu * NPU + OUT} @{npu * NPU + X} {_dims(shape)} {text} {int(signed)} {images}"
    return call, result, _only(images, _words(found, result), _filled(memory, result))


def _product(rng: np.random.Generator, memory: Array, shape: tuple[int, ...], npu: int) -> Made:
    signs, relu = [bool(each) for each in rng.integers(0, 2, 2)], bool(rng.integers(2))
    factor, shift = int(rng.integers(128)), int(rng.integers(32))
    other = (*shape[:2], *(int(rng.choice([1, extent])) for extent in shape[2:]))
    a, b = _images(memory, X, shape, signs[0]), _images(memory, AT // 2, other, signs[1])
    product = a.astype(np.int64) * b * factor
    found = shifted(product, shift, 0, 255) if relu else shifted(product, shift, -128, 127)
    places = " ".join(f"@{npu * NPU + each}" for each in (OUT, X, OTHER, WORK))
    numbers = f"{factor} {shift} {int(signs[0])} {int(signs[1])} {int(relu)}"
    return f"bdc_fix8b_product {places} {_dims(shape)} {_dims(other)} {numbers}", shape, _words(found, shape)


def _lookup(rng: np.random.Generator, memory: Array, shape: tuple[int, ...], npu: int) -> Made:
    images = 4 * shape[0] - int(rng.integers(4))
    found = _words(TABLE[_images(memory, X, shape, signed=False)], shape)
    places = " ".join(f"@{npu * NPU + each}" for each in (OUT, X, WORK))
    call = f"bdc_fix8b_lookup {places} {_dims(shape)} 1 {images}"
    return call, shape, _only(images, found, np.zeros_like(found))


def _sum(rng: np.random.Generator, memory: Array, shape: tuple[int, ...], npu: int) -> Made:
    signs, relu = [bool(each) for each in rng.integers(0, 2, 2)], bool(rng.integers(2))
    factors, shifts = rng.integers(0, 128, 2).tolist(), rng.integers(0, 16, 2).tolist()
    one = bool(rng.integers(2))
    relu = relu or not any(signs[:1] if one else signs)
    parts = [
        shifted(factor * _images(memory, at, shape, sign).astype(np.int64), bits, -(2**15), 2**15 - 1)
        for at, sign, factor, bits in zip((0, AT // 2), signs, factors, shifts, strict=True)
    ]
    total = parts[0] if one else parts[0] + parts[1]
    found = np.clip(total, 0, 255) if relu else np.clip(total, -128, 127)
    places = [f"@{npu * NPU + each}" for each in ((OUT, X, WORK) if one else (OUT, X, OTHER, WORK))]
    name, numbers = ("rescale", f"{factors[0]} {shifts[0]} {int(signs[0])}")
    if not one:
        name = "sum"
        numbers = f"<{factors[0]},{factors[1]}> <{shifts[0]},{shifts[1]}> {int(signs[0])} {int(signs[1])}"
    return f"bdc_fix8b_{name} {' '.join(places)} {_dims(shape)} {numbers} {int(relu)}", shape, _words(found, shape)
