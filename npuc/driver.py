"""From a model file to a program on disk: the only module that sees every layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from npuc.conditions import masks, undefined
from npuc.errors import ArtefactError, NpucError, Problem, UnsupportedOperator
from npuc.frontend import load as load_model
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops.macs import macs
from npuc.ops.quantisation import CONVERSIONS
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import Hook, Pass, Step, recorder, run_passes
from npuc.program import Program, as_loaded, canonical_json, file_sha256
from npuc.quantize.network.renaming import apart_from_integers
from npuc.rewrites import Rewrite, rewrites
from npuc.samples.loading import Samples, synthetic
from npuc.samples.loading import load as load_samples
from npuc.samples.structured import objects, row
from npuc.storage.machine_files import as_toml
from npuc.storage.mapped import trim
from npuc.storage.pieces import Files, contents_of
from npuc.system.budget import budget
from npuc.target import Foreseeing, Options, Quantising, Runner, Target, usual_options

BATCH = 32
"""The most samples of a batch."""
BATCH_ELEMENTS = 1 << 19
"""The most input elements in a batch: feature maps of large images would fill the memory."""

LONG = 1 << 34
"""Multiply-accumulates on all calibration samples that take longer than to foresee what does not fit."""

OF_FILES = ("files", "seal", "model")
"""Manifest entries that depend on the bytes of files, not on their meaning."""

Shapes = Mapping[str, tuple[int, ...]]


def passes_of(target: Target, options: Options) -> tuple[Pass, ...]:
    """The passes for a model on its way to the target, in order; the last frees the names of integer forms.

    Raises ValueError if the target leaves out an unknown pass.
    """
    shared = {each.__name__: each for each in FLOAT_PASSES}
    if unknown := set(target.left_out) - shared.keys():
        raise ValueError(f"{target.name} leaves out passes that are not shared: {', '.join(sorted(unknown))}")
    kept = (each for name, each in shared.items() if name not in target.left_out)
    return (*kept, *target.passes(options), apart_from_integers)


def imported(model: Path, target: Target, shapes: Shapes, options: Options) -> Graph:
    """The graph of a model file. Raises ModelError and UnsupportedOperator, with remedies for the target."""
    try:
        return load_model(model, shapes, without=lambda op, x: target.left_whole(op, x, options))
    except NpucError as error:
        raise type(error).of(each.on(target.name) for each in error.problems) from error


def optimised(
    model: Path, target: Target, shapes: Shapes, options: Options | None = None, hook: Hook | None = None
) -> Graph:
    """The float graph of a model after the shared passes and the target's own.

    Raises UnsupportedOperator (E202) for outputs that depend on no input.
    """
    options = options or usual_options(target)
    return _optimised(imported(model, target, shapes, options), target, options, hook)


def wrong_here(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each node whose operator runs here, but whose values need another range or NaN."""
    return [*masks.problems(nodes, constants, precision), *undefined.problems(nodes, constants, precision)]


def _optimised(graph: Graph, target: Target, options: Options, hook: Hook | None) -> Graph:
    graph = run_passes(graph, passes_of(target, options), hook)
    constant = [name for name in graph.outputs if name in graph.constants]
    if constant:
        reason, remedy = "the output is a constant: it depends on no input", "remove it from the model's outputs"
        raise UnsupportedOperator.of(Problem("E202", reason, tensor=name, remedy=remedy) for name in constant)
    return graph


def accepted(model: Path, target: Target, shapes: Shapes, options: Options, hook: Hook | None = None) -> Graph:
    """The same, of a model that the target runs whole: everything that it cannot run is raised at once.

    Raises NpucError.
    """
    source = imported(model, target, shapes, options)
    graph = _optimised(source, target, options, hook)
    target.machine_values(options.machine)  # an unknown machine is refused even if the target reads none of it
    found = target.problems(graph, options)
    told = {each.node for each in found}
    more = wrong_here(source.nodes, source.constants, options.precision)
    found += [each for each in more if each.node not in told]
    if found:
        raise NpucError.of(found)
    return graph


@frozen
class Compilation:
    """A program and what it was made of."""

    program: Program
    samples: Samples
    """The calibration samples; synthetic without calibration data."""
    graph: Graph
    """The float graph after the passes."""


def compile_model(
    model: Path,
    target: Target,
    options: Options,
    shapes: Shapes,
    calibration: Sequence[Path] = (),
    hook: Hook | None = None,
) -> tuple[Program, Samples]:
    """The program of a model, not yet checked, and its calibration samples.

    Raises every problem of the model or the target as one NpucError.
    """
    found = compilation(model, target, options, shapes, calibration, hook)
    return found.program, found.samples


@budget()
def compilation(
    model: Path,
    target: Target,
    options: Options,
    shapes: Shapes,
    calibration: Sequence[Path] = (),
    hook: Hook | None = None,
) -> Compilation:
    """The program of a model with the data for checking it. Raises as compile_model does."""
    steps: list[Step] = []
    recording = recorder(steps, hook)
    options.begin("reading the model")
    graph = accepted(model, target, shapes, options, recording)
    types = input_types(graph)
    try:
        samples = load_samples(calibration, types) if calibration else synthetic(types)
        work = len(samples) * sum(macs(node, graph.tensors) for node in graph.nodes)
        if isinstance(target, Foreseeing) and work >= LONG:
            target.foresee(graph, options)
        program = target.lower(graph, samples, options, recording)
    except NpucError as error:
        raise _with_operators(error, graph) from None
    trim()
    _expect_report(program, target)
    origin = {"name": model.name, "sha256": file_sha256(model)}
    named = replace(program, manifest={**program.manifest, "model": origin})
    return Compilation(with_rewrites(named, steps), samples, graph)


def float_passes(model: Path, program: Program, target: Target, told: Sequence[str]) -> Sequence[Step]:
    """The steps of the float-graph passes of a compiled program, repeated on its model.

    told: the rewrites recorded in graph.json. Empty if they differ: the program was compiled with other options.
    """
    steps: list[Step] = []
    shapes = {port.name: port.shape for port in program.inputs}
    with TemporaryDirectory() as folder:
        try:
            optimised(model, target, shapes, _options_of(program, target, Path(folder)), recorder(steps))
        except NpucError:  # part of the model runs on the host
            return ()
    found = [str(each) for step in steps for each in rewrites(*step, lambda _graph, _node: None)]
    return steps if [*told[: len(found)]] == found else ()


def _options_of(program: Program, target: Target, folder: Path) -> Options:
    """The options recorded in a program's manifest; its machine is written to a file in the folder."""
    machine = folder / "machine.toml"
    machine.write_text(as_toml(program.manifest["machine"]), encoding="utf-8")
    told = {flag.name: program.manifest[flag.name] for flag in target.flags if flag.name in program.manifest}
    return Options(str(machine), program.precision, flags=told)


def recompiled(model: Path, program: Program, target: Target) -> Program | None:
    """A program compiled afresh from its model for its machine, as a reference for its files.

    None if that gives another manifest, because other options or another npuc version were used.
    """
    shapes = {port.name: port.shape for port in program.inputs}
    with TemporaryDirectory() as folder:
        options = _options_of(program, target, Path(folder))
        try:
            fresh = as_loaded(compile_model(model, target, options, shapes)[0])
        except NpucError:
            return None
    return fresh if _meaning(fresh) == _meaning(program) else None


def _meaning(program: Program) -> dict[str, Any]:
    """The manifest without entries that depend on file bytes and without the report, which is derived data."""
    return {key: value for key, value in program.manifest.items() if key not in (*OF_FILES, "report")}


def quantise_model(
    model: Path, target: Target, options: Options, shapes: Shapes, calibration: Sequence[Path] = ()
) -> tuple[bytes, Samples]:
    """The network that the target's programs compute, as a QDQ model, and its calibration samples.

    Raises every problem of the model or the target as one NpucError; UnsupportedOperator (E205) for a model with
    scales of its own, or a target without an integer network.
    """
    from npuc.quantize.qdq import qdq_model

    graph = accepted(model, target, shapes, options)
    if not isinstance(target, Quantising):
        raise UnsupportedOperator("E205", f"{target.name} has no integer network that other runtimes could open")
    given = next((node for node in graph.nodes if node.op in CONVERSIONS), None)
    if given is not None:
        reason, remedy = "the model is quantised already", "compile it as it is"
        raise UnsupportedOperator("E205", reason, node=given.name, op=given.op, remedy=remedy)
    types = input_types(graph)
    samples = load_samples(calibration, types) if calibration else synthetic(types)
    network, tried = target.quantised(graph, samples, options)
    if options.notify is not None:
        options.notify(tried)
    return qdq_model(network), samples


def rewrites_of(steps: Sequence[Step], target: Target, options: Options) -> list[Rewrite]:
    """The changes of these passes, rewrite by rewrite, with the target's cycle costs."""

    def price(graph: Graph, node: Node) -> int | None:
        return target.cycles(graph, node, options)

    return [each for step in steps for each in rewrites(*step, price)]


def with_rewrites(program: Program, steps: Sequence[Step]) -> Program:
    """The program with the passes' rewrites added to its graph.json, for `npuc explain`."""
    done = [each for step in steps for each in rewrites(*step, lambda _graph, _node: None)]
    graph = json.loads(program.evidence["graph.json"])
    graph["rewrites"] = [{"pass": each.name, "nodes": list(each.nodes), "text": str(each)} for each in done]
    changed = {"graph.json": canonical_json(graph)}
    return replace(program, evidence=Files(contents_of(program.evidence, changed)))


def _expect_report(program: Program, target: Target) -> None:
    """Raises ValueError, addressed to the target's author, if the report lacks fields that every command shows."""
    try:
        _ = replace(program, manifest={"report": json.loads(json.dumps(program.manifest["report"]))}).report
    except ArtefactError as error:
        raise ValueError(f"{target.name} writes a report that npuc cannot show: {error}") from None


def _with_operators(error: NpucError, graph: Graph) -> NpucError:
    """The same error, with the operator added to every problem that names a node."""
    ops = {name: node.op for node in reversed(graph.nodes) for name in (*node.sources, node.name)}
    return type(error).of(
        replace(each, op=each.op or ops.get(each.node)) if each.node else each for each in error.problems
    )


def input_types(graph: Graph) -> dict[str, TensorType]:
    """Name and type of every input of a graph."""
    return {name: graph.tensors[name] for name in graph.inputs}


def program_inputs(program: Program) -> dict[str, TensorType]:
    """Name and type of every input of a program, from its manifest."""
    return {port.name: TensorType(port.shape, port.dtype) for port in program.inputs}


def batch_of(program: Program) -> int:
    """The number of samples simulated together."""
    elements = sum(abs(each.size) for each in program_inputs(program).values())
    return min(max(BATCH_ELEMENTS // max(elements, 1), 1), BATCH)


def run_program(program: Program, target: Target, samples: Samples) -> dict[str, Array]:
    """The outputs of all samples, stacked along axis 0 if the model's first dimension is 1."""
    return run_batches(target.runner(program, "own"), samples, batch=batch_of(program))


def run_batches(
    run: Runner, samples: Samples, advance: Callable[[int], None] | None = None, batch: int = BATCH
) -> dict[str, Array]:
    """The same for a loaded program; batch: the number of samples simulated together.

    advance: called with the number of samples done after each batch.
    """
    parts: list[dict[str, Array]] = []
    for each in samples.batches(batch):
        parts.append(run(each.inputs))
        if advance is not None:
            advance(len(each))
    return {name: _stacked([part[name] for part in parts]) for name in parts[0]}


def _stacked(parts: Sequence[Array]) -> Array:
    """The samples of all batches: an object array if they do not share a shape."""
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        return objects([row(part, at) for part in parts for at in range(len(part))])
    values = np.concatenate(parts)
    return values[:, 0] if values.ndim > 1 and values.shape[1] == 1 else values
