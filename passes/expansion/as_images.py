"""Elementwise operators on tensors of any shape, computed on images instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.passes.cleanup.clutter import merge_duplicates
from npuc.passes.expansion.images import (
    TIDY,
    ImageLimits,
    Shape,
    extents,
    from_image,
    front,
    is_image,
    sides,
    to_image,
)
from npuc.passes.recognition.recognise_batch_norm import scale_and_shift
from npuc.passes.rewriting.layout import UNARY
from npuc.passes.rewriting.patterns import constant_operand, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

SUMS = frozenset(("Add", "Sub", "Mul"))
PAIRS = SUMS | {"Max", "Min"}
"""Operators of two computed tensors."""
FUNCTIONS = UNARY - {"Cast", "Identity"}
MOST_TILED = 4096
"""The most parameters when repeated along leading axes, which costs weights; beyond, axes are moved."""


@frozen
class AsImages:
    """Elementwise operators on tensors that are not images (1, C, H, W) or (1, C), computed on images.

    Unary functions: in any shape. Sums, products, maxima and minima of two tensors: axes that both have become
    channels, axes that one broadcasts become rows and columns; differences become sums. Arithmetic with constants
    and batch normalisation: the axes along which the constants vary become channels, and a depthwise 1x1 Conv
    multiplies and adds. PRelu likewise. Maxima and minima with constants accept one number, or one per element.
    Only Reshape and Transpose surround them.

    limits: of the images of tensors without channels of their own.
    """

    limits: ImageLimits
    __name__ = "as_images"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with these operators on images."""
        rules = (partial(rule, self.limits) for rule in (_function, _pair, _limit, _per_channel))
        return merge_duplicates(rewrite(graph, *rules, *TIDY))


def _is_elementwise(rewriter: Rewriter, node: Node, x: str) -> bool:
    """Whether a node computes float32 elements, one for each of this input."""
    whole = rewriter.shape(x) == rewriter.shape(node.output) and rewriter.types[x].size > 0
    return whole and x not in rewriter.constants and only_float(rewriter, x, node.output)


def _on_images(rewriter: Rewriter, node: Node, inner: Node, shapes: Mapping[str, Shape], perm: Shape) -> bool:
    """Replaces a node by one that reads these inputs permuted and reshaped; the result is transformed back."""
    names: dict[str, str] = {}
    before: list[Node] = []
    for name, shape in shapes.items():
        names[name], nodes = to_image(rewriter, name, perm, shape, node.sources)
        before += nodes
    image = rewriter.fresh(f"{node.output}/image")
    moved = replace(inner, inputs=tuple(names.get(name, name) for name in inner.inputs), outputs=(image,))
    rewriter.replace(node, *before, moved, *from_image(rewriter, image, perm, node.output, node.sources))
    return True


# unary functions


def _function(limits: ImageLimits, rewriter: Rewriter, node: Node) -> bool:
    x = node.inputs[0]
    shape = rewriter.shape(node.output)
    slope = rewriter.constants.get(node.inputs[1]) if node.op == "PRelu" else None
    uniform = slope is not None and slope.size > 0 and bool((slope == slope.flat[0]).all())
    if not (node.op in FUNCTIONS or uniform) or is_image(shape) or not _is_elementwise(rewriter, node, x):
        return False
    inputs = (x,) if slope is None else (x, _constant(rewriter, node, "slope", slope.flat[0]))
    inner = replace(node, inputs=inputs)
    return _on_images(rewriter, node, inner, {x: _nearest_image(limits, rewriter, node)}, tuple(range(len(shape))))


def _nearest_image(limits: ImageLimits, rewriter: Rewriter, node: Node) -> Shape:
    """The image that the result becomes anyway, or that an axis of extent 1 suggests; otherwise a suitable one."""
    reader = rewriter.only_reader(node.output)
    if reader is not None and reader.op == "Reshape" and is_image(rewriter.shape(reader.output)):
        return rewriter.shape(reader.output)
    shape = rewriter.shape(node.output)
    along_one_axis = len(shape) == 3 and shape[0] == 1
    return (*shape[:2], 1, shape[2]) if along_one_axis else limits.image_shape(rewriter.types[node.output].size)


# sums, differences and products of two tensors


def _pair(limits: ImageLimits, rewriter: Rewriter, node: Node) -> bool:
    if node.op not in PAIRS or any(name in rewriter.constants for name in node.inputs):
        return False
    result = rewriter.shape(node.output)
    if not only_float(rewriter, *node.inputs) or not rewriter.types[node.output].size:
        return False
    if node.op == "Sub":
        return _subtract(rewriter, node)
    aligned = {name: _align(rewriter.shape(name), len(result)) for name in node.inputs}
    repeated = [axis for axis, extent in enumerate(result) if any(s[axis] != extent for s in aligned.values())]
    whole = next((name for name in node.inputs if aligned[name] == result), None)
    if whole is None:
        return _expand_first(rewriter, node, result)
    same_rank = all(len(rewriter.shape(name)) == len(result) for name in node.inputs)
    if is_image(result) and same_rank and 1 not in repeated:
        return False
    shared = [axis for axis in range(len(result)) if axis not in repeated]
    channels = extents(result, shared)
    image = (
        (1, channels, *sides(extents(result, repeated)))
        if repeated
        else limits.image_shape(rewriter.types[whole].size)
    )
    shapes = {name: image if shape == result else (1, channels, 1, 1) for name, shape in aligned.items()}
    return _on_images(rewriter, node, node, shapes, front(shared, len(result)))


def _subtract(rewriter: Rewriter, node: Node) -> bool:
    """a - b as a + (-b)."""
    a, b = node.inputs
    turned = rewriter.part(node, "Neg", (b,), f"{b}/negative")
    rewriter.replace(node, turned, replace(node, op="Add", inputs=(a, turned.output)))
    return True


def _align(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _expand_first(rewriter: Rewriter, node: Node, shape: Shape) -> bool:
    """If both operands are broadcast along different axes, expands the first one."""
    x = node.inputs[0]
    full = rewriter.part(node, "Expand", (x,), f"{x}@{'x'.join(map(str, shape))}", shape=shape)
    rewriter.replace(node, full, replace(node, inputs=(full.output, *node.inputs[1:])))
    return True


def _limit(limits: ImageLimits, rewriter: Rewriter, node: Node) -> bool:
    """Max or Min with a constant, unless it is one number, or one per channel or per element of an image."""
    found = constant_operand(rewriter, node) if node.op in ("Max", "Min") else None
    if found is None or not _is_elementwise(rewriter, node, found[0]):
        return False
    x, constant = found
    shape, given = rewriter.shape(x), rewriter.shape(constant)
    varying = {axis for axis, extent in enumerate(_align(given, len(shape))) if extent > 1}
    if is_image(shape) and (varying <= {1} or given == shape):
        return False
    image = shape if is_image(shape) else limits.image_shape(rewriter.types[x].size)
    value = rewriter.constants[constant]
    whole = value.reshape((1, 1, 1, 1)) if value.size == 1 else np.broadcast_to(value, shape).reshape(image)
    limit = _constant(rewriter, node, "limit", whole)
    return _on_images(rewriter, node, replace(node, inputs=(x, limit)), {x: image}, tuple(range(len(shape))))


# arithmetic with constants


@frozen
class _Affine:
    """x -> factor * x + shift, or the slope of a PRelu; the arrays broadcast to x."""

    x: str
    factor: Array
    shift: Array


def _per_channel(limits: ImageLimits, rewriter: Rewriter, node: Node) -> bool:
    line = _line(rewriter, node)
    if line is None or not _is_elementwise(rewriter, node, line.x):
        return False
    shape = rewriter.shape(line.x)
    if node.op in ("BatchNormalization", "PRelu") and is_image(shape) and _varying(line, len(shape)) <= {1}:
        return False
    perm, channels = _channel_axes(shape, _varying(line, len(shape)))
    count = extents(shape, perm[:channels])
    image = (
        (1, count, *sides(extents(shape, perm[channels:])))
        if channels
        else limits.image_shape(rewriter.types[line.x].size)
    )
    parameters = [_channel_vector(each, shape, perm, channels, image[1]) for each in (line.factor, line.shift)]
    if node.op == "PRelu":
        inner = replace(node, inputs=(line.x, _constant(rewriter, node, "slope", parameters[0].reshape(-1, 1, 1))))
    else:
        inner = _depthwise(rewriter, node, line.x, *parameters)
    return _on_images(rewriter, node, inner, {line.x: image}, perm)


def _line(rewriter: Rewriter, node: Node) -> _Affine | None:
    """The function that a node applies to one tensor, if it is linear per element with constant parameters."""
    if node.op == "BatchNormalization":
        found = scale_and_shift(rewriter, node)
        column = (-1, *(1 for _ in rewriter.shape(node.output)[2:]))
        return found and _Affine(node.inputs[0], *(each.reshape(column) for each in found))
    if node.op == "PRelu" and node.inputs[1] in rewriter.constants:
        slope = rewriter.constants[node.inputs[1]]
        return _Affine(node.inputs[0], slope, np.zeros(()))
    found = constant_operand(rewriter, node) if node.op in (*SUMS, "Div") else None
    if found is None or not np.isfinite(rewriter.constants[found[1]]).all():
        return None
    x, c = found[0], rewriter.constants[found[1]].astype(np.float64)
    one, zero = np.ones(()), np.zeros(())
    match node.op:
        case "Add":
            return _Affine(x, one, c)
        case "Sub":
            return _Affine(x, one, -c) if node.inputs[0] == x else _Affine(x, -one, c)
        case "Mul":
            return _Affine(x, c, zero)
        case _:
            return _Affine(x, 1 / c, zero) if node.inputs[0] == x and c.all() else None


def _varying(line: _Affine, rank: int) -> set[int]:
    """The axes along which a parameter varies."""
    shapes = [_align(each.shape, rank) for each in (line.factor, line.shift)]
    return {axis for shape in shapes for axis, extent in enumerate(shape) if extent != 1}


def _channel_axes(shape: Shape, varying: set[int]) -> tuple[Shape, int]:
    """The order of the axes, and how many become channels: leading ones in place, or axes moved to the front."""
    leading = max(varying, default=-1) + 1
    if extents(shape, range(leading)) <= MOST_TILED:
        return tuple(range(len(shape))), leading
    return front(sorted(varying), len(shape)), len(varying)


def _channel_vector(value: Array, shape: Shape, perm: Shape, channels: int, count: int) -> Array:
    """A parameter as a vector with one element per channel."""
    if not channels:
        return np.full(count, value.reshape(()))
    aligned = value.reshape(_align(value.shape, len(shape))).transpose(perm)
    wanted = [shape[axis] if at < channels else 1 for at, axis in enumerate(perm)]
    return np.broadcast_to(aligned, wanted).reshape(-1)


def _constant(rewriter: Rewriter, node: Node, stem: str, value: Array) -> str:
    return rewriter.constant(value.astype(np.float32), f"{node.output}/{stem}")


def _depthwise(rewriter: Rewriter, node: Node, x: str, factor: Array, shift: Array) -> Node:
    """A Conv that multiplies and adds per channel, with the activation of the node."""
    keys = ("activation", "min", "max")
    attrs: dict[str, Attr] = {key: node.attrs[key] for key in keys if key in node.attrs}
    w, b = (
        _constant(rewriter, node, "factor", factor.reshape(-1, 1, 1, 1)),
        _constant(rewriter, node, "shift", shift),
    )
    return Node("Conv", (x, w, b), node.outputs, {**attrs, "group": len(factor)}, node.name, node.sources)
