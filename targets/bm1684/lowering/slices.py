"""Slices of a graph's tensors: which rows (or images) depend on which, and the nodes that compute a slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from npuc.ir import Graph, Node, TensorType
from npuc.ops.windows import Window, window_of

IMAGES, ROWS = 0, 2
"""The axes of slices."""
POOLS = ("MaxPool", "AveragePool")
WINDOWS = ("Conv", *POOLS)

Rows = tuple[int, int]
"""From a row (or image) to behind another one."""


def divided(height: int, slices: int) -> list[Rows]:
    """Rows of each slice; none is empty."""
    bounds = [height * at // slices for at in range(slices + 1)]
    return list(pairwise(bounds))


def window_at(graph: Graph, node: Node) -> Window:
    """The window of a convolution or pool."""
    kernel = graph.shape(node.inputs[1])[2:] if node.op == "Conv" else node.integers("kernel_shape")
    return window_of(node, kernel)


def operand_rows(graph: Graph, node: Node, rows: Rows, axis: int) -> Rows:
    """The rows (or images) of the operands that those of the result depend on; no window lies in padding alone."""
    if node.op not in WINDOWS or axis == IMAGES:
        return rows
    window, height = window_at(graph, node), graph.shape(node.inputs[0])[2]
    first = rows[0] * window.strides[0] - window.begins[0]
    behind = (rows[1] - 1) * window.strides[0] - window.begins[0] + window.reach[0]
    return max(first, 0), min(behind, height)


def needed(graph: Graph, nodes: tuple[Node, ...], result: str, rows: Rows, axis: int) -> dict[str, Rows]:
    """For rows of a group's result, the rows of each tensor of the group and of its inputs."""
    found: dict[str, Rows] = {result: rows}
    for node in reversed(nodes):
        operand = operand_rows(graph, node, found[node.output], axis)
        for name in operands(graph, node):
            first, behind = found.get(name, operand)
            found[name] = (min(first, operand[0]), max(behind, operand[1]))
    return found


def operands(graph: Graph, node: Node) -> list[str]:
    """The maps that a node reads, each once."""
    names = node.inputs[:1] if node.op in WINDOWS else node.inputs
    return [name for name in dict.fromkeys(names) if name and name not in graph.constants]


def shape_of(graph: Graph, name: str, part: Mapping[str, Rows], axis: int) -> tuple[int, ...]:
    """The shape of a slice of a tensor."""
    return _resized(graph.shape(name), part[name], axis)


def _resized(shape: tuple[int, ...], rows: Rows, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], rows[1] - rows[0], *shape[axis + 1 :])


def sliced(
    graph: Graph, nodes: tuple[Node, ...], result: str, axis: int, slices: int
) -> Iterator[tuple[Node, dict[str, TensorType]]]:
    """The nodes of every slice with the types of what they write, and the Concat that joins the results."""
    names = list[str]()
    for rows in divided(graph.shape(result)[axis], slices):
        part = needed(graph, nodes, result, rows, axis)
        names.append(_name(result, rows, axis))
        yield from _slice_of(graph, nodes, part, names[-1], axis)
    last = graph.producers[result]
    join = Node("Concat", tuple(names), (result,), {"axis": axis}, f"{last.name}/rows", last.sources)
    yield join, {}


def _name(tensor: str, rows: Rows, axis: int) -> str:
    return f"{tensor}@{'rows' if axis == ROWS else 'images'}{rows[0]}:{rows[1]}"


def _slice_of(
    graph: Graph, nodes: tuple[Node, ...], part: Mapping[str, Rows], result: str, axis: int
) -> Iterator[tuple[Node, dict[str, TensorType]]]:
    """One slice: what it computes, and before each node the rows of operands that it cuts out."""
    inside, cut = {node.output for node in nodes}, set[str]()
    for node in nodes:
        rows = operand_rows(graph, node, part[node.output], axis)
        renamed = dict[str, str]()
        for name in operands(graph, node):
            own = f"{result}/{name}" if name in inside else name
            start = part[name][0] if name in inside else 0
            height = part[name][1] - part[name][0] if name in inside else graph.shape(name)[axis]
            renamed[name] = (
                own if (rows[0] - start, rows[1] - start) == (0, height) else _name(f"{result}/{name}", rows, axis)
            )
            if renamed[name] != own and renamed[name] not in cut:
                cut.add(renamed[name])
                yield _cut(graph, name, own, renamed[name], (rows[0] - start, rows[1] - start), axis)
        output = result if node is nodes[-1] else f"{result}/{node.output}"
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        made = replace(node, inputs=inputs, outputs=(output,), name=output)
        made = _padded(graph, made, node, part[node.output]) if axis == ROWS else made
        yield made, {output: TensorType(shape_of(graph, node.output, part, axis))}


def _cut(
    graph: Graph, name: str, source: str, output: str, rows: Rows, axis: int
) -> tuple[Node, dict[str, TensorType]]:
    attrs = {"axes": (axis,), "starts": rows[:1], "ends": rows[1:], "steps": (1,)}
    made = Node("Slice", (source,), (output,), attrs, output)
    return made, {output: TensorType(_resized(graph.shape(name), rows, axis))}


def _padded(graph: Graph, made: Node, node: Node, rows: Rows) -> Node:
    """A window over a slice has padding only where the whole map has it."""
    if node.op not in WINDOWS:
        return made
    window, height = window_at(graph, node), graph.shape(node.inputs[0])[2]
    first = rows[0] * window.strides[0] - window.begins[0]
    behind = (rows[1] - 1) * window.strides[0] - window.begins[0] + window.reach[0]
    pads = (max(-first, 0), window.begins[1], max(behind - height, 0), _right(graph, node, window))
    return made.with_attrs(pads=pads, **({"ceil_mode": 0} if node.op in POOLS else {}))


def _right(graph: Graph, node: Node, window: Window) -> int:
    """Columns of padding to the right that the windows of the result reach."""
    width, out = graph.shape(node.inputs[0])[3], graph.shape(node.output)[3]
    if not window.ceil_mode:
        return window.ends[1]
    return max((out - 1) * window.strides[1] + window.reach[1] - window.begins[1] - width, 0)
