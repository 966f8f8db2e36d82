"""The partition has the least cost of docs/regions.md, and is found without trying everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random

import pytest

from npuc.regions import partition
from npuc.regions.partition import Part, PartitionGraph, PartitionNode

PHASES = 4


def drawn(seed: int, count: int) -> PartitionGraph:
    """Blocks that read earlier results; some only the host runs."""
    random, blocks = Random(seed), list[PartitionNode]()
    for at in range(count):
        known = ["in", *(f"t{each}" for each in range(at))]
        reads = dict.fromkeys(random.choice(known) for _ in range(random.choice((1, 1, 2))))
        npu, work = random.random() < 0.6, random.choice((0, 0, 10, 100))
        blocks.append(PartitionNode(f"b{at}", tuple(reads), (f"t{at}",), work, npu))
    sizes = {f"t{at}": random.choice((10, 100)) for at in range(count)} | {"in": 50}
    return PartitionGraph(tuple(blocks), sizes, frozenset({f"t{count - 1}"}))


def part_cost(network: PartitionGraph, place: Mapping[str, tuple[int, bool]]) -> tuple[int, int, int]:
    """MACs on the host, crossings and bytes, as the page defines them. place: part of a block, and whether NPU."""
    work = sum(block.macs for block in network.blocks if not place[block.name][1])
    crossings = moved = 0
    for name in network.sizes:
        source = next((place[each.name] for each in network.blocks if name in each.writes), (-1, False))
        readers = {place[each.name] for each in network.blocks if name in each.reads} - {source}
        stored = source[1] and bool(readers or name in network.outputs)
        times = stored + sum(npu for _, npu in readers)
        crossings, moved = crossings + times, moved + times * network.sizes[name]
    return work, crossings, moved


def places(network: PartitionGraph) -> Iterator[dict[str, tuple[int, bool]]]:
    """All assignments to parts that follow one another, the NPU's even."""
    for phases in product(range(PHASES), repeat=len(network.blocks)):
        place = {each.name: (at, at % 2 == 0) for each, at in zip(network.blocks, phases, strict=True)}
        made = {name: place[each.name][0] for each in network.blocks for name in each.writes}
        legal = (
            (each.on_npu or not place[each.name][1])
            and all(made.get(name, 0) <= place[each.name][0] for name in each.reads)
            for each in network.blocks
        )
        if all(legal):
            yield place


@pytest.mark.parametrize("seed", range(12))
def test_a_small_graph_has_the_least_cost_of_all_assignments(seed: int) -> None:
    network = drawn(seed, 3 + seed % 4)
    parts: tuple[Part, ...] = partition.partition(network)
    found = {name: (at, part.on_npu) for at, part in enumerate(parts) for name in part.blocks}
    assert part_cost(network, found) == min(part_cost(network, each) for each in places(network))


def test_branches_without_work_are_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tuple(PartitionNode(f"b{at}", ("in",), (f"t{at}",), 0, at != 1) for at in range(6))
    sizes = {"in": 10, **{f"t{at}": 10 for at in range(6)}}
    tried, cost = list[Sequence[int]](), PartitionGraph.cost

    def counted(network: PartitionGraph, phases: Sequence[int]) -> partition.PartitionCost:
        tried.append(phases)
        return cost(network, phases)

    monkeypatch.setattr(PartitionGraph, "cost", counted)
    parts = partition.partition(PartitionGraph(blocks, sizes, frozenset(f"t{at}" for at in range(6))))
    assert not any(part.on_npu for part in parts) and len(tried) < 3000
