"""Weights in their form, as surfaces in the image of constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.arithmetic import transformed
from npuc.targets.nvdla.formats import weights as formats
from npuc.targets.nvdla.formats import winograd
from npuc.targets.nvdla.formats.compression import compress
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.operations.operation import Kernels, Mask
from npuc.targets.nvdla.operations.tiling import Geometry
from npuc.targets.nvdla.selection.context import Context


def select_kernels(context: Context, shape: Geometry, dense: Callable[[], Array]) -> Kernels:
    """The weights (K, C, R, S) of a pass, stored where the hardware fetches them."""
    order, mask = _order(context.machine, shape), None
    channels, height, width = shape.kernel_shape
    if shape.form.compressed:
        address, size, mask = _compressed(context, order, np.ascontiguousarray(_in_form(shape, dense())))
    elif context.constants.counted:
        address, size = 0, formats.surface_bytes(context.machine, order, BYTES[shape.precision])
    else:
        data = formats.pack(context.machine, order, np.ascontiguousarray(_in_form(shape, dense())))
        address, size = context.constants.add("weight", data), len(data)
    return Kernels(address, size, shape.kernels, height, width, channels, shape.kernel_bytes, shape.form, mask)


def _order(machine: Machine, shape: Geometry) -> formats.Order:
    extents = (shape.kernels, *shape.kernel_shape)
    match shape.form.kind:
        case "image":
            return formats.image(machine, extents, shape.precision, shape.form.lines)
        case "winograd":
            return formats.winograd(machine, extents, shape.precision)
        case _:
            return formats.direct(machine, extents, shape.precision)


def _in_form(shape: Geometry, dense: Array) -> Array:
    """Weights (K, C, R, S), plain or already transformed, in their form: (K, *kernel_shape)."""
    strides = shape.stride_y, shape.stride_x
    match shape.form.kind:
        case "image":
            return formats.pre_extended(np.pad(dense, [*[(0, 0)] * 3, (0, shape.form.zeros)]), shape.channels)
        case "winograd":
            filled = winograd.filled(dense, shape.precision)
            done = filled.shape[2:] == tuple(winograd.TILE * stride for stride in strides)
            found = filled if done else transformed.transformed(filled, *strides)
            if not done:  # for costing only: what matters is which weights are zero
                found = np.sign(found)
            return transformed.by_phase(found, *strides).astype(DTYPES[shape.precision])
        case _:
            return dense[:, :, : shape.kernel_height, : shape.kernel_width]


def _compressed(context: Context, order: formats.Order, weights: Array) -> tuple[int, int, Mask]:
    """Address and size of the nonzero weights, and the surfaces that give their positions."""
    found = compress(order, weights)
    address, mask, sizes = (
        context.constants.add(form, each)
        for form, each in (("weight", found.weights), ("WMB", found.mask), ("WGS", found.sizes))
    )
    return address, len(found.weights), Mask(mask, len(found.mask), sizes, len(found.sizes))
