"""Operations of the convolution pipeline."""

from __future__ import annotations

from dataclasses import field

from npuc.frozen import frozen
from npuc.targets.nvdla.loadable.descriptors.common import FEATURE_FORMAT, Converter, Cube, WindowFields
from npuc.targets.nvdla.loadable.structures import number, numbers, unused


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
    reserved_roi: tuple[int, ...] = unused(8)
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
    reserved_dilation: tuple[int, ...] = unused(2)
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

    weight: Cube = field(default_factory=Cube)
    mask: Cube = field(default_factory=Cube)
    group_sizes: Cube = field(default_factory=Cube)
    source: Cube = field(default_factory=Cube)
    result: Cube = field(default_factory=Cube)
    second_plane_offset: int = number("q")
    second_plane_stride: int = number("I")
