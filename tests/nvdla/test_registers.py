"""Registers: what the tables say, and that nothing is lost between fields, values and text."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import EncodingError
from npuc.storage.bits import encode
from npuc.targets.nvdla.machine.registers import Register, register_map

MAPS = ("nv_small", "nv_large", "nv_full")
EVERY = [each for name in ("nv_small", "nv_full") for each in register_map(name).registers]


@given(st.sampled_from(EVERY), st.integers(0, 2**32 - 1))
def test_every_value_survives_decoding_and_encoding(register: Register, value: int) -> None:
    assert encode(register.decode(value)) == value


@given(st.data())
def test_every_set_of_fields_survives_encoding_and_decoding(data: st.DataObject) -> None:
    register = data.draw(st.sampled_from(EVERY))
    fields = {
        name: data.draw(st.integers(0, place.most))
        for name, place in register.places.items()
        if not name.startswith("reserved_")
    }
    word = register.decode(register.value(**fields))
    assert {name: getattr(word, name) for name in fields} == fields


@pytest.mark.parametrize("name", MAPS)
def test_the_fields_as_after_reset_are_the_reset_value(name: str) -> None:
    registers = register_map(name).registers
    assert [each.value() for each in registers] == [each.reset for each in registers]


@pytest.mark.parametrize(
    ("name", "table"), [("nv_small", "nv_small"), ("nv_large", "nv_small"), ("nv_full", "nv_full")]
)
def test_registers_lie_where_the_vendors_table_says(name: str, table: str, shared: Path) -> None:
    found = register_map(name)
    with (shared / "nvdla" / f"registers-{table}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            register = found[f"{row['block']}.{row['register']}"]
            place = register.places[row["field"]]
            assert (register.address, place.low, place.width) == (
                int(row["address"], 16), int(row["lsb"]), int(row["width"]),
            )  # fmt: skip


@pytest.mark.parametrize(("name", "title", "address"), [
    ("nv_small", "CDMA.D_BANK", 0x30BC), ("nv_small", "NVDLA_SDP.D_OP_ENABLE_0", 0x9038),
    ("nv_large", "CDMA.D_BANK", 0x30BC), ("nv_full", "CDMA.D_BANK", 0x50BC),
    ("nv_full", "NVDLA_CDMA.D_DAIN_ADDR_LOW_0_0", 0x5034), ("nv_full", "RBK.D_MISC_CFG", 0x1000C),
])  # fmt: skip
def test_a_register_is_found_by_name_and_by_address(name: str, title: str, address: int) -> None:
    found = register_map(name)
    assert found[title].address == address
    assert found.register_at(address) is found[title]


def test_a_write_is_listed_by_field_and_named_value() -> None:
    small = register_map("nv_small")
    assert small.text(0x30BC, 0x2000B) == "CDMA.D_BANK DATA_BANK=0xb WEIGHT_BANK=2"
    assert small.text(0x3068, 1) == "CDMA.D_WEIGHT_FORMAT WEIGHT_FORMAT=COMPRESSED"
    assert small.text(0x3068, 0x101).endswith("reserved_31_1=0x80")


def test_the_layout_has_every_field_but_reserved_bits() -> None:
    rows = register_map("nv_small").layout()["CDMA.D_BANK"]
    assert [(row["field"], row["bits"], row["address"]) for row in rows] == [
        ("DATA_BANK", "4:0", "0x30bc"),
        ("WEIGHT_BANK", "20:16", "0x30bc"),
    ]


def test_fields_are_set_by_number_or_by_name() -> None:
    small = register_map("nv_small")
    assert small["CDMA.D_BANK"].value(DATA_BANK=11, WEIGHT_BANK=2) == 0x2000B
    assert (
        small["PDP.D_OPERATION_MODE_CFG"].value(POOLING_METHOD="POOLING_METHOD_MAX", FLYING_MODE="OFF_FLYING")
        == 0x11
    )


@pytest.mark.parametrize(("fields", "reason"), [
    ({"DATA_BANK": 32}, "DATA_BANK = 32 does not fit in 5 bits"), ({"BANK": 1}, "no field BANK"),
    ({"DATA_BANK": "MANY"}, "DATA_BANK has no value MANY"),
])  # fmt: skip
def test_a_field_that_cannot_be_is_refused(fields: dict[str, int | str], reason: str) -> None:
    with pytest.raises(EncodingError) as caught:
        register_map("nv_small")["CDMA.D_BANK"].value(**fields)
    assert reason in str(caught.value)


@pytest.mark.parametrize("title", ["CDMA.D_NOTHING", "CDMA"])
def test_a_register_that_does_not_exist_is_refused(title: str) -> None:
    with pytest.raises(EncodingError, match="no register"):
        register_map("nv_full")[title]


def test_an_address_without_a_register_is_refused() -> None:
    with pytest.raises(EncodingError, match="no register at 0x30ec"):
        register_map("nv_small").register_at(0x30EC)
