"""Where with a constant condition, and IsNaN of what cannot be NaN.

PyTorch writes `Where(IsNaN(s), 0, s)` behind the Softmax of every attention, as a mask may remove all of a row.
"""

from __future__ import annotations

import numpy as np

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.finite import is_finite
from npuc.frontend.importers.importer import Importer, broadcast
from npuc.ir import Array

ABSORBING = 2.0**127
"""In float32, a sum with a constant of this magnitude is the constant."""


def _is_nan(node: OnnxNode, to: NodeBuilder) -> None:
    """False everywhere, if x is finite whenever the inputs are. Raises UnsupportedOperator otherwise."""
    x = node.inputs[0]
    if not is_finite(to, x):
        raise node.unsupported("its argument may be NaN", "leave out the test, or use the host", limit="finite")
    to.add_constant(node.outputs[0], np.broadcast_to(np.False_, to.shape(x)))


def _where(node: OnnxNode, to: NodeBuilder) -> None:
    """One of two tensors, or for each element the sum of both, one of them times 0.

    Raises UnsupportedOperator for a computed condition, and for an operand that may be infinite or NaN.
    """
    condition, *operands = node.inputs
    if condition not in to.constants:
        reason = "the condition is computed at run time"
        raise node.unsupported(reason, "a product with 0 and 1, or the host", limit="a constant condition")
    chosen = to.constants[condition]
    shape = broadcast(node, *map(to.shape, node.inputs))
    if chosen.all() or not chosen.any():
        _copied(node, to, operands[not chosen.all()], shape)
        return
    if any(to.types[each].dtype != "float32" or not _is_safe(to, each) for each in operands):
        reason = "an operand may be infinite or NaN, or is not float32"
        raise node.unsupported(reason, "the host", limit="finite float32")
    parts = [
        _part(node, to, each, kept, other)
        for each, kept, other in zip(operands, (chosen, ~chosen), operands[::-1], strict=True)
    ]
    to.emit(node, "Add", parts)


def _copied(node: OnnxNode, to: NodeBuilder, x: str, shape: tuple[int, ...]) -> None:
    if to.shape(x) == shape:
        to.alias(node, x)
    else:
        to.emit(node, "Expand", (x,), shape=shape)


def _is_safe(to: NodeBuilder, name: str) -> bool:
    return name in to.constants or is_finite(to, name)


def _part(node: OnnxNode, to: NodeBuilder, x: str, kept: Array, other: str) -> str:
    """x where it is kept, 0 elsewhere; x itself, if the sum with the other absorbs it there."""
    if x in to.constants:
        return to.constant(node, "part", np.where(kept, to.constants[x], np.float32(0)))
    if other in to.constants and (np.abs(to.constants[other]) >= ABSORBING).all():
        return x
    return to.emit(node, "Mul", (x, to.constant(node, "kept", kept.astype(np.float32))), ())


IMPORTERS: dict[str, Importer] = {"IsNaN": _is_nan, "Where": _where}
