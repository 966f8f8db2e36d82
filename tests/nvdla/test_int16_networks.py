"""Networks in int16 on nv_full: the simulator agrees with onnxruntime on the integer network, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.errors import NpucError
from npuc.ir import Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.reference import session
from npuc.target import target
from npuc.targets.nvdla.arithmetic.fixed_point import quantise_weights
from npuc.targets.nvdla.arithmetic.integer import TablePlacement, interpolate_tables
from npuc.targets.nvdla.arithmetic.operators import OPERATORS
from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.model import lut
from npuc.targets.nvdla.model.register_file import LookUpTables, RegisterGroup
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

INT16 = {"name": "nvdla-full", "precision": "int16"}
SHAPE = (1, 20, 9, 11)


FUNCTIONS = ("Sigmoid", "Tanh", "Erf", "HardSwish", "Elu", "Softplus", "Mish", "Gelu")


@pytest.mark.parametrize("gain", [0.5, 30.0])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_of_one_element_interpolate(op: str, gain: float, tmp_path: Path) -> None:
    """Where x reaches 60 the tables cover its middle and straight lines the rest."""
    w = (gain * np.eye(20)).astype(np.float32)[:, :, None, None]
    model = network([node("Conv", "x w", "a"), node(op, "a", "y")], SHAPE, {"w": w})
    model.opset_import[0].version = 20
    report = verified(model, tmp_path, samples=1, **INT16)
    expect_exact(report, 58.0)
    assert not report["compiled"]["host_steps"]


def test_tables_go_on_in_a_straight_line() -> None:
    """Worked by hand: entries 0, 16, .. behind -64, a step of 16, up to 64, then 3 / 2 of what x is beyond."""
    le, lo = TablePlacement(-8, 0), TablePlacement(-2048, 4, 3, 1)
    values = np.concatenate([np.arange(65), np.maximum(np.arange(257) - 128, 0) * 16]).astype(np.int16)
    x = np.array([-9, -8, -7, 0, 55, 56, 57, 2048, 2049, 2051, -3000])
    assert interpolate_tables((le, lo), x, values).tolist() == [0, 0, 1, 8, 63, 56, 57, 2048, 2050, 2053, 0]


def test_functions_that_bend_too_much_run_on_the_host(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node("Sqrt", "a", "y")]
    report = verified(network(nodes, SHAPE), tmp_path, samples=1, **INT16)
    assert [step["op"] for step in report["compiled"]["host_steps"]] == ["Sqrt"]


def test_sums_that_32_bits_do_not_hold_are_truncated() -> None:
    """Worked by hand: 4096 weights of 32767 times inputs of -32768 are 2^42 in magnitude: 11 bits too many."""
    found = quantise_weights(np.ones((1, 4096, 1, 1), np.float32), None, 1.0, 2.0**12, 0, "int16")
    largest = 32768 * int(np.abs(found.w.astype(np.int64)).sum())
    assert found.truncate >= 11
    assert (largest >> found.truncate) + 1 < 1 << 31
    gain = float(found.multiplier[0]) * 2.0 ** (found.truncate * -1.0 - found.shift) * float(found.w.ravel()[0])
    assert gain * 2.0**12 == pytest.approx(1, rel=1e-4)  # an input of 1 gives 2^-12 of a step of 2^12


def test_int8_sums_are_not_truncated() -> None:
    assert quantise_weights(np.ones((1, 4096, 1, 1), np.float32), None, 1.0, 64.0).truncate == 0


@pytest.mark.parametrize("channels", [3, 700, 20000, 40000])
def test_onnx_adds_the_products_of_16_bits_exactly(channels: int) -> None:
    """Against Python's own integers: sums of products of 30 bits exceed what float32 holds."""
    random = np.random.default_rng(channels)
    x = random.integers(-32768, 32768, (1, channels, 1, 1)).astype(np.int16)
    w = random.integers(-32767, 32768, (2, channels, 1, 1)).astype(np.int16)
    attrs = {"truncate": 12, "converter": (0, 1, 15)}
    graph = build(
        "g",
        [Node("NvConv", ("x", "w"), ("y",), attrs, "c")],
        {"x": TensorType(x.shape, "int16")},
        ("y",),
        {"w": w},
        OPERATORS,
    )
    found = session(to_onnx(graph, ["y"])).run(["y"], {"x": x})[0].ravel().tolist()

    def rounded(value: int, shift: int) -> int:
        half = (abs(value) + (1 << (shift - 1))) >> shift
        return half if value >= 0 else -half

    pairs = ([(int(a), int(b)) for a, b in zip(x.ravel(), row.ravel(), strict=True)] for row in w)
    sums = (sum(a * b for a, b in each) for each in pairs)
    wanted = [max(-32768, min(32767, rounded(rounded(each, 12), 15))) for each in sums]
    assert found == wanted


def test_registers_say_int16(tmp_path: Path) -> None:
    _, _, loaded = compiled(
        network([node("Conv", "x w", "y")], SHAPE, {"w": weights(3, 20, 1, 1)}), tmp_path, **INT16
    )
    texts = [entry["text"] for entry in target("nvdla-full").listing(loaded)]
    for block in ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC"):
        text = next(each for each in texts if each.startswith(f"{block}.D_MISC_CFG"))
        assert "PROC_PRECISION=INT16" in text


def test_a_model_that_is_quantised_to_int8_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Conv", "d w", "y")
    ]  # fmt: skip
    constants = {"s": np.float32(0.1), "z": np.int8(0), "w": weights(2, 3, 1, 1)}
    with pytest.raises(NpucError, match="quantised already"):
        compiled(network(nodes, (1, 3, 4, 4), constants), tmp_path, **INT16)


# The look-up tables: values worked by hand from their rules, in integers and in fp16


NAMES = ("LE_START", "LE_END", "LO_START", "LO_END")


def group(**fields: int) -> RegisterGroup:
    """SDP's registers with these fields of its tables."""
    registers = register_map("nv_small")
    values = {each.name: each.reset for each in registers.registers if each.block == "SDP"}
    for each in registers.registers:
        given = {name: fields[name] & each.places[name].most for name in fields if name in each.places}
        if each.block == "SDP" and given:
            values[each.name] = each.value(**given)
    return RegisterGroup(registers, "SDP", values)


def stored(le: int = 10, lo: int = 100) -> LookUpTables:
    """Entries i * le and i * lo."""
    tables = LookUpTables()
    tables.le[:] = np.arange(65) * le
    tables.lo[:] = np.arange(257) * lo
    return tables


def looked_up(registers: RegisterGroup, tables: LookUpTables, *values: int) -> list[int]:
    """The function of some integers."""
    return lut.look_up(registers, tables, np.array(values, np.int64), lut.SDP)[0].tolist()


LINEAR = {
    "LUT_LE_FUNCTION": 1,
    "LUT_LE_END": 256,
    "LUT_LE_INDEX_SELECT": 2,
    "LUT_LO_START": 10000,
    "LUT_LO_END": 20000,
}


def test_a_linear_table_interpolates_between_entries() -> None:
    # steps of 4: x = 6 lies half way between entries 1 and 2
    assert looked_up(group(**LINEAR), stored(), 4, 6, 7, 255) == [10, 15, 18, 638]


def test_interpolation_rounds_half_away_from_zero() -> None:
    assert looked_up(group(**LINEAR), stored(le=-1), 2, 6) == [-1, -2]


def test_an_exponential_table_has_steps_of_powers_of_two() -> None:
    # entry i stands at 2^i: x = 6 lies half way between entries 2 (4) and 3 (8)
    registers = group(LUT_LE_FUNCTION=0, LUT_LE_END=1 << 20, LUT_LO_START=1 << 24, LUT_LO_END=1 << 25)
    assert looked_up(registers, stored(), 1, 2, 6, 1 << 19) == [0, 10, 25, 190]


def test_the_offset_of_an_exponential_table_is_the_exponent_of_its_first_entry() -> None:
    registers = group(LUT_LE_FUNCTION=0, LUT_LE_INDEX_OFFSET=3, LUT_LE_START=100, LUT_LO_START=1 << 24)
    assert looked_up(registers, stored(), 108, 112, 116) == [0, 5, 10]


def test_below_an_exponential_table_the_slope_begins_at_its_first_entry() -> None:
    registers = group(
        LUT_LE_FUNCTION=0, LUT_LE_INDEX_OFFSET=3, LUT_LE_SLOPE_UFLOW_SCALE=2, LUT_LO_START=1 << 24,
    )  # fmt: skip
    # the first entry stands at 2^3; -2 * (8 - 5)
    assert looked_up(registers, stored(), 5) == [-6]


@pytest.mark.parametrize(
    ("shift", "below", "beyond"),
    [(0, 0 - 3 * 10, 640 + 5 * 4), (1, 0 - 15, 640 + 10), (0b11111, 0 - 60, 640 + 40)],
)
def test_outside_a_table_a_slope_continues_it(shift: int, below: int, beyond: int) -> None:
    slopes = {"LUT_LE_SLOPE_UFLOW_SCALE": 3, "LUT_LE_SLOPE_OFLOW_SCALE": 5}
    shifts = {"LUT_LE_SLOPE_UFLOW_SHIFT": shift, "LUT_LE_SLOPE_OFLOW_SHIFT": shift}
    registers = group(**{**LINEAR, "LUT_LO_START": -10000, "LUT_LO_END": -9000, **slopes, **shifts})
    assert looked_up(registers, stored(), -10) == [below]
    assert looked_up(registers, stored(), 260) == [beyond]


BOTH = {**LINEAR, "LUT_LO_START": 0, "LUT_LO_END": 1024, "LUT_LO_INDEX_SELECT": 2}


@pytest.mark.parametrize(
    ("fields", "value", "expected"),
    [
        ({"LUT_HYBRID_PRIORITY": 0}, 8, 20),
        ({"LUT_HYBRID_PRIORITY": 1}, 8, 200),
        ({"LUT_UFLOW_PRIORITY": 0, "LUT_LE_SLOPE_UFLOW_SCALE": 1}, -7, -7),
        ({"LUT_UFLOW_PRIORITY": 1, "LUT_LE_SLOPE_UFLOW_SCALE": 1}, -7, 0),
        ({"LUT_OFLOW_PRIORITY": 0}, 5000, 640),
        ({"LUT_OFLOW_PRIORITY": 1}, 5000, 25600),
        ({"LUT_HYBRID_PRIORITY": 0}, 512, 12800),
        ({"LUT_HYBRID_PRIORITY": 0, "LUT_LO_START": 600, "LUT_LO_END": 1624}, 300, 640),
        ({"LUT_HYBRID_PRIORITY": 1, "LUT_LO_START": 600, "LUT_LO_END": 1624}, 300, 0),
    ],
    ids=["both hit, LE", "both hit, LO", "both below, LE", "both below, LO", "both beyond, LE", "both beyond, LO",
         "only LO hits", "LE beyond and LO below, LE", "LE beyond and LO below, LO"],
)  # fmt: skip
def test_which_table_serves(fields: dict[str, int], value: int, expected: int) -> None:
    assert looked_up(group(**{**BOTH, **fields}), stored(), value) == [expected]


def test_it_is_counted_which_table_served() -> None:
    values = np.array([-7, 8, 9, 512, 5000], np.int64)
    _, counts = lut.look_up(group(**BOTH), stored(), values, lut.SDP)
    assert counts == {"LUT_UFLOW": 1, "LUT_OFLOW": 1, "LUT_HYBRID": 2, "LUT_LE_HIT": 0, "LUT_LO_HIT": 1}


def test_an_interpolation_of_fp16_has_eleven_significant_bits() -> None:
    tables = LookUpTables()
    tables.le[:] = np.linspace(0, 64, 65).astype(np.float16).view(np.int16)
    one = int(np.float32(1).view(np.uint32))
    registers = group(
        LUT_LE_FUNCTION=1, LUT_LE_START=one, LUT_LE_END=one, LUT_LO_START=int(np.float32(1e9).view(np.uint32))
    )
    values = np.array([1.5, 1 + 1 / 4096, 33 + 1 / 4096, np.nan], np.float32)
    found, _ = lut.look_up(registers, tables, values, lut.SDP)
    # x - 1: 0.5, 2^-12, 32 (2^-12 is lost beside 32 in eleven bits)
    assert found[:3].tolist() == [0.5, 1 / 4096, 32.0]
