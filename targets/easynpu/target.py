"""The EasyNPU target: its passes, checks, lowering and simulation behind the Target protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuc.conditions.constraints import table
from npuc.errors import Problem
from npuc.ir import Array, Graph, Node
from npuc.pipeline import Hook, Pass
from npuc.program import Program, canonical_json
from npuc.samples.loading import Samples
from npuc.system.budget import expect_room, read_file
from npuc.target import Options, Origin, Stored, Target
from npuc.target import Runner as TargetRunner
from npuc.targets.easynpu.flags import DOCUMENTED, FLAGS, ISA, OBJECTIVE
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine import parameters as machines
from npuc.targets.easynpu.program.artefact import Contents
from npuc.view import Heading, MemoryAnnotation, Timeline

if TYPE_CHECKING:
    from npuc.quantize.improvement.search import Trial, TrialNetwork

LISTED = 512
"""Bytes that a listing takes per word."""


class EasyNpu(Target):
    """EasyNPU as a Target."""

    name = "easynpu"
    summary = "16-PE int8 array, one 128-bit instruction per layer"
    memories = ("fmap", "skip", "weight", "itcm")
    precisions = ("int8",)
    exports = ("bin", "readmemh", "c")
    flags = FLAGS
    self_tests = ("c",)
    chip_models = ("own", "rtl")
    inexact = ("split_average_pool",)
    host_layers = ("Conv",)
    has_integer_network = True
    takes_layers = True
    has_hardware = True

    def passes(self, options: Options) -> tuple[Pass, ...]:
        """The passes of every program; documented words need two more, as they lack slopes and kept psums."""
        from npuc.passes.expansion.averages import SplitAveragePool
        from npuc.passes.expansion.functions import expand_prelu
        from npuc.targets.easynpu.network.passes import passes

        documented = options.flag(ISA) == DOCUMENTED
        found = passes(machines.load(options.machine), options.steps, documented=documented)
        if not documented:
            return found
        return (
            *found,
            expand_prelu,
            SplitAveragePool(most_stages=None if "split_average_pool" in options.allow else 2),
        )

    def cycles(self, graph: Graph, node: Node, options: Options) -> int | None:
        """Cycles of the node's words by the cycle model."""
        from npuc.targets.easynpu.layers import support

        return support.node_cycles(graph, node, machines.load(options.machine))

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """Every node that neither the array nor the host may run, each with its constraint."""
        from npuc.conditions.host import problems
        from npuc.targets.easynpu.layers import support
        from npuc.targets.easynpu.network import quantising

        machine = machines.load(options.machine)
        on_array = {node for node in quantising.integer(graph, machine) if options.unlike(node) is None}
        return problems(
            graph,
            on_array,
            support.HOST,
            lambda node: options.unlike(node) or support.refusal(graph, node, machine),
            strict=options.strict,
        )

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        """Calibrates, quantises and lowers; adds the integer network to the program as evidence."""
        from npuc.conditions.host import expect_conversions
        from npuc.evidence import evidence, signature
        from npuc.quantize.improvement.search import as_json
        from npuc.targets.easynpu.layers.rewrites import with_borders, with_rows_folded
        from npuc.targets.easynpu.network import quantising
        from npuc.targets.easynpu.program import lowering, report

        machine = machines.load(options.machine, options.scales)
        documented = options.flag(ISA) == DOCUMENTED
        options.begin("choosing scales")
        network, steps = quantising.network(graph, samples, machine, options, hook)
        options.tell(steps)
        quantised = network.quantised
        options.begin("planning and writing words")
        proof = evidence(quantised)
        folded, laid_out = with_rows_folded(quantised.graph, machine)
        quantised = replace(quantised, graph=with_borders(folded))
        objective = options.flag(OBJECTIVE)
        lowered = lowering.lower(quantised, machine, laid_out, documented=documented, objective=objective)
        if options.strict:
            expect_conversions(lowered.steps)
        manifest, files = report.manifest(lowered, machine, documented=documented)
        manifest["report"]["quantization"] = {"level": options.level, "steps": as_json(steps)}
        return Program({**manifest, **signature(graph)}, files, proof)

    def quantise(self, graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The network that `lower` turns into a program, and the trials that were made to improve it."""
        from npuc.targets.easynpu.network import quantising

        machine = machines.load(options.machine, options.scales)
        return quantising.network(graph, samples, machine, options)

    def runner(self, program: Program, chip_model: str = "own") -> TargetRunner:
        """A runner of the manifest's steps, with the simulator of its machine or the core in Verilator."""
        if chip_model == "rtl":
            from npuc.targets.easynpu.rtl.simulation import RtlRunner

            return RtlRunner(program)
        from npuc.targets.easynpu.simulate.running import Runner

        return Runner(program)

    def hardware(
        self,
        machine: str | None,
        program: Program | None,
        samples: Samples | None,
        resources: Sequence[str],
        *,
        system: bool = False,
    ) -> dict[str, bytes]:
        """The core in Verilog with a test bench; a program's steps; cell counts by type (resources.json)."""
        from npuc.targets.easynpu.rtl import export

        core = machines.load(machine) if program is None else Contents.of(program.manifest).machine
        files = export.files(core, program, samples, boots=system)
        verilog = files["easynpu.sv"].decode()
        found = {family: export.estimate_cells(verilog, family) for family in resources}
        return {**files, **({"resources.json": canonical_json(found)} if found else {})}

    def trace_runner(self, program: Program, trace: Path) -> TargetRunner:
        """A runner on the core in Verilator, which writes all its signals."""
        from npuc.targets.easynpu.rtl.simulation import RtlRunner

        return RtlRunner(program, trace)

    def timeline(self, program: Program) -> Timeline:
        """Chains, transfers and maps over time, from the words and the cycle model."""
        from npuc.targets.easynpu.view import timeline

        return timeline(program)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """One entry per instruction word: number, hexadecimal word, listing line, fields, source nodes."""
        from npuc.targets.easynpu import view

        return view.entries(program.files.get("itcm.bin", b""), Contents.of(program.manifest).instructions)

    def outline(self, program: Program) -> list[Heading]:
        """Segments with the host's transfers, and their chains of words."""
        from npuc.targets.easynpu.view import outline

        return outline(program)

    def origin(self, program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
        """The last word that writes this element."""
        from npuc.targets.easynpu.view import origin

        return origin(program, tensor, element)

    def storage_of(self, program: Program, tensor: str) -> Stored | None:
        """The tensor's words in a DTCM."""
        from npuc.targets.easynpu.view import place_of

        return place_of(program, tensor)

    def memory_annotations(self, program: Program, name: str) -> Iterable[MemoryAnnotation]:
        """The meaning of each part of an image."""
        from npuc.targets.easynpu.view import memory_annotations

        return memory_annotations(program, name)

    def raw_listing(self, path: Path) -> list[dict[str, Any]]:
        """The listing of a file of words without a program. Raises ModelError (E110) for too many words."""
        from npuc.storage.readmemh import WORDS, image_of
        from npuc.targets.easynpu import view

        words = image_of(read_file(path, "E501", WORDS), isa.WORD_BYTES)
        expect_room(len(words) * LISTED, "the listing of its words")
        return view.entries(words, [])

    def layout(self) -> Mapping[str, list[dict[str, str | int]]]:
        """The fields of the layer word and of the extension words."""
        return isa.layout()

    def assemble(self, program: Program, listing: Path) -> Program:
        """The program with the words of a listing in place of its own."""
        from npuc.targets.easynpu.export import assembling

        return assembling.assemble_listing(program, read_file(listing, "E501", assembling.REMEDY))

    def export(self, program: Program, form: str, player: str | None = None) -> dict[str, bytes]:  # noqa: ARG002
        """Words and images as raw binary or $readmemh text, with map.json."""
        from npuc.targets.easynpu.export import c_export

        return c_export.export_files(program, form)

    def self_test(self, program: Program, form: str, inputs: Mapping[str, Array]) -> dict[str, bytes]:  # noqa: ARG002
        """Samples, the simulator's results for them, and the comparison in C."""
        from npuc.targets.easynpu.export import c_export

        return c_export.self_test(program, inputs)

    def machine_values(self, name: str | None) -> dict[str, Any]:
        """The parameters of a machine."""
        return asdict(machines.load(name))

    def machines(self) -> list[str]:
        """Machine descriptions that ship with npuc."""
        return list(machines.names())

    def operators(self) -> list[dict[str, str]]:
        """The operators of the array with their constraints, rewritten operators, and those of the host."""
        from npuc.targets.easynpu.layers import support
        from npuc.targets.easynpu.layers.rewrites import MOVES

        host = [
            {
                "op": op,
                "runs_as": "reshape, or host step" if op in MOVES else "host step",
                "constraints": f"{'On the host: ' if op in MOVES else ''}{why}.",
            }
            for op, why in support.HOST.items()
        ]
        return table(support.ARRAY, support.REWRITTEN) + host


EASYNPU = EasyNpu()
