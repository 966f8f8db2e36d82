"""The manifest's tables and the compile report of an NVDLA program."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate, pairwise
from math import ceil, prod
from typing import Any

from npuc.host import step as steps
from npuc.ir import Graph, Node
from npuc.ops.attributes import AVERAGE
from npuc.targets.nvdla.arithmetic.integer import kernel_extents
from npuc.targets.nvdla.emission import kind
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations import pingpong, timing
from npuc.targets.nvdla.operations.operation import Convolution, result_surface
from npuc.targets.nvdla.program.artefact import LARGEST, Segment, engines_as_json
from npuc.targets.nvdla.program.lowering import Emitted, Lowered
from npuc.targets.nvdla.selection import Alternative
from npuc.view import memory_use, totals


def manifest(lowered: Lowered, machine: Machine) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The target's part of the manifest, and the files that it describes."""
    entry = {
        "target": machine.target,
        "machine": machine.as_dict(),
        "steps": [steps.as_json(step) for step in lowered.steps],
        "operations": [asdict(each) for each in lowered.operations],
        **engines_as_json(lowered.engines),
        "dram": asdict(lowered.dram),
        "report": summary(lowered, machine),
    }
    return entry, {"registers.bin": lowered.registers, "weights.bin": lowered.constants}


def summary(lowered: Lowered, machine: Machine) -> dict[str, Any]:
    """The compile report as documented for the command line, without status."""
    graph = lowered.quantised.graph
    rows = [
        _layer(each, taken, lowered, machine)
        for each, taken in zip(lowered.emitted, _clocks_by_layer(lowered, machine), strict=True)
    ]
    total = totals(rows)
    cycles = total["cycles"]
    banks = [each.banks for row in lowered.emitted for each in row.operations if isinstance(each, Convolution)]
    used = max((each.data + each.weights for each in banks), default=0) * machine.bank_bytes
    peak, bound = lowered.activations
    constants = len(lowered.constants)
    return {
        "target": machine.target,
        "machine": machine.name,
        "instructions": sum(len(each.operations) for each in lowered.emitted),
        "segments": sum(isinstance(step, Segment) for step in lowered.steps),
        **total,
        "clock_mhz": machine.clock_mhz,
        "macs_per_cycle": machine.macs_per_cycle(_precision(lowered)),
        "bytes_per_cycle": machine.dram_bytes_per_cycle,
        "frames_per_second": machine.clock_mhz * 1e6 / cycles if cycles else None,
        "memory": {
            "dram": memory_use(peak + constants, LARGEST, bound + constants),
            **_second(lowered, machine),
            "cbuf": memory_use(used, machine.cbuf_bytes, used),
        },
        "traffic_bytes": sum(row["bytes"] for row in rows),
        **({"sram_traffic_bytes": sum(row["sram_bytes"] for row in rows)} if machine.sram_bytes else {}),
        "host_steps": steps.report_steps(lowered.steps),
        "layers": rows,
        "registers": len(lowered.registers) // 16,
        "nodes": len(graph.nodes),
    }


def _second(lowered: Lowered, machine: Machine) -> dict[str, dict[str, int | None]]:
    """The report of the second memory; empty without one."""
    peak, bound = lowered.second
    return {"sram": memory_use(peak, machine.sram_bytes, bound)} if machine.sram_bytes else {}


def _precision(lowered: Lowered) -> str:
    """The precision of the program."""
    return next((each.destination.precision for row in lowered.emitted for each in row.operations), "int8")


def _clocks_by_layer(lowered: Lowered, machine: Machine) -> list[int]:
    """Clocks of each layer, from the end of the previous one to its own end."""
    pairs = [pair for each in lowered.emitted for pair in zip(each.operations, each.admissions, strict=True)]
    ends = pingpong.ends(pairs, machine)
    last = list(accumulate(len(each.operations) for each in lowered.emitted))
    edges = [0, *(ceil(ends[position - 1]) for position in last)]
    return [end - start for start, end in pairwise(edges)]


def _layer(each: Emitted, taken: int, lowered: Lowered, machine: Machine) -> dict[str, Any]:
    """The report's entry of a layer."""
    graph, layer = lowered.quantised.graph, each.layer
    multiplied = macs(graph, layer.node)
    result = result_surface(each.operations[0])
    moved = [timing.moved_by_memory(operation, machine) for operation in each.operations]
    return {
        "name": lowered.quantised.floats.get(layer.name, layer.name),
        "op": kind(each.operations[0]),
        "nodes": list(dict.fromkeys(source for node in layer.nodes for source in node.sources)),
        "macs": multiplied,
        "cycles": taken,
        "ideal_cycles": multiplied / machine.macs_per_cycle(result.precision),
        "precision": result.precision,
        "tile": [result.height, result.width],
        "bytes": sum(dram for dram, _ in moved),
        **({"sram_bytes": sum(second for _, second in moved)} if machine.sram_bytes else {}),
        "bound": timing.bound(each.operations[0], machine),
        "instruction": each.start,
        "jobs": len(each.operations),
        "batches": max((each.batches for each in each.operations if isinstance(each, Convolution)), default=1),
        "weight_form": str(each.choice.form) if each.choice else None,
        "alternatives": [_alternative(form) for form in each.choice.alternatives] if each.choice else None,
    }


def _alternative(found: Alternative) -> dict[str, Any]:
    """A form that a layer's weights could have, with the layer's cost when run alone."""
    return {"weight_form": str(found.form), "cycles": found.cycles, "bytes": found.bytes}


def macs(graph: Graph, node: Node) -> int:
    """Multiply-accumulates of a convolution of the network; 0 for anything else, including averages."""
    if node.op != "NvConv" or AVERAGE(node):
        return 0
    weights = graph.shape(node.inputs[1])
    return prod(graph.shape(node.output)) * prod((weights[1], *kernel_extents(node, weights)))
