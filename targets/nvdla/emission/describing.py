"""Operations as the descriptors of NVDLA's firmware, whose tables turn them into registers.

A cube's offset is its address in memory; that of a cube which does not lie in memory is 0.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from npuc.frozen import frozen
from npuc.targets.nvdla.arithmetic.integer import ALU as ALGORITHMS
from npuc.targets.nvdla.arithmetic.integer import LE_ENTRIES
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.descriptors import DataCube
from npuc.targets.nvdla.firmware.post_processing import (
    ALU,
    MUL,
    PER_CHANNEL,
    PER_ELEMENT,
    PER_LAYER,
    PRELU,
    RELU,
    TABLE,
    reciprocal,
)
from npuc.targets.nvdla.formats.pixels import FORMATS, NAMES, Conversion
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model.arithmetic import sign_extend
from npuc.targets.nvdla.operations.operation import (
    Contraction,
    Convolution,
    Elementwise,
    KernelWindow,
    Normalisation,
    Operation,
    OperationTables,
    Pooling,
    Ramp,
    Sdp,
    Surface,
    Unit,
)

PRECISIONS = ("int8", "int16", "fp16")
ALUS = ("max", "min", "sum")
METHODS = ("AVERAGE", "MAX", "MIN")
LIMIT_BITS = {"SDP": 32, "CDP": 38}
"""The width of a table's start and end in the registers of each block."""


@frozen
class Described:
    """What one engine does of an operation."""

    engine: int
    op: of.Operation
    surfaces: Any
    lut: of.Lut | None = None
    behind: bool = False
    """Whether it receives the result of the engine before it through the pipe."""
    reciprocals: tuple[int, int] | None = None
    """Of an average's width and height, if they are not those of its kernel."""
    mixed: str = ""
    """The unit of SDP with one operand in memory and one in a register, for which descriptors have no mode."""

    @property
    def cubes(self) -> dict[str, DataCube]:
        """The cubes in memory, by their names in the surfaces."""
        found = {each.name: getattr(self.surfaces, each.name) for each in fields(self.surfaces)}
        return {name: cube for name, cube in found.items() if isinstance(cube, DataCube) and cube.offset}


def describe(operation: Operation, machine: Machine) -> list[Described]:
    """The engines of an operation in the order of the pipe; none for BDMA, of which the firmware knows nothing."""
    match operation:
        case Convolution() | Elementwise():
            found = [_sdp(operation, machine)]
            if isinstance(operation, Convolution):
                found.insert(0, _convolution(operation, machine))
            if operation.pooling:
                found.append(_pooling(operation.pooling, machine, behind=True))
            return found
        case Pooling():
            return [_pooling(operation, machine, behind=False)]
        case Normalisation():
            return [_normalisation(operation, machine)]
        case Contraction():
            op = of.Rubik(precision=_precision(operation.source), stride_x=operation.step)
            return [Described(of.RUBIK, op, _surfaces(operation, machine))]
        case _:
            return []


def _in_pipe(like: Surface, atom_bytes: int) -> DataCube:
    """A cube of the same extents in the pipe between two engines, with the strides of a packed one."""
    line = like.width * atom_bytes
    surface = line * like.height
    return DataCube(
        type=of.HARDWARE, address=of.NONE, size=surface * -(-like.channels // atom_bytes),
        width=like.width, height=like.height, channels=like.channels, line_stride=line, surface_stride=surface,
    )  # fmt: skip


def _precision(surface: Surface) -> int:
    return PRECISIONS.index(surface.precision)


def _cube_at(address: int, machine: Machine, **values: int) -> DataCube:
    """A cube at an address."""
    return DataCube(type=of.SRAM if machine.in_sram(address) else of.DRAM, offset=address, **values)


def _cube(surface: Surface, machine: Machine) -> DataCube:
    return _cube_at(
        surface.address, machine, width=surface.width, height=surface.height, channels=surface.channels,
        line_stride=surface.line_stride, surface_stride=surface.surface_stride,
    )  # fmt: skip


def _surfaces(operation: Pooling | Normalisation | Contraction, machine: Machine) -> of.PlanarSurfaces:
    return of.PlanarSurfaces(source=_cube(operation.source, machine), result=_cube(operation.destination, machine))


def _window(window: KernelWindow) -> of.WindowFields:
    return of.WindowFields(
        stride_x=window.stride_x, stride_y=window.stride_y, pad_left=window.left, pad_right=window.right,
        pad_top=window.top, pad_bottom=window.bottom,
    )  # fmt: skip


def _convolution(operation: Convolution, machine: Machine) -> Described:
    """CDMA, CSC, CMAC and CACC."""
    source, kernels, window = operation.source.share(operation.batches), operation.kernels, operation.window
    result, mask = operation.destination.share(operation.batches), kernels.mask
    width, height = operation.data_extents
    winograd = kernels.form.kind == "winograd"
    planes = source.atoms(machine.atom_bytes) if source.pixels else 1
    precision = _precision(source)
    held = FORMATS[source.pixels].precision if source.pixels else source.precision
    converted = source.conversion or Conversion((0,))
    offset, several = converted.offsets[0], len(set(converted.offsets)) > 1
    op = of.Convolution(
        mode=int(winograd), entries_per_slice=operation.banks.entries_per_slice,
        data_format=NAMES.index(source.pixels) if source.pixels else of.FEATURE_FORMAT,
        pixel_override=int(bool(source.pixels) and not source.conversion), batch=operation.batches,
        weight_format=int(mask is not None),
        data_bank=operation.banks.data, weight_bank=operation.banks.weights,
        batch_stride=source.height * source.line_stride if operation.batches > 1 else 0,
        post_extension=kernels.form.lines // 2, release=height, csc_width=width, csc_height=height,
        csc_channels=kernels.channels if winograd else source.channels,
        kernel_width=kernels.width, kernel_height=kernels.height, kernel_channels=kernels.channels,
        cmac_width=result.width, cmac_height=result.height, bytes_per_kernel=kernels.kernel_bytes,
        window=_window(window), dilation_x=window.dilation_x, dilation_y=window.dilation_y,
        pra_truncate=operation.pra_truncate, in_precision=PRECISIONS.index(held), out_precision=precision,
        pad_value=sign_extend(window.value & 0xFFFF, 16),
        in_converter=of.Converter(
            scale=converted.scale, truncate=converted.truncate, offset=0 if several else offset,
            enable=int(bool(source.pixels) and held != "fp16"),
        ),
        means=(*converted.offsets, 0, 0, 0)[:4] if several else (0,) * 4, mean_format=int(several),
        out_converter=of.Converter(scale=1, truncate=operation.truncate, enable=1),
    )  # fmt: skip
    surfaces = of.ConvolutionSurfaces(
        weight=_cube_at(kernels.address, machine, size=kernels.bytes),
        mask=_cube_at(mask.address, machine, size=mask.bytes) if mask else DataCube(),
        group_sizes=_cube_at(mask.sizes_address, machine) if mask else DataCube(),
        source=_cube(source, machine),
        result=_in_pipe(result, machine.atom_bytes),
        second_plane_offset=source.surface_stride if planes > 1 else 0,
        second_plane_stride=source.line_stride if planes > 1 else 0,
    )
    return Described(of.CONV, op, surfaces)


def _sdp(operation: Convolution | Elementwise, machine: Machine) -> Described:
    """SDP on a map in memory, or behind a convolution."""
    behind = operation if isinstance(operation, Convolution) else None
    sdp, batches = operation.sdp, behind.batches if behind else 1
    result, atom_bytes = operation.destination.share(batches), machine.atom_bytes
    op = of.Sdp(
        source_precision=_precision(operation.source),
        result_precision=_precision(result),
        out_converter=_converter(sdp.converter),
        conv_mode=int(behind is not None and behind.kernels.form.kind == "winograd"),
        batch=batches,
        batch_stride=result.height * result.line_stride if batches > 1 else 0,
        x1=_unit(sdp.x1),
        x2=_unit(sdp.x2),
        y=_table(sdp),
    )
    surfaces = of.SdpSurfaces(
        source=_in_pipe(result, atom_bytes) if behind else _cube(operation.source, machine),
        x1=_operand(sdp.x1, op.x1, result, machine),
        x2=_operand(sdp.x2, op.x2, result, machine),
        y=DataCube(address=of.NONE),
        result=_in_pipe(result, atom_bytes) if operation.pooling else _cube(result, machine),
    )
    mixed = [
        name for name, unit in (("BS", sdp.x1), ("BN", sdp.x2)) if len(set(operand_sources(unit).values())) > 1
    ]
    lut = _lut(sdp.table, "SDP", "LO", "LO") if sdp.table else None
    return Described(of.SDP, op, surfaces, lut, behind is not None, mixed="".join(mixed[:1]))


def _converter(converter: tuple[int, int, int]) -> of.Converter:
    offset, scale, shift = converter
    return of.Converter(scale=sign_extend(scale & 0xFFFF, 16), truncate=shift, enable=1, offset=offset)


def operand_sources(unit: Unit) -> dict[str, str]:
    """Where the parts of a unit that are used have their operands: REG or MEM."""
    parts = (("ALU", unit.stage.alu, unit.alu), ("MUL", unit.stage.multiply, unit.multiplier))
    return {name: "MEM" if operand is None else "REG" for name, used, operand in parts if used}


def _unit(unit: Unit) -> of.SdpUnit:
    """X1 or X2."""
    stage, sources, fetch = unit.stage, operand_sources(unit), unit.fetch
    if stage.idle:
        return of.SdpUnit()
    mode = PER_LAYER
    if "MEM" in sources.values() and fetch is not None:
        mode = PER_ELEMENT if fetch.per_element else PER_CHANNEL
    return of.SdpUnit(
        enable=1,
        alu=ALUS.index(ALGORITHMS[stage.alu] if stage.alu else "sum"),
        use=ALU * ("ALU" in sources) | MUL * ("MUL" in sources),
        mode=mode,
        activation=RELU if stage.relu else PRELU if stage.prelu else 0,
        shift=stage.alu_shift,
        truncate=stage.shift,
        precision=int(mode != PER_LAYER and fetch is not None and fetch.component_bytes > 1),
        alu_operand=sign_extend((unit.alu or 0) & 0xFFFF, 16),
        mul_operand=sign_extend((unit.multiplier or 0) & 0xFFFF, 16),
    )


def _table(sdp: Sdp) -> of.SdpUnit:
    """Y: bypassed, or a table."""
    return of.SdpUnit(enable=1, activation=TABLE) if sdp.table else of.SdpUnit()


def _operand(unit: Unit, described: of.SdpUnit, result: Surface, machine: Machine) -> DataCube:
    """The operands of a unit in memory."""
    fetch = unit.fetch
    if described.mode == PER_LAYER or fetch is None:
        return DataCube(address=of.NONE)
    strides = {"line_stride": fetch.line_stride, "surface_stride": fetch.surface_stride}
    width, height = (result.width, result.height) if fetch.per_element else (1, 1)
    return _cube_at(fetch.address, machine, width=width, height=height, channels=result.channels, **strides)


def _lut(tables: OperationTables, block: str, below: str, beyond: str) -> of.Lut:
    """Linear tables. below, beyond: the table outside both; where both hit, LE is used if present."""
    lo, le = tables.lo, tables.le or Ramp((0,) * LE_ENTRIES, tables.lo.start, tables.lo.start, 0)
    mask = (1 << LIMIT_BITS[block]) - 1
    both, numbers = "LO" if tables.le is None else "LE", ("LE", "LO")
    return of.Lut(
        le=_entries(le), lo=_entries(lo), le_offset=sign_extend(le.select & 0xFF, 8),
        lo_offset=sign_extend(lo.select & 0xFF, 8), le_start=le.start & mask, le_end=le.end & mask,
        lo_start=lo.start & mask, lo_end=lo.end & mask, le_beyond=_slope(le), lo_beyond=_slope(lo),
        hybrid_priority=numbers.index(both), underflow_priority=numbers.index(below),
        overflow_priority=numbers.index(beyond), method=1,
    )  # fmt: skip


def _entries(ramp: Ramp) -> tuple[int, ...]:
    return tuple(sign_extend(each & 0xFFFF, 16) for each in ramp.entries)


def _slope(ramp: Ramp) -> tuple[int, int]:
    return sign_extend(ramp.slope & 0xFFFF, 16), sign_extend(ramp.shift & 0x1F, 5)


def _pooling(operation: Pooling, machine: Machine, *, behind: bool) -> Described:
    """PDP on a map in memory, or behind SDP, where only the extents of the source matter."""
    height, width = (each - 1 for each in operation.kernel)
    window, surfaces = operation.window, _surfaces(operation, machine)
    op = of.Pdp(
        method=METHODS.index(operation.method), kernel_width=width, kernel_height=height, window=_window(window),
        precision=_precision(operation.source), pad_values=tuple(each * window.value for each in range(1, 8)),
    )  # fmt: skip
    if behind:
        nowhere = {"type": of.HARDWARE, "address": of.NONE, "offset": 0, "line_stride": 0, "surface_stride": 0}
        surfaces = replace(surfaces, source=replace(surfaces.source, **nowhere))
    known = reciprocal(op, width), reciprocal(op, height)
    own = operation.reciprocals if operation.method == "AVERAGE" and operation.reciprocals != known else None
    return Described(of.PDP, op, surfaces, behind=behind, reciprocals=own)


def _normalisation(operation: Normalisation, machine: Machine) -> Described:
    """CDP."""
    precision = _precision(operation.source)
    op = of.Cdp(
        in_precision=precision, out_precision=precision, local_size=operation.size,
        in_converter=of.Converter(scale=1, offset=sign_extend(operation.zero & 0xFFFF, 16)),
        out_converter=replace(_converter(operation.converter), enable=0),
    )  # fmt: skip
    return Described(of.CDP, op, _surfaces(operation, machine), _lut(operation.tables, "CDP", "LE", "LO"))
