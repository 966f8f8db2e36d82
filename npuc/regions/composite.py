"""The target of a program of several parts: it combines the results of its machine for each part.

As C, the host regions become npuc_regions.h and .c, one function per region, and the library they call. For a
region that the library cannot compute, its ONNX model is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from npuc.errors import ArtefactError, NpucError
from npuc.host.c_code import FunctionSignature, HostFunction, function, sources
from npuc.host.c_text import network_name, with_prefix
from npuc.ir import Array
from npuc.program import MANIFEST, Program, canonical_json
from npuc.regions.artefact import HOST, Contents, ProgramPart, host_model, is_composite, part_of
from npuc.regions.running import CompositeRunner, part_tensor
from npuc.registry import names
from npuc.registry import target as find
from npuc.storage.records import damage_error
from npuc.target import Origin, Runner, Target
from npuc.view import Activity, Heading, Line, MemoryAnnotation, Timeline, names_of

if TYPE_CHECKING:
    import onnx


def target_of(program: Program) -> Target:
    """The target that runs a program.

    Raises ArtefactError: E501 for an unknown target, E502 for a precision that it lacks, E507 for one that cannot
    be imported.
    """
    if program.target not in names():
        reason, remedy = f"the program is for '{program.target}'", "install the package that adds this target"
        raise ArtefactError("E501", reason, limit=", ".join(names()), remedy=remedy)
    found = find(program.target)
    if program.precision not in found.precisions:
        raise damage_error(f"precision is '{program.precision}'", ", ".join(found.precisions))
    return cast(Target, Composite(found)) if is_composite(program) else found


class Composite:
    """A target whose programs have parts; everything that is not about a program is the inner target's."""

    def __init__(self, inner: Target) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def runner(self, program: Program, chip_model: str = "own") -> CompositeRunner:
        """Parts on the target's simulator, regions under onnxruntime."""
        return CompositeRunner(program, lambda part: self.inner.runner(part, chip_model))

    def trace_runner(self, program: Program, trace: Path) -> CompositeRunner | None:
        """The same on the hardware description; the trace of part K is written to STEM.part_K.vcd."""
        found: list[Runner | None] = []

        def part_runner(part: Program) -> Runner:
            file = trace.with_suffix(f".part_{len(found)}{trace.suffix}")
            found.append(self.inner.trace_runner(part, file))
            return found[-1] or self.inner.runner(part)

        runner = CompositeRunner(program, part_runner)
        return None if None in found else runner

    def timeline(self, program: Program) -> Timeline:
        """One part after the other, without the time of the host."""
        whole, found = Timeline(0, (), ()), [*_parts(program)]
        layers = instructions = 0
        for number, (_, part) in enumerate(found):
            run = self.inner.timeline(part)
            for each in (run.initial if len(found) > 1 else None, run):
                whole = whole if each is None else _append(whole, each, number, layers, instructions)
            layers += len(part.report["layers"])
            instructions += len(self.inner.listing(part))
        return whole

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """The instructions of all parts, numbered consecutively; `part` names the part of each."""
        found: list[dict[str, Any]] = []
        for number, (step, part) in enumerate(_parts(program)):
            for entry in self.inner.listing(part):
                tensor = entry.get("tensor")
                named = {"tensor": None if tensor is None else part_tensor(number, tensor)}
                found.append({**entry, **named, "index": len(found), "part": step.path})
        return found

    def outline(self, program: Program) -> list[Heading]:
        """The headings of all parts; a segment's first line names its part and is followed by host regions."""
        found: list[Heading] = []
        host: list[Line] = []
        first = 0
        for step in Contents.of(program.manifest).steps:
            if step.kind == HOST:
                host.append((f"host   {step.path}: ", *names_of(step.inputs), " -> ", *names_of(step.outputs)))
                continue
            part = part_of(program, step.path)
            entries = self.inner.listing(part)
            for each in self.inner.outline(part):
                title, *others = each.lines
                if each.kind == "segment":
                    title, others, host = (f"{step.path}: ", *title), [*host, *others], []
                found.append(replace(each, start=each.start + first, lines=(title, *others)))
            first += len(entries)
        if host:
            found.append(Heading("segment", first, 0, (("the host's last regions",), *host)))
        return found

    def origin(self, program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
        """The instruction of the part that computes the tensor, numbered as in the listing."""
        first = 0
        for number, (_, part) in enumerate(_parts(program)):
            own = tensor.removeprefix(part_tensor(number, ""))
            found = self.inner.origin(part, own, element) if own != tensor else None
            if found is not None:
                return replace(found, instruction=found.instruction + first)
            first += len(self.inner.listing(part))
        return None

    def memory_annotations(self, program: Program, name: str) -> Iterable[MemoryAnnotation]:
        """Annotations of a part's file."""
        for step, part in _parts(program):
            file = name.removeprefix(f"{step.path}/")
            if file != name and file != MANIFEST:
                return self.inner.memory_annotations(part, file)
        return ()

    def assemble(self, program: Program, listing: Path) -> Program:
        """Not supported: a listing has the words of one part."""
        paths = ", ".join(step.path for step, _ in _parts(program))
        reason = f"'{listing}' is for one program, and this one has parts of its own"
        raise ArtefactError("E504", reason, limit=paths, remedy="dump and assemble a part: --image OUT/PART")

    def export(self, program: Program, form: str, player: str | None = None) -> dict[str, bytes]:
        """The files of every part in its folder, the regions as ONNX models, and steps.json with their order.

        In C, regions are functions as well. Errors name the part's path and the regions'.
        """
        contents = Contents.of(program.manifest)
        regions = [step for step in contents.steps if step not in contents.parts]
        files = {step.path: program.files[step.path] for step in regions if step.path in program.files}
        for step, part in _named_parts(program):
            made = _part_exported(self.inner, step, part, (form, player), [each.path for each in regions])
            shared = self.inner.shared_exports
            files |= {name if name in shared else f"{step.path}/{name}": data for name, data in made.items()}
        if form == "c" and regions:
            functions = [region(program.files[step.path], number, step) for number, step in enumerate(regions)]
            files |= regions_in_c(functions)
        described = {key: program.manifest.get(key) for key in ("target", "inputs", "outputs")}
        return {**files, "steps.json": canonical_json({**described, **contents.as_json()})}

    def self_test(self, program: Program, form: str, inputs: Mapping[str, Array]) -> dict[str, bytes]:
        """The self-test of every part, on its inputs, in its folder."""
        fed: dict[int, Mapping[str, Array]] = {}
        self.runner(program).run_parts(inputs, lambda number, given, _seen, _out: fed.update({number: given}))
        return {
            f"{step.path}/{name}": data
            for number, (step, part) in enumerate(_named_parts(program))
            for name, data in self.inner.self_test(part, form, fed[number]).items()
        }


def _part_exported(
    inner: Target, step: ProgramPart, part: Program, form: tuple[str, str | None], regions: Sequence[str]
) -> dict[str, bytes]:
    """The files of a part. Errors name its path and those of the regions around it."""
    try:
        return inner.export(part, *form)
    except NpucError as error:
        where = f"{step.path}, between {', '.join(regions)}"
        raise type(error).of(replace(each, reason=f"{where}: {each.reason}") for each in error.problems) from error


def _append(before: Timeline, run: Timeline, number: int, layers: int, instructions: int) -> Timeline:
    """The timeline with that of a part behind it; layers, instructions: their counts before the part."""
    at = before.cycles
    activities = (_shift(each, number, before, layers, instructions) for each in run.activities)
    buffers = (
        replace(each, label=part_tensor(number, each.label), start=each.start + at, end=each.end + at)
        for each in run.buffers
    )
    whole = (*before.activities, *activities), (*before.buffers, *buffers)
    return Timeline(at + run.cycles, *whole, run.array, run.banks)


def _shift(each: Activity, number: int, before: Timeline, layers: int, instructions: int) -> Activity:
    """An activity of a part, shifted behind preceding parts; layers, instructions: their counts there."""
    return replace(
        each,
        start=each.start + before.cycles,
        end=each.end + before.cycles,
        tensor=None if each.tensor is None else part_tensor(number, each.tensor),
        layer=None if each.layer is None else each.layer + layers,
        instruction=None if each.instruction is None else each.instruction + instructions,
        producers=tuple(at + len(before.activities) for at in each.producers),
    )


def _parts(program: Program) -> Iterator[tuple[ProgramPart, Program]]:
    """The NPU parts in order."""
    for step in Contents.of(program.manifest).parts:
        yield step, part_of(program, step.path)


def _named_parts(program: Program) -> Iterator[tuple[ProgramPart, Program]]:
    """The same, each with a name of its own."""
    for number, (step, part) in enumerate(_parts(program)):
        yield step, with_prefix(part, f"{network_name(program.manifest)}_part_{number}")


def parts(program: Program) -> Sequence[Program]:
    """The NPU programs within a program; the program itself if it has no parts."""
    return [part for _, part in _parts(program)] if is_composite(program) else [program]


INTRODUCTION = """/*
 * The host regions of a program, in the order of steps.json. A region between parts of the NPU takes and gives
 * float32 tensors, row by row; `data` of each has the alignment of its type, and no two of a call overlap.
 * Regions of npuc_regions.c keep their results in static memory: one call at a time.
 */"""


def regions_in_c(regions: Sequence[HostFunction]) -> dict[str, bytes]:
    """npuc_regions.h and .c, one function per region, and the library that they call, by path."""
    return sources(regions, "regions", INTRODUCTION)


def region(data: bytes, number: int, step: ProgramPart) -> HostFunction:
    """A region of the program. data: its ONNX model. Raises ArtefactError (E502) if that is damaged."""
    from npuc.frontend import import_model

    model = host_model(step.path, data)
    try:
        graph = import_model(model, None)
    except NpucError:
        graph = None
    known = {each.name: each.type for each in (*model.graph.input, *model.graph.output)}
    types = tuple(_type(known.get(name)) for name in (*step.inputs, *step.outputs))
    operators = [node.op_type for node in model.graph.node]
    return function(
        graph, FunctionSignature(step.inputs, step.outputs, types), "regions", number, step.path, operators
    )


def _type(found: onnx.TypeProto | None) -> str:
    """Element type and shape as text for a comment."""
    from onnx import TensorProto

    if found is None or not found.HasField("tensor_type"):
        return "a value that is no tensor:"
    if found.tensor_type.elem_type not in TensorProto.DataType.values():
        return "a value of a type that ONNX lacks:"
    dims = found.tensor_type.shape.dim
    shape = ", ".join(str(each.dim_value) if each.HasField("dim_value") else "?" for each in dims)
    return f"{TensorProto.DataType.Name(found.tensor_type.elem_type).lower()} [{shape}]"
