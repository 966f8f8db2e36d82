"""Tasks that the runtime computes on the CPU: softmax over channels.

The structures are those of the runtime's emulator; in int8 it computes in half precision, with a scale for the
input and one for the result.

Source: The loadable (facts), interface 2; the CPU tasks in two loadables of NVDLA's compiler.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.firmware.descriptors import NONE
from npuc.targets.nvdla.firmware.structures import number, unused_bytes

POWER, SOFTMAX = 0, 1
INT8, INT8_SMALL, FP16 = 0, 1, 3
"""Formats of a buffer; INT8_SMALL is int8 in atoms of 8 bytes."""
FORMATS = {8: INT8_SMALL, 32: INT8}
"""Format of int8 maps, by the bytes of an atom."""


@frozen(kw_only=True)
class EmulatedNetwork:
    """The places of the lists, as positions in the task's address list."""

    operations: int = number("h", NONE)
    buffers: int = number("h", NONE)
    operation_count: int = number("H")
    reserved: tuple[int, ...] = unused_bytes(250)


@frozen(kw_only=True)
class EmulatedOperation:
    """A softmax: scales of input and result; axis 1 is the channels."""

    kind: int = number("B", SOFTMAX)
    reserved: tuple[int, ...] = unused_bytes(3)
    input_scale: float = number("f", 1.0)
    output_scale: float = number("f", 1.0)
    axis: int = number("B", 1)
    reserved_end: tuple[int, ...] = unused_bytes(11)


@frozen(kw_only=True)
class EmulatedBuffer:
    """A map in memory."""

    address: int = number("h", NONE)
    offset: int = number("I")
    size: int = number("I")
    format: int = number("H")
    width: int = number("H", 1)
    height: int = number("H", 1)
    channels: int = number("H")
    line_stride: int = number("I")
    surface_stride: int = number("I")
    reserved: tuple[int, ...] = unused_bytes(230)


@frozen(kw_only=True)
class EmulatedBuffers:
    """The input and result of an operation."""

    source: EmulatedBuffer = field(default_factory=EmulatedBuffer)
    result: EmulatedBuffer = field(default_factory=EmulatedBuffer)


def softmax(operation: EmulatedOperation, values: Array) -> Array:
    """The runtime's softmax over channels: int8 or float16 values (C), the result in the same type."""
    whole = np.issubdtype(values.dtype, np.integer)
    scaled = (values * np.float32(operation.input_scale)).astype(np.float16) if whole else values
    exact = scaled.astype(np.float32)
    powers = np.exp(exact - exact.max())
    result = (powers / powers.sum(dtype=np.float32)).astype(np.float16)
    if not whole:
        return result
    stored = result.astype(np.float32) / np.float32(operation.output_scale)
    return np.trunc(stored).clip(-128, 127).astype(np.int8)
