"""Hardware operations: what one programming of NVDLA's blocks does, addresses included.

An operation is what the firmware calls a layer that the hardware runs at once: a convolution with SDP behind it,
SDP alone on a map in memory, PDP, CDP, RUBIK, or BDMA. It holds the contents of the registers; emission writes
them.
"""

from __future__ import annotations

from dataclasses import field, replace

from npuc.frozen import frozen
from npuc.targets.nvdla.arithmetic.integer import IDENTITY, SdpStage
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.formats.pixels import FORMATS, Conversion
from npuc.targets.nvdla.formats.weights import DIRECT, WeightForm, extended_extent
from npuc.targets.nvdla.machine.parameters import BYTES


@frozen
class Surface:
    """A feature cube in memory: extents in elements, address and strides in bytes."""

    address: int
    width: int
    height: int
    channels: int
    line_stride: int
    surface_stride: int
    """Of an image in two planes: from the first one to the second."""
    precision: str = "int8"
    pixels: str = ""
    """The format of an image's pixels (table 33); empty for a feature cube."""
    conversion: Conversion | None = None
    """Of a frame's pixels; others are signed and pass unchanged."""

    def share(self, batches: int) -> Surface:
        """One of `batches` cubes of equal height that are stored one below another."""
        return self if batches == 1 else replace(self, height=self.height // batches)

    def atoms(self, atom_bytes: int) -> int:
        """Atoms of a pixel, which is the number of surfaces; for an image that of its planes."""
        return (
            len(FORMATS[self.pixels].planes)
            if self.pixels
            else -(-self.channels * BYTES[self.precision] // atom_bytes)
        )

    def line_bytes(self, atom_bytes: int) -> int:
        """Bytes read for a line of a surface: whole atoms; of an image in two planes of the wider one."""
        return max(self.plane_lines(atom_bytes)) if self.pixels else self.width * atom_bytes

    def plane_lines(self, atom_bytes: int) -> list[int]:
        """Bytes read for a line of each plane of an image: whole atoms."""
        return [align(self.width * plane.pixel_bytes, atom_bytes) for plane in FORMATS[self.pixels].planes]


@frozen
class Fetch:
    """An operand that SDP_RDMA fetches: which components, their size, and the address."""

    use: str
    """MUL, ALU or BOTH (pairs)."""
    component_bytes: int
    address: int
    per_element: bool = False
    line_stride: int = 0
    surface_stride: int = 0
    computed: bool = False
    """Whether it is a map that another operation writes, not a constant."""


@frozen
class Unit:
    """X1 (BS) or X2 (BN): the stage, its operands in registers, and the operand fetched from memory."""

    stage: SdpStage
    alu: int | None = None
    """The adder's operand, if it is kept in a register."""
    multiplier: int | None = None
    fetch: Fetch | None = None


@frozen
class Ramp:
    """A linear table of EW or CDP as registers represent it."""

    entries: tuple[int, ...]
    """16 bits each."""
    start: int
    """An integer, or the bits of a float32; so is `end`."""
    end: int
    select: int
    """The binary logarithm of the distance between entries."""
    slope: int = 0
    """The slope beyond the end, an integer or the bits of an fp16; before the start it is 0."""
    shift: int = 0
    """Right shift of an integer slope."""


@frozen
class OperationTables:
    """The tables of EW or CDP; LE, if present, takes precedence."""

    lo: Ramp
    le: Ramp | None = None


@frozen
class Sdp:
    """The settings of SDP for every element."""

    x1: Unit
    x2: Unit
    converter: tuple[int, int, int] = IDENTITY
    table: OperationTables | None = None


@frozen
class Mask:
    """The other surfaces of compressed weights: one bit per element (WMB), and bytes per group (WGS)."""

    address: int
    bytes: int
    sizes_address: int
    sizes_bytes: int


@frozen
class Kernels:
    """The weights of a convolution: their place in memory, and their geometry after any extension."""

    address: int
    bytes: int
    """Size of the surface, padded."""
    count: int
    height: int
    width: int
    channels: int
    kernel_bytes: int
    """Size of an uncompressed kernel."""
    form: WeightForm = DIRECT
    mask: Mask | None = None
    copied: bool = False
    """Whether they are at an address to which BDMA copies them."""

    @property
    def moved_bytes(self) -> int:
        """Bytes fetched from all surfaces."""
        return self.bytes + (self.mask.bytes + self.mask.sizes_bytes if self.mask else 0)


@frozen
class KernelWindow:
    """The movement of the kernel: strides, dilations (1 = none), padding, and the integer used for padding."""

    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    top: int
    left: int
    bottom: int
    right: int
    value: int = 0


@frozen
class Banks:
    """How a convolution uses the CBUF."""

    entries_per_slice: int
    data: int
    weights: int
    mask: int = 0
    """The last bank, if weights are compressed."""
    least: tuple[int, int] = field(default=(0, 0), compare=False)
    """Banks that data needs, and that weights with their mask need; one of the two gets the rest."""


@frozen
class Pooling:
    """PDP on a map in memory, or on SDP's output, where only the extents of the source matter."""

    source: Surface
    method: str
    """MAX or AVERAGE."""
    kernel: tuple[int, int]
    """Height and width."""
    window: KernelWindow
    reciprocals: tuple[int, int]
    """Of width and height, with 16 fractional bits."""
    destination: Surface


@frozen
class Convolution:
    """CDMA, CSC, CMAC and CACC, followed by SDP and optionally PDP."""

    source: Surface
    kernels: Kernels
    window: KernelWindow
    banks: Banks
    sdp: Sdp
    destination: Surface
    """Of SDP; nothing is written there if PDP takes the output."""
    pooling: Pooling | None = None
    truncate: int = 0
    """Right shift of the sums (CLIP_TRUNCATE)."""
    pra_truncate: int = 0
    """Right shift of data transformed by Winograd."""
    batches: int = 1
    """Cubes stored one below another in source and destination; multi-batch mode convolves each by itself."""

    @property
    def data_extents(self) -> tuple[int, int]:
        """Width and height of the data as CSC sees it: for Winograd padded, with strides turned into channels."""
        if self.kernels.form.kind != "winograd":
            return self.source.width, self.source.share(self.batches).height
        return extended_extent(self.destination.width), extended_extent(self.destination.height)


@frozen
class Elementwise:
    """SDP on a map in memory, optionally followed by PDP."""

    source: Surface
    sdp: Sdp
    destination: Surface
    pooling: Pooling | None = None


@frozen
class Normalisation:
    """CDP on a map in memory: local response normalisation."""

    source: Surface
    size: int
    """Channels in the sum of squares: 3, 5, 7 or 9."""
    zero: int
    """The zero point of the input."""
    tables: OperationTables
    """LE and LO of the sum of squares."""
    converter: tuple[int, int, int]
    """Offset, scale and shift of the output converter."""
    destination: Surface


@frozen
class Contraction:
    """RUBIK: interleaves the columns of several maps."""

    source: Surface
    """All maps, each starting with a new surface; the channels count those of all their surfaces."""
    step: int
    """The number of maps."""
    destination: Surface


@frozen
class Transfer:
    """BDMA: a copy from one memory to the other, as cubes of one line of atoms."""

    source: Surface
    destination: Surface


Operation = Convolution | Elementwise | Pooling | Normalisation | Contraction | Transfer


def result_surface(operation: Operation) -> Surface:
    """The surface that an operation writes to memory."""
    flying = operation.pooling if isinstance(operation, Convolution | Elementwise) else None
    return flying.destination if flying else operation.destination
