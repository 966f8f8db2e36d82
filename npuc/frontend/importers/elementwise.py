"""Operators of two or more tensors with broadcasting."""

from __future__ import annotations

import numpy as np

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer, same


def _chain(node: OnnxNode, to: NodeBuilder, op: str, outputs: tuple[str, ...] | None) -> str:
    """x0 op x1 op x2 ...; the last node writes `outputs` as in Builder.emit."""
    x, *others = node.inputs
    for index, each in enumerate(others):
        x = to.emit(node, op, (x, each), outputs if index == len(others) - 1 else ())
    return x


def _many(op: str) -> Importer:
    """Importer of an operator that takes any number of inputs."""

    def importer(node: OnnxNode, to: NodeBuilder) -> None:
        if len(node.inputs) == 1:
            to.alias(node, node.inputs[0])
        else:
            _chain(node, to, op, None)

    return importer


def _mean(node: OnnxNode, to: NodeBuilder) -> None:
    """The sum times 1 / n."""
    if len(node.inputs) == 1:
        to.alias(node, node.inputs[0])
        return
    total = _chain(node, to, "Add", ())
    to.emit(node, "Mul", (total, to.constant(node, "share", np.float32(1 / len(node.inputs)))))


def _div(node: OnnxNode, to: NodeBuilder) -> None:
    divisor = to.constants.get(node.inputs[1])
    if divisor is not None and divisor.dtype.kind in "iu" and not divisor.all():
        raise node.undefined("integers are divided by 0", node.inputs[1], "divisors other than 0")
    to.emit(node, "Div", node.inputs)


IMPORTERS: dict[str, Importer] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Pow"), same()),
    "Div": _div,
    "Sum": _many("Add"),
    "Max": _many("Max"),
    "Min": _many("Min"),
    "Mean": _mean,
}
