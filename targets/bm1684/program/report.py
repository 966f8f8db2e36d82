"""The manifest's tables and the compile report of a BM1684 program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from math import ceil, prod
from typing import Any

from npuc.host.step import HostStep, report_steps
from npuc.ir import Graph, Node
from npuc.ops.attributes import FUSED_INPUT
from npuc.ops.products import macs
from npuc.targets.bm1684.lowering.context import SCRATCH, WEIGHTS
from npuc.targets.bm1684.lowering.kernel import Kernel
from npuc.targets.bm1684.lowering.kernel import ParallelRegion as KernelRegion
from npuc.targets.bm1684.lowering.products import alternatives
from npuc.targets.bm1684.lowering.tensors import Lowered
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.plan import pricing
from npuc.targets.bm1684.plan.planner import cost, lower_bound
from npuc.targets.bm1684.program import table
from npuc.targets.bm1684.program.artefact import (
    ELEMENT,
    KERNEL,
    WEIGHTS_FILE,
    Computed,
    Contents,
    KernelPort,
    MemoryRegion,
    Noted,
)
from npuc.targets.bm1684.program.table import CallTable
from npuc.view import memory_use

CHOICES = 5
"""The choices of W that a report shows."""


def contents(
    graph: Graph,
    lowered: Lowered,
    machine: Machine,
    dtypes: Mapping[str, str] | None = None,
    steps: Sequence[HostStep] = (),
) -> Contents:
    """The regions of system memory and the placements in them.

    dtypes: of the kernel's 8-bit inputs and outputs. steps: the host's conversions.
    """
    kinds = dict(dtypes or {})
    ports = [(name, "input", region) for name, region in lowered.inputs.items()]
    ports += [(name, "output", region) for name, region in lowered.outputs.items()]
    regions = [
        MemoryRegion(WEIGHTS, len(lowered.weights), WEIGHTS_FILE),
        MemoryRegion(SCRATCH, lowered.scratch_bytes, None),
    ]
    placements = tuple(
        KernelPort(name, direction, region, 0, "4N" if name in kinds else "continuous", kinds.get(name, "float32"),
                  graph.shape(name))
        for name, direction, region in ports
    )  # fmt: skip
    regions += [MemoryRegion(place.region, place.bytes, None) for place in placements]
    return Contents(machine, KERNEL, tuple(regions), placements, tuple(steps))


def table_of(kernel: Kernel) -> CallTable:
    """The kernel's calls as data."""
    layers = (
        tuple(table.CallRegion((*each.gdma, *each.bdc), bool(each.gdma and each.bdc)) for each in regions)
        for regions in layers_of(kernel)
    )
    return CallTable(tuple(layers))


def layers_of(kernel: Kernel) -> list[list[KernelRegion]]:
    """The regions of every layer: consecutive ones that compute the same tensor."""
    return [list(group) for _, group in groupby(kernel.regions, key=lambda region: kernel.steps[region.step].node)]


def _notes(kernel: Kernel, machine: Machine) -> list[Noted]:
    """The notes of all calls, in order."""
    found: list[Noted] = []
    for region in kernel.regions:
        own = (kernel.steps[region.step] for _ in region.bdc)
        for call, step in zip((*region.gdma, *region.bdc), (*region.owners, *own), strict=True):
            found.append(Noted(step.sources, step.node, pricing.cycles(call, machine)))
    return found


def _layer_descriptions(kernel: Kernel) -> list[Computed]:
    """The descriptions of all layers."""
    steps = (kernel.steps[regions[0].step] for regions in layers_of(kernel))
    return [Computed(step.node, step.op, step.sources) for step in steps]


def _results(graph: Graph, lowered: Lowered, kernel: Kernel, dtype: Callable[[str], str]) -> list[dict[str, Any]]:
    """Where the tensor of every layer of the kernel is at the end of the layer.

    Left out: tensors that the layer only stored and a later one loaded again.
    """
    starts = {place.buffer: place.start for place in kernel.places}
    found: dict[str, dict[str, Any]] = {}
    for number, regions in enumerate(layers_of(kernel)):
        name = kernel.steps[regions[0].step].node
        tensor = lowered.tensors.get(name)
        if tensor is None or tensor.at.buffer not in starts:
            continue
        steps = {region.step for region in regions}
        if all(call.writes != tensor.at.buffer for step in steps for call in kernel.steps[step].calls):
            continue
        found[name] = {
            "tensor": name,
            "layer": number,
            "shape": list(graph.shape(name)),
            "local_shape": list(tensor.shape),
            "npu": tensor.at.npu,
            "offset": starts[tensor.at.buffer] + tensor.at.offset,
            "dtype": dtype(name),
        }
    return list(found.values())


def _buffers(kernel: Kernel) -> list[dict[str, Any]]:
    """The buffers in local memory with their regions, as the table counts them: a call on its own is a region."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    number = 0
    for region in kernel.regions:
        first.setdefault(region.step, number)
        number += 1 if region.gdma and region.bdc else len(region.gdma + region.bdc)
        last[region.step] = number - 1
    return [
        {
            "buffer": place.buffer,
            "start": place.start,
            "end": place.end,
            "first": first[place.first],
            "last": last[place.last],
        }
        for place in kernel.places
    ]


def _entry(made: Noted | Computed) -> dict[str, Any]:
    return {**asdict(made), "nodes": list(made.nodes)}


def layers(
    graph: Graph, kernel: Kernel, machine: Machine, peak: int, moved: Mapping[str, int]
) -> list[dict[str, Any]]:
    """A row per layer, with the cost of its regions; loads count where they run. moved: of `_moved_bytes`."""
    parts: dict[str, list[KernelRegion]] = {}
    for region in kernel.regions:
        parts.setdefault(kernel.steps[region.step].node, []).append(region)
    return [
        {**_layer(graph, kernel, name, regions, machine, peak), "bytes": moved.get(name, 0)}
        for name, regions in parts.items()
    ]


def _layer(
    graph: Graph, kernel: Kernel, name: str, regions: Sequence[KernelRegion], machine: Machine, peak: int
) -> dict[str, Any]:
    step, total = kernel.steps[regions[0].step], cost(regions, machine)
    multiplied = sum(macs(node, graph.tensors) for node in _nodes(graph, name))
    return {
        "name": name,
        "op": step.op,
        "nodes": list(step.sources),
        "macs": multiplied,
        "cycles": total.cycles,
        "bdc_cycles": total.bdc,
        "gdma_cycles": total.gdma,
        "bound": "gdma" if total.gdma > total.bdc else "bdc",
        "ideal_cycles": multiplied / peak,
        "regions": len(regions),
        **_widths(graph, name, machine),
    }


def _moved_bytes(regions: Iterable[KernelRegion]) -> dict[str, int]:
    """Bytes moved between system and local memory for each layer, in whatever region."""
    found: dict[str, int] = {}
    for region in regions:
        for call, owner in zip(region.gdma, region.owners, strict=True):
            found[owner.node] = found.get(owner.node, 0) + pricing.system_bytes(call)
    return found


def _widths(graph: Graph, name: str, machine: Machine) -> dict[str, Any]:
    """For a matrix product, the choices of W, the one in use first, with the document's advice."""
    node = graph.producers.get(name)
    if node is None or node.op not in ("Gemm", "MatMul"):
        return {}
    rows, cols = graph.shape(node.inputs[0])[-1], graph.shape(node.output)[-1]
    return {"widths": [asdict(each) for each in alternatives(rows, cols, machine, CHOICES)]}


def _nodes(graph: Graph, name: str) -> list[Node]:
    """The node of a layer and, if it is a sum, the convolution that computes it."""
    node = graph.producers.get(name)
    if node is None:
        return []
    fused = FUSED_INPUT(node)
    producer = None if fused is None else graph.producers.get(node.inputs[fused])
    return [node] if producer is None else [node, producer]


def least_bytes(graph: Graph, element: int) -> int:
    """Bytes that every program of a network moves: its inputs, outputs and the weights of its products, once."""
    products = (node for node in graph.nodes if macs(node, graph.tensors))
    weights = {node.inputs[1] for node in products} & graph.constants.keys()
    return element * sum(prod(graph.shape(name)) for name in {*weights, *graph.inputs, *graph.outputs})


def _bounds(network: Graph, fixed: bool, busier: int, machine: Machine) -> dict[str, int]:
    """Lower bounds on the cycles of any order of these calls, and of any program of the network."""
    peak = machine.fixed_macs_per_cycle if fixed else machine.macs_per_cycle
    bytes_moved = least_bytes(network, 1 if fixed else ELEMENT)
    multiplying = sum(macs(node, network.tensors) for node in network.nodes) / peak
    return {
        "busier_engine_cycles": busier,
        "network_bound_cycles": ceil(max(multiplying, bytes_moved / machine.dram_bytes_per_cycle)),
        "least_traffic_bytes": bytes_moved,
    }


def summary(
    graph: Graph, lowered: Lowered, kernel: Kernel, machine: Machine, system: Contents, network: Graph
) -> dict[str, Any]:
    """The compile report (the command line's format, without status). network: the graph before slicing."""
    peak = machine.fixed_macs_per_cycle if system.is_int8 else machine.macs_per_cycle
    total, moved = cost(kernel.regions, machine), _moved_bytes(kernel.regions)
    multiplied = sum(macs(node, graph.tensors) for node in graph.nodes)
    ideal = multiplied / peak
    taken = sum(region.bytes for region in system.regions)
    images = max((place.shape[0] for place in system.placements if len(place.shape) == 4), default=1)
    return {
        "target": "bm1684",
        "machine": machine.name,
        "instructions": sum(len(region.gdma) + len(region.bdc) for region in kernel.regions),
        "segments": 1,
        "macs": multiplied,
        "cycles": total.cycles,
        "cycles_per_image": total.cycles / max(images, 1),
        **_bounds(network, system.is_int8, total.bound, machine),
        "bdc_cycles": total.bdc,
        "gdma_cycles": total.gdma,
        "ideal_cycles": ideal,
        "utilization": ideal / total.cycles if total.cycles else None,
        "clock_mhz": machine.mhz,
        "macs_per_cycle": peak,
        "bytes_per_cycle": machine.dram_bytes_per_cycle,
        "traffic_bytes": sum(moved.values()),
        "memory": {
            "local": memory_use(kernel.peak, machine.local_bytes, lower_bound(lowered)),
            "system": memory_use(taken, None, taken - lowered.scratch_bytes),
        },
        "host_steps": report_steps(system.steps),
        "layers": layers(graph, kernel, machine, peak, moved),
    }


def manifest(
    graph: Graph,
    lowered: Lowered,
    kernel: Kernel,
    machine: Machine,
    system: Contents,
    dtype: Callable[[str], str] = lambda _name: "float32",
    network: Graph | None = None,
) -> dict[str, Any]:
    """The target's part of the manifest. dtype: of a tensor in local memory; network: the graph before slicing."""
    return {
        "target": "bm1684",
        "precision": "int8" if system.is_int8 else "fp32",
        **system.as_json(),
        "instructions": [_entry(each) for each in _notes(kernel, machine)],
        "layers": [_entry(each) for each in _layer_descriptions(kernel)],
        "buffers": _buffers(kernel),
        "results": _results(graph, lowered, kernel, dtype),
        "report": summary(graph, lowered, kernel, machine, system, network or graph),
    }
