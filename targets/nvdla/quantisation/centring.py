"""Frames less the mean of each channel, in the units of their pixels, as CDMA reads them.

A normalisation in front of padding is a convolution of one tap for each channel. Where only convolutions read its
result, they take its factors, and the fractions of the means go into their biases: inside exactly, beside the
border within half a step of the pixels, as padding is 0 less no fraction. What remains is a whole mean.

Source: Arithmetic of NVDLA, CDMA: a mean for each channel, one scale, padding behind the conversion.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.quantize.scales.model_scales import Steps, source_input
from npuc.targets.nvdla.program.frames import is_centre

FRACTION_BITS = 12
"""Of a scale: so many that no pixel lies halfway between two steps, and float32 tells all apart."""


def centred(graph: Graph) -> Graph:
    """The graph whose normalised frames are centred only; the same object if there are none."""
    made, constants = dict[str, Node](), dict[str, Array]()
    for node in graph.nodes:
        found = _normalisation(graph, node)
        if found is None:
            continue
        factors, shifts = found
        exact = -shifts / factors
        means = np.rint(exact)
        mean = f"{node.output}/mean"
        constants[mean] = means.astype(np.float32).reshape(-1, 1, 1)
        made[node.output] = Node("Sub", (node.inputs[0], mean), node.outputs, {}, node.name, node.sources)
        for each in graph.readers[node.output]:
            w, b = _parameters(graph, each)
            scaled = w * factors[:, None, None]
            lost = (scaled.sum(axis=(2, 3)) * (means - exact)).sum(axis=1)
            names = f"{each.output}/centred", f"{each.output}/offset"
            constants |= {names[0]: scaled.astype(np.float32), names[1]: (b + lost).astype(np.float32)}
            made[each.output] = replace(each, inputs=(node.output, *names))
    return rebuild(graph, [made.get(each.output, each) for each in graph.nodes], constants) if made else graph


def known_steps(graph: Graph) -> dict[str, Steps]:
    """The scale of each centred frame: a power of two over an odd number, so that all pixels are within 127."""
    found = dict[str, Steps]()
    for node in filter(is_centre, graph.nodes):
        means = graph.constants[node.inputs[1]]
        steps = int(127 * (1 << FRACTION_BITS) / max(np.abs(means).max(), (255 - means).max()))
        found[node.output] = Steps(float(np.float32((1 << FRACTION_BITS) / (steps - 1 + steps % 2))))
    return found


def _normalisation(graph: Graph, node: Node) -> tuple[Array, Array] | None:
    """Factors and shifts, in float64, of a convolution that only normalises a frame for others; otherwise None."""
    if node.op != "Conv" or not _of_frame(graph, node.inputs[0]) or node.output in graph.outputs:
        return None
    channels, weight = graph.shape(node.inputs[0])[1], graph.constants.get(node.inputs[1])
    if weight is None or weight.shape != (channels, 1, 1, 1) or GROUP(node) != channels or ACTIVATION(node):
        return None
    if not all(_is_dense(graph, each, node.output) for each in graph.readers[node.output]):
        return None
    factors, shifts = weight.reshape(-1).astype(np.float64), _parameters(graph, node)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (factors, shifts) if (np.abs(shifts / factors) < 1 << 14).all() else None


def _of_frame(graph: Graph, name: str) -> bool:
    """Whether a tensor holds the pixels of a frame as numbers."""
    made = graph.producers.get(name)
    if made is None or made.op != "DequantizeLinear" or len(graph.readers[name]) > 1 or name in graph.outputs:
        return False
    source, (scale, zero) = source_input(graph, made.inputs[0]), (graph.constants.get(x) for x in made.inputs[1:])
    return source is not None and scale is not None and zero is not None and (scale == 1).all() and not zero.any()


def _is_dense(graph: Graph, node: Node, source: str) -> bool:
    constant = all(name in graph.constants for name in node.inputs[1:])
    return node.op == "Conv" and GROUP(node) == 1 and constant and node.inputs.count(source) == 1


def _parameters(graph: Graph, node: Node) -> tuple[Array, Array]:
    """The weights and biases of a convolution, in float64."""
    w = graph.constants[node.inputs[1]].astype(np.float64)
    return w, graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 else np.zeros(len(w))
