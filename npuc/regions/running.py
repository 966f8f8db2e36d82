"""Runs a program of several parts: NPU parts on their target's simulator, host regions under onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import ArtefactError, NpucError
from npuc.host.step import ungiven
from npuc.ir import Array
from npuc.onnx_files.subgraphs import graphs
from npuc.program import Port, Program
from npuc.reference import REMEDY, session
from npuc.regions.artefact import NPU, Contents, ProgramPart, host_model, of_host_alone, part_of
from npuc.running import program_inputs
from npuc.samples import loading as data
from npuc.samples.loading import Samples
from npuc.samples.structured import objects, row
from npuc.system.budget import expect_room
from npuc.target import Observer, Runner, cycles_of, layer_cycles_of

PartObserver = Callable[[int, Mapping[str, Array], Mapping[str, Array], Mapping[str, Array]], None]
"""Called with the number of a part, its inputs, the tensors its simulator showed, and its outputs:
(samples, *shape).
"""
LIMITS = ("E110", "E111")
"""Errors of the memory and time limits."""
Values = list[Any]
"""A tensor's value for every sample: arrays, or lists for sequences."""


class HostRegion:
    """A host region."""

    def __init__(self, program: Program, step: ProgramPart) -> None:
        self.step = step
        if step.path not in program.files:
            raise ArtefactError("E502", f"'{step.path}' is missing")
        self.session = _open_region(program.files[step.path], step)

    def __call__(self, values: dict[str, Values]) -> dict[str, Values]:
        """The outputs, sample by sample. Raises ArtefactError (E502) if onnxruntime cannot compute them."""
        found, size = list[Sequence[Any]](), 0
        try:
            for sample in zip(*(values[name] for name in self.step.inputs), strict=True):
                feed = dict(zip(self.step.inputs, sample, strict=True))
                found.append(self.session.run(list(self.step.outputs), feed))
                size += _bytes(found[-1])
                expect_room(size, "what the host gives for these samples")
            if not self.step.inputs:
                count = len(next(iter(values.values()))) if values else 1
                found = [self.session.run(list(self.step.outputs), {})] * count
        except KeyError as error:
            raise _damage_error(self.step, f"no step before it gives {error}") from None
        except NpucError as error:
            raise _region_error(self.step, error, DATA) from None
        return {name: [each[at] for each in found] for at, name in enumerate(self.step.outputs)}


def _bytes(value: Any) -> int:
    """Bytes of a tensor, or of a sequence of tensors."""
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else getattr(value, "nbytes", 0)


def _open_region(data: bytes, step: ProgramPart) -> Any:
    """A session of a region's model, which must not refer to files outside the artefact."""
    from onnx.external_data_helper import uses_external_data

    model = host_model(step.path, data)
    if model.functions:
        raise _damage_error(step, "it has functions of its own")
    if any(uses_external_data(tensor) for tensor in _tensors(model.graph)):
        raise _damage_error(step, "it names files outside the artefact")
    try:
        found = session(model, confined=True)
    except NpucError as error:
        if step.custom and error.problems[0].code not in LIMITS:
            reason = f"'{step.path}' has operators that onnxruntime lacks: {', '.join(step.custom)}"
            raise ArtefactError("E507", reason, remedy=REMEDY) from None
        raise _region_error(step, error) from None
    taken = {each.name for each in found.get_inputs()}
    given = {each.name for each in found.get_outputs()}
    if taken != {*step.inputs} or not {*step.outputs} <= given:
        raise _damage_error(step, "its inputs and outputs are not those of the manifest")
    return found


def _tensors(graph: Any) -> Sequence[Any]:
    """Every tensor of a graph that has data, including those in its nodes and their subgraphs."""
    found, sparse = list[Any](), list[Any]()
    for each in graphs(graph):
        found += each.initializer
        sparse += each.sparse_initializer
        for attribute in (attribute for node in each.node for attribute in node.attribute):
            found += [attribute.t, *attribute.tensors]
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
    return [*found, *(part for each in sparse for part in (each.values, each.indices))]


DATA = "give samples that the model can process, with indices in range for instance; otherwise compile it again"


def _region_error(step: ProgramPart, error: NpucError, remedy: str | None = None) -> ArtefactError:
    """The error for a region, or its node, that onnxruntime refuses (E502), or that exceeds a limit (E509)."""
    (problem,) = error.problems
    if problem.code not in LIMITS and problem.node:
        return ArtefactError("E502", problem.reason, node=problem.node, op=problem.op, remedy=remedy)
    if problem.code not in LIMITS:
        return _damage_error(step, problem.reason, remedy)
    return ArtefactError("E509", f"'{step.path}': {problem.reason}", limit=problem.limit, remedy=problem.remedy)


def _damage_error(step: ProgramPart, reason: str, remedy: str | None = None) -> ArtefactError:
    return ArtefactError("E502", f"'{step.path}': {reason}", remedy=remedy)


class RunningPart:
    """An NPU part."""

    def __init__(self, program: Program, step: ProgramPart, run: Callable[[Program], Runner]) -> None:
        self.step, self.program = step, part_of(program, step.path)
        self.run = run(self.program)

    def __call__(self, values: dict[str, Values], observe: Observer | None) -> tuple[dict[str, Array], ...]:
        """Inputs and outputs, (samples, *shape)."""
        feeds = {port.name: self._feed(port, values) for port in self.program.inputs}
        return feeds, self.run(feeds, observe)

    def _feed(self, port: Port, values: dict[str, Values]) -> Array:
        """An input for all samples. Raises ArtefactError (E502) if the host's result has another shape or type."""
        given = values.get(port.name)
        if given is None:
            raise _damage_error(self.step, f"no step before it gives '{port.name}'")
        for each in given:
            if np.shape(each) != port.shape or getattr(each, "dtype", None) != np.dtype(port.dtype):
                found = f"{getattr(each, 'dtype', type(each).__name__)} {list(np.shape(each))}"
                limit = f"{port.dtype} {list(port.shape)}"
                raise ArtefactError(
                    "E502", f"the host gives {found} to '{self.step.path}'", tensor=port.name, limit=limit
                )
        return np.stack(given) if not isinstance(given, np.ndarray) else given


def sample_by_sample(opened: Any, outputs: Sequence[str]) -> Runner:
    """An onnxruntime session as a runner, which gives it one sample after the other."""

    def run(feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        del observe
        samples = (dict(zip(feeds, values, strict=True)) for values in zip(*feeds.values(), strict=True))
        rows = [opened.run(list(outputs), each) for each in samples]
        return dict(zip(outputs, map(np.stack, zip(*rows, strict=True)), strict=True))

    return run


class CompositeRunner:
    """A program of several parts, ready to run."""

    def __init__(self, program: Program, run: Callable[[Program], Runner]) -> None:
        self.contents, self.outputs = Contents.of(program.manifest), program.outputs
        self.steps: list[RunningPart | HostRegion] = [
            RunningPart(program, step, run) if step.kind == NPU else HostRegion(program, step)
            for step in self.contents.steps
        ]
        for port in self.outputs:
            if port.name not in self.contents.results:
                raise ungiven(port.name)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape); tensors within parts are named part_K/TENSOR."""

        def show(number: int, _fed: Mapping[str, Array], seen: Mapping[str, Array], _out: object) -> None:
            if observe is not None:
                for name, values in seen.items():
                    observe(part_tensor(number, name), values)

        return self.run_parts(feeds, None if observe is None else show)

    def run_parts(self, feeds: Mapping[str, Array], watch: PartObserver | None) -> dict[str, Array]:
        """Runs the program and reports the inputs and outputs of every part."""
        values = {name: _each(rows) for name, rows in feeds.items()}
        number = 0
        for step in self.steps:
            if isinstance(step, HostRegion):
                values |= step(values)
                continue
            seen: dict[str, Array] = {}
            fed, given = step(values, None if watch is None else seen.__setitem__)
            if watch is not None:
                watch(number, fed, seen, given)
            values |= {name: _each(rows) for name, rows in given.items()}
            number += 1
        results = self.contents.results
        missing = [port.name for port in self.outputs if results[port.name] not in values]
        if missing:
            raise ungiven(missing[0])
        return {port.name: stack_samples(values[results[port.name]]) for port in self.outputs}

    @property
    def cycles(self) -> int | None:
        """NPU cycles of the last sample, if the simulators of all parts count them."""
        counts = [cycles_of(each.run) for each in self.steps if isinstance(each, RunningPart)]
        known = [each for each in counts if each is not None]
        return sum(known) if known and len(known) == len(counts) else None

    @property
    def layer_cycles(self) -> list[int] | None:
        """The same for each layer of every part."""
        counts = [layer_cycles_of(each.run) for each in self.steps if isinstance(each, RunningPart)]
        known = [each for each in counts if each is not None]
        return [each for layers in known for each in layers] if len(known) == len(counts) else None


def _each(values: Array) -> Values:
    """The value of every sample; numbers are arrays, even scalars."""
    return [row(values, at) for at in range(len(values))]


def part_tensor(number: int, tensor: str) -> str:
    """The name of a part's tensor in the whole program."""
    return f"part_{number}/{tensor}"


def stack_samples(values: Values) -> Array:
    """All samples as one array; an object array if they do not share a shape."""
    arrays = [each for each in values if isinstance(each, np.ndarray | np.generic)]
    if len(arrays) == len(values) and len({(each.shape, each.dtype) for each in arrays}) == 1:
        return np.stack(arrays)
    return objects(values)


def samples_of(program: Program, files: Sequence[Path]) -> Samples:
    """The samples of data files for a program; an input that only the host reads may be infinite, as in a mask.

    Raises DataError (E401, E402) as `data.load`.
    """
    return data.load(files, program_inputs(program), of_host_alone(program), program.images)
