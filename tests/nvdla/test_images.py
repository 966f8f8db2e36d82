"""Convolutions of images, every format of 8 bits and one plane, against sums written out from the document."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc.ir import Array
from npuc.targets.nvdla import model
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.model.memory import Pattern
from npuc.targets.nvdla.model.sdp import pack_single
from tests.nvdla.networks import expect_exact, verified
from tests.nvdla.programs import SOURCE, WEIGHTS, Convolution, Fields, memory, stride
from tests.onnx_models import network, node, weights

IN_MEMORY = {
    "T_A8B8G8R8": "RGBA", "T_X8B8G8R8": "RGBX", "T_A8R8G8B8": "BGRA", "T_X8R8G8B8": "BGRX", "T_B8G8R8A8": "ARGB",
    "T_B8G8R8X8": "XRGB", "T_R8G8B8A8": "ABGR", "T_R8G8B8X8": "XBGR", "T_A8Y8U8V8": "VUYA", "T_V8U8Y8A8": "AYUV",
    "T_R8": "R",
}  # fmt: skip
"""The bytes of a pixel in memory, least significant first."""
CHANNELS = {"R": 0, "Y": 0, "G": 1, "U": 1, "B": 2, "V": 2, "A": 3, "X": 3}
HEIGHT, WIDTH, KERNELS, ROWS, COLUMNS = 5, 6, 11, 2, 3
MEANS, SCALE, TRUNCATE = (100, -3, 40, 7), 3, 2


def rounded(value: int, shift: int) -> int:
    """Divided by 2^shift, half away from zero."""
    magnitude = (abs(value) + (1 << shift >> 1)) >> shift
    return -magnitude if value < 0 else magnitude


def converted(pixels: Array, name: str, *, signed: bool) -> Array:
    """Channels (C, H, W): (value - mean) * scale >> truncate, saturated to int8."""
    letters = IN_MEMORY[name]
    image = np.zeros((len(letters), HEIGHT, WIDTH), np.int64)
    for y, x, at in product(range(HEIGHT), range(WIDTH), range(len(letters))):
        value = int(pixels[y, x * len(letters) + at])
        channel = CHANNELS[letters[at]]
        value = value - 256 if signed and value > 127 else value
        image[channel, y, x] = np.clip(rounded((value - MEANS[channel]) * SCALE, TRUNCATE), -128, 127)
    return image


def stored(machine: Machine, w: Array) -> Array:
    """Weights (K, C, R, S): group of kernels, block of S * C channels, row, kernel, channel in block."""
    K, C, R, S = w.shape
    pixels = w.transpose(0, 2, 3, 1).reshape(K, R, S * C)
    parts = [
        pixels[k, r, first : first + machine.atomic_c]
        for group in range(0, K, machine.atomic_k)
        for first in range(0, S * C, machine.atomic_c)
        for r in range(R)
        for k in range(group, min(K, group + machine.atomic_k))
    ]
    return np.concatenate([*parts, np.zeros(128, np.int8)]).view(np.uint8)


def image(machine: Machine, name: str, line: int, *, signed: bool) -> Fields:
    """What turns a convolution into one of an image whose channels have means."""
    C = len(IN_MEMORY[name])
    entries = {"ENTRIES": -(-WIDTH * C // machine.cbuf_entry_bytes) - 1}
    ry, gu, bv, ax = (each & 0xFFFF for each in MEANS)
    return {
        "CDMA.D_DATAIN_FORMAT": {
            "DATAIN_FORMAT": "PIXEL",
            "PIXEL_FORMAT": name,
            "PIXEL_SIGN_OVERRIDE": int(signed),
        },
        "CSC.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL"},
        "CDMA.D_LINE_STRIDE": {"LINE_STRIDE": stride(machine, line)},
        "CDMA.D_ENTRY_PER_SLICE": entries,
        "CSC.D_ENTRY_PER_SLICE": entries,
        "CDMA.D_MEAN_FORMAT": {"MEAN_FORMAT": "ENABLE"},
        "CDMA.D_MEAN_GLOBAL_0": {"MEAN_RY": ry, "MEAN_GU": gu},
        "CDMA.D_MEAN_GLOBAL_1": {"MEAN_BV": bv, "MEAN_AX": ax},
        "CDMA.D_CVT_CFG": {"CVT_EN": "ENABLE", "CVT_TRUNCATE": TRUNCATE},
        "CDMA.D_CVT_SCALE": {"CVT_SCALE": SCALE},
        "CSC.D_WEIGHT_SIZE_EXT_0": {"WEIGHT_WIDTH_EXT": 0, "WEIGHT_HEIGHT_EXT": ROWS - 1},
        "CSC.D_WEIGHT_SIZE_EXT_1": {"WEIGHT_CHANNEL_EXT": COLUMNS * C - 1, "WEIGHT_KERNEL": KERNELS - 1},
        "CACC.D_CLIP_CFG": {"CLIP_TRUNCATE": 5},
    }


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("machine", [SMALL, LARGE, FULL], ids=lambda machine: machine.name)
@pytest.mark.parametrize("name", IN_MEMORY)
def test_an_image_is_convolved_as_written_out(name: str, machine: Machine, signed: bool) -> None:
    chance = np.random.default_rng(len(name) + signed)
    C, line = len(IN_MEMORY[name]), 64
    pixels = chance.integers(0, 256, (HEIGHT, line)).astype(np.uint8)
    w = chance.integers(-128, 128, (KERNELS, C, ROWS, COLUMNS)).astype(np.int8)
    changed = image(machine, name, line, signed=signed)
    layer = Convolution(machine, (C, HEIGHT, WIDTH), (KERNELS, ROWS, COLUMNS), changed=changed)
    after = model.run(
        machine, [*layer.commands(), layer.wait()], memory({SOURCE: pixels.ravel(), WEIGHTS: stored(machine, w)})
    )
    x, expected = converted(pixels, name, signed=signed), np.zeros(layer.out, np.int64)
    for k, y, column in np.ndindex(expected.shape):
        total = int((x[:, y : y + ROWS, column : column + COLUMNS] * w[k].astype(np.int64)).sum())
        expected[k, y, column] = np.clip(rounded(total, 5), -128, 127)
    np.testing.assert_array_equal(layer.read(after), expected)


# Maps of one pixel and of one column, which SDP takes as packed: programs in which that matters


CONFIGURATIONS = (("nvdla-small", "int8"), ("nvdla-full", "int8"), ("nvdla-full", "int16"))
STARTS = {name: np.array([value], np.int64) for name, value in {"zero": 0, "one": 1, "two": 2, "axis": 2}.items()}
HALVES = [node("Relu", "x", "r"), node("Slice", "r zero one axis", "a"), node("Slice", "r one two axis", "b")]


def networks() -> dict[str, onnx.ModelProto]:
    """Each computes or moves maps of one pixel whose channels fill several atoms of nv_small and of nv_full."""
    found = {
        "transposed convolution": network([node("ConvTranspose", "x w", "y", strides=[2, 2])], (1, 16, 1, 1),
            {"w": weights(16, 72, 2, 2)}),
        "transposed convolution of a column": network([node("ConvTranspose", "x w", "y", strides=[2, 2])],
            (1, 16, 7, 1), {"w": weights(16, 72, 2, 2)}),
        "depth to space": network([node("Relu", "x", "r"), node("DepthToSpace", "r", "y", blocksize=2)],
            (1, 288, 1, 1)),
        "concatenation": network([node("Conv", "x v", "a"), node("Conv", "x w", "b"),
            node("Concat", "a b", "y", axis=2)], (1, 8, 3, 3), {"v": weights(72, 8, 3, 3),
            "w": -weights(72, 8, 3, 3)}),
        "addition of halves": network([*HALVES, node("Add", "a b", "y")], (1, 72, 2, 1), STARTS),
        "convolution and addition": network([*HALVES, node("Conv", "a w", "c"), node("Add", "c b", "y")],
            (1, 72, 2, 1), {**STARTS, "w": weights(72, 72, 1, 1)}),
        "operands per channel": network([*HALVES, node("PRelu", "a s", "y")], (1, 72, 2, 1),
            {**STARTS, "s": weights(72, 1, 1)}),
        "a column in tiles": network([node("Conv", "x w", "c", pads=[1, 0, 1, 0]), node("Add", "c x", "y")],
            (1, 72, 9, 1), {"w": weights(72, 72, 3, 1)}),
    }  # fmt: skip
    enlarged = network([node("Relu", "x", "r"), node("Resize", "r _ _", "y", mode="nearest")], (1, 72, 1, 1))
    enlarged.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, 2, 2]), "scales"))
    enlarged.graph.node[1].input[:] = ["r", "", "scales"]
    return {**found, "enlargement": enlarged}


NETWORKS = networks()


@pytest.mark.parametrize(("name", "precision"), CONFIGURATIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_with_maps_of_one_pixel_is_bit_exact(
    network: str, name: str, precision: str, tmp_path: Path
) -> None:
    expect_exact(verified(NETWORKS[network], tmp_path, name, samples=2, precision=precision))


def test_a_cube_of_one_pixel_has_no_strides() -> None:
    assert pack_single(Pattern(64, 8, 1, 512, 3, 1024), 8).size == 3 * 8
    assert pack_single(Pattern(64, 8, 2, 512, 3, 1024), 8).size == 2 * 1024 + 512 + 8
