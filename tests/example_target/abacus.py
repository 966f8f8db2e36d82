"""The abacus, an example target: fully connected layers in int8, one record a layer, a multiplication a cycle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from npuc.conditions.host import host_step
from npuc.errors import Problem
from npuc.evidence import evidence, signature
from npuc.flag import Flag
from npuc.host.step import HostStep
from npuc.ir import Array, Graph, Node
from npuc.ops.movement import MOVEMENT
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.expansion.products import GemmToConv
from npuc.pipeline import Hook, Pass
from npuc.program import Program, canonical_json
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from npuc.samples.loading import Samples
from npuc.storage.records import read
from npuc.target import Observer, Options, Target
from npuc.view import MemoryAnnotation

RECORDS = "records.json"
HANDS = Flag("busy_hands", ("one", "two"), "Hands that move beads at once.")


class Abacus(Target):
    """int8, with layers that the host runs among its own."""

    name = "abacus"
    summary = "an example: fully connected layers, one bead at a time"
    memories = ("beads",)
    precisions = ("int8",)
    flags = (HANDS,)

    def passes(self, options: Options) -> tuple[Pass, ...]:
        return (GemmToConv(ImageLimits(lanes=1, channels=256, extent=256, pixels=64)),)

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        return [
            Problem("E202", "the abacus only has fully connected layers", node=node.name, op=node.op)
            for node in graph.nodes
            if not _counts(graph, node) and node.op not in MOVEMENT
        ]

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        machine = self.machine_values(options.machine)
        nodes = integer_nodes(graph, lambda node: _counts(graph, node))
        found = quantise(
            graph, nodes, histograms(graph, samples.feeds(), tensors_of(nodes)), options.method or "mse"
        )
        steps = [_step(found.graph, node) for node in found.graph.nodes]
        records = [record for record, _ in steps if record]
        hosts = [vars(host) for _, host in steps if host]
        beads = sum(np.size(record["w"]) for record in records)
        cycles = beads // (1 + HANDS.values.index(options.flag(HANDS)))
        layers = [_layer(record, found.floats[record["y"]]) for record in records]
        report = {
            "target": self.name, "machine": machine["name"], "instructions": len(records), "segments": 1,
            "macs": beads, "cycles": cycles, "ideal_cycles": cycles, "utilization": 1.0, "host_steps": [],
            "layers": layers, "clock_mhz": None, "traffic_bytes": beads,
            "memory": {"beads": {"peak_bytes": beads, "lower_bound_bytes": beads, "capacity_bytes": None}},
        }  # fmt: skip
        order = ["record" if record else "host" for record, _ in steps]
        manifest = {"target": self.name, "order": order, "hosts": hosts, "report": report, **signature(graph)}
        return Program(manifest, {RECORDS: canonical_json({"records": records})}, evidence(found))

    def runner(self, program: Program, chip_model: str = "own") -> Runner:
        return Runner(program)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        return [
            {"index": at, "word": None, "text": _text(each), "nodes": each["nodes"], "tensor": each["y"]}
            for at, each in enumerate(_records(program))
        ]

    def memory_annotations(self, program: Program, name: str) -> list[MemoryAnnotation]:
        return [MemoryAnnotation(0, "the records, as JSON")]

    def operators(self) -> list[dict[str, str]]:
        return [
            {"op": "Gemm", "runs_as": "a record", "constraints": "One row, constant weights, ReLU or nothing."}
        ]


class Runner:
    """The simulator: it sees the records and the manifest, never the graph."""

    def __init__(self, program: Program) -> None:
        self.order = read(tuple[str, ...], program.manifest.get("order"), "order")
        self.hosts = read(tuple[HostStep, ...], program.manifest.get("hosts"), "hosts")
        self.outputs, self.records = program.outputs, _records(program)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        tensors, hosts, records = dict(feeds), iter(self.hosts), iter(self.records)
        for kind in self.order:
            names = _count(next(records), tensors) if kind == "record" else _host(next(hosts), tensors)
            for name in names:
                if observe is not None and tensors[name].dtype == np.int8:
                    observe(name, tensors[name])
        return {port.name: tensors[port.name] for port in self.outputs}


def _count(record: Mapping[str, Any], tensors: dict[str, Array]) -> tuple[str, ...]:
    """y = sat8((w x + bias + half) >> shift), then the larger of it and 0 with relu."""
    x, shift = tensors[record["x"]], np.array(record["shift"])
    total = x.reshape(len(x), -1).astype(np.int64) @ np.array(record["w"]).T + record["bias"]
    rounded = (total + ((1 << shift) >> 1)) >> shift
    y = np.clip(rounded, 0 if record["relu"] else -128, 127).astype(np.int8)
    tensors[record["y"]] = y.reshape(len(y), 1, -1, 1, 1)
    return (record["y"],)


def _host(step: HostStep, tensors: dict[str, Array]) -> tuple[str, ...]:
    step.run(tensors)
    return step.outputs


def _counts(graph: Graph, node: Node) -> bool:
    """Whether a node is a fully connected layer: a Conv, as GemmToConv makes it, whose kernel covers its map."""
    if node.op != "Conv" or node.text("activation") not in ("", "Relu") or node.inputs[1] not in graph.constants:
        return False
    return graph.shape(node.inputs[0])[1:] == graph.shape(node.inputs[1])[1:] and not any(
        node.integers("pads", ())
    )


def _step(graph: Graph, node: Node) -> tuple[dict[str, Any] | None, HostStep | None]:
    """The record of a fully connected layer; anything else the host moves or converts."""
    if node.op != "IntConv":
        return None, host_step(graph, node, "data movement", at_border=True)
    w, bias, shift = (graph.constants[name] for name in node.inputs[1:])
    values = {"w": w.reshape(len(w), -1).tolist(), "bias": bias.tolist(), "shift": shift.tolist()}
    names = {"x": node.inputs[0], "y": node.output, "nodes": list(node.sources), "relu": node.integer("relu")}
    return {**names, **values}, None


def _layer(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    beads = int(np.size(record["w"]))
    return {"name": name, "op": "count", "nodes": record["nodes"], "macs": beads, "cycles": beads,
            "ideal_cycles": beads}  # fmt: skip


def _records(program: Program) -> list[dict[str, Any]]:
    return json.loads(program.files[RECORDS])["records"]


def _text(record: Mapping[str, Any]) -> str:
    rows, columns = np.shape(record["w"])
    return f"count {rows}x{columns}{' relu' if record['relu'] else ''}"


ABACUS = Abacus()
