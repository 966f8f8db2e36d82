"""W of a matrix in the matrix layout, chosen by the cycles of a product first, then by bytes per NPU.

A right or output matrix with W columns per channel costs ceil(C / X) * ceil(W / lanes) for each of its rows
(timing); the document considers storage only: "W should be modertately small for using more NPUs to store the
matrix, but C is better not greater than the number of NPUs".
"""

from __future__ import annotations

from collections.abc import Sequence

from npuc.frozen import frozen
from npuc.targets.bm1684.machine.local_memory import ceil_div, matrix_bytes, matrix_shape, okk_channle_num_per_npu
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.text.terminal import table

CHANNELS_MOST = 4095
"""The most channels of a matrix in a product."""
WORDS = 32
"""Columns of a channel take a multiple of so many words."""


@frozen
class Width:
    """A choice of W for a matrix that starts at an NPU."""

    W: int
    channels: int
    """C = ceil(M / W)."""
    cycles_per_row: int
    """Groups per row of a right or output matrix, to which a product's cost is proportional."""
    bytes_per_npu: int
    """For all rows, empty blocks included."""
    npus: int
    """The number of NPUs with columns."""
    advised: bool
    """Whether the document advises it: C is not greater than the number of NPUs."""


def width(rows: int, cols: int, W: int, machine: Machine, start_idx: int = 0) -> Width:
    """The cost of a matrix with W columns per channel. Raises DoesNotFit (E302) unless W is in 1..cols."""
    channels = matrix_shape(rows, cols, W).c
    groups = okk_channle_num_per_npu(start_idx, channels, machine) * ceil_div(W, machine.lanes)
    size = matrix_bytes(rows, cols, W, start_idx, machine)
    return Width(W, channels, groups, size, min(channels, machine.npus), channels <= machine.npus)


def best_width(rows: int, cols: int, machine: Machine, start_idx: int = 0) -> Width:
    """The W with the fewest cycles, then the fewest bytes, then the one that uses the most NPUs."""
    return min(widths(rows, cols, machine, start_idx), key=_order)


def widths(rows: int, cols: int, machine: Machine, start_idx: int = 0) -> list[Width]:
    """The choices for a product, with at most 4095 channels: of successive W that cost the same, the first."""
    least = ceil_div(cols, CHANNELS_MOST)
    fewer_channels = {ceil_div(cols, channels) for channels in range(1, min(cols, CHANNELS_MOST) + 1)}
    more_groups, more_bytes = (range(1, cols + 1, step) for step in (machine.lanes, WORDS))
    firsts = sorted(W for W in {*fewer_channels, *more_groups, *more_bytes} if least <= W)
    return [width(rows, cols, W, machine, start_idx) for W in firsts]


def alternatives(rows: int, cols: int, machine: Machine, count: int = 8, start_idx: int = 0) -> list[Width]:
    """The best choices in order, one for each pair of cycles and bytes."""
    found: dict[tuple[int, int], Width] = {}
    for each in sorted(widths(rows, cols, machine, start_idx), key=_order):
        found.setdefault((each.cycles_per_row, each.bytes_per_npu), each)
    return list(found.values())[:count]


def described(choices: Sequence[Width]) -> str:
    """Choices as a table, with the document's advice."""
    header = ("W", "channels", "NPUs", "cycles per row", "bytes per NPU", "advised")
    rows = [
        (
            each.W,
            each.channels,
            each.npus,
            each.cycles_per_row,
            each.bytes_per_npu,
            "yes" if each.advised else "no",
        )
        for each in choices
    ]
    return table(header, rows)


def _order(choice: Width) -> tuple[int, int, int, int]:
    return choice.cycles_per_row, choice.bytes_per_npu, -choice.npus, choice.W
