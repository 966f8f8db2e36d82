"""Window operators as layer words: the geometry of one word, and the split of one that is too large.

A word covers at most 256 channels and a kernel within an ifmap pad; a larger one is split exactly into parts whose
psums are kept from word to word (extension).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops.windows import Window, window_of
from npuc.passes.expansion.images import ImageLimits
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS, Scope, bands, chunk_view
from npuc.targets.easynpu.layers.tiling import FIELD_MOST
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.layers.windows import MapWindow, whole
from npuc.targets.easynpu.machine.isa import BY_MNEMONIC, Layer
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine

MOST_STEP, MOST_EXTENT = 15, 256
"""The fields of strides and padding have 4 bits, those of rows and columns 8."""
WIDEST = 4096
"""Rows or columns beyond which one row of a map fills a memory."""
MOST_CHANNELS = 256
"""The most channels in a layer word."""
IMAGES = ImageLimits(LANES, MOST_CHANNELS, MOST_EXTENT, pixels=64)
"""The kernel of a fully connected layer covers at most 64 pixels."""


def geometry(
    node: Node, x: MapWindow, y: MapWindow, held: MapWindow, kernel: tuple[int, int]
) -> tuple[dict[str, int], int, int]:
    """The layer word's fields for a window operator, and the first row and column that it reads of the held input.

    x: the whole input; held: the part of it in the DTCM; y: the part of the output that is computed. The word
    states the padding before the map; Ho and Wo imply the padding after it.
    """
    window = window_of(node, kernel)
    row, Ph, Hi = _axis(y.rows, held.rows, x.rows[1], window, 0)
    column, Pw, Wi = _axis(y.columns, held.columns, x.columns[1], window, 1)
    (outputs, rows, columns), channels = y.shape, held.shape[0]
    strides = [1 if count == 1 else stride for count, stride in zip(y.shape[1:], window.strides, strict=True)]
    fields = {
        "Sh": strides[0], "Sw": strides[1],
        "Ph": Ph, "Pw": Pw,
        "Dh": window.dilations[0] - 1, "Dw": window.dilations[1] - 1,
        "Hk": kernel[0], "Wk": kernel[1],
        "Hi": Hi, "Wi": Wi, "Ci": channels,
        "Ho": rows, "Wo": columns, "Co": outputs, "Zs": groups(outputs),
    }  # fmt: skip
    return fields, row, column


def _axis(
    wanted: tuple[int, int], held: tuple[int, int], extent: int, window: Window, at: int
) -> tuple[int, int, int]:
    """(first row read, relative to the held rows; padding before it; held rows from there on).

    Windows that lie wholly in the padding behind the map are stated as lying in that before it.
    """
    stride = window.strides[at]
    start = wanted[0] * stride - window.begins[at]
    if start >= extent:
        start = held[0] - (wanted[1] - 1 - wanted[0]) * stride - window.reach[at]
    first = min(max(start, held[0]), extent - 1)
    return first - held[0], max(held[0] - start, 0), held[1] - first


def window_word(
    scope: Scope, node: Node, mnemonic: str, kernel: tuple[int, int], chunk: slice, *, dense: bool
) -> tuple[Layer, MapView]:
    """The word of a window operator for a chunk of output channels, before it is split, and its source."""
    name = node.inputs[0]
    fields, row, column = geometry(
        node, whole(scope.graph, name), scope.windows[node.output], scope.windows[name], kernel
    )
    outputs = chunk.stop - chunk.start
    fields |= {"Co": outputs, "Zs": groups(outputs)} | ({} if dense else {"Ci": outputs})
    source = scope.views.tensors[name].part(row, column)
    if not dense:
        source = chunk_view(source, chunk)
    return Layer(opcode=BY_MNEMONIC[mnemonic].opcode, **fields), source


@frozen
class KernelPart:
    """Part of a convolution: its word, the slices of the weights, and where its window starts in the map."""

    word: Layer
    channels: slice
    rows: slice
    columns: slice
    row: int
    column: int


def columns_of_channels(word: Layer, machine: Machine) -> int:
    """m, for a dense word that reads its map [H, W, C] as [H, W m, C / m], which has the same bytes.

    The fewest that leave at most 256 channels; 1 where the word needs no more, or where no m fits its fields.
    """
    for m in range(1, word.Ci // LANES + 1):
        stride = 1 if word.Wo == 1 else word.Sw * m
        fields = max(stride, word.Pw * m) <= MOST_STEP and word.Wi * m <= MOST_EXTENT
        reach = ((word.Hk - 1) * (word.Dh + 1) + 1) * word.Wk * m
        taps = reach <= machine.ifmap_pad_entries and (word.Wk == 1 or not word.Dw)
        if word.Ci <= m * FIELD_CHANNELS and not word.Ci % (m * LANES) and fields and taps:
            return m
    return 1


def with_columns_of_channels(word: Layer, m: int) -> Layer:
    """The word that reads m columns for every column of the map."""
    stride = word.Sw if word.Wo == 1 else word.Sw * m
    return replace(word, Ci=word.Ci // m, Wi=word.Wi * m, Wk=word.Wk * m, Sw=stride, Pw=word.Pw * m, Dw=0)


def kernel_with_columns_of_channels(w: Array, m: int) -> Array:
    """(Co, C, Hk, Wk) as (Co, C / m, Hk, Wk m)."""
    outputs, channels, high, wide = w.shape
    apart = w.reshape(outputs, m, channels // m, high, wide)
    return apart.transpose(0, 2, 3, 4, 1).reshape(outputs, channels // m, high, wide * m)


FIELD_DILATIONS = 16
"""Dh and Dw have 4 bits, stored minus one; beyond that, every tap takes a word of its own."""


def split_kernel(whole: Layer, machine: Machine, *, dense: bool, most: int | None = None) -> Iterator[KernelPart]:
    """The words that compute a convolution together, each within 256 channels and an ifmap pad.

    most: weight words that a part may take for 16 outputs where the parts of a dense layer are loaded one after
    another. As all psums are then in the pads at once, each part is a single tap, which has the smallest
    sub-ifmap.

    A band of kernel rows (or columns) is a convolution of its own over the map from a later row on, with less
    padding before it. Bands that cover only padding contribute nothing and are left out, but one if all do. Raises
    DoesNotFit (E303) where no word can state any.
    """
    rows, columns = _kernel_bands(whole, machine)
    channels = bands(whole.Ci, FIELD_CHANNELS) if dense else [slice(0, whole.Ci)]
    if dense and most is not None:
        rows, columns = bands(whole.Hk, 1), bands(whole.Wk, 1)
        channels = bands(whole.Ci, min(FIELD_CHANNELS, (most - BS_WORDS) // LANES * LANES))
    only_padding: KernelPart | None = None
    found = 0
    for channel_band, row_band, column_band in product(channels, rows, columns):
        row, Ph, Hi = _shifted(row_band.start * (whole.Dh + 1), whole.Ph, whole.Hi)
        column, Pw, Wi = _shifted(column_band.start * (whole.Dw + 1), whole.Pw, whole.Wi)
        if Hi <= 0 or Wi <= 0:
            continue
        high, wide = (band.stop - band.start for band in (row_band, column_band))
        word = replace(
            whole,
            Ph=Ph, Hi=Hi, Hk=high, Dh=whole.Dh if high > 1 else 0,
            Pw=Pw, Wi=Wi, Wk=wide, Dw=whole.Dw if wide > 1 else 0,
            Ci=channel_band.stop - channel_band.start,
        )  # fmt: skip
        part = KernelPart(word, channel_band, row_band, column_band, row, column)
        last = (whole.Ho - 1) * whole.Sh + (high - 1) * (whole.Dh + 1)
        right = (whole.Wo - 1) * whole.Sw + (wide - 1) * (whole.Dw + 1)
        if last < Ph or right < Pw:
            only_padding = only_padding or part
            continue
        found += 1
        yield part
    if not found and only_padding is None:
        raise DoesNotFit("E303", "the kernel meets nothing but padding")
    if not found and only_padding is not None:
        yield only_padding


def _shifted(offset: int, padding: int, extent: int) -> tuple[int, int, int]:
    """(first row, padding, rows) of the map for a band that starts `offset` rows into the kernel."""
    start = max(offset - padding, 0)
    return start, max(padding - offset, 0), extent - start


def _kernel_bands(whole: Layer, machine: Machine) -> tuple[list[slice], list[slice]]:
    """Kernel rows and columns in the fewest bands whose reach fits a pad; rows are cut before columns."""
    best: tuple[int, list[slice], list[slice]] | None = None
    for wide in range(1, (whole.Wk if whole.Dw < FIELD_DILATIONS else 1) + 1):
        reach = (wide - 1) * (whole.Dw + 1) + 1
        high = _most_taps(machine.ifmap_pad_entries // reach, whole.Dh + 1, whole.Hk)
        if reach > FIELD_MOST or not high:
            continue
        rows, columns = bands(whole.Hk, _even(whole.Hk, high)), bands(whole.Wk, _even(whole.Wk, wide))
        if best is None or len(rows) * len(columns) <= best[0]:
            best = len(rows) * len(columns), rows, columns
    assert best is not None  # a single tap fits every pad
    return best[1], best[2]


def _even(extent: int, most: int) -> int:
    """The size of nearly equal bands, as few as `most` allows."""
    return -(-extent // -(-extent // most))


def _most_taps(entries: int, dilation: int, kernel: int) -> int:
    """The most taps along a kernel axis whose reach fits these entries and the 6-bit field."""
    if dilation > FIELD_DILATIONS:
        return min(entries, 1)
    return min(kernel, (min(entries, FIELD_MOST) - 1) // dilation + 1 if entries else 0)
