"""The nodes of a model that a target does not run, all at once, and whether the host runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npuc import driver
from npuc.compiling.with_regions import may_fall_back
from npuc.errors import HOST_STEP, NpucError, Problem
from npuc.frontend.units import Network
from npuc.frozen import frozen
from npuc.ir import Graph
from npuc.regions.hosting import expect_host, loads
from npuc.regions.planning import (
    Plan,
    absorbed,
    optimised,
    quick,
    read_outside,
    refusals,
    refused,
    settled,
    surveyed,
)
from npuc.samples.loading import synthetic
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
    """Every node that does not run on the target; a model that nothing can run gives its own problems.

    With `strict`, a layer that the target could run but would leave to the host is a problem, E203.
    """
    strict = request.options.strict
    found = _surveyed(replace(request, options=replace(request.options, strict=False)))
    return [replace(each, problem=_refused(each.problem)) for each in found] if strict else found


def _refused(problem: Problem) -> Problem:
    """The problem under --strict for a layer that the host would run."""
    if not problem.code.startswith("W"):
        return problem
    remedy = "drop --strict, or cut the network before it"
    return replace(problem, code="E203", reason=f"it would run on the host: {problem.reason}", remedy=remedy)


def _surveyed(request: Request) -> list[Found]:
    options = request.options
    refusal: NpucError | None = None
    if not options.divided:
        try:
            return _host_steps(request, driver.accepted(request))
        except NpucError as error:
            refusal = error
        if not may_fall_back(refusal):
            return [Found(each, NOWHERE) for each in refusal.problems]
    try:
        request.target.machine_values(options.machine)
        network = surveyed(request.model, options, request.shapes)
        found = _partitioned(network, request, refusal)
    except NpucError as error:
        return [Found(each, NOWHERE) for each in error.problems]
    return found if refusal is None else _hosted(network, refusal, found)


def _hosted(network: Network, refusal: NpucError, found: list[Found]) -> list[Found]:
    """What was found; the refusal of the target first, and onnxruntime's last, if the host cannot run the rest."""
    try:
        expect_host(network, refusal)
    except NpucError as error:
        nowhere = [Found(each, NOWHERE) for each in refusal.problems]
        wrong = [each for each in nowhere if each.problem.node not in network.by_name or _nowhere(network, each)]
        told = {name for each in wrong or nowhere for name in (each.problem.node, each.problem.tensor)}
        others = [each for each in found if each.place == HOST and each.problem.code[:2] in ("E2", "E3")]
        others = [each for each in others if each.problem.node not in told]
        own = [Found(each, NOWHERE) for each in error.problems[len(refusal.problems) :]]
        return [*(wrong or nowhere), *others, *own]
    return found


def _nowhere(network: Network, found: Found) -> bool:
    """Whether not even the host runs a node."""
    return not loads(network, network.by_name[found.problem.node or ""])


def _partitioned(network: Network, request: Request, refusal: NpucError | None) -> list[Found]:
    """Every node that does not run on the target, of a model that the target cannot run whole, in model order."""
    denied = refused(network, request.target, request.options)
    plan = Plan(network, request, denied, refusals=refusals(network, refusal))
    parts = settled(plan)
    outside = read_outside(network, parts)
    found = [
        Found(problem, HOST if loads(network, network.by_name[name]) else NOWHERE)
        for name, problem in plan.denied.items()
    ]
    for part in parts:
        if not part.on_npu:
            found += [
                Found(absorbed(plan, network.by_name[name]), HOST)
                for name in part.blocks
                if name not in plan.denied
            ]
        else:
            found += _host_steps(request, optimised(plan, outside, part)[0])
    order = {unit.name: at for at, unit in enumerate(network.units)}
    return sorted(found, key=lambda each: order.get(each.problem.node or "", len(order)))


def _host_steps(request: Request, graph: Graph) -> list[Found]:
    """The nodes that the target's own program leaves to the host.

    Raises NpucError for limits that only lowering shows (memories, the documented instructions).
    """
    samples = synthetic(driver.input_types(graph), 1)
    program = request.target.lower(graph, samples, quick(request.options))
    steps = program.manifest["report"]["host_steps"]
    remedy = "cut the network before it, or choose a target that has it"
    return [
        Found(Problem(HOST_STEP, each["reason"], each["node"], each["op"], remedy=remedy), HOST) for each in steps
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
