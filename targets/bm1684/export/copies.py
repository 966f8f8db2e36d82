"""Copies from system to local memory as rows of a C table, and the function that executes some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from npuc.targets.bm1684.lowering.kernel import System
from npuc.targets.bm1684.machine.local_memory import Dim4, Position
from npuc.targets.bm1684.program.artefact import Instruction
from npuc.text.escaping import c_comment

COPY = "gdma_32bit_cpy_S2L"
TYPE = """\
typedef struct {
    local_addr_t to;
    int region;  /* of the arguments */
    system_addr_t offset;
    dim4 shape, to_stride, from_stride;
} copy;
"""
FUNCTION = """\
/* Makes `count` copies of the table from the row `first` on. */
static void load(const arguments *to, int first, int count)
{{
    const system_addr_t regions[] = {{{regions}}};
    for (const copy *each = COPIES + first; each < COPIES + first + count; each++)
        okk_gdma_32bit_cpy_S2L(each->to, regions[each->region] + each->offset, &each->shape, &each->to_stride,
                               &each->from_stride);
}}
"""


@dataclass
class Copies:
    """The rows of the table, appended while the layers' calls are written."""

    regions: Sequence[str]
    rows: list[str] = field(default_factory=list[str])
    count: int = 0
    layer: str = ""

    def begin(self, layer: str) -> int:
        """The number of the next row. layer: the title of the layer that the following rows belong to."""
        if layer != self.layer:
            self.rows.append(f"    {c_comment(f'{self.count}: in {layer}')}")
            self.layer = layer
        return self.count

    def add(self, each: Instruction, write: Callable[[Position], str]) -> None:
        """Appends a copy that `may_be_row` accepts."""
        to, start, shape, to_stride, from_stride = each.call.args
        assert isinstance(to, Position) and isinstance(start, System)
        dims = ", ".join(_dim(dim) for dim in (shape, to_stride, from_stride))
        note = c_comment(f"for {each.tensor}")
        self.rows.append(
            f"    {{{write(to)}, {self.regions.index(start.region)}, {start.offset:#x}, {dims}}},  {note}"
        )
        self.count += 1

    def text(self) -> str:
        """The table and the function in C; empty without rows."""
        if not self.count:
            return ""
        fields = ", ".join(f"to->{region}" for region in self.regions)
        table = "\n".join(("static const copy COPIES[] = {", *self.rows, "};\n"))
        return f"{TYPE}\n{table}\n{FUNCTION.format(regions=fields)}"


def may_be_row(each: Instruction) -> bool:
    """Whether a call is a copy from system to local memory with both strides explicit."""
    kinds = (Position, System, Dim4, Dim4, Dim4)
    args = each.call.args
    fits = len(args) == len(kinds) and all(map(isinstance, args, kinds))
    return each.call.name == COPY and fits


def _dim(dim: object) -> str:
    assert isinstance(dim, Dim4)
    return f"{{{', '.join(map(str, dim))}}}"
