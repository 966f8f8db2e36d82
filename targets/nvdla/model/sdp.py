"""SDP, which processes single elements: units X1 (BS), X2 (BN) and Y (EW), then the output converter.

X: ALU operand << shift (saturating to 32 bits); max, min or sum (33 bits); times a 16-bit operand (49 bits); >>
shift, rounded and saturated to 32 bits; ReLU. With PReLU, positive values bypass multiplier and shift.

Y: multiply, shift, ALU, look-up tables; its operands from memory pass through a converter.

Output: (x - offset) * scale >> shift, rounded, saturated to 17 bits, then to the output type.

SDP_RDMA fetches the input of SDP, unless it comes from CACC, and the operands of its units.

Source: Numbers, as on the RTL; fp16: FP16 Supporting (float32 inside, no shifts and no conversion); in-memory
formats, from Bias Data Format to Element-Wise Data Format (BytesPerAtom); Arithmetic, cubes of 1 x 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.model import fp16, lut
from npuc.targets.nvdla.model.arithmetic import saturate, shift_left, shift_right, sign_extend
from npuc.targets.nvdla.model.memory import (
    MemoryPort,
    Pattern,
    as_lanes,
    place_cube,
    read_cube,
    widen,
    with_lanes,
    write_cube,
)
from npuc.targets.nvdla.model.register_file import LookUpTables, RegisterGroup, trap

BLOCK = "SDP"
INFINITY = float(np.finfo(np.float32).max)
"""The value that replaces an infinite operand (FP16 Supporting, Infinity)."""
UNITS = ("BS", "BN", "EW")
BAND = 1 << 16
"""Elements computed at once."""


@frozen
class SdpRun:
    """One operation: the registers of SDP and SDP_RDMA, the port to memory, and the tables."""

    group: RegisterGroup
    rdma: RegisterGroup | None
    machine: Machine
    port: MemoryPort
    tables: LookUpTables
    reports: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def precision(self) -> str:
        """The processing precision."""
        return self.group.value_name("PROC_PRECISION").lower()

    @property
    def is_float(self) -> bool:
        """Whether values are float32."""
        return self.precision == "fp16"

    def count(self, name: str, number: int) -> None:
        """Adds to a counting register."""
        self.reports[name] = self.reports.get(name, 0) + number


def needs_memory(group: RegisterGroup) -> bool:
    """Whether an operand comes from memory, so that SDP_RDMA must run."""
    return any(_from_memory(group, unit, part) for unit in UNITS for part in ("ALU", "MUL"))


def _from_memory(group: RegisterGroup, unit: str, part: str) -> bool:
    used = not group[f"{unit}_BYPASS"] and not group[f"{unit}_{part}_BYPASS"]
    return used and group.value_name(f"{unit}_{part}_SRC") == "MEM"


def run(task: SdpRun, flying: Array | None) -> Array:
    """The output (batch, surface, H, W, lane) in its own type.

    flying: sums of CACC (batch, H, W, K); None if SDP_RDMA fetches the input. Raises ArtefactError (E503) if sizes
    disagree or an operand is not fetched.
    """
    group = task.group
    if any(not group[f"{unit}_BYPASS"] for unit in UNITS[2:]) and not task.machine.elementwise:
        raise trap(BLOCK, f"{task.machine.name} has no unit Y", limit="EW_BYPASS = YES")
    _expect_sizes(task, flying)
    values = _source(task) if flying is None else _from_cacc(task, flying)
    memory = {
        unit: _fetch_operands(task.rdma, unit, task.machine, task.port)
        for unit in UNITS
        if not group[f"{unit}_BYPASS"]
    }
    bands = [_through(task, values[:, :, rows], memory, rows) for rows in _bands(values)]
    return np.concatenate(bands, axis=2)


def _bands(values: Array) -> Iterator[slice]:
    """Bands of rows small enough to stay in the processor's cache through all units."""
    height = values.shape[2]
    rows = max(BAND * height // max(values.size, 1), 1)
    return (slice(start, start + rows) for start in range(0, height, rows))


def _through(task: SdpRun, values: Array, memory: Mapping[str, _FetchedOperands], rows: slice) -> Array:
    """The output of some rows, given their input."""
    band = {unit: operands.rows(rows) for unit, operands in memory.items()}
    for unit in UNITS[:2]:
        if unit in band:
            values = _x(task, unit, values, band[unit])
    if UNITS[2] in band:
        values = _y(task, values, band[UNITS[2]])
    return _convert_output(task, values)


def _expect_sizes(task: SdpRun, flying: Array | None) -> None:
    """Raises ArtefactError (E503) if SDP's cube differs from the one that it receives."""
    own = _fetched_size(task.group)
    batches = task.group["BATCH_NUMBER"] + 1
    given = 1 if flying is None else len(flying)
    rdma = None if task.rdma is None else task.rdma["BATCH_NUMBER"] + 1
    if batches != given or rdma not in (None, batches):
        limit = f"{given}, as the convolution, in SDP and SDP_RDMA"
        raise trap(BLOCK, f"{batches} batches, {rdma or 'none'} in SDP_RDMA", limit=limit)
    if flying is not None and flying.shape[1:] != own:
        limit = "x".join(str(each) for each in flying.shape[1:])
        raise trap(BLOCK, f"a cube (H, W, C) of {'x'.join(str(each) for each in own)}", limit=f"{limit}, as CACC")
    if task.rdma is not None and _fetched_size(task.rdma) != own:
        raise trap(BLOCK, f"a cube (H, W, C) of {own}", limit=f"{_fetched_size(task.rdma)}, as SDP_RDMA")
    if task.rdma is not None and task.rdma["PROC_PRECISION"] != task.group["PROC_PRECISION"]:
        raise trap(BLOCK, "PROC_PRECISION differs", limit=f"{task.rdma.value_name('PROC_PRECISION')}, as SDP_RDMA")


def _from_cacc(task: SdpRun, flying: Array) -> Array:
    if task.is_float != np.issubdtype(flying.dtype, np.floating):
        raise trap(BLOCK, f"PROC_PRECISION {task.group.value_name('PROC_PRECISION')}", limit="that of CACC")
    return as_lanes(flying, task.machine.atom_elements(task.precision))


def _source(task: SdpRun) -> Array:
    """The cube from memory, as int64 or float32."""
    assert task.rdma is not None
    raw = _fetch_input(task.rdma, task.machine, task.port)
    if task.is_float:
        task.reports["D_STATUS_NAN_INPUT_NUM"] = fp16.nans(raw)
        task.reports["D_STATUS_INF_INPUT_NUM"] = fp16.infinities(raw)
    values = widen(raw, INFINITY, flush=bool(task.group["NAN_TO_ZERO"]))
    return with_lanes(values, task.machine.atom_elements(task.precision), task.group["CHANNEL"] + 1)


def _x(task: SdpRun, unit: str, values: Array, memory: _FetchedOperands) -> Array:
    """Unit BS or BN."""
    group = task.group
    if not group[f"{unit}_ALU_BYPASS"]:
        operand = _operand(task, unit, "ALU", memory)
        if not task.is_float:
            operand = _scaled_up(operand, group[f"{unit}_ALU_SHIFT_VALUE"])
        values = _alu(task, group.value_name(f"{unit}_ALU_ALGO"), values, operand)
    plain = values
    if not group[f"{unit}_MUL_BYPASS"]:
        values = _product(task, values, _operand(task, unit, "MUL", memory))
    if not task.is_float:
        values = saturate(shift_right(values, group[f"{unit}_MUL_SHIFT_VALUE"] & 0x3F), 32)
    if group[f"{unit}_MUL_PRELU"] and not group[f"{unit}_MUL_BYPASS"]:
        values = np.where(np.signbit(plain), values, plain if task.is_float else saturate(plain, 32))
    if group[f"{unit}_RELU_BYPASS"]:
        return values
    return fp16.relu(values) if task.is_float else np.maximum(values, 0)


def _operand(task: SdpRun, unit: str, part: str, memory: _FetchedOperands) -> Array:
    """An operand of a unit: 16 bits from a register, or from memory, as int64 or float32."""
    group = task.group
    if _from_memory(group, unit, part):
        return widen(memory[part], INFINITY, flush=bool(group["NAN_TO_ZERO"]))
    value = group[f"{unit}_{part}_OPERAND"] & 0xFFFF
    if task.is_float:
        return widen(np.array(value, np.uint16).view(np.float16), INFINITY, flush=bool(group["NAN_TO_ZERO"]))
    return np.array(sign_extend(value, 16), np.int64)


def _scaled_up(operand: Array, shift: int) -> Array:
    """A 16-bit operand times 2^shift, saturated to 32 bits; a shift of at most 16 cannot overflow."""
    return operand << shift if shift <= 16 else shift_left(operand, shift, 32)


def _alu(task: SdpRun, algorithm: str, values: Array, operand: Array) -> Array:
    """Maximum, minimum, sum, or 1 where two values differ."""
    if algorithm == "EQL":
        unequal = (values != operand).astype(values.dtype)
        task.reports["D_STATUS"] = task.reports.get("D_STATUS", 0) | int(unequal.any())
        return unequal
    if algorithm == "MAX":
        return fp16.maximum(values, operand) if task.is_float else np.maximum(values, operand)
    if algorithm == "MIN":
        return fp16.minimum(values, operand) if task.is_float else np.minimum(values, operand)
    return fp16.add(values, operand) if task.is_float else values + operand


def _product(task: SdpRun, values: Array, operand: Array) -> Array:
    return fp16.multiply(values, operand) if task.is_float else values * operand


def _y(task: SdpRun, values: Array, memory: _FetchedOperands) -> Array:
    """Unit EW."""
    group = task.group
    if not group["EW_MUL_BYPASS"]:
        plain, values = values, _product(task, values, _y_operand(task, "MUL", memory))
        if not task.is_float:
            values = saturate(shift_right(values, group["EW_TRUNCATE"]), 32)
        if group["EW_MUL_PRELU"]:
            values = np.where(np.signbit(plain), values, plain)
    if not group["EW_ALU_BYPASS"]:
        values = _alu(task, group.value_name("EW_ALU_ALGO"), values, _y_operand(task, "ALU", memory))
        values = values if task.is_float else saturate(values, 32)
    if group["EW_LUT_BYPASS"]:
        return values
    if not task.machine.sdp_lut:
        raise trap(BLOCK, f"{task.machine.name} has no look-up tables in SDP", limit="EW_LUT_BYPASS = YES")
    values, counts = lut.look_up(group, task.tables, values, lut.SDP)
    for name, each in counts.items():
        task.count(f"D_PERF_{name}", each)
    return values


def _y_operand(task: SdpRun, part: str, memory: _FetchedOperands) -> Array:
    """An operand of EW: 32 unconverted bits from a register, or values from memory through the converter."""
    group = task.group
    if not _from_memory(group, "EW", part):
        if task.is_float:
            return np.array(group[f"EW_{part}_OPERAND"], np.uint32).view(np.float32)
        return np.array(group.signed_value(f"EW_{part}_OPERAND"), np.int64)
    values = _operand(task, "EW", part, memory)
    if task.is_float or group[f"EW_{part}_CVT_BYPASS"]:
        return values
    scaled = (values - group.signed_value(f"EW_{part}_CVT_OFFSET")) * group.signed_value(f"EW_{part}_CVT_SCALE")
    return saturate(shift_right(scaled, group[f"EW_{part}_CVT_TRUNCATE"]), 32)


def _convert_output(task: SdpRun, values: Array) -> Array:
    """Values through the output converter."""
    group = task.group
    kind = group.value_name("OUT_PRECISION").lower()
    if task.is_float:
        result = fp16.store(values)
        task.count("D_STATUS_NAN_OUTPUT_NUM", fp16.nans(result))
        return _out_lanes(task, result if kind == "fp16" else fp16.round_to_int16(result), kind)
    offset, scale = group.signed_value("CVT_OFFSET"), group.signed_value("CVT_SCALE")
    scaled = _scale(values - offset if offset else values, scale, group["CVT_SHIFT"])
    narrow = saturate(scaled, 17)
    if kind == "fp16":
        return _out_lanes(task, fp16.store(narrow.astype(np.float32)), kind)
    result = saturate(narrow, 8 * BYTES[kind])
    task.count("D_PERF_OUT_SATURATION", int(np.count_nonzero(result != scaled)))
    return _out_lanes(task, result.astype(DTYPES[kind]), kind)


def _scale(values: Array, scale: int, shift: int) -> Array:
    return shift_right(values * scale if scale != 1 else values, shift)


def _out_lanes(task: SdpRun, values: Array, kind: str) -> Array:
    lanes = with_lanes(values, task.machine.atom_elements(kind), task.group["CHANNEL"] + 1)
    more = surfaces_of(task.group["CHANNEL"] + 1, kind, task.precision, task.machine) - lanes.shape[1]
    return np.pad(lanes, ((0, 0), (0, more), *((0, 0),) * 3)) if more else lanes


def surfaces_of(channels: int, kind: str, processed: str, machine: Machine) -> int:
    """The surfaces that SDP reads or writes: from int8 to 16 bits and back in pairs, even if the last is empty.

    Source: Arithmetic, SDP: cubes of 1 x 1; nv_full's SDP, simulated alone, accesses pairs for every size.
    """
    pairs = 2 if processed == "int8" and kind != "int8" else 1
    return pairs * -(-channels // (pairs * machine.atom_elements(kind)))


def destination(task: SdpRun, batch: int) -> Pattern:
    """The place of an image's output. Raises ArtefactError (E503) if it is outside memory."""
    group, machine = task.group, task.machine
    height, width, channels = _fetched_size(group)
    surfaces = surfaces_of(channels, group.value_name("OUT_PRECISION").lower(), task.precision, machine)
    place = place_cube(group, "DST", (height, width, surfaces), machine)
    place = place.shift(batch * group.bytes("DST_BATCH_STRIDE") if batch else 0)
    if not group["BATCH_NUMBER"]:  # strides otherwise apply even to one pixel
        place = pack_single(place, machine.atom_bytes)
    task.port.view(place.address, place.size)
    return place


def _expect_even(task: SdpRun) -> None:
    """Raises ArtefactError (E503) if batches do not start at even atoms, as SDP writes pairs of atoms.

    The strides of lines and surfaces must be even as well, if there is more than one pixel. Source: NVDLA's own
    assertions.
    """
    pair = 2 * task.machine.atom_bytes
    strides = () if _fetched_size(task.group)[:2] == (1, 1) else ("DST_LINE_STRIDE", "DST_SURFACE_STRIDE")
    for name in ("DST_BASE_ADDR_LOW", *strides):
        if task.group.bytes(name) % pair:
            found = f"{name} {task.group.bytes(name):#x} with several batches"
            raise trap(BLOCK, found, limit=f"a multiple of {pair} bytes")


def write(task: SdpRun, values: Array) -> None:
    """Stores the output (batch, surface, H, W, lane)."""
    if len(values) > 1:
        _expect_even(task)
    for batch, cube in enumerate(values):
        write_cube(task.port, destination(task, batch), task.machine, cube)


RDMA = "SDP_RDMA"
COMPONENTS = {"MUL": ("MUL",), "ALU": ("ALU",), "BOTH": ("ALU", "MUL")}
"""The components of an operand's element in memory order, by DATA_USE."""


@frozen
class _FetchedOperands:
    """A unit's operands from memory, ALU and MUL, broadcastable to (batch, surface, H, W, lane)."""

    components: dict[str, Array]

    def __getitem__(self, component: str) -> Array:
        """The operand. Raises ArtefactError (E503) if it is not fetched."""
        if component not in self.components:
            known = ", ".join(self.components) or "nothing: the DMA is disabled"
            raise trap("SDP", f"waits for {component} operands that {RDMA} does not fetch", limit=known)
        return self.components[component]

    def rows(self, rows: slice) -> _FetchedOperands:
        """The operands of some rows; those that all rows share are kept."""
        return _FetchedOperands(
            {name: each if each.shape[2] == 1 else each[:, :, rows] for name, each in self.components.items()}
        )


def _fetched_size(group: RegisterGroup) -> tuple[int, int, int]:
    """Height, width and channels of the cube."""
    return group["HEIGHT"] + 1, group["WIDTH"] + 1, group["CHANNEL"] + 1


def pack_single(place: Pattern, atom: int) -> Pattern:
    """The place of a cube of SDP: one of a single pixel is packed, atom after atom, whatever its strides."""
    single = (place.line_bytes, place.lines) == (atom, 1)
    return Pattern(place.address, atom, 1, 0, place.surfaces, atom) if single else place


def _fetch_input(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The input of SDP (batch, surface, H, W, lane) in its own type."""
    height, width, channels = _fetched_size(group)
    kind = group.value_name("IN_PRECISION").lower()
    surfaces = -(-channels // machine.atom_elements(kind))
    place = pack_single(place_cube(group, "SRC", (height, width, surfaces), machine), machine.atom_bytes)
    if group["BATCH_NUMBER"]:
        raise trap(RDMA, f"{group['BATCH_NUMBER'] + 1} batches of a cube in memory", limit="1")
    return read_cube(port, place, machine, kind)[None]


def _fetch_operands(
    group: RegisterGroup | None, unit: str, machine: Machine, port: MemoryPort
) -> _FetchedOperands:
    """The operands fetched for a unit (BS, BN or EW)."""
    letter = {"BS": "B", "BN": "N", "EW": "E"}[unit]
    if group is None or group[f"{letter}RDMA_DISABLE"]:
        return _FetchedOperands({})
    names = COMPONENTS[group.value_name(f"{letter}RDMA_DATA_USE")]
    kind = group.value_name("PROC_PRECISION").lower()
    one = group.value_name(f"{letter}RDMA_DATA_SIZE") == "ONE_BYTE"
    dtype = np.dtype(np.int8) if one else np.dtype(np.float16 if kind == "fp16" else np.int16)
    lanes = machine.atom_elements(kind)
    fetched = [
        _operand_bytes(group, unit, port, (lanes * len(names) * dtype.itemsize, machine.atom_bytes, lanes), batch)
        for batch in range(group["BATCH_NUMBER"] + 1)
    ]
    values = np.stack(fetched).view(dtype)
    split = values.reshape(*values.shape[:-1], lanes, len(names))
    return _FetchedOperands({name: split[..., each] for each, name in enumerate(names)})


def _operand_bytes(
    group: RegisterGroup, unit: str, port: MemoryPort, sizes: tuple[int, int, int], batch: int
) -> Array:
    """The bytes (surface, H, W, byte of the atom) of an operand; if per channel, H = W = 1, without gaps."""
    atom, unit_bytes, lanes = sizes
    letter = {"BS": "B", "BN": "N", "EW": "E"}[unit]
    height, width, channels = _fetched_size(group)
    surfaces = -(-channels // lanes)
    start = group.address(f"{unit}_BASE_ADDR_LOW", f"{unit}_BASE_ADDR_HIGH", f"{letter}RDMA_RAM_TYPE")
    if batch:
        start += batch * group.bytes(f"{unit}_BATCH_STRIDE")
    if group.value_name(f"{letter}RDMA_DATA_MODE") == "PER_KERNEL" or (height, width) == (1, 1):
        row = port.cube(Pattern(start, surfaces * atom), atom, unit=unit_bytes)
        return np.ascontiguousarray(row).reshape(surfaces, 1, 1, atom)
    line, surface = group.bytes(f"{unit}_LINE_STRIDE"), group.bytes(f"{unit}_SURFACE_STRIDE")
    place = Pattern(start, width * atom, height, line, surfaces, surface)
    return np.ascontiguousarray(port.cube(place, atom, unit=unit_bytes))
