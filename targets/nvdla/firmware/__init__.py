"""The register writes that NVDLA's firmware makes of an operation's descriptors.

Block by block in the firmware's order, so that its own log of a loadable can be compared line by line.

Source: The loadable (facts), checked against the logs of three loadables of NVDLA's own compiler (conv, SDP, PDP);
CDP, RUBIK and the look-up tables follow the same firmware without such a log.
"""

from __future__ import annotations

from typing import Any

from npuc.targets.nvdla.firmware.convolution import convolution
from npuc.targets.nvdla.firmware.descriptors import HARDWARE, Cdp, Convolution, Lut, Operation, Pdp, Rubik, Sdp
from npuc.targets.nvdla.firmware.lines import Firmware, RegisterWrite, Writes
from npuc.targets.nvdla.firmware.post_processing import cdp, needs_rdma, pdp, rubik, sdp


def writes_of(firmware: Firmware, op: Operation, surfaces: Any, lut: Lut | None) -> Writes:
    """The writes that program an operation. Raises ArtefactError (E502) where the firmware would assert."""
    if isinstance(op, Convolution):
        yield from convolution(firmware, op, surfaces)
        return
    yield "GLB.S_INTR_MASK", 0
    match op:
        case Sdp():
            yield from sdp(firmware, op, surfaces, lut)
        case Pdp():
            yield from pdp(firmware, op, surfaces)
        case Cdp():
            yield from cdp(firmware, op, surfaces, lut)
        case Rubik():
            yield from rubik(firmware, op, surfaces)


def has_rdma(op: Operation, surfaces: Any) -> bool:
    """Whether the operation runs an RDMA besides its engine."""
    if isinstance(op, Sdp):
        return needs_rdma(op, surfaces)
    return isinstance(op, Cdp) or (isinstance(op, Pdp) and surfaces.source.type != HARDWARE)


__all__ = ["Firmware", "RegisterWrite", "has_rdma", "writes_of"]
