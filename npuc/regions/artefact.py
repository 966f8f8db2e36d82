"""What the manifest of a program of several parts says beside its report: its steps, and what its outputs are.

A step is a part of the NPU, an npuc artefact of its own in a folder of the program, or a region of the host, an
ONNX model in a file of the program. Steps hand tensors to one another by the names of the ONNX model.

    host/region_0.onnx       what onnxruntime runs
    npu/part_0/...           an artefact: manifest.json, words, images, evidence
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from npuc.errors import ArtefactError
from npuc.program import EVIDENCE, GIVEN_BY, MANIFEST, Program, canonical_json, sealed
from npuc.storage.pieces import Files, contents_of
from npuc.storage.records import read

NPU, HOST = "npu", "host"


@dataclass(frozen=True)
class ProgramPart:
    """One part: where it runs, where it lies in the artefact, and the tensors that it takes and gives."""

    kind: str
    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    custom: tuple[str, ...] = ()
    """Operators of the host that a library of the user must bring (--custom-ops), as DOMAIN::OPERATOR."""


@dataclass(frozen=True)
class Contents:
    """The steps in order, and the tensor that every output of the network is."""

    steps: tuple[ProgramPart, ...]
    results: Mapping[str, str]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Contents:
        """Raises ArtefactError (E502) where the manifest is not one that npuc wrote."""
        steps = read(tuple[ProgramPart, ...], manifest.get("steps"), "steps")
        for number, step in enumerate(steps):
            if step.kind not in (NPU, HOST):
                reason = f"manifest.json is damaged: steps[{number}] is of kind '{step.kind}'"
                raise ArtefactError("E502", reason, limit=f"{NPU}, {HOST}", remedy="compile the model again")
        return cls(steps, read(Mapping[str, str], manifest.get(GIVEN_BY), GIVEN_BY))

    @property
    def parts(self) -> tuple[ProgramPart, ...]:
        """The steps of the NPU."""
        return tuple(step for step in self.steps if step.kind == NPU)

    def as_json(self) -> dict[str, Any]:
        """The entries of the manifest."""
        return {"steps": [asdict(step) for step in self.steps], GIVEN_BY: dict(self.results)}


def is_composite(program: Program) -> bool:
    """Whether a program has parts of its own."""
    return GIVEN_BY in program.manifest


def part_path(number: int) -> str:
    """The folder of a part of the NPU."""
    return f"npu/part_{number}"


def region_path(number: int) -> str:
    """The file of a region of the host."""
    return f"host/region_{number}.onnx"


def embedded(path: str, part: Program) -> tuple[Files, Files]:
    """The files and the evidence of a part, as those of the program that holds it."""
    manifest = sealed(part.manifest, Files(contents_of(part.files, part.evidence)))
    files = contents_of({MANIFEST: canonical_json(manifest)}, part.files)
    return (
        Files({f"{path}/{name}": data for name, data in files.items()}),
        Files({f"{path}/{name}": data for name, data in contents_of(part.evidence).items()}),
    )


def part_of(program: Program, path: str) -> Program:
    """A part as a program of its own. Raises ArtefactError (E502) where it is missing or damaged."""
    name = f"{path}/{MANIFEST}"
    try:
        manifest = json.loads(program.files[name])
    except KeyError:
        raise ArtefactError("E502", f"'{name}' is missing", remedy="compile the model again") from None
    except (ValueError, RecursionError):
        raise ArtefactError("E502", f"'{name}' is damaged: it is not JSON") from None
    if not isinstance(manifest, dict) or GIVEN_BY in manifest:
        raise ArtefactError("E502", f"'{name}' is damaged: it is not the manifest of a part")
    inside, evidence = (
        {
            key.removeprefix(f"{path}/"): data
            for key, data in contents_of(files).items()
            if key.startswith(f"{path}/")
        }
        for files in (program.files, program.evidence)
    )
    inside.pop(MANIFEST)
    return Program(manifest, Files(inside), Files({each: evidence[each] for each in EVIDENCE if each in evidence}))


def steps_of(program: Program) -> Iterator[Mapping[str, Any]]:
    """What runs one after another, as manifests have it: the steps, and after a part of the NPU those within it.

    Raises ArtefactError (E502) where a part is missing or damaged.
    """
    for step in program.manifest.get("steps", ()):
        yield step
        if step.get("kind") == NPU:
            yield from part_of(program, step["path"]).manifest.get("steps", ())
