"""SDP, PDP, CDP, RUBIK and BDMA on their own: values worked by hand from the rules of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.nvdla import model
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.machine.parameters import FULL, SMALL, Machine
from npuc.targets.nvdla.machine.registers import Command, Wait
from tests.nvdla.programs import OPERAND, RESULT, SOURCE, Convolution, Fields, memory, stride, writes

Contents = Mapping[int, bytes | Array]


def cube(machine: Machine, shape: tuple[int, int, int], kind: str) -> feature.Cube:
    """A packed cube (C, H, W)."""
    return feature.Cube.of(machine, shape[2], shape[1], shape[0], kind)


def place(machine: Machine, shape: tuple[int, int, int], side: str, kind: str) -> dict[str, dict[str, int | str]]:
    """Address and strides of a packed cube as registers, by the prefix of their names."""
    packed = cube(machine, shape, kind)
    block, prefix = side.split(".")
    address = SOURCE if prefix == "SRC" else RESULT
    values = {"BASE_ADDR_LOW": address, "LINE_STRIDE": packed.line_stride, "SURFACE_STRIDE": packed.surface_stride}
    return {
        f"{block}.D_{prefix}_{name}": {f"{prefix}_{name}": stride(machine, value)}
        for name, value in values.items()
    }


def ran(
    machine: Machine, x: Array, out: tuple[tuple[int, int, int], str], registers: Fields, contents: Contents
) -> Array:
    """The result of a program that works on a cube (C, H, W) at SOURCE."""
    kind = {"int8": "int8", "int16": "int16", "float16": "fp16"}[str(x.dtype)]
    source = feature.pack(cube(machine, x.shape, kind), x)
    after = model.run(machine, writes(machine, registers), memory({SOURCE: source, **contents}))
    packed = cube(machine, *out)
    return feature.unpack(packed, np.frombuffer(after.read(RESULT, packed.bytes), np.uint8))


def sdp(
    x: Array, changed: Fields, contents: Contents | None = None, out: str | None = None, machine: Machine = FULL
) -> Array:
    """SDP from memory to memory, all units bypassed but what is changed."""
    kind = {"int8": "INT8", "int16": "INT16", "float16": "FP16"}[str(x.dtype)]
    result = out or kind
    processing = "INT8" if {kind, result} == {"INT8", "INT16"} else kind
    C, H, W = x.shape
    registers: dict[str, Mapping[str, int | str]] = {
        **{f"{each}.D_DATA_CUBE_WIDTH": {"WIDTH": W - 1} for each in ("SDP", "SDP_RDMA")},
        **{f"{each}.D_DATA_CUBE_HEIGHT": {"HEIGHT": H - 1} for each in ("SDP", "SDP_RDMA")},
        **{f"{each}.D_DATA_CUBE_CHANNEL": {"CHANNEL": C - 1} for each in ("SDP", "SDP_RDMA")},
        **place(machine, x.shape, "SDP_RDMA.SRC", kind.lower()),
        **place(machine, x.shape, "SDP.DST", result.lower()),
        **{f"SDP_RDMA.D_{each}RDMA_CFG": {f"{each}RDMA_DISABLE": 1} for each in "BNE"},
        **{f"SDP.D_DP_{each}_CFG": {f"{each}_BYPASS": 1} for each in ("BS", "BN", "EW")},
        "SDP_RDMA.D_FEATURE_MODE_CFG": {"FLYING_MODE": 0, "IN_PRECISION": kind, "PROC_PRECISION": processing,
                                        "OUT_PRECISION": result},
        "SDP.D_DATA_FORMAT": {"PROC_PRECISION": processing, "OUT_PRECISION": result},
        "SDP.D_CVT_SCALE": {"CVT_SCALE": 1},
    }  # fmt: skip
    registers = {**registers, **changed}
    registers |= {f"{each}.D_OP_ENABLE": {"OP_EN": 1} for each in ("SDP_RDMA", "SDP")}
    return ran(machine, x, (x.shape, result.lower()), registers, contents or {})


def row(*values: float, dtype: str = "int8") -> Array:
    """A cube of one channel and one line."""
    return np.array([[values]], dtype)


def flat(values: Array) -> list[float]:
    return values.ravel().tolist()


ON = {"BS_BYPASS": 0, "BS_ALU_BYPASS": 0, "BS_MUL_BYPASS": 0, "BS_RELU_BYPASS": 1}


@pytest.mark.parametrize(
    ("fields", "registers", "expected"),
    [
        ({"BS_ALU_ALGO": "SUM", "BS_MUL_BYPASS": 1}, {"ALU": 5}, [-5, 5, 25]),
        ({"BS_ALU_ALGO": "MAX", "BS_MUL_BYPASS": 1}, {"ALU": 5}, [5, 5, 20]),
        ({"BS_ALU_ALGO": "MIN", "BS_MUL_BYPASS": 1}, {"ALU": 5}, [-10, 0, 5]),
        ({"BS_ALU_ALGO": "SUM", "BS_MUL_BYPASS": 1}, {"ALU": 1, "shift": 3}, [-2, 8, 28]),
        ({"BS_ALU_BYPASS": 1}, {"MUL": 3}, [-30, 0, 60]),
        ({"BS_ALU_BYPASS": 1}, {"MUL": 3, "truncate": 2}, [-8, 0, 15]),
        ({"BS_ALU_ALGO": "SUM"}, {"ALU": 2, "MUL": 3}, [-24, 6, 66]),
        ({"BS_ALU_BYPASS": 1, "BS_RELU_BYPASS": 0}, {"MUL": 3}, [0, 0, 60]),
        ({"BS_ALU_BYPASS": 1, "BS_MUL_PRELU": 1}, {"MUL": 1, "truncate": 2}, [-3, 0, 20]),
        ({"BS_ALU_BYPASS": 1, "BS_MUL_BYPASS": 1}, {"truncate": 1}, [-5, 0, 10]),
    ],
    ids=["sum", "max", "min", "shifted operand", "product", "truncated", "sum and product", "ReLU", "PReLU",
         "truncation without multiplier"],
)  # fmt: skip
def test_unit_x_with_operands_in_registers(
    fields: dict[str, int | str], registers: dict[str, int], expected: list[int]
) -> None:
    changed: Fields = {
        "SDP.D_DP_BS_CFG": {**ON, **fields},
        "SDP.D_DP_BS_ALU_CFG": {"BS_ALU_SHIFT_VALUE": registers.get("shift", 0)},
        "SDP.D_DP_BS_ALU_SRC_VALUE": {"BS_ALU_OPERAND": registers.get("ALU", 0)},
        "SDP.D_DP_BS_MUL_CFG": {"BS_MUL_SHIFT_VALUE": registers.get("truncate", 0)},
        "SDP.D_DP_BS_MUL_SRC_VALUE": {"BS_MUL_OPERAND": registers.get("MUL", 0)},
    }
    assert flat(sdp(row(-10, 0, 20), changed)) == expected


def test_pairs_per_channel_hold_the_sum_before_the_factor() -> None:
    changed: Fields = {
        "SDP_RDMA.D_NRDMA_CFG": {"NRDMA_DATA_USE": "BOTH", "NRDMA_DATA_SIZE": "TWO_BYTE"},
        "SDP_RDMA.D_BN_BASE_ADDR_LOW": {"BN_BASE_ADDR_LOW": OPERAND // 32},
        "SDP.D_DP_BN_CFG": {"BN_ALU_ALGO": "SUM", "BN_RELU_BYPASS": 1},
        "SDP.D_DP_BN_ALU_CFG": {"BN_ALU_SRC": "MEM"},
        "SDP.D_DP_BN_MUL_CFG": {"BN_MUL_SRC": "MEM"},
    }
    x = np.array([[[1, 2]], [[3, 4]]], np.int8)
    pairs = np.array([[10, 2], [-20, 3]], np.int16)
    assert flat(sdp(x, changed, {OPERAND: pairs.view(np.uint8).ravel()})) == [22, 24, -51, -48]


def test_unit_y_multiplies_before_it_adds_and_converts_its_operands() -> None:
    changed: Fields = {
        "SDP_RDMA.D_ERDMA_CFG": {"ERDMA_DATA_USE": "BOTH", "ERDMA_DATA_MODE": "PER_ELEMENT"},
        "SDP_RDMA.D_EW_BASE_ADDR_LOW": {"EW_BASE_ADDR_LOW": OPERAND // 32},
        "SDP_RDMA.D_EW_LINE_STRIDE": {"EW_LINE_STRIDE": 4},
        "SDP_RDMA.D_EW_SURFACE_STRIDE": {"EW_SURFACE_STRIDE": 4},
        "SDP.D_DP_EW_CFG": {"EW_ALU_ALGO": "SUM", "EW_LUT_BYPASS": 1},
        "SDP.D_DP_EW_ALU_CFG": {"EW_ALU_SRC": "MEM"},
        "SDP.D_DP_EW_ALU_CVT_OFFSET_VALUE": {"EW_ALU_CVT_OFFSET": 1},
        "SDP.D_DP_EW_ALU_CVT_SCALE_VALUE": {"EW_ALU_CVT_SCALE": 3},
        "SDP.D_DP_EW_ALU_CVT_TRUNCATE_VALUE": {"EW_ALU_CVT_TRUNCATE": 1},
        "SDP.D_DP_EW_MUL_CFG": {"EW_MUL_SRC": "MEM", "EW_MUL_CVT_BYPASS": 1},
        "SDP.D_DP_EW_TRUNCATE_VALUE": {"EW_TRUNCATE": 1},
    }
    operands = np.zeros((2, 32, 2), np.int8)
    operands[:, 0] = [[5, 7], [2, -3]]
    # (x * mul >> 1) + ((alu - 1) * 3 >> 1): 10 * 7 / 2 + 6; 11 * -3 / 2 = -16.5, away from zero, + 1.5, rounded 2
    assert flat(sdp(row(10, 11), changed, {OPERAND: operands.view(np.uint8).ravel()})) == [41, -15]


def test_equality_gives_one_where_values_differ() -> None:
    changed: Fields = {
        "SDP.D_DP_EW_CFG": {"EW_ALU_ALGO": "EQL", "EW_MUL_BYPASS": 1, "EW_LUT_BYPASS": 1},
        "SDP.D_DP_EW_ALU_SRC_VALUE": {"EW_ALU_OPERAND": 3},
    }
    assert flat(sdp(row(3, 4), changed)) == [0, 1]


def test_the_output_converter_saturates() -> None:
    changed: Fields = {
        "SDP.D_CVT_OFFSET": {"CVT_OFFSET": 10}, "SDP.D_CVT_SCALE": {"CVT_SCALE": 5},
        "SDP.D_CVT_SHIFT": {"CVT_SHIFT": 1},
    }  # fmt: skip
    assert flat(sdp(row(11, 10, 9, 120, -100), changed)) == [3, 0, -3, 127, -128]


TABLE_30 = {
    ("int8", "int8"): "int8", ("int8", "int16"): "int8", ("int16", "int8"): "int8", ("int16", "int16"): "int16",
    ("int16", "fp16"): "int16", ("fp16", "int16"): "fp16", ("fp16", "fp16"): "fp16",
}  # fmt: skip
"""What SDP processes a map of the first precision in if its result has the second; other pairs are invalid."""
NUMPY = {"int8": "int8", "int16": "int16", "fp16": "float16"}


@pytest.mark.parametrize("processing", NUMPY)
@pytest.mark.parametrize("result", NUMPY)
@pytest.mark.parametrize("source", NUMPY)
def test_every_cell_of_table_30(source: str, result: str, processing: str) -> None:
    x = np.arange(-35, 37).astype(NUMPY[source]).reshape(36, 1, 2)
    inside = {"PROC_PRECISION": processing.upper(), "OUT_PRECISION": result.upper()}
    changed: Fields = {
        "SDP_RDMA.D_FEATURE_MODE_CFG": {"FLYING_MODE": 0, "IN_PRECISION": source.upper(), **inside},
        "SDP.D_DATA_FORMAT": inside,
    }
    if TABLE_30.get((source, result)) == processing:
        found = sdp(x, changed, out=result.upper())
        assert found.dtype == NUMPY[result]
        np.testing.assert_array_equal(found, x)
    else:
        what = f"SDP_RDMA: {source.upper()} to {result.upper()}, processed as {processing.upper()}"
        with pytest.raises(ArtefactError, match=what):
            sdp(x, changed, out=result.upper())


@pytest.mark.parametrize("result", NUMPY)
@pytest.mark.parametrize("precision", NUMPY)
def test_behind_a_convolution_sdp_keeps_the_bits_of_an_element(precision: str, result: str) -> None:
    formats: Fields = {"SDP.D_DATA_FORMAT": {"PROC_PRECISION": precision.upper(), "OUT_PRECISION": result.upper()}}
    layer = Convolution(FULL, (1, 1, 4), (1, 1, 1), precision, changed=formats)
    x, w = (np.array([values], NUMPY[precision]) for values in ([[3, -4, 5, -6]], [[[2]]]))
    contents = memory(layer.contents(x, w))
    if (precision == "int8") != (result == "int8"):
        with pytest.raises(ArtefactError, match=f"SDP: {precision.upper()} to {result.upper()}"):
            model.run(FULL, layer.commands(), contents)
        return
    found = replace(layer, precision=result).read(model.run(FULL, layer.commands(), contents))
    assert flat(found) == [6, -8, 10, -12]


def test_int16_becomes_fp16_behind_the_converter_with_17_bits() -> None:
    """(x - 10) * 5 / 2, halves away from 0, saturated to 17 bits, to the nearest even: from the RTL of unit C."""
    changed: Fields = {
        "SDP.D_CVT_OFFSET": {"CVT_OFFSET": 10}, "SDP.D_CVT_SCALE": {"CVT_SCALE": 5},
        "SDP.D_CVT_SHIFT": {"CVT_SHIFT": 1},
    }  # fmt: skip
    found = sdp(row(11, 9, 2049, -2049, 32767, -32768, dtype="int16"), changed, out="FP16")
    assert flat(found) == [3, -3, 5096, -5148, 65504, -65504]


def test_fp16_becomes_int16_without_the_converter() -> None:
    """Halves away from 0, saturated; a NaN is the lowest number: from the RTL of unit C."""
    changed: Fields = {"SDP.D_CVT_OFFSET": {"CVT_OFFSET": 10}, "SDP.D_CVT_SCALE": {"CVT_SCALE": 5}}
    given = {
        0.5: 1, -0.5: -1, 0.49976: 0, 2.5: 3, 922.5: 923, -1.5: -2, 32768: 32767, -65504: -32768, np.nan: -32768,
    }  # fmt: skip
    assert flat(sdp(row(*given, dtype="float16"), changed, out="INT16")) == [*given.values()]


def test_fp16_adds_multiplies_and_clips() -> None:
    bits = {each: int(np.array(each, np.float16).view(np.uint16)) for each in (1.5, 2.0)}
    changed: Fields = {
        "SDP.D_DP_BS_CFG": {"BS_ALU_ALGO": "SUM", "BS_RELU_BYPASS": 1},
        "SDP.D_DP_BS_ALU_SRC_VALUE": {"BS_ALU_OPERAND": bits[1.5]},
        "SDP.D_DP_BS_MUL_SRC_VALUE": {"BS_MUL_OPERAND": bits[2.0]},
    }
    found = sdp(row(0.25, -1, 60000, np.nan, np.inf, dtype="float16"), changed)
    assert flat(found)[:3] == [3.5, 1.0, 65504.0] and np.isnan(found[0, 0, 3]) and found[0, 0, 4] == 65504


def test_an_operand_that_is_not_fetched_is_missed() -> None:
    changed: Fields = {"SDP.D_DP_BS_CFG": {"BS_MUL_BYPASS": 1}, "SDP.D_DP_BS_ALU_CFG": {"BS_ALU_SRC": "MEM"}}
    with pytest.raises(ArtefactError, match="waits for ALU operands that SDP_RDMA does not fetch"):
        sdp(row(1), changed)


def test_nv_small_has_no_unit_y() -> None:
    with pytest.raises(ArtefactError, match="nvdla-small has no unit Y"):
        sdp(row(1), {"SDP.D_DP_EW_CFG": {"EW_BYPASS": 0}}, machine=SMALL)


def pool(x: Array, out: tuple[int, int], changed: Fields, machine: Machine = FULL) -> Array:
    """PDP from memory to memory; out: rows and columns."""
    kind = {"int8": "INT8", "int16": "INT16", "float16": "FP16"}[str(x.dtype)]
    C, H, W = x.shape
    shape = (C, *out)
    registers: dict[str, Mapping[str, int | str]] = {
        **{f"{block}.D_DATA_CUBE_IN_{name}": {f"CUBE_IN_{name}": size - 1} for block in ("PDP", "PDP_RDMA")
           for name, size in (("WIDTH", W), ("HEIGHT", H), ("CHANNEL", C))},
        **{f"PDP.D_DATA_CUBE_OUT_{name}": {f"CUBE_OUT_{name}": size - 1}
           for name, size in (("WIDTH", out[1]), ("HEIGHT", out[0]), ("CHANNEL", C))},
        **place(machine, x.shape, "PDP_RDMA.SRC", kind.lower()),
        **place(machine, shape, "PDP.DST", kind.lower()),
        **{f"{block}.D_DATA_FORMAT": {"INPUT_DATA": kind} for block in ("PDP", "PDP_RDMA")},
        **changed,
    }  # fmt: skip
    registers |= {f"{each}.D_OP_ENABLE": {"OP_EN": 1} for each in ("PDP_RDMA", "PDP")}
    return ran(machine, x, (shape, kind.lower()), registers, {})


def method(name: str) -> dict[str, int | str]:
    return {"POOLING_METHOD": f"POOLING_METHOD_{name}", "FLYING_MODE": "OFF_FLYING"}


TWO = {"PDP.D_POOLING_KERNEL_CFG": {"KERNEL_WIDTH": 1, "KERNEL_HEIGHT": 1}}
MAP = np.array([[[1, 2, 3], [4, 5, 6], [7, 8, -9]]], np.int8)


@pytest.mark.parametrize(("name", "expected"), [("MAX", [5, 6, 8, 8]), ("MIN", [1, 2, 4, -9])])
@pytest.mark.parametrize("dtype", ["int8", "int16", "float16"])
def test_extremes_of_windows(name: str, expected: list[int], dtype: str) -> None:
    changed: Fields = {**TWO, "PDP.D_OPERATION_MODE_CFG": method(name)}
    assert flat(pool(MAP.astype(dtype), (2, 2), changed)) == expected


def test_averages_add_the_values_of_padding() -> None:
    changed: Fields = {
        **TWO, "PDP.D_OPERATION_MODE_CFG": method("AVERAGE"),
        "PDP.D_POOLING_PADDING_CFG": {"PAD_LEFT": 1, "PAD_TOP": 1},
        **{f"PDP.D_POOLING_PADDING_VALUE_{k}_CFG": {f"PAD_VALUE_{k}X": 3 * k} for k in range(1, 8)},
        **{f"PDP.D_RECIP_KERNEL_{each}": {f"RECIP_KERNEL_{each}": 0x8000} for each in ("WIDTH", "HEIGHT")},
    }  # fmt: skip
    # first row: 3 + 3 and 3 + 1, then 3 + 3 and 1 + 2; second: 3 + 1 + 3 + 4, then 1 + 2 + 4 + 5
    # halves round away from zero: 10 -> 5 -> 3; 9 -> 5 -> 3; 11 -> 6 -> 3; 12 -> 6 -> 3
    assert flat(pool(MAP, (2, 2), changed)) == [3, 3, 3, 3]


def test_an_average_of_fp16_takes_reciprocals_of_17_bits() -> None:
    changed: Fields = {
        **TWO, "PDP.D_OPERATION_MODE_CFG": method("AVERAGE"),
        **{f"PDP.D_RECIP_KERNEL_{each}": {f"RECIP_KERNEL_{each}": 0x7800} for each in ("WIDTH", "HEIGHT")},
    }  # fmt: skip
    assert flat(pool(MAP.astype(np.float16), (2, 2), changed)) == [3.0, 4.0, 6.0, 2.5]


def test_a_window_beyond_the_padding_is_refused() -> None:
    with pytest.raises(ArtefactError, match="windows reach 4 elements"):
        pool(MAP, (3, 3), {**TWO, "PDP.D_OPERATION_MODE_CFG": method("MAX")})


def normalised(x: Array, changed: Fields) -> Array:
    """CDP from memory to memory, LO with entries 0..256 from 0 in steps of one, taken everywhere."""
    kind = {"int8": "INT8", "int16": "INT16"}[str(x.dtype)]
    C, H, W = x.shape
    table = [writes(FULL, {"CDP.S_LUT_ACCESS_DATA": {"LUT_DATA": each}})[0] for each in range(257)]
    registers: dict[str, Mapping[str, int | str]] = {
        "CDP.S_LUT_CFG": dict.fromkeys(("LUT_UFLOW_PRIORITY", "LUT_OFLOW_PRIORITY", "LUT_HYBRID_PRIORITY"), 1),
        "CDP.S_LUT_LO_END_LOW": {"LUT_LO_END_LOW": 256},
        "CDP.S_LUT_LE_START_LOW": {"LUT_LE_START_LOW": 1 << 30},
        "CDP_RDMA.D_DATA_CUBE_WIDTH": {"WIDTH": W - 1}, "CDP_RDMA.D_DATA_CUBE_HEIGHT": {"HEIGHT": H - 1},
        "CDP_RDMA.D_DATA_CUBE_CHANNEL": {"CHANNEL": C - 1},
        **place(FULL, x.shape, "CDP_RDMA.SRC", kind.lower()), **place(FULL, x.shape, "CDP.DST", kind.lower()),
        "CDP_RDMA.D_DATA_FORMAT": {"INPUT_DATA": kind}, "CDP.D_DATA_FORMAT": {"INPUT_DATA_TYPE": kind},
        "CDP.D_DATIN_SCALE": {"DATIN_SCALE": 1}, "CDP.D_DATOUT_SCALE": {"DATOUT_SCALE": 1},
        **changed,
    }  # fmt: skip
    access = writes(FULL, {"CDP.S_LUT_ACCESS_CFG": {"LUT_TABLE_ID": "LO", "LUT_ACCESS_TYPE": "WRITE"}})
    enable = {f"{each}.D_OP_ENABLE": {"OP_EN": 1} for each in ("CDP_RDMA", "CDP")}
    commands: list[Command] = [*access, *table, *writes(FULL, {**registers, **enable}), Wait("CDP")]
    source = feature.pack(cube(FULL, x.shape, kind.lower()), x)
    after = model.run(FULL, commands, memory({SOURCE: source}))
    packed = cube(FULL, x.shape, kind.lower())
    return feature.unpack(packed, np.frombuffer(after.read(RESULT, packed.bytes), np.uint8))


CHANNELS = np.array([1, 2, 3, 4], np.int8).reshape(4, 1, 1)


def test_cdp_sums_squares_of_neighbouring_channels() -> None:
    alone: Fields = {"CDP.D_FUNC_BYPASS": {"MUL_BYPASS": 1}}
    assert flat(normalised(CHANNELS, alone)) == [5, 14, 29, 25]
    five: Fields = {**alone, "CDP.D_LRN_CFG": {"NORMALZ_LEN": "LEN5"}}
    assert flat(normalised(CHANNELS, five)) == [14, 30, 30, 29]


def test_cdp_multiplies_by_the_converted_input() -> None:
    assert flat(normalised(CHANNELS.astype(np.int16), {})) == [5, 28, 87, 100]
    shifted: Fields = {"CDP.D_DATIN_OFFSET": {"DATIN_OFFSET": 1}, "CDP.D_DATOUT_SHIFTER": {"DATOUT_SHIFTER": 1}}
    # x - 1 = 0, 1, 2, 3: sums 1, 5, 14, 13; products 0, 5, 28, 39; halved away from zero
    assert flat(normalised(CHANNELS, shifted)) == [0, 3, 14, 20]


def rubik(mode: str, x: Array, registers: Fields, read: int) -> bytes:
    """What RUBIK writes (the first bytes) of a cube at SOURCE."""
    C, H, W = x.shape
    packed = cube(FULL, x.shape, "int8")
    given: Fields = {
        "RBK.D_MISC_CFG": {"RUBIK_MODE": mode, "IN_PRECISION": "INT8"},
        "RBK.D_DATAIN_SIZE_0": {"DATAIN_WIDTH": W - 1, "DATAIN_HEIGHT": H - 1},
        "RBK.D_DATAIN_SIZE_1": {"DATAIN_CHANNEL": C - 1},
        "RBK.D_DAIN_ADDR_LOW": {"DAIN_ADDR_LOW": SOURCE // 32},
        "RBK.D_DAOUT_ADDR_LOW": {"DAOUT_ADDR_LOW": RESULT // 32},
        "RBK.D_DAIN_LINE_STRIDE": {"DAIN_LINE_STRIDE": packed.line_stride // 32},
        "RBK.D_DAIN_SURF_STRIDE": {"DAIN_SURF_STRIDE": packed.surface_stride // 32},
        **registers,
        "RBK.D_OP_ENABLE": {"OP_EN": 1},
    }  # fmt: skip
    commands: list[Command] = [*writes(FULL, given), Wait("RUBIK")]
    return model.run(FULL, commands, memory({SOURCE: feature.pack(packed, x)})).read(RESULT, read)


def test_contraction_interleaves_the_sub_kernels_of_a_deconvolution() -> None:
    x = np.zeros((4 * 32, 1, 2), np.int8)
    x[::32, 0] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    registers: Fields = {
        "RBK.D_DATAOUT_SIZE_1": {"DATAOUT_CHANNEL": 31},
        "RBK.D_DECONV_STRIDE": {"DECONV_X_STRIDE": 1, "DECONV_Y_STRIDE": 1},
        "RBK.D_DAOUT_LINE_STRIDE": {"DAOUT_LINE_STRIDE": 4},
    }
    assert list(rubik("CONTRACT", x, registers, 256)[::32]) == [1, 3, 2, 4, 5, 7, 6, 8]


def test_planes_are_split_from_a_cube_and_merged_into_it_again() -> None:
    x = np.arange(12, dtype=np.int8).reshape(2, 2, 3)
    planes: Fields = {
        "RBK.D_DAOUT_LINE_STRIDE": {"DAOUT_LINE_STRIDE": 1},
        "RBK.D_DAOUT_PLANAR_STRIDE": {"DAOUT_PLANAR_STRIDE": 2},
    }
    written = rubik("SPLIT", x, planes, 128)
    assert [list(written[at : at + 3]) for at in (0, 32, 64, 96)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    back: Fields = {
        "RBK.D_MISC_CFG": {"RUBIK_MODE": "MERGE", "IN_PRECISION": "INT8"},
        "RBK.D_DATAIN_SIZE_0": {"DATAIN_WIDTH": 2, "DATAIN_HEIGHT": 1},
        "RBK.D_DATAIN_SIZE_1": {"DATAIN_CHANNEL": 1},
        "RBK.D_DAIN_ADDR_LOW": {"DAIN_ADDR_LOW": SOURCE // 32},
        "RBK.D_DAOUT_ADDR_LOW": {"DAOUT_ADDR_LOW": RESULT // 32},
        "RBK.D_DAIN_LINE_STRIDE": {"DAIN_LINE_STRIDE": 1}, "RBK.D_DAIN_PLANAR_STRIDE": {"DAIN_PLANAR_STRIDE": 2},
        "RBK.D_DAOUT_LINE_STRIDE": {"DAOUT_LINE_STRIDE": 3}, "RBK.D_OP_ENABLE": {"OP_EN": 1},
    }  # fmt: skip
    after = model.run(FULL, writes(FULL, back), memory({SOURCE: written}))
    packed = cube(FULL, x.shape, "int8")
    np.testing.assert_array_equal(
        feature.unpack(packed, np.frombuffer(after.read(RESULT, packed.bytes), np.uint8)), x
    )


def test_bdma_copies_lines_of_surfaces() -> None:
    copy: Fields = {
        "BDMA.CFG_SRC_ADDR_LOW": {"V32": SOURCE // 32}, "BDMA.CFG_DST_ADDR_LOW": {"V32": RESULT // 32},
        "BDMA.CFG_LINE": {"SIZE": 0}, "BDMA.CFG_LINE_REPEAT": {"NUMBER": 1}, "BDMA.CFG_SURF_REPEAT": {"NUMBER": 1},
        "BDMA.CFG_SRC_LINE": {"STRIDE": 2}, "BDMA.CFG_SRC_SURF": {"STRIDE": 8},
        "BDMA.CFG_DST_LINE": {"STRIDE": 1}, "BDMA.CFG_DST_SURF": {"STRIDE": 2},
        "BDMA.CFG_OP": {"EN": 1}, "BDMA.CFG_LAUNCH1": {"GRP1_LAUNCH": 1},
    }  # fmt: skip
    source = np.repeat(np.arange(16, dtype=np.uint8), 32)
    after = model.run(FULL, [*writes(FULL, copy), Wait("BDMA", 1)], memory({SOURCE: source}))
    assert list(after.read(RESULT, 128)[::32]) == [0, 2, 8, 10]


@pytest.mark.parametrize("fields", [{"RBK.D_OP_ENABLE": {"OP_EN": 1}}, {"BDMA.CFG_LAUNCH0": {"GRP0_LAUNCH": 1}}])
def test_nv_small_has_neither_rubik_nor_bdma(fields: Fields) -> None:
    with pytest.raises(ArtefactError, match="nvdla-small has no"):
        model.run(SMALL, writes(SMALL, fields), memory())
