"""Assigns addresses and regions: steps in order, each with transfers for later steps beside it.

A store runs beside the next computation, or beside the preceding one if that computes something else; a load
from system memory runs beside the preceding one; neither does if one of the two needs the other's result.
Every other move is a bundle of its own.

A region contains one BDC step and, on the GDMA, the moves beside it (a bundle) and loads for later steps: as early
as local memory has room, in order of use, and divided so that they end with the step. Every buffer occupies its
bytes in all NPUs from the region that fills it to the last region that reads it, so that in a region no engine
writes what the other one touches; empty blocks of a scattered tensor are never used for anything
else.

Buffers that steps write get their addresses first, as their lifetimes are known. A load takes bytes that are free
for its whole lifetime: preferably in banks that the step beside it does not use, or consecutively around local
memory; either way with or without later loads in place of one that does not fit. The fastest plan is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate
from npuc.targets.bm1684.lowering.kernel import Call, Kernel, Load, LocalPlace, ParallelRegion, Step, SystemPlace
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Lowered
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.machine.timing import EngineCycles
from npuc.targets.bm1684.plan import pricing


@frozen
class Bundle:
    """A step, and the moves beside it in order."""

    step: Step
    beside: tuple[Step, ...] = ()

    @property
    def moves(self) -> tuple[Call, ...]:
        """The calls of the moves."""
        return tuple(call for each in self.beside for call in each.calls)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls of the bundle."""
        return (*self.moves, *self.step.calls)


def bundle_steps(steps: Sequence[Step]) -> list[Bundle]:
    """The steps, reordered with the same effects; computations keep their order."""
    bundles: list[Bundle] = []
    waiting: list[Step] = []
    for step in steps:
        if not step.on_gdma:
            bundles += _single_bundles(_split(waiting, step))
            bundles.append(Bundle(step, tuple(waiting)))
            waiting = []
        elif _all(step, "L2S"):
            if bundles and not waiting and _leaves_alone(bundles[-1], step):
                bundles[-1] = replace(bundles[-1], beside=(*bundles[-1].beside, step))
            else:
                waiting.append(step)
        elif bundles and _may_precede(step, bundles[-1], waiting):
            bundles[-1] = replace(bundles[-1], beside=(*bundles[-1].beside, step))
        else:
            bundles += _single_bundles([*waiting, step])
            waiting = []
    return bundles + _single_bundles(waiting)


def _single_bundles(steps: Iterable[Step]) -> list[Bundle]:
    return [Bundle(step) for step in steps]


def _split(waiting: list[Step], step: Step) -> list[Step]:
    """Removes and returns the waiting stores that must end before the step, which overwrites what they read."""
    written = {call.writes for call in step.calls}
    clashes = [at for at, each in enumerate(waiting) if any(written & set(call.reads) for call in each.calls)]
    count = clashes[-1] + 1 if clashes else 0
    before = waiting[:count]
    del waiting[:count]
    return before


def _leaves_alone(bundle: Bundle, store: Step) -> bool:
    """Whether the bundle has a computation, and no call of it writes what the store reads."""
    written = {call.writes for call in bundle.calls}
    return not bundle.step.on_gdma and not any(written & set(call.reads) for call in store.calls)


def _all(step: Step, direction: str) -> bool:
    return all(call.name.endswith(direction) for call in step.calls)


def _may_precede(fetch: Step, bundle: Bundle, waiting: Sequence[Step]) -> bool:
    """Whether a load can run beside a bundle: not of data that waiting stores write, nor into its buffers."""
    if _all(fetch, "tables"):
        return not bundle.step.on_gdma
    if bundle.step.on_gdma or not _all(fetch, "S2L"):
        return False
    touched = {name for call in bundle.calls for name in call.buffers}
    read = [_span(call, 1) for call in fetch.calls]
    written = [_span(call, 0) for each in waiting for call in each.calls]
    apart = all(a[0] != b[0] or a[2] <= b[1] or b[2] <= a[1] for a in read for b in written)
    return apart and not any(call.writes in touched for call in fetch.calls)


def _span(call: Call, index: int) -> tuple[str, int, int]:
    """The region and bytes [start, end) of system memory that a call reads or writes, gaps included."""
    place, args = call.args[index], call.args
    assert isinstance(place, SystemPlace)
    if "matrix" in call.name:
        rows, stride = args[2], args[5]
        assert isinstance(rows, int) and isinstance(stride, int)
        return place.region, place.offset, place.offset + ELEMENT * rows * stride
    shape, strides = args[2], args[3 + index]
    assert isinstance(shape, tuple) and isinstance(strides, tuple)
    last = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    return place.region, place.offset, place.offset + ELEMENT * (last + 1)


SOON = 12
"""Loads that are last read within so many steps get low addresses, beside computed buffers; others high ones."""
LEAST = 400
"""The fewest cycles worth a divided load: its start alone costs 137."""


@frozen
class Placing:
    """A strategy for the addresses of loads."""

    circular: bool = False
    """Consecutively around local memory; else low or high, preferably in unused banks."""
    ahead: int = 1
    """How many of the next buffers are tried for one that fits."""


WAYS = (Placing(), Placing(ahead=16), Placing(circular=True), Placing(circular=True, ahead=16))


def plan(lowered: Lowered, machine: Machine) -> Kernel:
    """The kernel of a lowered graph. Raises DoesNotFit (E302) if a step's buffers exceed local memory."""
    bundles = bundle_steps(lowered.steps)
    found = [kernel for way in WAYS if (kernel := _try_plan(lowered, bundles, machine, way)) is not None]
    if found:
        return min(found, key=lambda kernel: cost(kernel.regions, machine).cycles)
    return _Plan(lowered, [Bundle(step) for step in lowered.steps], machine).run()


def _try_plan(lowered: Lowered, bundles: Sequence[Bundle], machine: Machine, way: Placing) -> Kernel | None:
    """A plan; None if the buffers of steps that run in parallel do not fit together."""
    try:
        return _Plan(lowered, bundles, machine, way).run()
    except DoesNotFit:
        return None


class _Plan:
    """The planning state, while regions are filled in order; a region is as long as its bundle."""

    def __init__(
        self, lowered: Lowered, bundles: Sequence[Bundle], machine: Machine, way: Placing = WAYS[0]
    ) -> None:
        self.lowered, self.bundles, self.machine, self.way = lowered, bundles, machine, way
        self.last_end = 0
        """The end of the last load that was placed."""
        self.uses = _uses(bundles)
        self.addresses = self._written_addresses()
        self.taken = [
            LocalPlace(name, at, at + lowered.buffers[name], *self.uses[name])
            for name, at in self.addresses.items()
        ]
        waiting = [name for name in lowered.loads if name in self.uses]
        self.waiting = sorted(waiting, key=lambda name: self.uses[name])
        self.rest: list[tuple[Load, int]] = []
        """Pending loads of the current buffer, each with the number of columns already loaded."""
        self.filling = ""
        self.regions: list[ParallelRegion] = []

    def _written_addresses(self) -> dict[str, int]:
        """The addresses of buffers that steps write."""
        lowered = self.lowered
        names = [name for name in self.uses if name not in lowered.loads]
        buffers = [Buffer(name, lowered.buffers[name], *self.uses[name]) for name in names]
        addresses = allocate(buffers)
        for buffer in buffers:
            if addresses[buffer.name] + buffer.size > self.machine.local_bytes:
                raise self._too_large(self.bundles[buffer.first].step, addresses[buffer.name] + buffer.size)
        return addresses

    def run(self) -> Kernel:
        """Fills a region per bundle, with loads beside it."""
        for index, bundle in enumerate(self.bundles):
            needed = {name for call in bundle.calls for name in call.buffers if name in self.lowered.loads}
            self._force(needed, index)
            calls = tuple(call.place(self.addresses) for call in bundle.step.calls)
            if bundle.step.on_gdma:
                self.regions.append(ParallelRegion(calls, (), index, (bundle.step,) * len(calls)))
                continue
            moves = tuple(call.place(self.addresses) for call in bundle.moves)
            loads = self._loads_beside(index, self._sum(calls) - self._sum(moves), bundle)
            owners = (*(each for each in bundle.beside for _ in each.calls), *(step for _, step in loads))
            self.regions.append(ParallelRegion((*moves, *(call for call, _ in loads)), calls, index, owners))
        return Kernel(tuple(self.regions), tuple(bundle.step for bundle in self.bundles), tuple(self.taken))

    def _sum(self, calls: Sequence[Call]) -> int:
        return sum(pricing.cycles(call, self.machine) for call in calls)

    def _force(self, needed: set[str], index: int) -> None:
        """Adds a region for loads that this step still waits for."""
        calls: list[tuple[Call, Step]] = []
        while needed & ({*self.waiting, self.filling} if self.rest else {*self.waiting}):
            if not self.rest and not self._begin(index, None):
                raise self._too_large(self.bundles[index].step, None)
            load, done = self.rest.pop(0)
            calls += self._place_load(load, done, load.columns)
        if calls:
            placed, owners = zip(*calls, strict=True)
            self.regions.append(ParallelRegion(placed, (), index, owners))

    def _place_load(self, load: Load, first: int, last: int) -> list[tuple[Call, Step]]:
        """The placed calls of a load, each with the step that waits for the current buffer."""
        step = self.bundles[self.uses[self.filling][0]].step
        return [(call.place(self.addresses), step) for call in load.call(first, last)]

    def _loads_beside(self, index: int, budget: int, bundle: Bundle) -> list[tuple[Call, Step]]:
        """Loads beside this bundle, in at most `budget` cycles, and any that the next bundle waits for."""
        calls: list[tuple[Call, Step]] = []
        while self.rest or self._begin(index, bundle):
            load, done = self.rest.pop(0)
            urgent = self.uses[self.filling][0] == index + 1
            until = load.columns if urgent else self._until(load, done, budget)
            if until < load.columns:
                self.rest.insert(0, (load, until))
            if until == done:
                break
            found = self._place_load(load, done, until)
            budget -= self._sum([call for call, _ in found])
            calls += found
        return calls

    def _until(self, load: Load, done: int, budget: int) -> int:
        """The last column (exclusive) that the budget allows; `done` if a part is not worth its start."""
        whole = self._price(load, done, load.columns)
        if whole <= budget:
            return load.columns
        if load.columns == 1 or budget < LEAST or whole < 2 * LEAST:
            return done
        start = self._price(load, done, done + 1)
        share = done + int((load.columns - done) * (budget - start) / (whole - start + 1))
        return max(done, min(share, load.columns))

    def _price(self, load: Load, first: int, last: int) -> int:
        return self._sum(load.call(first, last))

    def _begin(self, index: int, bundle: Bundle | None) -> bool:
        """Places the next buffer that steps wait for; False if there is no room now."""
        ahead = self.way.ahead if bundle is not None else 1
        for name in self.waiting[:ahead]:
            size, last = self.lowered.buffers[name], self.uses[name][1]
            found = self._gaps(size, index, last)
            if found:
                self._place(name, self._start(found, size, last - index <= SOON, bundle), index)
                return True
        return False

    def _start(self, gaps: Sequence[tuple[int, int]], size: int, soon: bool, bundle: Bundle | None) -> int:
        """The address of a load in one of the gaps."""
        if self.way.circular:
            after = self.last_end
            later = (max(start, after) for start, end in gaps if max(start, after) + size <= end)
            return next(later, gaps[0][0])
        busy = self._banks(bundle)
        ends = [at for start, end in gaps for at in (start, end - size)]
        return min(ends, key=lambda at: (bool(self._span(at, size) & busy), at if soon else -at))

    def _place(self, name: str, start: int, index: int) -> None:
        end = start + self.lowered.buffers[name]
        self.addresses[name], self.last_end = start, end
        self.taken.append(LocalPlace(name, start, end, index, self.uses[name][1]))
        self.rest = [(load, 0) for load in self.lowered.loads[name]]
        self.waiting.remove(name)
        self.filling = name

    def _gaps(self, size: int, first: int, last: int) -> list[tuple[int, int]]:
        """The gaps (start, end) of at least `size` bytes that are free in regions first..last."""
        busy = sorted((each.start, each.end) for each in self.taken if each.first <= last and first <= each.last)
        busy.append((self.machine.local_bytes, self.machine.local_bytes))
        found, free = list[tuple[int, int]](), 0
        for start, end in busy:
            if start - free >= size:
                found.append((free, start))
            free = max(free, end)
        return found

    def _banks(self, bundle: Bundle | None) -> set[int]:
        """The banks that a bundle reads or writes."""
        if bundle is None:
            return set()
        names = {name for call in bundle.calls for name in call.buffers}
        spans = (self._span(self.addresses[name], self.lowered.buffers[name]) for name in names)
        return {bank for span in spans for bank in span}

    def _span(self, at: int, size: int) -> set[int]:
        return set(range(at // self.machine.bank_bytes, (at + size - 1) // self.machine.bank_bytes + 1))

    def _too_large(self, step: Step, size: int | None) -> DoesNotFit:
        reason = (
            "its tensors and weights do not fit together" if size is None else f"its tensors reach byte {size}"
        )
        return DoesNotFit(
            "E302",
            reason,
            node=step.sources[0] if step.sources else step.node,
            op=step.op,
            limit=f"{self.machine.local_bytes} bytes of local memory in each NPU",
            remedy="a smaller image, or fewer channels",
        )


def _uses(steps: Sequence[Step | Bundle]) -> dict[str, tuple[int, int]]:
    """The first and the last step that touch each buffer."""
    found: dict[str, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for call in step.calls:
            for name in call.buffers:
                found[name] = (found.get(name, (index, 0))[0], index)
    return found


def cost(regions: Sequence[ParallelRegion], machine: Machine) -> EngineCycles:
    """The cost of regions that run in sequence."""
    total = compute = transfer = 0
    for region in regions:
        bdc = sum(pricing.cycles(call, machine) for call in region.bdc)
        gdma = sum(pricing.cycles(call, machine) for call in region.gdma)
        total, compute, transfer = total + max(bdc, gdma), compute + bdc, transfer + gdma
    return EngineCycles(total, compute, transfer)


def lower_bound(lowered: Lowered) -> int:
    """Bytes per NPU that every plan needs: the most, over all steps, of live computed buffers and loads read."""
    uses = _uses(lowered.steps)
    computed = [name for name in uses if name not in lowered.loads]

    def live_bytes(index: int, step: Step) -> int:
        touched = {name for call in step.calls for name in call.buffers if name in lowered.loads}
        kept = (name for name in computed if uses[name][0] <= index <= uses[name][1])
        return sum(lowered.buffers[name] for name in (*touched, *kept))

    return max((live_bytes(index, step) for index, step in enumerate(lowered.steps)), default=0)
