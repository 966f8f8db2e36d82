"""Removes layout changes inside the network; they remain only at its inputs and outputs.

Models from TensorFlow compute in (N, H, W, C) and wrap every convolution in two Transposes. Between the Transposes
are regions of operators that can compute in any layout. A whole region is moved to the layout of one of its
neighbours if that makes the Transposes around it cheaper; Transposes that then meet their inverse cancel.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import AXES, KEEPDIMS, PERM
from npuc.passes.cleanup.clutter import drop_no_op
from npuc.passes.rewriting.layout import compose, inverse, may_move, moved_inputs, moved_node, moves_nothing
from npuc.passes.rewriting.rules import Rewriter, sweep

Perm = tuple[int, ...]

AT_THE_EDGE = 0.999
"""Factor on the cost of a Transpose of a graph input or to a graph output, where it is preferred."""

FREE_OF_MOVES = 0.5
"""The cost, in elements, of a Transpose that keeps the order of elements: it becomes a Reshape."""


def eliminate_transposes(graph: Graph) -> Graph:
    """Cancels Transposes, moves them to the edges of the network, and folds them into weights.

    A Transpose before Reshape and Gemm is folded into the weight's columns; one before a reduction that drops
    axes into the numbers of the axes; one that only moves axes of extent 1 becomes a Reshape.
    """
    if not any(node.op == "Transpose" for node in graph.nodes):
        return graph
    rewriter, names = Rewriter(graph), MovedNames()
    moved = True
    while moved:
        while sweep(rewriter, _compose, _permute_weight, _renumber_axes, drop_no_op):
            pass
        moved = _move_regions(rewriter, names)
    sweep(rewriter, _as_reshape, drop_no_op)
    return rewriter.finish()


# rules


def _compose(rewriter: Rewriter, node: Node) -> bool:
    """Transpose of Transpose becomes a single one, or an existing one."""
    first = rewriter.producer(node.inputs[0]) if node.op == "Transpose" else None
    if first is None or first.op != "Transpose":
        return False
    perm = compose(PERM(first), PERM(node))
    there = _existing_transpose(rewriter, first.inputs[0], perm)
    if there is not None and node.output not in rewriter.outputs:
        rewriter.drop(node, there)
        return True
    sources = rewriter.sources(first, node)
    rewriter.replace(node, replace(node, inputs=first.inputs, attrs={"perm": perm}, sources=sources))
    return True


def _following_gemm(rewriter: Rewriter, reshape: Node) -> Node | None:
    """The Gemm with a constant weight that is the only reader, if whole samples become its rows."""
    gemm = rewriter.only_reader(reshape.output) if reshape.op == "Reshape" else None
    if gemm is None or gemm.op != "Gemm" or gemm.inputs[1] not in rewriter.constants:
        return None
    shape = rewriter.shape(reshape.inputs[0])
    return gemm if shape[:1] == rewriter.shape(reshape.output)[:1] and gemm.inputs[0] == reshape.output else None


def _permute_weight(rewriter: Rewriter, node: Node) -> bool:
    """Gemm of Reshape of Transpose: permutes the weight's columns to the order before the Transpose."""
    reshape = rewriter.producer(node.inputs[0]) if node.op == "Gemm" else None
    transpose = rewriter.producer(reshape.inputs[0]) if reshape else None
    if reshape is None or transpose is None or transpose.op != "Transpose":
        return False
    perm = PERM(transpose)
    if perm[0] != 0 or _following_gemm(rewriter, reshape) is not node:
        return False
    w = rewriter.constants[node.inputs[1]]
    columns = w.reshape(w.shape[0], *rewriter.shape(transpose.output)[1:]).transpose(inverse(perm))
    weight = rewriter.constant(columns.reshape(w.shape), f"{node.output}/weight")
    flat = rewriter.fresh(f"{reshape.output}@{_digits(inverse(perm))}")
    sources = rewriter.sources(transpose, reshape)
    flatten = replace(reshape, inputs=transpose.inputs, outputs=(flat,), sources=sources)
    rewriter.replace(node, flatten, replace(node, inputs=(flat, weight, *node.inputs[2:])))
    return True


def _renumber(node: Node, perm: Perm) -> tuple[int, ...] | None:
    """The axes of a reduction that drops them, before a Transpose; None if that reorders the remaining axes."""
    if not node.op.startswith("Reduce") or KEEPDIMS(node):
        return None
    axes = AXES(node)
    rest = [axis for at, axis in enumerate(perm) if at not in axes]
    return tuple(sorted(perm[axis] for axis in axes)) if rest == sorted(rest) else None


def _renumber_axes(rewriter: Rewriter, node: Node) -> bool:
    """A reduction that drops axes, of a Transpose: reduces the tensor before the Transpose instead."""
    transpose = rewriter.producer(node.inputs[0]) if node.op.startswith("Reduce") else None
    if transpose is None or transpose.op != "Transpose":
        return False
    axes = _renumber(node, PERM(transpose))
    if axes is None:
        return False
    sources = rewriter.sources(transpose, node)
    rewriter.replace(node, replace(node.with_attrs(axes=axes), inputs=transpose.inputs, sources=sources))
    return True


def _as_reshape(rewriter: Rewriter, node: Node) -> bool:
    """A Transpose that only moves axes of extent 1 becomes a Reshape."""
    if node.op != "Transpose" or not moves_nothing(rewriter.shape(node.inputs[0]), PERM(node)):
        return False
    rewriter.replace(node, replace(node, op="Reshape", attrs={"shape": rewriter.shape(node.output)}))
    return True


# regions


@frozen
class LayoutRegion:
    """Connected nodes that can compute in any layout, by first output in graph order, and the boundary tensors.

    entering: computed outside, read inside. leaving: computed inside, read outside or a graph output.
    """

    nodes: tuple[str, ...]
    entering: tuple[str, ...]
    leaving: tuple[str, ...]


class MovedNames:
    """Names for tensors in other layouts: `x@0231`, or `x` again after moving back."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[str, Perm]] = {}

    def of(self, rewriter: Rewriter, name: str, perm: Perm) -> str:
        """The name of the tensor transposed by perm."""
        origin, first = self._origins.get(name, (name, tuple(range(len(perm)))))
        whole = compose(first, perm)
        if whole == tuple(sorted(whole)) and rewriter.revive(origin):
            return origin
        moved = rewriter.fresh(f"{origin}@{_digits(whole)}")
        self._origins[moved] = (origin, whole)
        return moved


def _regions(rewriter: Rewriter) -> list[LayoutRegion]:
    inside: dict[str, int] = {}  # tensor -> group
    groups: dict[int, list[tuple[Node, tuple[str, ...]]]] = {}
    for count, key in enumerate(rewriter.order()):
        node = rewriter.node(key)
        moved = moved_inputs(rewriter, node) if node else None
        if node is None or moved is None:
            continue
        group = [(node, moved)]
        for old in sorted({inside[name] for name in moved if name in inside}):
            group = groups.pop(old) + group
        groups[count] = group
        inside.update((name, count) for member, _ in group for name in member.outputs if name)
    return [_region(rewriter, group) for group in groups.values()]


def _region(rewriter: Rewriter, group: list[tuple[Node, tuple[str, ...]]]) -> LayoutRegion:
    group = sorted(group, key=lambda member: rewriter.place(member[0]))
    written = dict.fromkeys(name for node, _ in group for name in node.outputs if name)
    entering = dict.fromkeys(name for _, moved in group for name in moved if name not in written)
    members = {node.outputs for node, _ in group}
    leaving = [
        name
        for name in written
        if name in rewriter.outputs or any(reader.outputs not in members for reader in rewriter.readers(name))
    ]
    return LayoutRegion(tuple(node.output for node, _ in group), tuple(entering), tuple(leaving))


def _cost(shape: tuple[int, ...], perm: Perm, at_the_edge: bool) -> float:
    """Elements that a Transpose of a tensor with this shape moves."""
    if perm == tuple(range(len(perm))):
        return 0.0
    moved = FREE_OF_MOVES if moves_nothing(shape, perm) else float(prod(shape))
    return moved * AT_THE_EDGE if at_the_edge else moved


def _candidates(rewriter: Rewriter, region: LayoutRegion) -> list[Perm]:
    """The layouts that would cancel a Transpose at the boundary."""
    found: set[Perm] = set()
    for name in region.entering:
        producer = rewriter.producer(name)
        if producer is not None and producer.op == "Transpose":
            found.add(inverse(PERM(producer)))
    for name in region.leaving:
        found.update(PERM(each) for each in rewriter.readers(name) if each.op == "Transpose")
    return sorted(perm for perm in found if all(may_move(rewriter, name, perm) for name in region.nodes))


def _entering_change(rewriter: Rewriter, name: str, perm: Perm, members: set[str]) -> float:
    """The increase in cost of the Transposes before the region if it moves."""
    producer = rewriter.producer(name)
    if producer is None or producer.op != "Transpose":
        return (
            0.0
            if _stays(rewriter, _existing_transpose(rewriter, name, perm), members)
            else _cost(rewriter.shape(name), perm, name in rewriter.graph.inputs)
        )
    x, first = producer.inputs[0], PERM(producer)
    if _within(rewriter, producer, members):
        shape, between = rewriter.shape(x), compose(compose(inverse(perm), first), perm)
        after = _cost(tuple(shape[axis] for axis in perm), between, at_the_edge=False)
        return after - (0.0 if _stays(rewriter, name, members) else _cost(shape, first, at_the_edge=False))
    at_the_edge = x in rewriter.graph.inputs
    there = _stays(rewriter, _existing_transpose(rewriter, x, compose(first, perm)), members)
    after = 0.0 if there else _cost(rewriter.shape(x), compose(first, perm), at_the_edge)
    return after - (0.0 if _stays(rewriter, name, members) else _cost(rewriter.shape(x), first, at_the_edge))


def _within(rewriter: Rewriter, transpose: Node, members: set[str]) -> bool:
    """Whether a Transpose leads from the region back into it."""
    before = rewriter.producer(transpose.inputs[0])
    inside = any(each.output in members for each in rewriter.readers(transpose.output))
    return before is not None and before.output in members and inside


def _stays(rewriter: Rewriter, name: str | None, members: set[str]) -> bool:
    """Whether a tensor is needed regardless of the region: it is an output, or read outside."""
    if name is None:
        return False
    return name in rewriter.outputs or any(each.output not in members for each in rewriter.readers(name))


def _existing_transpose(rewriter: Rewriter, name: str, perm: Perm) -> str | None:
    """The result of an existing Transpose of the tensor by perm."""
    found = (each for each in rewriter.readers(name) if each.op == "Transpose" and PERM(each) == perm)
    return next((each.output for each in found), None)


def _leaving_change(rewriter: Rewriter, name: str, perm: Perm, members: set[str]) -> float:
    """The increase in cost of the Transposes after the region if it moves."""
    change, back, shape = 0.0, inverse(perm), rewriter.shape(name)
    moved_shape = tuple(shape[axis] for axis in perm)
    others = False
    for reader in rewriter.readers(name):
        if (
            reader.op == "Transpose"
            and _within(rewriter, reader, members)
            and not _stays(rewriter, reader.output, members)
        ):
            continue  # counted where it enters again
        if reader.op == "Transpose":
            last, at_the_edge = PERM(reader), reader.output in rewriter.outputs
            change += _cost(moved_shape, compose(back, last), at_the_edge) - _cost(shape, last, at_the_edge)
        elif reader.output not in members and not _absorbs(rewriter, reader, back):
            others = True
    if others or name in rewriter.outputs:
        change += _cost(moved_shape, back, not others)
    return change


def _absorbs(rewriter: Rewriter, reader: Node, perm: Perm) -> bool:
    """Whether a rule of this pass folds a Transpose in front of the reader into it."""
    return _renumber(reader, perm) is not None or (perm[0] == 0 and _following_gemm(rewriter, reader) is not None)


def _move_regions(rewriter: Rewriter, names: MovedNames) -> bool:
    """Moves regions; neighbours of a moved region wait until the Transposes between them have cancelled."""
    touched: set[str] = set()
    moved = False
    for region in _regions(rewriter):
        if touched.isdisjoint((*region.entering, *region.leaving)):
            neighbours = _across_the_rim(rewriter, region)
            if _move_region(rewriter, region, names):
                touched.update(neighbours)
                moved = True
    return moved


def _across_the_rim(rewriter: Rewriter, region: LayoutRegion) -> list[str]:
    """The tensors on both sides of the Transposes at the boundary, and those that enter."""
    producers = (rewriter.producer(name) for name in region.entering)
    before = [name for node in producers if node is not None and node.op == "Transpose" for name in node.inputs]
    readers = (reader for name in region.leaving for reader in rewriter.readers(name))
    return [*region.entering, *before, *(node.output for node in readers if node.op == "Transpose")]


def _move_region(rewriter: Rewriter, region: LayoutRegion, names: MovedNames) -> bool:
    """Moves the region to the layout that saves most, if any saves something."""
    members = set(region.nodes)

    def change(perm: Perm) -> float:
        before = sum(_entering_change(rewriter, name, perm, members) for name in region.entering)
        return before + sum(_leaving_change(rewriter, name, perm, members) for name in region.leaving)

    candidates = [(change(perm), perm) for perm in _candidates(rewriter, region)]
    best, perm = min(candidates, default=(0.0, ()))
    if best > -1e-6:
        return False
    moved: dict[str, str] = {}
    for key in region.nodes:
        node = rewriter.node(key)
        if node is not None:
            _move_node(rewriter, node, perm, region, names, moved)
    return True


def _move_node(
    rewriter: Rewriter, node: Node, perm: Perm, region: LayoutRegion, names: MovedNames, moved: dict[str, str]
) -> None:
    """Replaces a node by its moved form, with Transposes for tensors that cross the boundary.

    moved: the names of the tensors moved so far, by old name.
    """
    before: list[Node] = []
    for name in moved_inputs(rewriter, node) or ():
        there = _existing_transpose(rewriter, name, perm)
        if name not in moved and there is not None:
            moved[name] = there
        elif name not in moved:
            moved[name] = names.of(rewriter, name, perm)
            before.append(_transpose(name, moved[name], perm))
    results = {name: names.of(rewriter, name, perm) for name in node.outputs if name}
    moved.update(results)
    after = [_transpose(results[name], name, inverse(perm)) for name in results if name in region.leaving]
    rewriter.replace(node, *before, moved_node(rewriter, node, perm, moved), *after)


def _transpose(x: str, y: str, perm: Perm) -> Node:
    return Node("Transpose", (x,), (y,), {"perm": perm}, y)


def _digits(perm: Perm) -> str:
    return "".join(map(str, perm))
