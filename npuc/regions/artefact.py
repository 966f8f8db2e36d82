"""The manifest of a program of several parts: its steps, and the sources of its outputs.

A step is an NPU part, which is an npuc artefact of its own in a folder of the program, or a host region, which is
an ONNX model in a file of the program. Steps exchange tensors by their names in the ONNX model.

    host/region_0.onnx       a model for onnxruntime
    npu/part_0/...           an artefact: manifest.json, words, images, evidence
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.program import EVIDENCE, GIVEN_BY, MANIFEST, Program, sealed
from npuc.storage.mapped import Files, contents_of
from npuc.storage.records import damage_error, read

if TYPE_CHECKING:
    import onnx

NPU, HOST = "npu", "host"


@frozen
class ProgramPart:
    """One part: where it runs, its path in the artefact, and its input and output tensors."""

    kind: str
    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    custom: tuple[str, ...] = ()
    """Host operators that need a library from the user (--custom-ops), as DOMAIN::OPERATOR."""


@frozen
class Contents:
    """The steps in order, and the tensor behind every output of the network."""

    steps: tuple[ProgramPart, ...]
    results: Mapping[str, str]

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Contents:
        """The steps and outputs in a manifest. Raises ArtefactError (E502) if npuc did not write it."""
        steps = read(tuple[ProgramPart, ...], manifest.get("steps"), "steps")
        for number, step in enumerate(steps):
            if step.kind not in (NPU, HOST):
                raise damage_error(f"steps[{number}] is of kind '{step.kind}'", f"{NPU}, {HOST}")
        return cls(steps, read(Mapping[str, str], manifest.get(GIVEN_BY), GIVEN_BY))

    @property
    def parts(self) -> tuple[ProgramPart, ...]:
        """The NPU steps."""
        return tuple(step for step in self.steps if step.kind == NPU)

    def as_json(self) -> dict[str, Any]:
        """The entries of the manifest."""
        return {"steps": [asdict(step) for step in self.steps], GIVEN_BY: dict(self.results)}


def is_composite(program: Program) -> bool:
    """Whether a program consists of parts."""
    return GIVEN_BY in program.manifest


def of_host_alone(program: Program) -> frozenset[str]:
    """The inputs of a program that only host regions read."""
    if not is_composite(program):
        return frozenset()
    read = {name for part in Contents.of(program.manifest).parts for name in part.inputs}
    return frozenset(port.name for port in program.inputs) - read


def part_path(number: int) -> str:
    """The folder of an NPU part."""
    return f"npu/part_{number}"


def region_path(number: int) -> str:
    """The file of a host region."""
    return f"host/region_{number}.onnx"


def embed_part(path: str, part: Program) -> tuple[Files, Files]:
    """The files and the evidence of a part, under their paths in the whole program."""
    manifest = sealed(part.manifest, Files(contents_of(part.files, part.evidence)))
    files = contents_of({MANIFEST: manifest}, part.files)
    return (
        Files({f"{path}/{name}": data for name, data in files.items()}),
        Files({f"{path}/{name}": data for name, data in contents_of(part.evidence).items()}),
    )


def part_of(program: Program, path: str) -> Program:
    """A part as a program of its own. Raises ArtefactError (E502) if it is missing or damaged."""
    name = f"{path}/{MANIFEST}"
    try:
        manifest = json.loads(program.files[name])
    except KeyError:
        raise ArtefactError("E502", f"'{name}' is missing") from None
    except (ValueError, RecursionError):
        raise damage_error("it is not JSON", file=f"'{name}'") from None
    if not isinstance(manifest, dict) or GIVEN_BY in manifest:
        raise damage_error("it is not the manifest of a part", file=f"'{name}'")
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


def host_model(path: str, data: bytes) -> onnx.ModelProto:
    """The ONNX model of a host region. Raises ArtefactError (E502) if it is none."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ArtefactError("E502", f"'{path}': it is not an ONNX model") from None
