"""Observation of layers: the table of calls, with a store of every layer's result at the end of the layer.

The table marks the end of every layer. The call added there stores the layer's tensor after the program's own
regions of system memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.system.budget import expect_simulable
from npuc.targets.bm1684.lowering.kernel import Arg, Call, SystemPlace
from npuc.targets.bm1684.machine.local_memory import (
    Dim4,
    Position,
    ceil_div,
    okk_128_byte_aligned_stride_for_32bit,
)
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.program.artefact import ELEMENT, Observed, of_words
from npuc.targets.bm1684.program.table import LAYER, line

PAGE = 4096
SHOWN = "shown"
"""The region after the program's own."""


@frozen
class Observation:
    """The table that stores all results, and where each tensor is then in system memory."""

    table: bytes
    starts: Mapping[str, int]
    bytes: int
    """Bytes of system memory, including the program's own."""
    tensors: tuple[Observed, ...]

    @classmethod
    def of(
        cls, table: bytes, tensors: Sequence[Observed], start: int, places: Sequence[str], machine: Machine
    ) -> Observation:
        """Adds the stores to a table. start: the program's bytes of system memory, after which the stores go.

        Raises ArtefactError (E509) above the memory limit.
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
        """Every tensor, in its shape in the graph, from system memory (bytes,) uint8 after the run."""
        found: dict[str, Array] = {}
        for each in self.tensors:
            part = memory[self.starts[each.tensor] :][: ELEMENT * prod(each.words)]
            found[each.tensor] = of_words(part, each.shape, each.dtype)
        return found


def _store(each: Observed, offset: int, machine: Machine) -> Call:
    """The call that stores a tensor."""
    shape, at, to = Dim4(*each.local_shape), Position(each.npu, each.offset), SystemPlace(SHOWN, offset)
    if prod(shape) == prod(each.words):
        _, c, h, w = shape
        stride = okk_128_byte_aligned_stride_for_32bit(each.npu, shape, machine)
        args: tuple[Arg, ...] = (to, at, shape, Dim4(c * h * w, h * w, w, 1), stride)
        return Call("gdma_32bit_cpy_L2S", args)
    columns = each.words[-1]
    return Call("gdma_32bit_matrix_L2S", (to, at, shape.n, columns, shape.w, columns))
