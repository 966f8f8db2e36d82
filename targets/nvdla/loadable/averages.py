"""Averages that the stock firmware cannot program, as convolutions.

PDP multiplies sums by two reciprocals, which npuc also uses to change the scale. The firmware only knows those of
the kernel's extents. A convolution with weights of 1 gives the same sums, and SDP multiplies and rounds as PDP
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.errors import ArtefactError
from npuc.targets.nvdla.arithmetic.integer import IDLE, SdpStage
from npuc.targets.nvdla.emission.describing import Described, describe
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.formats import weights as weight_format
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model.arithmetic import RECIPROCAL_BITS, shift_right
from npuc.targets.nvdla.operations.operation import Banks, Convolution, Kernels, KernelWindow, Sdp, Surface, Unit
from npuc.targets.nvdla.operations.tiling import (
    Geometry,
    RowTile,
    data_banks,
    entries_per_slice,
    equal_edges,
    kernels_together,
    most_rows,
    row_tiles,
    weight_banks,
)
from npuc.targets.nvdla.selection import Constants

MOST_MULTIPLIER, MOST_SHIFT = (1 << 15) - 1, 31


def replace_averages(
    operations: Sequence[Described], machine: Machine, constants: Constants, scratch: int
) -> list[Described]:
    """The operations, with convolutions in place of averages that the firmware cannot program.

    constants: receives their weights. scratch: the start of memory for maps that went to PDP on the fly. Raises
    ArtefactError (E506) for an average that no convolution computes exactly.
    """
    found: list[Described] = []
    for each in operations:
        if each.reciprocals is None:
            found.append(each)
            continue
        if each.behind:
            found[-1], each = _pass_through_memory(found[-1], each, scratch)
            scratch += found[-1].surfaces.result.size
        found += [part for new in _convolutions(each, machine, constants) for part in describe(new, machine)]
    return found


def _pass_through_memory(sdp: Described, pdp: Described, address: int) -> tuple[Described, Described]:
    """SDP with its result in memory instead of the pipe, and PDP reading it from there."""
    cube = replace(sdp.surfaces.result, type=of.DRAM, address=0, offset=address)
    return (
        replace(sdp, surfaces=replace(sdp.surfaces, result=cube)),
        replace(pdp, surfaces=replace(pdp.surfaces, source=cube), behind=False),
    )


def _convolutions(average: Described, machine: Machine, constants: Constants) -> Iterator[Convolution]:
    """One convolution for every surface, in tiles of rows if the CBUF is too small."""
    op, source, result = average.op, average.surfaces.source, average.surfaces.result
    if not isinstance(op, of.Pdp) or op.precision or op.splits > 1 or any(op.pad_values):
        raise _refusal("its precision, splits or padding values")
    kernel = (op.kernel_height + 1, op.kernel_width + 1)
    sdp = _scale_sums(average, prod(kernel))
    atom = machine.atom_bytes
    for surface in range(-(-source.channels // atom)):
        count = min(atom, source.channels - surface * atom)
        shape = Geometry(
            source.width, source.height, count, result.height, result.width, count, *kernel,
            op.window.stride_y, 1, op.window.pad_top,
        )  # fmt: skip
        together = kernels_together(machine, shape)
        if together < count:
            raise _refusal("a window that does not fit the CBUF")
        kernels = _ones(machine, constants, count, kernel)
        least = -(-shape.out_height // most_rows(machine, shape, together))
        for tile in row_tiles(shape, equal_edges(shape.out_height, least)):
            entries = entries_per_slice(machine, shape)
            banks = Banks(entries, data_banks(machine, shape, tile.rows), weight_banks(machine, shape, count))
            given = _part(average, "source", surface, tile.line, tile.lines, count)
            taken = _part(average, "result", surface, tile.row, tile.rows, count)
            yield Convolution(given, kernels, _window(op.window, shape, tile), banks, sdp, taken)


def _ones(machine: Machine, constants: Constants, count: int, kernel: tuple[int, int]) -> Kernels:
    """Weights that sum a window channel by channel."""
    dense = np.zeros((count, count, *kernel), np.int8)
    dense[np.arange(count), np.arange(count)] = 1
    data = weight_format.pack(machine, weight_format.direct_order(machine, dense.shape, "int8"), dense)
    return Kernels(constants.add("weight", data), len(data), count, *kernel, count, count * prod(kernel))


def _part(average: Described, name: str, surface: int, row: int, rows: int, channels: int) -> Surface:
    """Some rows of one surface of a cube."""
    cube: of.DataCube = getattr(average.surfaces, name)
    address = cube.offset + surface * cube.surface_stride + row * cube.line_stride
    return Surface(address, cube.width, rows, channels, cube.line_stride, cube.surface_stride)


def _window(window: of.WindowFields, shape: Geometry, tile: RowTile) -> KernelWindow:
    """The window of the kernel on a tile: padding only at the borders of the map."""
    start = tile.row * shape.stride_y - shape.top
    end = start + (tile.rows - 1) * shape.stride_y + shape.reach
    sides = (max(-start, 0), window.pad_left, max(end - shape.height, 0), window.pad_right)
    return KernelWindow(window.stride_y, window.stride_x, 1, 1, *sides)


def _scale_sums(average: Described, taps: int) -> Sdp:
    """SDP that turns sums of `taps` elements into the same results as PDP."""
    sums = np.arange(-128 * taps, 127 * taps + 1, dtype=np.int64)
    wanted = sums
    for reciprocal in average.reciprocals or ():
        wanted = shift_right(wanted * reciprocal, RECIPROCAL_BITS)
    wanted = wanted.clip(-128, 127)
    stages = [_reduce_reciprocal(each) for each in average.reciprocals or ()]
    if all(0 < multiplier <= MOST_MULTIPLIER for multiplier, _ in stages):
        first, second = (
            Unit(SdpStage(multiply=1, shift=shift), multiplier=multiplier) for multiplier, shift in stages
        )
        return Sdp(first, second)  # rounds twice, as PDP does
    for multiplier, shift in _factors(prod(average.reciprocals or ()) / 4.0**RECIPROCAL_BITS):
        if np.array_equal(shift_right(sums * multiplier, shift).clip(-128, 127), wanted):
            return Sdp(Unit(SdpStage(multiply=1, shift=shift), multiplier=multiplier), Unit(IDLE))
    raise _refusal(f"reciprocals {average.reciprocals}")


def _reduce_reciprocal(reciprocal: int) -> tuple[int, int]:
    """A reciprocal as the smallest multiplier and shift."""
    zeros = (reciprocal & -reciprocal).bit_length() - 1
    return reciprocal >> min(zeros, RECIPROCAL_BITS), RECIPROCAL_BITS - min(zeros, RECIPROCAL_BITS)


def _factors(ratio: float) -> Iterator[tuple[int, int]]:
    """Pairs of a 15-bit multiplier and a shift near a ratio, the smallest shifts first."""
    for shift in range(MOST_SHIFT + 1):
        middle = round(ratio * 2**shift)
        for multiplier in (middle, middle - 1, middle + 1):
            if 0 < multiplier <= MOST_MULTIPLIER:
                yield multiplier, shift


def _refusal(what: str) -> ArtefactError:
    return ArtefactError(
        "E506",
        f"an average with {what}: the stock firmware has no reciprocals but those of the kernel, and no "
        "convolution gives the same",
        op="AveragePool",
        remedy="export as nvdla-trace or c",
    )
