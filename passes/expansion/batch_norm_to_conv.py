"""Batch normalisation that could not be folded into weights, as a convolution of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.ops.windows import window_of
from npuc.passes.cleanup.clutter import drop_no_op
from npuc.passes.cleanup.sink_reshapes import merge_reshapes, sink_below_function
from npuc.passes.recognition.recognise_batch_norm import scale_and_shift
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_BANDS = 16


def batch_norm_to_conv(graph: Graph) -> Graph:
    """BatchNormalization with constant parameters over (N, C, H, W) or (N, C) becomes a depthwise 1x1 Conv.

    After a Reshape of an image (1, C, H, W) whose new channels stand for bands of rows, as in sub-spectral
    normalisation, every band gets a Conv: Slice -> Conv -> Concat along H. The Reshape moves behind it, where it
    cancels with the inverse one. A Conv before such a Reshape is itself divided into bands, whose weights absorb
    the normalisation. More than 16 bands, or parameters that vary along W, are left unchanged.
    """
    return rewrite(graph, _by_bands, _depthwise, merge_reshapes, sink_below_function, drop_no_op)


def _depthwise(rewriter: Rewriter, node: Node) -> bool:
    """Replaces it by one Conv; a row (N, C) is reshaped to a single-pixel map and back."""
    found = scale_and_shift(rewriter, node)
    shape = rewriter.shape(node.output)
    if found is None or len(shape) not in (2, 4) or 0 in shape:
        return False
    x, y = node.inputs[0], node.output
    if len(shape) == 4:
        rewriter.replace(node, _normalising(rewriter, node, found, x, y))
        return True
    before, after = rewriter.fresh(f"{y}/vector"), rewriter.fresh(f"{y}/map")
    vector = Node("Reshape", (x,), (before,), {"shape": (*shape, 1, 1)}, f"{node.name}/vector", node.sources)
    row = Node("Reshape", (after,), (y,), {"shape": shape}, f"{node.name}/row", node.sources)
    rewriter.replace(node, vector, _normalising(rewriter, node, found, before, after), row)
    return True


def _normalising(rewriter: Rewriter, node: Node, found: tuple[Array, Array], x: str, y: str) -> Node:
    factor, shift = found
    inputs = x, *_constants(rewriter, y, factor.reshape(-1, 1, 1, 1), shift)
    return Node("Conv", inputs, (y,), {"kernel_shape": (1, 1), "group": len(factor)}, node.name, node.sources)


def _constants(rewriter: Rewriter, stem: str, weight: Array, bias: Array) -> tuple[str, str]:
    name = rewriter.constant(weight.astype(np.float32), f"{stem}/weight")
    return name, rewriter.constant(bias.astype(np.float32), f"{stem}/bias")


@frozen
class NormalisedConv:
    """The convolution whose rows are normalised; weight and bias in float64."""

    node: Node
    weight: Array
    bias: Array


def _by_bands(rewriter: Rewriter, node: Node) -> bool:
    """BatchNormalization of a Reshape, by bands of rows of the image before the Reshape."""
    reshape = rewriter.producer(node.inputs[0]) if node.op == "BatchNormalization" else None
    found = scale_and_shift(rewriter, node)
    if found is None or reshape is None or reshape.op != "Reshape":
        return False
    x, folded = reshape.inputs[0], rewriter.shape(node.output)
    shape = rewriter.shape(x)
    if len(shape) != 4 or shape[0] != 1 or shape == folded:
        return False
    values = [_rows(value, folded, shape) for value in found]
    factor, shift = values
    bounds = _bounds(values) if factor is not None and shift is not None else []
    if factor is None or shift is None or len(bounds) > MOST_BANDS + 1:
        return False
    source = _source(rewriter, x) if rewriter.private(reshape.output) else None
    source = source or _identity(rewriter, node, x)
    sources = rewriter.sources(source.node, reshape, node)
    bands = [
        (slice(start, end), NormalisedConv(source.node, *_fold(source, factor[:, start], shift[:, start])))
        for start, end in pairwise(bounds)
    ]
    whole = rewriter.fresh(f"{node.output}/image")
    new = list(_convs(rewriter, whole, bands, sources))
    back = Node("Reshape", (whole,), node.outputs, {"shape": folded}, node.name, sources)
    rewriter.replace(node, *new, back)
    return True


def _rows(values: Array, folded: tuple[int, ...], shape: tuple[int, ...]) -> Array | None:
    """A value per channel of the folded tensor as (C, H) of the image; None if it varies along W."""
    column = values.reshape(-1, *(1 for _ in folded[2:]))
    image = np.broadcast_to(column, folded).reshape(shape)[0]
    return image[..., 0] if (image == image[..., :1]).all() else None


def _bounds(values: list[Array | None]) -> list[int]:
    """The rows at which a band of equal columns begins, and the end."""
    both = np.concatenate([each for each in values if each is not None])
    changes = (both[:, 1:] != both[:, :-1]).any(axis=0)
    return [0, *(np.flatnonzero(changes) + 1).tolist(), both.shape[1]]


def _source(rewriter: Rewriter, x: str) -> NormalisedConv | None:
    """The Conv that alone provides x to a reader, if it can be divided: no window lies entirely in padding."""
    conv = rewriter.private(x)
    if conv is None or conv.op != "Conv" or ACTIVATION(conv):
        return None
    window = window_of(conv, rewriter.shape(conv.inputs[1])[2:])
    if max(window.begins[0], window.ends[0]) >= window.reach[0]:
        return None
    w, bias = rewriter.constants.get(conv.inputs[1]), np.zeros(rewriter.shape(x)[1])
    if len(conv.inputs) > 2 and conv.inputs[2]:
        bias = rewriter.constants.get(conv.inputs[2])
    return (
        None if w is None or bias is None else NormalisedConv(conv, w.astype(np.float64), bias.astype(np.float64))
    )


def _identity(rewriter: Rewriter, node: Node, x: str) -> NormalisedConv:
    C = rewriter.shape(x)[1]
    conv = Node("Conv", (x,), (), {"kernel_shape": (1, 1), "group": C}, node.name, node.sources)
    return NormalisedConv(conv, np.ones((C, 1, 1, 1)), np.zeros(C))


def _fold(source: NormalisedConv, factor: Array, shift: Array) -> tuple[Array, Array]:
    return source.weight * factor.reshape(-1, 1, 1, 1), source.bias * factor + shift


def _convs(
    rewriter: Rewriter, output: str, bands: list[tuple[slice, NormalisedConv]], sources: tuple[str, ...]
) -> Iterator[Node]:
    """The convolutions of all bands, each on the rows that it reads, and the Concat."""
    parts: list[str] = []
    for number, (rows, source) in enumerate(bands):
        y = rewriter.fresh(f"{output}/band_{number}") if len(bands) > 1 else output
        conv = source.node
        start, end, pads = _window(rewriter, source, rows)
        x = conv.inputs[0]
        if (start, end) != (0, rewriter.shape(x)[2]):
            x = rewriter.fresh(f"{y}/window")
            cut: dict[str, Attr] = {"axes": (2,), "starts": (start,), "ends": (end,), "steps": (1,)}
            yield Node("Slice", conv.inputs[:1], (x,), cut, x, sources)
        inputs = (x, *_constants(rewriter, y, source.weight, source.bias))
        attrs = {**conv.attrs, "pads": pads}
        yield replace(conv, inputs=inputs, outputs=(y,), attrs=attrs, name=y, sources=sources)
        parts.append(y)
    if len(bands) > 1:
        yield Node("Concat", tuple(parts), (output,), {"axis": 2}, output, sources)


def _window(rewriter: Rewriter, source: NormalisedConv, rows: slice) -> tuple[int, int, tuple[int, ...]]:
    """The rows of its input that a convolution reads for these rows of its output, and the resulting pads."""
    window = window_of(source.node, source.weight.shape[2:])
    extent, stride = rewriter.shape(source.node.inputs[0])[2], window.strides[0]
    first = rows.start * stride - window.begins[0]
    last = (rows.stop - 1) * stride - window.begins[0] + window.reach[0]
    start, end = max(first, 0), min(last, extent)
    return start, end, (start - first, window.begins[1], last - end, window.ends[1])
