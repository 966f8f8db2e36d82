"""What an AXI adapter must do, as functions of the adapter: mistakes in it must make one of them fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from amaranth.sim import Simulator

from npuc.targets.easynpu.machine.parameters import Machine
from tests.easynpu_rtl.axi_bench import (
    CONTROL,
    CYCLES,
    DECERR,
    FIXED,
    FULL,
    INCR,
    LAST_REGISTER,
    LITE,
    MACHINE,
    OKAY,
    RESUME,
    SLVERR,
    STATUS,
    VERSION,
    WRAP,
    Bench,
    Burst,
    Core,
    Model,
    any_burst,
    any_words,
)

Make = Callable[[Machine], Any]
Trial = Callable[[Make, int], None]
LITE_NAMES = ("aw", "w", "b", "ar", "r")
BURSTS = 15
"""Bursts of every kind in each direction."""


def bursts_leave_and_find_what_the_model_says(adapter: Make, seed: int) -> None:
    """Writes, then reads, of every kind; what lies beyond a memory is refused, its neighbours are not."""
    choose, model = random.Random(seed), Model()
    bench = Bench(adapter, seed, waits=(0.3, 0, 0.7)[seed % 3])
    bench.deaf = 300

    async def process(context: Any, bench: Bench) -> None:
        answers: list[dict[str, int]] = []
        refused_at_first = Burst(3 << 10 | 20 * 16, 8, 4, WRAP, 1)
        for burst in (refused_at_first, *(any_burst(choose) for _ in range(BURSTS))):
            words = any_words(choose, burst)
            bench.write(burst, words)
            answers.append({"id": burst.id, "resp": model.write(burst, words)})
        assert await bench.settle(context, FULL, "b", len(answers)) == answers
        assert bench.core.memories == model.memories
        expected: list[dict[str, int]] = []
        for _ in range(BURSTS):
            burst = any_burst(choose)
            bench.read(burst)
            expected += model.read(burst)
        assert await bench.settle(context, FULL, "r", len(expected)) == expected

    bench.run(process)


def reads_and_writes_do_not_wait_for_each_other(adapter: Make, seed: int) -> None:
    """A copy that asks to write before it reads; registers are read meanwhile."""
    choose, bench = random.Random(seed), Bench(adapter, seed)

    async def process(context: Any, bench: Bench) -> None:
        words = [choose.getrandbits(128) for _ in range(16)]
        bench.core.memories[0][:16] = words
        bench.deaf = bench.cycles + 60
        for index in range(LAST_REGISTER + 2):
            bench.to_send[LITE, "ar"].append({"addr": 4 * index})
        bench.to_send[FULL, "aw"].append(Burst(1 << 10, 16).payload)
        while bench.to_send[FULL, "aw"]:
            await context.tick()
        bench.read(Burst(0, 16))
        for _ in words:
            found = await bench.settle(context, FULL, "r", 1)
            bench.to_send[FULL, "w"].append({"data": found[0]["data"], "strb": 0xFFFF})
        assert await bench.settle(context, FULL, "b", 1) == [{"id": 0, "resp": OKAY}]
        assert bench.core.memories[1][:16] == words
        registers = await bench.settle(context, LITE, "r", LAST_REGISTER + 2)
        values = [bench.core.register(index) for index in range(LAST_REGISTER + 1)]
        assert [each["data"] for each in registers] == [*values, 0]
        assert [each["resp"] for each in registers] == [OKAY] * len(values) + [DECERR]

    bench.run(process)


def memories_are_refused_during_a_run(adapter: Make, seed: int) -> None:
    """SLVERR for each access from the answer to the start on to the interrupt; none reaches the core."""
    choose = random.Random(seed)
    bench = Bench(adapter, seed, Core(length=600))

    async def process(context: Any, bench: Bench) -> None:
        count = choose.randint(0, MACHINE.itcm_words)
        bench.write(Burst(0), [(1 << 127, 0xFFFF)])
        await bench.settle(context, FULL, "b", 1)
        assert await bench.set_register(context, CONTROL, count) == OKAY
        bench.write(Burst(0, 4), [(5, 0xFFFF)] * 4)
        bench.write(Burst(1 << 10, 1), [(5, 0x00FF)])
        bench.read(Burst(0, 4, id=9))
        assert [each["resp"] for each in await bench.settle(context, FULL, "b", 2)] == [SLVERR] * 2
        refused = {"id": 9, "data": 0, "resp": SLVERR}
        assert await bench.settle(context, FULL, "r", 4) == [{**refused, "last": n == 3} for n in range(4)]
        assert await bench.set_register(context, CONTROL, 1) == SLVERR
        assert await bench.set_register(context, RESUME, 0) == SLVERR
        assert await bench.register(context, STATUS) == (1, OKAY)
        assert not context.get(bench.adapter.interrupt_request)
        await context.tick().until(bench.adapter.interrupt_request)
        bench.read(Burst(0, 1))
        assert (await bench.settle(context, FULL, "r", 1))[0] == {
            "id": 0,
            "data": 1 << 127,
            "resp": OKAY,
            "last": 1,
        }
        assert await bench.set_register(context, STATUS, 0) == OKAY
        assert not context.get(bench.adapter.interrupt_request)
        assert bench.core.runs == [count]

    bench.run(process)


def a_run_that_pauses_is_resumed(adapter: Make, seed: int) -> None:
    """Memories answer in a pause; only `resume` goes on."""
    bench = Bench(adapter, seed)

    async def process(context: Any, bench: Bench) -> None:
        assert await bench.set_register(context, RESUME, 0) == SLVERR
        assert await bench.set_register(context, CONTROL, 1 << 31 | 7) == OKAY
        for pause in range(bench.core.chains):
            await context.tick().until(bench.adapter.interrupt_request)
            assert await bench.register(context, STATUS) == (2, OKAY)
            bench.write(Burst(16 * pause), [(pause, 0xFFFF)])
            assert (await bench.settle(context, FULL, "b", 1))[0]["resp"] == OKAY
            assert await bench.set_register(context, CONTROL, 3) == SLVERR
            assert await bench.set_register(context, RESUME, 0) == OKAY
        await context.tick().until(bench.adapter.interrupt_request)
        assert await bench.register(context, STATUS) == (0, OKAY)
        assert await bench.set_register(context, RESUME, 0) == SLVERR
        assert bench.core.runs == [1 << 31 | 7]

    bench.run(process)


def registers_refuse_what_the_core_would_pass_over(adapter: Make, seed: int) -> None:
    """Parts of a register, registers that are only read, numbers beyond the last, more words than the ITCM has."""
    bench = Bench(adapter, seed)

    async def process(context: Any, bench: Bench) -> None:
        assert await bench.set_register(context, CONTROL, MACHINE.itcm_words + 1) == SLVERR
        for strobes in range(1, 15):
            assert await bench.set_register(context, CONTROL, 1, strobes) == SLVERR
        assert await bench.set_register(context, CONTROL, 1, 0) == OKAY  # of no byte
        for index in (CYCLES, VERSION, LAST_REGISTER):
            assert await bench.set_register(context, index, 1) == SLVERR
        for index in (LAST_REGISTER + 1, 100, 1023):
            assert await bench.set_register(context, index, 1) == DECERR
            assert await bench.register(context, index) == (0, DECERR)
        assert await bench.register(context, VERSION) == (1, OKAY)
        assert await bench.register(context, LAST_REGISTER) == (MACHINE.itcm_words, OKAY)
        assert bench.core.runs == []

    bench.run(process)


def bursts_that_axi_does_not_know_are_refused(adapter: Make, seed: int) -> None:
    """Each of their beats; the bursts around them are served."""
    choose, bench = random.Random(seed), Bench(adapter, seed)
    wrong = [
        Burst(0, 2, 5), Burst(0, 1, 7), Burst(0, 3, 4, WRAP), Burst(0, 32, 2, WRAP), Burst(0, 17, 0, FIXED),
        Burst(0, 1, 4, 3), Burst(0, 4, 0, 3),
    ]  # fmt: skip

    async def process(context: Any, bench: Bench) -> None:
        for burst in wrong:
            good = Burst(16 * choose.randrange(30), 2, 4, INCR)
            for each in (burst, good):
                bench.write(each, [(3, 0xFFFF)] * each.beats)
                bench.read(each)
        answers = await bench.settle(context, FULL, "b", 2 * len(wrong))
        assert [each["resp"] for each in answers] == [SLVERR, OKAY] * len(wrong)
        beats = await bench.settle(context, FULL, "r", sum(each.beats + 2 for each in wrong))
        expected = [response for each in wrong for response in [SLVERR] * each.beats + [OKAY] * 2]
        assert [each["resp"] for each in beats] == expected

    bench.run(process)


def a_beat_a_cycle(adapter: Make, seed: int) -> None:
    """Without waiting, a burst of whole words takes a few cycles more than it has beats, in both directions."""
    bench, beats = Bench(adapter, seed, waits=0), 40

    async def process(context: Any, bench: Bench) -> None:
        start = bench.cycles
        bench.write(Burst(0, beats), [(n, 0xFFFF) for n in range(beats)])
        await bench.settle(context, FULL, "b", 1)
        middle = bench.cycles
        bench.read(Burst(0, beats))
        await bench.settle(context, FULL, "r", beats)
        assert middle - start < beats + 10
        assert bench.cycles - middle < beats + 10

    bench.run(process)


def no_output_follows_an_input_within_a_cycle(adapter: Make, seed: int) -> None:
    """There is no combinational path between signals of a bus: valid waits for no ready, nor ready for valid."""
    choose, bench = random.Random(seed), Bench(adapter, seed)
    channels = [
        (bench.channel(bus, name), name in ("aw", "w", "ar")) for bus in (LITE, FULL) for name in LITE_NAMES
    ]

    async def process(context: Any) -> None:
        for _ in range(60):
            await context.tick()
            outputs = [context.get(each.ready if comes else each.valid) for each, comes in channels]
            for each, comes in channels:
                context.set(each.valid if comes else each.ready, choose.getrandbits(1))
            assert outputs == [context.get(each.ready if comes else each.valid) for each, comes in channels]

    simulator = Simulator(bench.adapter)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()


TRIALS_OF_WAITS: tuple[Trial, ...] = (
    bursts_leave_and_find_what_the_model_says,
    reads_and_writes_do_not_wait_for_each_other,
)
"""Trials that depend on when each side waits: several seeds."""
TRIALS: tuple[Trial, ...] = (
    no_output_follows_an_input_within_a_cycle,
    *TRIALS_OF_WAITS,
    memories_are_refused_during_a_run,
    a_run_that_pauses_is_resumed,
    registers_refuse_what_the_core_would_pass_over,
    bursts_that_axi_does_not_know_are_refused,
    a_beat_a_cycle,
)
