"""The nodes of a model that a target does not run, all at once, and whether the host runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npuc.account import HOST, Entry, Reason, reasons
from npuc.errors import NpucError, Problem
from npuc.frontend.model import ImportedModel
from npuc.frozen import frozen
from npuc.ir import Graph
from npuc.regions.accounting import account_of
from npuc.regions.assembling import entire
from npuc.regions.compilation import lowered_parts
from npuc.regions.hosting import loads
from npuc.regions.planning import ModelPlan, partitioned, planned
from npuc.samples.loading import Samples, synthetic
from npuc.system.budget import budget
from npuc.target import Request

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
    try:
        plan = planned(asked)
    except NpucError as error:
        return Survey((), tuple(Reason(each, NOWHERE) for each in error.problems))
    try:
        lowered = lowered_parts(plan, _synthetic)
    except NpucError as error:
        return Survey((), tuple(_nowhere(plan, error)))
    parts = partitioned(plan)
    programs = {key: each.program for key, each in lowered.items()}
    entries = account_of(plan, parts, programs, whole=entire(plan, parts, lowered) is not None)
    found = reasons(entries)
    if request.options.strict:
        found = (replace(each, problem=_refused(each.problem)) for each in found)
    return Survey(entries, tuple(found))


def _synthetic(graphs: Sequence[Graph]) -> Samples:
    """A synthetic sample of everything that these graphs read."""
    return synthetic({name: graph.tensors[name] for graph in graphs for name in graph.inputs}, 1)


def _refused(problem: Problem) -> Problem:
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
