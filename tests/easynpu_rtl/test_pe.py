"""One PE: psums over cycles, both ways of its results, and what it feeds back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from amaranth.sim import Simulator

from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl.pe import Addend, Factor, Pe, Scale


def run(bench: Callable[[Any, Pe], Awaitable[None]], machine: Machine | None = None) -> None:
    pe = Pe(machine or Machine())

    async def process(context: Any) -> None:
        await bench(context, pe)

    simulator = Simulator(pe)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()


async def step(context: Any, pe: Pe, psum: int, ifmap: int, **fields: Any) -> int:
    """One operation on a psum that nothing else is under way to; the int8 that leaves."""
    control = {"factor": Factor.WEIGHT, "addend": Addend.PSUM, **fields.pop("control", {})}
    late = {"valid": 1, "on": fields.pop("on", 1), "write_address": psum}
    cycles: list[dict[str, Any]] = [
        {"back_address": psum},
        {"back": control.get("back", 0), "ifmap": ifmap},
        {"control": control, "read_address": psum, **fields},
        late,
        {"valid": 0},
        {},
    ]
    for inputs in cycles:
        for name, value in inputs.items():
            context.set(getattr(pe, name), value)
        await context.tick()
    return int(context.get(pe.ofmap))


def parameters(bias: int = 0, scale: int = 0) -> dict[str, Any]:
    return {"bias": {"value": bias}, "scale": scale}


def test_products_are_added_to_the_bias_and_requantised() -> None:
    async def bench(context: Any, pe: Pe) -> None:
        await step(context, pe, 3, 100, weight=-7, own=parameters(1000), control={"addend": Addend.BIAS})
        assert await step(context, pe, 3, 10, weight=2, own=parameters(scale=-2)) == 80  # 320 / 4

    run(bench)


def test_psums_of_other_addresses_are_left_alone() -> None:
    async def bench(context: Any, pe: Pe) -> None:
        for psum in (0, 63):
            await step(context, pe, psum, psum, weight=1, own=parameters(1), control={"addend": Addend.BIAS})
        assert await step(context, pe, 0, 1, weight=1) == 2
        assert await step(context, pe, 63, 1, weight=1) == 65

    run(bench)


def test_pooling_starts_at_the_lowest_value_and_keeps_the_largest() -> None:
    pooling = {"bypass": 1, "compare": 1, "leaving": {"scale": Scale.NONE, "relu": 0}}

    async def bench(context: Any, pe: Pe) -> None:
        await step(context, pe, 5, -9, control={**pooling, "addend": Addend.LOWEST})
        assert await step(context, pe, 5, -3, control=pooling) == -3
        assert await step(context, pe, 5, -5, control=pooling) == -3

    run(bench)


def test_a_fused_word_takes_the_int8_of_the_word_before() -> None:
    """300 is fed back as 127, -300 behind a ReLU as 0; each is doubled, raised by 10 and halved."""
    head = {"addend": Addend.BIAS, "leaving": {"scale": Scale.PAD, "relu": 1}}
    back = {"back": 1, "addend": Addend.BIAS}

    async def bench(context: Any, pe: Pe) -> None:
        for product, result in ((100, 127), (-100, 5)):
            await step(context, pe, 1, 3, weight=product, own=parameters(), control=head)
            own = parameters(10, -1)
            assert await step(context, pe, 1, 0, weight=2, own=own, control=back) == result

    run(bench)


def test_a_pe_that_is_off_gives_zero() -> None:
    async def bench(context: Any, pe: Pe) -> None:
        assert await step(context, pe, 0, 5, weight=5, own=parameters(), control={"addend": Addend.ZERO}) == 25
        off = {"control": {"addend": Addend.ZERO}, "on": 0}
        assert await step(context, pe, 0, 5, weight=5, own=parameters(), **off) == 0

    run(bench)
