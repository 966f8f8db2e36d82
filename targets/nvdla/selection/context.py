"""What selection knows beside the node: where tensors lie, and the image of weights and operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npuc.ir import Graph
from npuc.targets.nvdla.formats.alignment import aligned, alignment
from npuc.targets.nvdla.formats.pixels import FORMATS
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.operations import (
    Surface,
)
from npuc.targets.nvdla.surfaces import View


@dataclass
class Constants:
    """The image of weights and operands; equal blobs are stored once."""

    machine: Machine
    base: int
    image: bytearray = field(default_factory=bytearray)
    known: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def add(self, form: str, data: bytes) -> int:
        """The address of a blob, aligned as table 35 has its format."""
        if data not in self.known:
            start = aligned(len(self.image), alignment(form, "start", self.machine.atom_bytes))
            self.image += bytes(start - len(self.image)) + data
            self.known[data] = self.base + start
        return self.known[data]


@dataclass(frozen=True)
class Placed:
    """A tensor's view and the address of its buffer."""

    view: View
    base: int

    def surface(
        self, *, lanes: int | None = None, first_surface: int = 0, row: int = 0, rows: int | None = None
    ) -> Surface:
        """The tensor, or some of its surfaces and rows, as registers describe it."""
        view, held = self.view, self.view.buffer
        return Surface(
            self.base + view.window(first_surface, row),
            view.width,
            view.height if rows is None else rows,
            FORMATS[held.pixels].channels if held.pixels else view.extent if lanes is None else lanes,
            held.line_stride,
            0 if held.pixels else held.surface_stride,
            held.precision,
            held.pixels,
        )


@dataclass(frozen=True)
class Context:
    """The integer graph, the machine, where tensors lie, and the constants so far."""

    graph: Graph
    machine: Machine
    placed: Mapping[str, Placed]
    constants: Constants
