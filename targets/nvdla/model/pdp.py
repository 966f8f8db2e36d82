"""PDP: pooling over windows: average, maximum, minimum; its input from memory (PDP_RDMA) or from SDP.

Average: rnd(rnd(sum * recip_w >> 16) * recip_h >> 16) with reciprocals of 17 bits. n padded columns of a row of
the window add PAD_VALUE_nX, a row of padding PAD_VALUE_1X times the kernel's width. Maximum and minimum ignore
padding. Splitting into parts by width (SPLIT_NUM) fetches the columns in parts and changes no result.
Source: Numbers, as on the RTL; fp16: FP16 Supporting (fp17 inside for averages).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES, fp17_of_bits
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.model import cubes, fp16
from npuc.targets.nvdla.model.arithmetic import saturate, shift_right, signed
from npuc.targets.nvdla.model.memory import Pattern, Port
from npuc.targets.nvdla.model.register_file import Group
from npuc.targets.nvdla.model.traps import trap

BLOCK, RDMA = "PDP", "PDP_RDMA"
PAD_COLUMNS = 7
AVERAGE_INFINITY = fp16.FP17_MOST


@dataclass(frozen=True)
class Axis:
    """Windows along one axis."""

    size: int
    out: int
    kernel: int
    stride: int
    pad: int

    @property
    def extent(self) -> int:
        """Elements from the first padding to the end of the last window."""
        return (self.out - 1) * self.stride + self.kernel

    def taps(self, position: int) -> slice:
        """The elements, padding included, that are at this position of each window."""
        return slice(position, position + (self.out - 1) * self.stride + 1, self.stride)


def fetch(group: Group, machine: Machine, port: Port) -> Array:
    """The input cube (surface, H, W, lane) from memory, by the registers of PDP_RDMA."""
    kind = group.named("INPUT_DATA").lower()
    height, width, channels = (group[f"CUBE_IN_{each}"] + 1 for each in ("HEIGHT", "WIDTH", "CHANNEL"))
    surfaces = -(-channels // machine.atom_elements(kind))
    line, surface = group.bytes("SRC_LINE_STRIDE"), group.bytes("SRC_SURFACE_STRIDE")
    start = group.address("SRC_BASE_ADDR_LOW", "SRC_BASE_ADDR_HIGH")
    place = Pattern(start, width * machine.atom_bytes, height, line, surfaces, surface)
    return cubes.read(port, place, machine, kind)


def run(group: Group, source: Array, reports: dict[str, int]) -> Array:
    """The output cube (surface, H, W, lane). Raises ArtefactError (E503) where the input is not as expected."""
    kind = group.named("INPUT_DATA").lower()
    columns, rows = _axis(group, "WIDTH", "LEFT"), _axis(group, "HEIGHT", "TOP")
    if source.dtype != np.dtype(DTYPES[kind]) or source.shape[1:3] != (rows.size, columns.size):
        found = f"{source.dtype} {source.shape[2]} x {source.shape[1]}"
        raise trap(BLOCK, f"expects {kind} {columns.size} x {rows.size}", limit=f"{found}, as it gets")
    for axis, pad in ((columns, group["PAD_RIGHT"]), (rows, group["PAD_BOTTOM"])):
        if axis.extent > axis.size + axis.pad + pad:
            reason = f"windows reach {axis.extent} elements"
            raise trap(BLOCK, reason, limit=f"{axis.size} and {axis.pad + pad} of padding")
    floating = kind == "fp16"
    if floating:
        reports["D_NAN_INPUT_NUM"], reports["D_INF_INPUT_NUM"] = fp16.nans(source), fp16.infinities(source)
    method = group.named("POOLING_METHOD").removeprefix("POOLING_METHOD_")
    pooled = METHODS[method](group, source, (rows, columns))
    if floating:
        reports["D_NAN_OUTPUT_NUM"] = fp16.nans(pooled)
    return pooled


def _axis(group: Group, name: str, side: str) -> Axis:
    return Axis(
        group[f"CUBE_IN_{name}"] + 1,
        group[f"CUBE_OUT_{name}"] + 1,
        group[f"KERNEL_{name}"] + 1,
        group[f"KERNEL_STRIDE_{name}"] + 1,
        group[f"PAD_{side}"],
    )


def _spread(axes: tuple[Axis, Axis], source: Array, value: float) -> Array:
    """The input with its padding, cut to what windows reach."""
    rows, columns = axes
    after = [max(axis.extent - axis.pad - axis.size, 0) for axis in axes]
    around = ((0, 0), (rows.pad, after[0]), (columns.pad, after[1]), (0, 0))
    return np.pad(source, around, constant_values=value)[:, : rows.extent, : columns.extent]


def _extreme(
    group: Group, source: Array, axes: tuple[Axis, Axis], choose: Callable[..., Array], worst: float
) -> Array:
    """Maximum or minimum, which padding never is. fp16: infinities are compared, and clipped on the way out."""
    rows, columns = axes
    floating = bool(np.issubdtype(source.dtype, np.floating))
    if floating and group["NAN_TO_ZERO"]:
        source = np.where(np.isnan(source), np.float16(0), source)
    spread = _spread(axes, source, worst)
    lines = reduce(choose, (spread[:, :, columns.taps(each)] for each in range(columns.kernel)))
    chosen = reduce(choose, (lines[:, rows.taps(each)] for each in range(rows.kernel)))
    return fp16.stored(chosen) if floating else chosen


def _maximum(group: Group, source: Array, axes: tuple[Axis, Axis]) -> Array:
    floating = np.issubdtype(source.dtype, np.floating)
    return _extreme(group, source, axes, np.maximum, -np.inf if floating else np.iinfo(source.dtype).min)


def _minimum(group: Group, source: Array, axes: tuple[Axis, Axis]) -> Array:
    floating = np.issubdtype(source.dtype, np.floating)
    return _extreme(group, source, axes, np.minimum, np.inf if floating else np.iinfo(source.dtype).max)


def _average(group: Group, source: Array, axes: tuple[Axis, Axis]) -> Array:
    if np.issubdtype(source.dtype, np.floating):
        return _average_floating(group, source, axes)
    sums = _sums(source.astype(np.int64), axes, np.add) + _padding(group, axes, lambda bits: signed(bits, 19))
    across = shift_right(sums * group["RECIP_KERNEL_WIDTH"], 16)
    both = shift_right(across * group["RECIP_KERNEL_HEIGHT"], 16)
    return saturate(both, 8 * source.dtype.itemsize).astype(source.dtype)


def _average_floating(group: Group, source: Array, axes: tuple[Axis, Axis]) -> Array:
    values = fp16.received(source, AVERAGE_INFINITY, flush=bool(group["NAN_TO_ZERO"]))

    def add(first: Array, second: Array) -> Array:
        return fp16.fp17(first.astype(np.float64) + second)

    sums = add(_sums(values, axes, add), _padding(group, axes, fp17_of_bits))
    across = fp16.fp17(sums * fp17_of_bits(group["RECIP_KERNEL_WIDTH"]))
    return fp16.stored(fp16.fp17(across * fp17_of_bits(group["RECIP_KERNEL_HEIGHT"])))


def _sums(values: Array, axes: tuple[Axis, Axis], add: Callable[[Array, Array], Array]) -> Array:
    """Sums of windows, padding as 0."""
    rows, columns = axes
    spread = _spread(axes, values, 0)
    lines = reduce(add, (spread[:, :, columns.taps(each)] for each in range(columns.kernel)))
    return reduce(add, (lines[:, rows.taps(each)] for each in range(rows.kernel)))


def _padding(group: Group, axes: tuple[Axis, Axis], number: Callable[[int], float]) -> Array:
    """What padding adds to each window (1, out rows, out columns, 1)."""
    rows, columns = axes
    values = [0.0, *(number(group[f"PAD_VALUE_{each}X"]) for each in range(1, PAD_COLUMNS + 1))]
    padded = _padded(columns)
    of_row = np.array([_of_columns(values, each) for each in padded])
    whole = values[1] * columns.kernel
    lines = _padded(rows)
    total = (rows.kernel - lines)[:, None] * of_row + lines[:, None] * whole
    integers = isinstance(values[1], int)
    return total[None, :, :, None].astype(np.int64 if integers else np.float64)


def _of_columns(values: list[float], count: int) -> float:
    if count >= len(values):
        raise trap(BLOCK, f"{count} padded columns in a window", limit=f"{PAD_COLUMNS}")
    return values[count]


def _padded(axis: Axis) -> Array:
    """How many elements of each window are padding."""
    starts = np.arange(axis.out) * axis.stride - axis.pad
    inside = np.minimum(starts + axis.kernel, axis.size) - np.maximum(starts, 0)
    return axis.kernel - np.maximum(inside, 0)


METHODS: dict[str, Callable[[Group, Array, tuple[Axis, Axis]], Array]] = {
    "AVERAGE": _average,
    "MAX": _maximum,
    "MIN": _minimum,
}


def write(group: Group, machine: Machine, port: Port, values: Array) -> None:
    """Stores the output cube."""
    surfaces, height, width, _ = values.shape
    wanted = -(-(group["CUBE_OUT_CHANNEL"] + 1) * BYTES[group.named("INPUT_DATA").lower()] // machine.atom_bytes)
    if wanted != surfaces:
        raise trap(BLOCK, f"CUBE_OUT_CHANNEL = {group['CUBE_OUT_CHANNEL']}", limit=f"{surfaces} surfaces come in")
    line, surface = group.bytes("DST_LINE_STRIDE"), group.bytes("DST_SURFACE_STRIDE")
    start = group.address("DST_BASE_ADDR_LOW", "DST_BASE_ADDR_HIGH")
    place = Pattern(start, width * machine.atom_bytes, height, line, surfaces, surface)
    cubes.write(port, place, machine, values)
