"""Host steps as the C driver computes them: operators along one axis, and copies between strided tensors.

All data movement is by copies: pieces of contiguous bytes along axes with a pitch in either tensor, like numpy's
views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import prod

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.frozen import frozen
from npuc.host.copies import MOVES, Copy, copy_between
from npuc.host.step import CONSTANT, HostStep, consistent
from npuc.ir import Node, TensorType
from npuc.ops import OPS

AXES = 6
"""NPUC_AXES of npuc_driver.h: the most axes of a copy after neighbouring axes are merged."""


FRAME = "Frame"
"""The step that makes int8 of uint8: every byte less 128."""


@frozen
class HostCall:
    """One call of an operator of npuc_host.c, from one tensor to another.

    shape: elements before, along and after the operator's axis; numbers: values by the name of their struct
    member.
    """

    step: HostStep
    name: str
    source: str
    target: str
    shape: tuple[int, int, int] = (1, 1, 1)
    copy: Copy | None = None
    numbers: Mapping[str, int | float] = field(default_factory=dict[str, int | float])


def operations(step: HostStep, types: dict[str, TensorType]) -> list[HostCall]:
    """The calls that compute a host step; the types of its outputs are added to `types`.

    Raises UnsupportedOperator (E202) for what the C driver does not compute, ArtefactError (E502) for a step that
    contradicts itself or the tensors there are.
    """
    with consistent(step):
        return _operations(step, types)


def _operations(step: HostStep, types: dict[str, TensorType]) -> list[HostCall]:
    if step.op == CONSTANT:
        return [_given(step, types)]
    if step.op not in MOVES and step.op not in COMPUTES:
        raise _refused(step, f"the operator {step.op}")
    for name, found in zip(step.outputs, _result_types(step, types), strict=True):
        types[name] = found
    if step.op in MOVES:
        return _copies(step, types)
    x = types[step.inputs[0]]
    if x.dtype != {"DequantizeLinear": "int8", FRAME: "uint8"}.get(step.op, "float32"):
        raise _refused(step, f"an element type of {x.dtype}", step.inputs[0])
    if step.op == "QuantizeLinear" and step.attrs.get("dtype", "int8") != "int8":
        raise _refused(step, f"an element type of {step.attrs['dtype']}", step.outputs[0])
    rule = COMPUTES[step.op]
    return [rule(step, x.shape)]


def _given(step: HostStep, types: dict[str, TensorType]) -> HostCall:
    """The copy of a constant to the step's output; the constant is a tensor named after it."""
    (name,) = step.outputs
    source = f"{name}/{CONSTANT}"
    types[source] = types[name] = TensorType(tuple(step.attrs["shape"]), step.attrs["dtype"])
    return HostCall(step, "npuc_copy", source, name, copy=Copy(types[name].bytes, 0, 0, ()))


def _refused(step: HostStep, reason: str, tensor: str | None = None) -> UnsupportedOperator:
    return UnsupportedOperator(
        "E202",
        f"the C driver has no such host step: {reason}",
        node=step.node,
        op=step.op,
        tensor=tensor,
        limit=f"{', '.join([*COMPUTES, *MOVES, CONSTANT])}; float32, at most {AXES} axes",
        remedy="end the network before it and compute it in the application",
    )


def _result_types(step: HostStep, types: Mapping[str, TensorType]) -> Sequence[TensorType]:
    x = types[step.inputs[0]]
    if step.op in ("QuantizeLinear", "DequantizeLinear", FRAME):
        return [TensorType(x.shape, "float32" if step.op == "DequantizeLinear" else "int8")]
    node = Node(step.op, step.inputs, step.outputs, step.attrs, step.node)
    found = OPS[step.op].typed(node, [TensorType(types[name].shape) for name in step.inputs])
    return [each if each.dtype != "float32" else TensorType(each.shape, x.dtype) for each in found]


def _along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _quantisation(step: HostStep, shape: Sequence[int]) -> HostCall:
    name = {"QuantizeLinear": "npuc_quantize", "DequantizeLinear": "npuc_dequantize"}[step.op]
    numbers = {"scale": float(step.attrs["scale"]), "zero": float(step.attrs.get("zero_point", 0))}
    return HostCall(step, name, step.inputs[0], step.outputs[0], (1, prod(shape), 1), numbers=numbers)


def _frame(step: HostStep, shape: Sequence[int]) -> HostCall:
    return HostCall(step, "npuc_frame", step.inputs[0], step.outputs[0], (1, prod(shape), 1))


def _normalised(step: HostStep, shape: Sequence[int]) -> HostCall:
    name = {"Softmax": "npuc_softmax", "LogSoftmax": "npuc_log_softmax"}[step.op]
    return HostCall(step, name, step.inputs[0], step.outputs[0], _along(shape, step.attrs["axis"]))


def _arg_max(step: HostStep, shape: Sequence[int]) -> HostCall:
    name = "npuc_argmax_last" if step.attrs.get("select_last_index") else "npuc_argmax"
    return HostCall(step, name, step.inputs[0], step.outputs[0], _along(shape, step.attrs["axis"]))


def _lrn(step: HostStep, shape: Sequence[int]) -> HostCall:
    attrs, size = step.attrs, step.attrs["size"]
    numbers = {
        "before": (size - 1) // 2,
        "after": size // 2,
        "factor": attrs.get("alpha", 1e-4) / size,
        "beta": attrs.get("beta", 0.75),
        "bias": attrs.get("bias", 1.0),
    }
    return HostCall(step, "npuc_lrn", step.inputs[0], step.outputs[0], _along(shape, 1), numbers=numbers)


COMPUTES: Mapping[str, Callable[[HostStep, Sequence[int]], HostCall]] = {
    "QuantizeLinear": _quantisation,
    "DequantizeLinear": _quantisation,
    FRAME: _frame,
    "Softmax": _normalised,
    "LogSoftmax": _normalised,
    "ArgMax": _arg_max,
    "LRN": _lrn,
}


def _copies(step: HostStep, types: Mapping[str, TensorType]) -> list[HostCall]:
    """One copy for every pair of an input and an output that share elements."""
    inputs, outputs = (
        {name: np.empty(types[name].shape, types[name].dtype) for name in names}
        for names in (step.inputs, step.outputs)
    )
    operands = [inputs[name] for name in step.inputs]
    node = Node(step.op, step.inputs, step.outputs, step.attrs, step.node)
    pairs = MOVES[step.op](node, operands, list(outputs.values()))
    found: list[HostCall] = []
    for position, (source, target) in enumerate(pairs):
        if source.size == 0:
            continue
        x = step.inputs[min(position, len(step.inputs) - 1)]
        y = step.outputs[min(position, len(step.outputs) - 1)]
        copy = copy_between(source, inputs[x], target, outputs[y])
        if len(copy.axes) > AXES:
            raise _refused(step, f"{len(copy.axes)} axes that cannot be merged", x)
        found.append(HostCall(step, "npuc_copy", x, y, copy=copy))
    return found
