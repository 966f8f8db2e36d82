"""What BM1684 runs in 8 bits: one function per constraint, whose docstring users read, and the integer network.

Only forms that were verified on the vendor's chip model are supported; others need fp32 or the host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from math import isfinite

from npuc.conditions.constraints import SPLIT, Support, finite_constants, refuse, violation
from npuc.errors import Problem, UnsupportedOperator
from npuc.ir import Graph, Node
from npuc.ops.attributes import (
    ACTIVATION,
    AXES,
    AXIS,
    COUNT_INCLUDE_PAD,
    GROUP,
    KERNEL_SHAPE,
    PAD_MODE,
    PERM,
    SIDES,
    VALUE,
)
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import window_of
from npuc.passes.frames import lay_out_frames, surround_frames
from npuc.passes.scales import RescaleCoarseOperands
from npuc.pipeline import run_passes
from npuc.quantize.arithmetic.tables import TABLE_OPS, as_unary
from npuc.quantize.calibration.histograms import source
from npuc.quantize.improvement.acceptance import decibels
from npuc.quantize.improvement.borders import best_bordered
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.mixed import tensor_noises
from npuc.quantize.improvement.search import Recipe, Trial, TrialNetwork, best_weights
from npuc.quantize.scales.constraints import integer_nodes
from npuc.quantize.scales.model_scales import only_of_inputs
from npuc.quantize.scales.results import calibrate
from npuc.quantize.scales.zero_points import ZeroPoints
from npuc.quantize.table import expect_machine
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.bm1684.network.passes import IMAGES
from npuc.targets.bm1684.network.support import (
    HOST,
    MOST_WINDOW,
    constant_weights,
    elements,
    images,
    not_dilated,
    within_extents,
    within_sides,
    within_windows,
)
from npuc.targets.bm1684.network.support import refusal as refused_in_floats
from npuc.targets.bm1684.quantisation.builder import quantise
from npuc.targets.bm1684.quantisation.operators import UNSIGNED as UNSIGNED_ZERO
from npuc.targets.bm1684.quantisation.steps import ONE_SHIFT, RescaleAtLimits, constraints


def floats(graph: Graph, node: Node) -> str | None:
    """The model computes in float32."""
    wrong = [graph.tensors[name].dtype for name in (*node.inputs[:1], *node.outputs) if name]
    wrong = [dtype for dtype in wrong if dtype != "float32"]
    return f"the element type is {wrong[0]}" if wrong else None


def relu_at_most(_graph: Graph, node: Node) -> str | None:
    """An activation of the layer is Relu, or Clip from 0."""
    found = ACTIVATION(node)
    return None if found in (None, "", "Relu", "Clip") else f"the activation is {found}"


def small_windows(graph: Graph, node: Node) -> str | None:
    """The window has at most 112 rows and columns, and padding is smaller."""
    shape = graph.shape(node.inputs[0])[2:]
    kernel = shape if node.op.startswith("Global") else KERNEL_SHAPE(node)
    if max(kernel) > MOST_WINDOW:
        return f"the window is {list(kernel)}"
    if node.op.startswith("Global"):
        return None
    window = window_of(node, kernel)
    over = window.overhang(shape, graph.shape(node.output)[2:])
    alone = any(max(pads) >= extent for *pads, extent in zip(window.begins, over, kernel, strict=True))
    return "a window lies in the padding alone" if alone else None


def dense_or_small(graph: Graph, node: Node) -> str | None:
    """A depthwise window has at most 112 rows and columns, is not dilated, and its padding is smaller."""
    if GROUP(node) == 1 or GROUP(node) != graph.shape(node.inputs[0])[1]:
        return None
    window = window_of(node, graph.shape(node.inputs[1])[2:])
    inside = all(
        max(pads) < kernel for *pads, kernel in zip(window.begins, window.ends, window.kernel, strict=True)
    )
    fits = max(window.kernel) <= MOST_WINDOW and max(window.dilations) == 1 and inside
    return None if fits else f"the kernel is {list(window.kernel)}, pads {[*window.begins, *window.ends]}"


def counted_padding(graph: Graph, node: Node) -> str | None:
    """An average counts its padding, or has none."""
    window = window_of(node, KERNEL_SHAPE(node))
    over = window.overhang(graph.shape(node.inputs[0])[2:], graph.shape(node.output)[2:])
    full = all(end <= given for end, given in zip(over, window.ends, strict=True))
    padded = max(*window.begins, *window.ends) > 0
    return None if full and (COUNT_INCLUDE_PAD(node) or not padded) else "its padding does not count"


def two_maps(graph: Graph, node: Node) -> str | None:
    """Two computed maps of one shape are added."""
    shapes = [graph.shape(name) for name in node.inputs]
    fits = shapes[0] == shapes[1] and len(shapes[0]) == 4 and not any(n in graph.constants for n in node.inputs)
    return None if fits else f"the shapes are {[list(each) for each in shapes]}"


def product_of_maps(graph: Graph, node: Node) -> str | None:
    """Two computed maps are multiplied, of one shape or one of them with a single row or column."""
    shapes, result = [graph.shape(name) for name in node.inputs], graph.shape(node.output)
    fits = len(result) == 4 and result in shapes and not any(name in graph.constants for name in node.inputs)
    fits = fits and all(each[:2] == result[:2] and len(each) == 4 for each in shapes)
    return None if fits else f"the shapes are {[list(each) for each in shapes]}"


def one_slope(graph: Graph, node: Node) -> str | None:
    """There is one slope for all channels."""
    return None if as_unary(graph, node) is not None else "the slopes differ"


def negative_power(graph: Graph, node: Node) -> str | None:
    """The exponent is a negative number, and the base a sum of Exp, or of squares and positive numbers."""
    exponent, base = graph.constants.get(node.inputs[1]), graph.producers.get(node.inputs[0])
    fits = exponent is not None and exponent.size == 1 and bool(exponent.item() < 0)
    return None if fits and base is not None and _is_positive_sum(graph, base) else "it is another power"


def _is_positive_sum(graph: Graph, node: Node) -> bool:
    """Whether the results of a layer with a ReLU are positive whatever its inputs are."""
    numbers = [graph.constants.get(name) for name in node.inputs[1:] if name]
    if node.op != "Conv" or ACTIVATION(node) != "Relu" or any(each is None for each in numbers):
        return False
    taps, *biases = (each for each in numbers if each is not None)
    term, added = graph.producers.get(node.inputs[0]), biases[0].min() if biases else 0.0
    if term is None or taps.min() < 0 or added < 0:
        return False
    powers = term.op == "Exp" and bool(taps.reshape(len(taps), -1).any(axis=1).all())
    return powers or (term.op == "Mul" and len({*term.inputs}) == 1 and added > 0)


def batch_stays(graph: Graph, node: Node) -> str | None:
    """The images of a batch stay apart: the first axis is not touched."""
    x, y = graph.shape(node.inputs[0]), graph.shape(node.output)
    if node.op == "Reshape":
        return None if x[:1] == y[:1] and len(y) >= 2 else f"{list(x)} becomes {list(y)}"
    if node.op == "Pad":
        return None if not any(SIDES(node)[:: len(x)]) else f"pads are {list(SIDES(node))}"
    if node.op == "Transpose":
        return None if PERM(node)[0] == 0 else f"the permutation is {list(PERM(node))}"
    axes = AXES(node) if node.op == "Slice" else (AXIS(node),)
    return None if all(axes) else "along the first axis"


def finite_padding(_graph: Graph, node: Node) -> str | None:
    """Padding is a finite number, or elements of the tensor."""
    return None if PAD_MODE(node) != "constant" or isfinite(VALUE(node)) else f"the padding is {VALUE(node)}"


def computed_operands(graph: Graph, node: Node) -> str | None:
    """The operands are computed."""
    found = [name for name in node.inputs if name in graph.constants]
    return f"'{found[0]}' is a constant" if found else None


OPERATORS: Mapping[str, Support] = {
    "Conv": Support(
        "nodechip_conv_forward_local_fix8b, nodechip_pooling_fix8b_forward_local",
        (constant_weights, finite_constants, images, within_windows, within_extents, dense_or_small, relu_at_most),
    ),
    "MaxPool": Support(
        "nodechip_pooling_fix8b_forward_local",
        (images, within_windows, within_extents, not_dilated, small_windows),
    ),
    "AveragePool": Support(
        "nodechip_pooling_fix8b_forward_local",
        (images, within_windows, within_extents, not_dilated, small_windows, counted_padding, relu_at_most),
    ),
    "GlobalMaxPool": Support("nodechip_pooling_fix8b_forward_local", (images, within_extents, small_windows)),
    "GlobalAveragePool": Support(
        "nodechip_pooling_fix8b_forward_local", (images, within_extents, small_windows, relu_at_most)
    ),
    "Add": Support("nodechip_eltwise_fix8b_forward_local", (two_maps, within_sides, relu_at_most)),
    "Mul": Support("nodechip_broadcast_binary_fix8b_forward_local", (product_of_maps, within_sides)),
    **{op: Support("nodechip_lut_local_v2", (images, within_sides)) for op in TABLE_OPS if op != "Clip"},
    "Pow": Support("nodechip_lut_local_v2", (images, within_sides, negative_power)),
    "PRelu": Support(
        "nodechip_lut_local_v2", (constant_weights, finite_constants, images, within_sides, one_slope)
    ),
    "Relu": Support("nodechip_eltwise_fix8b_forward_local", (images, within_sides)),
    "Clip": Support("nodechip_eltwise_fix8b_forward_local, nodechip_lut_local_v2", (images, within_sides)),
    "Concat": Support("nothing along channels; GDMA", (computed_operands, batch_stays)),
    **{op: Support("nothing along channels; GDMA", (batch_stays,)) for op in ("Split", "Slice")},
    "Interleave": Support("GDMA", (computed_operands, batch_stays)),
    "Pad": Support("GDMA", (batch_stays, finite_padding)),
    "Reshape": Support("nothing, or GDMA", (batch_stays,)),
    "Transpose": Support("GDMA", (batch_stays,)),
    **{op: Support("GDMA", ()) for op in ("DepthToSpace", "SpaceToDepth")},
    "Identity": Support("nothing", ()),
}
"""Operators in 8 bits."""


def left_to_host(graph: Graph, node: Node) -> bool:
    """Whether the host computes a node at an end of the network: one of HOST, or what moves the first axis.

    Behind one of HOST there is at most a QuantizeLinear, behind a movement at most those of HOST. Before a
    movement there is nothing.
    """
    readers = [reader for name in node.outputs if name for reader in graph.readers[name]]
    if node.op in HOST:
        return all(each.op == "QuantizeLinear" and not graph.readers[each.output] for each in readers)
    if not _moves_images(graph, node):
        return False
    return node.inputs[0] in graph.inputs or all(each.op in HOST and left_to_host(graph, each) for each in readers)


def moves_beside(graph: Graph, node: Node, refused: Collection[Node]) -> bool:
    """Whether a node moves the first axis, and all before it, or all behind it, is refused for another reason."""
    others = [each for each in refused if not _moves_images(graph, each)]
    readers = graph.readers[node.output]
    behind = readers and all(each in others for each in readers) and node.output not in graph.outputs
    return _moves_images(graph, node) and (graph.producers.get(node.inputs[0]) in others or bool(behind))


def _moves_images(graph: Graph, node: Node) -> bool:
    return node.op in ("Reshape", "Transpose") and batch_stays(graph, node) is not None


OTHERWISE = "another form of the layer, {}or the host (leave out --strict)"
REMEDY = OTHERWISE.format("--precision fp32, ")


def refusal(graph: Graph, node: Node) -> Problem | None:
    """Why the machine cannot run the node in 8 bits; None if it can."""
    if node.op in (*CONVERSIONS, "QuantizeLinear", "DequantizeLinear"):
        return None
    row = OPERATORS.get(node.op)
    if row is None:
        limit = ", ".join(OPERATORS)
        return refuse(node, "there is no such layer of 8 bits", limit=limit, remedy=REMEDY)
    remedy = REMEDY if refused_in_floats(graph, node) is None else OTHERWISE.format("")
    split = dict.fromkeys((within_extents, within_sides), SPLIT)
    return violation(graph, node, (floats, elements, *row.constraints), remedy, split)


FEWEST = 32
"""The least steps of a tensor in a Concat, otherwise it is rescaled for this: a rescaling takes few cycles."""
UNSIGNED = ZeroPoints(lambda _node, _anyway: True, ())
"""Every layer can read unsigned maps, such as results of ReLUs."""


def integer(graph: Graph) -> tuple[Node, ...]:
    """The nodes that run in 8 bits."""
    return integer_nodes(graph, lambda node: node.op in OPERATORS and refusal(graph, node) is None)


def network(graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The integer network, and the trials that were made to improve it.

    A model with its own scales keeps them where the zero point is 0 or -128.
    """
    found = _network(graph, samples, options)
    expect_precise_tokens(found[0], samples)
    return found


MOST_LOST = 10**-1.8
"""The noise of normalised tokens from which on they are left to the host, if the tokens have less."""
MOST_NOISIER = 10.0
"""The ratio to the noise of the tokens from which on that is so."""


def expect_precise_tokens(network: TrialNetwork, samples: Samples) -> None:
    """Raises UnsupportedOperator (E202) for products with roots and inverses of which 8 bits lose too much.

    They do where the tokens' sizes, or their channels', are too different, or their mean is far from 0.
    """
    graph = network.graph
    pairs: dict[Node, str] = {}
    for power in (each for each in graph.nodes if each.op == "Pow"):
        for node in graph.readers[power.output]:
            for d in (name for name in node.inputs if node.op == "Mul" and name != power.output):
                made = graph.producers.get(d)
                pairs[node] = made.inputs[0] if made is not None and made.op == "Add" else d
    wanted = {*pairs.values(), *(node.output for node in pairs)}
    noise = tensor_noises(graph, network.quantised, wanted, [*islice(samples.feeds(), 4)]) if pairs else {}
    lost = [
        (node, x)
        for node, x in pairs.items()
        if noise.get(node.output, 0) > max(MOST_LOST, MOST_NOISIER * noise.get(x, 0))
    ]
    refused = {made: node for node, x in lost for made in _sum_of(graph, x)} | {node: node for node, _ in lost}
    problems = [
        Problem(
            "E202",
            f"8 bits leave {'it' if at == node else repr(node.source)} {decibels(noise[node.output]):.1f} dB",
            at.source,
            at.op,
            limit="18 dB: tokens and channels of similar size around 0",
            remedy="--precision fp32, or the host (leave out --strict)",
        )
        for at, node in refused.items()
    ]
    if problems:
        raise UnsupportedOperator.of(problems)


def _sum_of(graph: Graph, tokens: str) -> Iterator[Node]:
    """The sum of two maps whose result, moved perhaps, these tokens are: its 8 bits would be lost in them."""
    made = graph.producers.get(tokens)
    while made is not None and made.op in MOVEMENT:
        made = graph.producers.get(made.inputs[0])
    if made is not None and made.op == "Add" and not graph.constants.keys() & {*made.inputs}:
        yield made


def _network(graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    level = LEVELS[options.level]
    method = options.method or level.method
    find = source(options.histograms, synthetic=samples.synthetic)
    graph = surround_frames(lay_out_frames(graph))
    nodes = integer(graph)
    table = expect_machine(options.scales_in, zeros=(0, UNSIGNED_ZERO))
    given, found = calibrate(find, graph, samples, nodes, table)
    one = options.one_scale
    recipe = Recipe(
        integer, quantise, ONE_SHIFT, UNSIGNED, equalises=not one, one_step=True, histograms=find, given=given
    )
    if not given or only_of_inputs(graph):
        copies = RescaleCoarseOperands(
            found, integer, lambda each, some, free: constraints(each, some, free, given), IMAGES, FEWEST
        )
        graph = run_passes(graph, (copies, RescaleAtLimits(found, integer, IMAGES)))
        return best_bordered(graph, recipe, samples, level, options.method, found)
    made = TrialNetwork(graph, nodes, found, {}, quantise(graph, nodes, found, method, given), ONE_SHIFT)
    return (made, ()) if samples.synthetic else best_weights(made, recipe, samples, level)
