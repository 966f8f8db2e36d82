"""The requantiser against exact fractions."""

from __future__ import annotations

import random
from fractions import Fraction
from math import floor

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from amaranth.sim import Simulator

from npuc.targets.easynpu.rtl.quantiser import Quantiser


def cases(count: int) -> list[tuple[int, int]]:
    """Psums of all magnitudes with scales of -31..31 that leave 32 bits to none."""
    chosen = random.Random(0)
    found = [(psum, scale) for psum in (-(1 << 31), (1 << 31) - 1, -1, 0, 1) for scale in (-31, -1, 0)]
    while len(found) < count:
        bits, scale = chosen.randint(1, 32), chosen.randint(-31, 31)
        psum = chosen.randrange(-(1 << (bits - 1)), 1 << (bits - 1))
        if -(1 << 31) <= psum * Fraction(2) ** scale < 1 << 31:
            found.append((psum, scale))
    return found


def test_a_psum_is_shifted_rounded_half_up_and_saturated() -> None:
    dut = Quantiser()

    async def bench(context: object) -> None:
        for psum, scale in cases(3000):
            context.set(dut.psum, psum)
            context.set(dut.scale, scale)
            await context.tick()
            expected = floor(psum * Fraction(2) ** scale + Fraction(1, 2))
            assert context.get(dut.result) == max(-128, min(127, expected)), (psum, scale)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
