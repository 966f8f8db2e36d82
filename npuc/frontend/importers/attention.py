"""Scaled dot-product attention as matrix products and a softmax.

Source: ONNX, Attention (opset 23).
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode
from npuc.frontend.finite import is_chosen, is_finite
from npuc.frozen import frozen
from npuc.ir import Array

REMEDY = "export the model with opset 22, which spells the attention out"
MASK, PAST, LENGTHS = 3, (4, 5), 6
"""The places of the optional inputs."""
WINDOW = ("left_window_size", "right_window_size")


@frozen
class _Extents:
    """Of the batch, the heads of queries and of keys, the queries and keys of a head, and a value."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    value: int


def _attention(node: OnnxNode, to: NodeBuilder) -> None:
    """softmax(scale * Q K^T + mask) V; heads that share keys are further rows of their products."""
    _expect_known(node, to)
    flat = len(to.shape(node.inputs[0])) == 3
    q, k, v = (_heads(node, to, at) for at in range(3))
    (batch, heads, queries, size), (_, groups, keys, _) = to.shape(q), to.shape(k)
    if heads % groups:
        raise node.bad(f"{heads} heads of queries and {groups} of keys", limit="a multiple")
    of = _Extents(batch, heads, groups, queries, keys, to.shape(v)[-1])
    rows = (batch, groups, heads // groups * queries)
    scale = to.constant(node, "scale", np.float32(node.attrs.get("scale", size**-0.5)))
    scaled = to.emit(node, "Mul", (q, scale), ())
    grouped = to.emit(node, "Reshape", (scaled,), (), shape=(*rows, size))
    product = to.emit(node, "MatMul", (grouped, to.emit(node, "Transpose", (k,), (), perm=(0, 1, 3, 2))), ())
    scores = to.emit(node, "Reshape", (product,), (), shape=(batch, heads, queries, keys))
    masked, kept = _mask_scores(node, to, scores, of)
    weights = to.emit(node, "Softmax", (masked,), (), axis=3)
    if kept:
        weights = to.emit(node, "Mul", (weights, kept), ())
    taken = to.emit(node, "Reshape", (weights,), (), shape=(*rows, keys))
    mixed = to.emit(node, "MatMul", (taken, v), ())
    if not flat:
        to.emit(node, "Reshape", (mixed,), shape=(batch, heads, queries, of.value))
        return
    apart = to.emit(node, "Reshape", (mixed,), (), shape=(batch, heads, queries, of.value))
    turned = to.emit(node, "Transpose", (apart,), (), perm=(0, 2, 1, 3))
    to.emit(node, "Reshape", (turned,), shape=(batch, queries, heads * of.value))


def _expect_known(node: OnnxNode, to: NodeBuilder) -> None:
    """Raises UnsupportedOperator for a cache of earlier keys, lengths of samples, and a limit of the scores."""
    if any(node.has_input(at) for at in (*PAST, LENGTHS)):
        raise node.support_error(
            "earlier keys and values, or lengths, are inputs", REMEDY, limit="Q, K, V, a mask"
        )
    if any(node.attrs.get(name, -1) != -1 for name in WINDOW):
        raise node.support_error("queries see a window of the keys", REMEDY, limit=f"{' and '.join(WINDOW)} of -1")
    if node.attrs.get("softcap"):
        raise node.support_error("the scores are limited (softcap)", REMEDY, limit="softcap = 0")
    if len({len(to.shape(name)) for name in node.inputs[:3]}) > 1 or len(to.shape(node.inputs[0])) not in (3, 4):
        raise node.bad(f"shapes {[list(to.shape(name)) for name in node.inputs[:3]]}", limit="three or four axes")


def _heads(node: OnnxNode, to: NodeBuilder, at: int) -> str:
    """Q, K or V as (batch, heads, positions, elements)."""
    name = node.inputs[at]
    shape = to.shape(name)
    if len(shape) == 4:
        return name
    count = node.attrs.get("kv_num_heads" if at else "q_num_heads") or 0
    if count < 1 or shape[2] % count:
        raise node.bad(f"{count} heads of {shape[2]} elements", tensor=name)
    apart = to.emit(node, "Reshape", (name,), (), shape=(*shape[:2], count, shape[2] // count))
    return to.emit(node, "Transpose", (apart,), (), perm=(0, 2, 1, 3))


def _mask_scores(node: OnnxNode, to: NodeBuilder, scores: str, of: _Extents) -> tuple[str, str]:
    """The scores plus the masks, where -inf removes a key; and 0 for queries without any key, 1 for others, or "".

    Raises UnsupportedOperator for a constant mask that leaves a query no key: its result is 0, where a Softmax
    gives NaN. Raises E106 for a computed mask, unless it is finite or `prepare_mask`.
    """
    mask = np.zeros((of.queries, of.keys), np.float32)
    if node.has_input(MASK):
        name = node.inputs[MASK]
        if to.shape(name)[-1:] != (of.keys,):
            raise node.support_error(
                f"a mask {list(to.shape(name))} for {of.keys} keys", REMEDY, limit="a value per key"
            )
        finite, kept = to.masks.get(name, (name, ""))
        known = name in to.masks or is_chosen(to, name) or is_finite(to, name)
        if name not in to.constants and known and not node.attrs.get("is_causal"):
            return to.emit(node, "Add", (scores, finite), ()), kept
        given = to.value(node, MASK)
        mask = mask + (_removing(given) if given.dtype == bool else given)
    if node.attrs.get("is_causal"):
        if of.queries != of.keys:
            reason = f"{of.queries} queries and {of.keys} keys with is_causal"
            raise node.support_error(reason, REMEDY, limit="as many")
        mask = mask + _removing(np.tri(of.queries, dtype=bool))
    if np.isneginf(mask).all(axis=-1).any():
        raise node.support_error("the mask leaves a query no key", REMEDY)
    return (to.emit(node, "Add", (scores, to.constant(node, "mask", mask)), ()) if mask.any() else scores), ""


def prepare_mask(proto: NodeProto, to: NodeBuilder) -> list[NodeProto]:
    """Nodes that prepare a computed mask of booleans, recorded in `to.masks`; none if there is no such mask.

    They give 0 or the least number for every key, and 1 or 0 for each query: whether it has any key.
    """
    name = proto.input[MASK] if proto.op_type == "Attention" and len(proto.input) > MASK else ""
    if name in to.constants or name in to.masks or name not in to.types or to.types[name].dtype != "bool":
        return []
    zero, least, last, finite, numbers, kept = (
        to.fresh(f"{name}/{stem}") for stem in ("zero", "least", "last", "finite", "numbers", "kept")
    )
    values = {zero: np.float32(0), least: np.finfo(np.float32).min, last: np.array([-1])}
    for each, value in values.items():
        to.add_constant(each, value)
    to.masks[name] = finite, kept
    return [
        helper.make_node("Where", [name, zero, least], [finite]),
        helper.make_node("Cast", [name], [numbers], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", [numbers, last], [kept], keepdims=1),
    ]


def _removing(kept: Array) -> Array:
    return np.where(kept, np.float32(0), np.float32(-np.inf))


IMPORTERS: dict[str, Importer] = {"Attention": _attention}
