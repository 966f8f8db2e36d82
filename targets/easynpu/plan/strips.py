"""Maps that exceed the DTCMs: ranges of layers computed tile by tile, with halo, at the least cost.

The nodes of a region are cut into consecutive ranges, each with a grid of tiles (grids). Dynamic programming over
the cuts minimises the cycles of computation (halo is computed more than once) plus those of the transfers. It is
exact within its class of plans: contiguous ranges of at most 32 units, uniform grids of up to 16 x 16 tiles along
the axes that no layer moves elements along, groups of 16 channels for single layers, tiles that the allocator can
place. Only where no such plan exists are there finer grids, of up to 8192 tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import inf, prod

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import AXIS
from npuc.targets.easynpu.flags import OBJECTIVE
from npuc.targets.easynpu.layers.nodes import fused_behind, interleaved, is_part, map_shape
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.documented import readings_of
from npuc.targets.easynpu.plan.grids import Grid, JobShare, Strip, together, weights
from npuc.targets.easynpu.plan.placement import Placement
from npuc.targets.easynpu.plan.ranges import Range, parts_of, whole_peak
from npuc.targets.easynpu.plan.regions import inputs_of, outputs_of

MOST_UNITS = 32
"""The most units of a range. A unit is a layer with everything that a cut never separates from it."""
OBJECTIVES = OBJECTIVE.values


@frozen
class StripPlan:
    """Strips in order of execution."""

    strips: tuple[Strip, ...]
    least_cycles: int
    """Cycles in which the PEs multiply if nothing is computed twice."""

    @property
    def traffic_words(self) -> int:
        """Maps and weights between host and DTCMs."""
        return sum(strip.traffic_words for strip in self.strips)

    @property
    def halo_cycles(self) -> int:
        """Cycles in which the PEs recompute what another tile has computed."""
        return sum(strip.compute_cycles for strip in self.strips) - self.least_cycles


def untiled(
    graph: Graph,
    nodes: Sequence[Node],
    machine: Machine,
    shares: Mapping[str, JobShare],
    found: Sequence[Placement],
) -> StripPlan:
    """The plan of a region that fits as a whole, given its segments; no other plan computes less."""
    moved = [each.window.words for segment in found for each in (*segment.inputs, *segment.outputs)]
    traffic = sum(moved) + together(shares.values())[0]
    cycles = least_cycles(graph, nodes, machine, shares)
    return StripPlan((Strip(tuple(nodes), Grid(), traffic, cycles),), cycles)


def least_cycles(graph: Graph, nodes: Sequence[Node], machine: Machine, shares: Mapping[str, JobShare]) -> int:
    """Cycles in which the PEs multiply if every pixel is computed once."""
    names = [name for node in nodes for name in node.outputs if name in shares]
    return sum(shares[name].row_cycles(machine) * prod(map_shape(graph.shape(name))[1:]) for name in names)


def plans(
    graph: Graph,
    nodes: Sequence[Node],
    machine: Machine,
    shares: Mapping[str, JobShare],
    *,
    documented: bool = False,
) -> dict[str, StripPlan]:
    """The best cuts and grids of a region, by objective.

    "time": cycles of computation and transfer; "traffic": that alone, cycles of computation break ties. shares:
    what every node streams and computes. Raises DoesNotFit (E302) where a single node fits in no tile.
    """
    in_turn, readings = parts_of(graph, machine), readings_of(graph, machine)
    by_unit, by_node = units(graph, nodes, machine), range(len(nodes) + 1)
    for fine, points in product((False, True), (by_unit, by_node)):

        def ranged(start: int, end: int, tail: Range | None, fine: bool = fine) -> Range:
            part = nodes[start:end]
            return Range(graph, part, machine, shares, tail, in_turn, readings, documented=documented, fine=fine)

        found = _best(points, ranged, weights(machine))
        least = least_cycles(graph, nodes, machine, shares)
        fitting = {name: StripPlan(strips, least) for name, strips in found.items()}
        if fitting:
            return fitting
    finest = (Range(graph, [node], machine, shares, documented=documented, fine=True) for node in nodes)
    raise _nothing_fits(graph, next(each.nodes[0] for each in finest if not each.best(1)), machine)


def units(graph: Graph, nodes: Sequence[Node], machine: Machine) -> list[int]:
    """The positions at which a region may be cut: before a node, or at the end.

    Never separated are a layer and the nodes fused behind it, a part of a map and its readers, and a concatenation
    or interleaving and its operands.
    """
    at = {node: position for position, node in enumerate(nodes)}
    spans = [(at[producer], at[reader]) for reader, producer in fused_behind(graph, nodes, machine).items()]
    for position, node in enumerate(nodes):
        readers = [each for name in node.outputs for each in graph.readers[name] if each in at]
        if is_part(graph, node) or (len(readers) == 1 and _joins(graph, node, readers[0])):
            spans.append((position, max((at[each] for each in readers), default=position)))
    inside = {between for first, last in spans for between in range(first + 1, last + 1)}
    return [position for position in range(len(nodes) + 1) if position not in inside]


def _joins(graph: Graph, node: Node, reader: Node) -> bool:
    """Whether a node's result exists only to be joined: along rows or columns, or as an interleaved phase."""
    return (reader.op == "Concat" and AXIS(reader) > 1) or interleaved(graph, reader) is node


def _best(
    points: Sequence[int], ranged: Callable[[int, int, Range | None], Range], weights: Mapping[str, float]
) -> dict[str, tuple[Strip, ...]]:
    """The strips of the cheapest cuts by objective, by the cheapest plan up to each point; none if nothing fits.

    ranged: the range between two points, given another with the same end and a later start. Only the ranges of one
    end are held, and only those that begin where a plan ends. A range is evaluated only while its cheapest strip,
    if it fits, would improve on the best plan found.
    """
    best: dict[int, dict[str, tuple[float, tuple[Strip, ...]]]] = {points[0]: dict.fromkeys(weights, (0.0, ()))}
    for position, end in enumerate(points[1:], 1):
        ranges: dict[int, Range] = {}
        tail: Range | None = None
        for start in reversed(points[max(0, position - MOST_UNITS) : position]):
            if start in best:
                tail = ranges[start] = ranged(start, end, tail)
        if not ranges:
            return {}
        found: dict[str, tuple[float, tuple[Strip, ...]]] = {}
        for name, weight in weights.items():
            limit = inf
            for hoped, start in sorted(
                (best[at][name][0] + each.least(weight), at) for at, each in ranges.items()
            ):
                if hoped >= limit:
                    break
                cost, before = best[start][name]
                strip = ranges[start].best(weight, limit - cost)
                if strip is not None:
                    limit = cost + strip.cost(weight)
                    found[name] = limit, (*before, strip)
        if found:
            best[end] = found
    return {name: strips for name, (_, strips) in best.get(points[-1], {}).items()}


def _nothing_fits(graph: Graph, node: Node, machine: Machine) -> DoesNotFit:
    needed = sum(whole(graph, name).words for name in (*inputs_of(graph, [node]), *node.outputs))
    return DoesNotFit(
        "E302",
        f"no tile of it fits: input and output take {needed} words as a whole",
        node=node.name,
        op=node.op.removeprefix("Int"),
        tensor=node.output,
        limit=f"fmap_words = {machine.fmap_words}, skip_words = {machine.skip_words}",
        remedy=f"a machine with fmap_words = {needed} (--machine FILE)",
    )


def best_order(graph: Graph, nodes: Sequence[Node], machine: Machine) -> tuple[Node, ...]:
    """The nodes in the order whose live maps take the fewest words at the peak, the network's own if that has it.

    The others are depth first: at every join the branch with the larger (or the smaller) result is finished first.
    """
    outputs = outputs_of(graph, nodes)
    sizes = {name: graph.tensors[name].size for node in nodes for name in node.outputs}
    orders = [
        tuple(nodes),
        depth_first(graph, nodes, outputs, lambda name: -sizes[name]),
        depth_first(graph, nodes, outputs, lambda name: sizes[name]),
    ]
    return min(orders, key=lambda order: whole_peak(graph, order, outputs, machine))


def depth_first(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], first: Callable[[str], int]
) -> tuple[Node, ...]:
    """A topological order that finishes one operand of a node before it begins the next, smallest key first."""
    inside = set(nodes)
    ordered: dict[Node, Node] = {}
    waiting: list[tuple[Node, bool]] = [(graph.producers[name], False) for name in reversed(outputs)]
    while waiting:
        node, complete = waiting.pop()
        if node in ordered:
            continue
        if complete:
            ordered[node] = node
            continue
        waiting.append((node, True))
        names = [name for name in node.inputs if name in graph.producers and graph.producers[name] in inside]
        waiting += [(graph.producers[name], False) for name in sorted(names, key=first, reverse=True)]
    return tuple(ordered.values())
