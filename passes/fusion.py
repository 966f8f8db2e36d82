"""Operators that are merged into their neighbours: batch normalisation, activations, sums."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import (
    ACTIVATION,
    AXES,
    AXIS,
    DILATIONS,
    FUSED_INPUT,
    GROUP,
    MAX,
    MIN,
    PADS,
    STRIDES,
)
from npuc.ops.movement import slice_index
from npuc.passes.cleanup.sink_reshapes import merge_reshapes
from npuc.passes.recognition.recognise_activations import merge_limits
from npuc.passes.recognition.recognise_batch_norm import (
    factor_and_shift,
    in_float32,
    merge_batch_norms,
    scale_and_shift,
)
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm"))


def fold_batch_norm(graph: Graph) -> Graph:
    """BatchNormalization folded into the Conv, ConvTranspose or Gemm before it, or otherwise after it.

    It is folded into the following operator only if that is exact: a Conv without padding (padding is not
    normalised), a Gemm, or a Gemm after a Reshape. All weights and statistics are constants, and the result
    between the two has one reader. A constant row that scales or shifts tokens is folded into the Gemms that read
    them. Computed in float64.
    """
    rules = (merge_batch_norms, _into_producer, _into_reader, _mix_into_reader, _row_into_products, merge_reshapes)
    return rewrite(graph, *rules)


def _into_producer(rewriter: Rewriter, node: Node) -> bool:
    """y = factor * (w x + b) + shift = (factor w) x + (factor b + shift)."""
    found = scale_and_shift(rewriter, node)
    producer = rewriter.private(node.inputs[0]) if found else None
    if found is None or producer is None or producer.op not in WEIGHTED or ACTIVATION(producer):
        return False
    parameters = _parameters(rewriter, producer)
    if parameters is None:
        return False
    (w, b), (factor, shift) = parameters, found
    if not _fits(w, factor, b * factor + shift):
        return False
    names = _store(rewriter, node.output, _scaled_outputs(producer, w, factor), b * factor + shift)
    sources = rewriter.sources(producer, node)
    inputs = (producer.inputs[0], *names)
    rewriter.replace(node, replace(producer, inputs=inputs, outputs=node.outputs, sources=sources))
    return True


def _into_reader(rewriter: Rewriter, node: Node) -> bool:
    """y = w (factor x + shift) + b = (w factor) x + (w shift + b)."""
    parameters = _parameters(rewriter, node) if node.op in ("Conv", "Gemm") else None
    if parameters is None or (node.op == "Conv" and any(PADS(node))):
        return False
    reshape = rewriter.private(node.inputs[0]) if node.op == "Gemm" else None
    flat = reshape if reshape is not None and reshape.op == "Reshape" else None
    norm = rewriter.private(flat.inputs[0] if flat else node.inputs[0])
    found = scale_and_shift(rewriter, norm) if norm else None
    if norm is None or found is None or rewriter.shape(norm.output)[0] != rewriter.shape(node.output)[0]:
        return False
    factor, shift = (_per_column(rewriter, norm.output, each) for each in found) if flat else found
    (w, b), group = parameters, GROUP(node)
    grouped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    scaled = grouped * factor.reshape(group, 1, -1, 1)
    moved = (grouped * shift.reshape(group, 1, -1, 1)).sum(axis=(2, 3)).reshape(-1)
    if not _fits(w, factor, b + moved):
        return False
    names = _store(rewriter, node.output, scaled.reshape(w.shape), b + moved)
    x = (rewriter.fresh(f"{flat.output}/unscaled"),) if flat else norm.inputs[:1]
    before = [replace(flat, inputs=norm.inputs[:1], outputs=x)] if flat else []
    sources = rewriter.sources(norm, node)
    rewriter.replace(node, *before, replace(node, inputs=(*x, *names), sources=sources))
    return True


def fold_mixtures(graph: Graph) -> Graph:
    """What only selects or mixes the few channels of an image, folded into the Conv that alone reads it.

    With padding, which is not mixed, only if nothing is added. Computed in float64.
    """
    return rewrite(graph, _mix_into_reader)


FEW_CHANNELS = 4
"""Channels of an image, whose order or mixture becomes part of the weights that read it."""


def _mix_into_reader(rewriter: Rewriter, node: Node) -> bool:
    """y = w (m x + shift) + b = (w m) x + (w shift + b): with padding only if there is no shift."""
    parameters = _parameters(rewriter, node) if node.op == "Conv" and GROUP(node) == 1 else None
    mixing = rewriter.private(node.inputs[0]) if parameters is not None else None
    found = _mixture(rewriter, mixing) if mixing is not None else None
    if parameters is None or mixing is None or found is None:
        return False
    (w, b), (matrix, shift) = parameters, found
    if max(matrix.shape) > FEW_CHANNELS or (any(PADS(node)) and shift.any()):
        return False
    mixed = np.einsum("km...,mc->kc...", w.astype(np.float64), matrix)
    moved = b + w.reshape(*w.shape[:2], -1).sum(axis=2) @ shift
    if not in_float32(mixed, moved):
        return False
    names = _store(rewriter, node.output, mixed, moved)
    sources = rewriter.sources(mixing, node)
    rewriter.replace(node, replace(node, inputs=(mixing.inputs[0], *names), sources=sources))
    return True


def _mixture(rewriter: Rewriter, node: Node) -> tuple[Array, Array] | None:
    """The matrix (outputs, inputs) and the shifts of what selects channels, or of single taps over all."""
    if not len(shape := rewriter.shape(node.inputs[0])) == len(rewriter.shape(node.output)) == 4:
        return None
    channels = np.eye(shape[1])
    if node.op == "Slice" and AXES(node) == (1,):
        found = channels[slice_index(node)[1]]
        return found, np.zeros(len(found))
    if node.op == "Gather" and AXIS(node) == 1:
        places = rewriter.constants.get(node.inputs[1])
        found = None if places is None or places.ndim != 1 else channels[places]
        return None if found is None else (found, np.zeros(len(found)))
    parameters = _parameters(rewriter, node) if node.op == "Conv" and GROUP(node) == 1 else None
    if parameters is None or ACTIVATION(node) or any(PADS(node)):
        return None
    w, b = parameters
    alone = set(w.shape[2:]) == {1} and set(STRIDES(node) or (1,)) == {1}
    return (w[..., 0, 0].astype(np.float64), b) if alone and w.ndim == 4 else None


def _row_into_products(rewriter: Rewriter, node: Node) -> bool:
    """The same for one constant row of those that scale and shift normalised tokens, whose channels are last."""
    parameters = _parameters(rewriter, node) if node.op == "Gemm" else None
    rows = rewriter.producer(node.inputs[0])
    rows = rows if rows is not None and rows.op == "Reshape" else None
    tensor = rows.inputs[0] if rows else node.inputs[0]
    step = rewriter.producer(tensor)
    found = factor_and_shift(rewriter, step, len(rewriter.shape(tensor)) - 1) if step is not None else None
    if (
        step is None
        or parameters is None
        or found is None
        or not _only_products(rewriter, tensor, parameters[0].shape[1])
    ):
        return False
    (w, b), (x, factor, shift) = parameters, found
    moved = b + w @ shift
    if not _fits(w, factor, moved):
        return False
    names = _store(rewriter, node.output, _product(w, factor), moved)
    before = [replace(rows, inputs=(x,), outputs=(rewriter.fresh(f"{rows.output}/plain"),))] if rows else []
    inputs = (before[0].output if before else x, *names)
    rewriter.replace(node, *before, replace(node, inputs=inputs, sources=rewriter.sources(step, node)))
    return True


def _only_products(rewriter: Rewriter, tensor: str, columns: int) -> bool:
    """Whether all that reads a tensor are products of its rows with constants."""
    if tensor in rewriter.outputs or rewriter.shape(tensor)[-1:] != (columns,):
        return False
    return all(
        _only_products(rewriter, each.output, columns)
        if each.op == "Reshape"
        else each.op == "Gemm" and each.inputs[0] == tensor and _parameters(rewriter, each) is not None
        for each in rewriter.readers(tensor)
    )


def _parameters(rewriter: Rewriter, node: Node) -> tuple[Array, Array] | None:
    """Weight, and bias in float64, if both are constants; an absent bias is zero."""
    w = rewriter.constants.get(node.inputs[1])
    if w is None:
        return None
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    b = rewriter.constants.get(name) if name else np.zeros(rewriter.shape(node.output)[1])
    return None if b is None else (w, b.astype(np.float64))


def _fits(w: Array, factor: Array, bias: Array) -> bool:
    """Whether the products of weights and factors, and the bias, are finite in float32."""
    return in_float32(np.abs(w).max(initial=0) * np.abs(factor), bias)


def _store(rewriter: Rewriter, stem: str, w: Array, b: Array) -> tuple[str, str]:
    weight = rewriter.constant(w.astype(np.float32, copy=False), f"{stem}/weight")
    return weight, rewriter.constant(b.astype(np.float32), f"{stem}/bias")


def _scaled_outputs(node: Node, w: Array, factor: Array) -> Array:
    """The weight in float32 with each output channel multiplied by its factor, in float64.

    Conv: (Co, Ci/group, ...), Gemm: (N, K), ConvTranspose: (Ci, Co/group, ...).
    """
    if node.op != "ConvTranspose":
        return _product(w, factor.reshape(-1, *(1 for _ in w.shape[1:])))
    group = GROUP(node)
    grouped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    return _product(grouped, factor.reshape(group, 1, -1, 1)).reshape(w.shape)


def _product(w: Array, factor: Array) -> Array:
    """Products in float64, rounded to float32 once, without a float64 array of the weight's size."""
    found = np.empty(w.shape, np.float32)
    return np.multiply(w, factor, out=found, dtype=np.float64, casting="same_kind")


def _per_column(rewriter: Rewriter, tensor: str, values: Array) -> Array:
    """One value per channel of a tensor, repeated for all elements of a flattened sample."""
    shape = rewriter.shape(tensor)
    return np.repeat(values, prod(shape[2:]))


FUSABLE = WEIGHTED | {"Add"}


def fuse_activation(graph: Graph) -> Graph:
    """Relu or Clip as the attribute `activation` of the Conv, ConvTranspose, Gemm or Add whose only reader it is.

    Several in a row are merged first. An activation after a MaxPool moves before it: both are monotonic, so they
    commute.
    """
    return rewrite(rewrite(graph, merge_limits), _fuse, _swap_with_pool)


def _fusable(rewriter: Rewriter, tensor: str) -> Node | None:
    """The tensor's producer, if an activation can become part of it."""
    producer = rewriter.private(tensor)
    if producer is None or producer.op not in FUSABLE or ACTIVATION(producer):
        return None
    return producer if only_float(rewriter, tensor) else None


def _fuse(rewriter: Rewriter, node: Node) -> bool:
    producer = _fusable(rewriter, node.inputs[0]) if node.op in ("Relu", "Clip") else None
    if producer is None:
        return False
    attrs: dict[str, Attr] = {**producer.attrs, "activation": node.op}
    attrs |= {key: node.attrs[key] for key in ("min", "max") if node.op == "Clip" and key in node.attrs}
    sources = rewriter.sources(producer, node)
    rewriter.replace(node, replace(producer, outputs=node.outputs, attrs=attrs, sources=sources))
    return True


def _swap_with_pool(rewriter: Rewriter, node: Node) -> bool:
    """Relu or Clip of a MaxPool of an operator that can absorb it."""
    pool = rewriter.private(node.inputs[0]) if node.op in ("Relu", "Clip") else None
    if pool is None or pool.op != "MaxPool" or _fusable(rewriter, pool.inputs[0]) is None:
        return False
    if max(DILATIONS(pool) or (1,)) > 1:
        return False  # all taps of a window may lie in the padding, where the limits matter
    early = rewriter.fresh(f"{pool.inputs[0]}/{node.op.lower()}")
    limited = replace(node, inputs=pool.inputs, outputs=(early,))
    rewriter.replace(node, limited, replace(pool, inputs=(early,), outputs=node.outputs))
    return True


def mark_residual_add(graph: Graph) -> Graph:
    """Add gets the attribute `fused_input`: the operand that the preceding operator can compute.

    That operand comes from a Conv, ConvTranspose or Gemm without other readers, so that it can be scheduled right
    before the Add, and has the shape of the sum (the other one may broadcast). Of two such operands the one
    computed later is marked; sums with a constant are not marked.
    """
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    nodes = [_mark(graph, node, places) if node.op == "Add" else node for node in graph.nodes]
    changed = any(new is not old for new, old in zip(nodes, graph.nodes, strict=True))
    return rebuild(graph, nodes) if changed else graph


def _mark(graph: Graph, add: Node, places: dict[str, int]) -> Node:
    found = [index for index in (0, 1) if _last_step(graph, add, index)]
    best = max(found, key=lambda index: places[add.inputs[index]], default=None)
    if FUSED_INPUT(add) == best:
        return add
    attrs = {key: value for key, value in add.attrs.items() if key != FUSED_INPUT.name}
    return replace(add, attrs=attrs if best is None else {**attrs, FUSED_INPUT.name: best})


def _last_step(graph: Graph, add: Node, index: int) -> bool:
    name, other = add.inputs[index], add.inputs[1 - index]
    producer = graph.producers.get(name)
    if producer is None or producer.op not in WEIGHTED or graph.constant(other) is not None or name == other:
        return False
    return graph.only_reader(name) is not None and graph.shape(name) == graph.shape(add.output)


def fuse_again(graph: Graph) -> Graph:
    """Fuses activations into new convolutions and sums, and marks sums that can end a new convolution."""
    return mark_residual_add(fuse_activation(graph))


def separate_clips(graph: Graph) -> Graph:
    """A fused Clip with a lower limit other than 0, or without room above it, becomes a node of its own again.

    For machines whose fused activation is a ReLU, which saturation turns into a ReLU6.
    """
    return rewrite(graph, _separate)


def _separate(rewriter: Rewriter, node: Node) -> bool:
    if ACTIVATION(node) != "Clip" or MIN(node) == 0 < MAX(node):
        return False
    limits = {key: node.attrs[key] for key in ("min", "max") if key in node.attrs}
    attrs = {key: value for key, value in node.attrs.items() if key not in ("activation", *limits)}
    free = rewriter.fresh(f"{node.output}/free")
    own = node.sources[-1:]  # fusing appended the Clip's: if the machine refuses it, the operator still runs
    clip = Node("Clip", (free,), node.outputs, limits, f"{node.name}/clip", own)
    rewriter.replace(node, replace(node, outputs=(free,), attrs=attrs), clip)
    return True
