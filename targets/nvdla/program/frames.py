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
from math import prod

import numpy as np

from npuc.conditions.host import BORDER, host_step
from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, GROUP, SELECTS
from npuc.ops.windows import window_of
from npuc.passes.frames import frame_steps, is_dense, parameters
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.nvdla.formats.pixels import Conversion
from npuc.targets.nvdla.model.arithmetic import shift_right

FINEST = 1 << 12
"""Scales are this over odd numbers: no pixel lies halfway between two steps, and float32 tells all apart."""
UNSEEN = 1 / 4096
"""The share that each value of a pixel has at least, so that what no sample shows is not simply cut off."""
TOGETHER = 8
"""The weight of an error of the padding, a mean less a fraction: it is the same all along a border."""
PIXELS = np.arange(1 << 8, dtype=np.uint8)


def centre_frames(graph: Graph, counts: Callable[[str, int], Array]) -> tuple[Graph, dict[str, Steps]]:
    """The graph whose normalised frames are centred only, and their steps; the same object if there are none.

    counts: how often each value of a pixel occurs in the samples, (channels, 256), given a tensor that holds a
    frame, and the value that is 0 in it.
    """
    made, constants = dict[str, Node](), dict[str, Array]()
    known, fresh = dict[str, Steps](), graph.names()
    for node in graph.nodes:
        found, mean = _normalisation(graph, node), f"{node.output}/mean"
        if found is None or fresh.new(mean) != mean:  # the model has a tensor of that name
            continue
        factors, exact, zero = found
        counted, padded = counts(node.inputs[0], zero), _padding_share(graph, node.output)
        known[node.output] = steps = _steps(counted, exact, factors, padded)
        means = _means(exact, steps)
        constants[mean] = (means - zero).astype(np.float32).reshape(-1, 1, 1)
        made[node.output] = Node("Sub", (node.inputs[0], mean), node.outputs, {}, node.name, node.sources)
        for each in graph.readers[node.output]:
            w, b = parameters(graph, each)
            scaled = w * factors[:, None, None]
            lost = (scaled.sum(axis=(2, 3)) * (means - exact)).sum(axis=1)
            names = fresh.new(f"{each.output}/centred"), fresh.new(f"{each.output}/offset")
            constants |= {names[0]: scaled.astype(np.float32), names[1]: (b + lost).astype(np.float32)}
            made[each.output] = replace(each, inputs=(node.output, *names))
    nodes = [made.get(each.output, each) for each in graph.nodes]
    return (rebuild(graph, nodes, constants) if made else graph), known


def _steps(counts: Array, means: Array, factors: Array, padded: float) -> Steps:
    """The scale and the zero point with the least squared error of a frame's pixels on the samples.

    counts: (channels, 256); means, factors: of each channel; padded: the share of padding.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) + UNSEEN
    candidates = [
        Steps(float(np.float32(FINEST / odd)), zero)
        for odd in (*range(FINEST // 2 + 1, FINEST, 32), FINEST)
        for zero in range(-32, 33)
    ]

    def error(steps: Steps) -> float:
        taken = _means(means, steps)
        values = PIXELS - taken[:, None]
        rounded = np.clip(np.rint(values / steps.scale) + steps.zero, -128, 127) - steps.zero
        wrong = (shares * (rounded * steps.scale - values) ** 2).sum(axis=1)
        return float((wrong + TOGETHER * padded * (taken - means) ** 2) @ factors**2)

    return min(candidates, key=error)


def _padding_share(graph: Graph, name: str) -> float:
    """The largest share of padding in what a convolution reads of a tensor."""
    area = prod(graph.shape(name)[2:])
    windows = [window_of(each, graph.shape(each.inputs[1])[2:]) for each in graph.readers[name]]
    whole = (prod(map(sum, zip(graph.shape(name)[2:], each.begins, each.ends, strict=True))) for each in windows)
    return 1 - area / max(whole)


def _means(means: Array, steps: Steps) -> Array:
    """The nearest means that CDMA subtracts with a whole number, given the zero point that it adds."""
    added = steps.zero * steps.scale
    return np.rint(means - added) + added


def _normalisation(graph: Graph, node: Node) -> tuple[Array, Array, int] | None:
    """What a convolution that only normalises a frame for others does; None for other nodes.

    The factor and the mean of each channel, in float64 and the units of the pixels, and the pixel that reads as 0.
    """
    zero = _zero(graph, node.inputs[0]) if node.op == "Conv" and node.output not in graph.outputs else None
    if zero is None or len(graph.readers[node.inputs[0]]) > 1:
        return None
    channels, weight = graph.shape(node.inputs[0])[1], graph.constants.get(node.inputs[1])
    if weight is None or weight.shape != (channels, 1, 1, 1) or GROUP(node) != channels or ACTIVATION(node):
        return None
    if not all(is_dense(graph, each, node.output) for each in graph.readers[node.output]):
        return None
    factors, shifts = weight.reshape(-1).astype(np.float64), parameters(graph, node)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = zero - shifts / factors
    return (factors, means, zero) if (np.abs(means) < 1 << 14).all() else None


def _zero(graph: Graph, name: str) -> int | None:
    """The pixel that is 0 in a tensor of a frame's pixels as numbers; None for other tensors."""
    found = frame_steps(graph, name)
    return found[1] if found is not None and found[0] == 1 else None


def offset_frames(graph: Graph) -> Graph:
    """The graph for 16 bits, to which CDMA converts pixels less a whole number; the same object without frames.

    Convolutions take the scale of a frame. One that only normalises becomes dense: no other reads images.
    """
    made, constants, fresh = dict[str, Node](), dict[str, Array](), graph.names()
    for node in graph.nodes:
        found = frame_steps(graph, node.output) if node.op == "DequantizeLinear" else None
        if found is None:
            continue
        readers = graph.readers[node.output]
        weights = [w for each in readers if (w := _weights(graph, each, node.output)) is not None]
        if len(weights) < len(readers):
            continue
        one = fresh.new(f"{node.output}/one")
        constants[one] = np.ones_like(graph.constants[node.inputs[1]])
        made[node.output] = replace(node, inputs=(node.inputs[0], one, node.inputs[2]))
        for each, w in zip(readers, weights, strict=True):
            name = fresh.new(f"{each.output}/of_pixels")
            constants[name] = (w * found[0]).astype(np.float32)
            attrs = {key: value for key, value in each.attrs.items() if key != SELECTS.name} | {GROUP.name: 1}
            made[each.output] = replace(each, inputs=(node.output, name, *each.inputs[2:]), attrs=attrs)
    return rebuild(graph, [made.get(each.output, each) for each in graph.nodes], constants) if made else graph


def int16_steps(graph: Graph) -> dict[str, Steps]:
    """The steps of frames in int16, of which 128 are a pixel's: exact, and what CDMA multiplies by."""
    found = {node.output: frame_steps(graph, node.output) for node in graph.nodes if node.op == "DequantizeLinear"}
    return {name: Steps(each[0] / 128) for name, each in found.items() if each is not None}


def _weights(graph: Graph, node: Node, source: str) -> Array | None:
    """The weights (K, C, R, S) of a convolution as a dense one, in float64; None if it is not to become one."""
    w = graph.constants.get(node.inputs[1]) if node.op == "Conv" and node.inputs.count(source) == 1 else None
    if w is None or GROUP(node) == 1:
        return None if w is None else w.astype(np.float64)
    return np.eye(len(w))[..., None, None] * w if w.shape == (graph.shape(source)[1], 1, 1, 1) else None


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
    nodes = list(_conversions_before(graph, name))
    raw = nodes[-1].inputs[0] if nodes else name
    if graph.tensors[raw].dtype != "uint8" or graph.tensors[name].dtype not in LIMITS:
        return None
    steps = [host_step(graph, node, "", at_border=True) for node in reversed(nodes)]
    means = graph.constants[nodes[1].inputs[1]].reshape(-1) if len(nodes) > 2 else np.zeros(graph.shape(name)[1])
    first, zero = steps[0].conversion_numbers()
    last, middle = steps[-1].conversion_numbers() if nodes[0].op == "QuantizeLinear" else (1.0, 0)
    offsets = np.rint(zero + means / first - middle * last / first).astype(int).tolist()
    wanted, limits = _host_values(graph, raw, name, steps), LIMITS[graph.tensors[name].dtype]
    for truncate in range(15):
        factor = round((1 << truncate) * first / last)
        conversion = Conversion(tuple(offsets), factor, truncate)
        if max(factor, *map(abs, offsets)) <= MOST and np.array_equal(_by_cdma(conversion, limits), wanted):
            return RawFrame(raw, conversion, tuple(nodes))
    return None


LIMITS = {"int8": (-128, 127), "int16": (-(1 << 15), (1 << 15) - 1), "float32": (-2048, 2048)}
"""What CDMA gives, by the type on the host: fp16 holds these whole numbers exactly."""


def _by_cdma(conversion: Conversion, limits: tuple[int, int]) -> Array:
    """What CDMA makes of every value of a pixel, (channels, 256)."""
    less = np.subtract(PIXELS, np.array(conversion.offsets)[:, None], dtype=np.int64)
    return np.clip(shift_right(less * conversion.scale, conversion.truncate), *limits)


def _conversions_before(graph: Graph, name: str) -> Iterator[Node]:
    """The conversions before a tensor, from the last on; nothing else reads what is between them."""
    while (node := graph.producers.get(name)) and (node.op in BORDER or is_centre(node)):
        yield node
        name = node.inputs[0]
        if len(graph.readers[name]) > 1 or name in graph.outputs:
            return


def _host_values(graph: Graph, raw: str, name: str, steps: Iterable[HostStep]) -> Array:
    """What the host makes of every value of a pixel, (channels, 256)."""
    channels = graph.shape(name)[1]
    tensors = {raw: np.broadcast_to(PIXELS[:, None], (1, 1, channels, PIXELS.size, 1))}
    for step in steps:
        tensors |= {each: graph.constants[each][None] for each in step.inputs if each in graph.constants}
        step.run(tensors)
    return tensors[name].reshape(channels, -1)
