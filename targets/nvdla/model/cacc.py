"""CACC: accumulates, reverses the Winograd transform, truncates and saturates to 32 bits.

Every addition saturates partial sums to 34 bits (int8) or 48 bits (int16). If no sum can reach that, the order of
additions does not matter and BLAS sums whole layers in a type that is exact for them.

Source: Numbers, as on the RTL.

CMAC_A and CMAC_B, the multipliers. Each has half of the kernels of a group; modelled as one product.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.model import fp16, half_products
from npuc.targets.nvdla.model.arithmetic import limits, saturate, shift_right
from npuc.targets.nvdla.model.csc import TILE, TILE_STEP, LaidOutConvolution, Step, steps
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap


def multiply(step: Step, dtype: type[np.floating]) -> Array:
    """Products of data and weights summed over channels (..., positions, kernels), in a type that is exact."""
    data, weights = step
    return np.matmul(data.astype(dtype, copy=False), weights.astype(dtype, copy=False))


BLOCK = "CACC"
PARTIAL_BITS = {1: 34, 2: 48}
"""Bits of a partial sum by the bytes of an element."""
OUT_BITS = 32
LARGEST = 1 << 28
"""The most numbers of a map in the model."""
LARGEST_WEIGHT = 128
"""The largest magnitude of int8."""
EXACT_FLOAT32, EXACT_FLOAT64 = 1 << 24, 1 << 53
OUTPUT_TRANSFORM = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
"""A^T of F(2x2, 3x3)."""


def accumulate(group: RegisterGroup, layer: LaidOutConvolution, *, exact: bool) -> tuple[Array, int]:
    """Sums (batch, Ho, Wo, K), int64 of 32 bits or float32, and the number that saturated.

    exact: fp16 bit-exactly; otherwise in double precision, which is fast and as accurate as fp16 can be.
    """
    if (group["DATAOUT_HEIGHT"] + 1, group["DATAOUT_WIDTH"] + 1) != layer.out:
        limit = f"{layer.out[1]} x {layer.out[0]}, as CSC"
        raise trap(BLOCK, f"{group['DATAOUT_WIDTH'] + 1} x {group['DATAOUT_HEIGHT'] + 1} outputs", limit=limit)
    reach = layer.out[0] * layer.out[1] * max(layer.kernels.shape[2:])
    if reach > LARGEST:
        raise trap(
            BLOCK, f"{layer.out[1]} x {layer.out[0]} outputs of this many channels", limit=f"{LARGEST} numbers"
        )
    packed = group.value_name("LINE_PACKED") == "TRUE" or group.value_name("SURF_PACKED") == "TRUE"
    if packed and len(layer.images) > 1 and layer.out != (1, 1):
        raise trap(BLOCK, "packed results of several batches", limit="LINE_PACKED and SURF_PACKED = FALSE")
    if layer.is_float and exact:
        return np.stack([_half_sums(layer, image) for image in layer.images]), 0
    bounds = [_bound(layer, image) for image in layer.images]
    images = [_image_sums(layer, image, bound) for image, bound in zip(layer.images, bounds, strict=True)]
    sums = np.stack(images) if len(images) > 1 else images[0][np.newaxis]
    if layer.is_float:
        return fp16.round_to_fp32(sums), 0
    truncated = shift_right(sums, group["CLIP_TRUNCATE"])
    if max(bounds) <= limits(OUT_BITS)[1]:
        return truncated, 0
    clipped = saturate(truncated, OUT_BITS)
    return clipped, int(np.count_nonzero(clipped != truncated))


def _half_sums(layer: LaidOutConvolution, image: Array) -> Array:
    """The fp16 sums (Ho, Wo, K) of one image as float32, added in the hardware's order."""
    total: Array | None = None
    absent: Array | None = None
    for data, weights in steps(layer, image, by_block=True):
        if layer.winograd:  # a group is the tile's positions of a block of channels
            positions = TILE * TILE
            data = data.transpose(1, 0, 2).reshape(data.shape[1], -1)
            weights = weights.reshape(-1, weights.shape[-1])
        else:
            positions = 1
        group = half_products.multiply(half_products.operands(data), half_products.operands(weights), positions)
        values = (_of_outputs(group) if layer.winograd else group).values()
        total = values if total is None else half_products.add(total, values)
        absent = _nans(data, weights, absent)
    assert total is not None
    sums = half_products.result(total)
    sums = sums if absent is None else np.where(np.isnan(absent), absent, sums)
    return _join_tiles(layer, sums) if layer.winograd else sums.reshape(*layer.out, -1)


def _of_outputs(group: half_products.GroupSum) -> half_products.GroupSum:
    """A^T r A of sums (16, tiles, K): the four outputs of each tile, (4, tiles, K)."""
    r = group.total.reshape(TILE, TILE, *group.total.shape[1:])
    out = np.einsum("ip,pqtk,jq->ijtk", OUTPUT_TRANSFORM, r, OUTPUT_TRANSFORM)
    return half_products.GroupSum(out.reshape(-1, *group.total.shape[1:]), group.top)


def _nans(data: Array, weights: Array, known: Array | None) -> Array | None:
    """The NaN of each sum (places, kernels) that is one: the first among the weights, otherwise the data."""
    if not np.isnan(data).any() and not np.isnan(weights).any():
        return known
    first = [
        np.take_along_axis(each, np.isnan(each).argmax(axis=axis, keepdims=True), axis)
        for each, axis in ((weights, 0), (data, 1))
    ]
    found = np.where(np.isnan(first[0]), first[0], np.where(np.isnan(first[1]), first[1], np.float32(0)))
    return found if known is None else np.where(np.isnan(known), known, found)


def _join_tiles(layer: LaidOutConvolution, sums: Array) -> Array:
    """The four outputs (4, tiles, K) of every tile as a map (Ho, Wo, K)."""
    Ho, Wo = layer.out
    tiles = -(-Ho // TILE_STEP), -(-Wo // TILE_STEP)
    split = sums.reshape(TILE_STEP, TILE_STEP, *tiles, -1).transpose(2, 0, 3, 1, 4)
    return split.reshape(TILE_STEP * tiles[0], TILE_STEP * tiles[1], -1)[:Ho, :Wo]


def _image_sums(layer: LaidOutConvolution, image: Array, bound: float) -> Array:
    """The sums (Ho, Wo, K) of one image, int64 or float64; bound: their largest possible magnitude."""
    most = limits(34 if layer.is_float else PARTIAL_BITS[image.dtype.itemsize])[1]
    if layer.is_float or bound <= most:
        dtype = np.float32 if bound < EXACT_FLOAT32 and not layer.is_float else np.float64
        total = _sum_products(layer, image, dtype)
    else:
        total = _sum_saturating(layer, image, most)
    sums = _transform_sums(layer, total) if layer.winograd else total.reshape(*layer.out, -1)
    return sums if layer.is_float else sums.astype(np.int64)


def _bound(layer: LaidOutConvolution, image: Array) -> float:
    """An upper bound of partial sums: the largest value times the sum of a kernel's absolute weights.

    For few int8 products it assumes the largest possible weights, so that they need not be inspected.
    """
    if layer.is_float:
        return 0.0
    largest = float(max(-int(image.min(initial=0)), int(image.max(initial=0))))
    most = largest * LARGEST_WEIGHT * prod(layer.kernels.shape[:3])
    if not layer.winograd and layer.kernels.dtype.itemsize == 1 and most < EXACT_FLOAT32:
        return most
    axes = 2 if layer.winograd else (0, 1, 2)
    wide, sums = (np.int16, np.int32) if layer.kernels.dtype.itemsize == 1 else (np.int32, np.float64)
    weights = np.abs(layer.kernels, dtype=wide).sum(axis=axes, dtype=sums)
    gain = 4 if layer.winograd else 1
    return gain * largest * float(weights.max(initial=0))


def _sum_products(layer: LaidOutConvolution, image: Array, dtype: type[np.floating]) -> Array:
    """The sum of all products in a type that is exact for them, or in double for fp16."""
    total: Array | None = None
    for step in steps(layer, image.astype(dtype) if not layer.winograd else image, by_block=False):
        part = multiply(step, dtype)
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def _sum_saturating(layer: LaidOutConvolution, image: Array, most: int) -> Array:
    """The same in the hardware's order, with saturating additions."""
    total: Array | None = None
    for step in steps(layer, image, by_block=True):
        part = multiply(step, np.float64)
        total = np.clip(part if total is None else total + part, -most - 1, most)
    assert total is not None
    return total


def _transform_sums(layer: LaidOutConvolution, sums: Array) -> Array:
    """A^T m A of the sums (16, tiles, K), as outputs (Ho, Wo, K)."""
    Ho, Wo = layer.out
    tiles = -(-Ho // TILE_STEP), -(-Wo // TILE_STEP)
    m = sums.astype(np.float64).reshape(TILE, TILE, *tiles, -1)
    at = OUTPUT_TRANSFORM.astype(np.float64)
    out = np.einsum("ip,pqyxk,jq->yixjk", at, m, at, optimize=True)
    return out.reshape(TILE_STEP * tiles[0], TILE_STEP * tiles[1], -1)[:Ho, :Wo]
