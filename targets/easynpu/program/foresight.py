"""A quick check that a network fits the machine: one tile of every layer on its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from npuc.errors import DoesNotFit
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.addressing import map_shape
from npuc.targets.easynpu.layers.combining import with_latest_first
from npuc.targets.easynpu.layers.repeated import with_repeated
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.documented import expect_words
from npuc.targets.easynpu.plan.grids import shares_of
from npuc.targets.easynpu.plan.ordering import best_order
from npuc.targets.easynpu.plan.ranges import Range
from npuc.targets.easynpu.plan.regions import outputs_of, regions_of, run_of
from npuc.targets.easynpu.plan.strips import units
from npuc.targets.easynpu.program.emission import emit_job
from npuc.targets.easynpu.program.lowering import placed


def doubtful(graph: Graph, machine: Machine, *, documented: bool) -> bool:
    """Whether a layer of an integer graph may have no tile; False if each has one that was placed and emitted."""
    graph = with_latest_first(with_repeated(graph)) if documented else graph
    try:
        return not all(
            _fits(graph, region.array, machine, documented)
            for region in regions_of(graph, machine, documented=documented)
        )
    except DoesNotFit:
        return True


def _fits(graph: Graph, array: Sequence[Node], machine: Machine, documented: bool) -> bool:
    """Whether every unit of a region has a first tile. Raises DoesNotFit where a tile cannot be emitted."""
    if not array:
        return True
    nodes = best_order(graph, array, machine)
    if documented:
        expect_words(graph, nodes, machine)
    shares = shares_of(
        run_of(
            graph,
            nodes,
            machine,
            {name: whole(graph, name) for name in outputs_of(graph, nodes)},
            documented=documented,
        ).jobs
    )
    points = units(graph, nodes, machine)
    for start, end in pairwise(points):
        unit = nodes[start:end]
        ranges = (Range(graph, unit, machine, shares, documented=documented, fine=fine) for fine in (False, True))
        strip = next(filter(None, (each.smallest() for each in ranges)), None)
        if strip is None:
            return False
        outputs = outputs_of(graph, unit)
        tile = {name: next(strip.grid.windows(map_shape(graph.shape(name)))) for name in outputs}
        run = run_of(graph, unit, machine, tile, documented=documented)
        for each in placed(run, machine, documented) if run.jobs else ():  # data movement may need no word
            for job in each.jobs[:1]:
                emit_job(job, machine)
    return True
