"""One artefact for several input shapes of a model: a program for each, and every file that they share once.

    manifest.json                 the variants: where each lies, and the inputs that it takes
    variants/0/manifest.json      a program of its own; what its manifest lists lies in files/ by digest
    files/SHA256/NAME             words, images and evidence

A variant's folder is an artefact to every command.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError, DataError, NpucError
from npuc.ir import TensorType
from npuc.program import (
    MANIFEST,
    SHARED,
    VARIANTS,
    ModifiedArtefact,
    Port,
    Program,
    canonical_json,
    manifest_of,
    sealed,
    sha256,
)
from npuc.storage import data
from npuc.storage.records import read
from npuc.storage.sources import files_of

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Variant:
    """A program of the artefact: its folder, and what it takes."""

    path: str
    inputs: tuple[Port, ...]

    def __str__(self) -> str:
        """Its folder and shapes, as a user types them."""
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


def together(programs: Sequence[Program]) -> Program:
    """The artefact of programs of one model and target, in their order; files with the same bytes are one."""
    files: dict[str, bytes] = {}
    found: list[Variant] = []
    for number, each in enumerate(programs):
        own = {**each.files, **each.evidence}
        found.append(Variant(f"{VARIANTS}/{number}", each.inputs))
        files[f"{found[-1].path}/{MANIFEST}"] = canonical_json(sealed(each.manifest, own))
        files |= {f"{SHARED}/{sha256(content)}/{Path(name).name}": content for name, content in own.items()}
    first = programs[0].manifest
    same = {key: first[key] for key in ("target", "precision", "model") if key in first}
    return Program({**same, VARIANTS: [each.as_json() for each in found]}, files)


def variants_of(manifest: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The variants of an artefact; none of a single program. Raises ArtefactError (E502) where it is damaged."""
    if VARIANTS not in manifest:
        return ()
    found = read(tuple[Variant, ...], manifest[VARIANTS], VARIANTS)
    for number, each in enumerate(found):
        if each.path != f"{VARIANTS}/{number}":
            reason = f"manifest.json is damaged: {VARIANTS}[{number}].path is {each.path!r}"
            raise ArtefactError("E502", reason, limit=f"{VARIANTS}/{number}", remedy="compile the model again")
    return found


def chosen(directory: Path, files: Sequence[Path], *, allow_modified: bool = False) -> Path:
    """The artefact that takes the data: the directory, or of several variants the folder of the one.

    Raises ArtefactError (E501, E502) as `program.load` does, (E508) where there is no data to choose by, and
    DataError (E402) where no variant takes it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModifiedArtefact)  # who loads the program says it
        found = variants_of(manifest_of(directory, allow_modified=allow_modified))
    if not found:
        return directory
    if not files:
        raise undecided(directory, found)
    refusal: NpucError | None = None
    for each in found:
        try:
            data.load(files, each.types)
        except DataError as error:
            refusal = refusal or error
            if any(problem.code != "E402" for problem in error.problems):
                raise
        else:
            return directory / each.path
    assert refusal is not None
    problem, limit = refusal.problems[0], "; ".join(map(str, found))
    raise DataError("E402", f"no variant takes the data: {problem.reason}", tensor=problem.tensor, limit=limit)


def undecided(directory: Path, found: Sequence[Variant]) -> ArtefactError:
    """The error (E508) of a command that takes one program and was given several."""
    reason = f"'{directory}' holds {len(found)} variants, and this takes one program"
    remedy = f"name the folder of one: {directory / found[0].path}"
    return ArtefactError("E508", reason, limit="; ".join(map(str, found)), remedy=remedy)


def with_samples(files: Sequence[Path], types: Mapping[str, TensorType]) -> list[Path]:
    """The calibration files, also of folders and patterns, whose samples have a variant's shapes.

    Raises DataError where none have.
    """
    taken, refusals = list[Path](), list[DataError]()
    for path in files_of(files):
        try:
            data.load([path], types)
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
