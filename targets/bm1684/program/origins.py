"""Finds the call of the kernel that computed an element of a tensor."""

from __future__ import annotations

from collections import Counter

from npuc.program import Program
from npuc.target import Origin
from npuc.targets.bm1684.machine.local_memory import Dim4, Position, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.program.artefact import ELEMENT, Contents, Instruction, Observed, instructions


def origin(program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
    """The call that computes this element; None if none does.

    A layer has one kind of call that does the work, and others around it (an activation, moves): the kind with the
    most cycles is taken. It may be repeated for pieces of the tensor, distinguished by their destinations.
    """
    calls = [call for call in instructions(program) if call.tensor == tensor]
    calls = [call for call in calls if call.engine == "bdc"] or calls
    if not calls:
        return None
    spent = Counter[str]()
    for call in calls:
        spent[call.call.name] += call.cycles
    (main, _), *_ = spent.most_common(1)
    calls = [call for call in calls if call.call.name == main]
    kept = next((each for each in Contents.observed(program.manifest) if each.tensor == tensor), None)
    if kept is not None and len(kept.shape) == len(element) == len(kept.local_shape):
        place = _place(kept, element, Contents.of(program.manifest).machine)
        calls = [call for call in calls if _destination(call) <= place] or calls
    found = max(calls, key=lambda call: (_destination(call), call.index))
    return Origin(found.index, found.text, None)


def _destination(call: Instruction) -> tuple[int, int]:
    """The offset and NPU that a call writes to."""
    to = call.call.args[0] if call.call.args else None
    return (to.offset, to.npu) if isinstance(to, Position) else (0, 0)


def _place(kept: Observed, element: tuple[int, ...], machine: Machine) -> tuple[int, int]:
    """The offset and NPU of an element in the aligned layout."""
    image, channel, row, column = element
    stride = okk_128_byte_aligned_stride_for_32bit(kept.npu, Dim4(*kept.local_shape), machine)
    block, npu = divmod(kept.npu + channel, machine.npus)
    inside = image * stride.n + block * stride.c + row * stride.h + column * stride.w
    return kept.offset + ELEMENT * inside, npu
