"""The NVDLA targets: passes, checks, lowering and simulation behind the Target protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuc.conditions.constraints import table
from npuc.errors import ArtefactError, Problem, UnsupportedOperator
from npuc.ir import Array, Graph, Node, TensorType
from npuc.pipeline import Hook, Pass
from npuc.program import Program
from npuc.samples.loading import Samples
from npuc.target import ALTERNATING, FLOATING, RECURRENT, Options, Stored, Target
from npuc.targets.nvdla.formats.weights import WEIGHTS, asked_forms, expect_supported
from npuc.targets.nvdla.machine import parameters as machines
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import PLAYERS, Poll, Wait, Write, is_loadable, register_map
from npuc.targets.nvdla.program.artefact import Contents, memory_files, read_commands
from npuc.targets.nvdla.program.view import describe_write, outline, timeline
from npuc.view import Heading, MemoryAnnotation, Timeline

if TYPE_CHECKING:
    from npuc.quantize.improvement.search import Trial, TrialNetwork
    from npuc.targets.nvdla.program.running import Runner

RECURRENCE = "recurrence"
"""The name that allows recurrent operators in int8."""
COARSE_STATE = Problem(
    "E202",
    "a state of 8 bits loses small changes",
    limit="networks without recurrence",
    remedy=f"--allow {RECURRENCE}, or nvdla-full with --precision fp16 or int16",
)


class Nvdla(Target):
    """One configuration of NVDLA as a Target."""

    memories = ("dram", "cbuf")
    exports = ("bin", "readmemh", "nvdla-trace", "loadable", "c")
    self_tests = ("c", "loadable")
    players: tuple[str, ...] = PLAYERS
    chip_models = ("own", "quick")
    host_layers = ("Conv",)
    has_integer_network = True
    takes_layers = True

    def __init__(self, name: str) -> None:
        machine = machines.CONFIGURATIONS[name]
        size = f"{machine.macs_per_cycle('int8')} MACs, {machine.cbuf_bytes // 1024} KiB of CBUF"
        self.name = name
        self.summary = f"NVDLA {name.replace('nvdla-', 'nv_')}: {size}{', tables' * machine.sdp_lut}"
        self.flags = (replace(WEIGHTS, values=asked_forms(machine)),)
        self.precisions = machine.precisions
        self.inexact = ("winograd",) * machine.winograd + (RECURRENCE,) * machine.sdp_lut

    def left_whole(self, op: str, x: TensorType | None, options: Options) -> Problem | None:
        """Recurrent operators, if SDP has no tables for their gates, if the host would move rows of a batch, and
        in int8 unless they are allowed.
        """
        if op not in RECURRENT:
            return None
        if not self._machine(options).sdp_lut or x is None or x.shape[1:2] != (1,):
            return ALTERNATING
        return None if options.precision != "int8" or RECURRENCE in options.allow else COARSE_STATE

    def passes(self, options: Options) -> tuple[Pass, ...]:
        """The passes of every program, and more if the machine has no tables."""
        from npuc.targets.nvdla.network import support
        from npuc.targets.nvdla.network.passes import passes

        machine = self._machine(options)
        return passes(
            machine,
            options.precision,
            options.steps,
            tables="HardSwish" in support.table_ops(machine, options.precision),
        )

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """One problem for every node that neither NVDLA nor the host can run, with the constraint it breaks."""
        from npuc.conditions.host import problems
        from npuc.targets.nvdla.network import quantising, support

        machine = self._machine(options)
        if options.precision != "int8" and (quantised := support.quantised_already(graph, options.precision)):
            return [quantised]
        known = ("int16",) if machine.int16 and options.precision == "int8" else ()
        wide = quantising.int16_nodes(graph, options)

        def refusal(node: Node) -> Problem | None:
            precision = "int16" if node.name in wide else options.precision
            other = support.quantised_already(graph, precision) if node.name in wide else None
            own = other and replace(other, node=node.source, op=node.op, tensor=None)
            return options.unlike(node, *known) or own or support.refusal(graph, node, machine, precision)

        computed = quantising.on_device(graph, machine, options.precision, wide)
        on_device = {node for node in computed if not (options.layer and refusal(node))}
        hosted = support.host(machine, options.precision)
        return problems(graph, on_device, hosted, refusal, strict=options.strict)

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        """Calibrates, quantises and lowers; stores the integer network with the program as evidence.

        fp16 needs no scales; its evidence is the float network.
        """
        from npuc.evidence import evidence, float_evidence, signature
        from npuc.quantize.improvement.mixed import REASON
        from npuc.quantize.improvement.search import as_json
        from npuc.targets.nvdla.network import quantising, support
        from npuc.targets.nvdla.program import lowering, report

        del hook
        machine, precision, weights = self._machine(options), options.precision, options.flag(WEIGHTS)
        expect_supported(machine, weights)
        if precision in FLOATING:
            written, warnings = quantising.floats(graph, samples, machine, options)
            tried: tuple[Trial, ...] = ()
        else:
            options.begin("choosing scales")
            network, tried = quantising.network(graph, samples, machine, options)
            written, warnings = network.quantised, ()
        options.tell(tried)
        options.begin("planning and writing commands")
        reasons = {**support.host(machine, precision), **dict.fromkeys(self.host_layers, REASON)}
        lowered = lowering.lower(written, machine, reasons, weights)
        options.begin("writing what verification compares with")
        manifest, files = report.manifest(lowered, machine)
        manifest |= {"target": self.name, "precision": precision}
        manifest["report"]["warnings"] = [each.as_json() for each in warnings]
        if precision in FLOATING:
            proof = float_evidence(graph, written.graph)
        else:
            manifest["report"]["quantization"] = {"level": options.level, "steps": as_json(tried)}
            proof = evidence(lowered.quantised)
        return Program({**manifest, **signature(graph)}, files, proof)

    def quantise(self, graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The network that `lower` compiles, and the trials that improved it."""
        from npuc.targets.nvdla.network import quantising

        return quantising.network(graph, samples, self._machine(options), options)

    def runner(self, program: Program, chip_model: str = "own") -> Runner:
        """Runs the manifest's steps on the machine's functional model; quick: fp16 sums in double precision."""
        from npuc.targets.nvdla.program.running import Runner

        return Runner(program, quick=chip_model == "quick")

    def timeline(self, program: Program) -> Timeline:
        """The layers in sequence, with the maps in DRAM and the banks of the convolution buffer."""
        return timeline(program)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """One entry per command: number, text, and the ONNX nodes that it belongs to."""
        contents = Contents.of(program.manifest)
        registers, commands = contents.registers, contents.commands(program)
        sources = {
            number: list(each.nodes)
            for each in contents.operations
            for number in range(each.start, min(each.start + each.count, len(commands)))
        }
        results = {each.start + each.count - 1: each.result.tensor for each in contents.operations if each.result}
        rows = {command: _listing_row(command, registers) for command in set(commands)}  # few are different
        return [
            {
                "index": number,
                **rows[command],
                "nodes": sources.get(number, []),
                "tensor": results.get(number),
            }
            for number, command in enumerate(commands)
        ]

    def raw_listing(self, path: Path) -> list[dict[str, Any]]:
        """The same for a loadable, and for a lone registers.bin or its hexadecimal form.

        Raises ArtefactError (E501, E502) for any other file, ModelError (E110) for too many commands.
        """
        from npuc.targets.nvdla.loadable.listing import rows

        if is_loadable(path):
            return rows(path)
        registers = register_map(machines.CONFIGURATIONS[self.name].registers)
        commands = read_commands(path, registers)
        return [
            {"index": number, **_listing_row(command, registers), "nodes": [], "tensor": None}
            for number, command in enumerate(commands)
        ]

    def outline(self, program: Program) -> list[Heading]:
        """Segments, layers, operations with their ping-pong group, units."""
        return outline(program)

    def results(self, program: Program) -> Mapping[str, frozenset[str]]:
        """The tensors that commands complete, each with the ONNX nodes of the completing operation."""
        operations = Contents.of(program.manifest).operations
        return {each.result.tensor: frozenset(each.nodes) for each in operations if each.result}

    def storage_of(self, program: Program, tensor: str) -> Stored | None:
        """The tensor's feature cube in memory."""
        from npuc.targets.nvdla.program.view import storage_of

        return storage_of(program, tensor)

    def memory_annotations(self, program: Program, name: str) -> Iterable[MemoryAnnotation]:
        """The purpose of each part of a memory image."""
        from npuc.targets.nvdla.program import view

        if name == "registers.bin":
            return view.commands([(entry["text"], entry["nodes"]) for entry in self.listing(program)])
        return view.constants(program, name)

    def layout(self) -> Mapping[str, list[dict[str, str | int]]]:
        """The fields of every register, with the names of their values."""
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

    def export(self, program: Program, form: str, player: str | None = None) -> dict[str, bytes]:
        """The program's files as they are, or as $readmemh images, test programs, a loadable, or C."""
        if form == "nvdla-trace":
            from npuc.targets.nvdla.export.test_programs import traces

            return traces(program, player or PLAYERS[0])
        if form == "loadable":
            from npuc.targets.nvdla.loadable.export import files

            return files(program)
        if form == "c":
            from npuc.targets.nvdla.export import c_export

            return c_export.export_sources(program)
        if form not in ("bin", "readmemh"):
            raise ArtefactError("E506", f"an NVDLA program has no form '{form}'", limit=", ".join(self.exports))
        return memory_files(program, form)

    def self_test(self, program: Program, form: str, inputs: Mapping[str, Array]) -> dict[str, bytes]:
        """Files with samples, the functional model's results for them, and a program that compares."""
        if form == "loadable":
            from npuc.targets.nvdla.loadable.export import self_test_files

            return self_test_files(program, inputs)
        from npuc.targets.nvdla.export.test_programs import self_test_files

        return self_test_files(program, inputs)

    def machine_values(self, name: str | None) -> dict[str, Any]:
        """The parameters of a machine."""
        return machines.load(self.name, name).as_dict()

    def operators(self) -> list[dict[str, str]]:
        """Operators that NVDLA runs with their constraints, then those that the host runs."""
        from npuc.targets.nvdla.network import support

        machine = machines.CONFIGURATIONS[self.name]

        def name_precisions(op: str) -> list[str]:
            known = support.precisions(op, machine)
            return [] if known == machine.precisions else [f"In {', '.join(known)}; else on the host."]

        tables = dict.fromkeys(support.LUT_OPS, support.LUT) if machine.sdp_lut else {}
        rows = {**support.array(machine), **tables}
        device = table(rows, support.REWRITTEN)
        for row in device[: len(rows)]:
            row["constraints"] = " ".join([*filter(None, [row["constraints"]]), *name_precisions(row["op"])])
        host = [
            {"op": op, "runs_as": "host step", "constraints": f"{why}."}
            for op, why in support.HOST.items()
            if op not in (*rows, *support.OWN)
        ]
        return device + host

    def _machine(self, options: Options) -> Machine:
        """The machine. Raises UnsupportedOperator (E202) if it does not support the precision."""
        machine = machines.load(self.name, options.machine, options.scales)
        if options.precision not in machine.precisions:
            known = ", ".join(machine.precisions)
            raise UnsupportedOperator(
                "E202", f"{machine.name} does not compute in {options.precision}", limit=known
            )
        return machine


def _listing_row(command: Write | Poll | Wait, registers: Any) -> dict[str, Any]:
    match command:
        case Write(address, value):
            return {
                "address": hex(address),
                "word": f"{value:08x}",
                "text": registers.text(address, value),
                "brief": describe_write(registers.register_at(address), value),
            }
        case Poll(address, mask, value):
            title = registers.register_at(address).title
            return {
                "address": hex(address),
                "word": f"{value:08x}",
                "text": f"poll {title} & {mask:#x} = {value:#x}",
            }
        case Wait():
            return {"address": None, "word": None, "text": f"wait for {command}"}


SMALL, LARGE, FULL = (Nvdla(name) for name in machines.CONFIGURATIONS)
