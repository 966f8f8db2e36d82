"""What layers compute, shown: the table of calls with a store of every layer's result behind it.

The table marks the end of every layer. A call added there stores the layer's tensor behind the program's own
regions of system memory. Everything comes from the artefact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from npuc.budget import expect_simulable
from npuc.ir import Array
from npuc.targets.bm1684.lowering.kernel import Address, Arg, Call, System
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.program.artefact import ELEMENT, Observed, of_words
from npuc.targets.bm1684.program.table import LAYER, line

PAGE = 4096
SHOWN = "shown"
"""The region behind the program's own."""


@dataclass(frozen=True)
class Observation:
    """The table that shows its layers, and where in system memory each tensor then lies."""

    table: bytes
    starts: Mapping[str, int]
    bytes: int
    """Of system memory, the program's own included."""
    tensors: tuple[Observed, ...]

    @classmethod
    def of(
        cls, table: bytes, tensors: Sequence[Observed], start: int, places: Sequence[str], machine: Machine
    ) -> Observation:
        """start: bytes of system memory that the program itself takes; the region that begins there comes last.

        Raises ArtefactError (E509) beyond the limit on memory.
        """
        starts: dict[str, int] = {}
        end = start
        for each in tensors:
            starts[each.tensor] = end
            end += ceil_div(ELEMENT * prod(each.words), PAGE) * PAGE
        expect_simulable(end, "system memory with the result of every layer")
        stores = {
            f"{LAYER} {each.layer}".encode(): line(
                _store(each, starts[each.tensor] - start, machine), [*places, SHOWN], machine
            ).encode()
            for each in tensors
        }
        lines = (stores.get(text, text) for text in table.split(b"\n"))
        return cls(b"\n".join(lines), starts, end, tuple(tensors))

    def values(self, memory: Array) -> dict[str, Array]:
        """Every tensor, in the shape it has in the graph, from system memory (bytes,) uint8 after the run."""
        found: dict[str, Array] = {}
        for each in self.tensors:
            part = memory[self.starts[each.tensor] :][: ELEMENT * prod(each.words)]
            found[each.tensor] = of_words(part, each.shape, each.dtype)
        return found


def _store(each: Observed, offset: int, machine: Machine) -> Call:
    """The call that stores a tensor."""
    shape, at, to = Dim4(*each.local_shape), Address(each.npu, each.offset), System(SHOWN, offset)
    if prod(shape) == prod(each.words):
        _, c, h, w = shape
        stride = okk_128_byte_aligned_stride_for_32bit(each.npu, shape, machine)
        args: tuple[Arg, ...] = (to, at, shape, Dim4(c * h * w, h * w, w, 1), stride)
        return Call("gdma_32bit_cpy_L2S", args)
    columns = each.words[-1]
    return Call("gdma_32bit_matrix_L2S", (to, at, shape.n, columns, shape.w, columns))
