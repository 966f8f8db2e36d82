"""Operators that onnxruntime's optimiser writes, as the ONNX operators that they stand for.

Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode
from npuc.frontend.importers import elementwise, movement, products, reduction, windows
from npuc.frontend.plain_forms import ACTIVATIONS
from npuc.frontend.signatures import signature
from npuc.ir import Array

OPSET = 23
"""The opset of the forms that nodes are written in."""
FORMS: dict[str, Importer] = {
    **elementwise.IMPORTERS,
    **products.IMPORTERS,
    **movement.IMPORTERS,
    **reduction.IMPORTERS,
    **windows.IMPORTERS,
}


def _step(
    node: OnnxNode, to: NodeBuilder, op: str, inputs: Sequence[str], output: str | None = None, **given: Any
) -> str:
    """Imports an ONNX node that is a part of this one; returns its output: a new tensor unless it is named."""
    found = signature(op, OPSET)
    assert found is not None
    name = output or to.fresh(f"{node.outputs[0]}/{op.lower()}")
    own = node.name if output else to.node_name(f"{node.name}/{op}")
    attrs = {**found.defaults, **given}
    FORMS[op](OnnxNode(own, op, tuple(inputs), (name,), attrs, OPSET, node.source), to)
    return to.aliases.get(name, name)


def _optional(node: OnnxNode, index: int) -> str:
    """An optional input; empty if it is absent."""
    return node.inputs[index] if node.has_input(index) else ""


def _bias_gelu(node: OnnxNode, to: NodeBuilder) -> None:
    """Gelu of the input, and of its sum with a bias if there is one."""
    x = _step(node, to, "Add", node.inputs) if node.has_input(1) else node.inputs[0]
    _step(node, to, "Gelu", (x,), node.outputs[0], approximate="tanh" if node.op == "FastGelu" else "none")


def _quick_gelu(node: OnnxNode, to: NodeBuilder) -> None:
    """x * Sigmoid(alpha * x)."""
    to.emit(node, "Swish", node.inputs, alpha=node.attrs["alpha"])


def _rms_norm(node: OnnxNode, to: NodeBuilder) -> None:
    given = {key: node.attrs[key] for key in ("axis", "epsilon")}
    _step(node, to, "RMSNormalization", node.inputs, node.outputs[0], **given)


def _skip_normalization(node: OnnxNode, to: NodeBuilder) -> None:
    """Sum of input, skip and bias, which may be an output too, then a normalisation of the last axis."""
    simple = node.op == "SkipSimplifiedLayerNormalization"
    bias = _optional(node, 3 if simple else 4)
    whole = (node.outputs[3] if len(node.outputs) > 3 else "") or None
    total = _step(node, to, "Add", node.inputs[:2], None if bias else whole)
    if bias:
        total = _step(node, to, "Add", (total, bias), whole)
    _normalise(node, to, total, (node.inputs[2], "" if simple else _optional(node, 3)), simple=simple)


def _normalise(node: OnnxNode, to: NodeBuilder, x: str, weights: Sequence[str], *, simple: bool = False) -> None:
    op, inputs = ("RMSNormalization", weights[:1]) if simple else ("LayerNormalization", weights)
    _step(node, to, op, (x, *inputs), node.outputs[0], axis=-1, epsilon=node.attrs["epsilon"])


def _embed_normalization(node: OnnxNode, to: NodeBuilder) -> None:
    """Sum of the embeddings of words, positions and segments, then a normalisation of the last axis."""
    words, segments, word, position, segment, gamma, beta, *_ = (*node.inputs, "", "")
    steps = np.arange(to.shape(words)[1])[None]
    at = node.inputs[8] if node.has_input(8) else to.constant(node, "positions", steps)
    whole = (node.outputs[2] if len(node.outputs) > 2 else "") or None
    parts = [_step(node, to, "Gather", (table, of), axis=0) for table, of in ((word, words), (position, at))]
    total = _step(node, to, "Add", parts, None if segments else whole)
    if segments:
        total = _step(node, to, "Add", (total, _step(node, to, "Gather", (segment, segments), axis=0)), whole)
    _normalise(node, to, total, (gamma, beta))


def _fused_conv(node: OnnxNode, to: NodeBuilder) -> None:
    """A convolution, a sum with another tensor, and a Clip; the last two are optional."""
    x, w, bias, other = (_optional(node, at) for at in range(4))
    given = {key: each for key, each in node.attrs.items() if not key.startswith("activation")}
    if to.types[x].dtype != "float32":
        raise node.support_error(f"an input of {to.types[x].dtype}", "convert the model to float32")
    op, limits = node.attrs["activation"], node.attrs["activation_params"]
    if op and (op != "Clip" or len(limits) != 2):
        _unknown(node, to)
    found = _step(node, to, "Conv", (x, w, bias), None if op or other else node.outputs[0], **given)
    if other:
        found = _step(node, to, "Add", (found, other), None if op else node.outputs[0])
    if op:
        to.emit(node, "Clip", (found,), min=float(limits[0]), max=float(limits[1]))


def _unknown(node: OnnxNode, _: NodeBuilder) -> None:
    """Refuses an activation that npuc.frontend.plain_forms leaves in its node."""
    limit, op = ", ".join((*ACTIVATIONS, "Clip")), node.attrs["activation"]
    raise node.support_error(f"the activation {op!r}", "write it as a node", limit=limit)


def _fused_matmul(node: OnnxNode, to: NodeBuilder) -> None:
    """alpha times a product of matrices, whose axes may come in another order."""
    operands = [_order_axes(node, to, at) for at in range(2)]
    alpha = node.attrs["alpha"]
    found = _step(node, to, "MatMul", operands, node.outputs[0] if alpha == 1 else None)
    if alpha != 1:
        _step(node, to, "Mul", (found, to.constant(node, "alpha", np.float32(alpha))), node.outputs[0])


def _order_axes(node: OnnxNode, to: NodeBuilder, at: int) -> str:
    """An operand with batches first: transBatch has the first axis behind them, trans swaps the last two."""
    name = node.inputs[at]
    rank, letter = len(to.shape(name)), "AB"[at]
    if rank < 2:
        return name
    perm = list(range(rank))
    if node.attrs[f"transBatch{letter}"]:
        if rank < 3:
            raise node.bad(f"transBatch{letter} of {rank} dimensions", tensor=name, limit="at least 3")
        perm = [*perm[1:-1], 0, rank - 1]
    if node.attrs[f"trans{letter}"]:
        perm[-2:] = perm[:-3:-1]
    return name if perm == sorted(perm) else _step(node, to, "Transpose", (name,), perm=tuple(perm))


def _matmul_nbits(node: OnnxNode, to: NodeBuilder) -> None:
    """A product with weights of 2, 4 or 8 bits, in blocks along K with scales and zero points of their own."""
    bits, block, kernels, depth = (node.attrs[key] for key in ("bits", "block_size", "N", "K"))
    if node.has_input(4):
        raise node.support_error("an order of groups (g_idx)", "quantise without act_order")
    if bits not in (2, 4, 8) or block < 1:
        raise node.support_error(
            f"weights of {bits} bits in blocks of {block}", "quantise to 4 bits", limit="2, 4 or 8"
        )
    blocks = -(-depth // block)
    packed, scales = to.value(node, 1), to.value(node, 2)
    try:
        q = _unpack_bits(packed.reshape(kernels * blocks, -1), bits)[:, :block].reshape(kernels, blocks, block)
        zero: Array = np.full((1, 1, 1), 1 << bits - 1, np.float32)
        if node.has_input(3):
            given = to.value(node, 3).reshape(kernels, -1)
            zero = (_unpack_bits(given, bits)[:, :blocks] if given.dtype == np.uint8 else given)[..., None]
        w = (q.astype(np.float32) - zero) * scales.reshape(kernels, blocks, 1).astype(np.float32)
    except ValueError as error:
        raise node.bad(f"weights of N = {kernels}, K = {depth} in blocks of {block}: {error}") from error
    turned = to.constant(
        node, "weights", np.ascontiguousarray(w.reshape(kernels, -1)[:, :depth].T.astype(np.float32))
    )
    bias = _optional(node, 5)
    found = _step(node, to, "MatMul", (node.inputs[0], turned), None if bias else node.outputs[0])
    if bias:
        _step(node, to, "Add", (found, bias), node.outputs[0])


def _unpack_bits(values: Array, bits: int) -> Array:
    """Numbers of so many bits, the lowest of each byte first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (values[..., None] >> shifts & (1 << bits) - 1).reshape(*values.shape[:-1], -1)


def _rotary(node: OnnxNode, to: NodeBuilder) -> None:
    """Pairs of a head's elements turned by the angles of their position; the rest of the head stays."""
    x, shape = node.inputs[0], to.shape(node.inputs[0])
    fused = "scale" in node.attrs
    if fused and (node.attrs["scale"] != 1 or node.attrs["is_packed_batching"]):
        raise node.support_error("scale or is_packed_batching", "leave them at their defaults")
    cos, sin = (to.value(node, at) for at in ((2, 3) if fused else (1, 2)))
    half, heads = cos.shape[-1], node.attrs["num_heads"]
    turned = node.attrs["rotary_embedding_dim"] or 2 * half
    if len(shape) == 3:
        size = shape[2] // heads if heads else 2 * half
        heads_last = _reshape(node, to, x, (*shape[:2], shape[2] // size, size))
        x = _step(node, to, "Transpose", (heads_last,), perm=(0, 2, 1, 3))
    batch, count, steps, size = to.shape(x)
    if fused or node.has_input(3):
        positions = to.value(node, 1 if fused else 3)
        at = positions.reshape(-1) + np.arange(steps) if fused and positions.size == 1 else positions
        if at.min(initial=0) < 0 or at.max(initial=0) >= len(cos):
            raise node.bad(f"a position outside 0..{len(cos) - 1}")
        cos, sin = cos[at], sin[at]
    if turned != 2 * half or turned > size or cos.shape != sin.shape or cos.shape[-2:-1] != (steps,):
        raise node.bad(f"angles {list(cos.shape)} and {list(sin.shape)} for {steps} steps of heads of {size}")
    angles = [np.broadcast_to(each, (batch, steps, half))[:, None] for each in (cos, sin)]
    if (angles[0] == angles[0][:1]).all() and (angles[1] == angles[1][:1]).all():
        angles = [each[:1] for each in angles]
    c, s = (to.constant(node, stem, each) for stem, each in zip(("cos", "sin"), angles, strict=True))

    def part(begin: int, end: int, step: int = 1) -> str:
        return to.emit(node, "Slice", (x,), (), axes=(3,), starts=(begin,), ends=(end,), steps=(step,))

    mixed = node.attrs["interleaved"]
    a, b = (part(0, turned, 2), part(1, turned, 2)) if mixed else (part(0, half), part(half, turned))

    def product(one: str, other: str) -> str:
        return to.emit(node, "Mul", (one, other), ())

    pair = [
        to.emit(node, "Sub", (product(a, c), product(b, s)), ()),
        to.emit(node, "Add", (product(a, s), product(b, c)), ()),
    ]
    if mixed:
        apart = [_reshape(node, to, each, (batch, count, steps, half, 1)) for each in pair]
        pair = [_reshape(node, to, to.emit(node, "Concat", apart, (), axis=4), (batch, count, steps, turned))]
    rest = [part(turned, size)] if turned < size else []
    whole = len(shape) == 4
    parts = [*pair, *rest]
    found = to.emit(node, "Concat", parts, None if whole else (), axis=3) if len(parts) > 1 else parts[0]
    if not whole:
        back = to.emit(node, "Transpose", (found,), (), perm=(0, 2, 1, 3))
        to.emit(node, "Reshape", (back,), shape=shape)
    elif len(parts) == 1:
        to.alias(node, found)


def _reshape(node: OnnxNode, to: NodeBuilder, x: str, shape: tuple[int, ...]) -> str:
    return to.emit(node, "Reshape", (x,), (), shape=shape)


IMPORTERS: dict[str, Importer] = {
    **dict.fromkeys(("BiasGelu", "FastGelu"), _bias_gelu),
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _rms_norm,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_normalization),
    "EmbedLayerNormalization": _embed_normalization,
    "FusedConv": _fused_conv,
    "FusedGemm": _unknown,
    "FusedMatMul": _fused_matmul,
    "MatMulNBits": _matmul_nbits,
    "RotaryEmbedding": _rotary,
}
