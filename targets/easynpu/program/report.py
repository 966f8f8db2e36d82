"""The compile report of an EasyNPU program, the manifest's tables, and the traffic between host and DTCMs.

What every inference moves are the elements that outputs depend on, once and without the unused lanes of words: of
maps that enter the array first and leave it last, and of weights beyond those that the weight DTCM can keep. Equal
kernels count once, in whatever order their weights lie, and zeros, biases, tables and what lowering adds do not
count. The division between array and host is that of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from math import prod
from typing import Any

import numpy as np

from npuc.host import step as steps
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import (
    AVERAGE,
    AXES,
    AXIS,
    ERROR_LSB,
    GROUP,
    KERNEL_SHAPE,
    PADDING,
    SELECTS,
    STARTS,
    STEPS,
)
from npuc.ops.products import macs
from npuc.ops.windows import window_of
from npuc.quantize.arithmetic.weights import node_bound
from npuc.quantize.network.construction import Quantised
from npuc.targets.easynpu.layers.jobs import Stage
from npuc.targets.easynpu.layers.nodes import POINTWISE, split_offsets
from npuc.targets.easynpu.layers.tiling import costs
from npuc.targets.easynpu.machine import isa, listing
from npuc.targets.easynpu.machine.isa import Layer, Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.apart import TensorWindow
from npuc.targets.easynpu.plan.strips import OBJECTIVES, StripPlan
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.program.emission import EmittedJob
from npuc.targets.easynpu.program.lowering import Lowered
from npuc.view import memory_use, totals


def layers(lowered: Lowered, machine: Machine) -> list[dict[str, Any]]:
    """A row per layer, in order; jobs of tiles and channel chunks of the same nodes form one layer."""
    found: dict[tuple[str, ...], list[tuple[int, EmittedJob]]] = {}
    index = 0
    for job in lowered.jobs:
        names = [stage.node.output for stage in job.placed.job.stages]
        key = tuple(dict.fromkeys(lowered.windows.get(name, TensorWindow(name)).tensor for name in names))
        found.setdefault(key, []).append((index, job))
        index += len(job.words)
    return [_layer(parts, lowered.quantised, machine) for parts in found.values()]


def _layer(parts: Sequence[tuple[int, EmittedJob]], quantised: Quantised, machine: Machine) -> dict[str, Any]:
    """The report fields of a layer, and the certificate of its first tile."""
    first, job = parts[0]
    stages = job.placed.job.stages
    nodes = {stage.node: stage.node for _, each in parts for stage in each.placed.job.stages}
    own = sum(macs(node, quantised.graph.tensors) for node in nodes.values())
    executed = sum(multiplied(stage.word) for _, each in parts for stage in each.placed.job.stages)
    errors = [ERROR_LSB(node) for node in nodes.values() if node.op == "IntTable"]
    bounds = [found for node in nodes.values() if (found := node_bound(quantised.graph, node)) is not None]
    result = next((stage.tensor for stage in reversed(stages) if stage.tensor), job.placed.job.result.buffer)
    return {
        "name": quantised.floats.get(result, result),
        "op": "+".join(listing.mnemonic(stage.word) for stage in stages),
        "nodes": list(dict.fromkeys(source for node in nodes.values() for source in node.sources)),
        "macs": own,
        **costs([each.tiling for _, each in parts], machine),
        "ideal_cycles": min(own, executed) / machine.macs_per_cycle,
        "instruction": first,
        "weight_words": sum(len(stage.block) for stage in stages),
        "table_error_lsb": max(errors) if errors else None,
        "accumulator_bound": max(bounds) if bounds else None,
        "padding_cycles": sum(_padding_cycles(stage) for _, each in parts for stage in each.placed.job.stages),
    }


def _padding_cycles(stage: Stage) -> int:
    """Compute cycles of a word that adds a zero point's padding, or copies a map into it; 0 for other words."""
    node, word = stage.node, stage.word
    if not PADDING(node) or stage.source is None:
        return 0
    if not SELECTS(node) and stage.source.buffer != node.inputs[-1]:
        return 0
    if not isinstance(word, Layer):
        return 0
    return prod((word.Ho, word.Wo, word.Hk, word.Wk, word.Zs)) * (word.Ci if is_dense(word) else 1)


def instruction_table(jobs: Sequence[EmittedJob], graph: Graph) -> list[dict[str, Any]]:
    """For every instruction word, its ONNX nodes and, of a layer word, the part of an int8 tensor it produces."""
    table: list[dict[str, Any]] = []
    for job in jobs:
        stages = iter(job.placed.job.stages)
        sources = list(dict.fromkeys(source for stage in job.placed.job.stages for source in stage.node.sources))
        for word in job.words:
            stage = next(stages) if isinstance(word, (Layer, Reshape)) else None
            unused = job.placed.job.unused_rows if stage else 0
            table.append(
                {
                    "index": len(table),
                    "mnemonic": listing.mnemonic(word),
                    "nodes": list(stage.node.sources) if stage else sources,
                    "tensor": stage.tensor if stage else None,
                    "shape": list(graph.shape(stage.tensor)) if stage and stage.tensor else None,
                    "start": list(job.placed.job.start),
                }
                | ({"unused_rows": unused} if unused else {})
            )
    return table


def summary(lowered: Lowered, machine: Machine) -> dict[str, Any]:
    """The compile report that the command line prints, without status."""
    rows = layers(lowered, machine)
    total = totals(rows)
    traffic = host_traffic(lowered, machine)
    return {
        "target": "easynpu",
        "machine": machine.name,
        "instructions": len(lowered.words),
        "segments": sum(isinstance(step, Segment) for step in lowered.steps),
        **total,
        "padding_cycles": sum(layer["padding_cycles"] for layer in rows),
        "clock_mhz": None,
        "macs_per_cycle": machine.macs_per_cycle,
        "bytes_per_cycle": machine.word_bytes,
        "memory": {
            memory: memory_use(
                *(
                    words * machine.word_bytes
                    for words in (usage.peak, machine.capacity_words(memory), usage.lower_bound)
                )
            )
            for memory, usage in lowered.usage.items()
        },
        "traffic_bytes": traffic["map_bytes"] + traffic["weight_bytes"],
        "host_traffic": {**traffic, **time(total["cycles"], traffic, machine)},
        "host_steps": steps.report_steps(lowered.steps),
        "layers": rows,
    }


def manifest(lowered: Lowered, machine: Machine, *, documented: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The target's part of the manifest, and the files it describes."""
    entry = {
        "target": "easynpu",
        "machine": machine.as_dict(),
        "isa": "documented" if documented else isa.needed_isa(lowered.words),
        "init": [asdict(each) for each in lowered.init],
        "steps": [steps.as_json(step) for step in lowered.steps],
        "instructions": instruction_table(lowered.jobs, lowered.quantised.graph),
        "placements": _placements(lowered),
        "report": summary(lowered, machine),
    }
    return entry, {"itcm.bin": isa.words_to_bytes(lowered.words), "weight.bin": lowered.weights}


def _placements(lowered: Lowered) -> list[dict[str, Any]]:
    """The places of the maps that the host loads and stores: region, address, layout, type, shape, scale."""
    segments = [step for step in lowered.steps if isinstance(step, Segment)]
    return [
        {
            "tensor": move.tensor,
            "direction": direction,
            "segment": number,
            "region": move.place.memory,
            "address": move.place.base,
            "layout": {"order": "HWC16", **{k: v for k, v in asdict(move.place).items() if k != "memory"}},
            "dtype": "int8",
            "shape": [1, move.channels, move.height, move.width],
            "start": list(move.start),
            "scale": lowered.quantised.scales.get(move.tensor),
        }
        for number, segment in enumerate(segments)
        for direction, moves in (("load", segment.loads), ("store", segment.stores))
        for move in moves
    ]


Part = tuple[Array, ...]
"""For every axis of a tensor, which of its elements belong to the part."""
ALIKE = (*POINTWISE, "IntAdd", "IntMul", "IntSum", "QuantizeLinear", "DequantizeLinear")
"""Every element depends on the same element of the operands."""


def _least_bytes(graph: Graph, nodes: Collection[Node], loaded: set[str], stored: set[str], kept: int) -> int:
    """The bound. nodes: those that the array computes; loaded, stored: the tensors that the program moves.

    kept: bytes of weights that a machine keeps from inference to inference.
    """
    parts = _depended_on(graph, _largest)
    maps = sum(_size(parts[name]) for name in _borders(graph, loaded, stored) if name in parts)
    weights = sum(map(len, _kernels(graph, nodes, _depended_on(graph, _of_all_channels))))
    return maps + max(weights - kept, 0)


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
    return set(_origins(graph, loaded - behind)) | leaving


def _origins(graph: Graph, names: Iterable[str]) -> Iterator[str]:
    """The tensors that the host joins and cuts to maps that enter the array."""
    for name in names:
        producer = graph.producers.get(name)
        if producer is not None and producer.op in ("Concat", "Slice"):
            yield from _origins(graph, (each for each in producer.inputs if each not in graph.constants))
        else:
            yield name


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
    maps = sum(move.words for move in moves)
    weights = sum(image.words for image in images if image.memory == "weight")
    stored = {move.tensor for segment in segments for move in segment.stores}
    loaded = {move.tensor for segment in segments for move in segment.loads}
    nodes = dict.fromkeys(stage.node for job in lowered.jobs for stage in job.placed.job.stages)
    computed = sum(multiplied(stage.word) for job in lowered.jobs for stage in job.placed.job.stages)
    return {
        "map_bytes": maps * machine.word_bytes,
        "weight_bytes": weights * machine.word_bytes,
        "instruction_bytes": sum(image.words for image in images if image.memory == "itcm") * isa.WORD_BYTES,
        "initial_bytes": sum(image.words for image in lowered.init) * machine.word_bytes,
        "least_bytes": _least_bytes(graph, nodes, loaded, stored, machine.weight_words * machine.word_bytes),
        "optimum_bytes": _optimum(lowered.plans, maps + weights, machine),
        "plans": [_row(objective, lowered.plans, machine) for objective in OBJECTIVES],
        "computed_macs": computed,
    }


def time(cycles: int, traffic: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Cycles of all transfers, and of computation and transfers one after the other, as plans weigh them.

    The first inference also loads what stays.
    """
    size = sum(traffic[each] for each in ("map_bytes", "weight_bytes", "instruction_bytes"))
    transfers, initial = (-(-each // machine.host_bytes_per_cycle) for each in (size, traffic["initial_bytes"]))
    return {
        "bytes_per_cycle": machine.host_bytes_per_cycle,
        "transfer_cycles": transfers,
        "cycles_with_transfers": cycles + transfers,
        "first_inference_cycles": cycles + transfers + initial,
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
