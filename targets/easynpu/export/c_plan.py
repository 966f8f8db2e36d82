"""A program as the C driver needs it: its actions in order, and the places of the host's tensors.

Tensors that are neither inputs nor outputs share an arena, in which each exists from its first writer to its last
reader. A copy that preserves the order of all elements is left out where both tensors can share memory.

All data movement is by copies: pieces of contiguous bytes along axes with a pitch in either tensor, like numpy's
views. Other host steps are operators along one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate, peak
from npuc.host.copies import MOVES, Copy, copy_between
from npuc.host.step import CONSTANT, HostStep, consistent, less_128
from npuc.ir import Array, Node, TensorType
from npuc.ops import OPS
from npuc.program import Program
from npuc.storage.records import damage_error
from npuc.targets.easynpu.program.artefact import Contents, Segment, TensorMove

ALIGNMENT = 8
"""Alignment in bytes for the largest element type; the driver itself needs none."""
ELEMENTS = ("int8", "uint8", "int64", "float32")
"""Element types of inputs, outputs and constants."""
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


Action = Segment | HostCall


@frozen
class DriverPlan:
    """The driver's actions, and its tensors in order of appearance.

    storage: for every tensor, the tensor whose memory it uses, often its own; addresses: of those in the arena;
    constants: values of those that the program contains; scales: scale and zero point of inputs and outputs that
    are int8 on the machine.
    """

    actions: tuple[Action, ...]
    types: Mapping[str, TensorType]
    storage: Mapping[str, str]
    addresses: Mapping[str, int]
    constants: Mapping[str, Array]
    arena_bytes: int
    scales: Mapping[str, tuple[float, float]]


def plan(program: Program) -> DriverPlan:
    """The plan of a program. Raises UnsupportedOperator (E202) for what the driver does not compute."""
    types = {port.name: TensorType(port.shape, port.dtype) for port in program.inputs}
    border = {*types, *(port.name for port in program.outputs)}
    actions: list[Action] = []
    for step in with_frames(Contents.of(program.manifest).steps):
        if isinstance(step, HostStep):
            actions += operations(step, types)
        else:
            for move in step.loads:
                _expect(move, types)
            types.update((move.tensor, TensorType(move.shape, "int8")) for move in step.stores)
            actions.append(step)
    for port in program.outputs:
        if types.get(port.name) != TensorType(port.shape, port.dtype):
            raise damage_error("no step gives it", tensor=port.name)
    operations_only = [each for each in actions if isinstance(each, HostCall)]
    constants = {each.source: _value(each.step) for each in operations_only if each.step.op == CONSTANT}
    outside = border | constants.keys()
    for name in sorted(outside):
        if types[name].dtype not in ELEMENTS:
            reason = f"the C driver has no {types[name].dtype} tensors"
            raise UnsupportedOperator("E202", reason, tensor=name, limit=", ".join(ELEMENTS))
    kept, storage = _shared(actions, types, outside)
    buffers = _lifetimes(kept, types, storage, outside)
    addresses = allocate(buffers)
    arena, scales = peak(buffers, addresses), _scales(operations_only)
    return DriverPlan(tuple(kept), types, storage, addresses, constants, arena, scales)


def with_frames(steps: Sequence[HostStep | Segment]) -> list[HostStep | Segment]:
    """The steps, with a Frame in place of the dequantisation and quantisation of a frame's bytes by one scale."""
    found: list[HostStep | Segment] = []
    for each in steps:
        before = found[-1] if found else None
        if isinstance(each, HostStep) and isinstance(before, HostStep) and less_128(before, each):
            found[-1] = replace(each, op=FRAME, inputs=before.inputs, attrs={})
        else:
            found.append(each)
    read = [name for each in found for name in (each.inputs if isinstance(each, HostStep) else ())]
    whole = {name for each in steps if isinstance(each, HostStep) for name in each.outputs}
    made = {name for each in found if isinstance(each, HostStep) for name in each.outputs}
    return [*steps] if (whole - made).intersection(read) else found


def _expect(move: TensorMove, types: Mapping[str, TensorType]) -> None:
    """Raises ArtefactError (E502) where there is no such tensor to load."""
    found, extents = types.get(move.tensor), move.map_shape
    inside = all(
        0 <= part.start < part.stop <= extent for part, extent in zip(move.window[1:], extents, strict=True)
    )
    if found is None or found.dtype != "int8" or found.size != prod(move.shape) or not inside:
        raise damage_error(f"no tensor for {move}", tensor=move.tensor)


def _value(step: HostStep) -> Array:
    with consistent(step):
        return np.array(step.attrs["value"], step.attrs["dtype"])


def _shared(
    actions: Sequence[Action], types: Mapping[str, TensorType], outside: set[str]
) -> tuple[list[Action], dict[str, str]]:
    """The actions without plain copies of whole tensors, and, for every tensor, the tensor whose memory it uses.

    outside: the tensors outside the arena. Only a plain copy from one of them to another is needed.
    """
    storage = {name: name for name in types}
    kept: list[Action] = []
    for each in actions:
        if not isinstance(each, HostCall) or not _keeps_order(each, types):
            kept.append(each)
        elif each.target not in outside:
            storage[each.target] = storage[each.source]
        elif storage[each.source] not in outside:
            before = storage[each.source]
            storage |= {name: each.target for name, place in storage.items() if place == before}
        else:
            kept.append(each)
    return kept, storage


def _keeps_order(each: HostCall, types: Mapping[str, TensorType]) -> bool:
    """Whether it is a plain copy of a whole tensor to a whole tensor."""
    size = types[each.source].bytes
    return size == types[each.target].bytes and each.copy == Copy(size, 0, 0, ())


def _lifetimes(
    actions: Sequence[Action], types: Mapping[str, TensorType], storage: Mapping[str, str], outside: set[str]
) -> list[Buffer]:
    """The tensors of the arena with their lifetimes, in actions."""
    alive: dict[str, list[int]] = {}
    for number, action in enumerate(actions):
        for name in _touched(action):
            alive.setdefault(storage[name], []).append(number)
    return [
        Buffer(name, -(-types[name].bytes // ALIGNMENT) * ALIGNMENT, numbers[0], numbers[-1])
        for name, numbers in alive.items()
        if name not in outside
    ]


def _touched(action: Action) -> list[str]:
    if isinstance(action, HostCall):
        return [action.source, action.target]
    return [move.tensor for move in (*action.loads, *action.stores)]


def _scales(found: Sequence[HostCall]) -> dict[str, tuple[float, float]]:
    """Scale and zero point of the int8 form of float tensors; copies propagate them."""
    scales: dict[str, tuple[float, float]] = {}
    for each in found:
        if each.name == "npuc_dequantize":
            scales[each.target] = (each.numbers["scale"], each.numbers["zero"])
        elif each.copy is not None and each.source in scales:
            scales[each.target] = scales[each.source]
    for each in reversed(found):
        if each.name == "npuc_quantize":
            scales[each.source] = (each.numbers["scale"], each.numbers["zero"])
        elif each.copy is not None and each.target in scales:
            scales.setdefault(each.source, scales[each.target])
    return scales


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
    found = OPS[step.op].output_types(node, [TensorType(types[name].shape) for name in step.inputs])
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
