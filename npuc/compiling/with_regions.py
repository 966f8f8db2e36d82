"""From a model to a program: operators that the target refuses go to the host and are reported.

A model that the target runs completely is compiled as one program. Otherwise its nodes are partitioned, parts are
offered to the target until it refuses nothing more, and each is calibrated on the samples as transformed by the
preceding regions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from npuc import driver
from npuc.compiling import proof
from npuc.errors import NpucError, Problem
from npuc.export.network_name import named
from npuc.frontend.binding import input_types
from npuc.frontend.reading import read_model
from npuc.ir import Graph
from npuc.pipeline import Step, recorder
from npuc.program import Program
from npuc.regions import partition
from npuc.regions.assembling import Lowered, assembled, entire, with_shares
from npuc.regions.crossing import crossing
from npuc.regions.graphs import crossing_inputs, region_model
from npuc.regions.hosting import expect_host
from npuc.regions.planning import (
    FATAL,
    Key,
    Plan,
    deny,
    deny_refused,
    key_of,
    optimised,
    partitioned,
    read_outside,
    refusals,
    refused,
    settled,
    surveyed,
)
from npuc.samples.loading import Samples, synthetic, varied
from npuc.samples.loading import load as load_samples
from npuc.system.budget import budget
from npuc.target import Request, Shapes
from npuc.variants import with_samples


def compile_model(request: Request) -> tuple[Program, Samples]:
    """The program of a model and its calibration samples (synthetic without calibration data).

    Raises NpucError for nodes that neither the target nor the host can run, and for everything that the target
    refuses if the options forbid the host.
    """
    target, options = request.target, request.options
    imported: list[Graph] = []

    def recording(name: str, before: Graph, after: Graph, seconds: float) -> None:
        imported.append(before)
        if request.hook is not None:
            request.hook(name, before, after, seconds)

    refusal: NpucError | None = None
    if not options.divided:
        try:
            found = driver.compilation(replace(request, hook=recording))
            program = proof.proved(found, request)
        except NpucError as error:
            if options.strict or options.fallback == "refuse" or not may_fall_back(error):
                raise
            refusal = error
        else:
            return named(with_shares(program, imported[0], options), options.prefix), found.samples
    with budget():
        target.machine_values(options.machine)
        network = surveyed(request.model, options, request.shapes)
        if refusal is not None:
            expect_host(network, refusal)
        denied = refused(network, target, options)
        plan = Plan(network, request, denied, refusals=refusals(network, refusal))
        program, samples = _composite(plan)
    return named(driver.with_origin(program, request.model), options.prefix), samples


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


def _variant(request: Request, number: int) -> Request:
    """The request for one of several sets of shapes, with its own samples and prefix."""
    graph, options = read_model(request.model).graph, request.options
    types = input_types(graph, {each.name for each in graph.initializer}, request.shapes)
    prefix = options.prefix if options.prefix is None else f"{options.prefix}_{number}"
    calibration = with_samples(request.calibration, types)
    return replace(request, options=replace(options, prefix=prefix), calibration=calibration)


def may_fall_back(error: NpucError) -> bool:
    """Whether running nodes on the host could help."""
    located = all(
        each.node or each.tensor or each.code[1] == "3" or each.code == "E103" for each in error.problems
    )
    return located and not any(each.code in FATAL or each.code[1] not in "123" for each in error.problems)


def _composite(plan: Plan) -> tuple[Program, Samples]:
    """The program of several parts and its calibration samples, which are unused if the host runs everything."""
    network, calibration = plan.network, plan.request.calibration
    with ExitStack() as stack:
        parts = settled(plan)
        types = {name: network.types[name] for name in network.inputs if name in network.types}
        if len(types) < len(network.inputs):
            _deny_uncalibrated(plan, set(network.inputs) - set(types))
            return _assembled(plan, {}, Samples({})), Samples({})
        if not any(part.on_npu for part in parts):
            return _assembled(plan, {}, varied(types)), Samples({})
        unbounded = types.keys() - _read_on_npu(plan, parts)
        samples = load_samples(calibration, types, unbounded) if calibration else synthetic(types)
        lowered = _lowered(plan, samples, stack)
    return _assembled(plan, lowered, varied(types) if samples.synthetic else samples), samples


def _assembled(plan: Plan, lowered: Mapping[Key, Lowered], samples: Samples) -> Program:
    """The program of all parts, proved as a whole on these samples. Raises Mismatch (E603)."""
    parts = partitioned(plan)
    outside = read_outside(plan.network, parts)
    found = [lowered[key_of(plan.network, outside, part)].graph for part in parts if part.on_npu]
    program = entire(plan, parts, lowered) or assembled(plan, parts, lowered)
    return proof.entirely(program, found, plan.request, samples)


def _read_on_npu(plan: Plan, parts: Iterable[partition.Part]) -> set[str]:
    """The tensors that NPU parts read from outside."""
    units = ([plan.network.by_name[name] for name in part.blocks] for part in parts if part.on_npu)
    return {name for each in units for name in crossing_inputs(plan.network, each, on_npu=True)}


def _deny_uncalibrated(plan: Plan, strange: Collection[str]) -> None:
    """Sends all nodes to the host: some inputs are not numeric tensors and have no samples."""
    reason, limit = "an input is no tensor of numbers: nothing behind it can be calibrated", "tensors of numbers"
    problem = Problem("E107", reason, tensor=min(strange), limit=limit)
    deny(plan, [unit.name for unit in plan.network.units], problem)


def _lowered(plan: Plan, samples: Samples, stack: ExitStack) -> dict[Key, Lowered]:
    """The program of every part, calibrated on its inputs; nodes refused on the way go to the host."""
    found: dict[Key, Lowered] = {}
    while True:
        parts = settled(plan)
        outside = read_outside(plan.network, parts)
        keys = {part.blocks: key_of(plan.network, outside, part) for part in parts}
        waiting = [part for part in parts if part.on_npu and keys[part.blocks] not in found]
        if not waiting:
            return found
        plan.options.begin("running the model for what crosses to the NPU")
        graphs = {part.blocks: optimised(plan, outside, part) for part in waiting}
        wanted = {name for graph, _ in graphs.values() for name in graph.inputs}
        values = crossing(plan.network, sorted(wanted), samples, stack)
        for part in waiting:
            graph, steps = graphs[part.blocks]
            own = Samples({name: values[name] for name in graph.inputs}, samples.labels, samples.synthetic)
            try:
                program = _lowered_part(plan, graph, steps, own)
            except NpucError as error:
                deny_refused(plan, outside, part, error)
                break
            proven = _proved(plan, part, driver.Compilation(program, own, graph))
            found[keys[part.blocks]] = Lowered(graph, proven)


def _lowered_part(plan: Plan, graph: Graph, steps: Sequence[Step], samples: Samples) -> Program:
    """The target's program of a part's graph. steps: the changes made by the passes."""
    changes = [*steps]
    program = plan.target.lower(graph, samples, plan.options, recorder(changes, plan.request.hook))
    return driver.with_rewrites(program, changes)


def _proved(plan: Plan, part: partition.Part, found: driver.Compilation) -> Program:
    """The program of a part, checked against that part of the model. Raises Mismatch (E603)."""
    units = [plan.network.by_name[name] for name in part.blocks]
    with TemporaryDirectory() as folder:
        model = Path(folder) / "part.onnx"
        model.write_bytes(region_model(plan.network, units, found.graph.outputs).SerializeToString())
        return proof.proved(found, replace(plan.request, model=model))
