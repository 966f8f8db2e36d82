"""Plans of documented words: the optimum is proved again by lowering every plan of the class, word by word.

What a plan moves is counted from the segments that are lowered: maps by their extents, weights by what a memory of
words still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc import program
from npuc.errors import NpucError
from npuc.ir import Graph, Node
from npuc.ops.attributes import FUSED_INPUT
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from npuc.targets.easynpu.layers.nodes import fused_behind
from npuc.targets.easynpu.layers.rewrites import with_latest_first
from npuc.targets.easynpu.layers.windows import anchored, chains_of, whole
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.grids import Grid, shares_of, tiles_of
from npuc.targets.easynpu.plan.implicit import implicit
from npuc.targets.easynpu.plan.placement import Placement, Streams
from npuc.targets.easynpu.plan.regions import outputs_of, run_of
from npuc.targets.easynpu.plan.strips import StripPlan, plans
from npuc.targets.easynpu.program.lowering import ways_of
from tests.compiled import compilation, verified
from tests.easynpu.test_plans import Layers, every_plan

EASYNPU = target("easynpu")
TINY = Machine(fmap_words=60, skip_words=60, weight_words=330)


def residual() -> Graph:
    """The sum's operand is read by a window too, and two strips hold different rows of it."""
    net = Layers((16, 8, 5))
    y = net.conv("x", 16, kernel=1)
    net.add(net.conv(y, 16), y)
    return net.graph()


def projection() -> Graph:
    """A short-cut with a stride: the map is read twice, by words that need different rows."""
    net = Layers((16, 10, 4))
    y = net.conv("x", 16)
    z = net.conv(y, 16, kernel=1, stride=2)
    net.add(net.conv(net.conv(y, 16, stride=2), 16), z, **{FUSED_INPUT.name: 0})
    return net.graph()


def short_cut() -> Graph:
    """What the convolution reads is also added to its result: it must lie in both DTCMs."""
    net = Layers((16, 9, 5))
    net.add(net.conv("x", 16), "x", **{FUSED_INPUT.name: 0})
    return net.graph()


def depthwise_and_pool() -> Graph:
    net = Layers((32, 8, 6))
    net.conv(net.pool(net.conv(net.conv("x", 32, group=32), 48, kernel=1)), 48, group=48)
    return net.graph()


def heavy_weights() -> Graph:
    """48 outputs of 16 inputs take 3 * (5 + 144) words, more than the weight DTCM: parts of the channels."""
    net = Layers((16, 5, 5))
    net.conv(net.conv("x", 48), 16, kernel=1)
    return net.graph()


NETS: dict[str, Callable[[], Graph]] = {
    each.__name__: each for each in (residual, projection, short_cut, depthwise_and_pool, heavy_weights)
}


class Weights:
    """The weight DTCM, word by word: which word of which layer each address holds."""

    def __init__(self, machine: Machine) -> None:
        self.held: list[Any] = [None] * machine.weight_words

    def run(self, segment: Placement) -> int:
        """The words up to the last one that is not already there, loaded in order."""
        words = [
            (job.job.start[0], stage.node.output, number)
            for job in segment.jobs
            for stage in job.job.stages
            for number in range(len(stage.block))
        ]
        missing = [at for at, word in enumerate(words) if self.held[at] != word]
        self.held[: len(words)] = words
        return max(missing, default=-1) + 1


def moved(segments: Sequence[Placement], machine: Machine) -> int:
    """Words of maps and weights that the host moves."""
    weights = Weights(machine)
    maps = [each.window.words for segment in segments for each in (*segment.inputs, *segment.outputs)]
    return sum(maps) + sum(weights.run(segment) for segment in segments)


def multiplied(segments: Sequence[Placement]) -> int:
    """Cycles in which the PEs multiply; copies between the ends of the Fmap DTCM do not count."""
    words = [
        stage.word
        for segment in segments
        for job in segment.jobs
        for stage in job.job.stages
        if not stage.node.output.endswith("/copy")
    ]
    layers = [word for word in words if isinstance(word, Layer)]
    return sum(
        each.Ho * each.Wo * -(-each.Co // 16) * each.Hk * each.Wk * (each.Ci if is_dense(each) else 1)
        for each in layers
    )


def lowered(graph: Graph, nodes: Sequence[Node], grid: Grid, machine: Machine) -> list[Placement] | None:
    """The segments of all tiles; None where documented words cannot express one."""
    found: list[Placement] = []
    try:
        for tile in tiles_of(graph, nodes, grid):
            found += implicit(run_of(graph, nodes, machine, tile, documented=True), machine)
    except NpucError:
        return None
    return found or None


def grids(graph: Graph, nodes: Sequence[Node]) -> Iterator[Grid]:
    """Every number of tiles along every axis; channels only if no layer but the first sums over them."""
    depth, height, width = graph.shape(nodes[-1].output)[1:]
    extents = (-(-depth // 16), height, width)
    behind = all(node.op != "IntConv" or node.integer("group") > 1 for node in nodes[1:])
    counts = [[n for n in range(1, each + 1) if n == 1 or -(-each // n) < -(-each // (n - 1))] for each in extents]
    for parts, rows, columns in product(counts[0] if behind else [1], *counts[1:]):
        yield Grid(parts, rows, columns)


@cache
def every_range(name: str) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Words and cycles of every grid of every range that documented words can compute."""
    graph = NETS[name]()
    ranges = {each for plan in every_plan(graph, TINY) for each in plan}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for first, end in ranges:
        nodes = graph.nodes[first:end]
        runs = [lowered(graph, nodes, grid, TINY) for grid in grids(graph, nodes)]
        found[first, end] = [(moved(each, TINY), multiplied(each)) for each in runs if each is not None]
    return found


def planned(name: str) -> dict[str, StripPlan]:
    graph = NETS[name]()
    outputs = {each: whole(graph, each) for each in outputs_of(graph, graph.nodes)}
    run = run_of(graph, graph.nodes, TINY, outputs, documented=True)
    return plans(graph, graph.nodes, TINY, shares_of(run.jobs), documented=True)


@pytest.mark.parametrize(("objective", "weight"), [("traffic", 1e6), ("time", 16.0)])
@pytest.mark.parametrize("name", NETS)
def test_no_documented_plan_of_the_class_costs_less(name: str, objective: str, weight: float) -> None:
    plan, costs = planned(name)[objective], every_range(name)
    least = min(
        sum(
            min((words * weight + cycles for words, cycles in costs[each]), default=float("inf"))
            for each in ranges
        )
        for ranges in every_plan(NETS[name](), TINY)
    )
    cost = plan.traffic_words * weight + plan.halo_cycles + plan.least_cycles
    assert cost == pytest.approx(least, rel=1e-12)
    assert plan.strips


def test_behind_a_range_of_one_tile_the_first_rows_are_read_where_they_lie() -> None:
    """Ranges of three tiles, one and two; the last one would otherwise begin with the tile at the bottom."""
    net = Layers((16, 16, 4))
    net.conv(net.conv(net.conv(net.conv("x", 16, stride=2), 16), 16), 32)
    graph, machine = net.graph(), Machine(fmap_words=40, skip_words=40, weight_words=700)
    [(best, placements)] = ways_of(graph, graph.nodes, machine, True, "time")
    found = [*placements()]
    assert [strip.grid.rows for strip in best["time"].strips] == [3, 1, 2]
    (written,), (read,) = found[3].outputs, found[4].inputs
    assert (read.tensor, read.place, read.window.rows[0]) == (written.tensor, written.place, 0)


def test_results_begin_where_the_other_operand_of_a_sum_is_held() -> None:
    """Rows 4..7 of the sum need rows 3..7 of what the second convolution reads.

    All rows from 3 on are held, so the convolution's result, to which they are added, begins with row 3 too.
    """
    graph = residual()
    before = fused_behind(graph, graph.nodes, TINY)
    rows = {"t2": (4, 8), "t1": (4, 8), "t0": (3, 8), "x": (3, 8)}
    needed = {name: (np.array(low), np.array(high)) for name, (low, high) in rows.items()}
    found = anchored(graph, chains_of(graph, graph.nodes, before), needed)
    assert {name: (int(low), int(high)) for name, (low, high) in found.items()} == {
        "x": (3, 8),
        "t0": (3, 8),
        "t1": (3, 8),
        "t2": (3, 8),
    }


def test_a_stream_loses_the_words_that_others_overwrite() -> None:
    streams = Streams()
    assert streams.load("a", 30) == 30
    assert streams.load("b", 100) == 100
    assert streams.load("a", 30) == 30
    assert streams.load("b", 100) == 30
    assert streams.load("b", 100) == 0


def compiled(shared: Path, name: str, **options: Any) -> program.Program:
    model = shared / "models" / f"{name}.onnx"
    return compilation(Request(model, EASYNPU, Options(level="0", flags={"isa": "documented"}, **options))).program


@pytest.mark.parametrize("objective", ["traffic", "time"])
def test_documented_resnet8_moves_at_most_twice_what_it_must_at_first(objective: str, shared: Path) -> None:
    found = compiled(shared, "tiny_resnet8_fp32", objective=objective)
    traffic = found.manifest["report"]["host_traffic"]
    words = traffic["map_bytes"] + traffic["weight_bytes"]
    first = traffic["least_bytes"] + 24 * 1024  # the weight DTCM starts empty
    assert traffic["least_bytes"] <= traffic["optimum_bytes"] <= words <= 2 * first


@pytest.mark.parametrize("seed", range(3))
def test_strips_of_a_residual_network_are_bit_exact(seed: int, shared: Path, tmp_path: Path) -> None:
    """Rows above a strip are padding to its words; what they give is neither stored nor compared."""
    machine = tmp_path / "machine.toml"
    machine.write_text(f"fmap_words = {(900, 1100, 1280)[seed]}\nskip_words = {(700, 1280, 900)[seed]}\n")
    model = shared / "models" / "tiny_resnet8_fp32.onnx"
    options = Options(level="0", machine=str(machine), flags={"isa": "documented"})
    loaded, report = verified(Request(model, EASYNPU, options), tmp_path)
    assert any(each.get("unused_rows") for each in loaded.manifest["instructions"])
    assert report["bit_exact"] is True
    expect_legal(loaded)


def test_a_sum_reads_its_latest_operand(tmp_path: Path) -> None:
    """The sum names the earlier map first; documented words read the result before it and keep the other."""
    net = Layers((16, 6, 6))
    y = net.conv("x", 16)
    net.add(y, net.conv(net.conv(y, 16), 16))
    net.constants |= {name: each.astype(np.int8) for name, each in net.constants.items() if name.endswith(".s")}
    graph = net.graph()
    assert with_latest_first(graph).nodes[-1].inputs == ("t2", "t0")
    unchanged = replace(graph, nodes=(*graph.nodes[:-1], replace(graph.nodes[-1], inputs=("t2", "t0"))))
    assert with_latest_first(unchanged) is unchanged
