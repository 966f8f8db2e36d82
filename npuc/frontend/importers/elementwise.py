"""Activations, and operators of two or more tensors with broadcasting."""

from __future__ import annotations

import math

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode, same


def _clip(node: OnnxNode, to: NodeBuilder) -> None:
    """Bounds are attributes before opset 11 and inputs since; computed ones become Max and Min."""
    if node.opset < 11:
        to.emit(node, "Clip", node.inputs, min=node.attrs["min"], max=node.attrs["max"])
        return
    present = [index for index in (1, 2) if node.has_input(index)]
    if all(node.inputs[index] in to.constants for index in present):
        bounds = {1: -math.inf, 2: math.inf, **{index: to.scalar(node, index) for index in present}}
        to.emit(node, "Clip", node.inputs[:1], min=float(bounds[1]), max=float(bounds[2]))
        return
    x = node.inputs[0]
    for index in present:
        last = None if index == present[-1] else ()
        x = to.emit(node, "Max" if index == 1 else "Min", (x, node.inputs[index]), last)


def _selu(node: OnnxNode, to: NodeBuilder) -> None:
    """gamma * Elu(x, alpha)."""
    inner = to.emit(node, "Elu", node.inputs, (), alpha=node.attrs["alpha"])
    gamma = to.constant(node, "gamma", np.float32(node.attrs["gamma"]))
    to.emit(node, "Mul", (inner, gamma))


def _celu(node: OnnxNode, to: NodeBuilder) -> None:
    """alpha * Elu(x / alpha, 1), which needs a positive alpha."""
    alpha = node.attrs["alpha"]
    if not alpha > 0:
        raise node.support_error(f"alpha is {alpha:g}", "give a positive alpha", limit="above 0")
    shrunk = to.emit(node, "Mul", (node.inputs[0], to.constant(node, "factor", np.float32(1 / alpha))), ())
    inner = to.emit(node, "Elu", (shrunk,), (), alpha=1.0)
    to.emit(node, "Mul", (inner, to.constant(node, "alpha", np.float32(alpha))))


def _identity(node: OnnxNode, to: NodeBuilder) -> None:
    to.alias(node, node.inputs[0])


def _dropout(node: OnnxNode, to: NodeBuilder) -> None:
    """The input itself; refused in training mode with a ratio other than 0, and if the mask is read."""
    trains = node.has_input(2) and to.value(node, 2).any()
    if trains and (not node.has_input(1) or to.scalar(node, 1) != 0):
        raise node.support_error("training mode", "export the model in inference mode", limit="inference")
    to.alias(node, node.inputs[0])


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
        raise node.constant_error("integers are divided by 0", node.inputs[1], "divisors other than 0")
    to.emit(node, "Div", node.inputs)


IMPORTERS: dict[str, Importer] = {
    **dict.fromkeys(
        ("Relu", "Abs", "Neg", "Sigmoid", "HardSwish", "Tanh", "Mish", "Softplus", "Softsign", "PRelu"), same()
    ),
    **dict.fromkeys(("Exp", "Log", "Erf", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round"), same()),
    "LeakyRelu": same("alpha"),
    "Elu": same("alpha"),
    "HardSigmoid": same("alpha", "beta"),
    "Swish": same("alpha"),
    "Gelu": same("approximate"),
    "Clip": _clip,
    "Selu": _selu,
    "Celu": _celu,
    "Identity": _identity,
    "Dropout": _dropout,
    **dict.fromkeys(("Add", "Sub", "Mul", "Pow"), same()),
    "Div": _div,
    "Sum": _many("Add"),
    "Max": _many("Max"),
    "Min": _many("Min"),
    "Mean": _mean,
}
