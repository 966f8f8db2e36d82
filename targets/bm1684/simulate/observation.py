"""What layers compute, shown: the kernel with a store of every layer's result behind it.

The kernel marks the end of every layer with a macro that is empty unless somebody defines it; here it becomes a
call that stores the layer's tensor behind the program's own regions of system memory. Everything comes from the
artefact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from npuc.ir import Array
from npuc.targets.bm1684.lowering.kernel import Address, Arg, Call
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.program.artefact import ELEMENT, KERNEL_FILE, Observed
from npuc.targets.bm1684.program.emission import call_text, macros

HEAD = "void npuc_done(int layer);\n#define NPUC_DONE(layer) npuc_done(layer);\n"
OBSERVER = """\
#include <stddef.h>

#include "okk.h"

{macros}
void npuc_done(int layer);

void npuc_done(int layer)
{{
    switch (layer) {{
{cases}
    default:
        break;
    }}
}}
"""
PAGE = 4096
OBSERVER_FILE = "observer.c"


@dataclass(frozen=True)
class Observation:
    """Sources of the kernel that shows its layers, and where in system memory each tensor then lies."""

    sources: Mapping[str, bytes]
    starts: Mapping[str, int]
    bytes: int
    tensors: tuple[Observed, ...]

    @classmethod
    def of(
        cls, kernel: bytes, tensors: Sequence[Observed], start: int, base: int, machine: Machine
    ) -> Observation:
        """start: bytes of system memory that the program itself takes; base: the address of the first one."""
        starts: dict[str, int] = {}
        for each in tensors:
            starts[each.tensor] = start
            start += ceil_div(ELEMENT * prod(each.shape), PAGE) * PAGE
        cases = "\n".join(
            f"    case {each.layer}:\n        {_store(each, base + starts[each.tensor], machine)};\n        break;"
            for each in tensors
        )
        observer = OBSERVER.format(macros=macros(machine), cases=cases)
        sources = {KERNEL_FILE: HEAD.encode() + kernel, OBSERVER_FILE: observer.encode()}
        return cls(sources, starts, start, tuple(tensors))

    def values(self, memory: Array) -> dict[str, Array]:
        """Every tensor, in the shape it has in the graph, from system memory (bytes,) uint8 after the run."""
        found: dict[str, Array] = {}
        for each in self.tensors:
            part = memory[self.starts[each.tensor] :][: ELEMENT * prod(each.shape)]
            found[each.tensor] = part.view(np.float32).reshape(each.shape).copy()
        return found


def _store(each: Observed, address: int, machine: Machine) -> str:
    """The call that stores a tensor."""
    shape, at = Dim4(*each.local_shape), Address(each.npu, each.offset)
    if prod(shape) == prod(each.shape):
        _, c, h, w = shape
        stride = okk_128_byte_aligned_stride_for_32bit(each.npu, shape, machine)
        args: tuple[Arg, ...] = (address, at, shape, Dim4(c * h * w, h * w, w, 1), stride)
        name = "gdma_32bit_cpy_L2S"
    else:
        columns = each.shape[-1]
        args, name = (address, at, shape.n, columns, shape.w, columns), "gdma_32bit_matrix_L2S"
    return call_text(Call(name, args)).replace(f"({address},", f"({address}ull,", 1)
