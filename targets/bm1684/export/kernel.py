"""The device kernel in C: the calls of the table, with one function per layer and named local-memory buffers.

Copies from system memory form one table; layers that make the same calls at different addresses share a function.

The layers of a program as C functions; layers that make the same calls at different addresses share one.

Copies from system to local memory as rows of a C table, and the function that executes some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from npuc.frozen import frozen
from npuc.program import Program
from npuc.targets.bm1684.export.loops import INDENT, rolled
from npuc.targets.bm1684.export.places import BufferConstants
from npuc.targets.bm1684.export.statements import Statement
from npuc.targets.bm1684.lowering.kernel import SystemPlace
from npuc.targets.bm1684.machine.local_memory import Dim4, Position
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.program.artefact import Computed, Contents, Instruction, instructions, layers_of, table_of
from npuc.targets.bm1684.program.emission import FIRMWARE, call_text
from npuc.targets.bm1684.program.table import CallRegion
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
        assert isinstance(to, Position) and isinstance(start, SystemPlace)
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
    kinds = (Position, SystemPlace, Dim4, Dim4, Dim4)
    args = each.call.args
    fits = len(args) == len(kinds) and all(map(isinstance, args, kinds))
    return each.call.name == COPY and fits


def _dim(dim: object) -> str:
    assert isinstance(dim, Dim4)
    return f"{{{', '.join(map(str, dim))}}}"


NAMES = 12
"""The most nodes or tensors that a comment lists."""
SHORTEST = 2
"""The fewest lines of a function that layers share."""


@frozen
class LayerLines:
    """A layer's number, its comment (what it computes and moves for other layers) and its lines."""

    number: int
    comment: str
    lines: tuple[str, ...]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The lines, each split into text and values."""
        return tuple(map(Statement.of, self.lines))


@frozen
class LayerFunction:
    """A C function, and each layer's call of it by layer number."""

    text: str
    calls: Mapping[int, str]


def layers(
    program: Program, calls: Sequence[Instruction], places: BufferConstants, copies: Copies
) -> list[LayerLines]:
    """The layers in execution order. Their copies from system memory are appended to `copies`."""
    waiting, found = iter(calls), list[LayerLines]()
    for number, (regions, what) in enumerate(zip(table_of(program).layers, layers_of(program), strict=True)):
        own = [(region, [next(waiting) for _ in region.calls]) for region in regions]
        heading = " ".join((f"layer {number}:", what.op, what.tensor))
        lines = [line for region, each in own for line in _lines(region, each, places, copies, heading)]
        for_others = dict.fromkeys(call.tensor for _, each in own for call in each if call.tensor != what.tensor)
        found.append(LayerLines(number, _comment(heading, what, list(for_others)), tuple(rolled(lines))))
    return found


def _comment(heading: str, what: Computed, others: Sequence[str]) -> str:
    """The comment of a layer: what it computes, its ONNX nodes, and the other layers it moves data for."""
    lines = [f"{heading}, of {_listed(what.nodes)}" if what.nodes else heading]
    lines += [f"    beside it: data for {_listed(others)}"] if others else []
    return "\n".join(map(c_comment, lines))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def _lines(
    region: CallRegion, calls: Sequence[Instruction], places: BufferConstants, copies: Copies, title: str
) -> Iterator[str]:
    """The statements of a region; consecutive copies become one call of `load`."""
    kind = "npuc" if any(call.call.name.startswith(FIRMWARE) for call in calls) else "okk"
    if region.parallel:
        yield f"{kind}_parallel_start();"
    for is_row, group in groupby(calls, key=may_be_row):
        if is_row:
            rows = list(group)
            first = copies.begin(title)
            for each in rows:
                copies.add(each, places.writer(each.region))
            yield f"load(to, {first}, {len(rows)});"
        else:
            yield from (f"{call_text(each.call, places.writer(each.region))};" for each in group)
    if region.parallel:
        yield f"{kind}_parallel_end();"


def functions(made: Sequence[LayerLines]) -> list[LayerFunction]:
    """One function per layer, or per group of layers that make the same calls at different addresses."""
    alike: dict[object, list[LayerLines]] = {}
    for layer in made:
        alike.setdefault(_shape(layer), []).append(layer)
    return [_shared(group) if len(group) > 1 else _alone(group[0]) for group in alike.values()]


def _shape(layer: LayerLines) -> object:
    """The key of layers that share a function: everything but addresses and rows of the copy table."""
    if len(layer.lines) < SHORTEST or any("static const" in line for line in layer.lines):
        return layer.number
    return tuple((each.texts, each.values[:0] if _moves(each) else _fixed(each)) for each in layer.statements)


def _moves(statement: Statement) -> bool:
    return statement.texts[0].startswith("load(")


def _fixed(statement: Statement) -> tuple[str, ...]:
    """The values of a statement, with buffer addresses left empty."""
    return tuple("" if value.base else value.text for value in statement.values)


def _alone(layer: LayerLines) -> LayerFunction:
    function = f"layer_{layer.number}"
    text = _function(layer.comment, f"{function}(const arguments *to)", layer.lines)
    return LayerFunction(text, {layer.number: f"{function}(to)"})


def _shared(group: Sequence[LayerLines]) -> LayerFunction:
    """A function for several layers, and the table of the values that differ."""
    columns = list(
        zip(*([each for line in layer.statements for each in line.values] for layer in group), strict=True)
    )
    differing = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    names = {column: f"at[{at}]" for at, column in enumerate(differing)}
    values = iter(names[column] if column in names else column[0].text for column in columns)
    body = [each.line([next(values) for _ in each.values]) for each in group[0].statements]
    function, comment = f"layers_{group[0].number}", "\n".join(layer.comment for layer in group)
    if not differing:
        text = _function(comment, f"{function}(const arguments *to)", body)
        return LayerFunction(text, {layer.number: f"{function}(to)" for layer in group})
    rows = [
        f"{INDENT}{{{', '.join(column[at].text for column in differing)}}},  {c_comment(f'layer {layer.number}')}"
        for at, layer in enumerate(group)
    ]
    head = f"static const int {function}_at[{len(group)}][{len(differing)}] = {{"
    text = _function(comment, f"{function}(const arguments *to, const int *at)", body)
    calls = {layer.number: f"{function}(to, {function}_at[{at}])" for at, layer in enumerate(group)}
    return LayerFunction("\n".join((head, *rows, "};\n", text)), calls)


def _function(comment: str, declared: str, lines: Sequence[str]) -> str:
    used = any("SYSTEM(" in line or "load(to" in line for line in lines)
    body = "\n".join(f"{INDENT}{line}" for line in lines)
    unused = "" if used else f"{INDENT}(void)to;\n"
    return f"{comment}\nstatic void {declared}\n{{\n{unused}{body}\n}}\n"


HEAD = """\
/* Generated by npuc. {precision}; {cycles} cycles modelled. */
#include <stddef.h>

#include "okk.h"
{firmware}
#ifndef NPUC_DONE
#define NPUC_DONE(layer)  /* define it to inspect the result of each layer */
#endif
#define LOCAL(npu, offset) ((local_addr_t)(npu) * {local_bytes}u + (local_addr_t)(offset))
#define DIM4(n, c, h, w) (&(dim4){{(n), (c), (h), (w)}})
#define DIM2(h, w) (&(dim2){{(h), (w)}})
#define PADS(top, bottom, left, right) (&(Padding){{(top), (bottom), (left), (right)}})
#define SYSTEM(region, offset) (to->region + (system_addr_t)(offset))

typedef struct {{
{fields}
}} __attribute__((packed)) arguments;
"""


WHERE = """\
/*
 * What lies where in local memory: bytes from the start of every NPU it is in, and how many of them; shapes in the
 * order of ONNX. Buffers that are not needed at the same time share bytes.
 */"""
NOTICE = """\
/*
 * The layers of 8 bits are functions of the firmware library, outside the public OKK interface. They were verified
 * on the vendor's chip model; this code has not run on silicon. Maps are words of an element of four images (4N).
 */
#include "okk_fix8b.h"
"""


def device_code(program: Program, contents: Contents, cycles: int) -> str:
    """The C file of a program. contents: its contents, with the kernel's name. Raises ArtefactError (E502)."""
    calls = instructions(program)
    places, copies = BufferConstants.of(program, calls), Copies(contents.places)
    made = functions(layers(program, calls, places, copies))
    parts = [_head(contents, contents.machine, cycles), _enumeration(list(places.definitions())), copies.text()]
    parts += [each.text for each in made]
    parts.append(_main(contents.kernel, {number: call for each in made for number, call in each.calls.items()}))
    return "\n".join(part for part in parts if part)


def _head(contents: Contents, machine: Machine, cycles: int) -> str:
    fields = "\n".join(f"    system_addr_t {region.name};" for region in contents.regions)
    return HEAD.format(
        precision="int8" if contents.fixed else "fp32",
        firmware=NOTICE if contents.fixed else "",
        cycles=cycles,
        local_bytes=machine.local_bytes,
        fields=fields,
    )


def _enumeration(definitions: Sequence[str]) -> str:
    """The enumeration of local-memory buffers; empty without definitions."""
    if not definitions:
        return ""
    return "\n".join((WHERE, "enum {", *definitions, "};\n"))


def _main(kernel: str, calls: dict[int, str]) -> str:
    """The function that the host launches. calls: the call of each layer's function, by layer number."""
    lines = [f"{calls[number]}; NPUC_DONE({number});" for number in sorted(calls)]
    body = "\n".join(f"    {line}" for line in rolled(lines, tables=False))
    given = "const arguments *to = (const arguments *)args" if lines else "(void)args"
    return (
        f"void {kernel}(const void *args);\n\nvoid {kernel}(const void *args)\n{{\n"
        f"    {given};\n"
        f"    okk_initialize();\n{body}\n    okk_poll();\n}}\n\n"
        f"OKKERNEL_FUNC_REGISTER({kernel})\n"
    )
