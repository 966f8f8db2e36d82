"""Rows that documented words compute: results anchored at the first row of the maps that they are read with.

Documented words have no offsets: the second operand of a sum lies at the addresses of the result, and a window
starts at the first held row. Where a map is held from an earlier row than a reader needs, the result starts
earlier too. Its first rows take padding in place of rows that the tile does not hold; they are never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.addressing import is_alias, moved_axes
from npuc.targets.easynpu.layers.windows import Rows, Sliding

Ranges = Mapping[str, tuple[Rows, Rows]]


def chains_of(graph: Graph, nodes: Sequence[Node], before: Mapping[Node, Node]) -> list[list[Node]]:
    """The fused chains of a run of nodes, in order; aliases take no words. before: `fused_behind`."""
    inner = set(before.values())
    found: list[list[Node]] = []
    for node in nodes:
        if node in inner or is_alias(graph, node):
            continue
        chain = [node]
        while chain[0] in before:
            chain.insert(0, before[chain[0]])
        found.append(chain)
    return found


def operand_of(chain: Sequence[Node]) -> str | None:
    """The map that a chain adds or multiplies with, if any."""
    combining = next((node for node in chain if node.op in ("IntAdd", "IntMul")), None)
    if combining is None:
        return None
    own = {node.output for node in chain}
    return next((name for name in reversed(combining.inputs[:2]) if name not in own), None)


def _combined(chains: Sequence[Sequence[Node]]) -> dict[str, str]:
    """For each map that a chain begins by adding or multiplying, the other one."""
    pairs = [(chain[0].inputs[0], operand_of(chain)) for chain in chains if chain[0].op in ("IntAdd", "IntMul")]
    return {one: other for pair in pairs for one, other in (pair, pair[::-1]) if one and other and one != other}


def slides(head: Node) -> bool:
    """Whether a chain reads its map through windows, so that padding may stand in for rows above."""
    return head.op in ("IntConv", "MaxPool")


def anchored(graph: Graph, chains: Sequence[Sequence[Node]], needed: Ranges) -> Ranges:
    """The rows of every tensor that are computed where these are needed, for many tiles; some start earlier."""
    found = dict(needed)
    beside = _combined(chains)
    for chain in chains:
        head, result = chain[0], chain[-1].output
        other = operand_of(chain) or beside.get(result)
        if 1 in moved_axes(graph, head):
            continue
        low, high = needed[result]
        first, _ = found[head.inputs[0]]
        if slides(head):
            rows = Sliding.of(graph, head, 1)
            first = (first + rows.padding) // rows.stride
        low = np.minimum(low, first)
        if other is not None:
            low = np.minimum(low, found[other][0])
        found.update((node.output, (low, high)) for node in chain)
    return found
