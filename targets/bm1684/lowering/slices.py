"""Slices of a graph's tensors: the rows (or images) they depend on, and the nodes that compute a slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from npuc.ir import Graph, Node, TensorType
from npuc.ops.attributes import COORDINATES, KERNEL_SHAPE, OUTPUT_PADDING, RESIZE_MODE, SCALES
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering.resizing import repeats
from npuc.targets.bm1684.machine.local_memory import ceil_div
from npuc.text.escaping import Names

IMAGES, ROWS = 0, 2
"""The axes of slices."""
POOLS = ("MaxPool", "AveragePool")
WINDOWS = ("Conv", "IntConv", *POOLS)
TAKING_ONE = (*WINDOWS, "ConvTranspose", "Resize")
"""Operators that read one map, with rows that depend on the operator."""

Rows = tuple[int, int]
"""Rows (or images) [first, behind)."""
Made = tuple[Node, dict[str, TensorType], str]
"""A node, the types of its outputs, and the tensor that its result is a slice of."""


def divide_rows(height: int, slices: int) -> list[Rows]:
    """The rows of each slice; none is empty if slices <= height."""
    bounds = [height * at // slices for at in range(slices + 1)]
    return list(pairwise(bounds))


def window_at(graph: Graph, node: Node) -> Window:
    """The window of a convolution or pool."""
    kernel = graph.shape(node.inputs[1])[2:] if "Conv" in node.op else KERNEL_SHAPE(node)
    return window_of(node, kernel)


def operand_rows(graph: Graph, node: Node, rows: Rows, axis: int) -> Rows:
    """The operand rows (or images) that rows of the result read; no window may be entirely in the padding."""
    if node.op not in TAKING_ONE or axis == IMAGES:
        return rows
    height = graph.shape(node.inputs[0])[2]
    if node.op == "Resize":
        return _enlarged_rows(graph, node, rows)
    window = window_at(graph, node)
    if node.op == "ConvTranspose":
        first = ceil_div(rows[0] + window.begins[0] - window.reach[0] + 1, window.strides[0])
        behind = (rows[1] - 1 + window.begins[0]) // window.strides[0] + 1
        return max(first, 0), min(behind, height)
    first = rows[0] * window.strides[0] - window.begins[0]
    behind = (rows[1] - 1) * window.strides[0] - window.begins[0] + window.reach[0]
    return max(first, 0), min(behind, height)


def factor(graph: Graph, node: Node) -> int:
    """The factor by which a Resize multiplies the rows."""
    return graph.shape(node.output)[2] // graph.shape(node.inputs[0])[2]


def _enlarged_rows(graph: Graph, node: Node, rows: Rows) -> Rows:
    """The input rows of a Resize by a whole factor, with one neighbour on both sides if it interpolates."""
    times, halo = factor(graph, node), 0 if RESIZE_MODE(node) == "nearest" else 1
    first, behind = rows[0] // times - halo, (rows[1] - 1) // times + 1 + halo
    return max(first, 0), min(behind, graph.shape(node.inputs[0])[2])


def is_sliceable(graph: Graph, node: Node) -> bool:
    """Whether slices of a ConvTranspose or Resize can be computed by nodes of the same operator."""
    if node.op == "ConvTranspose":
        window = window_at(graph, node)
        more = OUTPUT_PADDING(node) or (0, 0)
        return window.reach[0] >= window.strides[0] and more[0] <= window.ends[0] and window.begins[0] >= 0
    shape, result = graph.shape(node.inputs[0]), graph.shape(node.output)
    mode, kind = RESIZE_MODE(node), COORDINATES(node)
    whole = shape[:2] == result[:2] and SCALES(node)[2] == result[2] // shape[2]
    if mode == "nearest":
        return whole and repeats(node)
    times = result[2] // shape[2]
    exact = times & (times - 1) == 0  # sampling positions in a slice are those in the whole, to the bit
    return whole and mode == "linear" and exact and kind in ("half_pixel", "asymmetric")


def needed_rows(graph: Graph, nodes: tuple[Node, ...], result: str, rows: Rows, axis: int) -> dict[str, Rows]:
    """The rows of each tensor and input of a group that rows of its result depend on."""
    found: dict[str, Rows] = {result: rows}
    for node in reversed(nodes):
        operand = operand_rows(graph, node, found[node.output], axis)
        for name in operands(graph, node):
            first, behind = found.get(name, operand)
            found[name] = (min(first, operand[0]), max(behind, operand[1]))
    return found


def operands(graph: Graph, node: Node) -> list[str]:
    """The distinct maps that a node reads."""
    names = node.inputs[:1] if node.op in TAKING_ONE else node.inputs
    return [name for name in dict.fromkeys(names) if name and name not in graph.constants]


def shape_of(graph: Graph, name: str, part: Mapping[str, Rows], axis: int) -> tuple[int, ...]:
    """The shape of a slice of a tensor."""
    return _with_extent(graph.shape(name), part[name], axis)


def _with_extent(shape: tuple[int, ...], rows: Rows, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], rows[1] - rows[0], *shape[axis + 1 :])


def slice_nodes(
    graph: Graph, nodes: tuple[Node, ...], result: str, axis: int, slices: int, fresh: Names
) -> Iterator[Made]:
    """The nodes of every slice, and the Concat that joins the results."""
    names = list[str]()
    for rows in divide_rows(graph.shape(result)[axis], slices):
        part = needed_rows(graph, nodes, result, rows, axis)
        names.append(fresh.new(_stem(result, rows, axis)))
        yield from _slice_of(graph, nodes, part, names[-1], axis, fresh)
    last = graph.producers[result]
    join = Node("Concat", tuple(names), (result,), {"axis": axis}, f"{last.name}/rows", last.sources)
    yield join, {}, result


def _stem(tensor: str, rows: Rows, axis: int) -> str:
    return f"{tensor}@{'rows' if axis == ROWS else 'images'}{rows[0]}:{rows[1]}"


def _slice_of(
    graph: Graph, nodes: tuple[Node, ...], part: Mapping[str, Rows], result: str, axis: int, fresh: Names
) -> Iterator[Made]:
    """The nodes of one slice, each after the Slices that cut out the operand rows it reads."""
    inside, cut = {node.output for node in nodes}, set[str]()
    for node in nodes:
        rows = operand_rows(graph, node, part[node.output], axis)
        renamed = dict[str, str]()
        for name in operands(graph, node):
            own = fresh.of(f"{result}/{name}") if name in inside else name
            start = part[name][0] if name in inside else 0
            height = part[name][1] - part[name][0] if name in inside else graph.shape(name)[axis]
            whole = (rows[0] - start, rows[1] - start) == (0, height)
            renamed[name] = own if whole else fresh.of(_stem(f"{result}/{name}", rows, axis))
            if renamed[name] != own and renamed[name] not in cut:
                cut.add(renamed[name])
                yield _cut(graph, name, own, renamed[name], (rows[0] - start, rows[1] - start), axis)
        output = result if node is nodes[-1] else fresh.of(f"{result}/{node.output}")
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        made = replace(node, inputs=inputs, outputs=(output,), name=output)
        if node.op == "Resize":
            yield from _slice_resize(graph, made, node, part[node.output], axis, fresh)
            continue
        made = _slice_padding(graph, made, node, part[node.output]) if axis == ROWS else made
        yield made, {output: TensorType(shape_of(graph, node.output, part, axis))}, node.output


def _slice_resize(graph: Graph, made: Node, node: Node, rows: Rows, axis: int, fresh: Names) -> Iterator[Made]:
    """A Resize of the rows that it needs, and a Slice of its result if only part of that is wanted."""
    low, high = operand_rows(graph, node, rows, axis)
    times = factor(graph, node) if axis == ROWS else 1
    whole = _with_extent(graph.shape(node.output), (low * times, high * times), axis)
    wanted = (rows[0] - low * times, rows[1] - low * times)
    if wanted == (0, (high - low) * times):
        yield made.with_attrs(sizes=whole), {made.output: TensorType(whole)}, node.output
        return
    name = fresh.new(f"{made.output}/whole")
    yield replace(made, outputs=(name,), name=name).with_attrs(sizes=whole), {name: TensorType(whole)}, node.output
    attrs = {"axes": (axis,), "starts": wanted[:1], "ends": wanted[1:], "steps": (1,)}
    cut = Node("Slice", (name,), made.outputs, attrs, made.output)
    yield cut, {made.output: TensorType(_with_extent(whole, wanted, axis))}, node.output


def _cut(graph: Graph, name: str, source: str, output: str, rows: Rows, axis: int) -> Made:
    attrs = {"axes": (axis,), "starts": rows[:1], "ends": rows[1:], "steps": (1,)}
    made = Node("Slice", (source,), (output,), attrs, output)
    return made, {output: TensorType(_with_extent(graph.shape(name), rows, axis))}, name


def _slice_padding(graph: Graph, made: Node, node: Node, rows: Rows) -> Node:
    """The node with the padding of a slice: rows are padded only at the borders of the whole map."""
    if node.op == "ConvTranspose":
        return _slice_conv_transpose(graph, made, node, rows)
    if node.op not in WINDOWS:
        return made
    window, height = window_at(graph, node), graph.shape(node.inputs[0])[2]
    first = rows[0] * window.strides[0] - window.begins[0]
    behind = (rows[1] - 1) * window.strides[0] - window.begins[0] + window.reach[0]
    pads = (max(-first, 0), window.begins[1], max(behind - height, 0), _right_padding(graph, node, window))
    return made.with_attrs(pads=pads, **({"ceil_mode": 0} if node.op in POOLS else {}))


def _slice_conv_transpose(graph: Graph, made: Node, node: Node, rows: Rows) -> Node:
    """A ConvTranspose of some rows, with pads that crop its result to the wanted rows."""
    window, (low, high) = window_at(graph, node), operand_rows(graph, node, rows, ROWS)
    stride, more = window.strides[0], (OUTPUT_PADDING(node) or (0, 0))
    begin = rows[0] + window.begins[0] - low * stride
    end = (high - low - 1) * stride + window.reach[0] - begin - (rows[1] - rows[0])
    pads = (begin, window.begins[1], max(end, 0), window.ends[1])
    return made.with_attrs(pads=pads, output_padding=(max(-end, 0), more[1]))


def _right_padding(graph: Graph, node: Node, window: Window) -> int:
    """The columns of padding on the right that the windows of the result reach."""
    width, out = graph.shape(node.inputs[0])[3], graph.shape(node.output)[3]
    if not window.ceil_mode:
        return window.ends[1]
    return max((out - 1) * window.strides[1] + window.reach[1] - window.begins[1] - width, 0)
