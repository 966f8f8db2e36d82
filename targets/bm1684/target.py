"""The BM1684 target: kernels of OKK calls, behind the Target protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuc.conditions.constraints import refuse, table
from npuc.errors import DoesNotFit, Problem
from npuc.evidence import float_evidence, signature
from npuc.host.c_text import network_name
from npuc.ir import Array, Graph, Node, TensorType
from npuc.pipeline import Hook, Pass
from npuc.program import Program, canonical_json
from npuc.samples.loading import Samples
from npuc.storage.mapped import Content, Files
from npuc.storage.records import read
from npuc.target import ALTERNATING, RECURRENT, Options, Origin, Stored, Target
from npuc.targets.bm1684.export import host
from npuc.targets.bm1684.export import kernel as exported_kernel
from npuc.targets.bm1684.lowering import rules, slicing
from npuc.targets.bm1684.lowering.kernel import Kernel
from npuc.targets.bm1684.lowering.tensors import Lowered
from npuc.targets.bm1684.machine import parameters as machines
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.network import support
from npuc.targets.bm1684.plan import planner
from npuc.targets.bm1684.program import report
from npuc.targets.bm1684.program.artefact import WEIGHTS_FILE, Contents, Instruction, instructions
from npuc.targets.bm1684.program.table import TABLE_FILE
from npuc.targets.bm1684.program.view import origin, outline, timeline
from npuc.targets.bm1684.simulate import simulator
from npuc.targets.bm1684.simulate.running import Runner
from npuc.view import Heading, MemoryAnnotation, Timeline

if TYPE_CHECKING:
    from npuc.host.step import HostStep
    from npuc.quantize.improvement.search import Trial, TrialNetwork
    from npuc.quantize.network.construction import Quantised


SHARED = {name: host.SHARED / name for name in ("npuc_kernel.h", "npuc_launch.hpp")}
FIRMWARE_HEADER = {"okk_fix8b.h": simulator.MODEL / "okk_fix8b.h"}


class Bm1684(Target):
    """BM1684 as a Target: fp32 by the public interface, int8 by functions of the firmware library."""

    name = "bm1684"
    summary = "64 NPUs of 16 lanes, fp32, programmed in C through OKKernel; int8 outside its public interface"
    memories = ("local", "system")
    precisions = ("fp32", "int8")
    exports = ("okkernel",)
    self_tests = ("okkernel",)
    named_exports = ("okkernel",)
    shared_exports = (*SHARED, *FIRMWARE_HEADER)
    chip_models = ("own", "vendor")
    has_integer_network = True
    takes_layers = True

    def left_whole(self, op: str, x: TensorType | None, options: Options) -> Problem | None:
        """Recurrent networks in int8: their steps are slices of the first axis."""
        del x
        return ALTERNATING if op in RECURRENT and options.precision == "int8" else None

    def passes(self, options: Options) -> tuple[Pass, ...]:
        """The passes that rewrite forms without calls of the machine."""
        from npuc.targets.bm1684.network.passes import PASSES, fixed_passes

        return fixed_passes(options.steps) if options.precision == "int8" else PASSES

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """Every node that no calls can compute, with the constraint it violates."""
        from npuc.conditions.host import emptiness

        machines.load(options.machine)
        if options.precision == "int8":
            return _fixed_problems(graph, options)
        found = (emptiness(graph, node) or support.refusal(graph, node) for node in graph.nodes)
        return [problem for problem in found if problem is not None]

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        """Lowers, plans and emits; for int8 also calibrates and quantises."""
        machine = machines.load(options.machine)
        if options.precision == "int8":
            return self._lower_int8(graph, samples, options, machine)
        del samples, hook
        options.begin("planning and writing the kernel")
        sliced, lowered, kernel = _plan_cheapest(graph, machine)
        contents = report.contents(graph, lowered, machine)
        manifest = report.manifest(sliced, lowered, kernel, machine, contents, network=graph)
        files: dict[str, Content] = {
            TABLE_FILE: report.table_of(kernel).data(contents.places, machine),
            WEIGHTS_FILE: lowered.weights,
        }
        return Program({**manifest, **signature(graph)}, Files(files), float_evidence(graph, graph))

    def _lower_int8(self, graph: Graph, samples: Samples, options: Options, machine: Machine) -> Program:
        """An int8 program, with the integer network as its evidence."""
        from npuc.conditions.host import constant_steps
        from npuc.evidence import evidence
        from npuc.quantize.improvement.search import as_json
        from npuc.targets.bm1684.lowering import fixed
        from npuc.targets.bm1684.network import fixed as layers

        options.begin("choosing scales")
        network, tried = layers.network(graph, samples, options)
        options.tell(tried)
        options.begin("planning and writing the kernel")
        quantised, lowered, kernel = _plan_int8(network.quantised, machine)
        parts = fixed.parts(quantised.graph)

        def dtype(name: str) -> str:
            producers = quantised.graph.producers
            while name in producers and producers[name].op == "Identity":  # the same bytes
                name = producers[name].inputs[0]
            return "uint8" if quantised.zeros.get(name) == fixed.UNSIGNED else "int8"

        ports = {name: dtype(name) for name in (*parts.words.inputs, *parts.words.outputs)}
        host = (*parts.before, *parts.after)
        steps = [
            *constant_steps(quantised.graph, host, set()),
            *(_host_step(quantised.graph, node) for node in host),
        ]
        contents = report.contents(quantised.graph, lowered, machine, ports, steps)
        manifest = report.manifest(quantised.graph, lowered, kernel, machine, contents, dtype)
        if quantised is not network.quantised:
            left = {*network.quantised.graph.nodes} - {*quantised.graph.nodes}
            manifest["sliced"] = sorted({source for node in left for source in node.sources})
        manifest["report"]["quantization"] = {"level": options.level, "steps": as_json(tried)}
        files: dict[str, Content] = {
            TABLE_FILE: report.table_of(kernel).data(contents.places, machine),
            WEIGHTS_FILE: lowered.weights,
        }
        return Program({**manifest, **signature(graph)}, Files(files), evidence(network.quantised))

    def quantise(self, graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The integer network of --precision int8, and the trials made to improve it."""
        from npuc.targets.bm1684.network import fixed

        return fixed.network(graph, samples, options)

    def runner(self, program: Program, chip_model: str = "own") -> Runner:
        """Runs the table's calls on npuc's model of the interface, or on the vendor's chip model."""
        return Runner(program, chip_model)

    def results(self, program: Program) -> Mapping[str, frozenset[str]]:
        """As for every target; the nodes of layers in slices count for each tensor, as nothing else shows them."""
        found = dict(super().results(program))
        sliced = frozenset(read(tuple[str, ...], program.manifest.get("sliced", []), "sliced"))
        joined = [
            each.tensor
            for each in Contents.of(program.manifest).placements
            if each.direction == "output" and sliced
        ]
        return {name: found.get(name, sliced) | sliced for name in (*found, *joined)}

    def timeline(self, program: Program) -> Timeline:
        """The activities of GDMA and BDC, and the buffers in local memory."""
        return timeline(program)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """One entry per call: number, text, nodes, tensor, engine, region, cycles."""
        return [_listing_row(each) for each in instructions(program)]

    def outline(self, program: Program) -> list[Heading]:
        """The headings of the kernel with the host's copies, layers and regions."""
        return outline(program)

    def origin(self, program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
        """The call that computes an element."""
        return origin(program, tensor, element)

    def storage_of(self, program: Program, tensor: str) -> Stored | None:
        """The words of a tensor in system memory."""
        from npuc.targets.bm1684.program.view import storage_of

        return storage_of(program, tensor)

    def memory_annotations(self, program: Program, name: str) -> Iterable[MemoryAnnotation]:
        """Annotations of the parts of a memory image."""
        from npuc.targets.bm1684.program.view import memory_annotations

        return memory_annotations(program, name)

    def export(  # (as Target)
        self,
        program: Program,
        form: str,  # noqa: ARG002
        player: str | None = None,  # noqa: ARG002
    ) -> dict[str, bytes]:
        """The device C, the host launcher, the weights, a map of regions and placements, and build files."""
        name = network_name(program.manifest)
        contents = replace(Contents.of(program.manifest), kernel=f"{name}_kernel")
        summary = read(Mapping[str, Any], program.manifest.get("report"), "report")
        cycles = read(int, summary.get("cycles"), "report.cycles")
        shared = {**SHARED, **FIRMWARE_HEADER} if contents.is_int8 else SHARED
        code = exported_kernel.device_code(program, contents, cycles)
        return {
            f"{name}_ok_device_kernel.c": code.encode(),
            f"{name}_launch.cpp": host.launcher(contents, program).encode(),
            WEIGHTS_FILE: program.files.get(WEIGHTS_FILE, b""),
            "map.json": canonical_json(contents.as_json()),
            **host.build_files(name),
            **{name: file.read_bytes() for name, file in shared.items()},
        }

    def self_test(self, program: Program, form: str, inputs: Mapping[str, Array]) -> dict[str, bytes]:  # noqa: ARG002
        """Samples, simulated outputs, and a make target that compares them."""
        return host.self_test(program, inputs)

    def machine_values(self, name: str | None) -> dict[str, Any]:
        """The parameters of a machine."""
        return machines.load(name).as_dict()

    def operators(self) -> list[dict[str, str]]:
        """The operators, with their calls and constraints."""
        return table(support.OPERATORS, {})


def _host_step(graph: Graph, node: Node) -> HostStep:
    """A node before or after the kernel; a product has the factors of channels (quantize/improvement/borders)."""
    from npuc.conditions.host import host_step
    from npuc.targets.bm1684.network.fixed import HOST

    step = host_step(graph, node, HOST.get(node.op, ""), at_border=True)
    return replace(step, conversion=True, reason="a scale for each channel") if node.op == "Mul" else step


def _fixed_problems(graph: Graph, options: Options) -> list[Problem]:
    """Every node that 8-bit layers cannot compute, without what only moves the first axis beside one."""
    from npuc.conditions.host import conversion_refusal, emptiness
    from npuc.targets.bm1684.network import fixed

    integer = set(fixed.integer(graph))
    found: dict[Node, Problem] = {}
    for node in graph.nodes:
        if fixed.left_to_host(graph, node) and not options.strict:
            continue
        problem = emptiness(graph, node) or conversion_refusal(graph, node) or fixed.refusal(graph, node)
        problem = problem or options.unlike(node)
        if problem is None and node not in integer and node.op not in ("QuantizeLinear", "DequantizeLinear"):
            problem = refuse(node, "no layer of 8 bits is beside it", remedy=fixed.REMEDY)
        if problem is not None:
            found[node] = problem
    beside = set() if options.strict else {node for node in found if fixed.moves_beside(graph, node, found)}
    return [problem for node, problem in found.items() if node not in beside]


Plan = tuple[Graph, Lowered, Kernel]
"""The graph that was lowered, its lowered form, and the planned kernel."""


def _plan_cheapest(graph: Graph, machine: Machine) -> Plan:
    """The plan with the fewest cycles: the whole batch at once, or its images one after the other."""
    alone = slicing.split_images(graph)
    if alone is None:
        return _plan_graph(graph, machine)
    plans, refused = list[Plan](), list[DoesNotFit]()
    for way in (graph, alone):
        try:
            plans.append(_plan_graph(way, machine))
        except DoesNotFit as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    return min(plans, key=lambda plan: planner.cost(plan[2].regions, machine).cycles)


def _plan_graph(graph: Graph, machine: Machine) -> Plan:
    """The plan of a graph or, if its maps exceed local memory, of its rewriting into slices."""
    try:
        lowered = rules.lower(graph, machine)
        return graph, lowered, planner.plan(lowered, machine)
    except DoesNotFit:
        sliced = slicing.fit(graph, machine)
        if sliced is graph:
            raise
    lowered = rules.lower(sliced, machine)
    return sliced, lowered, planner.plan(lowered, machine)


FixedPlan = tuple["Quantised", Lowered, Kernel]
"""The integer network that was lowered, its lowered form, and the planned kernel."""


def _plan_int8(quantised: Quantised, machine: Machine) -> FixedPlan:
    """The plan of an int8 network: its rows and columns move in local memory or, if that is too small, outside.

    Maps that exceed local memory are computed in slices.
    """
    from npuc.targets.bm1684.lowering import fixed

    def plan_network(network: Quantised, *, inside: bool) -> FixedPlan:
        lowered = fixed.lower(fixed.parts(network.graph).words, network, machine, inside=inside)
        return network, lowered, planner.plan(lowered, machine)

    for inside in (True, False):
        with suppress(DoesNotFit):
            return plan_network(quantised, inside=inside)
    return plan_network(fixed.slice_maps(quantised, machine), inside=False)


def _listing_row(call: Instruction) -> dict[str, Any]:
    return {
        "index": call.index,
        "word": None,
        "text": call.text,
        "nodes": list(call.nodes),
        "tensor": call.tensor,
        "engine": call.engine,
        "region": call.region,
        "cycles": call.cycles,
    }


BM1684 = Bm1684()
