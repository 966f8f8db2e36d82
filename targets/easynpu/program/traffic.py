"""Traffic between host and DTCMs, with what every program moves and the traffic of the best plan.

What every program moves are the elements that outputs depend on, once and without the unused lanes of words: of
maps that enter the array first and leave it last, and of weights. Equal kernels count once, in whatever order
their weights lie, and zeros, biases, tables and what lowering adds do not count. The division between array and
host is that of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import AVERAGE, AXES, AXIS, GROUP, KERNEL_SHAPE, SELECTS, STARTS, STEPS
from npuc.ops.windows import window_of
from npuc.targets.easynpu.layers.addressing import split_offsets
from npuc.targets.easynpu.layers.fusion import POINTWISE
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Layer, Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.strips import OBJECTIVES, StripPlan
from npuc.targets.easynpu.program.artefact import Segment, TensorMove
from npuc.targets.easynpu.program.lowering import Lowered

Part = tuple[Array, ...]
"""For every axis of a tensor, which of its elements belong to the part."""
ALIKE = (*POINTWISE, "IntAdd", "IntMul", "IntSum", "QuantizeLinear", "DequantizeLinear")
"""Every element depends on the same element of the operands."""


def least_bytes(graph: Graph, nodes: Collection[Node], loaded: set[str], stored: set[str]) -> int:
    """The bound. nodes: those that the array computes; loaded, stored: the tensors that the program moves."""
    parts = _depended_on(graph, _largest)
    maps = sum(_size(parts[name]) for name in _borders(graph, loaded, stored) if name in parts)
    return maps + sum(map(len, _kernels(graph, nodes, _depended_on(graph, _of_all_channels))))


def _depended_on(graph: Graph, merge: Callable[[Sequence[Part]], Part]) -> dict[str, Part]:
    """For every tensor what the outputs depend on, of the parts that readers need; none where it is unknown."""
    found = {name: _whole(graph, name) for name in graph.outputs}
    for node in reversed(graph.nodes):
        for output, name in product(node.outputs, dict.fromkeys(node.inputs)):
            if output not in found or name in graph.constants:
                continue
            parts = [*_read(graph, node, name, output, found[output]), *([found[name]] if name in found else [])]
            parts = [part for part in parts if _size(part)]
            if parts:
                found[name] = merge(parts)
    return found


def _size(part: Part) -> int:
    return prod(int(each.sum()) for each in part)


def _largest(parts: Sequence[Part]) -> Part:
    return max(parts, key=_size)


def _of_all_channels(parts: Sequence[Part]) -> Part:
    """All rows and columns of every channel of which some element is in a part."""
    if not parts[0]:  # a scalar
        return ()
    channels = np.logical_or.reduce([part[1] for part in parts if len(part) > 1] or [parts[0][0]])
    return tuple(channels if axis == 1 else np.ones_like(each) for axis, each in enumerate(parts[0]))


def _whole(graph: Graph, name: str) -> Part:
    return tuple(np.ones(extent, np.bool_) for extent in graph.shape(name))


def _read(graph: Graph, node: Node, name: str, output: str, wanted: Part) -> Iterator[Part]:
    """Parts of an operand that a part of a result depends on."""
    shape = graph.shape(name)
    if node.op in ("IntConv", "MaxPool"):
        if name == node.inputs[0] and len(shape) == 4:
            yield from _windows(graph, node, wanted)
    elif node.op in ALIKE and len(shape) == len(wanted):
        pairs = zip(wanted, shape, strict=True)
        yield tuple(each if len(each) == extent else np.array([each.any()]) for each, extent in pairs)
    elif node.op in ("Slice", "Split"):
        starts, steps = {}, dict[int, int]()
        if node.op == "Split":
            starts[AXIS(node)] = split_offsets(graph, node)[node.outputs.index(output)]
        else:
            starts = dict(zip(AXES(node), STARTS(node), strict=True))
            steps = dict(zip(AXES(node), STEPS(node), strict=True))
        part = tuple(np.zeros(extent, np.bool_) for extent in shape)
        for axis, each in enumerate(wanted):
            part[axis][starts.get(axis, 0) + np.flatnonzero(each) * steps.get(axis, 1)] = True
        yield part
    elif node.op == "Concat":
        axis, at = AXIS(node), node.inputs.index(name)
        first = sum(graph.shape(each)[axis] for each in node.inputs[:at])
        yield tuple(each[first : first + shape[axis]] if a == axis else each for a, each in enumerate(wanted))
    elif _size(wanted) == prod(graph.shape(output)) and graph.tensors[output].size == graph.tensors[name].size:
        yield _whole(graph, name)  # a movement, or a function of all elements


def _windows(graph: Graph, node: Node, wanted: Part) -> Iterator[Part]:
    """What windows read: where channels have no zero taps, all of their pixels; else those of any one tap."""
    x = graph.shape(node.inputs[0])
    kernel = graph.shape(node.inputs[1])[2:] if node.op == "IntConv" else KERNEL_SHAPE(node)
    if node.op == "IntConv":
        met = _met(graph, node, wanted[1], x[1])
    else:
        met = np.broadcast_to(wanted[1][:, None, None], (x[1], *kernel))
    window = window_of(node, (kernel[0], kernel[1]))

    def pixels(axis: int, taps: Sequence[int]) -> Array:
        found = np.zeros(x[2 + axis], np.bool_)
        rows = np.flatnonzero(wanted[2 + axis]) * window.strides[axis] - window.begins[axis]
        at = np.add.outer(np.array(taps) * window.dilations[axis], rows)
        found[at[(at >= 0) & (at < len(found))]] = True
        return found

    every = [range(extent) for extent in kernel]
    yield wanted[0], np.all(met, axis=(1, 2)), pixels(0, every[0]), pixels(1, every[1])
    if not met.all():
        for row, column in product(*every):
            yield wanted[0], met[:, row, column], pixels(0, [row]), pixels(1, [column])


def _met(graph: Graph, node: Node, wanted: Array, channels: int) -> Array:
    """(Ci, Hk, Wk): the taps of input channels that have weights other than zero."""
    w = graph.constants[node.inputs[1]] != 0
    if GROUP(node) == 1:
        return w[wanted].any(axis=0)
    if GROUP(node) == channels == len(w):
        return w[:, 0] & wanted[:, None, None]
    return np.zeros((channels, *w.shape[2:]), np.bool_)


def _kernels(graph: Graph, nodes: Collection[Node], parts: dict[str, Part]) -> set[bytes]:
    """The weights other than zero of every distinct kernel of more than one tap."""
    found: set[bytes] = set()
    for node in nodes:
        if node.op == "IntConv" and not AVERAGE(node) and not SELECTS(node) and node.output in parts:
            kernels = graph.constants[node.inputs[1]][parts[node.output][1]]
            found |= {np.sort(each[each != 0]).tobytes() for each in kernels if (each != 0).sum() > 1}
    return found


def _borders(graph: Graph, loaded: set[str], stored: set[str]) -> set[str]:
    """The maps that enter the array first and those that leave it last, which every program moves."""
    behind = set(stored)
    """Tensors that depend on a result of the array."""
    for node in graph.nodes:
        if behind.intersection(node.inputs):
            behind.update(node.outputs)
    leaving: set[str] = set()
    waiting, known = list(graph.outputs), set[str]()
    while waiting:
        name = waiting.pop()
        if name in stored:
            leaving.add(name)
        elif name not in known and name in graph.producers:
            waiting += graph.producers[name].inputs
        known.add(name)
    return (loaded - behind) | leaving


def host_traffic(lowered: Lowered, machine: Machine) -> dict[str, Any]:
    """Bytes between host and DTCMs, and those that every program moves (bounds).

    optimum_bytes: what the best plan of its class moves (strips). plans: for every objective, what its best plan
    moves, and the cycles in which it recomputes halo. computed_macs: MACs that the words perform, including halo
    and the zeros of grouped convolutions.
    """
    graph = lowered.quantised.graph
    segments = [step for step in lowered.steps if isinstance(step, Segment)]
    moves = [move for segment in segments for move in (*segment.loads, *segment.stores)]
    images = [image for segment in segments for image in segment.images]
    maps = sum(_words(move) for move in moves)
    weights = sum(image.words for image in images if image.memory == "weight")
    stored = {move.tensor for segment in segments for move in segment.stores}
    loaded = {move.tensor for segment in segments for move in segment.loads}
    nodes = dict.fromkeys(stage.node for job in lowered.jobs for stage in job.placed.job.stages)
    computed = sum(multiplied(stage.word) for job in lowered.jobs for stage in job.placed.job.stages)
    return {
        "map_bytes": maps * machine.word_bytes,
        "weight_bytes": weights * machine.word_bytes,
        "instruction_bytes": sum(image.words for image in images if image.memory == "itcm") * isa.WORD_BYTES,
        "least_bytes": least_bytes(graph, nodes, loaded, stored),
        "optimum_bytes": _optimum(lowered.plans, maps + weights, machine),
        "plans": [_row(objective, lowered.plans, machine) for objective in OBJECTIVES],
        "computed_macs": computed,
    }


def time(cycles: int, traffic: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Cycles of all transfers, and of computation and transfers one after the other, as plans weigh them."""
    size = sum(traffic[each] for each in ("map_bytes", "weight_bytes", "instruction_bytes"))
    transfers = -(-size // machine.host_bytes_per_cycle)
    return {
        "bytes_per_cycle": machine.host_bytes_per_cycle,
        "transfer_cycles": transfers,
        "cycles_with_transfers": cycles + transfers,
    }


def _row(objective: str, plans: Sequence[Mapping[str, StripPlan]], machine: Machine) -> dict[str, Any]:
    """The cost of the best plan for an objective, over all runs of array nodes."""
    chosen = [each[objective] for each in plans]
    return {
        "objective": objective,
        "bytes": sum(plan.traffic_words for plan in chosen) * machine.word_bytes,
        "halo_cycles": sum(plan.halo_cycles for plan in chosen),
    }


def _optimum(plans: Sequence[Mapping[str, StripPlan]], moved: int, machine: Machine) -> int:
    """The least traffic of the class, in bytes, or this program's if maps that are still resident save more."""
    return min(sum(each["traffic"].traffic_words for each in plans), moved) * machine.word_bytes


def multiplied(word: Layer | Reshape) -> int:
    """MACs that a convolution's word performs; 0 for any other word."""
    operation = word.operation if isinstance(word, Layer) else None
    if not isinstance(word, Layer) or operation is None or not operation.mnemonic.startswith(("conv", "dwconv")):
        return 0
    return word.Ho * word.Wo * word.Co * word.Hk * word.Wk * (word.Ci if is_dense(word) else 1)


def _words(move: TensorMove) -> int:
    return -(-move.channels // isa.WORD_BYTES) * move.height * move.width
