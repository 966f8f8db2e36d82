"""Common descriptors: the task's description, an operation's place in the dependency graph, cubes, windows.

Source: The loadable (facts), Structures.
"""

from __future__ import annotations

from dataclasses import field

from npuc.frozen import frozen
from npuc.targets.nvdla.loadable.structures import number, numbers, unused

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
class Network:
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
    reserved: tuple[int, ...] = unused(3)
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
class Cube:
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
