"""The float passes of NVDLA, in order: they replace what no unit computes. First its own, then the list.

1. Forms. Volumes become images, a batch of images becomes several networks of one image; reductions, padding and
   matrix products become pooling and convolutions over images.
2. Weights. Batch normalisation, shuffled channels and transposed convolutions become convolutions; enlargement
   without arithmetic becomes interleaving; windows too large for PDP's maximum are split. Then activations are
   fused again into the new convolutions.
3. Shapes. Remaining elementwise operators on other tensors are moved to images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, AXIS, BLOCK_MODE, BLOCKSIZE, GROUP, KERNEL_SHAPE, MAX, MIN, PADS
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import window_of
from npuc.passes.cleanup.clutter import merge_duplicates
from npuc.passes.cleanup.pads import SplitPads
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.averages import AverageLimits as Averages
from npuc.passes.expansion.averages import PadLongAverages, SplitAveragePool, split_average_borders
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batches import SplitBatch, batch_to_channels
from npuc.passes.expansion.conv_transpose_to_convs import conv_transpose_to_phases
from npuc.passes.expansion.copies import copies_to_concats, gathers_to_slices
from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.functions import expand_powers
from npuc.passes.expansion.images import TIDY, ImageLimits, Shape
from npuc.passes.expansion.moves_to_convs import PadsToConvs, PermuteChannelsByConv, StridedSlicesToConvs, is_dense
from npuc.passes.expansion.products import GemmToConv, products_to_convs
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.resizes import interpolation_to_convs, repetitions
from npuc.passes.expansion.split_max_pool import MaxPoolLimits as Maxima
from npuc.passes.expansion.split_max_pool import SplitMaxPool
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.passes.expansion.wide_dilations import WideDilations
from npuc.passes.fusion import fuse_again, separate_clips
from npuc.passes.rewriting.layout import UNARY
from npuc.passes.rewriting.maps import kernels_of, select_channels, slice_channels, weave
from npuc.passes.rewriting.patterns import along_axis, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.passes.scales import RescaleMixedConcats
from npuc.pipeline import Pass
from npuc.quantize.scales.model_scales import NOTHING_GIVEN, Steps
from npuc.targets.nvdla.machine.parameters import (
    MOST_DILATION,
    MOST_EXTENT,
    MOST_KERNEL,
    MOST_STRIDE,
    MOST_WINDOW_PADDING,
    Machine,
)

LANES = 16
"""Channels of one atom, or of two on nv_small: a slice that starts at a multiple of these needs no copy."""
MOST_CHANNELS, MOST_PADDING, MOST_STEP = 256, 15, 15
"""Limits of convolutions that only move data: channels of blocks, padding, and the step of a slice."""
IMAGES = ImageLimits(LANES, channels=256, extent=256, pixels=64)
"""Limits of tensors turned into images, and of long vectors."""
AVERAGES = Averages(positions=64, extent=32, stride=8, last_positions=32 * 32)
"""Averages that PDP or one convolution can compute; the last step over blocks may be such a convolution."""


@frozen
class AveragesIntoConvs:
    """A 1x1 Conv that alone reads the average of a whole map becomes one over averages of a few equal blocks.

    Exact in real numbers: the weights of each block are divided by the number of blocks. Averages of int8 that
    keep the scale of the map lose bits; those of blocks lose fewer, and the Conv adds them before it rounds.

    most_extent: of the map and of a block, each way. most_weights: kernels of the Conv times blocks beyond the
    first.
    """

    most_extent: int = 8
    most_weights: int = 256
    __name__ = "averages_into_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such averages split into blocks."""
        return rewrite(graph, partial(_divide_average, self))


def _divide_average(limits: AveragesIntoConvs, rewriter: Rewriter, node: Node) -> bool:
    average = rewriter.private(node.inputs[0]) if node.op == "Conv" and GROUP(node) == 1 else None
    weights = rewriter.constants.get(node.inputs[1]) if average else None
    if average is None or weights is None or weights.shape[2:] != (1, 1) or any(PADS(node)):
        return False
    if not _covers(rewriter, average):
        return False
    extents = rewriter.shape(average.inputs[0])[2:]
    blocks = [each for each in _blocks(extents, limits.most_extent) if each != extents]
    if not blocks or max(extents) > limits.most_extent:
        return False
    block = min(blocks, key=lambda each: (_pieces(extents, each) != FEW, _pieces(extents, each)))
    pieces = _pieces(extents, block)
    if len(weights) * (pieces - 1) > limits.most_weights:
        return False
    kernel = tuple(whole // part for whole, part in zip(extents, block, strict=True))
    taps = np.broadcast_to((weights / np.float32(pieces)).astype(weights.dtype), (*weights.shape[:2], *kernel))
    y = rewriter.fresh(f"{average.output}/blocks")
    w = rewriter.constant(np.ascontiguousarray(taps), f"{node.output}/over_blocks")
    pool = Node("AveragePool", average.inputs, (y,), {"kernel_shape": block, "strides": block}, y, average.sources)
    conv = replace(node, inputs=(y, w, *node.inputs[2:]), sources=rewriter.sources(average, node))
    # strides and dilations had no effect on a map of one pixel; on the blocks they would
    rewriter.replace(node, pool, conv.with_attrs(kernel_shape=kernel, strides=(1, 1), dilations=(1, 1)))
    return True


FEW = 4
"""The preferred number of blocks: each loses a bit less, for few more weights."""


def _covers(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node averages over the whole map and nothing else."""
    if node.op == "GlobalAveragePool":
        return len(rewriter.shape(node.output)) == 4
    extents = rewriter.shape(node.inputs[0])[2:]
    if node.op != "AveragePool" or KERNEL_SHAPE(node) != extents or len(extents) != 2:
        return False
    window = window_of(node, extents)
    return not any((*window.begins, *window.ends)) and max(window.dilations) == 1


def _blocks(extents: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """The extents of blocks that divide the map equally."""
    sizes = ([each for each in range(1, most + 1) if extent % each == 0] for extent in extents)
    return product(*sizes)


def _pieces(extents: tuple[int, ...], block: tuple[int, ...]) -> int:
    return int(np.prod(extents)) // int(np.prod(block))


MOST_PHASES = 256
"""Larger enlargements stay as they are."""
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu")
"""Activations that can be fused into a convolution."""
MOVES = (*MOVEMENT, *CONVERSIONS, "Resize")


def enlargements_to_interleaves(graph: Graph) -> Graph:
    """DepthToSpace, and Resize that repeats pixels, become Interleave along H and along W.

    The phases of a DepthToSpace are the inputs of a Concat of them; or convolutions with the kernels of one phase,
    if a dense Conv has no other reader; or slices of the channels, if all begin at a memory word; or 1x1 Convs
    that select the channels. Every phase of a Resize is the map itself.

    Both stay if nothing computes their input and nothing computes with their result. An activation behind an
    Interleave of convolutions, or of one map, moves in front of it.
    """
    return rewrite(graph, _depth_to_space, _resize, _activation)


def _resize(rewriter: Rewriter, node: Node) -> bool:
    rows, columns = repetitions(rewriter, node)
    if not 1 < rows * columns <= MOST_PHASES or not _is_between(rewriter, node):
        return False
    rewriter.replace(node, *weave(rewriter, node, [[node.inputs[0]] * columns] * rows))
    return True


def _depth_to_space(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "DepthToSpace" or not _is_between(rewriter, node):
        return False
    block = BLOCKSIZE(node)
    if block == 1:
        return rewriter.bypass(node)
    if block**2 > MOST_PHASES:
        return False
    names, made = _phases(rewriter, node, block)
    grid = [names[row * block : (row + 1) * block] for row in range(block)]
    rewriter.replace(node, *made, *weave(rewriter, node, grid))
    return True


def _activation(rewriter: Rewriter, node: Node) -> bool:
    moved = rewriter.private(node.inputs[0]) if node.op in ACTIVATIONS else None
    if (
        moved is None
        or moved.op != "Interleave"
        or not all(_is_alike(rewriter, node, name) for name in node.inputs[1:])
    ):
        return False
    names = list(dict.fromkeys(moved.inputs))
    if len(names) > 1 and not all(_is_convolved(rewriter, name) for name in names):
        return False
    before = {name: rewriter.fresh(f"{node.output}/{number}") for number, name in enumerate(names)}
    made = [
        replace(node, inputs=(name, *node.inputs[1:]), outputs=(result,), name=result)
        for name, result in before.items()
    ]
    inputs = tuple(before[name] for name in moved.inputs)
    rewriter.replace(node, *made, replace(moved, inputs=inputs, outputs=node.outputs))
    return True


def _is_alike(rewriter: Rewriter, node: Node, name: str) -> bool:
    """Whether an operand is constant and the same for all pixels."""
    value = rewriter.constants.get(name)
    return value is not None and along_axis(value, rewriter.shape(node.output), 1) is not None


def _is_convolved(rewriter: Rewriter, tensor: str) -> bool:
    """Whether a tensor has a single reader and is the result of convolutions, interleaved or not."""
    node = rewriter.private(tensor)
    if node is not None and node.op == "Interleave":
        return all(_is_convolved(rewriter, name) for name in node.inputs)
    return node is not None and node.op == "Conv" and not ACTIVATION(node)


def _is_between(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node's float image is computed by something, or something computes with the result."""
    image = len(rewriter.shape(node.output)) == 4 and rewriter.types[node.output].size > 0
    if not image or not only_float(rewriter, node.inputs[0]):
        return False

    def producers_of(each: Node) -> Sequence[Node]:
        return [found for name in each.inputs if (found := rewriter.producer(name)) is not None]

    def readers_of(each: Node) -> Sequence[Node]:
        return [reader for name in each.outputs for reader in rewriter.readers(name)]

    return _computes(node, producers_of) or _computes(node, readers_of)


def _computes(node: Node, neighbours: Callable[[Node], Sequence[Node]]) -> bool:
    """Whether any node in this direction does more than move elements."""
    waiting = list(neighbours(node))
    while waiting:
        each = waiting.pop()
        if each.op not in MOVES:
            return True
        waiting += neighbours(each)
    return False


def _phases(rewriter: Rewriter, node: Node, block: int) -> tuple[list[str], list[Node]]:
    """The maps that a DepthToSpace interleaves, row by row, and the nodes that compute them."""
    x, channels = node.inputs[0], rewriter.shape(node.output)[1]
    joined = rewriter.producer(x)
    if joined is not None and _joins_phases(rewriter, node, joined, channels):
        return list(joined.inputs), []
    columns = product(range(block), repeat=2)
    names = [rewriter.fresh(f"{node.output}/phase_{row}_{column}") for row, column in columns]
    places = np.arange(channels * block**2)
    places = places.reshape(channels, -1).T if BLOCK_MODE(node) == "CRD" else places.reshape(-1, channels)
    conv = rewriter.private(x)
    if conv is not None and is_dense(rewriter, conv):
        return names, [kernels_of(rewriter, conv, each, y) for y, each in zip(names, places, strict=True)]
    words = BLOCK_MODE(node) == "DCR" and channels % LANES == 0
    taken = slice_channels if words else partial(select_channels, rewriter)
    return names, [taken(x, each, y, y, node.sources) for y, each in zip(names, places, strict=True)]


def _joins_phases(rewriter: Rewriter, node: Node, joined: Node, channels: int) -> bool:
    """Whether a node is the Concat of the phases of a DepthToSpace."""
    concat = joined.op == "Concat" and AXIS(joined) == 1 and BLOCK_MODE(node) == "DCR"
    return concat and all(rewriter.shape(name)[1] == channels for name in joined.inputs)


def space_to_depth_to_convs(graph: Graph) -> Graph:
    """A dense Conv that reads a SpaceToDepth reads its input instead, with kernel and strides scaled by the block.

    Exact: the same products, in another order. Other readers, and Convs whose kernel would exceed 32, stride 8 or
    padding 31, read a Concat of strided Slices, one for each position in a block. A SpaceToDepth stays if nothing
    computes its input and nothing computes with its result.
    """
    return rewrite(rewrite(graph, _into_conv), _to_slices)


def _into_conv(rewriter: Rewriter, node: Node) -> bool:
    before = rewriter.producer(node.inputs[0]) if is_dense(rewriter, node) else None
    if before is None or before.op != "SpaceToDepth":
        return False
    w, block = rewriter.constants[node.inputs[1]], BLOCKSIZE(before)
    window = window_of(node, w.shape[2:])
    sizes = (max(window.kernel), MOST_KERNEL), (max(window.strides), MOST_STRIDE)
    padding = max(*window.begins, *window.ends), MOST_WINDOW_PADDING
    if max(window.dilations) > 1 or any(size * block > most for size, most in (*sizes, padding)):
        return False
    attrs: dict[str, Attr] = {key: value for key, value in node.attrs.items() if key != "kernel_shape"}
    attrs["strides"] = tuple(block * each for each in window.strides)
    attrs["pads"] = tuple(block * each for each in (*window.begins, *window.ends))
    inputs = (before.inputs[0], rewriter.constant(_spread(w, block), f"{node.output}/spread"), *node.inputs[2:])
    rewriter.replace(node, replace(node, inputs=inputs, attrs=attrs, sources=rewriter.sources(before, node)))
    return True


def _spread(w: Array, block: int) -> Array:
    """Weights (K, block * block * C, R, S) rearranged for the pixels: (K, C, R * block, S * block)."""
    kernels, channels, height, width = w.shape
    apart = w.reshape(kernels, block, block, channels // block**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    return np.ascontiguousarray(apart.reshape(kernels, -1, height * block, width * block))


def _to_slices(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "SpaceToDepth" or not _is_between(rewriter, node):
        return False
    block, (height, width) = BLOCKSIZE(node), rewriter.shape(node.inputs[0])[2:]
    made: list[Node] = []
    for row in range(block):
        for column in range(block):
            cut: dict[str, Attr] = {"axes": (2, 3), "starts": (row, column), "ends": (height, width)}
            name = rewriter.fresh(f"{node.output}/phase_{row}_{column}")
            made.append(Node("Slice", node.inputs, (name,), {**cut, "steps": (block, block)}, name, node.sources))
    names = tuple(each.output for each in made)
    rewriter.replace(node, *made, Node("Concat", names, node.outputs, {"axis": 1}, node.name, node.sources))
    return True


def upper_limits_to_minima(graph: Graph) -> Graph:
    """A Clip whose upper limit is not the larger in magnitude becomes Max and Min with constants.

    For machines that implement the upper limit by saturation, which also cuts off values below its negative. If
    the limits contradict each other the result is the upper one, as in ONNX.
    """
    return rewrite(graph, _minimum)


def _minimum(rewriter: Rewriter, node: Node) -> bool:
    low, high = MIN(node), MAX(node)
    if node.op != "Clip" or high == inf or (-high <= low < high):
        return False
    x, before = node.inputs[0], []
    if low > -inf:
        x = rewriter.fresh(f"{node.output}/raised")
        before = [replace(node.with_attrs(min=low, max=inf), outputs=(x,), name=x)]
    limit = rewriter.constant(
        np.full((1,) * len(rewriter.shape(node.output)), high, np.float32), f"{node.output}/limit"
    )
    rewriter.replace(node, *before, Node("Min", (x, limit), node.outputs, {}, node.name, node.sources))
    return True


def hard_swish_to_product(graph: Graph) -> Graph:
    """HardSwish(x) becomes x * HardSigmoid(x) with alpha 1/6 and beta 1/2: the same by definition."""
    return rewrite(graph, _as_product)


def _as_product(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "HardSwish":
        return False
    gate = rewriter.part(node, "HardSigmoid", node.inputs, f"{node.output}/gate", alpha=1 / 6, beta=0.5)
    product = Node("Mul", (node.inputs[0], gate.output), node.outputs, {}, node.name, node.sources)
    rewriter.replace(node, gate, product)
    return True


ELEMENTWISE = UNARY - {"Cast", "Identity", "FakeQuantize"} | {"Add", "Sub", "Mul", "Max", "Min", "PRelu"}


def rows_to_maps(graph: Graph) -> Graph:
    """An elementwise operator on rows (1, C) becomes one on maps (1, C, 1, 1), between Reshapes.

    For machines that only compute on maps. Constants must be a single number, or have one per element if the row
    has no more elements than a map has channels. Operators on a row and a computed number stay.
    """
    return merge_duplicates(rewrite(graph, _on_maps, *TIDY))


def _on_maps(rewriter: Rewriter, node: Node) -> bool:
    row = rewriter.shape(node.output)
    if node.op not in ELEMENTWISE or len(row) != 2 or row[0] != 1 or not row[1]:
        return False
    computed = {name for name in node.inputs if name not in rewriter.constants}
    whole = all(rewriter.shape(name) == row for name in computed)
    if not computed or not whole or not only_float(rewriter, *computed, node.output):
        return False
    numbers = all(rewriter.types[name].size == 1 for name in node.inputs if name not in computed)
    if row[1] > MOST_EXTENT and not numbers:
        return False
    shape = (1, row[1], 1, 1) if row[1] <= MOST_EXTENT else IMAGES.image_shape(row[1])
    before: list[Node] = []
    names = {name: _as_map(rewriter, node, name, shape, before) for name in dict.fromkeys(node.inputs)}
    result = rewriter.fresh(f"{node.output}/map")
    inner = replace(node, inputs=tuple(names[name] for name in node.inputs), outputs=(result,))
    after = Node("Reshape", (result,), node.outputs, {"shape": row}, f"{node.name}/row", node.sources)
    rewriter.replace(node, *before, inner, after)
    return True


def _as_map(rewriter: Rewriter, node: Node, name: str, shape: Shape, before: list[Node]) -> str:
    """An operand in the map's shape; appends the Reshape of a computed one to `before`."""
    if name not in rewriter.constants:
        before.append(rewriter.part(node, "Reshape", (name,), f"{name}/map", shape=shape))
        return before[-1].output
    value = rewriter.constants[name]
    return rewriter.constant(value.reshape(shape if value.size > 1 else (1, 1, 1, 1)), f"{name}/map")


WITHOUT_TABLES: tuple[Pass, ...] = (hard_swish_to_product,)
"""Run after the others, for configurations without look-up tables in SDP."""
PASSES: tuple[Pass, ...] = (
    expand_powers,
    reductions_to_pools,
    WideDilations(MOST_DILATION, apart=True),
    SplitPads(MOST_WINDOW_PADDING),
    PadsToConvs(MOST_PADDING, MOST_WINDOW_PADDING),
    products_to_convs,
    batch_norm_to_conv,
    interpolation_to_convs,
    conv_transpose_to_phases,
    enlargements_to_interleaves,
    space_to_depth_to_convs,
    PermuteChannelsByConv(LANES),
    gathers_to_slices,
    StridedSlicesToConvs(MOST_STEP),
    split_average_borders,
    PadLongAverages(AVERAGES),
    SplitAveragePool(3, AVERAGES, replace(AVERAGES, positions=32 * 32)),
    SplitMaxPool(Maxima(positions=8 * 8, extent=8, stride=8, dilation=1)),
    fuse_again,
    separate_clips,
    upper_limits_to_minima,
    batch_to_channels,
    AsImages(IMAGES),
    FoldExtents(MOST_EXTENT),
    copies_to_concats,
    GemmToConv(IMAGES, 32),
    rows_to_maps,
)


def passes(
    machine: Machine, precision: str, scales: Mapping[str, Steps] = NOTHING_GIVEN, *, tables: bool
) -> tuple[Pass, ...]:
    """The passes for a configuration and a precision; tables: whether SDP's tables compute HardSwish.

    scales: those of a table, by the model's names.

    Fully connected layers take a whole batch if the window can move by an image, as a stride or as a batch.
    """
    split = SplitBatch(IMAGES, most_lines=MOST_STRIDE if machine.max_batches == 1 else MOST_KERNEL)
    averages = (AveragesIntoConvs(),) if precision == "int8" else ()
    return (
        volumes_to_images,
        FoldStrides(MOST_STRIDE, MOST_CHANNELS),
        split,
        *PASSES,
        *averages,
        *((RescaleMixedConcats(IMAGES, scales),) if precision == "int8" else ()),
        *(() if tables else WITHOUT_TABLES),
    )
