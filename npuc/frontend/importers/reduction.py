"""Reductions, normalised exponentials, and the normalisations."""

from __future__ import annotations

from math import prod

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode, broadcast, same

TRAINING_MODE = 14
"""The opset that introduced the attribute."""


def _batch_normalization(node: OnnxNode, to: NodeBuilder) -> None:
    """Inference only, statistics per channel. Before opset 14, more than one output means training."""
    if node.attrs.get("training_mode") or (node.opset < TRAINING_MODE and len(node.outputs) > 1):
        raise node.support_error("training mode", "export the model in inference mode", limit="inference")
    if not node.attrs.get("spatial", 1):
        raise node.support_error(
            "statistics per activation (spatial = 0)", "export statistics per channel", limit="spatial = 1"
        )
    to.emit(node, "BatchNormalization", node.inputs, epsilon=node.attrs["epsilon"])


def _standardise(node: OnnxNode, to: NodeBuilder, x: str, axes: tuple[int, ...]) -> str:
    """x minus its mean, divided by the root of its variance plus epsilon."""
    mean = to.emit(node, "ReduceMean", (x,), (), axes=axes, keepdims=1)
    centred = to.emit(node, "Sub", (x, mean), ())
    square = to.emit(node, "Mul", (centred, centred), ())
    variance = to.emit(node, "ReduceMean", (square,), (), axes=axes, keepdims=1)
    epsilon = to.constant(node, "epsilon", np.float32(node.attrs["epsilon"]))
    deviation = to.emit(node, "Sqrt", (to.emit(node, "Add", (variance, epsilon), ()),), ())
    return to.emit(node, "Div", (centred, deviation), ())


def _layer_normalization(node: OnnxNode, to: NodeBuilder) -> None:
    """Normalised over all axes from `axis` on, then scaled and shifted element by element."""
    x, scale = node.inputs[:2]
    shape = to.shape(x)
    axes = tuple(range(node.axis(node.attrs["axis"], len(shape)), len(shape)))
    for index, each in enumerate(node.inputs[1:], start=1):
        if node.has_input(index) and broadcast(node, to.shape(each), shape) != shape:
            raise node.bad(f"shape {list(to.shape(each))} does not broadcast to {list(shape)}", tensor=each)
    normal = _standardise(node, to, x, axes)
    if node.has_input(2):
        to.emit(node, "Add", (to.emit(node, "Mul", (normal, scale), ()), node.inputs[2]))
    else:
        to.emit(node, "Mul", (normal, scale))


def _rms_normalization(node: OnnxNode, to: NodeBuilder) -> None:
    """Divided by the root mean square over all axes from `axis` on, then scaled element by element."""
    x, scale = node.inputs
    shape = to.shape(x)
    axes = tuple(range(node.axis(node.attrs["axis"], len(shape)), len(shape)))
    if broadcast(node, to.shape(scale), shape) != shape:
        raise node.bad(f"shape {list(to.shape(scale))} does not broadcast to {list(shape)}", tensor=scale)
    square = to.emit(node, "Mul", (x, x), ())
    mean = to.emit(node, "ReduceMean", (square,), (), axes=axes, keepdims=1)
    epsilon = to.constant(node, "epsilon", np.float32(node.attrs["epsilon"]))
    root = to.emit(node, "Sqrt", (to.emit(node, "Add", (mean, epsilon), ()),), ())
    to.emit(node, "Mul", (to.emit(node, "Div", (x, root), ()), scale))


def _group_normalization(node: OnnxNode, to: NodeBuilder) -> None:
    """Normalised per group of channels, then scaled and shifted per channel (before opset 21 per group)."""
    x, scale, bias = node.inputs
    shape, groups = to.shape(x), node.attrs["num_groups"]
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise node.bad(f"{groups} groups of an input of shape {list(shape)}", tensor=x)
    grouped = to.emit(node, "Reshape", (x,), (), shape=(shape[0], groups, -(-prod(shape[1:]) // groups)))
    normal = _standardise(node, to, grouped, (2,))
    per_channel = to.shape(scale) == (shape[1],)
    apart = (shape[1], *(1 for _ in shape[2:])) if per_channel else (groups, 1)
    if per_channel:
        normal = to.emit(node, "Reshape", (normal,), (), shape=shape)
    columns = [to.emit(node, "Reshape", (each,), (), shape=apart) for each in (scale, bias)]
    scaled = to.emit(node, "Mul", (normal, columns[0]), ())
    if per_channel:
        to.emit(node, "Add", (scaled, columns[1]))
    else:
        to.emit(node, "Reshape", (to.emit(node, "Add", (scaled, columns[1]), ()),), shape=shape)


def _scaler(node: OnnxNode, to: NodeBuilder) -> None:
    """(x - offset) * scale, by one number or by one per feature; x is (features,) or (N, features)."""
    (x,) = node.inputs
    shape, numbers = to.shape(x), {key: np.array(node.attrs.get(key, ()), "f") for key in ("offset", "scale")}
    if len(shape) not in (1, 2):
        limit, remedy = "(features,) or (N, features)", "write it as Sub and Mul"
        raise node.support_error(f"an input of shape {list(shape)}", remedy, limit=limit)
    if any(each.size not in (1, shape[-1]) for each in numbers.values()):
        raise node.bad(f"offset and scale of {shape[-1]} features", tensor=x, limit=f"1 or {shape[-1]} numbers")
    offset, scale = (to.constant(node, key, each) for key, each in numbers.items())
    to.emit(node, "Mul", (to.emit(node, "Sub", (x, offset), ()), scale))


def _axes(node: OnnxNode, to: NodeBuilder) -> tuple[int, ...]:
    """The axes: an attribute, or an input since opset 18 (ReduceSum 13); if absent, all or none."""
    rank = len(to.shape(node.inputs[0]))
    given = to.integers(node, 1) if node.has_input(1) else node.attrs.get("axes") or ()
    if given or node.attrs.get("noop_with_empty_axes"):
        return tuple(sorted(node.axes(given, rank)))
    return tuple(range(rank))


def _reduce(node: OnnxNode, to: NodeBuilder) -> None:
    axes = _axes(node, to)
    if axes:
        to.emit(node, node.op, node.inputs[:1], axes=axes, keepdims=node.attrs["keepdims"])
    else:
        to.alias(node, node.inputs[0])


def _norm(node: OnnxNode, to: NodeBuilder) -> None:
    """ReduceL1, ReduceL2 and ReduceSumSquare: a sum of absolute values or squares, and its root."""
    x, axes = node.inputs[0], _axes(node, to)
    powers = to.emit(node, "Abs", (x,), ()) if node.op == "ReduceL1" else to.emit(node, "Mul", (x, x), ())
    rooted, keep = node.op == "ReduceL2", node.attrs["keepdims"]
    total = to.emit(node, "ReduceSum", (powers,), () if rooted else None, axes=axes, keepdims=keep)
    if rooted:
        to.emit(node, "Sqrt", (total,))


def _softmax(node: OnnxNode, to: NodeBuilder) -> None:
    """Before opset 13 the axes from `axis` on count as one: Reshapes express this where it matters."""
    shape = to.shape(node.inputs[0])
    axis = node.axis(node.attrs["axis"], len(shape))
    if node.opset >= 13 or prod(shape[axis + 1 :]) == 1:
        to.emit(node, node.op, node.inputs, axis=axis)
        return
    matrix = (prod(shape[:axis]), prod(shape[axis:]))
    flat = to.emit(node, "Reshape", node.inputs, (), shape=matrix)
    normal = to.emit(node, node.op, (flat,), (), axis=1)
    to.emit(node, "Reshape", (normal,), shape=shape)


def _arg_max(node: OnnxNode, to: NodeBuilder) -> None:
    axis = node.axis(node.attrs["axis"], len(to.shape(node.inputs[0])))
    last = node.attrs.get("select_last_index", 0)
    keep, x = node.attrs["keepdims"], node.inputs[0]
    if node.op == "ArgMin":
        x = to.emit(node, "Neg", (x,), ())
    to.emit(node, "ArgMax", (x,), axis=axis, keepdims=keep, select_last_index=last)


IMPORTERS: dict[str, Importer] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": same("epsilon"),
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "GroupNormalization": _group_normalization,
    "Scaler": _scaler,
    "LRN": same("alpha", "beta", "bias", "size"),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _norm),
    "ArgMax": _arg_max,
    "ArgMin": _arg_max,
}
