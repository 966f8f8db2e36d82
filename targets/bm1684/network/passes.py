"""The float passes of BM1684: they rewrite forms that no call, or no 8-bit layer, can compute.

Rewrites of 8-bit networks that may move the first axis; four images share a word, so there must be only one.

The host gives an input with another first axis, such as the windows of an attention, an axis of 1 before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, AXES, AXIS, LEAKY_ALPHA, PERM, SIDES
from npuc.passes.cleanup.boundary_moves import move_as_floats
from npuc.passes.cleanup.clutter import fold_constants
from npuc.passes.cleanup.eliminate_transposes import eliminate_transposes
from npuc.passes.cleanup.pads import SplitPads
from npuc.passes.cleanup.sink_reshapes import sink_below_function
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.averages import split_average_borders
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batches import POOLS, SplitBatch, batch_to_channels
from npuc.passes.expansion.conv_transpose_to_convs import conv_transpose_to_phases
from npuc.passes.expansion.copies import expands_to_concats, gathers_to_slices
from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.functions import prelu_to_convs
from npuc.passes.expansion.images import TIDY, ImageLimits
from npuc.passes.expansion.maxima_to_pools import MaximaToPools
from npuc.passes.expansion.products import GemmToConv, products_to_convs
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.resizes import interpolation_to_convs, repeats_to_interleaves
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.passes.expansion.wide_dilations import SpreadKernels, WideDilations
from npuc.passes.fusion import fuse_again, separate_clips
from npuc.passes.recognition.recognise_batch_norm import recognise_batch_norm
from npuc.passes.rewriting.patterns import along_axis, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.passes.scales import RescaleMixedConcats
from npuc.pipeline import Pass
from npuc.quantize.arithmetic.tables import TABLE_OPS
from npuc.quantize.scales.constraints import data_inputs
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.bm1684.network.cuts import CutMaps
from npuc.targets.bm1684.network.support import (
    HOST,
    MOST_CHANNELS,
    MOST_DILATION,
    MOST_MAP,
    MOST_PADDING,
    MOST_STRIDE,
    MOST_WINDOW,
)
from npuc.targets.bm1684.network.tokens import tokens_to_maps

MOST_BLOCKS = 256
"""The most channels of an image after blocks of its pixels were turned into channels."""
IMAGES = ImageLimits(lanes=16, channels=256, extent=256, pixels=64, batches=True)
"""Limits of images made from long vectors and from tensors that are not images."""
WINDOWS = ("Conv", "ConvTranspose", *POOLS)
"""Operators on images, of which a batch may have several."""


def rows_to_pixels(graph: Graph) -> Graph:
    """Products with constant matrices become convolutions whose pixels are the rows; those of images are split.

    A function between two products is computed on the pixels as well, without movements, unless these could pass
    what the host computes at the end, which leaves movements of the first axis before it to the host.
    """
    if not _one_image(graph):
        return graph
    pixels = products_to_convs(SplitBatch(IMAGES)(graph))
    if any(node.op in HOST for node in graph.nodes):
        return pixels
    return move_as_floats(rewrite(eliminate_transposes(pixels), sink_below_function, *TIDY))


def tensors_to_images(graph: Graph) -> Graph:
    """Elementwise operators on any tensors become ones on images, and no movement touches the first axis."""
    if not _one_image(graph):
        return graph
    return rewrite(AsImages(IMAGES)(batch_to_channels(graph)), _behind_one, *TIDY)


def maxima_to_pools(graph: Graph) -> Graph:
    """Max and Min of two tensors become operators with one input; a batch of images stays one."""
    return recognise_batch_norm(MaximaToPools(replace(IMAGES, batches=not _one_image(graph)))(graph))


def operands_to_maps(graph: Graph) -> Graph:
    """Elementwise operators on batches of vectors and the like read maps; a smaller operand of a sum is copied."""
    return rewrite(graph, _on_maps, _expand_operand, *TIDY)


def _on_maps(rewriter: Rewriter, node: Node) -> bool:
    """A function (PRelu: with one slope), sum or product of tensors (N, ...) of one shape reads (N, C, H, W)."""
    shape, computed = rewriter.shape(node.output), data_inputs(node)
    fits = node.op in (*TABLE_OPS, "Relu", "PRelu", "Add", "Mul") and len(shape) != 4 and prod(shape) > 0
    alike = all(name not in rewriter.constants and rewriter.shape(name) == shape for name in computed)
    slopes = [rewriter.constants.get(name, np.arange(2)) for name in node.inputs[len(computed) :]]
    alike = alike and not any((each != each.flat[0]).any() for each in slopes)
    if not (fits and alike and shape and only_float(rewriter, *computed, node.output)):
        return False
    pixels = (shape[1], 1, 1) if len(shape) == 2 else IMAGES.image_shape(prod(shape[1:]))[1:]
    maps = [rewriter.part(node, "Reshape", (x,), f"{x}/map", shape=(shape[0], *pixels)) for x in computed]
    one = [rewriter.constant(each.reshape(-1)[:1], f"{node.output}/slope") for each in slopes]
    inner = replace(
        node, inputs=(*(each.output for each in maps), *one), outputs=(rewriter.fresh(f"{node.output}/map"),)
    )
    rewriter.replace(node, *maps, inner, rewriter.back(node, inner.output))
    return True


def _expand_operand(rewriter: Rewriter, node: Node) -> bool:
    """A sum of computed maps, of which one is broadcast, reads copies of that."""
    shape = rewriter.shape(node.output)
    small = [name for name in node.inputs if rewriter.shape(name) != shape]
    if node.op != "Add" or len(small) != 1 or not rewriter.constants.keys().isdisjoint(node.inputs):
        return False
    full = rewriter.part(node, "Expand", (small[0],), f"{small[0]}/copies", shape=shape)
    inputs = tuple(full.output if name in small else name for name in node.inputs)
    rewriter.replace(node, full, replace(node, inputs=inputs))
    return True


MOST_SLOPE = 1 << 10
"""Of all channels: if samples have no negative values, weights of 8 bits lose larger ones, a table does not."""


def functions_to_convs(graph: Graph) -> Graph:
    """Functions of which convolutions take less time than a table, whose time counts images.

    HardSwish of several images: x * clip(x / 6 + 1 / 2, 0, 1). LeakyRelu of several images, and PRelu, with
    slopes a: relu(x) - a * relu(-x).
    """
    return rewrite(graph, _gate, _add_slopes)


def _scaled(rewriter: Rewriter, node: Node, key: str, parameters: Sequence[Array], **attrs: Attr) -> Node:
    """A depthwise Conv of a node's input with a factor and, if given, a summand for each channel."""
    columns = zip((parameters[0].reshape(-1, 1, 1, 1), *parameters[1:]), ("factor", "summand"), strict=False)
    names = [rewriter.constant(each.astype(np.float32), f"{node.output}/{key}/{stem}") for each, stem in columns]
    group = len(parameters[0])
    return rewriter.part(node, "Conv", (node.inputs[0], *names), f"{node.output}/{key}", group=group, **attrs)


def _gate(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.output)
    if node.op != "HardSwish" or ACTIVATION(node) or len(shape) != 4 or shape[0] == 1:
        return False
    line = np.full(shape[1], 1 / 6), np.full(shape[1], 1 / 2)
    gate = _scaled(rewriter, node, "gate", line, activation="Clip", min=0.0, max=1.0)
    inputs = (node.inputs[0], gate.output)
    rewriter.replace(node, gate, Node("Mul", inputs, node.outputs, {}, node.name, node.sources))
    return True


def _add_slopes(rewriter: Rewriter, node: Node) -> bool:
    shape, slopes = rewriter.shape(node.output), None
    if len(shape) == 4 and node.op == "LeakyRelu":
        slopes = np.full(shape[1], LEAKY_ALPHA(node))
    elif len(shape) == 4 and node.op == "PRelu" and node.inputs[1] in rewriter.constants:
        slopes = along_axis(rewriter.constants[node.inputs[1]], shape, 1)
    if slopes is None or ACTIVATION(node) or not np.isfinite(slopes).all():
        return False
    if np.abs(slopes).max() > MOST_SLOPE or ((slopes == slopes[0]).all() and shape[0] == 1):
        return False
    one = np.ones(shape[1])
    above, below = (_scaled(rewriter, node, "signs", [sign], activation="Relu") for sign in (one, -one))
    bent = _scaled(rewriter, below, "bent", [-slopes])
    bent = replace(bent, inputs=(below.output, *bent.inputs[1:]))
    total = Node("Add", (above.output, bent.output), node.outputs, {}, node.name, node.sources)
    rewriter.replace(node, above, below, bent, total)
    return True


def expand_slopes(graph: Graph) -> Graph:
    """PRelu as convolutions, unless its slopes exceed MOST_SLOPE."""
    return rewrite(graph, _expand_slopes)


def _expand_slopes(rewriter: Rewriter, node: Node) -> bool:
    slopes = rewriter.constants.get(node.inputs[1]) if node.op == "PRelu" else None
    return slopes is not None and np.abs(slopes).max() <= MOST_SLOPE and prelu_to_convs(rewriter, node)


MOST_LAST = 32
"""Channels that are interleaved, each by three calls."""
MOST_WORDS = 1 << 15
"""Of four elements each, which one NPU holds while they are interleaved."""


def channels_last(graph: Graph) -> Graph:
    """Few channels, which an output has last, become columns on the chip: a store of elements takes long."""
    return rewrite(graph, _channels_last)


def _channels_last(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Transpose" or PERM(node) != (0, 2, 3, 1) or node.output not in rewriter.graph.outputs:
        return False
    n, height, width, channels = rewriter.shape(node.output)
    fits = 0 < -(-n // 4) * height * width * channels <= MOST_WORDS
    if not (fits and 1 < channels <= MOST_LAST and width * channels <= MOST_MAP[2]):
        return False
    names = tuple(rewriter.fresh(f"{node.output}/channel_{at}") for at in range(channels))
    attrs = {"axis": 1, "split": (1,) * channels}
    split = Node("Split", node.inputs, names, attrs, f"{node.name}/split", node.sources)
    rows = rewriter.part(node, "Interleave", names, f"{node.output}/rows", axis=3)
    rewriter.replace(node, split, rows, rewriter.back(node, rows.output))
    return True


def _behind_one(rewriter: Rewriter, node: Node) -> bool:
    """A movement along the first axis, or of tensors whose first axis is no image, gets an axis of 1 before it."""
    moved = node.inputs if node.op == "Concat" else node.inputs[:1]
    axes, attrs = _axes_behind_one(node)
    images = all(rewriter.shape(name)[:1] == (1,) for name in moved)
    if not axes or (images and 0 not in axes):
        return False
    before = [
        rewriter.part(node, "Reshape", (name,), f"{name}/image", shape=(1, *rewriter.shape(name)))
        for name in moved
    ]
    results = {name: rewriter.fresh(f"{name}/image") for name in node.outputs}
    inputs = (*(each.output for each in before), *node.inputs[len(moved) :])
    inner = replace(node, inputs=inputs, outputs=tuple(results.values()), attrs={**node.attrs, **attrs})
    after = [
        Node("Reshape", (image,), (name,), {"shape": rewriter.shape(name)}, name, node.sources)
        for name, image in results.items()
    ]
    rewriter.replace(node, *before, inner, *after)
    return True


def _axes_behind_one(node: Node) -> tuple[tuple[int, ...], dict[str, Attr]]:
    """The axes along which a node moves elements (or none), and its attributes with an axis before them.

    Of a permutation only a first axis that moves counts.
    """
    match node.op:
        case "Transpose":
            return (0 if PERM(node)[0] else 1,), {"perm": (0, *(axis + 1 for axis in PERM(node)))}
        case "Pad":
            begins, ends = SIDES(node)[: len(SIDES(node)) // 2], SIDES(node)[len(SIDES(node)) // 2 :]
            axes = tuple(axis for axis, sides in enumerate(zip(begins, ends, strict=True)) if any(sides))
            return axes, {"pads": (0, *begins, 0, *ends)}
        case "Slice":
            return AXES(node), {"axes": tuple(axis + 1 for axis in AXES(node))}
        case "Split" | "Concat":
            return (AXIS(node),), {"axis": AXIS(node) + 1}
        case _:
            return (), {}


def _one_image(graph: Graph) -> bool:
    """Whether the first axis is one like the others: 1 in every input, or no batch of images and of their rows."""
    batches = {graph.shape(name)[:1] for name in graph.inputs} - {(1,)}
    rows = {graph.shape(node.inputs[0])[:1] for node in graph.nodes if node.op == "Gemm"} - {(1,)}
    images = any(_computes_images(graph, node) for node in graph.nodes)
    products = any(
        node.op == "MatMul" and not graph.constants.keys().isdisjoint(node.inputs) for node in graph.nodes
    )
    return not batches or products or not rows <= batches or not (images or rows)


def _computes_images(graph: Graph, node: Node) -> bool:
    """Whether a node computes several images; one that only scales channels may do so in one image."""
    scales = node.op == "Conv" and graph.shape(node.inputs[1])[1:] == (1, 1, 1)
    return node.op in WINDOWS and graph.shape(node.inputs[0])[0] > 1 and not scales


LARGE_MAPS = (FoldExtents(MOST_MAP[-1]), CutMaps(MOST_CHANNELS, MOST_MAP[-1]))
PASSES: tuple[Pass, ...] = (
    fold_constants,
    volumes_to_images,
    FoldStrides(MOST_STRIDE, MOST_BLOCKS),
    WideDilations(MOST_DILATION),
    SplitPads(MOST_PADDING),
    *LARGE_MAPS,
)
"""Constants are folded first, since a rounding that moved before a Concat may apply to a constant."""
_FIXED: tuple[Pass, ...] = (
    move_as_floats,
    tokens_to_maps,
    volumes_to_images,
    FoldStrides(MOST_STRIDE, MOST_BLOCKS),
    repeats_to_interleaves,
    interpolation_to_convs,
    reductions_to_pools,
    maxima_to_pools,
    expands_to_concats,
    WideDilations(MOST_DILATION, apart=True),
    SpreadKernels(MOST_WINDOW),
    SplitPads(MOST_PADDING),
    rows_to_pixels,
    gathers_to_slices,
    batch_norm_to_conv,
    functions_to_convs,
    expand_slopes,
    conv_transpose_to_phases,
    split_average_borders,
    fuse_again,
    separate_clips,
    *LARGE_MAPS,
    tensors_to_images,
    functions_to_convs,
    expand_slopes,
    operands_to_maps,
    expands_to_concats,
    GemmToConv(IMAGES, batches=True),
    channels_last,
)


def fixed_passes(scales: Mapping[str, Steps]) -> tuple[Pass, ...]:
    """The passes of --precision int8. scales: those of a table, by the model's names."""
    return (*_FIXED, RescaleMixedConcats(IMAGES, scales))
