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
    """A feature map, or a window of one, between a host tensor int8 and its place in a DTCM."""

    tensor: str
    shape: tuple[int, ...]
    """Of the whole host tensor: (1, C, H, W) or (1, C)."""
    place: Place
    channels: int
    height: int
    width: int
    start: tuple[int, int, int] = (0, 0, 0)
    """The window's first channel, row and column."""

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the whole host tensor."""
        channels, height, width = (*self.shape[1:], 1, 1)[:3]
        return channels, height, width

    @property
    def window(self) -> tuple[slice, slice, slice, slice]:
        """The window as an index into (samples, C, H, W)."""
        size = zip(self.start, (self.channels, self.height, self.width), strict=True)
        channels, rows, columns = (slice(first, first + extent) for first, extent in size)
        return slice(None), channels, rows, columns


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
    lists = {key: tuple(entry[key]) for key in ("shape", "start")}
    return TensorMove(**{**entry, **lists, "place": Place(**entry["place"])})
