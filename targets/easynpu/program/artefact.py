"""The steps that a host takes to run an EasyNPU program, which the artefact stores beside words and images.

A program is an ordered list of steps. A host step computes one operator on host tensors; a segment loads words and
tensors into the memories, runs a range of the instruction memory, and stores tensors. The manifest stores the
types here as they are; the simulator, which has no other input, checks them as it reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.step import HostStep, steps_of
from npuc.ir import Array
from npuc.storage.records import damage_error, read, recorded_machine
from npuc.targets.easynpu.machine.isa import MEMORIES, WORD_BYTES
from npuc.targets.easynpu.machine.memory import Map, MapPlace, groups
from npuc.targets.easynpu.machine.parameters import Machine

LARGEST = 1 << 28
"""The most elements of a tensor; the field widths of a layer word allow 2^24."""

IMAGES = {"itcm": "itcm.bin", "weight": "weight.bin"}
"""The image file of each memory."""


@frozen
class ImageLoad:
    """A load of `words` words from word `start` of a file to word `address` of a memory."""

    memory: str
    address: int
    file: str
    start: int
    words: int

    @property
    def possible(self) -> bool:
        """Whether the file is the memory's image and no number is negative."""
        return self.file == IMAGES.get(self.memory) and min(self.start, self.words, self.address) >= 0

    def data(self, files: Mapping[str, bytes], machine: Machine) -> bytes:
        """The bytes of the words. Raises ArtefactError (E503) where file or memory is too small for them."""
        first, last = WORD_BYTES * self.start, WORD_BYTES * (self.start + self.words)
        found = files.get(self.file, b"")[first:last]
        if len(found) != last - first or self.address + self.words > machine.capacity_words(self.memory):
            raise ArtefactError("E503", f"{self.words} words of {self.file} do not fit the {self.memory} memory")
        return found


@frozen
class TensorMove:
    """A transfer of a feature map, or a window of one, between an int8 host tensor and its place in a DTCM."""

    tensor: str
    shape: tuple[int, ...]
    """Shape of the whole host tensor: (1, C), (1, C, H, W), or with further extents of 1."""
    place: MapPlace
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

    @property
    def words(self) -> int:
        """DTCM words that it moves."""
        return groups(self.channels) * self.height * self.width

    @property
    def map(self) -> Map:
        """The DTCM words that it comes from or goes to."""
        return Map(self.place, self.height, self.width, groups(self.channels))

    @property
    def possible(self) -> bool:
        """Whether the map is a window of the tensor, in a memory for maps."""
        tensor = len(self.shape) > 1 and min(self.shape) > 0 and prod(self.shape) == prod(self.map_shape)
        parts = zip(self.window[1:], self.map_shape, strict=True) if tensor else ()
        inside = all(0 <= part.start < part.stop <= extent for part, extent in parts)
        return tensor and inside and prod(self.shape) <= LARGEST and self.place.memory in MEMORIES

    def whole(self, tensors: Mapping[str, Array]) -> Array:
        """The whole host tensor, of which the map is a window: a view (samples, C, H, W).

        Raises ArtefactError (E502) where there is no such tensor.
        """
        found = tensors.get(self.tensor)
        if found is None or found.dtype != np.int8 or found[0].size != prod(self.map_shape):
            raise damage_error(f"no tensor for {self}")
        return found.reshape(len(found), *self.map_shape)


@frozen
class Segment:
    """Load, run `count` instruction words from ITCM address 0, store. Each run starts at the low end."""

    images: tuple[ImageLoad, ...]
    loads: tuple[TensorMove, ...]
    count: int
    stores: tuple[TensorMove, ...]


Step = HostStep | Segment


@frozen
class Produced:
    """The origin of an instruction word: its ONNX nodes, and the part of an int8 tensor that it produces."""

    nodes: tuple[str, ...]
    tensor: str | None
    shape: tuple[int, ...] | None
    start: tuple[int, int, int]
    unused_rows: int = 0
    """The first rows of the word's result that are no part of the tensor."""


@frozen
class Contents:
    """What the simulator reads from a manifest."""

    steps: tuple[Step, ...]
    """Of every inference."""
    instructions: tuple[Produced, ...]
    machine: Machine
    init: Segment
    """Loads images before the first inference, which stay; it runs no words."""

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Contents:
        """The contents of a manifest. Raises ArtefactError (E502) where npuc cannot have written it."""
        machine = recorded_machine(manifest, Machine.of)
        init = Segment(read(tuple[ImageLoad, ...], manifest.get("init", []), "init"), (), 0, ())
        steps = steps_of(manifest, Segment)
        for where, step in (("init", init), *((f"steps[{number}]", step) for number, step in enumerate(steps))):
            for each in (*step.images, *step.loads, *step.stores) if isinstance(step, Segment) else ():
                if not each.possible:
                    raise damage_error(f"{where} has {each}")
        table = read(tuple[Produced, ...], manifest.get("instructions"), "instructions")
        return cls(steps, _table(table), machine, init)

    @property
    def segments(self) -> list[Segment]:
        """The steps that run on the machine."""
        return [step for step in self.steps if isinstance(step, Segment)]

    def produced(self, number: int) -> Produced:
        """The origin of an instruction word. Raises ArtefactError (E502) where the manifest has none."""
        if number >= len(self.instructions):
            raise damage_error(f"instructions[{number}] is missing")
        return self.instructions[number]


def _table(entries: tuple[Produced, ...]) -> tuple[Produced, ...]:
    """The instruction table. Raises ArtefactError (E502) for a tensor with an impossible shape, or with two."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, entry in enumerate(entries):
        if entry.tensor is None:
            continue
        shape = tuple(entry.shape or ())
        possible = 2 <= len(shape) <= 4 and shape[0] == 1 and min(shape) > 0 and prod(shape) <= LARGEST
        possible &= entry.unused_rows >= 0
        if not possible or shapes.setdefault(entry.tensor, shape) != shape:
            raise damage_error(f"instructions[{number}].shape is {list(shape)}", tensor=entry.tensor)
    return entries
