"""CSC: sequences the convolution, pairing data with weights step by step.

The order is that of the hardware: channel block, kernel row, kernel column; one step covers all output positions
and all kernels. CSC also decompresses weights and transforms Winograd data (pre-addition).

Source: in-memory formats, Weight Format; Winograd, image input and compression as on the nv_full RTL.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats import pixels
from npuc.targets.nvdla.formats import weights as formats
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model import fp16
from npuc.targets.nvdla.model.arithmetic import saturate, shift_right
from npuc.targets.nvdla.model.cdma import Buffered, FetchedWeights, pad_value, precision
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

BLOCK = "CSC"
TILE, TILE_STEP = 4, 2
INPUT_TRANSFORM = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
"""C^T of F(2x2, 3x3): t = C^T d C matches the document's G for the weights."""

Step = tuple[Array, Array]
"""Data (..., positions, channels) and weights (..., channels, kernels) that CMAC multiplies."""


@frozen
class LaidOutConvolution:
    """A convolution ready to run: its registers, data and weights, as numbers."""

    group: RegisterGroup
    images: Array
    """(batch, H, W, C)."""
    kernels: Array
    """(R, S, C, K); Winograd: (4, 4, C, K)."""
    block: int
    """Channels of a channel block."""

    @property
    def winograd(self) -> bool:
        """Whether the data is transformed."""
        return bool(self.group["CONV_MODE"])

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        return self.group["DATAOUT_HEIGHT"] + 1, self.group["DATAOUT_WIDTH"] + 1

    @property
    def is_float(self) -> bool:
        """Whether the numbers are those of fp16."""
        return bool(np.issubdtype(self.images.dtype, np.floating))


def lay_out(group: RegisterGroup, machine: Machine, buffered: Buffered) -> LaidOutConvolution:
    """The convolution that buffer and registers describe. Raises ArtefactError (E503) if they disagree."""
    channels = group["DATAIN_CHANNEL_EXT"] + 1
    found = buffered.features.shape[-1]
    if channels != found:
        raise trap(BLOCK, f"{channels} channels", limit=f"{found}, as CDMA fetches")
    _expect_kernels(group, machine, buffered.features)
    kernels = kernel_weights(group, machine, buffered.weights)
    return LaidOutConvolution(group, buffered.features, kernels, machine.atomic_c)


def _expect_kernels(group: RegisterGroup, machine: Machine, buffered: Array) -> None:
    """Raises ArtefactError (E503) if the kernels do not match the data in the buffer or their form's size."""
    channels = buffered.shape[-1]
    kernel_channels = group["WEIGHT_CHANNEL_EXT"] + 1
    size = group["WEIGHT_HEIGHT_EXT"] + 1, group["WEIGHT_WIDTH_EXT"] + 1
    if group["CONV_MODE"] and (size != (TILE, TILE) or channels % TILE):
        reason = f"Winograd kernels of {size[1]} x {size[0]} and {channels} channels"
        raise trap(BLOCK, reason, limit="4 x 4, channels in fours")
    image = group.value_name("DATAIN_FORMAT") == "PIXEL"
    if not image and kernel_channels != channels:
        raise trap(BLOCK, f"kernels of {kernel_channels} channels", limit=f"{channels}, as the data has")
    if image:
        _expect_image(group, machine, (buffered.shape[2], channels), size[1])


def _expect_image(group: RegisterGroup, machine: Machine, line: tuple[int, int], kernel_width: int) -> None:
    """Raises ArtefactError (E503) for kernels that do not match an image; line: its padded columns, channels."""
    columns, channels = line
    extended, width = group["WEIGHT_CHANNEL_EXT"] + 1, group["DATAOUT_WIDTH"] + 1
    if kernel_width != 1 or extended % channels:
        reason = f"image kernels of width {kernel_width} and {extended} channels"
        raise trap(BLOCK, reason, limit=f"width 1, a multiple of {channels} channels")
    reached = (width - 1) * (group["CONV_X_STRIDE_EXT"] + 1) + extended // channels
    if reached > columns:
        raise trap(BLOCK, f"windows over {reached} columns of an image", limit=f"{columns}, with CDMA's padding")
    if pixels.misreads(machine, extended, width):
        reason = f"a result of {width} columns from lines of {extended} channels of an image"
        remedy = "more channels with weights of 0, or another form"
        raise trap(BLOCK, reason, limit=f"what {machine.name} reads right", remedy=remedy)


def kernel_weights(group: RegisterGroup, machine: Machine, weights: FetchedWeights) -> Array:
    """The weights (R, S, C, K) of the layer, int8, int16 or float32; of an image (R, 1, S * C, K)."""
    kind = precision(group, "PROC_PRECISION")
    kernels, channels = group["WEIGHT_KERNEL"] + 1, group["WEIGHT_CHANNEL_EXT"] + 1
    shape = (kernels, channels, group["WEIGHT_HEIGHT_EXT"] + 1, group["WEIGHT_WIDTH_EXT"] + 1)
    order = _order(group, machine, shape, kind)
    data = weights.data if weights.mask is None else _decompress(order, weights, kind)
    wanted = sum(order.group_elements) * np.dtype(DTYPES[kind]).itemsize
    if len(data) < wanted:
        raise trap(BLOCK, f"{len(data)} weight bytes", limit=f"{wanted} for {shape[0]} kernels")
    values = formats.unpack(order, data, DTYPES[kind]).transpose(2, 3, 1, 0)
    if kind != "fp16":
        return values
    return fp16.load(values, fp16.INFINITY, flush=False)


def _order(group: RegisterGroup, machine: Machine, shape: tuple[int, int, int, int], kind: str) -> formats.Order:
    """The order in which the weights of the convolution's mode are stored."""
    if group["CONV_MODE"]:
        return formats.winograd_order(machine, shape, kind)
    if group.value_name("DATAIN_FORMAT") == "PIXEL":
        return formats.image_order(machine, shape, kind, 1 << group["Y_EXTENSION"])
    return formats.direct_order(machine, shape, kind)


def _decompress(order: formats.Order, weights: FetchedWeights, kind: str) -> bytes:
    """The weights with the zeros restored that the mask marks, group by group."""
    assert weights.mask is not None and weights.group_sizes is not None
    count = sum(order.group_elements)
    mask = np.unpackbits(np.frombuffer(weights.mask, np.uint8), bitorder="little")[:count].astype(bool)
    values = np.zeros(count, DTYPES[kind])
    packed = np.frombuffer(weights.data, DTYPES[kind])
    at, source = 0, 0
    for elements, size in zip(order.group_elements, weights.group_sizes, strict=True):
        present = np.flatnonzero(mask[at : at + elements]) + at
        if len(present) * packed.itemsize != size:
            reason = f"a group's size is {size} bytes"
            raise trap(BLOCK, reason, limit=f"{len(present) * packed.itemsize}, as its mask says")
        if source + len(present) > len(packed):
            raise trap(BLOCK, f"{len(weights.data)} compressed bytes", limit="what the mask stands for")
        values[present] = packed[source : source + len(present)]
        at, source = at + elements, source + len(present)
    return values.tobytes()


def steps(layer: LaidOutConvolution, image: Array, *, by_block: bool) -> Iterator[Step]:
    """The products of one image (H, W, C) in order.

    by_block: per channel block, in the order in which the hardware adds.
    """
    if layer.winograd:
        return _winograd_steps(layer, image, by_block=by_block)
    if layer.group.value_name("DATAIN_FORMAT") == "PIXEL":
        return _image_steps(layer, image, by_block=by_block)
    return _direct_steps(layer, image, by_block=by_block)


def _blocks(channels: int, size: int, *, by_block: bool) -> list[slice]:
    step = size if by_block else channels
    return [slice(first, min(first + step, channels)) for first in range(0, channels, step)]


def _strides(group: RegisterGroup) -> tuple[int, int]:
    return group["CONV_Y_STRIDE_EXT"] + 1, group["CONV_X_STRIDE_EXT"] + 1


def _pad_map(layer: LaidOutConvolution, image: Array, extent: tuple[int, int]) -> Array:
    """The map with its left and top padding, cropped or padded to the rows and columns that windows reach.

    An image has its columns of padding already, from CDMA.
    """
    image_input = layer.group.value_name("DATAIN_FORMAT") == "PIXEL"
    top, left = layer.group["PAD_TOP"], 0 if image_input else layer.group["PAD_LEFT"]
    image = image[: max(extent[0] - top, 0), : max(extent[1] - left, 0)]
    if image.shape[:2] == extent:
        return image
    padded = np.full((*extent, image.shape[2]), pad_value(layer.group, layer.images), image.dtype)
    padded[top : top + image.shape[0], left : left + image.shape[1]] = image
    return padded


def _direct_steps(layer: LaidOutConvolution, image: Array, *, by_block: bool) -> Iterator[Step]:
    """Direct convolution: a step for every kernel position and block of channels."""
    group, (Ho, Wo), (sy, sx) = layer.group, layer.out, _strides(layer.group)
    R, S, C, _ = layer.kernels.shape
    dy, dx = group["Y_DILATION_EXT"] + 1, group["X_DILATION_EXT"] + 1
    data = _pad_map(layer, image, ((Ho - 1) * sy + (R - 1) * dy + 1, (Wo - 1) * sx + (S - 1) * dx + 1))
    for block in _blocks(C, layer.block, by_block=by_block):
        for r in range(R):
            rows = data[r * dy : r * dy + (Ho - 1) * sy + 1 : sy]
            for s in range(S):
                window = rows[:, s * dx : s * dx + (Wo - 1) * sx + 1 : sx, block]
                yield window.reshape(Ho * Wo, -1), layer.kernels[r, s, block]


def _image_steps(layer: LaidOutConvolution, image: Array, *, by_block: bool) -> Iterator[Step]:
    """Image input: a kernel line is one pixel of S * C channels, its data a window of a line of the image.

    by_block: post-extension joins several lines, as further channels of one pixel.
    """
    (Ho, Wo), (sy, sx) = layer.out, _strides(layer.group)
    R, _, extended, _ = layer.kernels.shape
    C = image.shape[2]
    columns = (Wo - 1) * sx + -(-extended // C)
    data = np.ascontiguousarray(_pad_map(layer, image, ((Ho - 1) * sy + R, columns)))

    def windows(r: int) -> Array:
        rows = data[r : r + (Ho - 1) * sy + 1 : sy]
        strides = (rows.strides[0], sx * rows.strides[1], rows.strides[2])
        return np.lib.stride_tricks.as_strided(rows, (Ho, Wo, extended), strides).reshape(Ho * Wo, extended)

    together = 1 << layer.group["Y_EXTENSION"] if by_block else 1
    for block in _blocks(extended, layer.block, by_block=by_block):
        for first in range(0, R, together):
            lines = range(first, min(first + together, R))
            data_of_lines = np.concatenate([windows(r)[:, block] for r in lines], axis=1)
            yield data_of_lines, np.concatenate([layer.kernels[r, 0, block] for r in lines])


def _winograd_steps(layer: LaidOutConvolution, image: Array, *, by_block: bool) -> Iterator[Step]:
    """Winograd: the 16 positions of all transformed tiles (16, tiles, C) against those of the weights."""
    Ho, Wo = layer.out
    tiles = -(-Ho // TILE_STEP), -(-Wo // TILE_STEP)
    reach = [TILE_STEP * each + TILE - TILE_STEP for each in tiles]
    if image.shape[0] < reach[0] or image.shape[1] < reach[1]:
        limit = f"{reach[1]} x {reach[0]} for the output"
        raise trap(BLOCK, f"extended data of {image.shape[1]} x {image.shape[0]}", limit=limit)
    y, x, c = image.strides
    shape = (*tiles, TILE, TILE, image.shape[2])
    d = np.lib.stride_tricks.as_strided(image, shape, (TILE_STEP * y, TILE_STEP * x, y, x, c))
    t = _transform_tiles(layer, d).reshape(-1, TILE * TILE, image.shape[2]).transpose(1, 0, 2)
    w = layer.kernels.reshape(TILE * TILE, *layer.kernels.shape[2:])
    for block in _blocks(image.shape[2], TILE, by_block=by_block):
        yield t[..., block], w[:, block]


def _pre_add(d: Array, behind: int) -> Array:
    """C^T along the axis that is `behind` axes from the end (1 = last); sums rounded to fp17."""
    lines = np.moveaxis(d, -behind, 0)
    parts = (
        fp16.subtract(lines[0], lines[2], fp16.fp17),
        fp16.add(lines[1], lines[2], fp16.fp17),
        fp16.subtract(lines[2], lines[1], fp16.fp17),
        fp16.subtract(lines[1], lines[3], fp16.fp17),
    )
    return np.moveaxis(np.stack(parts), 0, -behind)


def _transform_tiles(layer: LaidOutConvolution, d: Array) -> Array:
    """t = C^T d C of tiles (..., 4, 4, C); integers shifted by PRA_TRUNCATE and saturated to their precision."""
    if layer.is_float:
        rows = _pre_add(d, 3)
        return fp16.load(fp16.store(_pre_add(rows, 2)), fp16.INFINITY, flush=False)
    ct = INPUT_TRANSFORM.astype(np.int64)
    t = np.einsum("ip,...pqc,jq->...ijc", ct, d.astype(np.int64), ct, optimize=True)
    truncated = shift_right(t, layer.group["PRA_TRUNCATE"])
    return saturate(truncated, 8 * d.dtype.itemsize)
