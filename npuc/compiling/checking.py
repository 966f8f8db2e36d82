"""The nodes of a model that a target does not run, all at once, and whether the host runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npuc.errors import HOST_STEP, NpucError, Problem
from npuc.frontend.model import ImportedModel
from npuc.frozen import frozen
from npuc.ir import Graph
from npuc.program import Program
from npuc.regions.assembling import Lowered
from npuc.regions.compilation import lowered_parts
from npuc.regions.hosting import loads
from npuc.regions.planning import Key, Plan, absorbed, key_of, partitioned, planned, read_outside
from npuc.samples.loading import Samples, synthetic
from npuc.system.budget import budget
from npuc.target import Request
from npuc.text.escaping import shown

HOST, NOWHERE = "host", "nowhere"


@frozen
class Found:
    """A node that the target does not run, the reason, and where it runs instead."""

    problem: Problem
    place: str


@budget()
def survey_of(request: Request) -> list[Found]:
    """Every node that does not run on the target, in model order; a model that nothing can run gives its problems.

    The model is compiled as `npuc compile -O0` does, on synthetic samples. With `strict`, a layer that the target
    could run but would leave to the host is a problem, E203.
    """
    options = replace(
        request.options, level="0", method=None, notify=None, stage=None, mixed=False, histograms=None
    )
    asked = replace(request, options=replace(options, strict=False, fallback="host"), calibration=())
    try:
        plan = planned(asked)
    except NpucError as error:
        return [Found(each, NOWHERE) for each in error.problems]
    try:
        found = _found(plan, lowered_parts(plan, _synthetic))
    except NpucError as error:
        return _nowhere(plan, error)
    return [replace(each, problem=_refused(each.problem)) for each in found] if request.options.strict else found


def _synthetic(graphs: Sequence[Graph]) -> Samples:
    """A synthetic sample of everything that these graphs read."""
    return synthetic({name: graph.tensors[name] for graph in graphs for name in graph.inputs}, 1)


def _refused(problem: Problem) -> Problem:
    """The problem under --strict for a layer that the host would run."""
    if not problem.code.startswith("W"):
        return problem
    remedy = "drop --strict, or cut the network before it"
    return replace(problem, code="E203", reason=f"it would run on the host: {problem.reason}", remedy=remedy)


def _nowhere(plan: Plan, error: NpucError) -> list[Found]:
    """The problems of a model that the host cannot run either; onnxruntime's own come last."""
    refused = [*plan.causes]
    found = [Found(each, _place(plan.network, each)) for each in refused]
    if not any(each.place == NOWHERE for each in found):
        found = [Found(each, NOWHERE) for each in refused]
    return [*found, *(Found(each, NOWHERE) for each in error.problems if each not in refused)]


def _place(network: ImportedModel, problem: Problem) -> str:
    """Where a node runs that the target refuses."""
    node = network.by_name.get(problem.node or "")
    return HOST if node is not None and loads(network, node) else NOWHERE


def _found(plan: Plan, lowered: Mapping[Key, Lowered]) -> list[Found]:
    """Every node that does not run on the target, of a divided model."""
    network, parts = plan.network, partitioned(plan)
    outside = read_outside(network, parts)
    found = [Found(each, _place(network, each)) for each in plan.denied.values()]
    for part in parts:
        if part.on_npu:
            found += _host_steps(lowered[key_of(network, outside, part)].program)
        else:
            units = (network.by_name[name] for name in part.blocks if name not in plan.denied)
            found += [Found(absorbed(unit), HOST) for unit in units]
    order = {unit.name: at for at, unit in enumerate(network.nodes)}
    return sorted(found, key=lambda each: order.get(each.problem.node or "", len(order)))


def _host_steps(program: Program) -> list[Found]:
    """The nodes that the target's own program leaves to the host."""
    remedy = "cut the network before it, or choose a target that has it"
    return [
        Found(Problem(HOST_STEP, each["reason"], each["node"], each["op"], remedy=remedy), HOST)
        for each in program.manifest["report"]["host_steps"]
    ]


def groups(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Nodes by operator and cause, in the order of the first of each."""
    gathered: dict[tuple[str | None, ...], list[Found]] = {}
    for each in found:
        problem = each.problem
        key = (problem.op, problem.code, problem.reason, each.place)
        gathered.setdefault(key, []).append(each)
    return [
        {
            "op": op,
            "code": code,
            "reason": reason,
            "limit": members[0].problem.limit,
            "remedy": members[0].problem.help,
            "count": len(members),
            "nodes": [each.problem.node for each in members],
            "place": place,
        }
        for (op, code, reason, place), members in gathered.items()
    ]


def as_text(found: Sequence[Found], model: Path, target: str) -> str:
    """The nodes that the host runs, one line per cause."""
    lines = [f"{model}: {target} runs all but {len(found)} node{'s' * (len(found) > 1)}, which the host runs"]
    for each in map(shown, groups(found)):
        names = ", ".join(f"'{name}'" for name in each["nodes"][:3])
        more = f" and {each['count'] - 3} more" if each["count"] > 3 else ""
        lines.append(f"  {each['op']} {names}{more}: {each['reason']} [{each['code']}]")
        lines += [f"    limit: {each['limit']}"] if each["limit"] else []
        lines += [f"    help: {each['remedy']}"] if each["remedy"] else []
    return "\n".join(lines)
