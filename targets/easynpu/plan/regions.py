"""Which nodes of the integer graph run on the PE array together, and which run on the host in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS, Job, Scope
from npuc.targets.easynpu.layers.nodes import ARRAY_OPS, fused_behind, map_shape, moved_axes, runs_on_array
from npuc.targets.easynpu.layers.selection import select
from npuc.targets.easynpu.layers.views import MapView, views_of
from npuc.targets.easynpu.layers.windows import MapWindow, anchored, chains_of, windows_for
from npuc.targets.easynpu.machine.memory import feature_words
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.placement import Run


@frozen
class Region:
    """Host nodes, followed by array nodes that run without the host until the next region."""

    host: tuple[Node, ...]
    array: tuple[Node, ...]


def regions_of(
    graph: Graph, machine: Machine, *, documented: bool = False, moved: frozenset[str] = frozenset()
) -> tuple[Region, ...]:
    """The graph as alternating host and array phases, as few as its dependencies allow.

    moved: tensors that are moved from and to others. A phase of address arithmetic only goes to the host, as the
    array would compute nothing.
    """
    array = {node for node in array_nodes(graph, machine, documented=documented) if node.output not in moved}
    waiting = list(graph.nodes)
    known = {*graph.inputs, *graph.constants, ""}
    found: list[Region] = []
    while waiting:
        on_host, waiting = _ready(waiting, known, lambda node: node not in array)
        on_array, waiting = _ready(waiting, known, lambda node: node in array)
        computes = any(node.op in ARRAY_OPS for node in on_array)
        found.append(Region(tuple(on_host), tuple(on_array)) if computes else Region((*on_host, *on_array), ()))
    return tuple(found)


MOST_TILES = 16
"""The most tiles along rows, and along columns, if any such grid fits."""


MOVED_BY_ADDRESSES = ("Concat", "Slice", "Split", "DepthToSpace")
"""Parts of maps, and maps built of parts, which the host moves: the document's addresses reach whole maps."""


def array_nodes(graph: Graph, machine: Machine, *, documented: bool = False) -> set[Node]:
    """The nodes that the array runs; address arithmetic only where an array node reads its result.

    Parts of maps along rows or columns, and maps built from them, are excluded if no DTCM holds the map, as it
    cannot be tiled along the same axes.
    """
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        reached = not documented or node.op not in MOVED_BY_ADDRESSES
        if reached and runs_on_array(graph, node) and not _exceeds(graph, node, machine):
            read = any(reader in found for name in node.outputs for reader in graph.readers[name])
            if node.op in ARRAY_OPS or read:
                found.add(node)
    return found


def _exceeds(graph: Graph, node: Node, machine: Machine) -> bool:
    """Whether a node joins or cuts rows or columns of a map too large for a DTCM, even if tiled otherwise."""
    moved = moved_axes(graph, node) & {1, 2} if node.op in ("Slice", "Split", "Concat") else set[int]()
    most = max(machine.fmap_words, machine.skip_words)

    def words(name: str) -> int:
        channels, *extents = map_shape(graph.shape(name))
        tile = [each if axis in moved else -(-each // MOST_TILES) for axis, each in enumerate(extents, 1)]
        return feature_words(channels, *tile)

    return bool(moved) and max(words(name) for name in (*node.inputs, *node.outputs)) > most


def _ready(
    waiting: Sequence[Node], known: set[str], wanted: Callable[[Node], bool]
) -> tuple[list[Node], list[Node]]:
    """The wanted nodes whose inputs are known, in order, and the remaining nodes; updates `known`."""
    taken: list[Node] = []
    rest: list[Node] = []
    for node in waiting:
        if wanted(node) and all(name in known for name in node.inputs):
            known.update(node.outputs)
            taken.append(node)
        else:
            rest.append(node)
    return taken, rest


def run_of(
    graph: Graph,
    nodes: Sequence[Node],
    machine: Machine,
    outputs: Mapping[str, MapWindow],
    *,
    documented: bool,
    borders: tuple[int, ...] = (),
    most_read: int = FIELD_CHANNELS,
) -> Run:
    """The run that computes these windows of its outputs: its jobs and the tensors that it loads and stores.

    borders: channels that no job crosses. most_read: channels that a dense word reads.
    """
    needed = windows_for(graph, nodes, outputs)
    windows = anchored_windows(graph, nodes, machine, needed) if documented else needed
    views = views_of(graph, nodes, windows)
    jobs = select(Scope(graph, nodes, views, windows, machine, documented, borders, most_read))
    return Run(
        tuple(_with_unused_rows(job, needed, windows) for job in jobs),
        {name: views.tensors[name] for name in inputs_of(graph, nodes)},
        {name: _stored_part(views.tensors[name], windows[name], window) for name, window in outputs.items()},
        views,
        windows,
        outputs,
    )


def anchored_windows(
    graph: Graph, nodes: Sequence[Node], machine: Machine, needed: Mapping[str, MapWindow]
) -> Mapping[str, MapWindow]:
    """The windows that documented words compute where these are needed (anchoring)."""
    chains = chains_of(graph, nodes, fused_behind(graph, nodes, machine))
    rows = {name: (np.array(each.rows[0]), np.array(each.rows[1])) for name, each in needed.items()}
    return {
        name: replace(needed[name], rows=(int(low), int(high)))
        for name, (low, high) in anchored(graph, chains, rows).items()
    }


def _with_unused_rows(job: Job, needed: Mapping[str, MapWindow], windows: Mapping[str, MapWindow]) -> Job:
    result = job.stages[-1].node.output
    unused = needed[result].rows[0] - windows[result].rows[0] if result in needed else 0
    return replace(job, unused_rows=unused) if unused else job


def _stored_part(view: MapView, computed: MapWindow, stored: MapWindow) -> MapView:
    """The part of a tensor's view that is stored, without any halo that is computed with it."""
    row, column = stored.rows[0] - computed.rows[0], stored.columns[0] - computed.columns[0]
    return view.window((0, row, column), (view.channels, *stored.shape[1:]))


def inputs_of(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The tensors that the nodes read but do not write, in order."""
    written = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name not in graph.constants)
    return tuple(name for name in read if name not in written)


def outputs_of(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The tensors of the nodes that are read outside them, in order."""
    inside = set(nodes)

    def leaves(name: str) -> bool:
        return name in graph.outputs or any(reader not in inside for reader in graph.readers[name])

    return tuple(name for node in nodes for name in node.outputs if leaves(name))
