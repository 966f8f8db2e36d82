"""Dilated convolutions beyond a limit: of phases of the map, of a signal in rows, or with zeros between taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import DILATIONS, GROUP
from npuc.ops.windows import Window, window_of
from npuc.passes.rewriting.maps import phase_nodes
from npuc.passes.rewriting.patterns import conv_window
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_BLOCK = 8
"""The most rows and columns of phases that are convolutions of their own."""


@frozen
class SpreadKernels:
    """A dilated depthwise Conv becomes one without dilation, with zeros between its taps.

    most: rows and columns of the kernel that results; a larger one stays.
    """

    most: int
    __name__ = "spread_kernels"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such dilations."""
        return rewrite(graph, partial(_spread, self.most))


def _spread(most: int, rewriter: Rewriter, node: Node) -> bool:
    taps = rewriter.constants.get(node.inputs[1]) if node.op == "Conv" else None
    shape = rewriter.shape(node.inputs[0])
    if taps is None or len(shape) != 4 or not 1 < GROUP(node) == shape[1] == len(taps):
        return False
    window = window_of(node, taps.shape[2:])
    if max(window.dilations) == 1 or max(window.reach) > most:
        return False
    kernel = np.zeros((*taps.shape[:2], *window.reach), taps.dtype)
    kernel[:, :, :: window.dilations[0], :: window.dilations[1]] = taps
    inputs = (node.inputs[0], rewriter.constant(kernel, f"{node.inputs[1]}/spread"), *node.inputs[2:])
    rewriter.replace(node, replace(node, inputs=inputs).with_attrs(dilations=(1, 1), kernel_shape=window.reach))
    return True


@frozen
class LayInRows:
    """A Conv of a signal (N, C, 1, L) or (N, C, L, 1) with too wide a dilation d reads it in rows of f elements.

    f divides d: taps lie below one another, with dilation d / f, and padding is whole rows. Of the f that leave
    permitted dilations and padding, the longest that add at most a sixteenth to the signal; otherwise the shortest
    signal.
    """

    most: int
    most_padding: int
    __name__ = "lay_in_rows"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such signals in rows."""
        return rewrite(graph, self._lay)

    def _lay(self, rewriter: Rewriter, node: Node) -> bool:
        window, shape = conv_window(rewriter, node), rewriter.shape(node.inputs[0])
        taps = rewriter.constants.get(node.inputs[1]) if window is not None else None
        if window is None or taps is None or 1 not in shape[2:] or window.strides != (1, 1):
            return False
        along = int(shape[2] == 1)
        across, kernel, d = 1 - along, window.kernel[along], window.dilations[along]
        begin, extent, count = window.begins[along], shape[2 + along], rewriter.shape(node.output)[2 + along]
        flat = window.kernel[across] == 1 and not window.begins[across] and not window.ends[across]
        if not flat or d == 1 or (d <= self.most and begin <= self.most_padding):
            return False
        lengths = [f for f in range(2, d + 1) if d % f == begin % f == 0 and d // f <= self.most]
        lengths = [f for f in lengths if begin // f <= self.most_padding]
        if not lengths:
            return False
        f = min(lengths, key=lambda f: (max(-(-extent // f) * f, extent * 17 // 16), -f))
        held, rows, above = -(-extent // f), -(-count // f), begin // f
        x, nodes = node.inputs[0], list[Node]()
        if held * f > extent:
            pads = (*(0,) * 6, *((held * f - extent) * each for each in (across, along)))
            nodes.append(rewriter.part(node, "Pad", (x,), f"{x}/padded", pads=pads, mode="constant", value=0.0))
            x = nodes[-1].output
        nodes.append(rewriter.part(node, "Reshape", (x,), f"{x}/rows", shape=(*shape[:2], held, f)))
        weights = taps.reshape(*taps.shape[:2], kernel, 1)
        inputs = (nodes[-1].output, rewriter.constant(weights, f"{node.inputs[1]}/rows"), *node.inputs[2:])
        below = max(rows - 1 + (kernel - 1) * (d // f) + 1 - above - held, 0)
        attrs = {"kernel_shape": (kernel, 1), "dilations": (d // f, 1), "pads": (above, 0, below, 0)}
        made = replace(node, inputs=inputs, outputs=(rewriter.fresh(f"{node.output}/rows"),)).with_attrs(**attrs)
        nodes.append(made)
        rows = held + above + below - (kernel - 1) * (d // f)
        if rows * f == count:
            rewriter.replace(node, *nodes, rewriter.back(node, made.output))
            return True
        whole = (
            shape[0],
            rewriter.shape(node.output)[1],
            *((rows * f if each else 1) for each in (across, along)),
        )
        nodes.append(rewriter.part(node, "Reshape", made.outputs, f"{node.output}/whole", shape=whole))
        ends: dict[str, Attr] = {"axes": (2 + along,), "starts": (0,), "ends": (count,), "steps": (1,)}
        cut = Node("Slice", nodes[-1].outputs, node.outputs, ends, f"{node.name}/slice", node.sources)
        rewriter.replace(node, *nodes, cut)
        return True


def drop_padding_taps(graph: Graph) -> Graph:
    """A Conv without the outer rows and columns of its kernel that meet nothing but padding. Exact."""
    return rewrite(graph, _drop_taps)


def _drop_taps(rewriter: Rewriter, node: Node) -> bool:
    window = conv_window(rewriter, node)
    taps = rewriter.constants.get(node.inputs[1]) if window is not None else None
    if window is None or taps is None:
        return False
    kept, begins, ends = list[slice](), list[int](), list[int]()
    extents, counts = (rewriter.shape(name)[2:] for name in (node.inputs[0], node.output))
    for at, (extent, count) in enumerate(zip(extents, counts, strict=True)):
        first, last, d = 0, window.kernel[at] - 1, window.dilations[at]
        begin, end = window.begins[at], window.ends[at]
        while first < last and begin >= d and (count - 1) * window.strides[at] + first * d < window.begins[at]:
            first, begin = first + 1, begin - d
        while last > first and end >= d and last * d - window.begins[at] >= extent:
            last, end = last - 1, end - d
        kept.append(slice(first, last + 1))
        begins.append(begin)
        ends.append(end)
    smaller = taps[:, :, kept[0], kept[1]]
    if smaller.shape == taps.shape:
        return False
    inputs = (node.inputs[0], rewriter.constant(smaller, f"{node.inputs[1]}/met"), *node.inputs[2:])
    dilations = tuple(1 if k == 1 else d for k, d in zip(smaller.shape[2:], window.dilations, strict=True))
    attrs = {"kernel_shape": smaller.shape[2:], "pads": (*begins, *ends), "dilations": dilations}
    rewriter.replace(node, replace(node, inputs=inputs).with_attrs(**attrs))
    return True


@frozen
class WideDilations:
    """A Conv of stride 1 with a dilation d = f * e beyond the limit, on (N, C, H, W), becomes one with dilation e.

    Its taps only meet pixels whose rows are equal modulo f. These are an image of their own: the padded map
    becomes N * f * f images (H / f, W / f), and their results are interleaved again. f is the smallest factor that
    leaves a permitted dilation.

    apart: the phases stay maps of the same N images, each with a Conv of its own; their results are interleaved.
    """

    most: int
    apart: bool = False
    __name__ = "wide_dilations"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with permitted dilations."""
        return rewrite(graph, partial(_phases, self.most, apart=self.apart))


def _phases(most: int, rewriter: Rewriter, node: Node, *, apart: bool) -> bool:
    window = conv_window(rewriter, node)
    if window is None or max(window.dilations) <= most or max(window.strides) > 1:
        return False
    factors = tuple(_factor(each, most) for each in window.dilations)
    if apart and max(factors) > MOST_BLOCK:
        return False
    padded, extents = _pad_blocks(rewriter, node, window, factors)
    inner = {"dilations": tuple(d // f for d, f in zip(window.dilations, factors, strict=True)), "pads": (0,) * 4}
    conv, cut = node.with_attrs(**inner), (_slice_phases if apart else _as_images)
    rewriter.replace(node, padded, *cut(rewriter, conv, padded.output, factors, extents))
    return True


def _slice_phases(
    rewriter: Rewriter, conv: Node, x: str, factors: Sequence[int], extents: Sequence[int]
) -> list[Node]:
    """Slice -> Conv for each phase, interleaved [-> Slice]."""
    slices: list[Node] = []

    def phase(row: int, column: int, y: str) -> Node:
        cut = {"axes": (2, 3), "starts": (row, column), "ends": tuple(extents), "steps": tuple(factors)}
        slices.append(rewriter.part(conv, "Slice", (x,), f"{x}/phase", **cut))
        return replace(conv, inputs=(slices[-1].output, *conv.inputs[1:]), outputs=(y,), name=y)

    shape = rewriter.shape(conv.output)[2:]
    whole, cut = conv, list[Node]()
    if any(extent % factor for extent, factor in zip(shape, factors, strict=True)):
        whole = replace(conv, outputs=(rewriter.fresh(f"{conv.output}/whole"),))
        ends: dict[str, Attr] = {"axes": (2, 3), "starts": (0, 0), "ends": shape, "steps": (1, 1)}
        cut = [Node("Slice", whole.outputs, conv.outputs, ends, f"{conv.name}/slice", conv.sources)]
    made = phase_nodes(rewriter, whole, range(factors[0]), range(factors[1]), phase)
    return [*slices, *made, *cut]


def _as_images(
    rewriter: Rewriter, conv: Node, x: str, factors: Sequence[int], extents: Sequence[int]
) -> list[Node]:
    """A Conv of N * f * f images between movements."""
    (N, C, *_), (_, Co, Ho, Wo) = rewriter.shape(conv.inputs[0]), rewriter.shape(conv.output)
    (fy, fx), (rows, columns) = factors, (extent // f for extent, f in zip(extents, factors, strict=True))
    kernel, (dy, dx) = rewriter.shape(conv.inputs[1])[2:], DILATIONS(conv) or (1, 1)
    high, wide = rows - dy * (kernel[0] - 1), columns - dx * (kernel[1] - 1)
    phases = (N * fy * fx, C, rows, columns)
    apart = _move(rewriter, conv, x, (N, C, rows, fy, columns, fx), (0, 3, 5, 1, 2, 4), phases)
    y = rewriter.fresh(f"{conv.output}/phases")
    made = replace(conv, inputs=(apart[-1].output, *conv.inputs[1:]), outputs=(y,))
    whole = (N, Co, high * fy, wide * fx)
    joined = _move(rewriter, conv, y, (N, fy, fx, Co, high, wide), (0, 3, 4, 1, 5, 2), whole)
    ends: dict[str, Attr] = {"axes": (2, 3), "starts": (0, 0), "ends": (Ho, Wo), "steps": (1, 1)}
    cut = Node("Slice", (joined[-1].output,), conv.outputs, ends, f"{conv.name}/slice", conv.sources)
    return [*apart, made, *joined, cut]


def _factor(dilation: int, most: int) -> int:
    return next(each for each in range(1, dilation + 1) if dilation % each == 0 and dilation // each <= most)


def _pad_blocks(
    rewriter: Rewriter, node: Node, window: Window, factors: Sequence[int]
) -> tuple[Node, tuple[int, ...]]:
    """The Pad to whole blocks of phases, and the rows and columns of its result."""
    x = node.inputs[0]
    extents = [
        each + begin + end
        for each, begin, end in zip(rewriter.shape(x)[2:], window.begins, window.ends, strict=True)
    ]
    more = [-each % factor for each, factor in zip(extents, factors, strict=True)]
    behind = [end + each for end, each in zip(window.ends, more, strict=True)]
    pad = rewriter.part(node, "Pad", (x,), f"{x}/padded", pads=(0, 0, *window.begins, 0, 0, *behind))
    return pad, tuple(extent + each for extent, each in zip(extents, more, strict=True))


def _move(
    rewriter: Rewriter, node: Node, x: str, inner: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> list[Node]:
    """Reshape -> Transpose -> Reshape."""
    split = rewriter.part(node, "Reshape", (x,), f"{x}/split", shape=inner)
    turned = rewriter.part(node, "Transpose", split.outputs, f"{x}/turned", perm=perm)
    return [split, turned, rewriter.part(node, "Reshape", turned.outputs, f"{x}/moved", shape=shape)]
