"""PDP: pooling over windows (average, maximum, minimum) with input from memory (PDP_RDMA) or from SDP.

Average: sums of rows, then of the window, times two reciprocals of 17 bits (module averages has the widths). A
window with n padded columns adds PAD_VALUE_nX to each of its rows inside the map; v padded rows add PAD_VALUE_vX
times the kernel's width, once. Maximum and minimum ignore padding. Splitting by width (SPLIT_NUM) fetches the
columns in parts without changing results.

Source: Arithmetic, PDP, average; seen on the RTL. fp16: every sum and product is rounded to fp17.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES, fp17_of_bits
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.model import fp16
from npuc.targets.nvdla.model.arithmetic import WIDTHS, Widths, average_sums, sign_extend, wrap
from npuc.targets.nvdla.model.memory import MemoryPort, place_cube, read_cube, write_cube
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

BLOCK, RDMA = "PDP", "PDP_RDMA"
MOST_PADDED = 7
"""The most padded columns or rows of a window: the number of PAD_VALUE registers."""
PAD_BITS = 19
FP17_BITS = (1 << 17) - 1
AVERAGE_INFINITY = fp16.FP17_MOST


@frozen
class WindowAxis:
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
        """The elements, padding included, at this position of each window."""
        return slice(position, position + (self.out - 1) * self.stride + 1, self.stride)


def fetch(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The input cube (surface, H, W, lane) from memory, by the registers of PDP_RDMA."""
    kind = group.value_name("INPUT_DATA").lower()
    height, width, channels = (group[f"CUBE_IN_{each}"] + 1 for each in ("HEIGHT", "WIDTH", "CHANNEL"))
    surfaces = -(-channels // machine.atom_elements(kind))
    place = place_cube(group, "SRC", (height, width, surfaces), machine)
    return read_cube(port, place, machine, kind)


def run(group: RegisterGroup, source: Array, reports: dict[str, int]) -> Array:
    """The output cube (surface, H, W, lane). Raises ArtefactError (E503) if the input is not as expected."""
    kind = group.value_name("INPUT_DATA").lower()
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
    method = group.value_name("POOLING_METHOD").removeprefix("POOLING_METHOD_")
    pooled = METHODS[method](group, source, (rows, columns))
    if floating:
        reports["D_NAN_OUTPUT_NUM"] = fp16.nans(pooled)
    return pooled


def _axis(group: RegisterGroup, name: str, side: str) -> WindowAxis:
    return WindowAxis(
        group[f"CUBE_IN_{name}"] + 1,
        group[f"CUBE_OUT_{name}"] + 1,
        group[f"KERNEL_{name}"] + 1,
        group[f"KERNEL_STRIDE_{name}"] + 1,
        group[f"PAD_{side}"],
    )


def _spread(axes: tuple[WindowAxis, WindowAxis], source: Array, value: float) -> Array:
    """The input with its padding, cropped to the elements that windows reach."""
    rows, columns = axes
    after = [max(axis.extent - axis.pad - axis.size, 0) for axis in axes]
    padding = ((0, 0), (rows.pad, after[0]), (columns.pad, after[1]), (0, 0))
    return np.pad(source, padding, constant_values=value)[:, : rows.extent, : columns.extent]


def _extreme(
    group: RegisterGroup,
    source: Array,
    axes: tuple[WindowAxis, WindowAxis],
    choose: Callable[..., Array],
    worst: float,
) -> Array:
    """Maximum or minimum, never of padding. fp16: infinities take part, and are clipped in the output."""
    rows, columns = axes
    floating = bool(np.issubdtype(source.dtype, np.floating))
    if floating and group["NAN_TO_ZERO"]:
        source = np.where(np.isnan(source), np.float16(0), source)
    spread = _spread(axes, source, worst)
    lines = reduce(choose, (spread[:, :, columns.taps(each)] for each in range(columns.kernel)))
    chosen = reduce(choose, (lines[:, rows.taps(each)] for each in range(rows.kernel)))
    return fp16.store(chosen) if floating else chosen


def _maximum(group: RegisterGroup, source: Array, axes: tuple[WindowAxis, WindowAxis]) -> Array:
    floating = np.issubdtype(source.dtype, np.floating)
    return _extreme(group, source, axes, np.maximum, -np.inf if floating else np.iinfo(source.dtype).min)


def _minimum(group: RegisterGroup, source: Array, axes: tuple[WindowAxis, WindowAxis]) -> Array:
    floating = np.issubdtype(source.dtype, np.floating)
    return _extreme(group, source, axes, np.minimum, np.inf if floating else np.iinfo(source.dtype).max)


def _average(group: RegisterGroup, source: Array, axes: tuple[WindowAxis, WindowAxis]) -> Array:
    factors = group["RECIP_KERNEL_WIDTH"], group["RECIP_KERNEL_HEIGHT"]
    if np.issubdtype(source.dtype, np.floating):
        values = fp16.load(source, AVERAGE_INFINITY, flush=bool(group["NAN_TO_ZERO"]))
        total = _window_sums(group, values, axes, _in_fp17(axes[1].kernel))
        for each in factors:
            total = fp16.multiply(total, _fp17(each), fp16.fp17)
        return fp16.store(total)
    widths = WIDTHS[source.dtype.itemsize]
    total = _window_sums(group, source.astype(np.int64), axes, _in_integers(widths, axes[1].kernel))
    return average_sums(total, factors, widths).astype(source.dtype)


Add = Callable[[Array, Array], Array]


@frozen
class _Sums:
    """Sums in one precision: how rows and windows add, and PAD_VALUE for a row and for rows of padding."""

    row: Add
    window: Add
    pad: Callable[[int], Array]
    padded_rows: Callable[[int], Array]


def _in_integers(widths: Widths, kernel_width: int) -> _Sums:
    """Integer sums, which wrap."""
    return _Sums(
        lambda first, second: wrap(first + second, widths.row),
        lambda first, second: wrap(first + second, widths.window),
        lambda bits: wrap(np.array(bits, np.int64), widths.pad),
        lambda bits: np.array(sign_extend(bits, PAD_BITS) * kernel_width, np.int64),
    )


def _in_fp17(kernel_width: int) -> _Sums:
    """Sums in fp17; PAD_VALUE contains fp17 bits."""

    def add(first: Array, second: Array) -> Array:
        return fp16.add(first, second, fp16.fp17)

    width = np.array(kernel_width, np.float32)
    return _Sums(add, add, _fp17, lambda bits: fp16.multiply(_fp17(bits), width, fp16.fp17))


def _fp17(bits: int) -> Array:
    return np.array(fp17_of_bits(bits & FP17_BITS), np.float32)


def _window_sums(group: RegisterGroup, values: Array, axes: tuple[WindowAxis, WindowAxis], sums: _Sums) -> Array:
    """Sums of windows: each row from left to right, then its padding; rows from the top, then padded rows."""
    rows, columns = axes
    of_rows = _sum_windows(values, columns, 2, sums.row)
    of_rows = _with_pads(
        of_rows, _count_padding(columns)[:, None], lambda count: sums.pad(_pad_value(group, count)), sums.row
    )
    total = _sum_windows(of_rows, rows, 1, sums.window)
    counts = _count_padding(rows)[:, None, None]
    return _with_pads(total, counts, lambda count: sums.padded_rows(_pad_value(group, count)), sums.window)


def _sum_windows(values: Array, axis: WindowAxis, dimension: int, add: Add) -> Array:
    """Sums along a dimension over the elements of the map in each window, in order; 0 for a window without any."""
    total, begun = None, np.zeros(axis.out, bool)
    for tap in range(axis.kernel):
        at = np.arange(axis.out) * axis.stride - axis.pad + tap
        inside = (at >= 0) & (at < axis.size)
        taken = values.take(at.clip(0, axis.size - 1), axis=dimension)
        shape = [-1 if each == dimension else 1 for each in range(values.ndim)]
        if total is None:
            total = np.where(inside.reshape(shape), taken, values.dtype.type(0))
        elif inside.any():
            both = add(total, taken)
            total = np.where(inside.reshape(shape), np.where(begun.reshape(shape), both, taken), total)
        begun |= inside
    assert total is not None
    return total


def _with_pads(total: Array, counts: Array, pad: Callable[[int], Array], add: Add) -> Array:
    """The sums with PAD_VALUE added for the padded columns or rows of each window."""
    for count in np.unique(counts[counts > 0]).tolist():
        total = np.where(counts == count, add(total, pad(count)), total)
    return total


def _pad_value(group: RegisterGroup, count: int) -> int:
    if count > MOST_PADDED:
        raise trap(BLOCK, f"{count} padded columns or rows in a window", limit=f"{MOST_PADDED}")
    return group[f"PAD_VALUE_{count}X"]


def _count_padding(axis: WindowAxis) -> Array:
    """The number of padded elements of each window."""
    starts = np.arange(axis.out) * axis.stride - axis.pad
    inside = np.minimum(starts + axis.kernel, axis.size) - np.maximum(starts, 0)
    return axis.kernel - np.maximum(inside, 0)


METHODS: dict[str, Callable[[RegisterGroup, Array, tuple[WindowAxis, WindowAxis]], Array]] = {
    "AVERAGE": _average,
    "MAX": _maximum,
    "MIN": _minimum,
}


def write(group: RegisterGroup, machine: Machine, port: MemoryPort, values: Array) -> None:
    """Stores the output cube."""
    surfaces, height, width, _ = values.shape
    wanted = -(
        -(group["CUBE_OUT_CHANNEL"] + 1) * BYTES[group.value_name("INPUT_DATA").lower()] // machine.atom_bytes
    )
    if wanted != surfaces:
        raise trap(BLOCK, f"CUBE_OUT_CHANNEL = {group['CUBE_OUT_CHANNEL']}", limit=f"{surfaces} surfaces come in")
    write_cube(port, place_cube(group, "DST", (height, width, surfaces), machine), machine, values)
