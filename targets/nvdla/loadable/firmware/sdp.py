"""SDP and its RDMA."""

from __future__ import annotations

from dataclasses import replace

from npuc.errors import ArtefactError
from npuc.targets.nvdla.loadable.descriptors import HARDWARE, NONE, Converter, Cube, Lut, Sdp, SdpSurfaces, SdpUnit
from npuc.targets.nvdla.loadable.firmware.convolution import flying
from npuc.targets.nvdla.loadable.firmware.lines import WORD, Derived, Firmware, ReadBack, Writes, known, lines, ram
from npuc.targets.nvdla.loadable.firmware.look_up import FP16, look_up_tables
from npuc.targets.nvdla.loadable.structures import assembled
from npuc.targets.nvdla.model.arithmetic import signed
from npuc.targets.nvdla.model.register_file import Group

PER_LAYER, PER_CHANNEL, PER_ELEMENT = range(3)
NOTHING, MUL, ALU, BOTH = range(4)
RELU, TABLE, PRELU = 1, 2, 3
SUM = 2
DATA_USE = ("MUL", "MUL", "ALU", "BOTH")
DATA_MODE = ("PER_ELEMENT", "PER_KERNEL", "PER_ELEMENT")
PROCESSING = ((0, 0, 0), (0, 1, 2), (0, 1, 2))
"""The processing precision, by the precision of result and source."""
UNITS = (("BS", "B", "x1"), ("BN", "N", "x2"), ("EW", "E", "y"))
"""Names of a unit: in SDP's registers, in those of SDP_RDMA, in descriptors."""

FETCH_CUBE = lines("""
SDP_RDMA.D_DATA_CUBE_WIDTH *=surfaces.source.width-1
SDP_RDMA.D_DATA_CUBE_HEIGHT *=surfaces.source.height-1
SDP_RDMA.D_DATA_CUBE_CHANNEL *=surfaces.source.channels-1
""")
FETCH_SOURCE = lines("""
SDP_RDMA.D_SRC_BASE_ADDR_LOW *=low(surfaces.source)
SDP_RDMA.D_SRC_BASE_ADDR_HIGH *=high(surfaces.source)
SDP_RDMA.D_SRC_LINE_STRIDE *=surfaces.source.line_stride
SDP_RDMA.D_SRC_SURFACE_STRIDE *=surfaces.source.surface_stride
SDP_RDMA.D_SRC_DMA_CFG *=ram(surfaces.source)
""")
MODE = (
    "SDP_RDMA.D_FEATURE_MODE_CFG FLYING_MODE=:flying WINOGRAD=op.conv_mode IN_PRECISION=op.source_precision"
    " OUT_PRECISION=op.result_precision PROC_PRECISION=:processing BATCH_NUMBER=op.batch-1"
)
FETCH_MODE = lines(MODE)
CUBE = lines("""
SDP.D_DATA_CUBE_WIDTH *=surfaces.source.width-1
SDP.D_DATA_CUBE_HEIGHT *=surfaces.source.height-1
SDP.D_DATA_CUBE_CHANNEL *=surfaces.source.channels-1
""")
RESULT = lines("""
SDP.D_DST_BASE_ADDR_HIGH *=high(surfaces.result)
SDP.D_DST_BASE_ADDR_LOW *=low(surfaces.result)
SDP.D_DST_LINE_STRIDE *=surfaces.result.line_stride
SDP.D_DST_SURFACE_STRIDE *=surfaces.result.surface_stride
""")
OUTPUT_MODE = lines("""
SDP.D_FEATURE_MODE_CFG FLYING_MODE=:flying OUTPUT_DST=:to_pooling WINOGRAD=op.conv_mode BATCH_NUMBER=op.batch-1
SDP.D_DST_DMA_CFG *=ram(surfaces.result)
""")
BATCHES = lines("SDP.D_DST_BATCH_STRIDE *=op.batch_stride")
CONVERSION = lines("""
SDP.D_DATA_FORMAT PROC_PRECISION=:processing OUT_PRECISION=op.result_precision
SDP.D_CVT_OFFSET *=op.out_converter.offset
SDP.D_CVT_SCALE *=op.out_converter.scale
SDP.D_CVT_SHIFT *=op.out_converter.truncate
""")


def _derived(op: Sdp, surfaces: SdpSurfaces) -> Derived:
    return {
        "flying": int(surfaces.source.type == HARDWARE),
        "to_pooling": int(surfaces.result.type == HARDWARE),
        "processing": known(known(PROCESSING, op.result_precision), op.source_precision),
    }


def needs_rdma(op: Sdp, surfaces: SdpSurfaces) -> bool:
    """Whether SDP_RDMA runs with this operation."""
    fetched = any(unit.enable and unit.mode != PER_LAYER for unit in (op.x1, op.x2, op.y))
    return surfaces.source.type != HARDWARE or fetched


def sdp(firmware: Firmware, op: Sdp, surfaces: SdpSurfaces, lut: Lut | None) -> Writes:
    """The writes of SDP_RDMA, then of SDP."""
    yield "SDP_RDMA.D_FEATURE_MODE_CFG", 0
    for _, letter, _ in UNITS:
        yield f"SDP_RDMA.D_{letter}RDMA_CFG", 0
    derived = _derived(op, surfaces)
    yield from firmware.writes(FETCH_MODE, op, surfaces, derived)
    if needs_rdma(op, surfaces):
        yield from _rdma(firmware, op, surfaces)
    if lut is not None:
        yield from look_up_tables(firmware, "SDP", lut, floating=op.source_precision == FP16)
    in_memory = surfaces.result.type != HARDWARE
    yield from firmware.writes([*CUBE, *(RESULT if in_memory else ())], op, surfaces)
    yield from _x(firmware, "BS", op.x1)
    yield from _x(firmware, "BN", op.x2)
    yield from _y(firmware, op.y)
    batches = BATCHES if op.batch > 1 else ()
    yield from firmware.writes([*OUTPUT_MODE, *batches, *CONVERSION], op, surfaces, derived)


def _rdma(firmware: Firmware, op: Sdp, surfaces: SdpSurfaces) -> Writes:
    in_memory = surfaces.source.type != HARDWARE
    yield from firmware.writes([*FETCH_CUBE, *(FETCH_SOURCE if in_memory else ())], op, surfaces)
    cubes = (surfaces.x1, surfaces.x2, surfaces.y)
    for (name, letter, _), unit, cube in zip(UNITS, (op.x1, op.x2, op.y), cubes, strict=True):
        fetched = bool(unit.enable and unit.use and unit.mode != PER_LAYER)
        title = f"SDP_RDMA.D_{letter}RDMA_CFG"
        values: dict[str, int | str] = {
            "DISABLE": int(not fetched),
            "DATA_USE": DATA_USE[unit.use],
            "DATA_SIZE": int(unit.precision > 0),
            "DATA_MODE": DATA_MODE[unit.mode],
            "RAM_TYPE": ram(cube),
        }
        yield firmware.fields(title, **{f"{letter}RDMA_{field}": value for field, value in values.items()})
        if fetched:
            address = firmware.at(cube)
            yield f"SDP_RDMA.D_{name}_BASE_ADDR_LOW", address & WORD
            yield f"SDP_RDMA.D_{name}_BASE_ADDR_HIGH", address >> 32
            yield f"SDP_RDMA.D_{name}_LINE_STRIDE", cube.line_stride
            yield f"SDP_RDMA.D_{name}_SURFACE_STRIDE", cube.surface_stride


def _bypasses(name: str, unit: SdpUnit) -> dict[str, int]:
    """The configuration fields that all units share."""
    return {
        f"{name}_BYPASS": int(not unit.enable),
        f"{name}_ALU_BYPASS": int(unit.use not in (ALU, BOTH)),
        f"{name}_ALU_ALGO": unit.alu,
        f"{name}_MUL_BYPASS": int(unit.use not in (MUL, BOTH)),
        f"{name}_MUL_PRELU": int(unit.activation == PRELU),
    }


def _x(firmware: Firmware, name: str, unit: SdpUnit) -> Writes:
    relu = {f"{name}_RELU_BYPASS": int(unit.activation != RELU)}
    yield firmware.fields(f"SDP.D_DP_{name}_CFG", **_bypasses(name, unit), **relu)
    if not unit.enable:
        return
    memory = int(unit.mode != PER_LAYER)
    if unit.use in (ALU, BOTH):
        shift = {f"{name}_ALU_SHIFT_VALUE": unit.shift}
        yield firmware.fields(f"SDP.D_DP_{name}_ALU_CFG", **{f"{name}_ALU_SRC": memory}, **shift)
    if not memory:
        yield f"SDP.D_DP_{name}_ALU_SRC_VALUE", unit.alu_operand & WORD
        yield f"SDP.D_DP_{name}_MUL_SRC_VALUE", unit.mul_operand & WORD
    shift = {f"{name}_MUL_SHIFT_VALUE": unit.truncate}
    yield firmware.fields(f"SDP.D_DP_{name}_MUL_CFG", **{f"{name}_MUL_SRC": memory}, **shift)


def _y(firmware: Firmware, unit: SdpUnit) -> Writes:
    table = {"EW_LUT_BYPASS": int(unit.activation != TABLE)}
    yield firmware.fields("SDP.D_DP_EW_CFG", **_bypasses("EW", unit), **table)
    if not unit.enable:
        return
    memory = int(unit.mode != PER_LAYER)
    parts = (
        ("ALU", ALU, unit.alu_converter, unit.alu_operand),
        ("MUL", MUL, unit.mul_converter, unit.mul_operand),
    )
    for part, use, converter, operand in parts:
        if unit.use not in (use, BOTH):
            continue
        bypass = {f"EW_{part}_CVT_BYPASS": int(not converter.enable)}
        yield firmware.fields(f"SDP.D_DP_EW_{part}_CFG", **{f"EW_{part}_SRC": memory}, **bypass)
        if not memory:
            yield f"SDP.D_DP_EW_{part}_SRC_VALUE", operand & WORD
            continue
        yield f"SDP.D_DP_EW_{part}_CVT_OFFSET_VALUE", converter.offset & WORD
        yield f"SDP.D_DP_EW_{part}_CVT_SCALE_VALUE", converter.scale & WORD
        yield f"SDP.D_DP_EW_{part}_CVT_TRUNCATE_VALUE", converter.truncate
    yield "SDP.D_DP_EW_TRUNCATE_VALUE", unit.truncate


def sdp_of(read: ReadBack, atom_bytes: int) -> tuple[Sdp, SdpSurfaces]:
    """The operation described by registers, its cubes without addresses.

    Raises ArtefactError (E506) for what the firmware cannot set: operands of one unit in memory and in registers.
    """
    group, rdma = read.groups["SDP"], read.groups.get("SDP_RDMA")
    flies, to_pooling = group.named("FLYING_MODE") == "ON", group.named("OUTPUT_DST") == "PDP"
    tables = [*CUBE, *OUTPUT_MODE, *CONVERSION, *(BATCHES if group["BATCH_NUMBER"] else ())]
    tables += () if to_pooling else RESULT
    tables += () if rdma is None else (*FETCH_MODE, *FETCH_CUBE)
    tables += () if flies else FETCH_SOURCE
    read.read(tables)
    read.signed("op.out_converter.offset", 32)
    read.signed("op.out_converter.scale", 16)
    read.values.setdefault("op.source_precision", group["PROC_PRECISION"])
    units = {place: _unit(read, name, letter, place) for name, letter, place in UNITS}
    op = replace(assembled(Sdp, read.of("op")), **units)
    op = replace(op, out_converter=replace(op.out_converter, enable=1))
    surfaces = assembled(SdpSurfaces, read.of("surfaces"))
    extents = replace(
        surfaces.result,
        width=surfaces.source.width, height=surfaces.source.height, channels=surfaces.source.channels,
    )  # fmt: skip
    source = flying(surfaces.source, atom_bytes) if flies else surfaces.source
    result = flying(extents, atom_bytes) if to_pooling else extents
    cubes = {place: _operand_cube(read, name, surfaces.source, getattr(op, place))
             for name, _, place in UNITS}  # fmt: skip
    return op, replace(surfaces, source=source, result=result, **cubes)


def _unit(read: ReadBack, name: str, letter: str, place: str) -> SdpUnit:
    """X1, X2 or Y as described by registers."""
    group, rdma = read.groups["SDP"], read.groups.get("SDP_RDMA")
    if group[f"{name}_BYPASS"]:
        return SdpUnit()
    use = (NOTHING if group[f"{name}_ALU_BYPASS"] else ALU) | (NOTHING if group[f"{name}_MUL_BYPASS"] else MUL)
    mode = _mode(group, rdma, name, letter, use)
    size = 0
    if mode != PER_LAYER and rdma is not None:
        size = rdma[f"{letter}RDMA_DATA_SIZE"]
        low, high = (rdma.values[f"D_{name}_BASE_ADDR_{half}"] for half in ("LOW", "HIGH"))
        read.addresses[f"surfaces.{place}"] = high << 32 | low
    y = name == "EW"
    relu, table = not y and not group[f"{name}_RELU_BYPASS"], y and not group["EW_LUT_BYPASS"]
    prelu = use & MUL and group[f"{name}_MUL_PRELU"]
    return SdpUnit(
        enable=1,
        alu=group[f"{name}_ALU_ALGO"],
        use=use,
        mode=mode,
        activation=RELU if relu else TABLE if table else PRELU if prelu else 0,
        shift=0 if y else group[f"{name}_ALU_SHIFT_VALUE"],
        truncate=group["EW_TRUNCATE"] if y else group[f"{name}_MUL_SHIFT_VALUE"],
        precision=size,
        alu_operand=group.signed(f"{name}_ALU_OPERAND"),
        mul_operand=group.signed(f"{name}_MUL_OPERAND"),
        alu_converter=_converter(group, "ALU") if y else Converter(),
        mul_converter=_converter(group, "MUL") if y else Converter(),
    )


def _mode(group: Group, rdma: Group | None, name: str, letter: str, use: int) -> int:
    """The mode of a unit's operands: in registers, or in memory per channel or element."""
    parts = [part for part, number in (("ALU", ALU), ("MUL", MUL)) if use & number]
    sources = {group.named(f"{name}_{part}_SRC") for part in parts}
    if len(sources) > 1:
        reason = f"{name} takes one operand from memory and one from a register"
        raise ArtefactError("E506", reason, op="SDP", limit="both from the same: descriptors have one mode a unit")
    if sources != {"MEM"} or rdma is None:
        return PER_LAYER
    return PER_ELEMENT if rdma.named(f"{letter}RDMA_DATA_MODE") == "PER_ELEMENT" else PER_CHANNEL


def _converter(group: Group, part: str) -> Converter:
    return Converter(
        scale=signed(group[f"EW_{part}_CVT_SCALE"], 16),
        truncate=group[f"EW_{part}_CVT_TRUNCATE"],
        enable=int(not group[f"EW_{part}_CVT_BYPASS"]),
        offset=signed(group[f"EW_{part}_CVT_OFFSET"], 32),
    )


def _operand_cube(read: ReadBack, name: str, whole: Cube, unit: SdpUnit) -> Cube:
    """The cube of a unit's operands in memory; empty if there are none."""
    rdma = read.groups.get("SDP_RDMA")
    if rdma is None or unit.mode == PER_LAYER:
        return Cube(address=NONE)
    whole_map = unit.mode == PER_ELEMENT
    return Cube(
        width=whole.width if whole_map else 1,
        height=whole.height if whole_map else 1,
        channels=whole.channels,
        line_stride=rdma.values[f"D_{name}_LINE_STRIDE"],
        surface_stride=rdma.values[f"D_{name}_SURFACE_STRIDE"],
    )
