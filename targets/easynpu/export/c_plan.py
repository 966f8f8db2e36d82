"""A program as the C driver needs it: its actions in order, and the places of the host's tensors.

Tensors that are neither inputs nor outputs share an arena, in which each exists from its first writer to its last
reader. A copy that preserves the order of all elements is left out where both tensors can share memory.

Host steps become calls of the library of npuc.host.c_code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from npuc.errors import UnsupportedOperator
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate, peak
from npuc.host.copies import MOVES, keeps_order
from npuc.host.step import CONSTANT, HostStep, consistent, less_128
from npuc.ir import Array, Node, TensorType, type_of
from npuc.ops import infer
from npuc.program import Program
from npuc.storage.records import damage_error
from npuc.targets.easynpu.program.artefact import Contents, Segment, TensorMove

ALIGNMENT = 8
"""Alignment in bytes for the largest element type."""
ELEMENTS = ("int8", "uint8", "int64", "float32")
"""Element types of inputs, outputs and constants."""
FRAME = "Frame"
"""The step that makes int8 of uint8: every byte less 128."""


Action = Segment | Node


@frozen
class DriverPlan:
    """The driver's actions, and its tensors in order of appearance.

    storage: for every tensor, the tensor whose memory it uses, often its own; addresses: of those in the arena;
    constants: values of those that the program contains; numbers: scales and zero points, which calls contain;
    scales: scale and zero point of inputs and outputs that are int8 on the machine.
    """

    actions: tuple[Action, ...]
    types: Mapping[str, TensorType]
    storage: Mapping[str, str]
    addresses: Mapping[str, int]
    constants: Mapping[str, Array]
    numbers: Mapping[str, Array]
    arena_bytes: int
    scales: Mapping[str, tuple[float, float]]


def plan(program: Program) -> DriverPlan:
    """The plan of a program.

    Raises UnsupportedOperator (E202) for element types that the driver lacks, ArtefactError (E502) for a step that
    contradicts itself or the tensors there are.
    """
    types = {port.name: TensorType(port.shape, port.dtype) for port in program.inputs}
    border = {*types, *(port.name for port in program.outputs)}
    constants, numbers, actions = dict[str, Array](), dict[str, Array](), list[Action]()
    plain = set[Node]()
    for step in with_frames(Contents.of(program.manifest).steps):
        if isinstance(step, HostStep):
            node, values = step.as_node()
            (constants if step.op == CONSTANT else numbers).update(values)
            with consistent(step):
                given = {name: type_of(value) for name, value in values.items()}
                types |= given if step.op == CONSTANT else {}
                types |= zip(node.outputs, _result_types(node, types | given), strict=True)
                plain |= {node} if keeps_order(node, types) else set()
            actions.append(node)
        else:
            for move in (*step.loads, *step.loads_ahead):
                _expect(move, types)
            types.update((move.tensor, TensorType(move.shape, "int8")) for move in step.stores)
            actions.append(step)
    for port in program.outputs:
        if types.get(port.name) != TensorType(port.shape, port.dtype):
            raise damage_error("no step gives it", tensor=port.name)
    outside = border | constants.keys()
    for name in sorted(outside):
        if types[name].dtype not in ELEMENTS:
            reason = f"the C driver has no {types[name].dtype} tensors"
            raise UnsupportedOperator("E202", reason, tensor=name, limit=", ".join(ELEMENTS))
    kept, storage = _share_buffers(actions, plain, types, outside)
    buffers = _lifetimes(kept, types, storage, outside)
    addresses = allocate(buffers)
    arena, scales = peak(buffers, addresses), _scales(actions, numbers)
    return DriverPlan(tuple(kept), types, storage, addresses, constants, numbers, arena, scales)


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


def _share_buffers(
    actions: Sequence[Action], plain: set[Node], types: Mapping[str, TensorType], outside: set[str]
) -> tuple[list[Action], dict[str, str]]:
    """The actions without plain copies of whole tensors, and, for every tensor, the tensor whose memory it uses.

    plain: the nodes that are such copies; outside: the tensors outside the arena. Only a plain copy from one of
    them to another is needed.
    """
    storage = {name: name for name in types}
    kept: list[Action] = []
    for each in actions:
        if isinstance(each, Segment) or each not in plain:
            kept.append(each)
            continue
        source, target = each.inputs[0], each.output
        if target not in outside:
            storage[target] = storage[source]
        elif storage[source] not in outside:
            before = storage[source]
            storage |= {name: target for name, place in storage.items() if place == before}
        else:
            kept.append(each)
    return kept, storage


def _lifetimes(
    actions: Sequence[Action], types: Mapping[str, TensorType], storage: Mapping[str, str], outside: set[str]
) -> list[Buffer]:
    """The tensors of the arena with their lifetimes, in actions."""
    alive: dict[str, list[int]] = {}
    for number, action in enumerate(actions):
        for name in _tensors_of(action):
            if name in storage:
                alive.setdefault(storage[name], []).append(number)
    return [
        Buffer(name, -(-types[name].bytes // ALIGNMENT) * ALIGNMENT, numbers[0], numbers[-1])
        for name, numbers in alive.items()
        if name not in outside
    ]


def _tensors_of(action: Action) -> Sequence[str]:
    if isinstance(action, Node):
        return [*action.inputs, *action.outputs]
    return [move.tensor for move in (*action.loads, *action.loads_ahead, *action.stores)]


def _scales(actions: Sequence[Action], numbers: Mapping[str, Array]) -> dict[str, tuple[float, float]]:
    """Scale and zero point of the int8 form of float tensors; what only moves elements propagates them."""
    scales: dict[str, tuple[float, float]] = {}
    nodes = [each for each in actions if isinstance(each, Node)]
    for each in nodes:
        known = [scales[name] for name in each.inputs if name in scales]
        if each.op == "DequantizeLinear":
            scales[each.output] = _steps(each, numbers)
        elif each.op in MOVES and known:
            scales |= dict.fromkeys(each.outputs, known[0])
    for each in reversed(nodes):
        known = [scales[name] for name in each.outputs if name in scales]
        if each.op == "QuantizeLinear":
            scales[each.inputs[0]] = _steps(each, numbers)
        elif each.op in MOVES and known:
            scales |= {name: known[0] for name in each.inputs if name not in scales}
    return scales


def _steps(conversion: Node, numbers: Mapping[str, Array]) -> tuple[float, float]:
    scale, zero = (float(numbers[name]) for name in conversion.inputs[1:])
    return scale, zero


def _result_types(node: Node, types: Mapping[str, TensorType]) -> Sequence[TensorType]:
    if node.op == FRAME and types[node.inputs[0]].dtype == "uint8":
        return [TensorType(types[node.inputs[0]].shape, "int8")]
    return infer(node, [types[name] for name in node.inputs])
