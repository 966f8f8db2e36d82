"""The compile report of an EasyNPU program, and the manifest's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from npuc.host import step as steps
from npuc.ir import Graph
from npuc.ops.attributes import ERROR_LSB, PADDING, SELECTS
from npuc.ops.macs import macs
from npuc.quantize.arithmetic.ranges import bound
from npuc.quantize.network.construction import Quantised
from npuc.targets.easynpu.layers.jobs import Stage
from npuc.targets.easynpu.layers.tiling import costs
from npuc.targets.easynpu.machine import isa, listing
from npuc.targets.easynpu.machine.isa import Layer, Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.apart import TensorWindow
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.program.emission import EmittedJob
from npuc.targets.easynpu.program.lowering import Lowered
from npuc.targets.easynpu.program.traffic import host_traffic, multiplied, time
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
    bounds = [found for node in nodes.values() if (found := bound(quantised.graph, node)) is not None]
    result = next((stage.tensor for stage in reversed(stages) if stage.tensor), job.placed.job.result.buffer)
    return {
        "name": quantised.floats.get(result, result),
        "op": "+".join(listing.mnemonic(stage.word) for stage in stages),
        "nodes": list(dict.fromkeys(source for node in nodes.values() for source in node.sources)),
        "macs": own,
        **costs([each.tiling for _, each in parts], machine),
        "ideal_cycles": min(own, executed) / machine.macs_per_cycle,
        "instruction": first,
        "weight_words": len(job.weights),
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
        "host_steps": steps.reported(lowered.steps),
        "layers": rows,
    }


def manifest(lowered: Lowered, machine: Machine, *, documented: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The target's part of the manifest, and the files it describes."""
    entry = {
        "target": "easynpu",
        "machine": machine.as_dict(),
        "isa": "documented" if documented else isa.needed(lowered.words),
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
