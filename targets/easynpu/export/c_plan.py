"""A program as the C driver needs it: its actions in order, and the places of the host's tensors.

Tensors that are neither inputs nor outputs share an arena, in which each exists from its first writer to its last
reader. A copy that preserves the order of all elements is left out where both tensors can share memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate, peak
from npuc.host.copies import Copy
from npuc.host.step import CONSTANT, HostStep, consistent
from npuc.ir import Array, TensorType
from npuc.program import Program
from npuc.storage.records import damaged
from npuc.targets.easynpu.export.c_host import FRAME, HostCall, operations
from npuc.targets.easynpu.program.artefact import Contents, Segment, TensorMove

ALIGNMENT = 8
"""Alignment in bytes for the largest element type; the driver itself needs none."""
ELEMENTS = ("int8", "uint8", "int64", "float32")
"""Element types of inputs, outputs and constants."""

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
            raise damaged("no step gives it", tensor=port.name)
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
        if isinstance(each, HostStep) and isinstance(before, HostStep) and _shifts(before, each):
            found[-1] = replace(each, op=FRAME, inputs=before.inputs, attrs={})
        else:
            found.append(each)
    read = [name for each in found for name in (each.inputs if isinstance(each, HostStep) else ())]
    whole = {name for each in steps if isinstance(each, HostStep) for name in each.outputs}
    made = {name for each in found if isinstance(each, HostStep) for name in each.outputs}
    return [*steps] if (whole - made).intersection(read) else found


def _shifts(before: HostStep, after: HostStep) -> bool:
    """Whether two steps together turn uint8 into int8, less 128."""
    steps = [(each.op, each.attrs.get("scale"), each.attrs.get("dtype")) for each in (before, after)]
    same = steps == [("DequantizeLinear", steps[0][1], "uint8"), ("QuantizeLinear", steps[0][1], "int8")]
    zeros = (each.attrs.get("zero_point", 0) for each in (after, before))
    return same and before.outputs == after.inputs and next(zeros) == next(zeros) - 128


def _expect(move: TensorMove, types: Mapping[str, TensorType]) -> None:
    """Raises ArtefactError (E502) where there is no such tensor to load."""
    found, extents = types.get(move.tensor), move.map_shape
    inside = all(
        0 <= part.start < part.stop <= extent for part, extent in zip(move.window[1:], extents, strict=True)
    )
    if found is None or found.dtype != "int8" or found.size != prod(move.shape) or not inside:
        raise damaged(f"no tensor for {move}", tensor=move.tensor)


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
