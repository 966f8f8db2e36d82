"""W by cycles, then by bytes; the document's discussion of a 2-by-40 matrix on 4 NPUs."""

from __future__ import annotations

import pytest

from npuc.errors import DoesNotFit
from npuc.targets.bm1684.lowering.products import alternatives, best_width, width, widths
from npuc.targets.bm1684.machine.parameters import Machine

FOUR, CHIP = Machine(npus=4, local_bytes=4096), Machine()

# W -> blocks of 4 bytes that a row takes in each NPU, NPUs that hold columns, whether C is at most X
DISCUSSED = {
    40: (64, 1, True),
    20: (32, 2, True),
    15: (32, 3, True),
    10: (32, 4, True),
    8: (64, 4, False),
    6: (64, 4, False),
}


@pytest.mark.parametrize("W", DISCUSSED)
def test_the_documents_widths_of_a_2_by_40_matrix(W: int) -> None:
    found = width(2, 40, W, FOUR)
    assert (found.bytes_per_npu // (2 * 4), found.npus, found.advised) == DISCUSSED[W]


def test_w_10_is_the_best_of_the_discussion() -> None:
    assert best_width(2, 40, FOUR).W == 10


# seen on the vendor's model for 1 x 64 x 1000: 70, 140, 140, 140, 1120 cycles, each 70 times the groups of a row
@pytest.mark.parametrize(("W", "groups"), [(16, 1), (8, 2), (10, 2), (32, 2), (1, 16)])
def test_the_vendors_cycles_of_a_row_of_1000_columns(W: int, groups: int) -> None:
    assert width(64, 1000, W, CHIP).cycles_per_row == groups


@pytest.mark.parametrize("cols", [10, 64, 100, 128, 1000, 1024, 2048, 4096])
def test_one_channel_per_npu_is_never_beaten_in_cycles(cols: int) -> None:
    assert best_width(64, cols, CHIP).cycles_per_row == width(64, cols, -(-cols // 64), CHIP).cycles_per_row


def test_a_start_npu_that_makes_channels_wrap_costs_more() -> None:
    assert width(2, 40, 10, FOUR, start_idx=1).bytes_per_npu == 2 * width(2, 40, 10, FOUR).bytes_per_npu
    assert best_width(2, 40, FOUR, start_idx=1).channels <= 3


def test_at_most_4095_channels_are_multiplied() -> None:
    assert widths(1, 5000, CHIP)[0].W == 2


@pytest.mark.parametrize("machine", [FOUR, CHIP], ids=["4", "64"])
@pytest.mark.parametrize(("cols", "start"), [(1, 0), (40, 0), (100, 1), (1000, 3), (5000, 0)])
def test_no_width_is_better_than_the_choices(machine: Machine, cols: int, start: int) -> None:
    least = -(-cols // 4095)
    every = [width(3, cols, W, machine, start) for W in range(least, cols + 1)]
    every.sort(key=lambda each: (each.cycles_per_row, each.bytes_per_npu, -each.npus, each.W))
    firsts = {(each.cycles_per_row, each.bytes_per_npu): each for each in reversed(every)}
    wanted = [each for each in every if firsts[each.cycles_per_row, each.bytes_per_npu] is each]
    assert alternatives(3, cols, machine, len(wanted), start) == wanted
    assert best_width(3, cols, machine, start) == every[0]


@pytest.mark.parametrize("W", [0, 41])
def test_w_outside_the_matrix_is_refused(W: int) -> None:
    with pytest.raises(DoesNotFit, match="40 columns"):
        width(2, 40, W, FOUR)
