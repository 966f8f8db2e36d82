"""Steps of a program as its manifest records them: those of the host, and segments in the form of a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Port
from npuc.storage.records import damaged, read

Segment = TypeVar("Segment")
HOST, SEGMENT = "host", "segment"


@frozen
class _Kind:
    """The field that distinguishes the kinds of steps."""

    kind: str


def as_json(step: Any) -> dict[str, Any]:
    """A step, which is a dataclass, as an entry of the manifest."""
    return {"kind": HOST if isinstance(step, HostStep) else SEGMENT, **asdict(step)}


def steps_of(manifest: Mapping[str, Any], segment: type[Segment]) -> tuple[HostStep | Segment, ...]:
    """The steps in order. segment: the target's type. Raises ArtefactError (E502) for a malformed entry."""
    entries = enumerate(read(tuple[Any, ...], manifest.get("steps"), "steps"))
    return tuple(_step(entry, f"steps[{number}]", segment) for number, entry in entries)


def _step(entry: Any, where: str, segment: type[Segment]) -> HostStep | Segment:
    kind = read(_Kind, entry, where).kind
    if kind not in (HOST, SEGMENT):
        raise damaged(f"{where} is of kind '{kind}'", f"{HOST}, {SEGMENT}")
    return read(HostStep, entry, where) if kind == HOST else read(segment, entry, where)


def computing(steps: Iterable[object]) -> list[HostStep]:
    """The host steps that do more than convert an input or an output."""
    return [step for step in steps if isinstance(step, HostStep) and not step.conversion]


def reported(steps: Iterable[object]) -> list[dict[str, str]]:
    """The same as a compile report lists them."""
    return [{"node": step.node, "op": step.op, "reason": step.reason} for step in computing(steps)]


def outputs_among(tensors: Mapping[str, Array], ports: Sequence[Port]) -> dict[str, Array]:
    """A program's outputs among the tensors of its steps. Raises ArtefactError (E502) if one is missing."""
    for port in ports:
        if port.name not in tensors:
            raise ungiven(port.name)
    return {port.name: tensors[port.name] for port in ports}


def ungiven(output: str) -> ArtefactError:
    """The error for an output that no step computes."""
    return damaged("no step gives this output", tensor=output)
