"""How a convolution is cut where the CBUF is too small: by rows, and by kernels; always exact.

A pass needs all lines of its input in the data banks and one kernel group in the weight banks. Rows of input that
two tiles need are fetched twice. Where not even the group fits beside one line of windows, fewer kernels share a
group, which leaves lanes of the result unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from npuc.errors import DoesNotFit
from npuc.targets.nvdla.machine import BYTES, Machine


@dataclass(frozen=True)
class Geometry:
    """A convolution as the hardware sees it, of channels that fill lanes."""

    width: int
    height: int
    channels: int
    out_height: int
    out_width: int
    kernels: int
    kernel_height: int
    kernel_width: int
    stride_y: int
    dilation_y: int
    top: int
    precision: str = "int8"

    @property
    def kernel_bytes(self) -> int:
        """Bytes of a kernel."""
        return self.kernel_height * self.kernel_width * self.channels * BYTES[self.precision]

    @property
    def reach(self) -> int:
        """Lines from the first to the last tap."""
        return (self.kernel_height - 1) * self.dilation_y + 1

    def lines(self, first: int, rows: int) -> tuple[int, int]:
        """First line and number of lines of input that some rows of output need, without padding."""
        start = first * self.stride_y - self.top
        end = start + (rows - 1) * self.stride_y + self.reach
        begin, stop = max(start, 0), min(end, self.height)
        return (begin, stop - begin) if stop > begin else (min(begin, self.height - 1), 1)

    def most_lines(self, rows: int) -> int:
        """The most lines that a tile of so many rows needs."""
        return min((rows - 1) * self.stride_y + self.reach, self.height)


@dataclass(frozen=True)
class RowTile:
    """Rows of output, and the lines of input that they need."""

    row: int
    rows: int
    line: int
    lines: int


def entries_per_slice(machine: Machine, width: int, channels: int, precision: str) -> int:
    """CBUF entries of a line of a feature cube."""
    atoms = -(-channels // machine.atom_elements(precision))
    together = machine.cbuf_entry_bytes // machine.atom_bytes
    whole, part = divmod(atoms, together)
    return whole * width + (width if part == 3 else -(-part * width // together))


def data_banks(machine: Machine, geometry: Geometry, rows: int) -> int:
    """Banks that the input of so many rows of output takes."""
    entries = entries_per_slice(machine, geometry.width, geometry.channels, geometry.precision)
    return -(-entries * geometry.most_lines(rows) // machine.cbuf_entries)


def weight_banks(machine: Machine, geometry: Geometry, kernels: int) -> int:
    """Banks that a group of so many kernels takes."""
    entry = machine.cbuf_entry_bytes
    size = -(-min(kernels, geometry.kernels) * geometry.kernel_bytes // entry) * entry
    return -(-size // machine.bank_bytes)


def kernels_together(machine: Machine, geometry: Geometry) -> int:
    """The most kernels of a group that fit beside one row of output, a power of two; 0 if not even one does."""
    together = machine.kernel_group(geometry.precision)
    room = machine.cbuf_banks - data_banks(machine, geometry, 1)
    while together and weight_banks(machine, geometry, together) > room:
        together //= 2
    return together


def expect_kernels(machine: Machine, geometry: Geometry, node: str, op: str) -> int:
    """kernels_together. Raises DoesNotFit (E302) where not even one kernel fits."""
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
    room = machine.cbuf_banks - weight_banks(machine, geometry, together)
    rows = geometry.out_height
    while rows > 1 and data_banks(machine, geometry, rows) > room:
        rows -= 1
    return rows


def row_tiles(geometry: Geometry, count: int) -> Iterator[RowTile]:
    """The rows of output in so many tiles of nearly equal height."""
    edges = [geometry.out_height * each // count for each in range(count + 1)]
    for row, end in pairwise(edges):
        line, lines = geometry.lines(row, end - row)
        yield RowTile(row, end - row, line, lines)
