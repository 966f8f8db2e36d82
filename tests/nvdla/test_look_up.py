"""The look-up tables: values worked by hand from their rules, in integers and in fp16."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.model import lut
from npuc.targets.nvdla.model.register_file import Group, LookUpTables

NAMES = ("LE_START", "LE_END", "LO_START", "LO_END")


def group(**fields: int) -> Group:
    """SDP's registers with these fields of its tables."""
    registers = register_map("nv_small")
    values = {each.name: each.reset for each in registers.registers if each.block == "SDP"}
    for each in registers.registers:
        given = {name: fields[name] & each.places[name].most for name in fields if name in each.places}
        if each.block == "SDP" and given:
            values[each.name] = each.value(**given)
    return Group(registers, "SDP", values)


def stored(le: int = 10, lo: int = 100) -> LookUpTables:
    """Entries i * le and i * lo."""
    tables = LookUpTables()
    tables.le[:] = np.arange(65) * le
    tables.lo[:] = np.arange(257) * lo
    return tables


def looked_up(registers: Group, tables: LookUpTables, *values: int) -> list[int]:
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
