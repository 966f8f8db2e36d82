"""What an EasyNPU program is beside its words and images: the steps a host takes to run it.

A program is a list of steps, in order. A host step computes one operator on host tensors; a segment loads words
and tensors into the memories, runs a range of the instruction memory, and stores tensors. The types here are
written to the manifest as they are and read back by the simulator, which sees nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from npuc.host import HostStep
from npuc.targets.easynpu.memory import Place


@dataclass(frozen=True)
class ImageLoad:
    """Words of a file to a memory: `words` words from word `start` of the file to word `address`."""

    memory: str
    address: int
    file: str
    start: int
    words: int


@dataclass(frozen=True)
class TensorMove:
    """A feature map between a host tensor (1, C, H, W) int8 and its place in a DTCM."""

    tensor: str
    place: Place
    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class Segment:
    """Load, run `count` instruction words from ITCM address 0, store. Every run starts at the low end."""

    images: tuple[ImageLoad, ...]
    loads: tuple[TensorMove, ...]
    count: int
    stores: tuple[TensorMove, ...]


Step = HostStep | Segment


def step_to_json(step: Step) -> dict[str, Any]:
    """A step as the manifest has it."""
    kind = "host" if isinstance(step, HostStep) else "segment"
    return {"kind": kind, **asdict(step)}


def step_from_json(entry: Mapping[str, Any]) -> Step:
    """The step of a manifest entry. Raises KeyError or TypeError for a malformed one."""
    values = {key: value for key, value in entry.items() if key != "kind"}
    if entry["kind"] == "host":
        return HostStep.from_json(values)
    moves = {key: tuple(_move(each) for each in values[key]) for key in ("loads", "stores")}
    return Segment(tuple(ImageLoad(**each) for each in values["images"]), moves["loads"], values["count"], moves["stores"])


def _move(entry: Mapping[str, Any]) -> TensorMove:
    return TensorMove(**{**entry, "place": Place(**entry["place"])})
