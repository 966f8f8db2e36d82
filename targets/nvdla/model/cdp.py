"""CDP: local response normalisation across channels.

Input converter; sum of squares over 3, 5, 7 or 9 neighbouring channels (0 beyond the cube); look-up tables;
product with the converted input; output converter. Both the sum and the product can be bypassed.

Source: the test programs cdp_*; fp16: Arithmetic, Look-up tables in fp16 (sums of squares in fp32, no converters).
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.model import fp16, lut
from npuc.targets.nvdla.model.arithmetic import saturate, shift_right
from npuc.targets.nvdla.model.memory import MemoryPort, as_channels, as_lanes, place_cube, read_cube, write_cube
from npuc.targets.nvdla.model.register_file import LookUpTables, RegisterGroup, trap

BLOCK, RDMA = "CDP", "CDP_RDMA"
INFINITY = fp16.FP17_MOST


def fetch(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The input cube as channels (H, W, C), without the lanes beyond the last channel."""
    kind = group.value_name("INPUT_DATA").lower()
    height, width, channels = (group[each] + 1 for each in ("HEIGHT", "WIDTH", "CHANNEL"))
    surfaces = -(-channels // machine.atom_elements(kind))
    place = place_cube(group, "SRC", (height, width, surfaces), machine)
    return as_channels(read_cube(port, place, machine, kind))[..., :channels]


def run(
    group: RegisterGroup, machine: Machine, source: Array, tables: LookUpTables, reports: dict[str, int]
) -> Array:
    """The output cube (surface, H, W, lane)."""
    kind = group.value_name("INPUT_DATA_TYPE").lower()
    if source.dtype != np.dtype(DTYPES[kind]):
        raise trap(BLOCK, f"INPUT_DATA_TYPE {kind}", limit=f"{source.dtype}, as {RDMA}")
    lanes = machine.atom_elements(kind)
    if kind == "fp16":
        reports["D_NAN_INPUT_NUM"], reports["D_INF_INPUT_NUM"] = fp16.nans(source), fp16.infinities(source)
        data = fp16.load(source, INFINITY, flush=bool(group["NAN_TO_ZERO"]))
    else:
        data = _convert_input(group, source)
    filled = as_channels(as_lanes(data, lanes))
    sums = filled if group["SQSUM_BYPASS"] else _square_sums(group, filled)
    values, counts = lut.look_up(group, tables, sums, lut.CDP)
    reports.update({f"D_PERF_{name}": each for name, each in counts.items()})
    if kind == "fp16":
        product = values if group["MUL_BYPASS"] else fp16.multiply(filled, values, fp16.fp17)
        result = fp16.store(product)
        reports["D_NAN_OUTPUT_NUM"] = fp16.nans(result)
    else:
        result = _converted_out(group, values if group["MUL_BYPASS"] else values * filled, kind, reports)
    return as_lanes(result, lanes)


def _convert_input(group: RegisterGroup, source: Array) -> Array:
    """(x - offset) * scale >> shift, with one bit more than the input."""
    bits = 8 * source.dtype.itemsize
    offset = group.signed_value("DATIN_OFFSET", bits)
    scaled = (source.astype(np.int64) - offset) * group.signed_value("DATIN_SCALE")
    return saturate(shift_right(scaled, group["DATIN_SHIFTER"]), bits + 1)


def _square_sums(group: RegisterGroup, data: Array) -> Array:
    """Sums of squares over the channels around each (H, W, C)."""
    reach, channels = group["NORMALZ_LEN"] + 1, data.shape[-1]
    floating = np.issubdtype(data.dtype, np.floating)
    squares = fp16.multiply(data, data) if floating else data * data
    padded = np.pad(squares, ((0, 0), (0, 0), (reach, reach)))
    add = fp16.add if floating else np.add
    total = squares
    for each in range(1, reach + 1):  # the nearest channels first
        below, above = (padded[..., reach + side : reach + side + channels] for side in (-each, each))
        neighbours = add(below, above)
        total = add(neighbours, total) if each == 1 else add(total, neighbours)
    return total


def _converted_out(group: RegisterGroup, values: Array, kind: str, reports: dict[str, int]) -> Array:
    """(x - offset) * scale >> shift, saturated to the output type."""
    narrow = BYTES[kind] == 1
    offset = group.signed_value("DATOUT_OFFSET", 25 if narrow else 32)
    shift = group["DATOUT_SHIFTER"]
    scaled = shift_right((values - offset) * group.signed_value("DATOUT_SCALE"), shift)
    result = saturate(scaled, 8 * BYTES[kind])
    reports["D_OUT_SATURATION"] = int(np.count_nonzero(result != scaled))
    return result.astype(DTYPES[kind])


def write(group: RegisterGroup, machine: Machine, port: MemoryPort, values: Array) -> None:
    """Stores the output cube."""
    surfaces, height, width, _ = values.shape
    write_cube(port, place_cube(group, "DST", (height, width, surfaces), machine), machine, values)
