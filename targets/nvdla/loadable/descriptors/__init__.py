"""The descriptors that NVDLA's firmware reads: network, dependency graph, operations, surfaces, look-up tables.

Field by field as in firmware 0.12.5; 4-byte alignment, little endian.

Source: The loadable (facts), checked against three loadables of NVDLA's own compiler.
"""

from __future__ import annotations

from npuc.targets.nvdla.loadable.descriptors.common import (
    BDMA,
    CDP,
    COMPLETED,
    CONV,
    DRAM,
    ENABLED,
    ENGINES,
    FEATURE_FORMAT,
    HARDWARE,
    NONE,
    OPERATION_BYTES,
    PDP,
    PROGRAMMED,
    RUBIK,
    SDP,
    SRAM,
    SURFACE_BYTES,
    Common,
    Consumer,
    Converter,
    Cube,
    Network,
    WindowFields,
)  # fmt: skip
from npuc.targets.nvdla.loadable.descriptors.convolution import Convolution, ConvolutionSurfaces
from npuc.targets.nvdla.loadable.descriptors.planar import Cdp, Lut, Pdp, Rubik, Surfaces
from npuc.targets.nvdla.loadable.descriptors.sdp import Sdp, SdpSurfaces, SdpUnit

Operation = Convolution | Sdp | Pdp | Cdp | Rubik
OPERATIONS: dict[int, tuple[type[Operation], type]] = {
    CONV: (Convolution, ConvolutionSurfaces),
    SDP: (Sdp, SdpSurfaces),
    PDP: (Pdp, Surfaces),
    CDP: (Cdp, Surfaces),
    RUBIK: (Rubik, Surfaces),
}
"""Operation and surface descriptors by engine."""

__all__ = [
    "BDMA", "CDP", "COMPLETED", "CONV", "DRAM", "ENABLED", "ENGINES", "FEATURE_FORMAT", "HARDWARE", "NONE",
    "OPERATIONS", "OPERATION_BYTES", "PDP", "PROGRAMMED", "RUBIK", "SDP", "SRAM", "SURFACE_BYTES", "Cdp", "Common",
    "Consumer", "Converter", "Convolution", "ConvolutionSurfaces", "Cube", "Lut", "Network", "Operation", "Pdp",
    "Rubik", "Sdp", "SdpSurfaces", "SdpUnit", "Surfaces", "WindowFields",
]  # fmt: skip
