"""Splitting convolutions that do not fit the CBUF, by rows and by kernels; always exact.

A pass needs all lines of its input in the data banks and one kernel group in the weight banks. Input rows that two
tiles share (the halo) are fetched twice. Where not even one group fits beside the lines of one output row, fewer
kernels form a group, which leaves lanes of the result unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.formats.weights import CUBE, DIRECT, TILE, WeightForm, extended_extent
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.operations.operation import Convolution, Operation


@frozen
class Geometry:
    """A convolution as the hardware sees it; channels count lanes."""

    width: int
    height: int
    channels: int
    """Lanes of the input; for an image those of a pixel, for Winograd those of whole atoms."""
    out_height: int
    out_width: int
    kernels: int
    kernel_height: int
    kernel_width: int
    stride_y: int
    dilation_y: int
    top: int
    precision: str = "int8"
    stride_x: int = 1
    left: int = 0
    reach_x: int = 1
    """Columns from the first to the last tap."""
    form: WeightForm = DIRECT
    line_step: int = 1
    """Lines of the map from one line that is read to the next; the others are not part of the geometry."""

    @property
    def kernel_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a kernel in its form, after any extension."""
        match self.form.kind:
            case "image":
                return (self.kernel_width + self.form.zeros) * self.channels, self.kernel_height, 1
            case "winograd":
                return self.channels * self.stride_y * self.stride_x, TILE, TILE
            case _:
                return self.channels, self.kernel_height, self.kernel_width

    @property
    def kernel_elements(self) -> int:
        """Weights of a kernel."""
        return prod(self.kernel_shape)

    @property
    def kernel_bytes(self) -> int:
        """Bytes of an uncompressed kernel."""
        return self.kernel_elements * BYTES[self.precision]

    @property
    def reach(self) -> int:
        """Lines from the first to the last tap."""
        return (self.kernel_height - 1) * self.dilation_y + 1

    def lines(self, first: int, rows: int) -> tuple[int, int]:
        """First line and number of lines of the input that some rows of output need, without padding.

        Rows whose windows begin below the map need none, nor the lines between them and the windows above.
        """
        start = first * self.stride_y - self.top
        if self.form.kind != "winograd":
            rows = max(min(rows, -(-(self.height + self.top) // self.stride_y) - first), 1)
        end = start + self.lines_under(rows)
        begin, stop = max(start, 0), min(end, self.height)
        return (begin, stop - begin) if stop > begin else (min(begin, self.height - 1), 1)

    def may_begin(self, row: int) -> bool:
        """Whether a tile may begin with a row of output: its window must begin within the map."""
        return row * self.stride_y - self.top < self.height

    def most_lines(self, rows: int) -> int:
        """The most lines of input that a tile of `rows` rows needs."""
        return min(self.lines_under(rows), self.height)

    def lines_under(self, rows: int) -> int:
        """Lines under the windows of `rows` rows, padding included."""
        if self.form.kind == "winograd":
            return extended_extent(rows) * self.stride_y
        return (rows - 1) * self.stride_y + self.reach

    @property
    def pad_right(self) -> int:
        """Columns of padding to the right of the map."""
        reached = (self.out_width - 1) * self.stride_x + self.reach_x + self.form.zeros
        if self.form.kind == "winograd":
            reached = extended_extent(self.out_width) * self.stride_x
        return max(reached - self.width - self.left, 0)

    def slices(self, rows: int, lines: int) -> int:
        """Lines that a tile occupies in the CBUF: Winograd's are extended, padding included."""
        return extended_extent(rows) if self.form.kind == "winograd" else lines


@frozen
class RowTile:
    """Rows of output, and the lines of input that they need."""

    row: int
    rows: int
    line: int
    lines: int


def entries_per_slice(machine: Machine, geometry: Geometry) -> int:
    """CBUF entries of one line of the input."""
    size, width = BYTES[geometry.precision], geometry.width
    match geometry.form.kind:
        case "image":
            columns = geometry.left + width + geometry.pad_right
            return -(-columns * geometry.channels * size // machine.cbuf_entry_bytes)
        case "winograd":
            return extended_extent(geometry.out_width) // TILE * (geometry.kernel_shape[0] * size // CUBE)
        case _:
            atoms = -(-geometry.channels * size // machine.atom_bytes)
            together = machine.cbuf_entry_bytes // machine.atom_bytes
            whole, part = divmod(atoms, together)
            return whole * width + (width if part == 3 else -(-part * width // together))


def mask_banks(geometry: Geometry) -> int:
    """Banks for the mask of compressed weights: the last one."""
    return int(geometry.form.compressed)


def data_banks(machine: Machine, geometry: Geometry, rows: int) -> int:
    """Banks for the input of `rows` rows of output, and for as many lines as a dilation reaches over."""
    slices = max(geometry.slices(rows, geometry.most_lines(rows)), geometry.dilation_y)
    return -(-entries_per_slice(machine, geometry) * slices // machine.cbuf_entries)


def weight_banks(machine: Machine, geometry: Geometry, kernels: int) -> int:
    """Banks for a group of kernels and its mask; for compressed ones the hardware demands an entry more."""
    size = align(min(kernels, geometry.kernels) * geometry.kernel_bytes, machine.cbuf_entry_bytes)
    size += mask_banks(geometry) * machine.cbuf_entry_bytes
    return -(-size // machine.bank_bytes) + mask_banks(geometry)


def _mask_fits(machine: Machine, geometry: Geometry, kernels: int) -> bool:
    """Whether the mask of a group fits one bank, of which the hardware demands an entry more."""
    mask_bytes = machine.bank_bytes - machine.cbuf_entry_bytes
    return not geometry.form.compressed or kernels * geometry.kernel_elements <= 8 * mask_bytes


def kernels_together(machine: Machine, geometry: Geometry) -> int:
    """The largest kernel group, a power of two, that fits beside one row of output; 0 if no kernel fits."""
    together = machine.kernel_group(geometry.precision)
    free_banks = machine.cbuf_banks - data_banks(machine, geometry, 1)
    while together and not (
        weight_banks(machine, geometry, together) <= free_banks and _mask_fits(machine, geometry, together)
    ):
        together //= 2
    return together


def expect_kernels(machine: Machine, geometry: Geometry, node: str, op: str) -> int:
    """kernels_together, raising DoesNotFit (E302) if not even one kernel fits."""
    found = kernels_together(machine, geometry)
    if not found:
        raise DoesNotFit(
            "E302",
            f"a kernel of {geometry.kernel_bytes} bytes and {geometry.most_lines(1)} lines of input do not fit",
            node=node,
            op=op,
            limit=f"{machine.cbuf_bytes} bytes of CBUF",
            remedy="a configuration with a larger CBUF (--machine FILE), or fewer channels",
        )
    return found


def most_rows(machine: Machine, geometry: Geometry, together: int) -> int:
    """The most rows of output whose input fits beside a kernel group."""
    free_banks = machine.cbuf_banks - weight_banks(machine, geometry, together)
    rows = geometry.out_height
    while rows > 1 and data_banks(machine, geometry, rows) > free_banks:
        rows -= 1
    return rows


def equal_edges(height: int, count: int, form: WeightForm = DIRECT) -> tuple[int, ...]:
    """The first rows of `count` tiles of nearly equal height, then the height; Winograd's are multiples of 4."""
    step = TILE if form.kind == "winograd" else 1
    whole = -(-height // step)
    return tuple(min(whole * each // count * step, height) for each in range(count + 1))


def row_tiles(geometry: Geometry, edges: Sequence[int]) -> Iterator[RowTile]:
    """The tiles between edges, which are the first rows of tiles and the height."""
    for row, end in pairwise([*filter(geometry.may_begin, edges[:-1]), edges[-1]]):
        line, lines = geometry.lines(row, end - row)
        yield RowTile(row, end - row, line, lines)


def divided_anew(machine: Machine, operation: Operation, preferred: int) -> Operation:
    """The operation with its banks divided again for another preferred number of data banks."""
    if not isinstance(operation, Convolution):
        return operation
    banks = operation.banks
    data, left = divided_banks(machine, *banks.least, preferred)
    if data == banks.data:
        return operation
    return replace(operation, banks=replace(banks, data=data, weights=left - banks.mask))


def divided_banks(machine: Machine, data: int, weights: int, preferred: int) -> tuple[int, int]:
    """The division of all banks between data and weights, given what each needs at least.

    A convolution can be fetched while the previous one computes if both divide the banks alike: data gets the
    preferred number where possible, otherwise a multiple of a quarter, otherwise what it needs.
    """
    step = max(machine.cbuf_banks // 4, 1)
    for given in (preferred, *range(step, machine.cbuf_banks, step)):
        if data <= given <= machine.cbuf_banks - weights:
            return given, machine.cbuf_banks - given
    return data, machine.cbuf_banks - data
