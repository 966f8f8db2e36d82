"""NVDLA's limits at their borders: the last register value that holds, and the first one beyond it.

The borders are those of the hardware's own assertions, and of PDP's lines as its RTL computes them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from npuc.errors import ArtefactError
from npuc.targets.nvdla import model, trace
from npuc.targets.nvdla.emission import program
from npuc.targets.nvdla.machine import limits
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.model.register_file import RegisterGroup
from npuc.targets.nvdla.operations.operation import KernelWindow, Pooling, Surface
from tests.given import GIVEN
from tests.nvdla.against_plain import compared

Fields = dict[str, int | str]


def group(machine: Machine, block: str, fields: Fields) -> RegisterGroup:
    """The registers of a block with these fields, by their own names or REGISTER.FIELD."""
    known = register_map(machine.registers)
    values = {each.name: each.reset for each in known.registers if each.block == block}
    for name, value in fields.items():
        register, _, field = name.rpartition(".")
        where = next(
            each
            for each in known.registers
            if each.block == block and field in each.places and register in ("", each.name)
        )
        place = where.places[field]
        number = dict(place.names)[value] if isinstance(value, str) else value
        mask = (1 << place.width) - 1 << place.low
        values[where.name] = values[where.name] & ~mask | number << place.low & mask
    return RegisterGroup(known, block, values)


AVERAGE: Fields = {"POOLING_METHOD": "POOLING_METHOD_AVERAGE", **{f"PAD_VALUE_{k}X": 3 * k for k in range(1, 8)}}
MAXIMUM: Fields = {"POOLING_METHOD": "POOLING_METHOD_MAX"}
NARROW: Fields = MAXIMUM | {"CUBE_IN_WIDTH": 0, "PAD_LEFT": 0, "PAD_RIGHT": 7, "KERNEL_WIDTH": 1}
PAIR: Fields = {"BRDMA_DISABLE": 0, "NRDMA_DISABLE": 1, "ERDMA_DISABLE": 1, "BRDMA_DATA_USE": "BOTH",
                "BRDMA_DATA_SIZE": "TWO_BYTE", "BS_BASE_ADDR_LOW": 2, "FLYING_MODE": "ON"}  # fmt: skip
INT8: Fields = {"IN_PRECISION": "INT8", "PROC_PRECISION": "INT8"}
SPARSE: Fields = INT8 | {
    "WEIGHT_FORMAT": "COMPRESSED",
    "WEIGHT_KERNEL": 39,
    "BYTE_PER_KERNEL": 1023,
    "WMB_BYTES": 40,
}
TILED: Fields = INT8 | {"CONV_MODE": "WINOGRAD", "DATAIN_CHANNEL": 31, "DATAIN_WIDTH": 9, "DATAIN_HEIGHT": 9,
                 "DATAIN_WIDTH_EXT": 11, "DATAIN_HEIGHT_EXT": 11,
                 "PAD_LEFT": 1, "PAD_RIGHT": 1, "PAD_TOP": 0, "PAD_BOTTOM": 2}  # fmt: skip
TILES: Fields = {"CONV_MODE": "WINOGRAD", "DATAOUT_WIDTH": 7, "DATAOUT_HEIGHT": 7, "RLS_SLICES": 7,
                 "DATAIN_WIDTH_EXT": 7, "DATAIN_HEIGHT_EXT": 7, "DATAIN_CHANNEL_EXT": 7}  # fmt: skip
JOINED: Fields = {"DATAIN_FORMAT": "PIXEL", "Y_EXTENSION": 1, "DATAIN_CHANNEL_EXT": 3, "WEIGHT_CHANNEL_EXT": 31}


@pytest.mark.parametrize(("machine", "block", "held", "beyond", "limit"), [
    *((machine, "PDP", MAXIMUM | {"KERNEL_HEIGHT": kernel - 1, "KERNEL_STRIDE_HEIGHT": stride - 1,
        "CUBE_OUT_WIDTH": columns - 1}, {"CUBE_OUT_WIDTH": columns}, "buffered_lines") for machine in (SMALL,
        LARGE, FULL) for columns, windows in {128: [(1, 1), (2, 2), (7, 7), (3, 8)],
        64: [(2, 1), (3, 2), (4, 2), (6, 3), (5, 4), (8, 7)], 32: [(3, 1), (4, 1), (5, 2), (8, 2), (7, 3), (8, 3)],
        16: [(5, 1), (8, 1)]}.items() for kernel, stride in windows),
    (SMALL, "PDP", MAXIMUM | {"SPLIT_NUM": 2, "CUBE_OUT_WIDTH": 299, "PARTIAL_WIDTH_OUT_FIRST": 99,
        "PARTIAL_WIDTH_OUT_MID": 127, "PARTIAL_WIDTH_OUT_LAST": 99}, {"PARTIAL_WIDTH_OUT_MID": 128},
        "buffered_lines"),
    (SMALL, "PDP", NARROW, {"KERNEL_WIDTH": 8}, "narrow_maps"),
    (SMALL, "PDP", NARROW | {"KERNEL_WIDTH": 1, "KERNEL_STRIDE_WIDTH": 0}, {}, ""),
    (SMALL, "PDP", AVERAGE, {"PAD_VALUE_7X": 22}, "pads_of_averages"),
    (SMALL, "PDP", AVERAGE | {f"PAD_VALUE_{k}X": -128 * k for k in range(1, 8)},
        {f"PAD_VALUE_{k}X": -129 * k for k in range(1, 8)}, "pads_of_averages"),
    (FULL, "PDP", AVERAGE | {"INPUT_DATA": "INT16"} | {f"PAD_VALUE_{k}X": 129 * k for k in range(1, 8)},
        {"PAD_VALUE_2X": 257}, "pads_of_averages"),
    (FULL, "PDP", AVERAGE | {"INPUT_DATA": "FP16"} | {f"PAD_VALUE_{k}X": 0x70000 for k in range(1, 8)},
        {"PAD_VALUE_3X": 1}, "pads_of_half_averages"),
    (FULL, "SDP_RDMA", PAIR | {"PROC_PRECISION": "INT16"}, {"BRDMA_DATA_USE": "ALU",
        "BRDMA_DATA_SIZE": "ONE_BYTE"}, "sizes_of_operands"),
    (FULL, "SDP_RDMA", PAIR, {"BS_BASE_ADDR_LOW": 3}, "pairs_of_operands"),
    (FULL, "SDP_RDMA", PAIR | {"BRDMA_DATA_MODE": "PER_ELEMENT", "BS_LINE_STRIDE": 2, "BS_SURFACE_STRIDE": 4},
        {"BS_LINE_STRIDE": 3}, "pairs_of_operands"),
    (SMALL, "SDP_RDMA", PAIR, {}, ""),
    (FULL, "SDP_RDMA", PAIR | {"WINOGRAD": 1, "HEIGHT": 7}, {"HEIGHT": 6}, "operands_of_tiles"),
    (FULL, "CDMA", {"BATCHES": 31}, {"CONV_MODE": "WINOGRAD"}, "batches"),
    (SMALL, "CDMA", {"BATCHES": 0}, {"BATCHES": 1}, "batches"),
    (SMALL, "CDMA", {"PIXEL_Y_OFFSET": 7}, {"DATAIN_FORMAT": "PIXEL"}, "first_line"),
    (FULL, "CDMA", SPARSE, {"WMB_BYTES": 41}, "mask_bytes"),
    (FULL, "CDMA", SPARSE | {"WEIGHT_KERNEL": 31, "BYTE_PER_KERNEL": 8159, "WMB_BYTES": 255},
        {"BYTE_PER_KERNEL": 8191, "WMB_BYTES": 256}, "mask_of_group"),
    (SMALL, "CDMA", {"SKIP_WEIGHT_RLS": 1, "WEIGHT_BANK": 1, "WEIGHT_BYTES": 8192}, {"WEIGHT_BYTES": 8200},
        "kept_weights"),
    (SMALL, "CDMA", {"GRAINS": 4094}, {"GRAINS": 4095}, "fetched_lines"),
    (FULL, "CDMA", TILED, {"DATAIN_FORMAT": "PIXEL"}, "extended_data"),
    (FULL, "CDMA", TILED, {"DATAIN_CHANNEL": 32}, "extended_data"),
    (FULL, "CDMA", TILED, {"PAD_BOTTOM": 3}, "extended_data"),
    (FULL, "CDMA", TILED, {"DATAIN_WIDTH_EXT": 12, "PAD_RIGHT": 2}, "extended_data"),
    (FULL, "CDMA", TILED | {"ENTRIES": 1023}, {"ENTRIES": 1024}, "extended_entries"),
    *((FULL, "CSC", TILES, {name: value}, "tiles") for name, value in {"DATAOUT_WIDTH": 6, "DATAIN_HEIGHT_EXT": 8,
        "RLS_SLICES": 5, "DATAIN_CHANNEL_EXT": 5, "CONV_X_STRIDE_EXT": 1, "Y_DILATION_EXT": 1}.items()),
    (FULL, "CSC", {"DATAIN_FORMAT": "PIXEL", "WEIGHT_CHANNEL_EXT": 127}, {"WEIGHT_CHANNEL_EXT": 128},
        "pixels_of_kernel"),
    (FULL, "CSC", JOINED, {"WEIGHT_CHANNEL_EXT": 35}, "joined_lines"),
    (FULL, "CSC", JOINED | {"CONV_X_STRIDE_EXT": 7}, {"Y_EXTENSION": 2}, "joined_lines"),
    (FULL, "CSC", JOINED | {"WEIGHT_CHANNEL_EXT": 7}, {"Y_EXTENSION": 3}, "joined_lines"),
    (FULL, "CSC", JOINED, {"DATAIN_FORMAT": "FEATURE"}, "joined_lines"),
    (FULL, "CSC", {"ENTRIES": 119, "RLS_SLICES": 0, "Y_DILATION_EXT": 31}, {"ENTRIES": 120}, "held_entries"),
    (FULL, "CSC", {"ENTRIES": 255, "RLS_SLICES": 14}, {"RLS_SLICES": 15}, "held_entries"),
    (SMALL, "CSC", {"WEIGHT_KERNEL": 7, "DATAOUT_CHANNEL": 7}, {"DATAOUT_CHANNEL": 8}, "results_of_kernels"),
    (FULL, "CDP", {"INPUT_DATA_TYPE": "INT8", "DATIN_OFFSET": -128, "DATOUT_OFFSET": -(1 << 24)},
        {"DATIN_OFFSET": 128}, "offsets"),
    (FULL, "CDP", {"INPUT_DATA_TYPE": "INT8", "DATIN_OFFSET": 127, "DATOUT_OFFSET": (1 << 24) - 1},
        {"DATOUT_OFFSET": 1 << 24}, "offsets"),
    (FULL, "CDP", {"INPUT_DATA_TYPE": "FP16", "LUT_LE_START_LOW": 0x7F800000}, {"LUT_LE_START_LOW": 0xFFC00000},
        "starts_of_tables"),
    (FULL, "BDMA", {"CFG_LINE.SIZE": 9, "CFG_SRC_LINE.STRIDE": 10}, {"CFG_LINE.SIZE": 10}, "copied_lines"),
])  # fmt: skip
def test_the_border_of_a_limit(machine: Machine, block: str, held: Fields, beyond: Fields, limit: str) -> None:
    found = limits.breach(group(machine, block, held), machine)
    assert found is None
    if limit:
        found = limits.breach(group(machine, block, held | beyond), machine)
        assert found is not None
        assert found[1] == limits.sentence(getattr(limits, limit))


FOLDER = GIVEN / "nvdla"
PROGRAMS = [
    f"{group}/{each.relative_to(FOLDER / group).as_posix()}"
    for group, pattern in (("hangs", "*/*"), ("rtl", "*/*_w258"))
    for each in sorted((FOLDER / group).glob(pattern))
]


@pytest.mark.skipif(not PROGRAMS, reason="the programs that ran on the RTL are not here")
@pytest.mark.parametrize("name", PROGRAMS or ["none"])
def test_a_pool_that_hangs_the_chip_or_is_silently_wrong_is_refused(name: str) -> None:
    found = trace.read(FOLDER / name, name.split("/")[1])
    with pytest.raises(ArtefactError, match=r"E503\] PDP: \d+ columns, windows \d high with stride"):
        model.run(found.machine, found.commands, found.memory())


@pytest.mark.skipif(not PROGRAMS, reason="the programs that ran on the RTL are not here")
@pytest.mark.parametrize("target", ["nvdla-small", "nvdla-large", "nvdla-full"])
@pytest.mark.parametrize("name", PROGRAMS or ["none"])
def test_its_network_becomes_a_program_within_the_limits(name: str, target: str, tmp_path: Path) -> None:
    count, differing = compared(onnx.load(FOLDER / name / "model.onnx"), tmp_path, target, "int8")
    assert count
    assert not differing


def test_a_program_beyond_a_limit_is_not_written() -> None:
    source, result = (
        Surface(0x80000000 + at, width, 4, 8, 8 * width, 32 * width) for at, width in ((0, 130), (1 << 16, 129))
    )
    window = KernelWindow(1, 1, 1, 1, 0, 0, 0, 0)
    pooling = Pooling(source, "MAX", (1, 2), window, (1, 1), result)
    with pytest.raises(ArtefactError, match=r"PDP: 129 columns"):
        program(SMALL, [pooling])
    program(SMALL, [replace(pooling, source=replace(source, width=129), destination=replace(result, width=128))])
