"""Maps that exceed the DTCMs: ranges of layers computed tile by tile, with halo, so that the host moves least.

The nodes of a region are cut into consecutive ranges, each with a grid of tiles (grids). Dynamic programming over
the cuts minimises the cycles of computation (halo is computed more than once) plus those of the transfers, exactly
within its class of plans: contiguous ranges of at most 24 layers, uniform grids of up to 16 x 16 tiles along the
axes that no layer moves elements along, groups of 16 channels for single layers, tiles that the allocation places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npuc.errors import DoesNotFit
from npuc.ir import Graph, Node
from npuc.targets.easynpu.grids import Range, Share, Strip
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.regions import inputs_of
from npuc.targets.easynpu.windows import whole

MOST_NODES = 24
OBJECTIVES = ("time", "traffic", "cycles")
RARELY = 1e-6
"""What the other quantity counts for where only traffic or only cycles is minimised: it breaks ties."""


@dataclass(frozen=True)
class Plan:
    """Strips, one after the other."""

    strips: tuple[Strip, ...]

    @property
    def traffic_words(self) -> int:
        """Maps and weights between host and DTCMs."""
        return sum(strip.traffic_words for strip in self.strips)

    @property
    def compute_cycles(self) -> int:
        """Cycles in which the PEs multiply."""
        return sum(strip.compute_cycles for strip in self.strips)


def plans(graph: Graph, nodes: Sequence[Node], machine: Machine, shares: Mapping[str, Share]) -> dict[str, Plan]:
    """For every objective the plan with the best cuts and grids of a region.

    "time": cycles of computation and transfer; "traffic" or "cycles" alone: the other breaks ties. shares: what
    every node streams and computes. Raises DoesNotFit (E302) where a single node fits in no tile.
    """
    weights = {
        "time": machine.word_bytes / machine.host_bytes_per_cycle,
        "traffic": 1 / RARELY,
        "cycles": RARELY,
    }
    ranges = {
        (start, end): Range(graph, nodes[start:end], machine, shares)
        for end in range(1, len(nodes) + 1)
        for start in range(max(0, end - MOST_NODES), end)
    }
    return {name: _best(graph, nodes, machine, ranges, weight) for name, weight in weights.items()}


def _best(
    graph: Graph,
    nodes: Sequence[Node],
    machine: Machine,
    ranges: Mapping[tuple[int, int], Range],
    weight: float,
) -> Plan:
    """The cheapest cuts: after every node, the cheapest plan up to there."""
    best: list[tuple[float, tuple[Strip, ...]] | None] = [(0.0, ())]
    for end in range(1, len(nodes) + 1):
        options: list[tuple[float, tuple[Strip, ...]]] = []
        for start in range(end - 1, max(-1, end - 1 - MOST_NODES), -1):
            before = best[start]
            if before is not None and (strip := ranges[start, end].best(weight)) is not None:
                cost = strip.compute_cycles + strip.traffic_words * weight
                options.append((before[0] + cost, (*before[1], strip)))
        best.append(min(options, key=lambda option: option[0], default=None))
    found = best[-1]
    if found is None:
        at = next(position for position, each in enumerate(best) if each is None)
        raise _nothing_fits(graph, nodes[at - 1], machine)
    return Plan(found[1])


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
