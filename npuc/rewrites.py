"""Report of the passes, one sentence per rewrite: which nodes became which, the cost, and whether it is exact.

It is derived from the graphs before and after a pass: removed and added nodes, grouped by their ONNX nodes. So
every pass is reported, and a pass is just a function from Graph to Graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP, KERNEL_SHAPE
from npuc.ops.movement import MOVEMENT
from npuc.ops.products import macs
from npuc.ops.windows import SELECTION
from npuc.quantize.scales.constraints import selects
from npuc.text.terminal import count, short

T = TypeVar("T")
Price = Callable[[Graph, Node], int | None]
"""Cycles that a node of the float graph takes alone; None if the target cannot tell."""

KEPT = (*MOVEMENT, *SELECTION, "Gather", "Relu", "Clip")
"""Operators whose results are all elements of their operands, or a limit."""
CONVEX = 1 + 1e-3
"""The largest sum of weight magnitudes in an average or interpolation, with float32 rounding."""


@frozen
class Rewrite:
    """A replacement of nodes by a pass."""

    name: str
    """The pass."""
    nodes: tuple[str, ...]
    """The ONNX nodes that they come from."""
    before: tuple[str, ...]
    after: tuple[str, ...]
    """Operators with their windows; nodes that were only rewired are left out."""
    macs: int
    """Additional multiply-accumulates."""
    cycles: int | None
    """Additional cycles, summed over single nodes; those of the new nodes alone if the old ones could not run."""
    replaces: bool
    """Whether the old nodes could run as well: `cycles` is then a difference."""
    roundings: int
    """Additional roundings to int8 on the way of a value."""
    lsb: int | None
    """The resulting error in steps, one per rounding; None if weights could amplify it."""

    def __str__(self) -> str:
        named = ", ".join(f"'{short(name)}'" for name in self.nodes[:3]) + (", ..." if len(self.nodes) > 3 else "")
        change = f"{_list_kinds(self.before)} -> {_list_kinds(self.after)}"
        costs = [f"{self.macs:+,} MACs"] if self.macs else []
        if self.cycles:
            costs.append(f"{self.cycles:+,} cycles" if self.replaces else f"{count(self.cycles)} cycles")
        return f"{self.name}: {', '.join([f'{named} {change}'.strip(), *costs, self._accuracy()])}"

    def _accuracy(self) -> str:
        if not self.roundings:
            return "exact"
        times = {1: "once", 2: "twice"}.get(self.roundings, f"{self.roundings} times")
        return f"rounded {times} more" + (f" (at most {self.lsb} LSB)" if self.lsb is not None else "")


def rewrites(name: str, before: Graph, after: Graph, price: Price) -> Iterator[Rewrite]:
    """The rewrites of a pass, in graph order."""
    old, new = _by_outputs(before), _by_outputs(after)
    gone = [node for key, node in old.items() if not _is_same(node, new.get(key))]
    made = [node for key, node in new.items() if not _is_same(node, old.get(key))]
    for removed, added in sharing((gone, made), _keys):
        first, second = (
            [_describe(graph, node) for node in nodes] for graph, nodes in ((before, removed), (after, added))
        )
        if Counter(first) != Counter(second):
            yield _rewrite(name, (before, removed, first), (after, added, second), price)


def _rewrite(
    name: str, old: tuple[Graph, list[Node], list[str]], new: tuple[Graph, list[Node], list[str]], price: Price
) -> Rewrite:
    (before, removed, first), (after, added, second) = old, new
    sources = dict.fromkeys(source for node in (*removed, *added) for source in node.sources)
    earlier = _total(price(before, node) for node in removed)
    others = [node for node, what in zip(added, second, strict=True) if earlier is not None or what not in first]
    later = _total(price(after, node) for node in others)
    roundings = max(0, _roundings(after, added) - _roundings(before, removed))
    convex = all(_is_convex(after, node) for node in added)
    return Rewrite(
        name,
        tuple(sources) or tuple(node.name or node.output for node in (*removed, *added)),
        tuple((Counter(first) - Counter(second)).elements()),
        tuple((Counter(second) - Counter(first)).elements()),
        sum(macs(node, after.tensors) for node in added) - sum(macs(node, before.tensors) for node in removed),
        None if later is None else later - (earlier or 0),
        earlier is not None,
        roundings,
        roundings if convex or not roundings else None,
    )


def _total(prices: Iterable[int | None]) -> int | None:
    """The sum, or None if any is unknown."""
    found = list(prices)
    return None if None in found else sum(each for each in found if each is not None)


def _by_outputs(graph: Graph) -> dict[tuple[str, ...], Node]:
    return {node.outputs: node for node in graph.nodes}


def _is_same(node: Node, other: Node | None) -> bool:
    return node is other or (
        other is not None and (node.op, node.inputs, node.attrs) == (other.op, other.inputs, other.attrs)
    )


def _keys(node: Node) -> list[str]:
    """The ONNX nodes and results of a node."""
    return [*(f"node {name}" for name in node.sources), *node.outputs]


def _describe(graph: Graph, node: Node) -> str:
    """An operator with its activation and its window."""
    activation = ACTIVATION(node)
    kernel = KERNEL_SHAPE(node)
    if node.op in ("Conv", "ConvTranspose"):
        kernel = graph.shape(node.inputs[1])[2:]
    elif node.op.startswith("Global"):
        kernel = graph.shape(node.inputs[0])[2:]
    group = GROUP(node)
    depthwise = node.op == "Conv" and 1 < group == graph.shape(node.inputs[0])[1]
    return (
        ("depthwise " if depthwise else "")
        + node.op
        + (f"+{activation}" if activation else "")
        + (f" {'x'.join(map(str, kernel))}" if kernel else "")
        + (f" in {group} groups" if group > 1 and not depthwise else "")
    )


def _list_kinds(described: Sequence[str]) -> str:
    kinds = [f"{number} {what}" if number > 1 else what for what, number in Counter(described).items()]
    return ", ".join([*kinds[:4], *(["..."] if len(kinds) > 4 else [])]) or "nothing"


def _rounds(graph: Graph, node: Node) -> bool:
    """Whether a node computes new values, which int8 rounds."""
    return node.op not in KEPT and not selects(graph, node)


def _roundings(graph: Graph, nodes: Sequence[Node]) -> int:
    """The most roundings on any path through these nodes, which are in graph order."""
    deepest: dict[str, int] = {}
    for node in nodes:
        depth = max((deepest.get(name, 0) for name in node.inputs), default=0) + _rounds(graph, node)
        deepest.update(dict.fromkeys(node.outputs, depth))
    return max(deepest.values(), default=0)


def _is_convex(graph: Graph, node: Node) -> bool:
    """Whether errors of the operands do not grow in the result: selections, averages, interpolation."""
    if not _rounds(graph, node) or node.op.endswith("AveragePool"):
        return True
    weights = graph.constant(node.inputs[1]) if node.op == "Conv" else None
    if weights is None:
        return False
    rows = weights.reshape(len(weights), -1)
    return all(float(np.abs(row).sum()) <= CONVEX for row in rows)


def sharing(
    sides: tuple[Sequence[T], Sequence[T]], keys: Callable[[T], Sequence[Hashable]]
) -> list[tuple[list[T], list[T]]]:
    """The members of both sides in groups that are connected by keys (at least one each), in order.

    >>> sharing((["ab", "c"], ["bd", "e"]), tuple)
    [(['ab'], ['bd']), (['c'], []), ([], ['e'])]
    """
    leader: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    for member in (*sides[0], *sides[1]):
        first, *others = keys(member)
        for other in others:
            leader[find(other)] = find(first)
    found: dict[Hashable, tuple[list[T], list[T]]] = {}
    for side, members in enumerate(sides):
        for member in members:
            found.setdefault(find(keys(member)[0]), ([], []))[side].append(member)
    return list(found.values())
