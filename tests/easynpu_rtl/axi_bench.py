"""A bench for the AXI adapter: masters that wait at random, a core in Python behind it, and the rules of AXI.

Addresses of beats and lanes are computed as the specification writes them (IHI 0022, A3.4.1).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Value
from amaranth.sim import Simulator

from npuc.targets.easynpu.machine.parameters import REGISTERS, Machine, identity

MACHINE = Machine(fmap_words=48, skip_words=64, weight_words=40, itcm_words=20)
INDEX_BITS = 6
"""Of the largest memory."""
MEMORIES = ("fmap", "skip", "weight", "itcm")
WORD = 16
OKAY, SLVERR, DECERR = 0, 2, 3
FIXED, INCR, WRAP = 0, 1, 2
CONTROL, RESUME, STATUS, CYCLES, VERSION = range(5)
LITE, FULL = "lite", "full"
MOST_CYCLES = 10_000
"""Of a trial."""
PATIENCE = 800
"""Cycles between one answer and the next."""


def capacity(memory: int) -> int:
    return int(getattr(MACHINE, f"{MEMORIES[memory]}_words"))


@dataclass
class Burst:
    """A request: `beats` transfers of 2 ** size bytes."""

    addr: int
    beats: int = 1
    size: int = 4
    burst: int = INCR
    id: int = 0

    @property
    def payload(self) -> dict[str, int]:
        return {"id": self.id, "addr": self.addr, "len": self.beats - 1, "size": self.size, "burst": self.burst}

    def addresses(self) -> list[int]:
        """Of the beats, in bytes."""
        number_bytes = 2**self.size
        aligned = self.addr // number_bytes * number_bytes
        boundary = self.addr // (number_bytes * self.beats) * number_bytes * self.beats
        found = [self.addr]
        for n in range(2, self.beats + 1):
            address = self.addr if self.burst == FIXED else aligned + (n - 1) * number_bytes
            if self.burst == WRAP and address >= boundary + number_bytes * self.beats:
                address -= number_bytes * self.beats
            found.append(address)
        return found

    def lanes(self, address: int) -> range:
        """The bytes of the bus that a beat may use."""
        number_bytes = 2**self.size
        upper = address // number_bytes * number_bytes + number_bytes - 1
        return range(address % WORD, upper % WORD + 1)


def expected(address: int) -> tuple[int, int, bool]:
    """Memory and word of a byte address, and whether there is such a word."""
    memory, index = address // WORD >> INDEX_BITS, address // WORD % (1 << INDEX_BITS)
    return memory, index, index < capacity(memory)


@dataclass
class Core:
    """What stands behind the port: memories, registers, runs. Objects to what it must not see."""

    length: int = 20
    chains: int = 2
    memories: list[list[int]] = field(default_factory=lambda: [[0] * capacity(memory) for memory in range(4)])
    left: int = 0
    paused: bool = False
    pauses: int = 0
    interrupt: bool = False
    runs: list[int] = field(default_factory=list[int])
    faults: list[str] = field(default_factory=list[str])

    def cycle(self, address: int, read: int, write: int, value: int) -> int:
        """What `read_data` is behind a cycle with these inputs."""
        region, index = address >> INDEX_BITS, address % (1 << INDEX_BITS)
        answer = random.getrandbits(128)  # nobody may take it
        if read and write:
            self.faults.append("read and written in one cycle")
        if region < 4 and (read or write):
            if self.left:
                self.faults.append("a memory is used during a run")
            if index >= capacity(region):
                self.faults.append("a word is used that no memory has")
            elif write:
                self.memories[region][index] = value
            else:
                answer = self.memories[region][index]
        elif read:
            answer = self.register(index)
        was_busy = self.left > 0
        if self.left:
            self.left -= 1
            self.paused = self.left == 0 and self.pauses > 0
        if write and region == 4:
            self.interrupt = False
            self.set_register(index, value)
        elif was_busy and not self.left:
            self.interrupt = True
        return answer

    def register(self, index: int) -> int:
        if index == STATUS:
            return (self.left > 0) | self.paused << 1
        return {CYCLES: 4711, **identity(MACHINE)}.get(index, 0)

    def set_register(self, index: int, value: int) -> None:
        if index == CONTROL and not self.left and not self.paused:
            self.runs.append(value)
            self.left, self.pauses = self.length, self.chains if value >> 31 else 0
        elif index == RESUME and self.paused:
            self.paused, self.left, self.pauses = False, self.length, self.pauses - 1
        elif index != STATUS:
            self.faults.append(f"register {index} is written to no effect")


class Bench:
    """An adapter, its core, and a master at each bus whose channels wait at random."""

    def __init__(
        self, adapter: Callable[[Machine], Any], seed: int, core: Core | None = None, waits: float = 0.4
    ) -> None:
        self.adapter = adapter(MACHINE)
        self.core = core or Core()
        self.random = random.Random(seed)
        self.waits = waits
        self.deaf = 0
        """Cycles at the start in which no answer is taken."""
        self.to_send: dict[tuple[str, str], deque[dict[str, int]]] = {}
        self.received: dict[tuple[str, str], list[dict[str, int]]] = {}
        self.cycles = 0

    def channel(self, bus: str, name: str) -> Any:
        return getattr(getattr(self.adapter, bus), name)

    def run(self, process: Callable[[Any, Bench], Awaitable[None]]) -> None:
        """Runs a test process; raises AssertionError for a broken rule of AXI, or if it never ends."""
        simulator = Simulator(self.adapter)
        simulator.add_clock(1e-6)
        for bus in (LITE, FULL):
            for name in ("aw", "w", "ar"):
                self.to_send[bus, name] = deque()
                simulator.add_process(self._sender(bus, name))
            for name in ("b", "r"):
                self.received[bus, name] = []
                simulator.add_process(self._receiver(bus, name))
        simulator.add_process(self._core)

        async def main(context: Any) -> None:
            await process(context, self)

        simulator.add_testbench(main)
        simulator.run()
        assert not self.core.faults, self.core.faults[0]

    async def _core(self, context: Any) -> None:
        port = self.adapter.core
        async for _, _, address, read, write, value in context.tick().sample(
            port.address, port.read, port.write, port.write_data
        ):
            self.cycles += 1
            assert self.cycles < MOST_CYCLES, "the adapter hangs"
            context.set(port.read_data, self.core.cycle(address, read, write, value))
            context.set(port.interrupt_request, self.core.interrupt)

    def _sender(self, bus: str, name: str) -> Callable[[Any], Awaitable[None]]:
        channel, waiting = self.channel(bus, name), self.to_send[bus, name]
        payload, parts = Value.cast(channel.payload), dict(channel.payload.shape())

        def bits(found: Mapping[str, int]) -> int:
            return sum((value & (1 << parts[key].width) - 1) << parts[key].offset for key, value in found.items())

        async def send(context: Any) -> None:
            shown = (0, 0)
            """`payload` and `valid` as they are."""
            async for _, _, valid, ready in context.tick().sample(channel.valid, channel.ready):
                if valid and ready:
                    waiting.popleft()
                if valid and not ready:
                    continue
                sends = bool(waiting) and self.random.random() >= self.waits
                wanted = (bits(waiting[0]), 1) if sends else (0, 0)
                if wanted != shown:
                    context.set(payload, wanted[0])
                    context.set(channel.valid, wanted[1])
                    shown = wanted

        return send

    def _receiver(self, bus: str, name: str) -> Callable[[Any], Awaitable[None]]:
        channel, found = self.channel(bus, name), self.received[bus, name]
        shape = channel.payload.shape()

        async def receive(context: Any) -> None:
            before: int | None = None
            async for _, _, valid, ready, value in context.tick().sample(
                channel.valid, channel.ready, Value.cast(channel.payload)
            ):
                assert before is None or valid, f"{bus} {name}: valid falls before ready"
                assert before in (None, value), f"{bus} {name}: the payload changes before ready"
                before = value if valid and not ready else None
                if valid and ready:
                    found.append({key: value >> part.offset & (1 << part.width) - 1 for key, part in shape})
                willing = self.cycles >= self.deaf and self.random.random() >= self.waits
                context.set(channel.ready, willing)

        return receive

    async def settle(self, context: Any, bus: str, name: str, count: int) -> list[dict[str, int]]:
        """The next answers of a channel, so many."""
        found, known, since = self.received[bus, name], 0, self.cycles
        while len(found) < count:
            await context.tick()
            if len(found) > known:
                known, since = len(found), self.cycles
            assert self.cycles - since < PATIENCE, "the adapter does not answer"
        taken, found[:] = found[:count], found[count:]
        return taken

    async def set_register(self, context: Any, index: int, value: int, strobes: int = 15) -> int:
        """The response to a write."""
        self.to_send[LITE, "aw"].append({"addr": 4 * index})
        self.to_send[LITE, "w"].append({"data": value, "strb": strobes})
        return (await self.settle(context, LITE, "b", 1))[0]["resp"]

    async def register(self, context: Any, index: int) -> tuple[int, int]:
        """Value and response of a read."""
        self.to_send[LITE, "ar"].append({"addr": 4 * index})
        found = (await self.settle(context, LITE, "r", 1))[0]
        return found["data"], found["resp"]

    def write(self, burst: Burst, words: list[tuple[int, int]]) -> None:
        """Sends a burst of words with their strobes."""
        self.to_send[FULL, "aw"].append(burst.payload)
        self.to_send[FULL, "w"].extend({"data": word, "strb": strobes} for word, strobes in words)

    def read(self, burst: Burst) -> None:
        """Sends a request."""
        self.to_send[FULL, "ar"].append(burst.payload)


@dataclass
class Model:
    """The memories as a list of words, and what bursts do to them."""

    memories: list[list[int]] = field(default_factory=lambda: [[0] * capacity(memory) for memory in range(4)])

    def write(self, burst: Burst, words: list[tuple[int, int]]) -> int:
        """Writes, and gives the response."""
        response = OKAY
        for address, (word, strobes) in zip(burst.addresses(), words, strict=True):
            memory, index, exists = expected(address)
            if not exists:
                response = DECERR
                continue
            mask = sum(0xFF << 8 * lane for lane in range(WORD) if strobes >> lane & 1)
            old = self.memories[memory][index]
            self.memories[memory][index] = (old & ~mask) | (word & mask)
        return response

    def read(self, burst: Burst) -> Iterator[dict[str, int]]:
        """The beats of an answer."""
        for number, address in enumerate(burst.addresses()):
            memory, index, exists = expected(address)
            word, response = (self.memories[memory][index], OKAY) if exists else (0, DECERR)
            last = number == burst.beats - 1
            yield {"id": burst.id, "data": word, "resp": response, "last": int(last)}


def any_burst(choose: random.Random, memories: tuple[int, ...] = (0, 1, 2, 3)) -> Burst:
    """A burst that AXI4 allows: wrapping ones aligned, fixed ones of 16 beats at most, none over 4 KB."""
    kind, size = choose.choice((FIXED, INCR, INCR, WRAP)), choose.choice((0, 1, 2, 3, 4, 4, 4))
    beats = {
        FIXED: choose.randint(1, 16),
        INCR: choose.choice((1, 2, 5, 16, 40)),
        WRAP: choose.choice((2, 4, 8, 16)),
    }
    base = choose.choice(memories) << INDEX_BITS + 4
    room = (1 << INDEX_BITS + 4) - (beats[kind] << size if kind == INCR else 1)
    addr = base + choose.randint(0, max(room, 0))
    if kind == WRAP:
        addr &= -1 << size
    return Burst(addr, beats[kind], size, kind, choose.getrandbits(8))


def any_words(choose: random.Random, burst: Burst) -> list[tuple[int, int]]:
    """Words for a burst; strobes only where AXI allows them."""
    words: list[tuple[int, int]] = []
    for address in burst.addresses():
        allowed = sum(1 << lane for lane in burst.lanes(address))
        strobes = choose.choice((allowed, allowed, allowed & choose.getrandbits(16), 0))
        words.append((choose.getrandbits(128), strobes))
    return words


LAST_REGISTER = len(REGISTERS) - 1
