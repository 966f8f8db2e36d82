"""Frames that CDMA converts: what the host would compute for them, as means, a scale and a shift.

The host's steps run on every value of a pixel; CDMA takes their place only if it gives the same integers. For that
the float graph is centred first: a normalisation in front of padding is a convolution of one tap for each channel.
Where only convolutions read its result, they take its factors, and the fractions of the means go into their
biases: inside exactly, beside the border within half a step of the pixels, as padding is 0 less no fraction. What
remains is a whole mean for each channel, in the units of the pixels.

Source: Arithmetic of NVDLA, CDMA: a mean for each channel, one scale, padding behind the conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.host_nodes import BORDER, host_step
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.quantize.scales.model_scales import Steps, source_input
from npuc.targets.nvdla.formats.pixels import Conversion
from npuc.targets.nvdla.model.arithmetic import shift_right

FINEST = 1 << 12
"""Scales are this over odd numbers: no pixel lies halfway between two steps, and float32 tells all apart."""
UNSEEN = 1 / 4096
"""The share that each value of a pixel has at least, so that what no sample shows is not simply cut off."""
EDGE = 1 / 64
"""The share of pixels beside a border, whose padding is a mean less a fraction."""
PIXELS = np.arange(1 << 8, dtype=np.uint8)


def centred(graph: Graph, counts: Callable[[str, int], Array]) -> tuple[Graph, dict[str, Steps]]:
    """The graph whose normalised frames are centred only, and their steps; the same object if there are none.

    counts: how often each value of a pixel occurs in the samples, (channels, 256), given a tensor that holds a
    frame, and the value that is 0 in it.
    """
    made, constants, known = dict[str, Node](), dict[str, Array](), dict[str, Steps]()
    for node in graph.nodes:
        found = _normalisation(graph, node)
        if found is None:
            continue
        factors, exact, zero = found
        known[node.output] = steps = _steps(counts(node.inputs[0], zero), exact, factors)
        means = _means(exact, steps)
        mean = f"{node.output}/mean"
        constants[mean] = (means - zero).astype(np.float32).reshape(-1, 1, 1)
        made[node.output] = Node("Sub", (node.inputs[0], mean), node.outputs, {}, node.name, node.sources)
        for each in graph.readers[node.output]:
            w, b = _parameters(graph, each)
            scaled = w * factors[:, None, None]
            lost = (scaled.sum(axis=(2, 3)) * (means - exact)).sum(axis=1)
            names = f"{each.output}/centred", f"{each.output}/offset"
            constants |= {names[0]: scaled.astype(np.float32), names[1]: (b + lost).astype(np.float32)}
            made[each.output] = replace(each, inputs=(node.output, *names))
    nodes = [made.get(each.output, each) for each in graph.nodes]
    return (rebuild(graph, nodes, constants) if made else graph), known


def _steps(counts: Array, means: Array, factors: Array) -> Steps:
    """The scale and the zero point with the least squared error of a frame's pixels on the samples.

    counts: (channels, 256); means, factors: of each channel.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) + UNSEEN
    candidates = [
        Steps(float(np.float32(FINEST / odd)), zero)
        for odd in (*range(FINEST // 2 + 1, FINEST, 16), FINEST)
        for zero in range(-64, 65, 4)
    ]

    def error(steps: Steps) -> float:
        taken = _means(means, steps)
        values = PIXELS - taken[:, None]
        rounded = np.clip(np.rint(values / steps.scale) + steps.zero, -128, 127) - steps.zero
        wrong = (shares * (rounded * steps.scale - values) ** 2).sum(axis=1) + EDGE * (taken - means) ** 2
        return float(wrong @ factors**2)

    return min(candidates, key=error)


def _means(means: Array, steps: Steps) -> Array:
    """The nearest means that CDMA subtracts with a whole number, given the zero point that it adds."""
    added = steps.zero * steps.scale
    return np.rint(means - added) + added


def _normalisation(graph: Graph, node: Node) -> tuple[Array, Array, int] | None:
    """What a convolution that only normalises a frame for others does; None for other nodes.

    The factor and the mean of each channel, in float64 and the units of the pixels, and the pixel that reads as 0.
    """
    zero = _zero(graph, node.inputs[0]) if node.op == "Conv" and node.output not in graph.outputs else None
    if zero is None:
        return None
    channels, weight = graph.shape(node.inputs[0])[1], graph.constants.get(node.inputs[1])
    if weight is None or weight.shape != (channels, 1, 1, 1) or GROUP(node) != channels or ACTIVATION(node):
        return None
    if not all(_is_dense(graph, each, node.output) for each in graph.readers[node.output]):
        return None
    factors, shifts = weight.reshape(-1).astype(np.float64), _parameters(graph, node)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = zero - shifts / factors
    return (factors, means, zero) if (np.abs(means) < 1 << 14).all() else None


def _zero(graph: Graph, name: str) -> int | None:
    """The pixel that is 0 in a tensor of a frame's pixels as numbers; None for other tensors."""
    made = graph.producers.get(name)
    if made is None or made.op != "DequantizeLinear" or len(graph.readers[name]) > 1 or name in graph.outputs:
        return None
    source, (scale, zero) = source_input(graph, made.inputs[0]), (graph.constants.get(x) for x in made.inputs[1:])
    plain = source is not None and scale is not None and (scale == 1).all() and zero is not None and zero.size == 1
    return zero.item() if plain and zero.dtype == np.uint8 else None


def _is_dense(graph: Graph, node: Node, source: str) -> bool:
    constant = all(name in graph.constants for name in node.inputs[1:])
    return node.op == "Conv" and GROUP(node) == 1 and constant and node.inputs.count(source) == 1


def _parameters(graph: Graph, node: Node) -> tuple[Array, Array]:
    """The weights and biases of a convolution, in float64."""
    w = graph.constants[node.inputs[1]].astype(np.float64)
    return w, graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 else np.zeros(len(w))


MOST = (1 << 15) - 1
"""The largest offset and scale."""


@frozen
class RawFrame:
    """A frame of bytes, and how CDMA converts it."""

    tensor: str
    """The bytes, which the host only moves."""
    conversion: Conversion
    replaced: tuple[Node, ...]
    """The host's nodes that are no longer needed."""


def is_centre(node: Node) -> bool:
    """Whether a node takes a mean of each channel from a frame (`centred`)."""
    return node.op == "Sub" and node.inputs[1] == f"{node.output}/mean"


def raw_frames(graph: Graph, images: Iterable[str]) -> dict[str, RawFrame]:
    """The frames among tensors that are loaded as images, by the name of the tensor."""
    found = ((name, _raw(graph, name)) for name in images)
    return {name: each for name, each in found if each is not None}


def _raw(graph: Graph, name: str) -> RawFrame | None:
    nodes = list(_before(graph, name))
    raw = nodes[-1].inputs[0] if nodes else name
    if graph.tensors[raw].dtype != "uint8" or graph.tensors[name].dtype != "int8":
        return None
    steps = [host_step(graph, node, "", at_border=True) for node in reversed(nodes)]
    means = graph.constants[nodes[1].inputs[1]].reshape(-1) if len(nodes) > 2 else np.zeros(graph.shape(name)[1])
    (first, zero), (last, middle) = steps[0].conversion_numbers(), steps[-1].conversion_numbers()
    offsets = np.rint(zero + means / first - middle * last / first).astype(int).tolist()
    wanted = _converted(graph, raw, name, steps)
    for truncate in range(15):
        factor = round((1 << truncate) * first / last)
        conversion = Conversion(tuple(offsets), factor, truncate)
        if max(factor, *map(abs, offsets)) <= MOST and np.array_equal(_by_cdma(conversion), wanted):
            return RawFrame(raw, conversion, tuple(nodes))
    return None


def _by_cdma(conversion: Conversion) -> Array:
    """What CDMA makes of every value of a pixel, (channels, 256)."""
    less = np.subtract(PIXELS, np.array(conversion.offsets)[:, None], dtype=np.int64)
    return np.clip(shift_right(less * conversion.scale, conversion.truncate), -128, 127)


def _before(graph: Graph, name: str) -> Iterator[Node]:
    """The conversions before a tensor, from the last on; nothing else reads what is between them."""
    while (node := graph.producers.get(name)) and (node.op in BORDER or is_centre(node)):
        yield node
        name = node.inputs[0]
        if len(graph.readers[name]) > 1 or name in graph.outputs:
            return


def _converted(graph: Graph, raw: str, name: str, steps: Iterable[HostStep]) -> Array:
    """What the host makes of every value of a pixel, (channels, 256)."""
    channels = graph.shape(name)[1]
    tensors = {raw: np.broadcast_to(PIXELS[:, None], (1, 1, channels, PIXELS.size, 1))}
    for step in steps:
        tensors |= {each: graph.constants[each][None] for each in step.inputs if each in graph.constants}
        step.run(tensors)
    return tensors[name].reshape(channels, -1)
