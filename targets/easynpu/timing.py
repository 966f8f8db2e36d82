"""The cycle model: what a layer costs, from its word alone.

Source: easynpu reference, section 6. One MAC per PE and cycle; ifmap and ofmap words share one bus of one word a
cycle, and the next tile is loaded under the computation of this one. With C the compute cycles of a tile and B its
bus words, a tile costs max(C, B) + e, where e is what the prefetch must wait for a pad entry to be freed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.isa import CONV, Layer
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import BS_WORDS, LANES, SLOPE_WORDS, TABLE_WORDS, groups

DECODE = 1
DRAIN = 3


@dataclass(frozen=True)
class Followers:
    """What the fused instructions behind a layer add: stages, their bias-scale words, bus words per output."""

    stages: int = 0
    bs_words: int = 0
    operand_reads: int = 0
    """Fused operands read over the Fmap bus (those in the skip DTCM are free)."""
    words: int = 0
    """Instruction words of the chain beside the first layer word."""


def kernel_extent(kernel: int, dilation: int) -> int:
    """Rows or columns that a kernel spans; dilation as the word has it (0 = none)."""
    return (kernel - 1) * (dilation + 1) + 1


def tile_input(layer: Layer, y: Array | int, x: Array | int) -> tuple[Array | int, Array | int]:
    """y' and x': the sub-ifmap that a y by x sub-ofmap needs.

    The document's formulas give one stride too many (its own 5x5 example contradicts them); these are exact.
    """
    rows = (y - 1) * layer.Sh + kernel_extent(layer.Hk, layer.Dh)
    columns = (x - 1) * layer.Sw + kernel_extent(layer.Wk, layer.Dw)
    return rows, columns


def is_dense(layer: Layer) -> bool:
    """Whether input channels are accumulated (BasicConv), not handled one by one (ChannelWise)."""
    operation = layer.operation
    return operation is not None and operation.category == CONV


def macs(layer: Layer) -> int:
    """Multiply-accumulates of a convolution or fully connected layer; 0 for anything else."""
    operation = layer.operation
    if operation is None or not operation.mnemonic.startswith(("conv", "dwconv")):
        return 0
    return layer.Ho * layer.Wo * layer.Co * layer.Hk * layer.Wk * (layer.Ci if is_dense(layer) else 1)


def parameter_words(layer: Layer) -> int:
    """Words of the weight stream that are loaded before the first MAC: bias-scale block, table or slopes."""
    name = layer.operation.mnemonic if layer.operation else ""
    if name == "act":
        return TABLE_WORDS
    return groups(layer.Co) * (SLOPE_WORDS if name == "prelu" else BS_WORDS)


def layer_cycles(layer: Layer, y: Array, x: Array, machine: Machine, followers: Followers) -> Array:
    """Cycles of the layer and its fused followers for every candidate tile (y[i], x[i])."""
    total = np.zeros(len(x), np.int64)
    for tile_y, count_y in _split(layer.Ho, y):
        for tile_x, count_x in _split(layer.Wo, x):
            total += count_y * count_x * _tile_cycles(layer, tile_y, tile_x, machine, followers)
    passes = 1 if is_dense(layer) else groups(layer.Co)
    rows, columns = tile_input(layer, np.minimum(y, layer.Ho), np.minimum(x, layer.Wo))
    load = parameter_words(layer) + followers.bs_words + (layer.Zs if is_dense(layer) else 0)
    return DECODE + followers.words + load + rows * columns + passes * total + DRAIN


def _split(extent: int, tile: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(size, count) of the full tiles and of the last, smaller one (count 0 if none)."""
    rest = extent % tile
    return (tile, extent // tile), (np.maximum(rest, 1), (rest > 0).astype(np.int64))


def _tile_cycles(layer: Layer, y: Array, x: Array, machine: Machine, followers: Followers) -> Array:
    rows, columns = tile_input(layer, y, x)
    outputs = y * x * (layer.Zs if is_dense(layer) else 1)
    depth = layer.Ci if is_dense(layer) else 1
    loads = rows * columns * (groups(layer.Ci) if is_dense(layer) else 1)
    bubble = np.logical_and(outputs == 1, not machine.psum_write_first)
    compute = depth * layer.Hk * layer.Wk * outputs * (1 + bubble) + followers.stages * outputs
    bus = loads + outputs * (1 + followers.operand_reads)
    return np.maximum(compute, bus) + _prefetch_wait(layer, y * x, bubble)


def _prefetch_wait(layer: Layer, pixels: Array, bubble: Array) -> Array:
    """e: at most the positions of the last pass, in which pad entries become free.

    A kernel larger than 1 frees all other entries before: no wait if it moves by 1 or the tile is one pixel. A
    1x1 kernel frees one entry a cycle: one cycle with stride 1 or for one pixel, covered by the bubble of a single
    psum. Otherwise x*y, the proven bound.
    """
    freed_early = layer.Hk * layer.Wk > 1
    least = np.zeros_like(pixels) if freed_early else np.logical_not(bubble).astype(np.int64)
    return least if (layer.Sh, layer.Sw) == (1, 1) else np.where(pixels == 1, least, pixels)


def ideal_cycles(layer: Layer) -> float:
    """Cycles if every PE did one MAC of the layer in every cycle."""
    return macs(layer) / LANES
