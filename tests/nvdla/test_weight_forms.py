"""The forms of weights on the model: whatever the form, the sums are those of the convolution written out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.nvdla import model
from npuc.targets.nvdla.formats import weights as formats
from npuc.targets.nvdla.machine.parameters import FULL
from npuc.targets.nvdla.model import DeviceMemory
from tests.nvdla.programs import OPERAND, WEIGHTS, Convolution, Fields, memory

TWICE_G = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
"""2 G: its transform gives integers, 4 times the convolution."""
BLOCKS = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")


def strided(x: Array, w: Array, stride: int = 1) -> Array:
    """The convolution (K, Ho, Wo) of (C, H, W), written out, clipped to int8."""
    kernels, _, R, S = w.shape
    found = np.zeros((kernels, (x.shape[1] - R) // stride + 1, (x.shape[2] - S) // stride + 1), np.int64)
    for y in range(found.shape[1]):
        for column in range(found.shape[2]):
            window = x[:, y * stride : y * stride + R, column * stride : column * stride + S].astype(np.int64)
            found[:, y, column] = (w.astype(np.int64) * window).sum((1, 2, 3))
    return found.clip(-128, 127)


def few(shape: tuple[int, ...], seed: int, share: float = 0.1) -> Array:
    """-1, 0 and 1, most of them 0."""
    random = np.random.default_rng(seed)
    return (random.choice([-1, 1], shape) * (random.random(shape) < share)).astype(np.int8)


@dataclass(frozen=True)
class Winograd(Convolution):
    """A convolution of 4 x 4 outputs by Winograd, its stride a matter of channels."""

    stride: int = 1

    @property
    def out(self) -> tuple[int, int, int]:
        return self.kernel[0], 4, 4


def winograd(size: int, stride: int, channels: int = 32) -> Winograd:
    """The layer of a kernel of size x size, as firmware would set it up."""
    side = 3 * stride + size
    extended = channels * stride * stride
    mode = {"CONV_MODE": "WINOGRAD", "IN_PRECISION": "INT8", "PROC_PRECISION": "INT8"}
    bytes_ = 16 * extended
    entries = 8 // 4 * extended // 32 - 1
    changed: Fields = {
        "CDMA.D_MISC_CFG": mode, "CSC.D_MISC_CFG": mode,
        **{f"{each}.D_MISC_CFG": {"CONV_MODE": "WINOGRAD"} for each in BLOCKS[2:]},
        "CDMA.D_DATAIN_SIZE_EXT_0": {"DATAIN_WIDTH_EXT": 7, "DATAIN_HEIGHT_EXT": 7},
        "CSC.D_DATAIN_SIZE_EXT_0": {"DATAIN_WIDTH_EXT": 7, "DATAIN_HEIGHT_EXT": 7},
        "CDMA.D_ZERO_PADDING": {"PAD_RIGHT": 8 * stride - side, "PAD_BOTTOM": 8 * stride - side},
        "CDMA.D_CONV_STRIDE": {"CONV_X_STRIDE": stride - 1, "CONV_Y_STRIDE": stride - 1},
        **{f"{each}.D_ENTRY_PER_SLICE": {"ENTRIES": entries} for each in ("CDMA", "CSC")},
        "CDMA.D_WEIGHT_SIZE_0": {"BYTE_PER_KERNEL": bytes_ - 1},
        "CDMA.D_WEIGHT_BYTES": {"WEIGHT_BYTES": 5 * bytes_ // 128},
        "CSC.D_DATAIN_SIZE_EXT_1": {"DATAIN_CHANNEL_EXT": extended - 1},
        "CSC.D_WEIGHT_SIZE_EXT_0": {"WEIGHT_WIDTH_EXT": 3, "WEIGHT_HEIGHT_EXT": 3},
        "CSC.D_WEIGHT_SIZE_EXT_1": {"WEIGHT_CHANNEL_EXT": extended - 1, "WEIGHT_KERNEL": 4},
        "CSC.D_RELEASE": {"RLS_SLICES": 7},
        "CACC.D_CLIP_CFG": {"CLIP_TRUNCATE": 2},
    }  # fmt: skip
    return Winograd(FULL, (channels, side, side), (5, size, size), changed=changed, stride=stride)


def transformed(w: Array, stride: int) -> Array:
    """Integer Winograd weights (K, C * stride^2, 4, 4): phases of rows and columns as channels, then 2G w 2G^T."""
    kernels, channels, size, _ = w.shape
    spread = np.zeros((kernels, channels, 3 * stride, 3 * stride), np.int64)
    spread[:, :, :size, :size] = w
    phases = spread.reshape(kernels, channels, 3, stride, 3, stride).transpose(0, 3, 5, 1, 2, 4)
    extended = phases.reshape(kernels, -1, 3, 3)
    return np.einsum("ir,kcrs,js->kcij", TWICE_G, extended, TWICE_G).astype(np.int8)


def with_weights(layer: Convolution, x: Array, data: bytes) -> DeviceMemory:
    """Memory with data of a layer and a weight surface."""
    contents = layer.contents(x, np.zeros((layer.kernel[0], *layer.shape[:1], 1, 1), np.int8))
    return memory({**contents, WEIGHTS: data})


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 2), (6, 2), (7, 3)])
def test_winograd_with_any_stride_is_the_convolution(size: int, stride: int) -> None:
    layer = winograd(size, stride)
    x, w = few(layer.shape, 0), few((5, 32, size, size), 1, 0.5)
    u = transformed(w, stride)
    data = formats.pack(FULL, formats.winograd_order(FULL, u.shape), u)
    after = model.run(FULL, layer.commands(), with_weights(layer, x, data))
    np.testing.assert_array_equal(layer.read(after), strided(x, w, stride))


def test_winograd_data_is_shifted_and_saturated_before_it_is_multiplied() -> None:
    layer = winograd(3, 1)
    changed = {**layer.changed, "CSC.D_PRA_CFG": {"PRA_TRUNCATE": 1}}
    x = np.zeros(layer.shape, np.int8)
    x[0, 0, 0] = 127
    u = np.zeros((5, 32, 4, 4), np.int8)
    u[:, 0, 0, 0] = 4
    data = formats.pack(FULL, formats.winograd_order(FULL, u.shape), u)
    shifted = Winograd(FULL, layer.shape, layer.kernel, changed=changed)
    # t = 127 at the first position of the first tile, halved away from zero to 64, times 4, by 4
    after = model.run(FULL, shifted.commands(), with_weights(shifted, x, data))
    assert shifted.read(after)[0].ravel().tolist() == [64] + [0] * 15


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_post_extension_changes_the_order_of_weights_only(lines: int) -> None:
    shape, kernel = (4, 7, 6), (5, 5, 2)
    changed: Fields = {
        "CDMA.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL", "PIXEL_FORMAT": "T_A8B8G8R8"},
        "CSC.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL"},
        "CDMA.D_LINE_STRIDE": {"LINE_STRIDE": 1},
        **{f"{each}.D_ENTRY_PER_SLICE": {"ENTRIES": 0} for each in ("CDMA", "CSC")},
        "CSC.D_WEIGHT_SIZE_EXT_0": {"WEIGHT_WIDTH_EXT": 0, "WEIGHT_HEIGHT_EXT": 4},
        "CSC.D_WEIGHT_SIZE_EXT_1": {"WEIGHT_CHANNEL_EXT": 7, "WEIGHT_KERNEL": 4},
        "CSC.D_POST_Y_EXTENSION": {"Y_EXTENSION": lines // 2},
    }
    layer = Convolution(FULL, shape, kernel, changed=changed)
    random = np.random.default_rng(0)
    x, w = random.integers(0, 3, shape).astype(np.int8), random.integers(-2, 3, (5, 4, 5, 2)).astype(np.int8)
    extended = formats.pre_extend(w, 4)
    order = formats.image_order(FULL, extended.shape, post_extension=lines)
    pixels = np.zeros((7, 32), np.uint8)
    pixels[:, :24] = x.transpose(1, 2, 0).reshape(7, 24)
    after = model.run(
        FULL,
        layer.commands(),
        memory({layer.source: pixels.ravel(), WEIGHTS: formats.pack(FULL, order, extended)}),
    )
    np.testing.assert_array_equal(layer.read(after), strided(x, w))


def compressed(layer: Convolution, x: Array, w: Array, size_of_first: int = 0) -> DeviceMemory:
    """Memory with the weights as WMB at OPERAND, WGS at OPERAND + 0x8000 and packed values."""
    groups = formats.split_groups(formats.direct_order(FULL, w.shape), w)
    mask = np.packbits(np.concatenate(groups) != 0, bitorder="little").tobytes()
    sizes = np.array([np.count_nonzero(each) for each in groups], "<u4")
    sizes[0] += size_of_first
    packed = np.concatenate([each[each != 0] for each in groups]).tobytes()
    before = with_weights(layer, x, packed.ljust(-(-len(packed) // 128) * 128, b"\0"))
    before.write(OPERAND, mask.ljust(-(-len(mask) // 128) * 128, b"\0"))
    before.write(OPERAND + 0x8000, sizes.tobytes())
    return before


def sparse() -> tuple[Convolution, Array, Array]:
    """A layer of two kernel groups with compressed weights."""
    w = few((40, 70, 2, 2), 3, 0.2)
    mask_bytes, weight_bytes = -(-w.size // 1024) * 128, -(-int(np.count_nonzero(w)) // 128) * 128
    changed: Fields = {
        "CDMA.D_WEIGHT_FORMAT": {"WEIGHT_FORMAT": "COMPRESSED"},
        "CSC.D_WEIGHT_FORMAT": {"WEIGHT_FORMAT": "COMPRESSED"},
        "CDMA.D_WEIGHT_BYTES": {"WEIGHT_BYTES": weight_bytes // 128},
        "CDMA.D_WMB_BYTES": {"WMB_BYTES": mask_bytes // 128},
        "CDMA.D_WMB_ADDR_LOW": {"WMB_ADDR_LOW": OPERAND // 32},
        "CDMA.D_WGS_ADDR_LOW": {"WGS_ADDR_LOW": (OPERAND + 0x8000) // 32},
        **{f"{each}.D_BANK": {"DATA_BANK": 7, "WEIGHT_BANK": 6} for each in ("CDMA", "CSC")},
    }
    return Convolution(FULL, (70, 5, 5), (40, 2, 2), changed=changed), few((70, 5, 5), 4, 0.5), w


def test_compressed_weights_are_those_that_were_compressed() -> None:
    layer, x, w = sparse()
    after = model.run(FULL, layer.commands(), compressed(layer, x, w))
    np.testing.assert_array_equal(layer.read(after), strided(x, w))


def test_a_group_size_that_its_mask_contradicts_is_refused() -> None:
    layer, x, w = sparse()
    with pytest.raises(ArtefactError, match="a group's size is"):
        model.run(FULL, layer.commands(), compressed(layer, x, w, size_of_first=1))


def test_a_bank_is_kept_free_for_the_mask() -> None:
    layer, x, w = sparse()
    banks = {f"{each}.D_BANK": {"DATA_BANK": 7, "WEIGHT_BANK": 7} for each in ("CDMA", "CSC")}
    full = Convolution(FULL, layer.shape, layer.kernel, changed={**layer.changed, **banks})
    with pytest.raises(ArtefactError, match="8 data banks, 8 weight banks and 1 for the mask"):
        model.run(FULL, full.commands(), compressed(full, x, w))
