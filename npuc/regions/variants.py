"""One artefact for several input shapes of a model: a program for each, with shared files stored once.

    manifest.json                 the variants: folder and accepted inputs of each
    variants/0/manifest.json      a program of its own; the files it lists are in files/ by digest
    files/SHA256/NAME             words, images and evidence

Every command accepts a variant's folder as an artefact.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError, DataError, NpucError
from npuc.frozen import frozen
from npuc.images.pictures import is_picture
from npuc.ir import TensorType
from npuc.program import MANIFEST, SHARED, VARIANTS, ModifiedArtefact, Port, Program, manifest_of, sealed, sha256
from npuc.samples import loading as data
from npuc.samples.sources import files_of
from npuc.storage.mapped import Content, Files, contents_of
from npuc.storage.records import damage_error, read

Shapes = Mapping[str, tuple[int, ...]]


@frozen
class Variant:
    """A program of the artefact: its folder and the inputs that it accepts."""

    path: str
    inputs: tuple[Port, ...]

    def __str__(self) -> str:
        """Its folder and shapes, in command-line notation."""
        shapes = (f"{each.name}={','.join(map(str, each.shape))}" for each in self.inputs)
        return f"{self.path} ({' '.join(shapes)})"

    def as_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        described = ({**asdict(each), "shape": list(each.shape)} for each in self.inputs)
        inputs = [{key: value for key, value in each.items() if value != ""} for each in described]
        return {"path": self.path, "inputs": inputs}

    @property
    def types(self) -> dict[str, TensorType]:
        """The inputs' types."""
        return {port.name: TensorType(port.shape, port.dtype) for port in self.inputs}


def join_variants(programs: Sequence[Program]) -> Program:
    """The artefact of programs of one model and target, in their order; files with equal bytes are stored once."""
    files: dict[str, Content] = {}
    found: list[Variant] = []
    for number, each in enumerate(programs):
        own = contents_of(each.files, each.evidence)
        found.append(Variant(f"{VARIANTS}/{number}", each.inputs))
        files[f"{found[-1].path}/{MANIFEST}"] = sealed(each.manifest, Files(own))
        files |= {f"{SHARED}/{sha256(content)}/{Path(name).name}": content for name, content in own.items()}
    first = programs[0].manifest
    same = {key: first[key] for key in ("target", "precision", "model") if key in first}
    return Program({**same, VARIANTS: [each.as_json() for each in found]}, Files(files))


def variants_of(manifest: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The variants of an artefact; none for a single program. Raises ArtefactError (E502) if it is damaged."""
    if VARIANTS not in manifest:
        return ()
    found = read(tuple[Variant, ...], manifest[VARIANTS], VARIANTS)
    for number, each in enumerate(found):
        if each.path != f"{VARIANTS}/{number}":
            raise damage_error(f"{VARIANTS}[{number}].path is {each.path!r}", f"{VARIANTS}/{number}")
    return found


def choose_variant(directory: Path, files: Sequence[Path], *, allow_modified: bool = False) -> Path:
    """The artefact that accepts the data: the directory, or the folder of one of several variants.

    Raises ArtefactError (E501, E502) as `program.load` does, (E508) if there is no data to choose by, and
    DataError (E402) if no variant accepts it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModifiedArtefact)  # loading the program reports it
        found = variants_of(manifest_of(directory, allow_modified=allow_modified))
    if not found:
        return directory
    if not files:
        raise choice_error(directory, found)
    refusal: NpucError | None = None
    for each in found:
        try:
            own = manifest_of(directory / each.path, allow_modified=allow_modified)
            data.load(files, each.types, each.types, Program(own, {}).images)
        except DataError as error:
            refusal = refusal or error
            if any(problem.code != "E402" for problem in error.problems):
                raise
        else:
            return directory / each.path
    assert refusal is not None
    problem, limit = refusal.problems[0], "; ".join(map(str, found))
    raise DataError("E402", f"no variant takes the data: {problem.reason}", tensor=problem.tensor, limit=limit)


def choice_error(directory: Path, found: Sequence[Variant]) -> ArtefactError:
    """The error (E508) for a command that takes one program but was given several."""
    reason = f"'{directory}' holds {len(found)} variants, and this takes one program"
    remedy = f"name the folder of one: {directory / found[0].path}"
    return ArtefactError("E508", reason, limit="; ".join(map(str, found)), remedy=remedy)


def with_samples(files: Sequence[Path], types: Mapping[str, TensorType]) -> list[Path]:
    """The calibration files, also of folders and patterns, whose samples have a variant's shapes.

    Raises DataError if none have.
    """
    taken, refusals = list[Path](), list[DataError]()
    if not (found := files_of(files)):
        return [*files]
    for path in found:
        if is_picture(path):  # it is made to fit every variant
            taken.append(path)
            continue
        try:
            data.load([path], types, types)
        except DataError as error:
            if any(problem.code != "E402" for problem in error.problems):
                raise
            refusals.append(error)
        else:
            taken.append(path)
    if refusals and not taken:
        remedy = "give calibration data for every shape"
        raise DataError.of(replace(each, remedy=each.remedy or remedy) for each in refusals[0].problems)
    return taken
