"""What selection needs besides the node: the placement of tensors, and the image of weights and operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.targets.nvdla.formats.alignment import aligned, alignment
from npuc.targets.nvdla.formats.pixels import FORMATS
from npuc.targets.nvdla.formats.weights import DIRECT, WeightForm
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations.operation import Kernels, Sdp, Surface
from npuc.targets.nvdla.operations.surfaces import BufferView
from npuc.targets.nvdla.operations.tiling import Geometry

if TYPE_CHECKING:
    from npuc.targets.nvdla.selection.parts import ConvolutionPart


KernelKey = tuple[str, int, int, WeightForm]
"""The key of a pass's weights: name of the result, first lane, number of lanes, weight form."""


@dataclass
class Constants:
    """The image of weights and operands; equal blobs are stored once."""

    machine: Machine
    base: int
    image: bytearray = field(default_factory=bytearray)
    known: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """The address of each blob by its digest."""
    kernels: dict[KernelKey, Kernels] = field(default_factory=dict[KernelKey, Kernels])
    """Weights that are stored already."""
    sdps: dict[tuple[str, int, int], Sdp] = field(default_factory=dict["tuple[str, int, int]", "Sdp"])
    """SDP settings that are the same for every tile, by result, first lane and number of lanes."""
    counted: bool = False
    """Only count sizes, for costing: the image stays empty and every address is 0."""

    def add(self, form: str, data: bytes) -> int:
        """The address of a blob, stored once and aligned as table 35 demands for its format."""
        if self.counted:
            return 0
        digest = blake2b(data).digest()
        if digest not in self.known:
            start = aligned(len(self.image), alignment(form, "start", self.machine.atom_bytes))
            self.image += bytes(start - len(self.image))
            self.image += data
            self.known[digest] = self.base + start
        return self.known[digest]


@frozen
class Placed:
    """A tensor's view and the address of its buffer."""

    view: BufferView
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
            held.atom_bytes if (view.width, rows or view.height) == (1, 1) else view.line_stride,
            0 if held.pixels and held.surfaces == 1 else held.surface_stride,
            held.precision,
            held.pixels,
            held.conversion,
        )


@frozen
class Context:
    """The integer graph, the machine, the placement of tensors, and the constants so far."""

    graph: Graph
    machine: Machine
    placed: Mapping[str, Placed]
    constants: Constants
    data_banks: int = 0
    """CBUF banks preferred for data; 0 for half of them."""
    passes: dict[str, list[ConvolutionPart]] = field(default_factory=dict["str", "list[ConvolutionPart]"])
    """Passes of the convolutions seen so far, by result."""
    shapes: dict[tuple[str, ConvolutionPart, WeightForm], Geometry] = field(
        default_factory=dict["tuple[str, ConvolutionPart, WeightForm]", "Geometry"]
    )
    """The geometry of each pass, by result, pass and weight form."""
    copied: Mapping[KernelKey, int] = field(default_factory=dict[KernelKey, int])
    """Addresses in the second memory to which BDMA copies weights."""
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict[str, "Sequence[Piece]"])
    """The weight copies scheduled behind each layer, by layer name."""

    @property
    def preferred_banks(self) -> int:
        """CBUF banks preferred for data, the default resolved."""
        return self.data_banks or self.machine.cbuf_banks // 2


@frozen
class PlannedLayer:
    """A computed node, its weight form, and the pooling node fused behind SDP, if any."""

    node: Node
    form: WeightForm = DIRECT
    pool: Node | None = None

    @property
    def name(self) -> str:
        """The tensor that the layer writes to memory."""
        return (self.pool or self.node).output

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it computes."""
        return (self.node, self.pool) if self.pool else (self.node,)


@frozen
class Piece:
    """A piece of the weights of a layer's pass that one BDMA transfer copies: first byte and size."""

    layer: PlannedLayer
    part: ConvolutionPart
    first: int
    bytes: int
