"""Partitioning into NPU parts and host regions, in an order in which they can run.

Every block gets a phase: even phases run on the NPU, odd ones on the host, one after the other, so parts are
convex. The cost to be minimised is lexicographic: work on the host (MACs), crossings, bytes that cross, NPU parts,
nodes on the host. A tensor crosses when the NPU stores it for anything outside its part, and each time a part
loads it. Small graphs are searched exactly; in larger ones, connected blocks are moved as long as the cost falls,
starting from the earliest and from the latest phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from npuc.frozen import frozen

EXACT_BLOCKS = 8
"""The most blocks in a graph that is searched exactly."""
EXACT_PHASES = 6
ROUNDS = 20
"""The most rounds of moves."""


@frozen
class PartitionNode:
    """A node, for the partitioner."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    macs: int
    on_npu: bool
    """Whether the NPU may run it."""


class PartitionCost(NamedTuple):
    """The cost, compared lexicographically."""

    host_macs: int
    crossings: int
    bytes: int
    parts: int
    host_blocks: int


@frozen
class Part:
    """Blocks that run together."""

    on_npu: bool
    blocks: tuple[str, ...]


@frozen
class PartitionGraph:
    """Blocks in topological order, the size of every tensor in bytes, and the tensors that leave the network."""

    blocks: tuple[PartitionNode, ...]
    sizes: Mapping[str, int]
    outputs: frozenset[str]
    readers: Mapping[str, tuple[int, ...]] = field(init=False)
    producer: Mapping[str, int] = field(init=False)
    before: tuple[tuple[int, ...], ...] = field(init=False)
    after: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        producer = {name: at for at, block in enumerate(self.blocks) for name in block.writes}
        readers: dict[str, list[int]] = {}
        for at, block in enumerate(self.blocks):
            for name in dict.fromkeys(block.reads):
                readers.setdefault(name, []).append(at)
        before = [
            tuple(dict.fromkeys(producer[name] for name in block.reads if name in producer))
            for block in self.blocks
        ]
        after: list[dict[int, None]] = [{} for _ in self.blocks]
        for at, sources in enumerate(before):
            for source in sources:
                after[source][at] = None
        object.__setattr__(self, "producer", producer)
        object.__setattr__(self, "readers", {name: tuple(each) for name, each in readers.items()})
        object.__setattr__(self, "before", tuple(before))
        object.__setattr__(self, "after", tuple(map(tuple, after)))

    def crossing(self, name: str, phases: Sequence[int]) -> tuple[int, int]:
        """How often a tensor crosses between the blocks that have phases, and the total bytes."""
        source, known = phases[self.producer[name]] if name in self.producer else None, len(phases)
        found = {phases[at] for at in self.readers.get(name, ()) if at < known}
        leaves = name in self.outputs or any(phase != source for phase in found)
        stored = source is not None and source % 2 == 0 and leaves
        loads = sum(phase % 2 == 0 and phase != source for phase in found)
        return stored + loads, (stored + loads) * self.sizes.get(name, 0)

    def cost(self, phases: Sequence[int]) -> PartitionCost:
        """The cost of phases for the first blocks: with more of them no part of it falls."""
        host = [block for block, phase in zip(self.blocks, phases, strict=False) if phase % 2]
        crossed = [self.crossing(name, phases) for name in self.tensors_of(range(len(phases)))]
        return PartitionCost(
            sum(block.macs for block in host),
            sum(times for times, _ in crossed),
            sum(moved for _, moved in crossed),
            _npu_phases(phases),
            len(host),
        )

    def tensors_of(self, moved: Iterable[int]) -> set[str]:
        """The tensors that blocks read or write."""
        return {name for at in moved for name in (*self.blocks[at].reads, *self.blocks[at].writes)}


def _npu_phases(phases: Iterable[int]) -> int:
    return sum(phase % 2 == 0 for phase in set(phases))


def partition(network: PartitionGraph) -> tuple[Part, ...]:
    """The parts in the order in which they run; a network of which the NPU may run everything is one part."""
    if not network.blocks:
        return ()
    if all(block.on_npu for block in network.blocks):
        return (Part(True, tuple(block.name for block in network.blocks)),)
    starts = [_earliest(network), _latest(network)]
    found = min((_improve(network, phases) for phases in starts), key=network.cost)
    if len(network.blocks) <= EXACT_BLOCKS:
        found = _exact(network, found, max(*found, EXACT_PHASES - 1))
    return _parts(network, found)


def _parts(network: PartitionGraph, phases: Sequence[int]) -> tuple[Part, ...]:
    """Blocks by phase; on the host each connected component is a region."""
    phases = _join_phases(phases)
    parts: list[Part] = []
    for phase in sorted(set(phases)):
        members = [at for at, each in enumerate(phases) if each == phase]
        groups = _components(network, members) if phase % 2 else [members]
        parts += [Part(phase % 2 == 0, tuple(network.blocks[at].name for at in group)) for group in groups]
    return tuple(parts)


def _join_phases(phases: Sequence[int]) -> list[int]:
    """The phases, with the same for all that follow each other on the host without the NPU in between."""
    first: dict[int, int] = {}
    last = None
    for phase in sorted(set(phases)):
        last = last if last is not None and last % 2 == phase % 2 == 1 else phase
        first[phase] = last
    return [first[phase] for phase in phases]


def _components(network: PartitionGraph, members: Sequence[int]) -> list[list[int]]:
    """The connected components of blocks, each in order."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(members)
    inside = set(members)
    graph.add_edges_from((at, other) for at in members for other in network.after[at] if other in inside)
    return sorted(sorted(group) for group in nx.connected_components(graph))


def _earliest(network: PartitionGraph) -> list[int]:
    """Phases with every block as early as possible."""
    phases: list[int] = []
    for block, sources in zip(network.blocks, network.before, strict=True):
        least = max((phases[at] for at in sources), default=0)
        phases.append(_from(least, block.on_npu))
    return phases


def _from(phase: int, on_npu: bool) -> int:
    """The first phase on this processor from `phase` on."""
    return phase + ((phase % 2 == 0) != on_npu)


def _latest(network: PartitionGraph) -> list[int]:
    """Phases with every block as late as possible, with no more phases than the earliest assignment has."""
    last = max(_earliest(network))
    phases = [0] * len(network.blocks)
    for at in reversed(range(len(network.blocks))):
        most = min((phases[other] for other in network.after[at]), default=last)
        phases[at] = most - ((most % 2 == 0) != network.blocks[at].on_npu)
    shift = min(phases) if min(phases) < 0 else 0
    return [phase - (shift - shift % 2) for phase in phases]


def _exact(network: PartitionGraph, found: list[int], last: int) -> list[int]:
    """The best phases up to the last one, for a graph of a few blocks: the first of those that cost the same.

    The search leaves out phases of the first blocks that alone cost as much as the best phases so far. MACs do not
    count: no choice changes those on the host.
    """
    best, least = found, network.cost(found)[1:]
    waiting: list[list[int]] = [[]]
    while waiting:
        phases = waiting.pop()
        cost = network.cost(phases)[1:]
        if cost >= least:
            continue
        if len(phases) == len(network.blocks):
            best, least = phases, cost
            continue
        block, sources = network.blocks[len(phases)], network.before[len(phases)]
        first = max((phases[source] for source in sources), default=0)
        usable = (phase for phase in range(first, last + 1) if _may(block, phase))
        waiting += reversed([[*phases, phase] for phase in usable])
    return best


def _may(block: PartitionNode, phase: int) -> bool:
    """Whether a block may run in a phase: work that the NPU can do stays there."""
    return block.on_npu if phase % 2 == 0 else not (block.on_npu and block.macs)


def _improve(network: PartitionGraph, start: list[int]) -> list[int]:
    """Phases after all moves that reduce the cost."""
    phases, members = list(start), Counter(start)
    for _ in range(ROUNDS):
        changed = False
        for moved, phase in _moves(network, phases):
            changed |= _gain(network, phases, members, moved, phase)
        if not changed:
            break
    return phases


def _moves(network: PartitionGraph, phases: list[int]) -> Iterator[tuple[list[int], int]]:
    """Blocks that may move to another phase together, given the phases at the time of the request."""
    last = max(phases) + 1
    for at in range(len(network.blocks)):
        for step in (-2, 2, -1, 1):
            target = phases[at] + step
            moved = _closure(network, phases, at, target) if 0 <= target <= last else None
            if moved is not None:
                yield moved, target
    for phase in sorted(set(phases)):
        members = [at for at, each in enumerate(phases) if each == phase]
        for group in _components(network, members):
            for target in (phase - 2, phase + 2, phase - 1, phase + 1):
                if 0 <= target <= last and _fits(network, phases, group, target):
                    yield group, target


def _closure(network: PartitionGraph, phases: Sequence[int], at: int, target: int) -> list[int] | None:
    """The block and all blocks that must move with it; None if one of them may not."""
    found, waiting = {at}, [at]
    earlier = target < phases[at]
    while waiting:
        each = waiting.pop()
        if not _may(network.blocks[each], target):
            return None
        for other in network.before[each] if earlier else network.after[each]:
            beyond = phases[other] > target if earlier else phases[other] < target
            if beyond and other not in found:
                found.add(other)
                waiting.append(other)
    return sorted(found)


def _fits(network: PartitionGraph, phases: Sequence[int], group: Sequence[int], target: int) -> bool:
    inside = set(group)
    return all(
        _may(network.blocks[at], target)
        and all(phases[other] <= target for other in network.before[at] if other not in inside)
        and all(phases[other] >= target for other in network.after[at] if other not in inside)
        for at in group
    )


def _gain(
    network: PartitionGraph, phases: list[int], members: Counter[int], moved: Sequence[int], target: int
) -> bool:
    """Moves the blocks if that reduces the cost; whether it does. members: the number of blocks of each phase."""
    touched = network.tensors_of(moved)
    before, left = _local(network, phases, touched, moved), [phases[at] for at in moved]
    gone = Counter(left)
    for at in moved:
        phases[at] = target
    new = target % 2 == 0 and not members[target]
    parts = new - sum(phase % 2 == 0 and members[phase] == count for phase, count in gone.items())
    if _local(network, phases, touched, moved, parts) < before:
        members.subtract(gone)
        members[target] += len(moved)
        return True
    for at, phase in zip(moved, left, strict=True):
        phases[at] = phase
    return False


def _local(
    network: PartitionGraph, phases: Sequence[int], touched: Iterable[str], moved: Sequence[int], parts: int = 0
) -> PartitionCost:
    """The part of the cost that moves of these blocks change. parts: more NPU parts than before."""
    crossed = [network.crossing(name, phases) for name in touched]
    host = [network.blocks[at] for at in moved if phases[at] % 2]
    times, moved_bytes = sum(each for each, _ in crossed), sum(each for _, each in crossed)
    return PartitionCost(sum(block.macs for block in host), times, moved_bytes, parts, len(host))
