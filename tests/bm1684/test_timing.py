"""Predicted cycles against those of the vendor's chip model, recorded in vendor_cycles.txt for random calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.local_memory import Dim4
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.simulate import simulator
from npuc.targets.bm1684.simulate.simulator import TimedCall

MACHINE = Machine()
LINES = (Path(__file__).parent / "vendor_cycles.txt").read_text(encoding="ascii").splitlines()


def _measured(line: str) -> tuple[TimedCall, int]:
    call = next(simulator.read([line.rpartition(" ")[0]]))
    return call, int(line.rpartition("=")[2])


MEASURED = [_measured(line) for line in LINES]


@pytest.mark.parametrize("name", sorted({call.name for call, _ in MEASURED if call.engine == "bdc"}))
def test_compute_calls_cost_exactly_what_the_vendor_says(name: str) -> None:
    off = [
        (call.values, simulator.cycles(call, MACHINE), vendor)
        for call, vendor in MEASURED
        if call.name == name and simulator.cycles(call, MACHINE) != vendor
    ]
    assert not off


@pytest.mark.parametrize("name", sorted({call.name for call, _ in MEASURED if call.engine == "gdma"}))
def test_moves_cost_what_the_vendor_says_to_the_cycle(name: str) -> None:
    partial = 10 if name.endswith("matrix_S2L") else 0  # whose partial last channel is priced differently
    off = [
        (call.values, simulator.cycles(call, MACHINE), vendor)
        for call, vendor in MEASURED
        if call.name == name and abs(simulator.cycles(call, MACHINE) - vendor) > 1 + partial
    ]
    assert not off


def test_every_price_has_been_compared() -> None:
    measured = {call.name.split("_", 2)[2] for call, _ in MEASURED if call.engine == "bdc"}
    assert measured == {*timing.ELEMENTWISE, *timing.SERIES, *simulator.WINDOWS}


def test_a_parallel_region_costs_the_larger_sum_of_its_engines() -> None:
    # seen on the vendor's model: 444 and 4 cycles are 448 one after the other and 444 beside each other
    move = "okk_gdma_32bit_cpy_S2L size=16384 runs=64"
    relu = "okk_bdc_relu groups=4 strided=0"
    assert simulator.total(simulator.read([move, relu]), MACHINE).cycles == 448
    lines = [move, relu, "okk_parallel_start", move, relu, "okk_parallel_end"]
    assert simulator.total(simulator.read(lines), MACHINE) == timing.EngineCycles(892, 8, 888)


def test_the_vendors_w_of_a_1x64x1000_product() -> None:
    prices = {W: timing.matmul(1, 64, 1000, W, 0, False, False, MACHINE) for W in (16, 8, 10, 32, 1)}
    assert prices == {16: 70, 8: 140, 10: 140, 32: 140, 1: 1120}


def test_runs_are_channels_rows_or_elements() -> None:
    shape = Dim4(2, 64, 8, 4)
    assert timing.move(shape, None, None) == (16384, 128)
    assert timing.move(shape, None, Dim4(0, 0, 5, 1)) == (16384, 1024)
    assert timing.move(Dim4(1, 64, 49, 1), None, Dim4(0, 1, 64, 1)) == (12544, 64 * 49)
    assert timing.move(shape, None, None, element_bytes=1).size == 4096
