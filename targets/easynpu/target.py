"""The EasyNPU target: its passes, checks, lowering and simulation behind the Target protocol."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npuc.data import Samples
from npuc.errors import ArtefactError, DoesNotFit, Problem
from npuc.ir import Array, Graph, Node
from npuc.passes.expand_groups import expand_groups
from npuc.passes.expand_prelu import expand_prelu
from npuc.passes.gemm_to_conv import gemm_to_conv
from npuc.passes.separate_clips import separate_clips
from npuc.pipeline import Pass
from npuc.program import Program, canonical_json
from npuc.quantize.build import MOVEMENT, Quantised, integer_nodes, quantise, tensors_of
from npuc.quantize.calibration import spreads
from npuc.quantize.tables import domains
from npuc.target import Observer, Options
from npuc.targets.easynpu import images, isa, lowering, report, support
from npuc.targets.easynpu import machine as machines
from npuc.targets.easynpu.arithmetic import ACCUMULATOR
from npuc.targets.easynpu.artefact import Contents, Segment
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.simulator import Simulator
from npuc.targets.easynpu.tables import best_table


class EasyNpu:
    """EasyNPU as a Target."""

    name = "easynpu"
    summary = "16-PE int8 array, one 128-bit instruction per layer"
    memories = ("fmap", "skip", "weight", "itcm")
    passes: tuple[Pass, ...] = (separate_clips, gemm_to_conv, expand_groups)

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """Every node that neither the array nor the host may run, each with its constraint."""
        machine, graph = machines.load(options.machine), _prepared(graph, options)
        found: list[Problem] = []
        on_array = {id(node) for node in self._integer(graph, machine)}
        for node in graph.nodes:
            if id(node) in on_array or (node.op in MOVEMENT and not options.strict):
                continue
            where = {"node": node.sources[0] if node.sources else node.name, "op": node.op}
            if node.op not in support.HOST:
                refusal = support.refusal(graph, node, machine)
                found += [refusal] if refusal else []
            elif options.strict and not _converts(graph, node, on_array):
                reason = f"it would run on the host: {support.HOST[node.op]}"
                found.append(
                    Problem("E203", reason, remedy="drop --strict, or cut the network before it", **where)
                )
        return found

    def lower(self, graph: Graph, samples: Samples, options: Options) -> Program:
        """Calibrates, quantises, lowers, and writes the integer network beside the program as evidence."""
        machine, graph = machines.load(options.machine), _prepared(graph, options)
        nodes = self._integer(graph, machine)
        found = spreads(graph, samples.feeds(), tensors_of(nodes), domains(graph, nodes))
        quantised = quantise(graph, nodes, found, options.method, best_table)
        _expect_accumulators(quantised)
        documented = options.isa == "documented"
        lowered = lowering.lower(quantised, machine, documented=documented, objective=options.objective)
        manifest, files = report.manifest(lowered, quantised, machine, documented=documented)
        signature = {
            key: [
                {"name": name, "shape": list(graph.shape(name)), "dtype": graph.tensors[name].dtype}
                for name in names
            ]
            for key, names in (("inputs", graph.inputs), ("outputs", graph.outputs))
        }
        return Program({**manifest, **signature}, files, _evidence(quantised))

    def runner(self, program: Program) -> Runner:
        """The steps of the manifest and the simulator of its machine."""
        return Runner(program)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """One entry an instruction word: number, hexadecimal word, listing line, fields, source nodes."""
        return images.listing(program.files.get("itcm.bin", b""), Contents.of(program.manifest).instructions)

    def raw_listing(self, path: Path) -> list[dict[str, Any]]:
        """The same for a file of words without a program."""
        return images.listing(images.read(path), [])

    def layout(self) -> Mapping[str, list[dict[str, str | int]]]:
        """The fields of the layer word and of the extension words."""
        return isa.layout()

    def assembled(self, program: Program, listing: Path) -> Program:
        """The program with the words of a listing in place of its own."""
        return images.assembled(program, images.read(listing))

    def exported(self, program: Program, form: str) -> dict[str, bytes]:
        """Words and images as raw binary or $readmemh text, with map.json."""
        return images.exported(program, form)

    def machines(self) -> list[str]:
        """Machine descriptions that ship with npuc."""
        return list(machines.names())

    def operators(self) -> list[dict[str, str]]:
        """Operators that the array runs with their constraints, then those that the host runs."""
        array = [
            {
                "op": op,
                "runs as": row.instruction,
                "constraints": " ".join((each.__doc__ or "").strip() for each in row.constraints),
            }
            for op, row in support.ARRAY.items()
        ]
        host = [{"op": op, "runs as": "host step", "constraints": f"{why}."} for op, why in support.HOST.items()]
        return array + host

    def _integer(self, graph: Graph, machine: Machine) -> tuple[Node, ...]:
        def accepted(node: Node) -> bool:
            return node.op in support.ARRAY and support.refusal(graph, node, machine) is None

        return integer_nodes(graph, accepted)


def _prepared(graph: Graph, options: Options) -> Graph:
    """The graph in operators that have a word; the document has none for slopes per channel."""
    return expand_prelu(graph) if options.isa == "documented" else graph


def _converts(graph: Graph, node: Node, on_array: set[int]) -> bool:
    """Whether a node only moves data between the network's inputs or outputs and the array."""
    if node.op not in MOVEMENT:
        return False
    before = _reaches(graph, node, lambda each: [graph.producers[n] for n in each.inputs if n in graph.producers])
    after = _reaches(graph, node, lambda each: [r for n in each.outputs for r in graph.readers[n]])
    return not (before & on_array) or not (after & on_array)


def _reaches(graph: Graph, node: Node, step: Any) -> set[int]:
    """The nodes that are reached by a step relation, by identity."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        for each in step(waiting.pop()):
            if id(each) not in seen:
                seen.add(id(each))
                waiting.append(each)
    return seen


def _expect_accumulators(quantised: Quantised) -> None:
    """No accumulator of any layer can leave 32 bits, whatever the input. Raises DoesNotFit (E304)."""
    from npuc.quantize.integer import accumulator_bound

    graph = quantised.graph
    for node in graph.nodes:
        if node.op == "IntConv":
            bound = int(accumulator_bound(graph.constants[node.inputs[1]], graph.constants[node.inputs[2]]).max())
            if bound >= ACCUMULATOR:
                raise DoesNotFit(
                    "E304",
                    f"an accumulator could reach {bound}",
                    node=node.name,
                    op="Conv",
                    limit="below 2^31",
                    remedy="split the layer's input channels",
                )


def _evidence(quantised: Quantised) -> dict[str, bytes]:
    """reference.onnx with every int8 tensor as an output, and graph.json that says what each stands for."""
    from npuc.export_onnx import to_onnx
    from npuc.quantize import integer_onnx as _rules  # noqa: F401  adds the integer operators' rules

    graph = quantised.graph
    layers = [node for node in graph.nodes if graph.tensors[node.output].dtype == "int8"]
    tensors = [name for node in layers for name in node.outputs]
    model = to_onnx(graph, [*graph.outputs, *(name for name in tensors if name not in graph.outputs)])
    described = {
        "tensors": {
            name: {
                "float": quantised.floats[name],
                "scale": quantised.scales[name],
                "shape": list(graph.shape(name)),
            }
            for name in tensors
        },
        "layers": [
            {
                "name": node.name,
                "op": node.op,
                "inputs": list(node.inputs),
                "tensor": node.output,
                "nodes": list(node.sources),
            }
            for node in layers
            if node.op != "QuantizeLinear"
        ],
    }
    return {"reference.onnx": model.SerializeToString(deterministic=True), "graph.json": canonical_json(described)}


UNCOMPUTED = 1 << 8
"""Stands in observed tensors where no word wrote: it differs from every int8."""


class Runner:
    """A program ready to run on batch after batch; its kernels are made once."""

    def __init__(self, program: Program) -> None:
        self.contents = Contents.of(program.manifest)
        self.outputs = program.outputs
        self.simulator = Simulator(self.contents.machine, program.files)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        tensors = dict(feeds)
        samples = len(next(iter(feeds.values())))
        state = self.simulator.state(samples)
        seen: dict[str, Array] = {}

        def collect(number: int, values: Array) -> None:
            self._collect(seen, number, values)

        for step in self.contents.steps:
            if isinstance(step, Segment):
                self.simulator.run(step, state, tensors, None if observe is None else collect)
            else:
                step.run(tensors)
                seen.update((name, tensors[name]) for name in step.outputs if tensors[name].dtype == np.int8)
        if observe is not None:
            for name, values in seen.items():
                observe(name, values)
        missing = [each.name for each in self.outputs if each.name not in tensors]
        if missing:
            raise ArtefactError("E502", "manifest.json is damaged: no step gives this output", tensor=missing[0])
        return {each.name: tensors[each.name] for each in self.outputs}

    def _collect(self, seen: dict[str, Array], number: int, values: Array) -> None:
        """Puts the result of one layer word (samples, Ho, Wo, Co) into its window of the tensor it computes.

        A word of other extents leaves its window uncomputed.
        """
        table = self.contents.instructions
        entry = table[number] if number < len(table) else None
        if entry is None or entry.tensor is None or entry.shape is None:
            return
        if entry.tensor not in seen:
            seen[entry.tensor] = np.full((len(values), *entry.shape), UNCOMPUTED, np.int16)
        whole = seen[entry.tensor].reshape(len(values), *(*entry.shape[1:], 1, 1)[:3])
        first, row, column = entry.start
        planes = values.transpose(0, 3, 1, 2)
        window = whole[
            :, first : first + planes.shape[1], row : row + planes.shape[2], column : column + planes.shape[3]
        ]
        if window.shape == planes.shape:
            window[...] = planes


EASYNPU = EasyNpu()
