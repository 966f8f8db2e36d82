"""Partitioning into NPU parts and host regions, in an order in which they can run.

Every block gets a phase: even phases run on the NPU, odd ones on the host, one after the other, so parts are
convex. The cost to be minimised is lexicographic: work on the host (MACs), crossings, bytes that cross, NPU parts,
nodes on the host. A tensor crosses when the NPU stores it for anything outside its part, and each time a part
loads it. Small graphs are searched exactly; in larger ones, connected blocks are moved as long as the cost falls,
starting from the earliest and from the latest phases.
"""

from __future__ import annotations

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
class Block:
    """A node, for the partitioner."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    macs: int
    on_npu: bool
    """Whether the NPU may run it."""


class Cost(NamedTuple):
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
class Network:
    """Blocks in topological order, the size of every tensor in bytes, and the tensors that leave the network."""

    blocks: tuple[Block, ...]
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
        """How often a tensor crosses, and the total bytes."""
        source = phases[self.producer[name]] if name in self.producer else None
        found = {phases[at] for at in self.readers.get(name, ())}
        leaves = name in self.outputs or any(phase != source for phase in found)
        stored = source is not None and source % 2 == 0 and leaves
        loads = sum(phase % 2 == 0 and phase != source for phase in found)
        return stored + loads, (stored + loads) * self.sizes.get(name, 0)

    def cost(self, phases: Sequence[int]) -> Cost:
        """The cost of an assignment of phases."""
        host = [block for block, phase in zip(self.blocks, phases, strict=True) if phase % 2]
        crossed = [self.crossing(name, phases) for name in {*self.producer, *self.readers}]
        return Cost(
            sum(block.macs for block in host),
            sum(times for times, _ in crossed),
            sum(moved for _, moved in crossed),
            _npu_phases(phases),
            len(host),
        )

    def touched(self, moved: Iterable[int]) -> set[str]:
        """The tensors that blocks read or write."""
        return {name for at in moved for name in (*self.blocks[at].reads, *self.blocks[at].writes)}


def _npu_phases(phases: Iterable[int]) -> int:
    return sum(phase % 2 == 0 for phase in set(phases))


def partition(network: Network) -> tuple[Part, ...]:
    """The parts in the order in which they run; a network of which the NPU may run everything is one part."""
    if not network.blocks:
        return ()
    if all(block.on_npu for block in network.blocks):
        return (Part(True, tuple(block.name for block in network.blocks)),)
    starts = [_earliest(network), _latest(network)]
    found = min((_improved(network, phases) for phases in starts), key=network.cost)
    if len(network.blocks) <= EXACT_BLOCKS:
        found = min([found, *_exact(network, max(*found, EXACT_PHASES - 1))], key=network.cost)
    return _parts(network, found)


def _parts(network: Network, phases: Sequence[int]) -> tuple[Part, ...]:
    """Blocks by phase; on the host each connected component is a region."""
    phases = _joined(phases)
    parts: list[Part] = []
    for phase in sorted(set(phases)):
        members = [at for at, each in enumerate(phases) if each == phase]
        groups = _connected(network, members) if phase % 2 else [members]
        parts += [Part(phase % 2 == 0, tuple(network.blocks[at].name for at in group)) for group in groups]
    return tuple(parts)


def _joined(phases: Sequence[int]) -> list[int]:
    """The phases, with the same for all that follow each other on the host without the NPU in between."""
    first: dict[int, int] = {}
    last = None
    for phase in sorted(set(phases)):
        last = last if last is not None and last % 2 == phase % 2 == 1 else phase
        first[phase] = last
    return [first[phase] for phase in phases]


def _connected(network: Network, members: Sequence[int]) -> list[list[int]]:
    """The connected components of blocks, each in order."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(members)
    inside = set(members)
    graph.add_edges_from((at, other) for at in members for other in network.after[at] if other in inside)
    return sorted(sorted(group) for group in nx.connected_components(graph))


def _earliest(network: Network) -> list[int]:
    """Phases with every block as early as possible."""
    phases: list[int] = []
    for block, sources in zip(network.blocks, network.before, strict=True):
        least = max((phases[at] for at in sources), default=0)
        phases.append(_from(least, block.on_npu))
    return phases


def _from(phase: int, on_npu: bool) -> int:
    """The first phase on this processor from `phase` on."""
    return phase + ((phase % 2 == 0) != on_npu)


def _latest(network: Network) -> list[int]:
    """Phases with every block as late as possible, with no more phases than the earliest assignment has."""
    last = max(_earliest(network))
    phases = [0] * len(network.blocks)
    for at in reversed(range(len(network.blocks))):
        most = min((phases[other] for other in network.after[at]), default=last)
        phases[at] = most - ((most % 2 == 0) != network.blocks[at].on_npu)
    shift = min(phases) if min(phases) < 0 else 0
    return [phase - (shift - shift % 2) for phase in phases]


def _exact(network: Network, last: int) -> Iterator[list[int]]:
    """All assignments of phases up to the last one, for a graph of a few blocks."""

    def walk(phases: list[int]) -> Iterator[list[int]]:
        at = len(phases)
        if at == len(network.blocks):
            yield phases
            return
        block = network.blocks[at]
        least = max((phases[source] for source in network.before[at]), default=0)
        for phase in range(least, last + 1):
            if (phase % 2 == 0 and block.on_npu) or (phase % 2 and (not block.on_npu or not block.macs)):
                yield from walk([*phases, phase])

    return walk([])


def _improved(network: Network, start: list[int]) -> list[int]:
    """Phases after all moves that reduce the cost."""
    phases = list(start)
    for _ in range(ROUNDS):
        changed = False
        for moved, phase in _moves(network, phases):
            if _gain(network, phases, moved, phase):
                for at in moved:
                    phases[at] = phase
                changed = True
        if not changed:
            break
    return phases


def _moves(network: Network, phases: list[int]) -> Iterator[tuple[list[int], int]]:
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
        for group in _connected(network, members):
            for target in (phase - 2, phase + 2, phase - 1, phase + 1):
                if 0 <= target <= last and _fits(network, phases, group, target):
                    yield group, target


def _closure(network: Network, phases: Sequence[int], at: int, target: int) -> list[int] | None:
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


def _may(block: Block, phase: int) -> bool:
    """Whether a block may run in a phase: work that the NPU can do stays there."""
    return block.on_npu if phase % 2 == 0 else not (block.on_npu and block.macs)


def _fits(network: Network, phases: Sequence[int], group: Sequence[int], target: int) -> bool:
    inside = set(group)
    return all(
        _may(network.blocks[at], target)
        and all(phases[other] <= target for other in network.before[at] if other not in inside)
        and all(phases[other] >= target for other in network.after[at] if other not in inside)
        for at in group
    )


def _gain(network: Network, phases: list[int], moved: Sequence[int], target: int) -> bool:
    """Whether a move reduces the cost."""
    touched = network.touched(moved)

    def local(these: Sequence[int]) -> Cost:
        crossed = [network.crossing(name, these) for name in touched]
        host = [network.blocks[at] for at in moved if these[at] % 2]
        return Cost(
            sum(block.macs for block in host),
            sum(times for times, _ in crossed),
            sum(size for _, size in crossed),
            _npu_phases(these),
            len(host),
        )

    after = list(phases)
    for at in moved:
        after[at] = target
    return local(after) < local(phases)
