"""Hardware operations: what one programming of NVDLA's blocks does, addresses included.

The firmware's word for a layer that the hardware runs at once: a convolution with SDP behind it, SDP alone on a
map in memory, PDP, CDP, RUBIK, or BDMA. Everything here is what registers hold; emission writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from npuc.targets.nvdla.arithmetic.attributes import IDENTITY
from npuc.targets.nvdla.arithmetic.integer import Stage
from npuc.targets.nvdla.formats.pixels import FORMATS
from npuc.targets.nvdla.formats.winograd import extended_extent
from npuc.targets.nvdla.machine.parameters import BYTES
from npuc.targets.nvdla.operations.weight_form import DIRECT, WeightForm


@dataclass(frozen=True)
class Surface:
    """A feature cube in memory: extents in elements, address and strides in bytes."""

    address: int
    width: int
    height: int
    channels: int
    line_stride: int
    surface_stride: int
    precision: str = "int8"
    pixels: str = ""
    """The format of an image's pixels (table 33); empty for a feature cube."""

    def share(self, batches: int) -> Surface:
        """The first of so many cubes of equal height that lie one under another."""
        return replace(self, height=self.height // batches)

    def atoms(self, atom_bytes: int) -> int:
        """Atoms of a pixel: the surfaces of the cube; an image is one surface."""
        return 1 if self.pixels else -(-self.channels * BYTES[self.precision] // atom_bytes)

    def line_bytes(self, atom_bytes: int) -> int:
        """Bytes that are read of a line of a surface: whole atoms."""
        if not self.pixels:
            return self.width * atom_bytes
        return -(-self.width * FORMATS[self.pixels].planes[0].pixel_bytes // atom_bytes) * atom_bytes


@dataclass(frozen=True)
class Fetch:
    """An operand that SDP_RDMA brings: which components, how many bytes each, where."""

    use: str
    """MUL, ALU or BOTH (pairs)."""
    component_bytes: int
    address: int
    per_element: bool = False
    line_stride: int = 0
    surface_stride: int = 0
    computed: bool = False
    """It is a map that another operation writes, not a constant."""


@dataclass(frozen=True)
class Unit:
    """X1 (BS) or X2 (BN): the stage, its operands in registers, and what is fetched."""

    stage: Stage
    alu: int | None = None
    """The adder's operand, if it stands in a register."""
    multiplier: int | None = None
    fetch: Fetch | None = None


@dataclass(frozen=True)
class Ramp:
    """A linear table of EW or CDP as registers hold it."""

    entries: tuple[int, ...]
    """16 bits each."""
    start: int
    """An integer, or the bits of a float32; so is `end`."""
    end: int
    select: int
    """The binary logarithm of the step from entry to entry."""
    slope: int = 0
    """Behind the end: an integer or the bits of an fp16; before the start it is 0."""
    shift: int = 0
    """Right shift behind an integer slope."""


@dataclass(frozen=True)
class Tables:
    """The tables of EW or CDP; LE, where there is one, comes first."""

    lo: Ramp
    le: Ramp | None = None


@dataclass(frozen=True)
class Sdp:
    """What SDP does to every element."""

    x1: Unit
    x2: Unit
    converter: tuple[int, int, int] = IDENTITY
    table: Tables | None = None


@dataclass(frozen=True)
class Mask:
    """The other surfaces of compressed weights: a bit an element (WMB), and the bytes of every group (WGS)."""

    address: int
    bytes: int
    sizes_address: int
    sizes_bytes: int


@dataclass(frozen=True)
class Kernels:
    """The weights of a convolution: where they lie, and their geometry after any extension."""

    address: int
    bytes: int
    """Of the surface, padded."""
    count: int
    height: int
    width: int
    channels: int
    kernel_bytes: int
    """Of a kernel that is not compressed."""
    form: WeightForm = DIRECT
    mask: Mask | None = None
    copied: bool = False
    """Whether they lie where BDMA puts them."""

    @property
    def moved_bytes(self) -> int:
        """What is fetched of all surfaces."""
        return self.bytes + (self.mask.bytes + self.mask.sizes_bytes if self.mask else 0)


@dataclass(frozen=True)
class KernelWindow:
    """How the kernel moves: strides, dilations (1 = none) and padding, and the integer that lies there."""

    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    top: int
    left: int
    bottom: int
    right: int
    value: int = 0


@dataclass(frozen=True)
class Banks:
    """How a convolution uses the CBUF."""

    entries_per_slice: int
    data: int
    weights: int
    mask: int = 0
    """The last bank, where weights are compressed."""
    least: tuple[int, int] = field(default=(0, 0), compare=False)
    """Banks that data needs, and weights with their mask: what remains is given to one of them."""

    @property
    def beside_data(self) -> int:
        """Banks that hold no input."""
        return self.weights + self.mask


@dataclass(frozen=True)
class Pooling:
    """PDP on a map in memory, or on what SDP gives: then only the extents of the source count."""

    source: Surface
    method: str
    """MAX or AVERAGE."""
    kernel: tuple[int, int]
    """Height and width."""
    window: KernelWindow
    reciprocals: tuple[int, int]
    """Of width and height, with 16 fractional bits."""
    destination: Surface


@dataclass(frozen=True)
class Convolution:
    """CDMA, CSC, CMAC and CACC, with SDP behind them, and perhaps PDP behind that."""

    source: Surface
    kernels: Kernels
    window: KernelWindow
    banks: Banks
    sdp: Sdp
    destination: Surface
    """Of SDP; nothing lies there where PDP takes it."""
    pooling: Pooling | None = None
    truncate: int = 0
    """Right shift of the sums (CLIP_TRUNCATE)."""
    pra_truncate: int = 0
    """Right shift of data that Winograd has transformed."""
    batches: int = 1
    """Cubes one under another, in source and destination, of which multi-batch mode convolves each alone."""

    @property
    def data_extents(self) -> tuple[int, int]:
        """Width and height of the data as CSC sees it: Winograd's is padded, and its strides are channels."""
        if self.kernels.form.kind != "winograd":
            return self.source.width, self.source.share(self.batches).height
        return extended_extent(self.destination.width), extended_extent(self.destination.height)


@dataclass(frozen=True)
class Elementwise:
    """SDP on a map in memory, and perhaps PDP behind it."""

    source: Surface
    sdp: Sdp
    destination: Surface
    pooling: Pooling | None = None


@dataclass(frozen=True)
class Normalisation:
    """CDP on a map in memory: local response normalisation."""

    source: Surface
    size: int
    """Channels whose squares are added: 3, 5, 7 or 9."""
    zero: int
    """The zero point of the input."""
    tables: Tables
    """LE and LO of the sum of squares."""
    converter: tuple[int, int, int]
    """Offset, scale and shift of the output converter."""
    destination: Surface


@dataclass(frozen=True)
class Contraction:
    """RUBIK: the columns of several maps in turns."""

    source: Surface
    """All maps, each from a surface on: the channels are those of all their surfaces."""
    step: int
    """How many maps there are."""
    destination: Surface


@dataclass(frozen=True)
class Transfer:
    """BDMA: bytes from one memory to the other, as cubes of one line of atoms."""

    source: Surface
    destination: Surface


Operation = Convolution | Elementwise | Pooling | Normalisation | Contraction | Transfer


def written(operation: Operation) -> Surface:
    """What an operation leaves in memory."""
    flying = operation.pooling if isinstance(operation, Convolution | Elementwise) else None
    return flying.destination if flying else operation.destination
