"""The division of a model into parts: parts are offered to the target until it refuses nothing more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from npuc.conditions.values import mask_problems, nan_problems
from npuc.errors import AMBIGUOUS, NEEDLESS, ModelError, NpucError, Problem, UnsupportedOperator
from npuc.frontend.binding import bound_values
from npuc.frontend.frames import convert_inputs
from npuc.frontend.importing import import_nodes
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.frontend.reading import read_model
from npuc.ir import Array, Graph, Node
from npuc.ops.movement import ONNX_MOVEMENT
from npuc.ops.products import macs
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import Pass, Step, recorder, run_passes
from npuc.regions import graphs as parts_of
from npuc.regions import partition
from npuc.regions.rebatching import rebatch
from npuc.target import Options, Request, Shapes, Target, matches
from npuc.text.escaping import Names
from npuc.text.terminal import closest

ROUNDS = 64
"""The most times that the target may refuse."""
FATAL = ("E101", "E102", "E104", "E108", "E109", "E110", AMBIGUOUS, "E203", "E305")
"""Errors that running nodes on the host cannot avoid."""

Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Units of a part, and its outputs."""
Made = tuple[Graph, list[Step]]
"""A part's graph after all passes, and their changes."""


@dataclass
class ModelPlan:
    """A model being compiled: why nodes run on the host, and results on parts so far."""

    network: ImportedModel
    request: Request
    denied: dict[str, Problem]
    causes: list[Problem]
    """What npuc and the target refuse, as they say it: one entry for all nodes that it concerns."""
    graphs: dict[Key, Made] = field(default_factory=dict[Key, Made])
    accepted: set[Key] = field(default_factory=set[Key])
    """Parts in which the target refuses nothing."""
    divided: dict[frozenset[str], tuple[partition.Part, ...]] = field(
        default_factory=dict[frozenset[str], tuple[partition.Part, ...]]
    )
    """Divisions so far, by the nodes that run on the host."""
    on_host: bool = False
    """Whether onnxruntime is known to run the model."""

    @property
    def target(self) -> Target:
        """The target."""
        return self.request.target

    @property
    def options(self) -> Options:
        """The options."""
        return self.request.options


def passes_of(target: Target, options: Options) -> tuple[Pass, ...]:
    """The passes for a model on its way to the target, in order.

    Raises ValueError if the target leaves out an unknown pass.
    """
    shared = {each.__name__: each for each in FLOAT_PASSES}
    if unknown := set(target.left_out) - shared.keys():
        raise ValueError(f"{target.name} leaves out passes that are not shared: {', '.join(sorted(unknown))}")
    return (*(each for name, each in shared.items() if name not in target.left_out), *target.passes(options))


def plan_model(request: Request) -> ModelPlan:
    """The plan of a model, of which no part was offered to the target yet.

    Raises NpucError for a machine that does not exist, and for what the host cannot run either.
    """
    request.target.machine_values(request.options.machine)
    target, options = request.target, request.options
    network = import_network(request.model, options, request.shapes, host=not options.strict)
    fatal = [node.problem for node in network.nodes if node.problem is not None and node.problem.code in FATAL]
    if fatal:
        raise NpucError.of(each.on(target.name) for each in fatal)
    network = with_constant_outputs(network)
    _expect_layers(network, options)
    denied = refused_nodes(network, target, options)
    causes = [each.on(target.name) for each in network.problems]
    causes += [each for name, each in denied.items() if network.by_name[name].problem is None]
    return ModelPlan(network, request, denied, causes)


def import_network(model: Path, options: Options, shapes: Shapes, *, host: bool = True) -> ImportedModel:
    """The nodes of a model file. Raises ModelError as `import_nodes` and `bound_values`.

    host: whether the host may run nodes.
    """
    proto = read_model(model, whole=False)
    values = bound_values(proto, options.bind)
    proto = rebatch(proto, shapes, options.input, model.parent)
    shapes = {
        name: each for name, each in shapes.items() if all(name != d.input for d in options.input if d.fused)
    }
    hosted = convert_inputs(proto, options.input)
    found = import_nodes(proto, model.parent, shapes, values, host=host)
    return replace(found, nodes=tuple(_on_host(each, hosted) for each in found.nodes))


def _on_host(node: ImportedNode, hosted: Mapping[str, Problem]) -> ImportedNode:
    """The node, refused if it writes one of these tensors, with the reason."""
    problem = next((hosted[name] for name in node.writes if name in hosted), None)
    return node if problem is None else replace(node, problem=replace(problem, node=node.source, op=node.op))


def with_constant_outputs(network: ImportedModel) -> ImportedModel:
    """The model with a node of the host for every output that is a constant; others read it by another name."""
    found = [name for name in network.outputs if name in network.constants]
    if not found:
        return network
    given: list[ImportedNode] = []
    constants, names = dict(network.constants), Names(network.reserved)
    labels = Names(network.by_name)
    written = {name: node.key for node in network.file_nodes for name in node.writes}
    own = {name: names.new(f"{name}/given") for name in found}
    for name, constant in own.items():
        constants[constant] = constants.pop(name)
        reason, remedy = "the output is a constant: it depends on no input", "remove it from the model's outputs"
        proto, label = onnx.helper.make_node("Identity", [constant], [name]), labels.new(f"{name}/given")
        source = written.get(name, "")
        problem = Problem("E202", reason, source or None, "Constant", name, remedy=remedy)
        given.append(ImportedNode(label, proto, (), problem, source))
    nodes = (*(node.rename(own) for node in network.nodes), *given)
    types = {**network.types, **{constant: network.types[name] for name, constant in own.items()}}
    return replace(network, nodes=nodes, constants=constants, types=types, reserved=names.all_names())


def _expect_layers(network: ImportedModel, options: Options) -> None:
    """Raises ModelError (E109) for a --layer that is no node of the model's file."""
    known = [node.key for node in network.file_nodes]
    for pattern, precision in options.layer:
        if not any(matches(pattern, name) for name in known):
            reason = f"--layer {pattern}={precision}: the model has no such node.{closest(pattern, known)}"
            raise ModelError("E109", reason, remedy="name a node of the model; * stands for any letters")


def refused_nodes(network: ImportedModel, target: Target, options: Options) -> dict[str, Problem]:
    """The nodes that the target cannot run or must not, and why.

    A --deny of a node that was folded away has no effect: nothing is left to run. Raises ModelError (E109) for a
    name that matches nothing.
    """
    found = {node.name: node.problem.on(target.name) for node in network.nodes if node.problem is not None}
    for asked in options.deny:
        named = [node for node in network.nodes if asked in (node.source, node.op)]
        if not named and asked not in network.written:
            known = sorted({each for node in network.nodes for each in (node.source, node.op)})
            reason = f"--deny {asked}: the model has no such operator or node.{closest(asked, known)}"
            raise ModelError("E109", reason, remedy="name an ONNX operator, or a node of the model")
        for node in named:
            problem = Problem("W202", "it was asked for", node.source, node.op, remedy=f"leave out --deny {asked}")
            found.setdefault(node.name, problem)
    for node in network.nodes:
        whole = target.left_whole(node.op, network.types.get(next(iter(node.proto.input), "")), options)
        if whole is not None:
            found.setdefault(node.name, replace(whole, node=node.source, op=node.op))
    ranked = _score_sigmoids(network) if options.precision == "int8" and not options.strict else ()
    for name, problem in (*_beyond(network, options.precision), *_tested_softmax(network), *ranked):
        found.setdefault(name, problem)
    return found


def _score_sigmoids(network: ImportedModel) -> Iterator[tuple[str, Problem]]:
    """The Sigmoid nodes of a detector's scores: results that leave the network, only moved, beside others.

    In 8 bits the highest scores become equal, and the suppression of double detections keeps any of them; the
    integers of the argument differ, unless it is a part of a tensor, with one scale for boxes and scores.
    """
    parts = set[str]()  # those of other tensors, possibly moved
    for node in filter(_moves, network.nodes):
        if node.op in ("Split", "Slice") or not parts.isdisjoint(node.imported):
            parts.update(node.writes, node.made)
    leaving = dict.fromkeys(network.outputs, len(network.outputs) > 1)  # whether others leave beside the tensor
    computed = set[str]()
    for node in reversed(network.nodes):
        leaves = leaving.keys() >= {*node.writes} and computed.isdisjoint(node.writes)
        beside = leaves and (node.op == "Concat" or any(leaving[name] for name in node.writes))
        if leaves and _moves(node):
            leaving |= {name: beside or leaving.get(name, False) for name in node.reads}
            continue
        computed.update(node.reads)
        if node.op == "Sigmoid" and beside and node.proto.input[0] not in parts:
            reason, remedy = "in 8 bits, its highest scores would be equal", "--strict keeps it on the NPU"
            yield node.name, Problem("W205", reason, node.source, node.op, remedy=remedy)


def _moves(node: ImportedNode) -> bool:
    """Whether a node only moves elements."""
    return bool(node.nodes) and all(each.op in ONNX_MOVEMENT for each in node.nodes)


def _tested_softmax(network: ImportedModel) -> Iterator[tuple[str, Problem]]:
    """The Softmax nodes whose results are tested for NaN: of -inf only, a machine's Softmax may give numbers."""
    for node in network.nodes:
        made = network.producers.get(node.proto.input[0]) if node.op == "IsNaN" else None
        if made is not None and made.op == "Softmax":
            reason, limit = "its result is tested for NaN", "a Softmax of numbers"
            yield (
                made.name,
                Problem("E202", reason, made.source, made.op, limit=limit, remedy="leave out the mask"),
            )


def _beyond(network: ImportedModel, precision: str) -> Iterator[tuple[str, Problem]]:
    """The nodes that belong to a mask before a Softmax, wherever that runs, or that would hide a NaN."""
    canonical = [
        each
        for node in network.nodes
        for each in node.nodes or (Node(node.op, tuple(node.proto.input), tuple(node.proto.output)),)
    ]
    for problem in _wrong_here(canonical, network.constants, precision):
        node = network.producers.get(problem.tensor or "")
        if node is not None:
            yield node.name, replace(problem, node=node.source, op=node.op)


def _wrong_here(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each node whose operator runs here, but whose values need another range or NaN."""
    return [*mask_problems(nodes, constants, precision), *nan_problems(nodes, constants, precision)]


def divide(plan: ModelPlan) -> tuple[partition.Part, ...]:
    """The parts, in order."""
    denied = frozenset(plan.denied)
    if denied not in plan.divided:
        plan.divided[denied] = partition.partition(parts_of.blocks(plan.network, plan.denied))
    return _drop_unread(plan.network, plan.divided[denied])


def _drop_unread(network: ImportedModel, parts: Sequence[partition.Part]) -> tuple[partition.Part, ...]:
    """The parts without nodes that nothing reads: on the NPU, a node may read other tensors than on the host."""
    read, found = set(network.outputs), list[partition.Part]()
    for part in reversed(parts):
        kept: list[str] = []
        for node in (network.by_name[name] for name in reversed(part.blocks)):
            if not read.isdisjoint((*node.writes, *(node.made if part.on_npu else ()))):
                read.update(node.imported if part.on_npu else node.reads)
                kept.append(node.name)
        if kept:
            found.append(replace(part, blocks=tuple(reversed(kept))))
    return tuple(reversed(found))


def part_macs(network: ImportedModel, part: partition.Part) -> int:
    """The multiply-accumulates of a part."""
    return sum(parts_of.node_macs(network, network.by_name[name]) for name in part.blocks)


def deny(plan: ModelPlan, names: Sequence[str], problem: Problem) -> None:
    """Sends nodes to the host; those already sent keep their reason."""
    for name in names:
        node = plan.network.by_name[name]
        plan.denied.setdefault(name, replace(problem, node=node.source or None, op=node.op))


def settle(plan: ModelPlan) -> tuple[partition.Part, ...]:
    """Parts that the target accepts, as far as it can tell without samples."""
    for _ in range(ROUNDS):
        parts = divide(plan)
        outside = read_outside(plan.network, parts)
        refusing = [part for part in parts if part.on_npu and _refuses(plan, outside, part)]
        if not refusing:
            return parts
    for part in divide(plan):
        if part.on_npu:
            deny(plan, part.blocks, Problem("E202", "the target refuses part after part"))
    return divide(plan)


def _refuses(plan: ModelPlan, outside: AbstractSet[str], part: partition.Part) -> bool:
    """Whether the target refuses anything in a part; refused nodes are denied from now on."""
    key = key_of(plan.network, outside, part)
    if key in plan.accepted:
        return False
    try:
        graph, _ = optimise(plan, outside, part)
        found = plan.target.problems(graph, plan.options)
        if found:
            raise NpucError.of(found)
    except NpucError as error:
        deny_refused(plan, outside, part, error)
        return True
    plan.accepted.add(key)
    return False


def expect_on_target(plan: ModelPlan, parts: Sequence[partition.Part]) -> None:
    """Raises NpucError with everything that the target refuses, if it does not run the whole model."""
    if plan.causes:
        raise NpucError.of(plan.causes)
    if len(parts) != 1:
        raise UnsupportedOperator("E202", "nothing is left to compute: the outputs are inputs of the model")


def explain_absorbed(node: ImportedNode) -> Problem:
    """Why a node runs on the host that the target does not refuse."""
    reason = "it lies among nodes of the host: on the NPU it would only add transfers"
    return Problem(NEEDLESS, reason, node.source or None, node.op)


def deny_refused(
    plan: ModelPlan, outside: AbstractSet[str], part: partition.Part, error: NpucError, steps: Sequence[Step] = ()
) -> None:
    """Sends the nodes of a refusal to the host; the whole part if it names none of them.

    steps: the changes of the part's graph until then.
    """
    if any(not (each.node or each.tensor) and each.code[1] != "3" for each in error.problems):
        raise error
    if any(each.code[1] not in "123" or each.code in FATAL for each in error.problems):
        raise error
    key = key_of(plan.network, outside, part)
    graphs = [plan.graphs[key][0]] if key in plan.graphs else []
    graphs += [after for _, _, after in steps]
    before = len(plan.denied)
    for problem in error.problems:
        concerned = [name for name in blame(plan.network, graphs, problem) if name in part.blocks]
        own = {plan.network.by_name[name].source for name in concerned}
        plan.causes.append(replace(problem, node=next(iter(own))) if len(own) == 1 else problem)
        deny(plan, concerned, problem)
    if len(plan.denied) == before:
        deny(plan, part.blocks, error.problems[0])


def blame(network: ImportedModel, graphs: Sequence[Graph], problem: Problem) -> list[str]:
    """The nodes concerned by a target's problem. graphs: those in which its node may be."""
    made_of = (_made_of(network, graph, problem) for graph in graphs)
    found = next(filter(None, made_of), None) or [
        each.name for each in network.by_source.get(problem.node or "", ())
    ]
    if not found and problem.tensor is not None and problem.tensor in network.producers:
        found = [network.producers[problem.tensor].name]
    return list(dict.fromkeys(found))


def _made_of(network: ImportedModel, graph: Graph, problem: Problem) -> list[str]:
    """The nodes from which the refused node of a graph was made.

    A node without multiplications may have products among its sources, whose results only passed a common Reshape:
    these are concerned only if they are all that there is.
    """
    found: list[str] = []
    for node in graph.nodes:
        if problem.node in (node.name, *node.sources[:1]) and problem.op in (None, node.op):
            made_of = [each for source in node.sources for each in _became(network, source, node)]
            others = [each for each in made_of if not parts_of.node_macs(network, each)]
            found += [each.name for each in (others if others and not macs(node, graph.tensors) else made_of)]
    return found


def _became(network: ImportedModel, source: str, node: Node) -> Sequence[ImportedNode]:
    """What a node of the file became; of several, those that this node of a graph is named for or whose results
    it writes, if there are any.
    """
    found = network.by_source.get(source, ())
    own = [each for each in found if each.name == node.name or not {*each.made}.isdisjoint(node.outputs)]
    return own or found


def optimise(plan: ModelPlan, outside: AbstractSet[str], part: partition.Part) -> Made:
    """The graph of a part after all passes, and their changes.

    Raises UnsupportedOperator (E202) if an output of the part depends on no input.
    """
    key = key_of(plan.network, outside, part)
    if key not in plan.graphs:
        changes: list[Step] = []
        network = plan.network
        nodes = [network.by_name[name] for name in part.blocks]
        graph = parts_of.part_graph(network, nodes, outside, network.name)
        passes = passes_of(plan.target, plan.options)
        plan.graphs[key] = run_passes(graph, passes, recorder(changes, plan.request.hook)), changes
    graph, steps = plan.graphs[key]
    constant = [name for name in graph.outputs if name in graph.constants or not graph.inputs]
    if constant:
        raise NpucError.of([Problem("E202", "it depends on no input", tensor=name) for name in constant])
    return graph, steps


def key_of(network: ImportedModel, outside: AbstractSet[str], part: partition.Part) -> Key:
    """The identity of a part: its nodes, and which of its tensors are read outside."""
    written = {name for block in part.blocks for name in network.by_name[block].writes}
    return part.blocks, tuple(sorted(written & outside))


def read_outside(network: ImportedModel, parts: Sequence[partition.Part]) -> set[str]:
    """The tensors that the user or parts read which do not compute them."""
    found = set(network.outputs)
    for part in parts:
        nodes = [network.by_name[name] for name in part.blocks]
        found |= {*parts_of.crossing_inputs(network, nodes, on_npu=part.on_npu)}
    return found
