"""From a model to a program, part by part; nodes that the target refuses go to the host and are reported.

The model's nodes are partitioned, and parts are offered to the target until it refuses nothing more; onnxruntime
must load what goes to the host. Each is then lowered once, calibrated on the samples as transformed by the
preceding parts and regions: the values of tensors that cross between parts, from onnxruntime in float. What turns
out not to fit goes to the host, and the parts around it are done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from npuc.account import ACCOUNT, as_json
from npuc.conditions.values import PASSING
from npuc.errors import HOST_STEP, ArtefactError, DataError, Defect, ModelError, NpucError, Problem
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.host.c_text import with_prefix
from npuc.ir import Array, Graph, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.onnx_files.external_data import without_weights
from npuc.pipeline import Step, recorder
from npuc.program import RANGES, Program, as_loaded, canonical_json, file_sha256
from npuc.quantize.improvement.mixed import REASON
from npuc.quantize.scales.provenance import expect_ranges, only_models, with_ranges
from npuc.reference import session
from npuc.regions import graphs, partition
from npuc.regions.accounting import account_of
from npuc.regions.assembling import LoweredPart, assemble, is_whole, lone_program
from npuc.regions.graphs import crossing_inputs, model_ranges, part_graph, region_model
from npuc.regions.planning import (
    Key,
    ModelPlan,
    deny,
    deny_refused,
    divide,
    expect_on_target,
    key_of,
    optimise,
    plan_model,
    read_outside,
    settle,
)
from npuc.regions.witnesses import foreign_session
from npuc.rewrites import rewrites
from npuc.samples.loading import Samples, WholeModel, synthetic
from npuc.samples.loading import load as load_samples
from npuc.samples.sources import sources_of
from npuc.storage.mapped import Files, contents_of, trim
from npuc.storage.records import as_toml
from npuc.system.budget import budget
from npuc.target import Options, Request, Target

if TYPE_CHECKING:
    import onnx

OF_FILES = ("files", "seal", "model", RANGES)
"""Manifest entries that depend on the bytes of files, not on their meaning."""
Inputs = Callable[[Sequence[Graph]], Samples]
"""Gives the samples of everything that the graphs of some parts read."""


class PartProver(Protocol):
    """Checks programs, and returns them with the result in their report; raises Mismatch (E603)."""

    def part(self, lowered: LoweredPart, model: Path) -> Program:
        """The program of a part, checked against its model, a file."""
        ...

    def whole(self, program: Program, graphs: Sequence[Graph], samples: Samples) -> Program:
        """The program of all parts, whose graphs are given in order, checked against the user's file."""
        ...

    def judge(
        self, program: Program, lowered: Sequence[LoweredPart], models: Iterable[onnx.ModelProto], samples: Samples
    ) -> tuple[Program, Collection[int]]:
        """The program of all parts with what its parts cost the outputs, and the parts to compute in float."""
        ...


def compile_parts(request: Request, prover: PartProver | None = None) -> tuple[Program, Samples]:
    """The program of a model and its calibration samples (synthetic without calibration data).

    prover: checks the program of every part, and the whole. Raises NpucError for nodes that neither the target nor
    the host can run, and for everything that the target refuses if the options forbid the host.
    """
    request.options.begin("reading the model")
    with budget(), ExitStack() as stack:
        plan = plan_model(request)
        parts = offer_parts(plan)
        samples = _calibrating(plan, parts)
        lowered: dict[Key, LoweredPart] = {}
        while True:
            lowered = lowered_parts(
                plan, lambda graphs: _inputs(plan, graphs, samples, stack), prover, lowered, samples
            )
            parts = divide(plan)
            whole = lone_program(plan, parts, lowered)
            program = whole or assemble(plan, parts, lowered)
            if prover is None or whole is not None:
                break
            program, moved = _judge(plan, parts, lowered, program, samples, prover)
            if not moved:
                break
        if prover is not None and (whole is None or request.options.changes_inputs):
            outside = read_outside(plan.network, parts)
            npu = (key_of(plan.network, outside, part) for part in parts if part.on_npu)
            program = prover.whole(program, [lowered[key].graph for key in npu], samples)
        programs = {key: each.program for key, each in lowered.items()}
        entries = account_of(plan, parts, programs, whole=whole is not None)
        program = replace(program, manifest={**program.manifest, ACCOUNT: as_json(entries)})
        program = with_ranges(program, request, samples, [each.graph for each in lowered.values()])
    return with_prefix(_with_origin(program, request.model), request.options.prefix), samples


def optimised_whole(request: Request) -> tuple[Graph, list[Step]]:
    """The float graph, after all passes, of a model that the target runs whole, and the changes of the passes.

    Raises NpucError with everything that it cannot run.
    """
    with budget():
        plan = plan_model(request)
        parts = settle(plan)
        expect_on_target(plan, parts)
        return optimise(plan, read_outside(plan.network, parts), parts[0])


def _calibrating(plan: ModelPlan, parts: Sequence[partition.Part]) -> Samples:
    """The samples to calibrate a model on; none if the host runs everything.

    Raises DataError (E401, E402).
    """
    network = plan.network
    if not any(part.on_npu for part in parts):
        return Samples({})
    types = {name: network.types[name] for name in network.inputs if name in network.types}
    if len(types) < len(network.inputs):
        _deny_uncalibrated(plan, set(network.inputs) - set(types))
        return Samples({})
    if only_models(plan.request):
        return synthetic(types, ranges=model_ranges(network))
    return calibrating(plan.request, types, types.keys() - _read_on_npu(plan, parts))


def calibrating(request: Request, types: Mapping[str, TensorType], unbounded: Collection[str] = ()) -> Samples:
    """The samples of inputs of these types: those of the request's files, or synthetic ones.

    unbounded: the inputs that may be infinite. Raises DataError (E401, E402).
    """
    if not sources_of(request.calibration):
        return synthetic(types)
    return load_samples(request.calibration, types, unbounded, request.options.input)


def offer_parts(plan: ModelPlan) -> tuple[partition.Part, ...]:
    """Parts that the target accepts. Raises NpucError where a refused node may not or cannot run on the host."""
    parts = settle(plan)
    if plan.options.strict:
        expect_on_target(plan, parts)
    _expect_host(plan)
    return parts


def _read_on_npu(plan: ModelPlan, parts: Iterable[partition.Part]) -> set[str]:
    """The tensors that NPU parts read from outside."""
    nodes = ([plan.network.by_name[name] for name in part.blocks] for part in parts if part.on_npu)
    return {name for each in nodes for name in crossing_inputs(plan.network, each, on_npu=True)}


def _deny_uncalibrated(plan: ModelPlan, strange: Collection[str]) -> None:
    """Sends all nodes to the host: some inputs are not numeric tensors and have no samples."""
    reason, limit = "an input is no tensor of numbers: nothing behind it can be calibrated", "tensors of numbers"
    problem = Problem("E107", reason, tensor=min(strange), limit=limit)
    deny(plan, [node.name for node in plan.network.nodes], problem)


def lowered_parts(
    plan: ModelPlan,
    inputs: Inputs,
    prover: PartProver | None = None,
    known: Mapping[Key, LoweredPart] = MappingProxyType({}),
    whole: Samples | None = None,
) -> dict[Key, LoweredPart]:
    """The program of every part, calibrated on its inputs; nodes refused on the way go to the host.

    known: parts that were lowered before. whole: the model's samples, on which its outputs judge the parts.
    """
    found = dict(known)
    while True:
        parts = offer_parts(plan)
        outside = read_outside(plan.network, parts)
        keys = {part.blocks: key_of(plan.network, outside, part) for part in parts}
        waiting = [part for part in parts if part.on_npu and keys[part.blocks] not in found]
        if not waiting:
            return found
        samples = inputs([optimise(plan, outside, part)[0] for part in waiting])
        for part in waiting:
            graph, steps = optimise(plan, outside, part)
            own = samples if [*samples.inputs] == [*graph.inputs] else samples.of(graph.inputs)
            if whole is not None and not is_whole(plan, [part], graph):
                own = replace(own, whole=_whole_model(plan.network, part, whole))
            changes = [*steps]
            try:
                lowered = LoweredPart(graph, own, _lowered_part(plan, graph, changes, own))
            except NpucError as error:
                deny_refused(plan, outside, part, _of_infinities(plan.network, part, graph, error), changes)
                break
            if not lowered.program.manifest["report"]["instructions"] and not is_whole(plan, [part], graph):
                deny(plan, part.blocks, _without_instructions(plan.target))
                break
            found[keys[part.blocks]] = lowered if prover is None else _prove_part(plan, part, lowered, prover)


def _of_infinities(network: ImportedModel, part: partition.Part, graph: Graph, error: NpucError) -> NpucError:
    """The refusal of nodes with infinite steps, or on the way from infinities to their shares; else the error."""
    infinite = {each.tensor for each in error.problems if each.code == "E402"}
    found = [(each.source, each.op) for each in graph.nodes if each.output in infinite - network.producers.keys()]
    for node in map(network.by_name.__getitem__, () if found else part.blocks):
        if not infinite.isdisjoint(node.reads):
            if node.op not in (*PASSING, "Softmax", "Exp"):
                return error
            infinite.update(node.writes if node.op in PASSING else ())
            found.append((node.source, node.op))
    reason = "exponents, or steps of it, are infinite on a calibration sample"
    return NpucError.of(Problem("E202", reason, node=each, op=op) for each, op in found) if found else error


def _whole_model(network: ImportedModel, part: partition.Part, samples: Samples) -> WholeModel | None:
    """The model around a part, which judges it; None if no output of the model is computed behind the part."""
    inside = {name for block in part.blocks for name in network.by_name[block].writes}
    others = [node for node in network.nodes if node.name not in part.blocks]
    behind = set(inside)
    for node in others:
        if not behind.isdisjoint(node.reads):
            behind.update(node.writes)
    outputs = [name for name in network.outputs if name in behind - inside and name in network.types]
    outputs = [name for name in outputs if network.types[name].dtype == "float32"]
    wanted, needed = {*outputs}, list[ImportedNode]()
    for node in reversed(others):
        if wanted.intersection(node.writes):
            wanted.update(node.reads)
            needed.append(node)
    if not outputs:
        return None
    return WholeModel(
        samples, tuple(outputs), lambda: foreign_session(region_model(network, needed[::-1], outputs))
    )


def _inputs(plan: ModelPlan, graphs: Sequence[Graph], samples: Samples, stack: ExitStack) -> Samples:
    """The samples of everything that these parts read: the model's own, and what onnxruntime makes of them."""
    expect_ranges(plan.request, graphs)
    wanted = dict.fromkeys(name for graph in graphs for name in graph.inputs)
    if all(name in samples.inputs for name in wanted):
        return samples
    plan.options.begin("running the model for what crosses to the NPU")
    return replace(samples, inputs=crossing(plan.network, sorted(wanted), samples, stack))


def _lowered_part(plan: ModelPlan, graph: Graph, changes: list[Step], samples: Samples) -> Program:
    """The target's program of a part's graph. changes: those made by the passes; the target's are added.

    Raises NpucError for what does not fit, Defect for a target that fails otherwise.
    """
    try:
        program = plan.target.lower(graph, samples, plan.options, recorder(changes, plan.request.hook))
    except Exception as error:
        if isinstance(error, NpucError) and not isinstance(error, ArtefactError):
            raise
        first = graph.nodes[0]  # an ArtefactError: a program was written that the machine does not run
        raise Defect.of(
            error, f"lowering the part from here for {plan.target.name}", first.source, first.op
        ) from error
    trim()
    _expect_report(program, plan.target)
    return _with_rewrites(program, changes)


def _without_instructions(target: Target) -> Problem:
    """Why the host runs a part of which the target's program runs nothing on the machine."""
    reason, remedy = "the target leaves all of this part to the host", f"npuc operators --target {target.name}"
    return Problem(HOST_STEP, reason, remedy=remedy)


def _expect_report(program: Program, target: Target) -> None:
    """Raises ValueError, addressed to the target's author, if the report lacks fields that every command shows."""
    try:
        _ = replace(program, manifest={"report": json.loads(json.dumps(program.manifest["report"]))}).report
    except ArtefactError as error:
        raise ValueError(f"{target.name} writes a report that npuc cannot show: {error}") from None


def _judge(
    plan: ModelPlan,
    parts: Sequence[partition.Part],
    lowered: Mapping[Key, LoweredPart],
    program: Program,
    samples: Samples,
    prover: PartProver,
) -> tuple[Program, bool]:
    """The program with what its parts cost the outputs; whether parts were sent to the host for that."""
    outside = read_outside(plan.network, parts)
    npu = [part for part in parts if part.on_npu]
    found = [lowered[key_of(plan.network, outside, part)] for part in npu]
    models = (_part_model(plan, *each) for each in zip(npu, found, strict=True))
    program, moved = prover.judge(program, found, models, samples)
    for number in moved:
        deny(plan, npu[number].blocks, Problem(HOST_STEP, REASON))
    return program, bool(moved)


def _part_model(plan: ModelPlan, part: partition.Part, lowered: LoweredPart) -> onnx.ModelProto:
    """A part in float as an ONNX model of its own, with the inputs of its program."""
    nodes = [plan.network.by_name[name] for name in part.blocks]
    model = region_model(plan.network, nodes, lowered.graph.outputs)
    if {each.name for each in model.graph.input} <= {*lowered.graph.inputs}:
        return model
    # a mask was prepared before it
    return to_onnx(part_graph(plan.network, nodes, lowered.graph.outputs, plan.network.name))


def _prove_part(plan: ModelPlan, part: partition.Part, lowered: LoweredPart, prover: PartProver) -> LoweredPart:
    """The part with its program checked: against the user's file if it is the whole model.

    Raises Mismatch (E603) if it does not compute what the model does.
    """
    if is_whole(plan, [part], lowered.graph) and not plan.options.changes_inputs:
        return replace(lowered, program=prover.part(lowered, plan.request.model))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "part.onnx"
        path.write_bytes(_part_model(plan, part, lowered).SerializeToString())
        return replace(lowered, program=prover.part(lowered, path))


def _with_origin(program: Program, model: Path) -> Program:
    """The program with the model's file in its manifest."""
    origin = {"name": model.name, "sha256": file_sha256(model)}
    return replace(program, manifest={**program.manifest, "model": origin})


def _with_rewrites(program: Program, steps: Iterable[Step]) -> Program:
    """The program with the passes' rewrites added to its graph.json, for `npuc explain`."""
    done = [each for step in steps for each in rewrites(*step, lambda _graph, _node: None)]
    graph = json.loads(program.evidence["graph.json"])
    graph["rewrites"] = [{"pass": each.name, "nodes": list(each.nodes), "text": str(each)} for each in done]
    changed = {"graph.json": canonical_json(graph)}
    return replace(program, evidence=Files(contents_of(program.evidence, changed)))


def request_of(model: Path, program: Program, target: Target, folder: Path) -> Request:
    """The request recorded in a program's manifest; its machine is written to a file in the folder."""
    machine = folder / "machine.toml"
    machine.write_text(as_toml(program.manifest["machine"]), encoding="utf-8")
    told = {flag.name: program.manifest[flag.name] for flag in target.flags if flag.name in program.manifest}
    shapes = {port.name: port.shape for port in program.inputs}
    return Request(
        model, target, Options(str(machine), program.precision, input=program.images, flags=told), shapes=shapes
    )


def recompile(model: Path, program: Program, target: Target) -> Program | None:
    """A program compiled afresh from its model for its machine, as a reference for its files.

    None if that gives another manifest, because other options or another npuc version were used.
    """
    with TemporaryDirectory() as folder:
        try:
            fresh = as_loaded(compile_parts(request_of(model, program, target, Path(folder)))[0])
        except NpucError:
            return None
    return fresh if _meaning(fresh) == _meaning(program) else None


def _meaning(program: Program) -> dict[str, Any]:
    """The manifest without entries that depend on file bytes and without the report, which is derived data."""
    return {key: value for key, value in program.manifest.items() if key not in (*OF_FILES, "report")}


IN_MEMORY = 1 << 28
"""The most bytes of crossing tensors, over all samples, in memory; larger ones are in files."""


def crossing(network: ImportedModel, names: Sequence[str], samples: Samples, stack: ExitStack) -> dict[str, Array]:
    """The values of tensors on all samples, (samples, *shape), from onnxruntime on the whole model in float.

    stack: closes the files of large values. Raises DataError (E402) if onnxruntime cannot run a sample.
    """
    computed = [name for name in names if name not in network.inputs]
    values = _Arrays({name: network.types[name] for name in names}, len(samples), stack)
    behind = graphs.nodes_behind(network, computed)
    needed = {name for node in behind for name in node.reads}
    run = foreign_session(graphs.region_model(network, behind, computed)).run if computed else None
    for at, feed in enumerate(samples.feeds()):
        read = {name: value for name, value in feed.items() if name in needed}
        try:
            given = run(computed, read) if run is not None else []
        except ModelError as error:
            (problem,) = error.problems
            if problem.code != "E105":
                raise
            remedy = "give samples that the model takes with --calibration DATA.npz"
            raise DataError("E402", f"sample {at}: {problem.reason}", remedy=remedy) from None
        values.put(at, {**feed, **dict(zip(computed, given, strict=True))})
    return values.arrays


SHAPES = "where the model is exported, make the shapes before this tensor constant"


class _Arrays:
    """Values of tensors by sample, in memory or in files."""

    def __init__(self, types: Mapping[str, TensorType], count: int, stack: ExitStack) -> None:
        sizes = {name: count * each.bytes for name, each in types.items()}
        folder = Path(stack.enter_context(TemporaryDirectory())) if sum(sizes.values()) > IN_MEMORY else None
        self.arrays: dict[str, Array] = {}
        for number, (name, each) in enumerate(types.items()):
            shape = (count, *each.shape)
            self.arrays[name] = (
                np.empty(shape, each.dtype)
                if folder is None
                else np.memmap(folder / str(number), each.dtype, "w+", shape=shape)
            )

    def put(self, at: int, values: Mapping[str, Array]) -> None:
        """Stores the values of a sample. Raises DataError (E402) if its shape differs."""
        for name, array in self.arrays.items():
            own, limit = values[name].shape, f"{list(array.shape[1:])}, as ONNX defines the operator"
            if own != array.shape[1:]:
                raise DataError("E402", f"onnxruntime gives {list(own)}", tensor=name, limit=limit, remedy=SHAPES)
            array[at] = values[name]


def _expect_host(plan: ModelPlan) -> None:
    """Raises what the target refuses if onnxruntime cannot run the model either.

    Where an input may choose a branch, onnxruntime's refusal is the last problem: shapes may exclude one branch.
    onnxruntime may load even an inconsistent model (E105), so such a model must also run on a sample.
    """
    network = plan.network
    refused = [each for each in plan.causes if each.code.startswith("E")]
    if plan.on_host or not refused:
        return
    contradicts = any(each.code == "E105" for each in refused)
    found = _refusal(network, network.nodes, list(network.outputs), once=contradicts)
    plan.on_host = found is None
    if found is not None:
        remedies = filter(None, [_binding(network)])
        raise NpucError.of((*refused, *(Problem("E105", found, remedy=each) for each in remedies)))


def _binding(network: ImportedModel) -> str | None:
    """The flag that may choose a branch of the model, if it has both branches and scalar inputs."""
    scalars = [name for name in network.inputs if name in network.types and network.types[name].size == 1]
    if not scalars or not any(node.op == "If" for node in network.nodes):
        return None
    return f"if an input chooses a branch, bind it: --bind {scalars[0]}=VALUE"


def loads(network: ImportedModel, node: ImportedNode) -> bool:
    """Whether onnxruntime loads a node, and, if it seems inconsistent, runs it."""
    if any(name not in network.protos and name not in network.constants for name in node.reads):
        return True  # only the tensor's producer knows its type: the producer's result decides
    contradicts = node.problem is not None and node.problem.code == "E105"
    return _refusal(network, [node], node.writes, once=contradicts) is None


def _refusal(
    network: ImportedModel, nodes: Sequence[ImportedNode], outputs: Sequence[str], *, once: bool
) -> str | None:
    """Why onnxruntime does not load these nodes; None if it does.

    once: whether it must also run them on a synthetic sample.
    """
    written = {name for node in nodes for name in node.writes}
    try:
        found: Any = session(
            *without_weights(graphs.region_model(network, nodes, [*written.intersection(outputs)])), confined=True
        )
        if once:
            found.run(None, _sample(network, [each.name for each in found.get_inputs()]))
    except NpucError as error:
        return error.problems[0].reason
    return None


def _sample(network: ImportedModel, names: Sequence[str]) -> dict[str, Any]:
    """A synthetic value for each of these tensors."""
    found = synthetic({name: network.types[name] for name in names}, 1)
    return {name: values[0, ...] for name, values in found.inputs.items()}
