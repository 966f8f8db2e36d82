"""The NVDLA targets: passes, checks, lowering and simulation behind the Target protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from npuc.data import Samples
from npuc.errors import ArtefactError, Problem
from npuc.evidence import evidence, signature
from npuc.host_nodes import problems
from npuc.images import Held
from npuc.ir import Graph, Node
from npuc.pipeline import Hook, Pass
from npuc.program import Program
from npuc.quantize.calibration import spreads
from npuc.quantize.given import given_steps
from npuc.quantize.ladder import LEVELS
from npuc.quantize.tables import domains
from npuc.quantize.ties import equal_ties, integer_nodes, tensors_of
from npuc.target import TARGETS, Options, Origin, last_writer
from npuc.targets.nvdla import lowering, report, support
from npuc.targets.nvdla import machine as machines
from npuc.targets.nvdla.artefact import Contents, decode, register_map_of
from npuc.targets.nvdla.commands import Poll, Wait, Write
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.passes import PASSES, WITHOUT_TABLES
from npuc.targets.nvdla.quantisation import quantise
from npuc.targets.nvdla.registers import register_map
from npuc.targets.nvdla.running import Runner
from npuc.targets.nvdla.weight_form import asked_forms, expect_asked
from npuc.timeline import Timeline


class Nvdla:
    """One configuration of NVDLA as a Target."""

    memories = ("dram", "cbuf")
    precisions = ("int8",)
    exports = ("bin", "nvdla-trace", "loadable")
    chip_models = ("own",)
    inexact: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.summary = TARGETS[name][2]
        self.weight_forms = asked_forms(machines.CONFIGURATIONS[name])

    def passes(self, options: Options) -> tuple[Pass, ...]:
        """Those of every program, and more where there are no tables."""
        return PASSES if self._machine(options).sdp_lut else (*PASSES, *WITHOUT_TABLES)

    def cycles(self, graph: Graph, node: Node, options: Options) -> int | None:
        """Not told of single nodes: what a node costs depends on its neighbours."""
        del graph, node, options
        return None

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """Every node that neither NVDLA nor the host may run, each with its constraint."""
        machine = self._machine(options)
        on_device = {id(node) for node in self._integer(graph, machine)}
        return problems(
            graph,
            on_device,
            support.HOST,
            lambda node: support.refusal(graph, node, machine),
            strict=options.strict,
        )

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        """Calibrates, quantises, lowers, and writes the integer network beside the program as evidence.

        A model that brings its scales and zero points along keeps them.
        """
        del hook
        import_module("npuc.targets.nvdla.integer_onnx")  # its rules for the exporter
        machine = self._machine(options)
        expect_asked(machine, options.weights or "auto")
        nodes = self._integer(graph, machine)
        tensors = tensors_of(nodes)
        given = given_steps(graph, tensors, equal_ties(graph, nodes))
        free = [name for name in tensors if name not in given]
        found = spreads(graph, samples.feeds(), free, domains(graph, nodes))
        method = options.method or LEVELS[options.level].method
        quantised = quantise(graph, nodes, found, method, given)
        lowered = lowering.lower(quantised, machine, options.weights or "auto")
        manifest, files = report.manifest(lowered, machine)
        return Program({**manifest, "target": self.name, **signature(graph)}, files, evidence(lowered.quantised))

    def runner(self, program: Program, chip_model: str = "own") -> Runner:
        """The steps of the manifest and the functional model of its machine."""
        del chip_model
        return Runner(program)

    def stepper(self, program: Program, trace: Path | None) -> None:
        """NVDLA has none."""
        del program, trace

    def timeline(self, program: Program) -> Timeline:
        """Operations one after the other, each for the cycles of its layer."""
        return report.timeline(program.manifest)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """One entry a command: number, text, and the ONNX nodes that it is for."""
        contents = Contents.of(program.manifest)
        registers = register_map_of(contents.machine)
        commands = decode(program.files.get("registers.bin", b""), registers)
        sources = {
            number: list(each.nodes)
            for each in contents.operations
            for number in range(each.start, each.start + each.count)
        }
        results = {each.start + each.count - 1: each.result.tensor for each in contents.operations if each.result}
        return [
            {
                "index": number,
                **_described(command, registers),
                "nodes": sources.get(number, []),
                "tensor": results.get(number),
            }
            for number, command in enumerate(commands)
        ]

    def origin(self, program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
        """The last command for the tensor."""
        del element
        return last_writer(self.listing(program), tensor)

    def held(self, program: Program, name: str) -> Iterable[Held]:
        """What each part of an image is for."""
        from npuc.targets.nvdla import held

        if name == "registers.bin":
            return held.commands([(entry["text"], entry["nodes"]) for entry in self.listing(program)])
        return held.constants(program, name)

    def raw_listing(self, path: Path) -> list[dict[str, Any]]:
        """Commands without a program are not told apart from other files."""
        raise ArtefactError("E501", f"'{path}' is not an NVDLA program", limit="the directory npuc compile wrote")

    def layout(self) -> Mapping[str, list[dict[str, str | int]]]:
        """The fields of every register, with the values that have names."""
        known = register_map(machines.CONFIGURATIONS[self.name].registers).layout()
        return {
            f"{title} {fields[0]['address'] if fields else ''}".strip(): [
                {
                    "bits": each["bits"],
                    "field": each["field"],
                    "width": each["width"],
                    "stored": "value",
                    "meaning": each["values"] or "a number",
                }
                for each in fields
            ]
            for title, fields in known.items()
        }

    def assembled(self, program: Program, listing: Path) -> Program:
        """Register programs are not assembled from listings."""
        del program
        raise ArtefactError("E504", f"'{listing}': NVDLA has registers, no instruction words to assemble")

    def exported(self, program: Program, form: str) -> dict[str, bytes]:
        """The files of the program as they are, its segments as test programs, or what the stock runtime loads."""
        if form == "nvdla-trace":
            from npuc.targets.nvdla.export import traces

            return traces(program)
        if form == "loadable":
            from npuc.targets.nvdla.loadable.export import files

            return files(program)
        if form != "bin":
            raise ArtefactError("E506", f"an NVDLA program has no form '{form}'", limit=", ".join(self.exports))
        return dict(program.files)

    def machine_values(self, name: str | None) -> dict[str, Any]:
        """The parameters of a machine."""
        return machines.load(self.name, name).as_dict()

    def machines(self) -> list[str]:
        """Machine descriptions that ship with npuc."""
        return ["default"]

    def operators(self) -> list[dict[str, str]]:
        """Operators that NVDLA runs with their constraints, then those that the host runs."""
        machine = machines.CONFIGURATIONS[self.name]
        rows = {**support.ARRAY, **(dict.fromkeys(support.LUT_OPS, support.LUT) if machine.sdp_lut else {})}
        device = [
            {
                "op": op,
                "runs as": row.unit,
                "constraints": " ".join((each.__doc__ or "").strip() for each in row.constraints),
            }
            for op, row in rows.items()
        ]
        rewritten = [
            {"op": op, "runs as": f"{place} (rewritten)", "constraints": when}
            for op, (place, when) in support.REWRITTEN.items()
        ]
        host = [
            {"op": op, "runs as": "host step", "constraints": f"{why}."}
            for op, why in support.HOST.items()
            if op not in rows
        ]
        return device + rewritten + host

    def _machine(self, options: Options) -> Machine:
        return machines.load(self.name, options.machine)

    def _integer(self, graph: Graph, machine: Machine) -> tuple[Node, ...]:
        def accepted(node: Node) -> bool:
            return support.row_of(node.op, machine) is not None and support.refusal(graph, node, machine) is None

        return integer_nodes(graph, accepted)


def _described(command: Write | Poll | Wait, registers: Any) -> dict[str, Any]:
    match command:
        case Write(address, value):
            return {"address": hex(address), "word": f"{value:08x}", "text": registers.text(address, value)}
        case Poll(address, mask, value):
            title = registers.at(address).title
            return {
                "address": hex(address),
                "word": f"{value:08x}",
                "text": f"poll {title} & {mask:#x} = {value:#x}",
            }
        case Wait():
            return {"address": None, "word": None, "text": f"wait for {command}"}


SMALL, LARGE, FULL = (Nvdla(name) for name in machines.CONFIGURATIONS)
