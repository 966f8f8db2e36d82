"""The descriptors that NVDLA's firmware reads: network, dependency graph, operations, surfaces, look-up tables.

Field by field as in firmware 0.12.5; 4-byte alignment, little endian.

Source: The loadable (facts), checked against three loadables of NVDLA's own compiler.
"""

from __future__ import annotations

from dataclasses import field

from npuc.frozen import frozen
from npuc.targets.nvdla.firmware.structures import number, numbers, unused_bytes

BDMA, CONV, SDP, PDP, CDP, RUBIK = range(6)
ENGINES = ("BDMA", "CONV", "SDP", "PDP", "CDP", "RUBIK")
NONE = -1
"""No operation, no address, no table."""
COMPLETED, PROGRAMMED, ENABLED = 1, 2, 3
"""Events of an operation that another one may depend on."""
DRAM, SRAM, HARDWARE = 0, 1, 2
"""The place of a cube; HARDWARE: in the pipe between two engines."""
OPERATION_BYTES, SURFACE_BYTES = 116, 644
"""Strides of the operation and surface lists."""
FEATURE_FORMAT = 36


@frozen(kw_only=True)
class NetworkDescriptor:
    """The task: indices of its lists, and the first operation of each engine."""

    operations: int = number("h", NONE)
    """Indices into the task's address list."""
    surfaces: int = number("h", NONE)
    dependencies: int = number("h", NONE)
    luts: int = number("h", NONE)
    rois: int = number("h", NONE)
    roi_surface: int = number("h", NONE)
    stats: int = number("h", NONE)
    reserved: int = number("h")
    heads: tuple[int, ...] = numbers("h", 6)
    """The first operation by engine, or -1."""
    roi_count: int = number("H", 1)
    operation_count: int = number("H")
    lut_count: int = number("H")
    address_count: int = number("H")
    input_layer: int = number("h")
    dynamic_roi: int = number("B")
    reserved_end: int = number("B")


@frozen(kw_only=True)
class Consumer:
    """An operation that waits for an event of another."""

    index: int = number("h", NONE)
    event: int = number("B", COMPLETED)
    reserved: int = number("B")


@frozen(kw_only=True)
class Common:
    """The part common to all operations: the place in the dependency graph."""

    index: int = number("h")
    roi: int = number("b")
    engine: int = number("B")
    dependency_count: int = number("B")
    reserved: tuple[int, ...] = unused_bytes(3)
    bdma: Consumer = field(default_factory=Consumer)
    conv: Consumer = field(default_factory=Consumer)
    sdp: Consumer = field(default_factory=Consumer)
    pdp: Consumer = field(default_factory=Consumer)
    cdp: Consumer = field(default_factory=Consumer)
    rubik: Consumer = field(default_factory=Consumer)
    fused_parent: Consumer = field(default_factory=Consumer)
    """The operation whose result this one receives through the pipe, and which this one enables."""

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """By engine."""
        return self.bdma, self.conv, self.sdp, self.pdp, self.cdp, self.rubik


@frozen(kw_only=True)
class DataCube:
    """A data cube: its address by index and offset, extents in elements, strides in bytes."""

    type: int = number("H")
    address: int = number("h")
    offset: int = number("I")
    size: int = number("I")
    width: int = number("H")
    height: int = number("H")
    channels: int = number("H")
    reserved: int = number("H")
    line_stride: int = number("I")
    surface_stride: int = number("I")
    plane_stride: int = number("I")


@frozen(kw_only=True)
class Converter:
    """(x - offset) * scale >> truncate."""

    scale: int = number("h")
    truncate: int = number("B")
    enable: int = number("B")
    offset: int = number("i")


@frozen(kw_only=True)
class WindowFields:
    """How a kernel moves: strides in elements, and padding."""

    stride_x: int = number("B", 1)
    stride_y: int = number("B", 1)
    pad_left: int = number("B")
    pad_right: int = number("B")
    pad_top: int = number("B")
    pad_bottom: int = number("B")


@frozen(kw_only=True)
class Convolution:
    """An operation of the convolution pipeline."""

    mode: int = number("B")
    """0 direct, 1 Winograd."""
    data_reuse: int = number("B")
    weight_reuse: int = number("B")
    skip_data_release: int = number("B")
    skip_weight_release: int = number("B")
    reserved_mode: int = number("B")
    entries_per_slice: int = number("H")
    data_format: int = number("B", FEATURE_FORMAT)
    """Table 33's order; 36: feature data."""
    pixel_mapping: int = number("B")
    fetch_grain: int = number("H", 1)
    reserved_roi: tuple[int, ...] = unused_bytes(8)
    batch: int = number("B", 1)
    weight_format: int = number("B")
    """1: compressed."""
    data_bank: int = number("B")
    weight_bank: int = number("B")
    batch_stride: int = number("I")
    post_extension: int = number("B")
    pixel_override: int = number("B", 1)
    release: int = number("H")
    csc_width: int = number("H")
    csc_height: int = number("H")
    csc_channels: int = number("H")
    kernel_width: int = number("H")
    kernel_height: int = number("H")
    kernel_channels: int = number("H")
    cmac_width: int = number("H")
    """The output's size, as CSC passes it to CMAC."""
    cmac_height: int = number("H")
    bytes_per_kernel: int = number("I")
    means: tuple[int, ...] = numbers("h", 4)
    mean_format: int = number("B")
    window: WindowFields = field(default_factory=WindowFields)
    dilation_x: int = number("B", 1)
    dilation_y: int = number("B", 1)
    reserved_dilation: tuple[int, ...] = unused_bytes(2)
    pra_truncate: int = number("B")
    in_precision: int = number("B")
    out_precision: int = number("B")
    pad_value: int = number("h")
    in_converter: Converter = field(default_factory=Converter)
    out_converter: Converter = field(default_factory=Converter)
    """Scale 1 and offset 0; truncate is that of CACC."""


@frozen(kw_only=True)
class ConvolutionSurfaces:
    """The cubes that a convolution reads, and the shape of its output."""

    weight: DataCube = field(default_factory=DataCube)
    mask: DataCube = field(default_factory=DataCube)
    group_sizes: DataCube = field(default_factory=DataCube)
    source: DataCube = field(default_factory=DataCube)
    result: DataCube = field(default_factory=DataCube)
    second_plane_offset: int = number("q")
    second_plane_stride: int = number("I")


@frozen(kw_only=True)
class Pdp:
    """An operation of PDP; partial widths first, middle, last."""

    partial_in: tuple[int, ...] = numbers("H", 3)
    partial_out: tuple[int, ...] = numbers("H", 3)
    splits: int = number("B", 1)
    method: int = number("B")
    """0 average, 1 maximum, 2 minimum."""
    kernel_width: int = number("B")
    """Minus one."""
    kernel_height: int = number("B")
    """Minus one."""
    window: WindowFields = field(default_factory=WindowFields)
    precision: int = number("B")
    reserved: int = number("B")
    pad_values: tuple[int, ...] = numbers("i", 7)


@frozen(kw_only=True)
class PlanarSurfaces:
    """The cubes that PDP, CDP or RUBIK reads and writes."""

    source: DataCube = field(default_factory=DataCube)
    result: DataCube = field(default_factory=DataCube)


@frozen(kw_only=True)
class Cdp:
    """An operation of CDP."""

    in_precision: int = number("B")
    out_precision: int = number("B")
    lut: int = number("h", NONE)
    in_converter: Converter = field(default_factory=Converter)
    out_converter: Converter = field(default_factory=Converter)
    local_size: int = number("B")
    """3, 5, 7 or 9."""
    bypass_sum: int = number("B")
    bypass_product: int = number("B")
    reserved: int = number("B")


@frozen(kw_only=True)
class Rubik:
    """An operation of RUBIK."""

    mode: int = number("B")
    """0 contract, 1 split, 2 merge."""
    precision: int = number("B")
    stride_x: int = number("B", 1)
    stride_y: int = number("B", 1)


@frozen(kw_only=True)
class Lut:
    """The tables LE and LO and their registers; offsets: the exponent, or the step's binary logarithm."""

    le: tuple[int, ...] = numbers("h", 65)
    lo: tuple[int, ...] = numbers("h", 257)
    le_offset: int = number("b")
    reserved_le: int = number("B")
    lo_offset: int = number("b")
    reserved_lo: int = number("B")
    le_start: int = number("Q")
    le_end: int = number("Q")
    lo_start: int = number("Q")
    lo_end: int = number("Q")
    le_below: tuple[int, ...] = numbers("h", 2)
    """Scale and shift of the slope; in fp16 the bits of the scale."""
    le_beyond: tuple[int, ...] = numbers("h", 2)
    lo_below: tuple[int, ...] = numbers("h", 2)
    lo_beyond: tuple[int, ...] = numbers("h", 2)
    hybrid_priority: int = number("B")
    underflow_priority: int = number("B")
    overflow_priority: int = number("B")
    method: int = number("B")
    """Of LE: 0 exponential, 1 linear."""


@frozen(kw_only=True)
class SdpUnit:
    """X1, X2 or Y of an SDP operation."""

    enable: int = number("B")
    alu: int = number("B")
    """0 max, 1 min, 2 sum, 3 equal."""
    use: int = number("B")
    """0 none, 1 multiply, 2 ALU, 3 both."""
    mode: int = number("B")
    """0 per layer, 1 per channel, 2 per element."""
    activation: int = number("B")
    """0 none, 1 ReLU, 2 look-up table, 3 PReLU."""
    shift: int = number("B")
    truncate: int = number("B")
    precision: int = number("B")
    """Of the operand: 0 one byte, otherwise two."""
    alu_operand: int = number("i")
    mul_operand: int = number("i")
    alu_converter: Converter = field(default_factory=Converter)
    mul_converter: Converter = field(default_factory=Converter)


@frozen(kw_only=True)
class Sdp:
    """An operation of SDP."""

    source_precision: int = number("B")
    result_precision: int = number("B")
    lut: int = number("h", NONE)
    out_converter: Converter = field(default_factory=Converter)
    conv_mode: int = number("B")
    batch: int = number("B", 1)
    reserved: int = number("H")
    batch_stride: int = number("I")
    x1: SdpUnit = field(default_factory=SdpUnit)
    x2: SdpUnit = field(default_factory=SdpUnit)
    y: SdpUnit = field(default_factory=SdpUnit)


@frozen(kw_only=True)
class SdpSurfaces:
    """The cubes that SDP reads and writes."""

    source: DataCube = field(default_factory=DataCube)
    x1: DataCube = field(default_factory=DataCube)
    x2: DataCube = field(default_factory=DataCube)
    y: DataCube = field(default_factory=DataCube)
    result: DataCube = field(default_factory=DataCube)


Operation = Convolution | Sdp | Pdp | Cdp | Rubik
OPERATIONS: dict[int, tuple[type[Operation], type]] = {
    CONV: (Convolution, ConvolutionSurfaces),
    SDP: (Sdp, SdpSurfaces),
    PDP: (Pdp, PlanarSurfaces),
    CDP: (Cdp, PlanarSurfaces),
    RUBIK: (Rubik, PlanarSurfaces),
}
"""Operation and surface descriptors by engine."""
