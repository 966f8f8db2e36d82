"""The layers of a program as C functions; layers that make the same calls at different addresses share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from npuc.frozen import frozen
from npuc.program import Program
from npuc.targets.bm1684.export.copies import Copies, may_be_row
from npuc.targets.bm1684.export.loops import INDENT, rolled
from npuc.targets.bm1684.export.places import Places
from npuc.targets.bm1684.export.statements import Statement
from npuc.targets.bm1684.program.artefact import Computed, Instruction, layers_of, table_of
from npuc.targets.bm1684.program.emission import FIRMWARE, call_text
from npuc.targets.bm1684.program.table import Region
from npuc.text.escaping import c_comment

NAMES = 12
"""The most nodes or tensors that a comment lists."""
SHORTEST = 2
"""The fewest lines of a function that layers share."""


@frozen
class Layer:
    """A layer's number, its comment (what it computes and moves for other layers) and its lines."""

    number: int
    comment: str
    lines: tuple[str, ...]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The lines, each split into text and values."""
        return tuple(map(Statement.of, self.lines))


@frozen
class Function:
    """A C function, and each layer's call of it by layer number."""

    text: str
    calls: Mapping[int, str]


def layers(program: Program, calls: Sequence[Instruction], places: Places, copies: Copies) -> list[Layer]:
    """The layers in execution order. Their copies from system memory are appended to `copies`."""
    waiting, found = iter(calls), list[Layer]()
    for number, (regions, what) in enumerate(zip(table_of(program).layers, layers_of(program), strict=True)):
        own = [(region, [next(waiting) for _ in region.calls]) for region in regions]
        heading = " ".join((f"layer {number}:", what.op, what.tensor))
        lines = [line for region, each in own for line in _lines(region, each, places, copies, heading)]
        for_others = dict.fromkeys(call.tensor for _, each in own for call in each if call.tensor != what.tensor)
        found.append(Layer(number, _comment(heading, what, list(for_others)), tuple(rolled(lines))))
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
    region: Region, calls: Sequence[Instruction], places: Places, copies: Copies, title: str
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


def functions(made: Sequence[Layer]) -> list[Function]:
    """One function per layer, or per group of layers that make the same calls at different addresses."""
    alike: dict[object, list[Layer]] = {}
    for layer in made:
        alike.setdefault(_shape(layer), []).append(layer)
    return [_shared(group) if len(group) > 1 else _alone(group[0]) for group in alike.values()]


def _shape(layer: Layer) -> object:
    """The key of layers that share a function: everything but addresses and rows of the copy table."""
    if len(layer.lines) < SHORTEST or any("static const" in line for line in layer.lines):
        return layer.number
    return tuple((each.texts, each.values[:0] if _moves(each) else _fixed(each)) for each in layer.statements)


def _moves(statement: Statement) -> bool:
    return statement.texts[0].startswith("load(")


def _fixed(statement: Statement) -> tuple[str, ...]:
    """The values of a statement, with buffer addresses left empty."""
    return tuple("" if value.base else value.text for value in statement.values)


def _alone(layer: Layer) -> Function:
    function = f"layer_{layer.number}"
    text = _function(layer.comment, f"{function}(const arguments *to)", layer.lines)
    return Function(text, {layer.number: f"{function}(to)"})


def _shared(group: Sequence[Layer]) -> Function:
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
        return Function(text, {layer.number: f"{function}(to)" for layer in group})
    rows = [
        f"{INDENT}{{{', '.join(column[at].text for column in differing)}}},  {c_comment(f'layer {layer.number}')}"
        for at, layer in enumerate(group)
    ]
    head = f"static const int {function}_at[{len(group)}][{len(differing)}] = {{"
    text = _function(comment, f"{function}(const arguments *to, const int *at)", body)
    calls = {layer.number: f"{function}(to, {function}_at[{at}])" for at, layer in enumerate(group)}
    return Function("\n".join((head, *rows, "};\n", text)), calls)


def _function(comment: str, declared: str, lines: Sequence[str]) -> str:
    used = any("SYSTEM(" in line or "load(to" in line for line in lines)
    body = "\n".join(f"{INDENT}{line}" for line in lines)
    unused = "" if used else f"{INDENT}(void)to;\n"
    return f"{comment}\nstatic void {declared}\n{{\n{unused}{body}\n}}\n"
