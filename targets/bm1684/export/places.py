"""Names of local-memory buffers: a C constant for each, with its shape and layout in a comment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from npuc.frozen import frozen
from npuc.program import Program
from npuc.targets.bm1684.lowering.kernel import Call
from npuc.targets.bm1684.machine.local_memory import Dim4, Position
from npuc.targets.bm1684.program.artefact import Contents, Instruction, Observed, Occupied
from npuc.targets.bm1684.program.emission import local
from npuc.text.escaping import Names, c_comment, c_identifier

LONGEST = 40
"""The most characters of a buffer's name in the name of its constant."""
WEIGHTS: Mapping[str, Callable[[tuple[Any, ...]], str]] = {
    "bdc_conv2d": lambda args: f"weights {[args[5], args[4].c, *args[6:8]]} in 2IC mode, compact",
    "bdc_fix8b_conv2d": lambda args: f"weights {[args[5], args[4].c, *args[6:8]]} of 8 bits, compact",
    "bdc_depthwise2d": lambda args: f"weights {[args[4].c, *args[5:7]]}, compact",
    "bdc_fix8b_depthwise2d": lambda args: f"weights {[args[4].c, *args[5:7]]} of 8 bits, compact",
    "bdc_matmul": lambda args: f"right matrix {list(args[5:7])} in the matrix layout, W = {args[8]}",
}
"""By call, a description of its third argument: shape and layout."""


@frozen
class BufferConstants:
    """The local-memory buffers that calls use, each with a constant named after it."""

    buffers: Sequence[Occupied]
    names: Sequence[str]
    """The constant of each buffer."""
    whats: Sequence[str]
    """The shape and layout of each buffer's content."""

    @classmethod
    def of(cls, program: Program, calls: Sequence[Instruction]) -> BufferConstants:
        """The buffers of a program's calls. Raises ArtefactError (E502) for a damaged manifest."""
        regions = 1 + max((call.region for call in calls), default=-1)
        found = _Finder(Contents.occupied(program.manifest, regions))
        used = {
            at: call for call in calls for arg in call.call.args if (at := found.at(arg, call.region)) is not None
        }
        ordered = sorted(used, key=lambda at: (found.buffers[at].first, found.buffers[at].start))
        kept = {each.tensor: each for each in Contents.observed(program.manifest)}
        weights = {found.at(call.call.args[2], call.region): call.call for call in calls if _weighted(call.call)}
        buffers = {at: found.buffers[at] for at in ordered}
        whats = [_what(each, kept.get(each.buffer), weights.get(at)) for at, each in buffers.items()]
        return cls(list(buffers.values()), _identifiers([each.buffer for each in buffers.values()]), whats)

    def writer(self, region: int) -> Callable[[Position], str]:
        """A function that writes an address used in a region: the buffer's constant and a byte offset."""

        def text(address: Position) -> str:
            at = self._finder.at(address, region)
            if at is None:
                return local(address)
            further = address.offset - self.buffers[at].start
            return f"LOCAL({address.npu}, {self.names[at]}{f' + {further:#x}' if further else ''})"

        return text

    @cached_property
    def _finder(self) -> _Finder:
        return _Finder(self.buffers)

    def definitions(self) -> Iterator[str]:
        """The lines of the enumeration, in order of first use."""
        for name, each, what in zip(self.names, self.buffers, self.whats, strict=True):
            note = c_comment(f"{each.buffer}: {what}{each.end - each.start} bytes")
            yield f"    {name} = {each.start:#x},  {note}"


@frozen
class _Finder:
    """Finds buffers by address and time."""

    buffers: Sequence[Occupied]

    def at(self, arg: object, region: int) -> int | None:
        """The number of the buffer that contains an address while a region runs; None if there is none."""
        if isinstance(arg, Position):
            for number, each in enumerate(self.buffers):
                if each.start <= arg.offset < each.end and each.first <= region <= each.last:
                    return number
        return None


def _weighted(call: Call) -> bool:
    """Whether a call states the shape of its weights; the call table of a foreign program may be arbitrary."""
    args = call.args
    return call.name in WEIGHTS and len(args) > 8 and (call.name == "bdc_matmul" or isinstance(args[4], Dim4))


def _identifiers(buffers: Sequence[str]) -> list[str]:
    """A unique constant for each buffer."""
    names = Names()
    return [names.new(f"AT_{c_identifier(buffer)[:LONGEST]}") for buffer in buffers]


def _what(buffer: Occupied, kept: Observed | None, weighted: Call | None) -> str:
    """The shape and layout of a buffer's content, followed by a comma; empty if unknown."""
    if kept is not None and kept.offset == buffer.start:
        words = "in words of four images (4N), " if kept.dtype != "float32" else ""
        local_shape = "" if kept.local_shape == kept.shape else f"as {list(kept.local_shape)} "
        return f"{kept.dtype} {list(kept.shape)} {words}{local_shape}aligned from NPU {kept.npu}, "
    return f"{WEIGHTS[weighted.name](weighted.args)}, " if weighted is not None else ""
