"""Pixel formats: table 33 row by row, and pixels as they lie in memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import ArtefactError
from npuc.targets.nvdla import model
from npuc.targets.nvdla.formats.pixels import FORMATS, NAMES, PixelFormat, pack, unpack
from npuc.targets.nvdla.machine.parameters import FULL, SMALL, Machine
from npuc.targets.nvdla.machine.registers import register_map
from tests.nvdla.programs import OPERAND, SOURCE, Convolution, Fields, memory

EXCEPTIONS = {"T_R16_F": "int16"}
"""Where the document's precision is not that of the name."""


def test_formats_have_the_numbers_of_the_register() -> None:
    names = dict(register_map("nv_full")["CDMA.D_DATAIN_FORMAT"].places["PIXEL_FORMAT"].names)
    assert {name: number for number, name in enumerate(NAMES)} == names


def test_every_row_of_table_33_is_as_the_document_has_it(shared: Path) -> None:
    text = (shared / "seeds" / "nvdla-in-memory-formats.txt").read_text()
    rows = re.findall(r"^(T_[\w ]+?)\t(\d)\t(\d)\t(int8|int16|fp16)\t0~(\d+)", text, re.M)
    assert len(rows) == 36
    for written, planes, channels, precision, offset in rows:
        plain = written.replace(" ", "").replace("_", "")
        form = next(each for each in FORMATS.values() if each.name.replace("_", "") == plain)
        found = (len(form.planes), form.channels, EXCEPTIONS.get(form.name, form.precision), form.offset)
        assert found == (int(planes), int(channels), precision, int(offset)), form.name


@pytest.mark.parametrize(
    ("name", "planes", "pixel"),
    [
        ("T_R8", ["2a"], [0x2A]),
        ("T_R10", ["ff 03"], [0x3FF]),
        ("T_R16_I", ["fe ff"], [-2]),
        ("T_A8B8G8R8", ["01 02 03 04"], [1, 2, 3, 4]),
        ("T_A8R8G8B8", ["03 02 01 04"], [1, 2, 3, 4]),
        ("T_R8G8B8A8", ["04 03 02 01"], [1, 2, 3, 4]),
        ("T_V8U8Y8A8", ["04 01 02 03"], [1, 2, 3, 4]),
        ("T_A16B16G16R16", ["01 00 02 00 03 00 04 80"], [1, 2, 3, 0x8004]),
        ("T_A2B10G10R10", ["01 08 30 c0"], [1, 2, 3, 3]),
        ("T_R10G10B10A2", ["0f 20 40 00"], [1, 2, 3, 3]),
        ("T_Y8___U8V8_N444", ["01", "03 02"], [1, 2, 3]),
        ("T_Y8___V8U8_N444", ["01", "02 03"], [1, 2, 3]),
        ("T_Y12___U12V12_N444", ["ff 0f", "03 00 02 00"], [0xFFF, 2, 3]),
    ],
)
def test_a_pixel_worked_by_hand(name: str, planes: list[str], pixel: list[int]) -> None:
    data = [np.frombuffer(bytes.fromhex(each), np.uint8).reshape(1, 1, -1) for each in planes]
    assert unpack(FORMATS[name], data).ravel().tolist() == pixel


@given(st.sampled_from(list(FORMATS.values())), st.data())
def test_what_is_packed_is_unpacked_again(form: PixelFormat, data: st.DataObject) -> None:
    size = 2 * 2 * 3 * form.channels
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint16).reshape(2, 3, form.channels)
    image = np.zeros(raw.shape, np.float16 if form.floating else np.int32)
    for part in (part for plane in form.planes for part in plane.components):
        bits = raw[..., part.channel] & ((1 << part.bits) - 1)
        signed = bits.astype(np.int32) - ((bits >> (part.bits - 1)).astype(np.int32) << part.bits)
        values = bits.view(np.float16) if form.floating else signed if form.signed else bits
        image[..., part.channel] = values
    np.testing.assert_array_equal(unpack(form, pack(form, image)), image)


def image(machine: Machine, form: str, offset: int, channels: int) -> Fields:
    """What turns a convolution into one of an image."""
    return {
        "CDMA.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL", "PIXEL_FORMAT": form},
        "CSC.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL"},
        "CDMA.D_DATAIN_SIZE_1": {"DATAIN_CHANNEL": channels - 1},
        "CDMA.D_PIXEL_OFFSET": {"PIXEL_X_OFFSET": offset},
    }


@pytest.mark.parametrize(
    ("machine", "form", "offset", "channels", "reason"),
    [
        (FULL, "T_A8B8G8R8", 8, 4, "an x offset of 8 pixels"),
        (SMALL, "T_A8B8G8R8", 1, 4, "an x offset of 1 pixels"),
        (SMALL, "T_A8B8G8R8", 0, 3, "3 channels of T_A8B8G8R8"),
    ],
)
def test_a_setting_that_table_33_has_not_is_refused(
    machine: Machine, form: str, offset: int, channels: int, reason: str
) -> None:
    layer = Convolution(machine, (4, 2, 2), (1, 1, 1), changed=image(machine, form, offset, channels))
    with pytest.raises(ArtefactError, match=reason):
        model.run(machine, layer.commands(), memory())


def test_whole_atoms_of_an_x_offset_are_in_the_address_of_the_second_plane() -> None:
    """17 pixels: 17 bytes of luma, 34 of chroma, which are 2 behind an aligned address (Pixel Format)."""
    changed = {
        **image(FULL, "T_Y8___U8V8_N444", 17, 3),
        "CDMA.D_DAIN_ADDR_LOW_1": {"DATAIN_ADDR_LOW_1": OPERAND // 32},
        "CDMA.D_LINE_UV_STRIDE": {"UV_LINE_STRIDE": 1},
        "CDMA.D_CVT_CFG": {"CVT_EN": 1},
        "CDMA.D_CVT_SCALE": {"CVT_SCALE": 1},
    }
    layer = Convolution(FULL, (3, 1, 2), (1, 1, 1), changed=changed)
    luma, chroma = np.zeros((2, 32), np.uint8)
    luma[17:19], chroma[2:6] = [1, 2], [10, 20, 30, 40]
    weights = np.array([1, 2, 3], np.int8).reshape(1, 3, 1, 1)
    contents = layer.contents(np.zeros((3, 1, 2), np.int8), weights)
    after = model.run(FULL, layer.commands(), memory({**contents, SOURCE: luma, OPERAND: chroma}))
    # V before U in memory: Y + 2 * U + 3 * V
    assert layer.read(after).ravel().tolist() == [1 + 2 * 20 + 3 * 10, 127]


def test_an_x_offset_leaves_out_pixels_of_every_line() -> None:
    changed = {
        **image(SMALL, "T_R8", 8, 1),
        "CDMA.D_CVT_CFG": {"CVT_EN": 1},
        "CDMA.D_CVT_SCALE": {"CVT_SCALE": 1},
        "CDMA.D_CVT_OFFSET": {"CVT_OFFSET": 100},
        "CDMA.D_LINE_STRIDE": {"LINE_STRIDE": 16},
    }
    layer = Convolution(SMALL, (1, 2, 2), (1, 1, 1), changed=changed)
    pixels = np.zeros((2, 16), np.uint8)
    pixels[:, 8:10] = [[101, 102], [255, 0]]
    contents = layer.contents(np.zeros((1, 2, 2), np.int8), np.ones((1, 1, 1, 1), np.int8))
    after = model.run(SMALL, layer.commands(), memory({**contents, SOURCE: pixels.ravel()}))
    assert layer.read(after).ravel().tolist() == [1, 2, 127, -100]
