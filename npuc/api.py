"""npuc from Python: compile, run and verify, in three lines; a program in place of an onnxruntime session.

import npuc
program = npuc.compile("model.onnx", target="easynpu", calibration="samples.npz")
print(npuc.verify("model.onnx", program)["bit_exact"], program.run(x))
outputs = npuc.Session(program).run(None, {"x": image})
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from operator import index
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from npuc import driver, running
from npuc import program as programs
from npuc.errors import HOST_STEP, DataError, NpucError, Problem
from npuc.flags import Flags, options_of
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import OBJECT, STRING, Port, Program
from npuc.regions.composite import target_of
from npuc.regions.running import samples_of
from npuc.regions.variants import choice_error, join_variants, variants_of
from npuc.registry import target as find
from npuc.samples import loading as data
from npuc.samples.structured import objects, row
from npuc.target import Options, Request, Runner, Target
from npuc.view import Timeline

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack


Model = Union[str, "PathLike[str]", "onnx.ModelProto"]
"""A file, or a model in memory."""
Data = Union[str, "PathLike[str]", Array, Mapping[str, Array]]
"""An .npz file, a folder of them or a pattern (`"samples/*.npz"`), arrays by input name, or the array of the only
input; axis 0 is samples."""
Shapes = Mapping[str, Sequence[int]]


@frozen
class Compiled:
    """A program, ready to run and to inspect."""

    program: Program

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the program, without its simulator."""
        return Compiled, (self.program,)

    def __repr__(self) -> str:
        """The model, the machine and the cycles, in a line."""
        report = self.report
        what = f"{self.program.model.name!r} for {report['target']}, machine {report['machine']!r}"
        return f"<Compiled {what}: {report['cycles']:,} cycles>"

    def _repr_html_(self) -> str:
        """The summary of `npuc report`, as notebooks show it."""
        from npuc.reports.page import summary

        return summary(self.program, self.target)

    @cached_property
    def target(self) -> Target:
        """The target that it was compiled for."""
        return target_of(self.program)

    @property
    def report(self) -> Mapping[str, Any]:
        """What `npuc compile --json` prints, without status and warnings: cycles, memories, layers."""
        return self.program.report

    @property
    def timeline(self) -> Timeline:
        """The activity of its engines and the contents of its memories over time."""
        return self.target.timeline(self.program)

    def run(self, inputs: Data) -> dict[str, Array]:
        """The outputs by name for all samples, simulated from words and images alone.

        Raises DataError (E401, E402) for inputs that the program does not accept.
        """
        return running.run_batches(self.runner, self.samples(inputs))

    @cached_property
    def runner(self) -> Runner:
        """The simulator with the program loaded."""
        return self.target.runner(self.program)

    def samples(self, inputs: Data) -> data.Samples:
        """The data as samples of this program's inputs."""
        with _file(inputs) as path:
            return samples_of(self.program, [path])

    def listing(self) -> list[dict[str, Any]]:
        """The instructions in order, with their fields and source nodes."""
        return self.target.listing(self.program)

    def save(self, directory: str | PathLike[str], *, force: bool = False) -> None:
        """Writes the artefact. Raises ArtefactError (E505, E506) as `npuc compile` does."""
        programs.save(self.program, Path(directory), force=force)


@frozen
class CompiledVariants:
    """Programs of one model, one for every set of input shapes."""

    variants: tuple[Compiled, ...]

    def of(self, inputs: Data) -> Compiled:
        """The first program that accepts the data. Raises DataError (E401, E402) if none does."""
        refusal: DataError | None = None
        for each in self.variants:
            try:
                each.samples(inputs)
            except DataError as error:
                refusal = refusal or error
            else:
                return each
        assert refusal is not None
        raise refusal

    def run(self, inputs: Data) -> dict[str, Array]:
        """The outputs of the program that accepts the data; raises as `of`."""
        return self.of(inputs).run(inputs)

    def save(self, directory: str | PathLike[str], *, force: bool = False) -> None:
        """Writes one artefact of all programs, which share files. Raises ArtefactError (E505, E506)."""
        programs.save(join_variants([each.program for each in self.variants]), Path(directory), force=force)


def compile(
    model: Model,
    target: str,
    *,
    calibration: Data | None = None,
    input_shapes: Shapes | None = None,
    options: Options | None = None,
    **flags: Unpack[Flags],
) -> Compiled:
    """The program of a model.

    calibration: samples to choose scales from; "synthetic" does without, at a loss of accuracy that nobody knows.
    flags: those of `npuc compile` by name; they take precedence over the options' fields. Raises NpucError with
    every problem of the model or the target, DataError (E404) if integers need ranges, Mismatch (E603) for a
    program found to differ from the model, TypeError and ValueError for flags that the target does not have, and
    ValueError for an unknown target.
    """
    given = () if calibration is None else (calibration,)
    with _request(model, target, options, flags, given, input_shapes) as request:
        found, _ = driver.compile_model(request)
    return Compiled(programs.as_loaded(found))


def compile_variants(
    model: Model,
    target: str,
    *,
    input_shapes: Sequence[Shapes],
    calibration: Sequence[Data] = (),
    options: Options | None = None,
    **flags: Unpack[Flags],
) -> CompiledVariants:
    """A program for each of two or more sets of input shapes, calibrated on the data with these shapes.

    Raises as `compile`, DataError (E402) if no calibration data has the shapes of a program, and ValueError for
    fewer than two sets of shapes.
    """
    if len(input_shapes) < 2:
        raise ValueError("variants are of two sets of input shapes or more: npuc.compile takes one")
    with _request(model, target, options, flags, calibration) as request:
        found, _ = driver.compile_variants(request, [_shapes(each) for each in input_shapes])
    return CompiledVariants(tuple(Compiled(programs.as_loaded(each)) for each in found))


def load(directory: str | PathLike[str], *, allow_modified: bool = False) -> Compiled:
    """The program of an artefact. Raises ArtefactError (E501, E502) if it is damaged or was not written by npuc.

    A variant is loaded from its folder, OUT/variants/0; OUT itself is refused (E508).
    """
    found = programs.load(Path(directory), allow_modified=allow_modified)
    if variants := variants_of(found.manifest):
        raise choice_error(Path(directory), variants)
    evidence = programs.load_evidence(Path(directory), found, allow_modified=allow_modified)
    return Compiled(programs.Program(found.manifest, found.files, evidence))


def check(
    model: Model,
    target: str,
    *,
    input_shapes: Shapes | None = None,
    options: Options | None = None,
    **flags: Unpack[Flags],
) -> list[Problem]:
    """Everything that a target does not run, all at once; empty if it needs no host regions.

    flags: as for `compile`.
    """
    from npuc.cutting import part_of
    from npuc.driver import survey_of

    with _request(model, target, options, flags, shapes=input_shapes) as request, part_of(request) as (part, _):
        found = survey_of(part)
    return [each.problem for each in found.reasons if each.problem.code != HOST_STEP]


def verify(
    model: Model,
    program: Compiled | str | PathLike[str],
    inputs: Data | None = None,
    *,
    min_sqnr_db: float | None = None,
    min_cosine: float | None = None,
) -> dict[str, Any]:
    """The report that `npuc verify --json` prints: the program against onnxruntime, by outputs and layers.

    program: compiled, or the folder of an artefact. Without inputs: synthetic samples of every kind, on which the
    accuracy of integers is not judged. Raises ArtefactError (E501) if the program is from another model.
    """
    from npuc.verification.checking import verify as verified
    from npuc.verification.criterion import tolerance

    program = _open_program(program)
    types = running.program_inputs(program.program)
    with _part(model, program, inputs) as (path, files), TemporaryDirectory() as folder:
        samples = samples_of(program.program, files) if files else data.varied_samples(types)
        program.save(Path(folder) / "program")
        asked = tolerance(path, program.program, samples, min_sqnr_db, min_cosine)
        return verified(path, Path(folder) / "program", program.program, program.target, samples, asked)


def accuracy(
    model: Model,
    program: Compiled | str | PathLike[str],
    inputs: Data,
    *,
    metric: str | None = None,
    simulate: int | str | None = None,
    **removed: Any,
) -> dict[str, Any]:
    """The report that `npuc accuracy --json` prints: the accuracy at the task, next to the model in fp32.

    program: compiled, or the folder of an artefact. Labels are `y` in the data. simulate: the number of samples
    whose words are simulated, or "all"; the integer network computes the others (None: 8 are; of a floating-point
    program all). metric: as of the command; removed: what the last version took. Raises ArtefactError (E501) if
    the program is from another model, DataError (E401, E402) for data and outputs that cannot be judged,
    ValueError for an invalid value or a removed option, TypeError for an unknown name.
    """
    from npuc.flags import expect_present
    from npuc.verification.accuracy import JudgedFiles
    from npuc.verification.accuracy import accuracy as judged
    from npuc.verification.judging.choosing import Asked

    for name, value in removed.items():
        expect_present(name, value)
        raise TypeError(f"accuracy takes no '{name}'. It takes: metric, simulate")
    wanted, program = Asked(metric), _open_program(program)
    with _part(model, program, inputs) as (path, files), TemporaryDirectory() as folder:
        program.save(Path(folder) / "program")
        return judged(
            JudgedFiles(path, Path(folder) / "program"), program.program, files, wanted, simulate=simulate
        )


def _open_program(program: Compiled | str | PathLike[str]) -> Compiled:
    """The program, or that of an artefact's folder. Raises ArtefactError as `load` does, TypeError for others."""
    return program if isinstance(program, Compiled) else load(program)


def _shapes(shapes: Shapes | None) -> dict[str, tuple[int, ...]]:
    """The shapes as tuples. Raises TypeError for anything but shapes by input name."""
    try:
        return {name: tuple(map(index, shape)) for name, shape in (shapes or {}).items()}
    except (AttributeError, TypeError):
        example = "{'x': (1, 3, 224, 224)}"
        raise TypeError(
            f"input_shapes is a shape for each input by its name, such as {example}, not {shapes!r}"
        ) from None


@contextmanager
def _request(
    model: Model,
    target: str,
    options: Options | None,
    flags: Flags,
    calibration: Sequence[Data] = (),
    shapes: Shapes | None = None,
) -> Generator[Request]:
    """The request for a compile; what is in memory is in files that exist during the block."""
    kind = find(target)
    asked = options_of(kind, options, flags)
    with ExitStack() as stack:
        path = stack.enter_context(_model_file(model))
        files = [stack.enter_context(_file(each)) for each in calibration]
        yield Request(path, kind, asked, files, _shapes(shapes), synthetic=False)


@contextmanager
def _model_file(model: Model) -> Generator[Path]:
    """The model as a file; a model in memory is written to one that exists during the block.

    Raises TypeError for anything else.
    """
    if isinstance(model, str | PathLike):
        yield Path(model)
        return
    if not hasattr(model, "SerializeToString"):
        raise TypeError(f"a model is the path of a file or an onnx.ModelProto, not {type(model).__name__}")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        with _rename_in_errors(path, "the model"):
            yield path


@contextmanager
def _part(model: Model, program: Compiled, inputs: Data | None) -> Generator[tuple[Path, tuple[Path, ...]]]:
    """The file that the program was compiled from, whole or a part, and the files of its data."""
    from npuc.cutting import compiled_part

    with ExitStack() as stack:
        path = stack.enter_context(_model_file(model))
        files = () if inputs is None else (stack.enter_context(_file(inputs)),)
        yield stack.enter_context(compiled_part(path, program.program, files))


@contextmanager
def _file(inputs: Data) -> Generator[Path]:
    """The data as a file."""
    if isinstance(inputs, str | PathLike):
        yield Path(inputs)
        return
    named = inputs if isinstance(inputs, Mapping) else {"x": inputs}
    arrays = {name: np.asarray(values) for name, values in named.items()}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "inputs.npz"
        data.save(path, arrays)
        with _rename_in_errors(path, "the data"):
            yield path


@contextmanager
def _rename_in_errors(path: Path, name: str) -> Generator[None]:
    """Errors within the block name what the caller gave, not the temporary file that holds it."""
    try:
        yield
    except NpucError as error:
        reasons = [each.reason.replace(f"'{path}'", name).replace(str(path), name) for each in error.problems]
        problems = zip(error.problems, reasons, strict=True)
        raise type(error).of(replace(each, reason=reason) for each, reason in problems) from error.__cause__


class Session:
    """A program with the methods of onnxruntime.InferenceSession: one sample per run, in the model's shapes."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def get_inputs(self) -> tuple[Port, ...]:
        """Name, shape and dtype of every input."""
        return self.compiled.program.inputs

    def get_outputs(self) -> tuple[Port, ...]:
        """Name, shape and dtype of every output."""
        return self.compiled.program.outputs

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """These outputs, or all, for one sample.

        Raises DataError (E401, E402) for missing inputs, wrong shapes, or non-numeric values; KeyError for unknown
        outputs.
        """
        batch = {port.name: _sample_of(port, feeds) for port in self.get_inputs()}
        outputs = {name: row(values, 0) for name, values in self.compiled.runner(batch).items()}
        return [outputs[name] for name in output_names or [port.name for port in self.get_outputs()]]


def _sample_of(port: Port, feeds: Mapping[str, Any]) -> Array:
    """The value of an input as the one sample of a batch."""
    if port.name not in feeds:
        raise DataError("E401", "the input is not fed", tensor=port.name, limit=f"fed: {', '.join(feeds)}")
    if port.dtype == OBJECT:
        return objects([feeds[port.name]])
    value = np.asarray(feeds[port.name], object if port.dtype == STRING else None)
    fits = value.ndim == len(port.shape) and all(
        extent in (-1, given) for extent, given in zip(port.shape, value.shape, strict=True)
    )
    if not fits or (value.dtype.kind not in "fiub" and port.dtype != STRING):
        limit = f"{list(port.shape)} of {port.dtype}"
        raise DataError("E402", f"{value.dtype} {list(value.shape)} is fed", tensor=port.name, limit=limit)
    return objects([value]) if port.dtype == STRING else value.astype(port.dtype)[None]
