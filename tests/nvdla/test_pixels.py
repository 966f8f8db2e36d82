"""Pixel formats: table 33 row by row, and pixels as they lie in memory."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import ArtefactError
from npuc.targets.nvdla import model
from npuc.targets.nvdla.formats.pixels import FORMATS, NAMES, PixelFormat, misreads, pack, unpack
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.machine.registers import register_map
from tests.nvdla.networks import expect_exact, verified
from tests.nvdla.programs import OPERAND, SOURCE, Convolution, Fields, memory
from tests.onnx_models import network, node, weights

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
        found = (
            len(form.planes),
            form.channels,
            EXCEPTIONS.get(form.name, form.precision),
            form.largest_offset(32),
        )
        assert found == (int(planes), int(channels), precision, int(offset)), form.name


BY_HAND = [
    ("T_R8", ["2a"], [0x2A]),
    *((name, ["ff fc"], [0xFCFF]) for name in ("T_R10", "T_R12", "T_R16")),
    ("T_R16_I", ["fe ff"], [0xFFFE]),
    ("T_R16_F", ["00 3c"], [1.0]),
    *((name, ["01 02 03 04"], [1, 2, 3, 4]) for name in ("T_A8B8G8R8", "T_X8B8G8R8")),
    *((name, ["03 02 01 04"], [1, 2, 3, 4]) for name in ("T_A8R8G8B8", "T_X8R8G8B8", "T_A8Y8U8V8")),
    *((name, ["04 01 02 03"], [1, 2, 3, 4]) for name in ("T_B8G8R8A8", "T_B8G8R8X8", "T_V8U8Y8A8")),
    *((name, ["04 03 02 01"], [1, 2, 3, 4]) for name in ("T_R8G8B8A8", "T_R8G8B8X8")),
    *((f"T_{x}16B16G16R16", ["01 00 02 00 03 00 04 80"], [1, 2, 3, 0x8004]) for x in "AX"),
    ("T_A16B16G16R16_F", ["00 3c 00 40 00 42 00 44"], [1.0, 2.0, 3.0, 4.0]),
    ("T_A16Y16U16V16", ["03 00 02 00 01 00 04 80"], [1, 2, 3, 0x8004]),
    ("T_V16U16Y16A16", ["04 80 01 00 02 00 03 00"], [1, 2, 3, 0x8004]),
    ("T_A16Y16U16V16_F", ["00 42 00 40 00 3c 00 44"], [1.0, 2.0, 3.0, 4.0]),
    ("T_A2B10G10R10", ["01 08 30 c0"], [64, 128, 192, 3 << 14]),
    *((name, ["03 08 10 c0"], [64, 128, 192, 3 << 14]) for name in ("T_A2R10G10B10", "T_A2Y10U10V10")),
    *((name, ["07 20 c0 00"], [64, 128, 192, 3 << 14]) for name in ("T_B10G10R10A2", "T_V10U10Y10A2")),
    ("T_R10G10B10A2", ["0f 20 40 00"], [64, 128, 192, 3 << 14]),
    ("T_Y8___U8V8_N444", ["01", "03 02"], [1, 2, 3]),
    ("T_Y8___V8U8_N444", ["01", "02 03"], [1, 2, 3]),
    *((f"T_Y{n}___U{n}V{n}_N444", ["ff ff", "03 00 02 f0"], [0xFFFF, 0xF002, 3]) for n in (10, 12, 16)),
    *((f"T_Y{n}___V{n}U{n}_N444", ["ff ff", "02 f0 03 00"], [0xFFFF, 0xF002, 3]) for n in (10, 12, 16)),
]
"""A pixel of every format, as arithmetic.md has them: 16 bits are never masked, packed ones are left-aligned."""


def test_every_format_has_a_pixel_by_hand() -> None:
    assert sorted(name for name, *_ in BY_HAND) == sorted(NAMES)


@pytest.mark.parametrize(("name", "planes", "pixel"), BY_HAND)
def test_a_pixel_worked_by_hand(name: str, planes: list[str], pixel: list[float]) -> None:
    data = [np.frombuffer(bytes.fromhex(each), np.uint8).reshape(1, 1, -1) for each in planes]
    assert unpack(FORMATS[name], data).ravel().tolist() == pixel


@given(st.sampled_from(list(FORMATS.values())), st.booleans(), st.data())
def test_what_is_unpacked_is_packed_again(form: PixelFormat, signed: bool, data: st.DataObject) -> None:
    sizes = [2 * 3 * plane.pixel_bytes for plane in form.planes]
    drawn = [np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8) for size in sizes]
    planes = [each.reshape(2, 3, -1) for each in drawn]
    for plane, packed in zip(planes, pack(form, unpack(form, planes, signed=signed)), strict=True):
        np.testing.assert_array_equal(packed, plane)


SAFE = [
    (SMALL, "T_A8B8G8R8", 30, 28), (SMALL, "T_Y8___V8U8_N444", 28, 24), (SMALL, "T_R8", 31, 63),
    (FULL, "T_A16B16G16R16", 31, 56), (FULL, "T_Y16___U16V16_N444", 31, 48), (FULL, "T_A8B8G8R8", 31, 63),
    (FULL, "T_R16", 31, 63), (FULL, "T_Y8___V8U8_N444", 31, 63),
]  # fmt: skip
"""The most padding left and right that is safe for every width and offset (Arithmetic, Limit of the padding)."""


@pytest.mark.parametrize(("machine", "name", "left", "right"), SAFE)
def test_padding_is_right_up_to_the_limit_and_for_some_widths_wrong_beyond(
    machine: Machine, name: str, left: int, right: int
) -> None:
    form, widths = FORMATS[name], range(1, 66)
    offsets = range(form.largest_offset(machine.atom_bytes) + 1)

    def everywhere(left: int, right: int) -> bool:
        return all(form.pads(machine.atom_bytes, *each) for each in product(widths, [left], [right], offsets))

    # all of the border, and every 23rd of what it encloses
    inside = [
        (before, behind)
        for at, (before, behind) in enumerate(product(range(left + 1), range(right + 1)))
        if before in (0, left) or behind in (0, right) or at % 23 == 0
    ]
    assert all(everywhere(*each) for each in inside)
    assert left == 31 or not everywhere(left + 1, 0)
    assert right == 63 or not everywhere(0, right + 1)


def of_line(channels: int, width: int) -> bool:
    return misreads(SMALL, channels, width)


def test_lines_of_a_kernel_that_csc_reads_wrong() -> None:
    """Rule 8: 1 channel in the third or a later block. Rule 7, at widths 1 modulo 16: 2 to 4 channels in the last
    of 4 blocks, 2 to 5 of 5, 2 to 6 of 6 (Arithmetic, 7).
    """
    always = {channels for channels in range(1, 129) if of_line(channels, 12)}
    assert always == {17, *range(25, 129, 8)} == {each for each in range(1, 129) if of_line(each, 16)}
    assert not any(of_line(channels, width) for channels in range(1, 17) for width in range(1, 70))
    alone = [{each for each in range(1, 49) if of_line(each, width)} - always for width in (1, 17, 33)]
    assert alone == [{26, 27, 28, *range(34, 38), *range(42, 47)}] * 3
    assert not any(
        misreads(machine, *each) for machine in (LARGE, FULL) for each in product(range(1, 129), (1, 65))
    )


@pytest.mark.parametrize(
    ("width", "channels", "columns", "pads", "form"),
    [
        (33, 3, 7, (3, 3), "image, 2 planes"),  # N = 4, r = 4: two planes, 21 channels
        (32, 3, 7, (3, 3), "image, 2 planes"),
        (33, 1, 17, (8, 8), "image, columns of zeros: 1"),
        (31, 1, 25, (12, 12), "image, columns of zeros: 1"),
        (33, 4, 7, (3, 3), "image, columns of zeros: 1"),
        (17, 4, 5, (2, 2), "image"),
        (17, 4, 11, (5, 5), "image, columns of zeros: 1"),
        (20, 3, 11, (5, 5), "image, 2 planes, columns of zeros: 1"),  # two planes, 33 channels
        (17, 4, 5, (2, 30), "direct"),
        (16, 3, 5, (0, 28), "image"),  # one plane: the second has no counter for so many
        (17, 4, 7, (31, 3), "direct"),
        (17, 4, 7, (30, 3), "image"),
    ],
)
def test_a_compiled_image_is_read_right(
    width: int, channels: int, columns: int, pads: tuple[int, int], form: str, tmp_path: Path
) -> None:
    """The model refuses what CSC and CDMA would do wrong; results are those of the integer network."""
    layer = node("Conv", "x w", "y", pads=[1, pads[0], 1, pads[1]], strides=[1, 1])
    model = network([layer], (1, channels, 6, width), {"w": weights(8, channels, 3, columns)})
    report = verified(model, tmp_path, "nvdla-small")
    expect_exact(report)
    assert report["compiled"]["layers"][0]["weight_form"] == form


def image(machine: Machine, form: str, offset: int, channels: int) -> Fields:
    """What turns a convolution into one of an image."""
    return {
        "CDMA.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL", "PIXEL_FORMAT": form},
        "CSC.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL"},
        "CDMA.D_DATAIN_SIZE_1": {"DATAIN_CHANNEL": channels - 1},
        "CDMA.D_PIXEL_OFFSET": {"PIXEL_X_OFFSET": offset},
    }


@pytest.mark.parametrize(("machine", "form", "offset", "channels", "reason"), [
    (FULL, "T_A8B8G8R8", 8, 4, "an x offset of 8 pixels"), (SMALL, "T_A8B8G8R8", 2, 4, "an x offset of 2 pixels"),
    (SMALL, "T_R8", 8, 1, "an x offset of 8 pixels"), (SMALL, "T_R10", 0, 1, "PIXEL_FORMAT = T_R10"),
    (SMALL, "T_A8B8G8R8", 0, 3, "3 channels of T_A8B8G8R8"),
])  # fmt: skip
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
        **image(SMALL, "T_R8", 7, 1),
        "CDMA.D_CVT_CFG": {"CVT_EN": 1},
        "CDMA.D_CVT_SCALE": {"CVT_SCALE": 1},
        "CDMA.D_CVT_OFFSET": {"CVT_OFFSET": 100},
        "CDMA.D_LINE_STRIDE": {"LINE_STRIDE": 16},
    }
    layer = Convolution(SMALL, (1, 2, 2), (1, 1, 1), changed=changed)
    pixels = np.zeros((2, 16), np.uint8)
    pixels[:, 7:9] = [[101, 102], [255, 0]]
    contents = layer.contents(np.zeros((1, 2, 2), np.int8), np.ones((1, 1, 1, 1), np.int8))
    after = model.run(SMALL, layer.commands(), memory({**contents, SOURCE: pixels.ravel()}))
    assert layer.read(after).ravel().tolist() == [1, 2, 127, -100]
