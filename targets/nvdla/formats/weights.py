"""Weight Format: the forms of table 34, the order of each, Winograd's transform, and sparse compression.

Order of weights for direct convolution: group, block, H, W, kernel in group, channel in block. A group has as many
kernels as the MAC array processes in parallel (32 in int8, 16 in int16 and fp16; 8 on nv_small), a block the
channels that a cell multiplies at once (64; 8 on nv_small). The last group and block may be smaller. The whole is
padded with zeros to a CBUF entry: 128 bytes in the document and on nv_full, 64 on nv_large, 8 on nv_small. Image
input extends channels first: a line of the kernel becomes one pixel of S * C channels. So does Winograd, if the
convolution is strided; its kernels then become 4x4.

Every order can be compressed: nonzero weights, a little-endian bit for each element (WMB), the bytes of each group
(WGS). Groups follow each other without gaps; each of these surfaces is padded with zeros to 128 bytes.

Source: in-memory formats, Weight Format to Sparse Compression option, table 34, figures 12 to 17.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.flag import Flag
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.machine.parameters import BYTES, Machine


@frozen
class WeightForm:
    """A type of weights with its options.

    >>> str(WeightForm()), str(WeightForm(compressed=True)), str(WeightForm("image", 2, True))
    ('direct', 'sparse', 'image, 2 lines, sparse')
    """

    kind: str = "direct"
    """direct, image or winograd."""
    lines: int = 1
    """Lines of an image that post-extension joins: 1, 2 or 4."""
    compressed: bool = False
    zeros: int = 0
    """Columns of zeros behind those of an image's kernel."""
    planes: int = 1
    """Planes of an image."""

    def __str__(self) -> str:
        parts = [self.kind, *([f"{self.lines} lines"] if self.lines > 1 else [])]
        parts += [f"{self.planes} planes"] if self.planes > 1 else []
        parts += [f"columns of zeros: {self.zeros}"] if self.zeros else []
        if self.compressed:
            parts = ["sparse"] if parts == ["direct"] else [*parts, "sparse"]
        return ", ".join(parts)


DIRECT = WeightForm()
WEIGHTS = Flag(
    "weights",
    ("auto", "one-plane", "direct", "winograd", "sparse"),
    "Form of convolution weights; auto: the fewest cycles, then the fewest bytes (NVDLA).",
)
"""Each configuration offers the values that its units support."""


def asked_forms(machine: Machine) -> tuple[str, ...]:
    """The values of `weights`: auto chooses by cost, as does one-plane, whose images the stock runtime can fill.

    direct has neither images nor any option.
    """
    winograd, sparse = ["winograd"] * machine.winograd, ["sparse"] * machine.compression
    return ("auto", "one-plane", "direct", *winograd, *sparse)


def expect_supported(machine: Machine, asked: str) -> None:
    """Raises UnsupportedOperator (E202) if the machine lacks the form that is asked for."""
    if asked not in asked_forms(machine):
        raise UnsupportedOperator(
            "E202",
            f"machine {machine.name} has no {asked} weights",
            limit=", ".join(asked_forms(machine)),
            remedy="leave weights out",
        )


@frozen
class Order:
    """The order in which weights (K, C, R, S) are stored; `shape` is theirs after any extension."""

    shape: tuple[int, int, int, int]
    group: int
    block: int
    lines: int = 1
    """Lines that post-extension joins: 1, 2 or 4."""
    tiled: bool = False
    """Winograd: for each block of channels, all positions of a kernel precede the next kernel."""

    @property
    def groups(self) -> list[slice]:
        """The kernels of each group."""
        kernels = self.shape[0]
        return [slice(first, min(first + self.group, kernels)) for first in range(0, kernels, self.group)]

    @property
    def group_elements(self) -> list[int]:
        """Weights of each group."""
        _, channels, height, width = self.shape
        return [(each.stop - each.start) * channels * height * width for each in self.groups]


def direct_order(machine: Machine, shape: tuple[int, int, int, int], precision: str = "int8") -> Order:
    """The order of weights (K, C, R, S) for direct convolution."""
    return Order(shape, machine.kernel_group(precision), machine.atomic_c)


POST_EXTENSIONS = (1, 2, 4)
"""Numbers of image lines that can be joined."""


def image_order(
    machine: Machine, shape: tuple[int, int, int, int], precision: str = "int8", post_extension: int = 1
) -> Order:
    """The order of weights (K, 4 * S, R, 1) for image input, as pre_extended returns them.

    Raises UnsupportedOperator (E202) if table 34 or the channel limits of post-extension forbid it.
    """
    channels = shape[1]
    most = {1: channels, 2: machine.atomic_c // 2, 4: machine.atomic_c // 4}
    if post_extension not in most or channels > most[post_extension]:
        raise UnsupportedOperator(
            "E202",
            f"post-extension by {post_extension} lines of {channels} channels",
            limit=f"1; 2 with at most {most[2]} channels; 4 with at most {most[4]}",
        )
    return Order(shape, machine.kernel_group(precision), machine.atomic_c, post_extension)


def pre_extend(w: Array, pixel_channels: int) -> Array:
    """Weights (K, C, R, S) as (K, S * pixel_channels, R, 1): channel s * pixel_channels + c, missing ones 0.

    pixel_channels: of a pixel in memory, 4 for the interleaved formats with alpha.
    """
    kernels, channels, height, width = w.shape
    filled = np.zeros((kernels, pixel_channels, height, width), w.dtype)
    filled[:, :channels] = w
    return filled.transpose(0, 3, 1, 2).reshape(kernels, width * pixel_channels, height, 1)


G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
KERNEL = 3
CUBE = 32
"""The channels of a pixel are padded to a multiple of this many bytes."""
TILE = 4
"""Rows and columns of data and weights that are multiplied at once; outputs are also multiples of 4."""
WINOGRAD_BLOCK = 4
"""Channels of a small cube of Winograd weights."""


def extended_extent(outputs: int) -> int:
    """Rows or columns of data, padding included, for so many outputs: both are multiples of 4.

    >>> extended_extent(8), extended_extent(7)
    (12, 12)
    """
    return align(outputs, TILE) + TILE


def extend_kernels(w: Array, stride_y: int, stride_x: int) -> Array:
    """Weights (K, C, R, S) of a strided convolution as those of one without strides: (K, strides * C, 3, 3).

    Channel (row phase * stride_x + column phase) * C + c, as CDMA extends the data. Raises UnsupportedOperator
    (E202) if the kernel does not become 3x3.
    """
    kernels, channels, height, width = w.shape
    if -(-height // stride_y) > KERNEL or -(-width // stride_x) > KERNEL:
        raise UnsupportedOperator(
            "E202",
            f"a {height}x{width} kernel with strides {stride_y}, {stride_x} for Winograd",
            limit="3x3 after channel extension",
        )
    filled = np.zeros((kernels, channels, KERNEL * stride_y, KERNEL * stride_x), w.dtype)
    filled[:, :, :height, :width] = w
    split = filled.reshape(kernels, channels, KERNEL, stride_y, KERNEL, stride_x)
    return split.transpose(0, 3, 5, 1, 2, 4).reshape(kernels, -1, KERNEL, KERNEL)


def transform_kernels(w: Array) -> Array:
    """G g G^T of weights (K, C, 3, 3): (K, C, 4, 4) float32, without further scaling."""
    return np.einsum("ir,kcrs,js->kcij", G, w.astype(np.float32), G, optimize=True)


def fill_channels(w: Array, precision: str) -> Array:
    """Weights with channels padded with zeros to 32 bytes."""
    channels = align(w.shape[1] * BYTES[precision], CUBE) // BYTES[precision]
    found = np.zeros((len(w), channels, *w.shape[2:]), w.dtype)
    found[:, : w.shape[1]] = w
    return found


def winograd_order(machine: Machine, shape: tuple[int, int, int, int], precision: str = "int8") -> Order:
    """The order of transformed weights (K, C, 4, 4): 4x4x4 cubes, kernel by kernel; C is a multiple of 4."""
    return Order(shape, machine.kernel_group(precision), WINOGRAD_BLOCK, tiled=True)


def split_groups(order: Order, w: Array) -> list[Array]:
    """The elements of each group in storage order, before compression."""
    return [np.concatenate([part.ravel() for part in _parts(order, w[kernels])]) for kernels in order.groups]


def _parts(order: Order, w: Array) -> list[Array]:
    """Views of a group's weights (k, C, R, S) that give its storage order when concatenated."""
    if order.lines > 1:
        rows = range(0, w.shape[2], order.lines)
        return [w[:, :, row : row + order.lines].transpose(3, 0, 2, 1) for row in rows]
    count, channels, height, width = w.shape
    if order.tiled:
        return [w.reshape(count, -1, order.block, height, width).transpose(1, 0, 3, 4, 2)]
    full = channels - channels % order.block
    blocks = w[:, :full].reshape(count, -1, order.block, height, width).transpose(1, 3, 4, 0, 2)
    return [blocks, w[:, full:].transpose(2, 3, 0, 1)]


def join_groups(order: Order, groups: Sequence[Array]) -> Array:
    """The weights (K, C, R, S) from the elements of each group; the inverse of split_groups."""
    w = np.zeros(order.shape, groups[0].dtype)
    for kernels, elements in zip(order.groups, groups, strict=True):
        start = 0
        for part in _parts(order, w[kernels]):
            part[...] = elements[start : start + part.size].reshape(part.shape)
            start += part.size
    return w


def pack(machine: Machine, order: Order, w: Array) -> bytes:
    """The weight surface: the groups in order, padded with zeros to a CBUF entry."""
    data = np.concatenate(split_groups(order, w)).tobytes()
    return data.ljust(surface_bytes(machine, order, w.itemsize), b"\0")


def surface_bytes(machine: Machine, order: Order, element_bytes: int) -> int:
    """Size of the weight surface."""
    return align(sum(order.group_elements) * element_bytes, machine.cbuf_entry_bytes)


def unpack(order: Order, data: bytes, dtype: str) -> Array:
    """The weights (K, C, R, S) stored in a weight surface."""
    elements = np.frombuffer(data, dtype, sum(order.group_elements))
    return join_groups(order, np.split(elements, np.cumsum(order.group_elements)[:-1]))


SURFACE = 128
"""Each surface of compressed weights is padded to a multiple of this many bytes."""


@frozen
class Compressed:
    """The three surfaces."""

    weights: bytes
    mask: bytes
    """WMB."""
    sizes: bytes
    """WGS: 32 bits a group."""


def compress(order: Order, w: Array) -> Compressed:
    """The surfaces of weights in an order. The negative zero of fp16 counts as zero."""
    groups = split_groups(order, w)
    present = [group[group != 0] for group in groups]
    bits = np.packbits(np.concatenate(groups) != 0, bitorder="little")
    sizes = np.array([group.nbytes for group in present], "<u4")
    return Compressed(*(_pad_to_surface(part.tobytes()) for part in (np.concatenate(present), bits, sizes)))


def _pad_to_surface(data: bytes) -> bytes:
    return data.ljust(align(len(data), SURFACE), b"\0")
