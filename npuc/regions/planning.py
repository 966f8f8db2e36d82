"""The division of a model into parts: parts are offered to the target until it refuses nothing more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from npuc import driver
from npuc.errors import AMBIGUOUS, HOST_STEP, NEEDLESS, ModelError, NpucError, Problem
from npuc.frontend.binding import bound_values
from npuc.frontend.reading import read_model
from npuc.frontend.units import Network, Unit, survey
from npuc.ir import Graph, Node
from npuc.ops.macs import macs
from npuc.pipeline import Step, recorder, run_passes
from npuc.regions import graphs as parts_of
from npuc.regions import partition
from npuc.samples.loading import synthetic
from npuc.target import Options, Request, Shapes, Target
from npuc.text.terminal import closest

ROUNDS = 64
"""The most times that the target may refuse."""
FATAL = ("E101", "E102", "E104", "E108", "E109", "E110", AMBIGUOUS, "E203", "E305")
"""Errors that running nodes on the host cannot avoid."""

Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Units of a part, and its outputs."""
Made = tuple[Graph, Sequence[Step]]
"""A part's graph after all passes, and their changes."""


@dataclass
class Plan:
    """A model being compiled: why units run on the host, and results on parts so far."""

    network: Network
    request: Request
    denied: dict[str, Problem]
    graphs: dict[Key, Made] = field(default_factory=dict[Key, Made])
    tried: set[Key] = field(default_factory=set[Key])
    divided: dict[frozenset[str], tuple[partition.Part, ...]] = field(
        default_factory=dict[frozenset[str], tuple[partition.Part, ...]]
    )
    """Divisions so far, by the units that run on the host."""
    refusals: Mapping[str, Problem] = field(default_factory=dict[str, Problem])
    """The target's refusals of the whole model, by unit."""

    @property
    def target(self) -> Target:
        """The target."""
        return self.request.target

    @property
    def options(self) -> Options:
        """The options."""
        return self.request.options


def surveyed(model: Path, options: Options, shapes: Shapes) -> Network:
    """The units of a model file. Raises ModelError as the frontend does, and as `bound_values`."""
    proto = read_model(model)
    return survey(proto, model.parent, shapes, bound_values(proto, options.bind))


def refused(network: Network, target: Target, options: Options) -> dict[str, Problem]:
    """The units that the target cannot run or must not, and why.

    A --deny of a node that was folded away has no effect: nothing is left to run. Raises ModelError (E109) for a
    name that matches nothing.
    """
    found = {unit.name: unit.problem.on(target.name) for unit in network.units if unit.problem is not None}
    for asked in options.deny:
        named = [unit for unit in network.units if asked in (unit.name, unit.op)]
        if not named and asked not in network.written:
            known = sorted({each for unit in network.units for each in (unit.name, unit.op)})
            reason = f"--deny {asked}: the model has no such operator or node.{closest(asked, known)}"
            raise ModelError("E109", reason, remedy="name an ONNX operator, or a node of the model")
        for unit in named:
            problem = Problem("W202", "it was asked for", unit.name, unit.op, remedy=f"leave out --deny {asked}")
            found.setdefault(unit.name, problem)
    for unit in network.units:
        whole = target.left_whole(unit.op, network.types.get(next(iter(unit.proto.input), "")), options)
        if whole is not None:
            found.setdefault(unit.name, replace(whole, node=unit.name, op=unit.op))
    for name, problem in (*_beyond(network, options.precision), *_tested(network)):
        found.setdefault(name, problem)
    return found


def _tested(network: Network) -> Iterator[tuple[str, Problem]]:
    """The Softmax units whose results are tested for NaN: of -inf only, a machine's Softmax may give numbers."""
    for unit in network.units:
        made = network.producers.get(unit.proto.input[0]) if unit.op == "IsNaN" else None
        if made is not None and made.op == "Softmax":
            reason, limit = "its result is tested for NaN", "a Softmax of numbers"
            yield made.name, Problem("E202", reason, made.name, made.op, limit=limit, remedy="leave out the mask")


def _beyond(network: Network, precision: str) -> Iterator[tuple[str, Problem]]:
    """The units that belong to a mask before a Softmax, wherever that runs, or that would hide a NaN."""
    nodes = [
        node
        for unit in network.units
        for node in unit.nodes or (Node(unit.op, tuple(unit.proto.input), tuple(unit.proto.output)),)
    ]
    for problem in driver.wrong_here(nodes, network.constants, precision):
        unit = network.producers.get(problem.tensor or "")
        if unit is not None:
            yield unit.name, replace(problem, node=unit.name, op=unit.op)


def partitioned(plan: Plan) -> tuple[partition.Part, ...]:
    """The parts, with at most the requested number of them on the NPU."""
    while True:
        denied = frozenset(plan.denied)
        if denied not in plan.divided:
            plan.divided[denied] = partition.partition(parts_of.blocks(plan.network, plan.denied))
        parts = plan.divided[denied]
        most = plan.options.max_partitions
        on_npu = [part for part in parts if part.on_npu]
        if most is None or len(on_npu) <= most:
            return _needed(plan.network, parts)
        smallest = min(on_npu, key=lambda part: part_macs(plan.network, part))
        reason, remedy = f"more than --max-partitions {most} on the NPU", f"--max-partitions {len(on_npu)}"
        deny(plan, smallest.blocks, Problem("W203", reason, remedy=remedy))


def _needed(network: Network, parts: Sequence[partition.Part]) -> tuple[partition.Part, ...]:
    """The parts without units that nothing reads: on the NPU, a unit may read other tensors than on the host."""
    read, found = set(network.outputs.values()), list[partition.Part]()
    for part in reversed(parts):
        kept: list[str] = []
        for unit in (network.by_name[name] for name in reversed(part.blocks)):
            inside = (name for node in unit.nodes for name in node.outputs) if part.on_npu else ()
            if not read.isdisjoint((*unit.writes, *inside)):
                read.update(unit.imported if part.on_npu else unit.reads)
                kept.append(unit.name)
        if kept:
            found.append(replace(part, blocks=tuple(reversed(kept))))
    return tuple(reversed(found))


def part_macs(network: Network, part: partition.Part) -> int:
    """The multiply-accumulates of a part."""
    return sum(parts_of.unit_macs(network, network.by_name[name]) for name in part.blocks)


def deny(plan: Plan, names: Sequence[str], problem: Problem) -> None:
    """Sends units to the host; those already sent keep their reason."""
    for name in names:
        unit = plan.network.by_name[name]
        plan.denied.setdefault(name, replace(problem, node=name, op=unit.op))


def settled(plan: Plan) -> tuple[partition.Part, ...]:
    """Parts that the target accepts, as far as it can tell without samples."""
    for _ in range(ROUNDS):
        parts = partitioned(plan)
        outside = read_outside(plan.network, parts)
        refusing = [part for part in parts if part.on_npu and _refuses(plan, outside, part)]
        if not refusing:
            return parts
    for part in partitioned(plan):
        if part.on_npu:
            deny(plan, part.blocks, Problem("E202", "the target refuses part after part"))
    return partitioned(plan)


def _refuses(plan: Plan, outside: AbstractSet[str], part: partition.Part) -> bool:
    """Whether the target refuses anything in a part; refused units are denied from now on."""
    key = key_of(plan.network, outside, part)
    if key in plan.tried:
        return False
    try:
        graph, _ = optimised(plan, outside, part)
        found = plan.target.problems(graph, plan.options)
        if found:
            raise NpucError.of(found)
        program = plan.target.lower(graph, synthetic(driver.input_types(graph), 1), quick(plan.options))
    except NpucError as error:
        deny_refused(plan, outside, part, error)
        return True
    if not program.manifest["report"]["instructions"]:
        remedy = f"npuc operators --target {plan.target.name}"
        reason = "the target leaves all of this part to the host"
        deny(plan, part.blocks, Problem(HOST_STEP, reason, remedy=remedy))
        return True
    plan.tried.add(key)
    return False


def refusals(network: Network, error: NpucError | None) -> dict[str, Problem]:
    """The units of the whole model that the target cannot run, with the first problem of each."""
    found: dict[str, Problem] = {}
    for problem in error.problems if error is not None else ():
        for name in blamed(network, None, problem) if problem.code[:2] in ("E2", "E3") else ():
            found.setdefault(name, replace(problem, node=name, op=network.by_name[name].op))
    return found


def absorbed(plan: Plan, unit: Unit) -> Problem:
    """Why a node runs on the host without being offered to the target: refusal, or needless transfers."""
    if unit.name in plan.refusals:
        return plan.refusals[unit.name]
    reason = "it lies among nodes of the host: on the NPU it would only add transfers"
    return Problem(NEEDLESS, reason, unit.name, unit.op)


def quick(options: Options) -> Options:
    """Options for a trial compile that only shows whether a program is possible."""
    return replace(options, level="0", method=None, notify=None, stage=None, mixed=False, histograms=None)


def deny_refused(plan: Plan, outside: AbstractSet[str], part: partition.Part, error: NpucError) -> None:
    """Sends the units of a refusal to the host; the whole part if it names none of them."""
    if any(not (each.node or each.tensor) and each.code[1] != "3" for each in error.problems):
        raise error
    if any(each.code[1] not in "123" or each.code in FATAL for each in error.problems):
        raise error
    key = key_of(plan.network, outside, part)
    graph = plan.graphs[key][0] if key in plan.graphs else None
    before = len(plan.denied)
    for problem in error.problems:
        deny(plan, [name for name in blamed(plan.network, graph, problem) if name in part.blocks], problem)
    if len(plan.denied) == before:
        deny(plan, part.blocks, error.problems[0])


def blamed(network: Network, graph: Graph | None, problem: Problem) -> list[str]:
    """The units concerned by a target's problem."""
    names = network.by_name
    found: list[str] = [] if graph is None else _made_of(network, graph, problem)
    if not found and problem.node is not None:
        fitting = [name for name in names if problem.node == name or problem.node.startswith(f"{name}/")]
        found = sorted(fitting, key=len)[-1:]
    if not found and problem.tensor is not None and problem.tensor in network.producers:
        found = [network.producers[problem.tensor].name]
    return list(dict.fromkeys(found))


def _made_of(network: Network, graph: Graph, problem: Problem) -> list[str]:
    """The units from which the refused node of a graph was made.

    A node without multiplications may have products among its sources, whose results only passed a common Reshape:
    these are concerned only if they are all that there is.
    """
    found: list[str] = []
    for node in graph.nodes:
        if problem.node in (node.name, *node.sources[:1]) and problem.op in (None, node.op):
            made_of = [each for each in node.sources if each in network.by_name]
            others = [each for each in made_of if not parts_of.unit_macs(network, network.by_name[each])]
            found += others if others and not macs(node, graph.tensors) else made_of
    return found


def optimised(plan: Plan, outside: AbstractSet[str], part: partition.Part) -> Made:
    """The graph of a part after all passes, and their changes.

    Raises UnsupportedOperator (E202) if an output of the part depends on no input.
    """
    key = key_of(plan.network, outside, part)
    if key not in plan.graphs:
        changes: list[Step] = []
        network = plan.network
        units = [network.by_name[name] for name in part.blocks]
        graph = parts_of.part_graph(network, units, outside, network.name)
        passes = driver.passes_of(plan.target, plan.options)
        plan.graphs[key] = run_passes(graph, passes, recorder(changes, plan.request.hook)), changes
    graph, steps = plan.graphs[key]
    constant = [name for name in graph.outputs if name in graph.constants or not graph.inputs]
    if constant:
        raise NpucError.of([Problem("E202", "it depends on no input", tensor=name) for name in constant])
    return graph, steps


def key_of(network: Network, outside: AbstractSet[str], part: partition.Part) -> Key:
    """The identity of a part: its units, and which of its tensors are read outside."""
    written = {name for block in part.blocks for name in network.by_name[block].writes}
    return part.blocks, tuple(sorted(written & outside))


def read_outside(network: Network, parts: Sequence[partition.Part]) -> set[str]:
    """The tensors that the user or parts read which do not compute them."""
    found = set(network.outputs.values())
    for part in parts:
        units = [network.by_name[name] for name in part.blocks]
        found |= {*parts_of.crossing_inputs(network, units, on_npu=part.on_npu)}
    return found
