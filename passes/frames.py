"""Frames of bytes before a convolution with padding: a border of the pixels that are 0 to the network.

Padding is the model's 0, whatever the mean. With a border of the mean's nearest pixel in its place the
convolution needs no padding, and takes means, deviations and a matrix from YUV into its weights and bias. That is
exact inside, and beside the border within half a step of the pixels: for machines of integers, which would round
all normalised pixels once more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.ops.windows import Window, window_of
from npuc.quantize.scales.model_scales import source_input
from npuc.text.escaping import Names


def frame_steps(graph: Graph, name: str) -> tuple[float, int] | None:
    """Scale and zero point of a tensor that holds a frame's bytes as numbers; None for other tensors."""
    made = graph.producers.get(name)
    if made is None or made.op != "DequantizeLinear" or source_input(graph, made.inputs[0]) is None:
        return None
    scale, zero = (graph.constants.get(each) for each in made.inputs[1:])
    if scale is None or zero is None or scale.size != 1 or zero.dtype != np.uint8 or name in graph.outputs:
        return None
    return scale.item(), zero.item()


def is_dense(graph: Graph, node: Node, source: str) -> bool:
    """Whether a node is a convolution of all channels of a tensor, with constants."""
    constant = all(name in graph.constants for name in node.inputs[1:])
    return node.op == "Conv" and GROUP(node) == 1 and constant and node.inputs.count(source) == 1


def parameters(graph: Graph, node: Node) -> tuple[Array, Array]:
    """The weights and biases of a convolution, in float64."""
    w = graph.constants[node.inputs[1]].astype(np.float64)
    return w, graph.constants[node.inputs[2]].astype(np.float64) if len(node.inputs) > 2 else np.zeros(len(w))


def lay_out_frames(graph: Graph) -> Graph:
    """The graph with frames in the model's layout before they are dequantised, where the host moves bytes."""
    made, fresh = dict[str, Node](), graph.names()
    for node in graph.nodes:
        before = graph.producers.get(node.inputs[0]) if node.op == "Transpose" else None
        alone = before is not None and graph.only_reader(before.output) is not None
        if before is not None and alone and frame_steps(graph, before.output) is not None:
            moved = fresh.new(f"{before.inputs[0]}/moved")
            made[before.output] = replace(node, inputs=before.inputs[:1], outputs=(moved,))
            made[node.output] = replace(before, inputs=(moved, *before.inputs[1:]), outputs=node.outputs)
    return rebuild(graph, [made.get(each.output, each) for each in graph.nodes]) if made else graph


def surround_frames(graph: Graph) -> Graph:
    """The graph with such borders; the same object if there are none to make."""
    made, constants, fresh = dict[str, list[Node]](), dict[str, Array](), graph.names()
    for conv in graph.nodes:
        found = _before(graph, conv)
        pixel = _zero_pixel(graph, *found) if found is not None else None
        if found is None or pixel is None:
            continue
        steps, normal = found
        (w, b), (matrix, shift) = parameters(graph, conv), _matrix(graph, normal)
        names = [fresh.new(f"{conv.output}/{each}") for each in ("of_pixels", "of_means")]
        constants[names[0]] = np.einsum("kmrs,mc->kcrs", w, matrix).astype(np.float32)
        constants[names[1]] = (b + w.sum(axis=(2, 3)) @ shift).astype(np.float32)
        frame, nodes = _surround(graph, steps, pixel, window_of(conv, w.shape[2:]), constants, fresh)
        values = fresh.new(f"{steps.output}/surrounded")
        made[steps.output] = [*nodes, replace(steps, inputs=(frame, *steps.inputs[1:]), outputs=(values,))]
        made[normal.output] = []
        attrs = {name: value for name, value in conv.attrs.items() if name not in ("pads", "auto_pad")}
        sources = tuple(dict.fromkeys((*normal.sources, *conv.sources)))
        made[conv.output] = [replace(conv, inputs=(values, *names), attrs=attrs, sources=sources)]
    nodes = [new for each in graph.nodes for new in made.get(each.output, (each,))]
    return rebuild(graph, nodes, constants) if made else graph


def _surround(
    graph: Graph, steps: Node, pixel: Array, window: Window, constants: dict[str, Array], fresh: Names
) -> tuple[str, list[Node]]:
    """The frame in a border of this pixel, (C,), as wide as a window's padding, and the nodes that make it.

    constants: receives the edges.
    """
    frame, nodes, stem = steps.inputs[0], list[Node](), steps.inputs[0]
    shape = [*graph.shape(frame)]
    for axis, begin, end in zip((2, 3), window.begins, window.ends, strict=True):
        edges = [[*shape[:axis], extent, *shape[axis + 1 :]] for extent in (begin, end)]
        before, behind = ([fresh.new(f"{stem}/border")] if edge[axis] else [] for edge in edges)
        for names, edge in zip((before, behind), edges, strict=True):
            constants |= {each: np.broadcast_to(pixel[:, None, None], edge).copy() for each in names}
        parts, shape[axis] = (*before, frame, *behind), shape[axis] + begin + end
        if len(parts) > 1:
            frame = fresh.new(f"{stem}/surrounded")
            nodes.append(Node("Concat", parts, (frame,), {"axis": axis}, steps.name, steps.sources))
    return frame, nodes


def _before(graph: Graph, conv: Node) -> tuple[Node, Node] | None:
    """What dequantises and what normalises the frame that a padded convolution alone reads; None for others."""
    normal = graph.producers.get(conv.inputs[0]) if conv.op == "Conv" else None
    steps = graph.producers.get(normal.inputs[0]) if normal is not None and _is_matrix(graph, normal) else None
    if normal is None or steps is None or frame_steps(graph, steps.output) is None:
        return None
    window = window_of(conv, graph.shape(conv.inputs[1])[2:])
    private = all(graph.only_reader(each) for each in (steps.inputs[0], steps.output, normal.output))
    padded = any((*window.begins, *window.ends)) and is_dense(graph, conv, normal.output)
    return (steps, normal) if private and padded else None


def _zero_pixel(graph: Graph, steps: Node, normal: Node) -> Array | None:
    """The pixel (C,) uint8 whose normalisation is next to 0; None if none is within half a step."""
    scale, zero = frame_steps(graph, steps.output) or (1.0, 0)
    matrix, shift = _matrix(graph, normal)
    exact = np.linalg.lstsq(matrix * scale, -shift, rcond=None)[0]
    pixel = np.rint(exact + zero)
    inside = (pixel >= 0).all() and (pixel <= np.iinfo(np.uint8).max).all()
    return pixel.astype(np.uint8) if inside and np.allclose(matrix @ exact * scale, -shift) else None


def _is_matrix(graph: Graph, node: Node) -> bool:
    """Whether a node is a convolution of single taps, with constants, for each channel or of all."""
    constant = all(name in graph.constants for name in node.inputs[1:])
    if node.op != "Conv" or not constant or ACTIVATION(node):
        return False
    window, shape = window_of(node, graph.shape(node.inputs[1])[2:]), graph.shape(node.inputs[1])
    alone = GROUP(node) == 1 or (GROUP(node) == shape[0] and shape[1] == 1)
    return alone and {*shape[2:], *window.strides} == {1} and not any((*window.begins, *window.ends))


def _matrix(graph: Graph, node: Node) -> tuple[Array, Array]:
    """The matrix and the shifts of such a convolution, in float64."""
    w, b = parameters(graph, node)
    return (np.diag(w.reshape(-1)) if GROUP(node) > 1 else w[:, :, 0, 0]), b
