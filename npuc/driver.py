"""From a model file to a proved program, or to what a target refuses: the one module that sees every layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from npuc.account import HOST, Entry, Reason, reasons
from npuc.cutting import part_of, with_cut
from npuc.errors import NpucError, Problem, UnsupportedOperator
from npuc.frontend.binding import bound_values, input_types
from npuc.frontend.model import ImportedModel
from npuc.frontend.reading import read_model
from npuc.frozen import frozen
from npuc.images.description import bind
from npuc.ir import Graph
from npuc.ops.quantisation import CONVERSIONS
from npuc.pipeline import Step
from npuc.program import Program
from npuc.quantize.improvement.search import TrialNetwork
from npuc.quantize.qdq import qdq_model
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.provenance import expect_ranges
from npuc.quantize.table import expect_of_model, not_stored
from npuc.regions.accounting import account_of
from npuc.regions.assembling import lone_program
from npuc.regions.compilation import calibrating, compile_parts, loads, lowered_parts, optimised_whole, request_of
from npuc.regions.planning import ModelPlan, divide, plan_model
from npuc.regions.rebatching import rebatch
from npuc.regions.variants import with_samples
from npuc.rewrites import Rewrite, rewrites
from npuc.samples.loading import Samples, synthetic
from npuc.system.budget import budget
from npuc.target import Options, Request, Shapes, Target
from npuc.verification.proof import Prover


def compile_model(request: Request) -> tuple[Program, Samples]:
    """The program of a model and its calibration samples (synthetic without calibration data).

    Raises NpucError for nodes that neither the target nor the host can run, and for everything that the target
    refuses if the options forbid the host; Mismatch (E603) for a program that computes anything else.
    """
    _expect_table(request)
    with part_of(request) as (inner, cut):
        inner = _bind_descriptions(inner)
        program, samples = compile_parts(inner, Prover(inner))
        return with_cut(_with_table(program, request.options), cut), samples


def compile_variants(request: Request, shapes: Sequence[Shapes]) -> tuple[list[Program], Samples]:
    """A program for every set of input shapes, and the calibration samples of the first.

    Each is calibrated on the files whose samples have its shapes; a prefix gets the number of the set. Raises as
    compile_model does, and DataError (E402) if no file has them.
    """
    found: list[Program] = []
    samples: list[Samples] = []
    for number, each in enumerate(shapes):
        single = replace(request, shapes=each)
        program, own = compile_model(_variant(single, number) if len(shapes) > 1 else single)
        found.append(program)
        samples.append(own)
    return found, samples[0]


def _bind_descriptions(request: Request, *, fused: bool = True) -> Request:
    """The request with its descriptions bound to the inputs of the model. Raises DataError (E405).

    fused: as for `bind`.
    """
    options = request.options
    if not options.input:
        return request
    model = read_model(request.model, whole=False)
    values = bound_values(model, options.bind)
    model = rebatch(model, request.shapes, (), request.model.parent)
    types = input_types(model.graph, {*values, *(each.name for each in model.graph.initializer)}, request.shapes)
    found = bind(options.input, types, fused=fused)
    return replace(request, options=replace(options, input=found))


def _expect_table(request: Request) -> None:
    """Raises DataError (E406) for a table of scales with tensors that the model lacks, or another precision."""
    if request.options.scales_in:
        graph = read_model(request.model, whole=False).graph
        constants = {each.name for each in graph.initializer}
        names = [each.name for each in graph.input] + [name for node in graph.node for name in node.output]
        wide = ("int16",) if request.options.layer or request.options.mixed else ()
        expect_of_model(request.options.scales_in, {*names} - constants, request.options.precision, *wide)


def _with_table(program: Program, options: Options) -> Program:
    """The program with a warning for what its table of scales says in vain (W305)."""
    if not options.scales_in:
        return program
    stored: dict[str, list[Steps]] = {}
    for each in json.loads(program.evidence["graph.json"])["tensors"].values():
        steps = stored.setdefault(each["float"], [])
        if not each["factors"]:
            steps.append(Steps(each["scale"], each["zero_point"]))
    left = not_stored(options.scales_in, stored, options.precision)
    report = program.manifest["report"]
    told = [*report.get("warnings", ()), *((left.as_json(),) if left else ())]
    return replace(program, manifest={**program.manifest, "report": {**report, "warnings": told}})


def _variant(request: Request, number: int) -> Request:
    """The request for one of several sets of shapes, with its own samples and prefix."""
    graph, options = read_model(request.model).graph, request.options
    types = input_types(graph, {each.name for each in graph.initializer}, request.shapes)
    prefix = options.prefix if options.prefix is None else f"{options.prefix}_{number}"
    described = _bind_descriptions(request).options.input
    types |= {each.input: each.frame_type for each in described if each.fused}
    calibration = with_samples(request.calibration, types)
    return replace(request, options=replace(options, prefix=prefix), calibration=calibration)


def quantise_model(request: Request) -> tuple[bytes, TrialNetwork]:
    """The network that the target's programs compute, as a QDQ model and as it is.

    Raises every problem of the model or the target as one NpucError; UnsupportedOperator (E205) for a model with
    scales of its own, or a target without an integer network.
    """
    _expect_table(request)
    with part_of(request) as (inner, _):
        return _quantised_model(_bind_descriptions(inner, fused=False))


def _quantised_model(request: Request) -> tuple[bytes, TrialNetwork]:
    (graph, _), target, options = optimised_whole(request), request.target, request.options
    given = next((node for node in graph.nodes if node.op in CONVERSIONS), None)
    if given is not None:
        reason, remedy = "the model is quantised already", "compile it as it is"
        raise UnsupportedOperator("E205", reason, node=given.name, op=given.op, remedy=remedy)
    expect_ranges(request, [graph])
    samples = calibrating(request, {name: graph.tensors[name] for name in graph.inputs})
    network, tried = target.quantise(graph, samples, options)
    options.tell(tried)
    return qdq_model(network), network


def float_passes(model: Path, program: Program, target: Target, told: Sequence[str]) -> Sequence[Step]:
    """The steps of the float-graph passes of a compiled program, repeated on its model.

    told: the rewrites recorded in graph.json. Empty if they differ: the program was compiled with other options.
    """
    with TemporaryDirectory() as folder:
        try:
            _, steps = optimised_whole(request_of(model, program, target, Path(folder)))
        except NpucError:  # part of the model runs on the host
            return ()
    found = [str(each) for step in steps for each in rewrites(*step, lambda _graph, _node: None)]
    return steps if [*told[: len(found)]] == found else ()


def rewrites_of(steps: Sequence[Step], target: Target, options: Options) -> list[Rewrite]:
    """The changes of these passes, rewrite by rewrite, with the target's cycle costs."""
    return [
        each for step in steps for each in rewrites(*step, lambda graph, node: target.cycles(graph, node, options))
    ]


NOWHERE = "nowhere"
"""The place of a node that neither the target nor the host runs."""


@frozen
class Survey:
    """The nodes of a model, and why some do not run on the target."""

    entries: tuple[Entry, ...]
    """Empty if nothing can run the model."""
    reasons: tuple[Reason, ...]


@budget()
def survey_of(request: Request) -> Survey:
    """What runs on the target, and why the rest does not, in model order; of a model that nothing runs, why.

    The model is compiled as `npuc compile -O0` does, on synthetic samples. With `strict`, a layer that the target
    could run but would leave to the host is a problem, E203.
    """
    options = replace(
        request.options, level="0", method=None, notify=None, stage=None, mixed=False, histograms=None
    )
    asked = replace(request, options=replace(options, strict=False), calibration=())
    asked = _bind_descriptions(asked)
    try:
        plan = plan_model(asked)
    except NpucError as error:
        return Survey((), tuple(Reason(each, NOWHERE) for each in error.problems))
    try:
        lowered = lowered_parts(plan, _synthetic)
    except NpucError as error:
        return Survey((), tuple(_nowhere(plan, error)))
    parts = divide(plan)
    programs = {key: each.program for key, each in lowered.items()}
    entries = account_of(plan, parts, programs, whole=lone_program(plan, parts, lowered) is not None)
    found = reasons(entries)
    if request.options.strict:
        found = (replace(each, problem=_as_refusal(each.problem)) for each in found)
    return Survey(entries, tuple(found))


def _synthetic(graphs: Sequence[Graph]) -> Samples:
    """A synthetic sample of everything that these graphs read."""
    return synthetic({name: graph.tensors[name] for graph in graphs for name in graph.inputs}, 1)


def _as_refusal(problem: Problem) -> Problem:
    """The problem under --strict for a layer that the host would run."""
    if not problem.code.startswith("W"):
        return problem
    remedy = "drop --strict, or cut the network before it"
    return replace(problem, code="E203", reason=f"it would run on the host: {problem.reason}", remedy=remedy)


def _nowhere(plan: ModelPlan, error: NpucError) -> list[Reason]:
    """The problems of a model that the host cannot run either; onnxruntime's own come last."""
    refused = [*plan.causes]
    found = [Reason(each, _place(plan.network, each)) for each in refused]
    if not any(each.place == NOWHERE for each in found):
        found = [Reason(each, NOWHERE) for each in refused]
    return [*found, *(Reason(each, NOWHERE) for each in error.problems if each not in refused)]


def _place(network: ImportedModel, problem: Problem) -> str:
    """Where a node runs that the target refuses."""
    nodes = network.by_source.get(problem.node or "", ())
    return HOST if nodes and all(loads(network, each) for each in nodes) else NOWHERE
