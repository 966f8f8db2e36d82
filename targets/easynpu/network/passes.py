"""The float passes of EasyNPU, in order: they replace what the array has no word for.

1. Forms. Volumes become images, a batch of images several networks of one image; reductions, interpolation,
maxima, padding and matrix products become pooling and convolutions over images. Matrix products come last, as
interpolation creates some.

2. Weights. Differences, batch normalisation, groups, channel shuffles and transposed convolutions become dense and
depthwise convolutions (permutations of channels before other Gathers become many slices); windows that the array
cannot average or compare are split. Then activations are fused again, as there are new convolutions.

3. Shapes. Elementwise operators on tensors that are no images compute on images. This follows everything that
moves functions across a Reshape. Copies and rows follow, as any earlier pass may leave some. Last come limits and
rescaling of what remains.

Padding before an image beyond what an instruction word can state.

Differences of two tensors as sums, for machines that only add.

Restores the ReLU that quantisers omit where rounding to steps from 0 up has the same effect.

Grouped convolutions as dense ones with block structure, for machines with only dense and depthwise ones.

Rescale nodes around operators that take no zero points and constrain their scales.

Depthwise convolutions with several results per channel.

Channel shuffles between grouped convolutions, moved behind the depthwise convolution that reads them.

Interpolation as products with constant matrices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import partial, reduce
from math import prod

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, BLOCKS, DTYPE, GROUP, SCALES, SIZES, ZERO_POINT
from npuc.ops.resize import interpolation, matrix_of
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.averages import AverageLimits, PadLongAverages, SplitAveragePool, split_average_borders
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batches import SplitBatch, batch_to_channels
from npuc.passes.expansion.conv_transpose_to_convs import ConvTransposeToConvs
from npuc.passes.expansion.copies import copies_to_concats, gathers_to_slices
from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.functions import expand_powers
from npuc.passes.expansion.images import TIDY
from npuc.passes.expansion.maxima_to_pools import MaximaToPools
from npuc.passes.expansion.moves_to_convs import (
    PadsToConvs,
    PermuteChannelsByConv,
    Selection,
    StridedSlicesToConvs,
    is_dense,
    selection,
)
from npuc.passes.expansion.products import GemmToConv, products_to_convs
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.resizes import resize_to_copies
from npuc.passes.expansion.split_max_pool import split_max_pool
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.passes.expansion.wide_dilations import LayInRows, drop_padding_taps
from npuc.passes.fusion import fold_batch_norm, fuse_again, separate_clips
from npuc.passes.rewriting.patterns import conv_window, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.passes.scales import RescaleMixedConcats
from npuc.pipeline import Pass
from npuc.quantize.scales.constraints import equal_scales
from npuc.quantize.scales.model_scales import NOTHING_GIVEN, Steps, given_steps
from npuc.targets.easynpu.layers.kernels import (
    FIELD_DILATIONS,
    IMAGES,
    MOST_CHANNELS,
    MOST_EXTENT,
    MOST_STEP,
    WIDEST,
)
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.network.unread_channels import drop_unread_channels, is_depthwise

MOST_WEIGHTS = 1 << 22
"""The most elements of a matrix; a Resize that needs a larger one is not changed."""
MOST_JOINT = 64
"""The most elements of several axes together that share one matrix: it is rounded once, but is larger."""


def resize_to_products(graph: Graph) -> Graph:
    """Resize becomes a MatMul per axis whose size changes: the matrix (size, extent) of its weights times x.

    x is reshaped to (elements before the axis, extent, elements after it). Exact in every mode. Successive axes
    with few elements are treated as one, whose matrix is the Kronecker product.
    """
    return rewrite(graph, _resize, *TIDY)


def _resize(rewriter: Rewriter, node: Node) -> bool:
    shape, sizes = rewriter.shape(node.inputs[0]), SIZES(node) if node.op == "Resize" else ()
    axes = [axis for axis, size in enumerate(sizes) if size != shape[axis] or SCALES(node)[axis] != 1]
    if (
        not axes
        or max(shape[axis] * sizes[axis] for axis in axes) > MOST_WEIGHTS
        or not rewriter.types[node.inputs[0]].size
        or not only_float(rewriter, node.inputs[0])
    ):
        return False
    nodes: list[Node] = []
    x = node.inputs[0]

    def step(op: str, inputs: tuple[str, ...], extents: tuple[int, ...]) -> str:
        attrs = {"shape": extents} if op == "Reshape" else {}
        stem = f"{node.output}/{'x'.join(map(str, extents))}"
        nodes.append(rewriter.part(node, op, inputs, stem, **attrs))
        return nodes[-1].output

    for group in _joint(axes, shape):
        first, last = group[0], group[-1] + 1
        matrices = [weights(node, shape[axis], sizes[axis], SCALES(node)[axis]) for axis in group]
        matrix = reduce(np.kron, matrices)
        name = rewriter.constant(matrix, f"{node.output}/weights{first}")
        before, behind = prod(shape[:first]), prod(shape[last:])
        image = step("Reshape", (x,), (before, matrix.shape[1], behind))
        x = step("MatMul", (name, image), (before, matrix.shape[0], behind))
        shape = (*shape[:first], *sizes[first:last], *shape[last:])
    rewriter.replace(node, *nodes, rewriter.back(node, x))
    return True


def _joint(axes: list[int], shape: tuple[int, ...]) -> list[list[int]]:
    """The axes, in groups that share one matrix."""
    found: list[list[int]] = []
    for axis in axes:
        joins = found and found[-1][-1] == axis - 1
        if joins and prod(shape[each] for each in (*found[-1], axis)) <= MOST_JOINT:
            found[-1].append(axis)
        else:
            found.append([axis])
    return found


def weights(node: Node, extent: int, size: int, scale: float) -> Array:
    """(size, extent) float32: the weight of each input element in each output element of an axis."""
    return matrix_of(*interpolation(node, extent, size, scale), extent)


def sink_shuffles(graph: Graph) -> Graph:
    """A permutation of a block-structured Conv's channels moves behind the depthwise Conv that alone reads it.

    Only where a dense Conv alone reads that result, as its weights will absorb the permutation. In the
    block-structured Conv successive outputs then still read few inputs; the depthwise Conv has its weights
    reordered.
    """
    rewriter = Rewriter(graph)
    for key in rewriter.order():
        node = rewriter.node(key)
        if node is not None and is_depthwise(rewriter, node):
            found = selection(rewriter, node.inputs[0])
            if found is not None and _sinks(rewriter, node, found):
                _sink(rewriter, node, found)
    return rewriter.finish()


def _sinks(rewriter: Rewriter, node: Node, found: Selection) -> bool:
    """Whether a permutation between a block-structured Conv and this one can move behind it, into a dense Conv."""
    giver, reader = rewriter.private(found.image), rewriter.only_reader(node.output)
    if giver is None or BLOCKS(giver) < 2 or reader is None:
        return False
    private = all(rewriter.only_reader(name) for each in found.nodes for name in each.outputs)
    whole = np.array_equal(np.sort(found.channels), np.arange(rewriter.shape(found.image)[1]))
    return private and whole and is_dense(rewriter, reader) and reader.inputs[0] == node.output


def _sink(rewriter: Rewriter, node: Node, found: Selection) -> None:
    back = np.argsort(found.channels)
    names = [
        rewriter.constant(rewriter.constants[name][back], f"{node.output}/{part}")
        for name, part in zip(node.inputs[1:], ("weight", "bias"), strict=False)
        if name
    ]
    result = rewriter.fresh(f"{node.output}/unshuffled")
    moved = replace(node, inputs=(found.image, *names), outputs=(result,))
    order = rewriter.constant(found.channels.astype(np.int64), f"{node.output}/order")
    sources = rewriter.sources(*found.nodes)
    rewriter.replace(
        node, moved, Node("Gather", (result, order), (node.output,), {"axis": 1}, node.output, sources)
    )


@frozen(eq=False)
class RescaleOperands:
    """Rescale around products, and around PRelu with slopes per channel, of tensors whose steps a model sets.

    Operands and results then have scales of their own, as the target's products take no zero points and are
    requantised only by shifts. A model sets the steps of a tensor by FakeQuantize or a conversion, the user by a
    table, and a limit, a maximum or a move passes them on, whichever of these nodes run on int8 in the end.
    """

    table: Mapping[str, Steps] = field(default_factory=dict[str, Steps])
    __name__ = "rescale_operands"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with rescaled operands and results."""
        computed = [name for name in graph.tensors if name not in graph.constants]
        known = frozenset(computed)
        constraints = [pair for pair in equal_scales(graph, graph.nodes) if known.issuperset(pair)]
        given = frozenset(given_steps(graph, computed, constraints, self.table))
        return rewrite(graph, lambda rewriter, node: _free(rewriter, node, given))


def _free(rewriter: Rewriter, node: Node, steps: Collection[str]) -> bool:
    if not (node.op == "Mul" or (node.op == "PRelu" and _many_slopes(rewriter, node))):
        return False
    given = [name for name in dict.fromkeys(node.inputs) if name in steps]
    if not given and node.output not in steps:
        return False
    names = {name: rewriter.fresh(f"{name}/rescaled") for name in given}
    before = [_rescale(name, new, node) for name, new in names.items()]
    inputs = tuple(names.get(name, name) for name in node.inputs)
    if node.output not in steps:
        rewriter.replace(node, *before, replace(node, inputs=inputs))
        return True
    free = rewriter.fresh(f"{node.output}/free")
    after = replace(_rescale(free, node.output, node), sources=node.sources)
    rewriter.replace(node, *before, replace(node, inputs=inputs, outputs=(free,)), after)
    return True


def _many_slopes(rewriter: Rewriter, node: Node) -> bool:
    slope = rewriter.constants.get(node.inputs[1])
    return slope is not None and bool(np.unique(slope).size > 1)


def _rescale(source: str, result: str, node: Node) -> Node:
    return Node("Rescale", (source,), (result,), {}, f"{node.name}/{result}", node.sources)


@frozen
class SplitMultipliers:
    """A depthwise Conv with m results per channel becomes m depthwise ones, whose results are put in order.

    Only of whole words of channels: the results are then joined without a copy. An output's are joined as rows,
    which only need another shape. Those that a dense Conv alone reads are joined as channels, whose order its
    weights absorb. Any others stay. Exact.

    rows_only: words cannot join channels.
    """

    rows_only: bool
    __name__ = "split_multipliers"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such multipliers."""
        return rewrite(graph, partial(_split_multiplier, self.rows_only))


def _split_multiplier(rows_only: bool, rewriter: Rewriter, node: Node) -> bool:
    window, group = conv_window(rewriter, node), GROUP(node)
    if window is None or group % LANES or any(name not in rewriter.constants for name in node.inputs[1:] if name):
        return False
    (channels, outputs), several = (rewriter.shape(name)[1] for name in (node.inputs[0], node.output)), []
    if group != channels or outputs == channels:
        return False
    m, reader = outputs // channels, rewriter.only_reader(node.output)
    as_rows = node.output in rewriter.outputs and not rewriter.readers(node.output)
    absorbed = reader is not None and is_dense(rewriter, reader) and reader.inputs[0] == node.output
    if not as_rows and (rows_only or not absorbed):
        return False
    for at in range(m):
        names = [
            rewriter.constant(rewriter.constants[name][at::m], f"{node.output}/{part}{at}")
            for name, part in zip(node.inputs[1:], ("weight", "bias"), strict=False)
            if name
        ]
        result = rewriter.fresh(f"{node.output}/{at}")
        several.append(replace(node, inputs=(node.inputs[0], *names), outputs=(result,), name=result))
    (N, _, H, W), names = rewriter.shape(node.output), tuple(each.output for each in several)
    if as_rows:  # of (N, C, m H, W)
        joined = rewriter.part(node, "Concat", names, f"{node.output}/joined", axis=2)
        rewriter.replace(node, *several, joined, rewriter.back(node, joined.output))
        return True
    joined = rewriter.part(node, "Concat", names, f"{node.output}/joined", axis=1)
    apart = rewriter.part(node, "Reshape", joined.outputs, f"{node.output}/apart", shape=(N, m, channels, H * W))
    turned = rewriter.part(node, "Transpose", apart.outputs, f"{node.output}/turned", perm=(0, 2, 1, 3))
    rewriter.replace(node, *several, joined, apart, turned, rewriter.back(node, turned.output))
    return True


def expand_groups(graph: Graph) -> Graph:
    """Every grouped Conv that is not depthwise gets group 1 and zeros outside its blocks.

    Exact: the added products are zero. The attribute `blocks` has the number of groups, which tells a target that
    most of the weights are zero.
    """
    nodes: list[Node] = []
    constants, names = dict[str, Array](), graph.names()
    for node in graph.nodes:
        weights = graph.constant(node.inputs[1]) if node.op == "Conv" else None
        group = GROUP(node) if node.op == "Conv" else 1
        if weights is None or group == 1 or group == weights.shape[0] == graph.shape(node.inputs[0])[1]:
            nodes.append(node)
            continue
        name = names.new(f"{node.output}/dense")
        constants[name] = block_diagonal(weights, group)
        inputs = (node.inputs[0], name, *node.inputs[2:])
        nodes.append(
            Node(
                "Conv", inputs, node.outputs, {**node.attrs, "group": 1, "blocks": group}, node.name, node.sources
            )
        )
    return rebuild(graph, nodes, constants) if constants else graph


def block_diagonal(weights: Array, group: int) -> Array:
    """(Co, Ci/group, *kernel) as (Co, Ci, *kernel), zero where input and output are of different groups."""
    outputs, per_group = weights.shape[0] // group, weights.shape[1]
    dense = np.zeros((weights.shape[0], per_group * group, *weights.shape[2:]), weights.dtype)
    for g in range(group):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * per_group : (g + 1) * per_group] = weights[rows]
    return dense


LIMITED = ("Conv", "Add")
MOVES = ("Reshape", "Transpose", "MaxPool")


def limit_at_zero(graph: Graph) -> Graph:
    """Adds a ReLU to a Conv or Add that only a FakeQuantize with steps from 0 up reads, perhaps through moves.

    It changes nothing as long as these steps are kept, and is needed where others replace them.
    """
    return rewrite(graph, _limit)


def _limit(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "FakeQuantize" or ZERO_POINT(node) != (-128 if DTYPE(node) == "int8" else 0):
        return False
    producer, moves = rewriter.private(node.inputs[0]), list[Node]()
    while producer is not None and producer.op in MOVES:
        moves.insert(0, producer)
        producer = rewriter.private(producer.inputs[0])
    if producer is None or producer.op not in LIMITED or ACTIVATION(producer):
        return False
    limited = rewriter.fresh(f"{producer.output}/limited")
    new = [replace(producer.with_attrs(activation="Relu"), outputs=(limited,))]
    for move in moves:
        new.append(replace(move, inputs=(new[-1].output,), outputs=(rewriter.fresh(f"{move.output}/limited"),)))
    rewriter.replace(node, *new, replace(node, inputs=(new[-1].output,)))
    return True


def subtract_by_adding(graph: Graph) -> Graph:
    """Sub(a, b) becomes Add(a, -b), and the sign goes into the weights that produce b, if there are any.

    Otherwise a BatchNormalization with the factor -1 computes -b. Both operands are computed at run time, and b is
    (N, C, H, W) or (N, C).
    """
    return fold_batch_norm(rewrite(graph, _subtract))


def _subtract(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Sub" or any(name in rewriter.constants for name in node.inputs):
        return False
    a, b = node.inputs
    if len(rewriter.shape(b)) not in (2, 4) or not only_float(rewriter, a, b):
        return False
    C, negative = rewriter.shape(b)[1], rewriter.fresh(f"{node.output}/negative")
    parameters = {"factor": -np.ones(C), "shift": np.zeros(C), "mean": np.zeros(C), "variance": np.ones(C)}
    names = [rewriter.constant(v.astype(np.float32), f"{negative}/{stem}") for stem, v in parameters.items()]
    attrs = {"epsilon": 0.0}
    sign = Node("BatchNormalization", (b, *names), (negative,), attrs, negative, node.sources)
    rewriter.replace(node, sign, replace(node, op="Add", inputs=(a, negative)))
    return True


def split_padding(graph: Graph) -> Graph:
    """A Conv with more than 15 rows or columns of padding before its image reads a padded image instead.

    A depthwise 1x1 Conv adds up to 15 rows and columns, several Convs add more. Exact: they only copy.
    """
    return rewrite(graph, _split)


def _split(rewriter: Rewriter, node: Node) -> bool:
    window = conv_window(rewriter, node)
    if window is None or max(window.begins) <= MOST_STEP:
        return False
    before = tuple(min(max(begin - MOST_STEP, 0), MOST_STEP) for begin in window.begins)
    x, channels = node.inputs[0], rewriter.shape(node.inputs[0])[1]
    padded = rewriter.fresh(f"{node.output}/padded")
    ones = rewriter.constant(np.ones((channels, 1, 1, 1), np.float32), f"{padded}/ones")
    copy = Node("Conv", (x, ones), (padded,), {"pads": (*before, 0, 0), "group": channels}, padded, node.sources)
    rest = tuple(begin - taken for begin, taken in zip(window.begins, before, strict=True))
    conv = Node("Conv", (padded, *node.inputs[1:]), node.outputs, {**node.attrs}, node.name, node.sources)
    rewriter.replace(node, copy, conv.with_attrs(pads=(*rest, *window.ends)))
    return True


def passes(
    machine: Machine, scales: Mapping[str, Steps] = NOTHING_GIVEN, *, documented: bool = False
) -> tuple[Pass, ...]:
    """The passes of every program for a machine, in the document's words only or with the extensions.

    scales: those of a table, by the model's names.
    """
    rescaling = RescaleMixedConcats(IMAGES, scales), RescaleOperands(scales)
    return (*_FORMS, *_weights(documented=documented), *_averages(machine), *_SHAPES, *rescaling)


def _averages(machine: Machine) -> tuple[Pass, ...]:
    """The passes for averages: kept psums allow any window that a DTCM holds; others are averages of averages."""
    limits = AverageLimits(positions=max(machine.fmap_words, machine.skip_words) - 1, extent=MOST_EXTENT)
    return PadLongAverages(limits), SplitAveragePool(limits=limits)


def _weights(*, documented: bool) -> tuple[Pass, ...]:
    return (
        SplitMultipliers(rows_only=documented),
        expand_groups,
        sink_shuffles,
        PermuteChannelsByConv(LANES),
        gathers_to_slices,
        StridedSlicesToConvs(MOST_STEP),
        split_average_borders,
    )


_FORMS: tuple[Pass, ...] = (
    expand_powers,
    volumes_to_images,
    SplitBatch(IMAGES),
    resize_to_copies,
    reductions_to_pools,
    resize_to_products,
    MaximaToPools(IMAGES),
    drop_padding_taps,
    FoldStrides(MOST_STEP, MOST_CHANNELS),
    LayInRows(FIELD_DILATIONS, MOST_STEP),
    PadsToConvs(MOST_STEP),
    products_to_convs,
    subtract_by_adding,
    batch_norm_to_conv,
    ConvTransposeToConvs(LANES),
    drop_unread_channels,
)
_SHAPES: tuple[Pass, ...] = (
    split_max_pool,
    split_padding,
    fuse_again,
    separate_clips,
    batch_to_channels,
    AsImages(IMAGES),
    FoldExtents(WIDEST),
    copies_to_concats,
    GemmToConv(IMAGES),
    limit_at_zero,
)
