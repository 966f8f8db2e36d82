"""Runs at the document's implicit addresses: where the maps are placed, and what the host loads and stores.

The first map of a segment is at the low end of the Fmap DTCM, each result goes to the opposite end from its input,
and the skip DTCM keeps one map at its own ofmap addresses. A segment ends where words or weights exceed the
machine, or where a word must read from the low end again. Maps at the low end and in the skip DTCM stay for the
next segment; a map at the high end is copied to the low end by a 1x1 max pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.frozen import frozen
from npuc.ir import Node
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS, Job, Stage, no_words, pointwise_word
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import MapPlace, high_end, low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.placement import Crossing, PlacedJob, Placement, Run, Usage

LOW, HIGH, SKIP = "low", "high", "skip"


@frozen
class ChainUse:
    """The buffers that a chain of words reads and writes, by name, and the words that it takes."""

    node: Node
    source: str
    operand: str | None
    result: str
    kept: str
    """The buffer that a kept copy holds: the result, or, behind a reshape word, the map that it rearranges."""
    weights: int
    words: int


@frozen
class Item:
    """A step of a segment, or (`step` None) a copy of a map from one end to the other."""

    step: int | None
    source: str
    low: bool
    """It reads the low end and writes the high end."""
    stored: str | None = None
    """The buffer that it also writes to the skip DTCM."""


@dataclass
class PlacedSegment:
    """A segment: its items, and the buffers that the host loads and stores, each with its place."""

    items: list[Item] = field(default_factory=list[Item])
    loads: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    stores: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class Inexpressible(Exception):
    """The document's addresses cannot express a run: the step at which they fail, and why."""

    def __init__(self, step: ChainUse, reason: str, *, room: tuple[str, int] | None = None) -> None:
        super().__init__(reason)
        self.step, self.reason, self.room = step, reason, room


def arrange_segments(
    steps: Sequence[ChainUse],
    sizes: Mapping[str, int],
    inputs: Collection[str],
    outputs: Sequence[str],
    machine: Machine,
    wide: Collection[str] = (),
    wanted: Mapping[str, str] = MappingProxyType({}),
) -> list[PlacedSegment]:
    """The segments of a run of steps, in which no map between two steps goes through the host.

    sizes: words of every buffer. wide: buffers with more channels than one word copies. wanted: the place where
    the next run reads an output, which is left there if this takes no more than a copy. Raises Inexpressible.
    """
    walk = _Walk(steps, sizes, set(inputs), list(outputs), machine, set(wide), wanted)
    for at in range(len(steps)):
        walk.take(at)
    return walk.finished()


class _Walk:
    """The contents of the DTCMs as the steps are arranged one after the other."""

    def __init__(
        self,
        steps: Sequence[ChainUse],
        sizes: Mapping[str, int],
        inputs: set[str],
        outputs: list[str],
        machine: Machine,
        wide: set[str],
        wanted: Mapping[str, str],
    ) -> None:
        self.steps, self.sizes, self.inputs, self.outputs = steps, sizes, inputs, outputs
        self.machine, self.wide, self.wanted = machine, wide, wanted
        self.at: dict[str, str | None] = {LOW: None, HIGH: None, SKIP: None}
        self.end = LOW
        """The end that the next word of the segment reads."""
        self.skip_is_free = True
        """The skip DTCM has not been used since the segment began."""
        self.parts = [PlacedSegment()]
        self.words = self.weights = 0

    def take(self, at: int) -> None:
        step = self.steps[at]
        self._expect_room(step)
        if self.parts[-1].stores or not self._continues(step):
            self._reach_low(at)
            self._begin()
        again = step.source in self.outputs or any(step.source == each.source for each in self.steps[at + 1 :])
        if self.end == HIGH and again and self._may_copy(step.source):
            self._copy(step.source, None)
        loaded = not self.parts[-1].items and self.at[LOW] != step.source
        if loaded and not again and self._keeps(step.source, at):
            self._copy(step.source, step.source)
        self._want_operand(at)
        if step.operand is not None and step.operand != self.at[SKIP]:
            raise Inexpressible(step, f"'{step.operand}' and '{self.at[SKIP]}' would both be kept")
        self._run(at)

    def _expect_room(self, step: ChainUse) -> None:
        pair = self.sizes[step.source] + self.sizes[step.result]
        if pair > self.machine.fmap_words:
            reason = f"input and output take {self.sizes[step.source]} + {self.sizes[step.result]} words"
            raise Inexpressible(step, reason, room=("fmap", pair))
        if step.operand is not None and self.sizes[step.operand] > self.machine.skip_words:
            words = self.sizes[step.operand]
            raise Inexpressible(step, f"the kept tensor takes {words} words", room=("skip", words))

    def _continues(self, step: ChainUse) -> bool:
        """Whether the step fits the segment: the next word reads its source, and there is room."""
        more = self.words + step.words <= self.machine.itcm_words
        room = more and self.weights + step.weights <= self.machine.weight_words
        ready = step.operand is None or step.operand == self.at[SKIP]
        ready = ready or (self.skip_is_free and self._loadable(step.operand))
        here = self.at[self.end] == step.source or (not self.parts[-1].items and step.source in self.inputs)
        return room and ready and here

    def _loadable(self, buffer: str | None) -> bool:
        return buffer in self.inputs and (self.at[SKIP] is None or not self._is_operand(self.at[SKIP], -1))

    def _is_operand(self, buffer: str | None, after: int) -> bool:
        """Whether a later step reads a buffer from the skip DTCM: later than `after`, or (-1) not yet run."""
        start = self.done if after < 0 else after + 1
        return any(buffer == each.operand for each in self.steps[start:])

    done = 0

    def _reach_low(self, at: int) -> None:
        """Copies a source from the high end to the low end, where the next segment reads."""
        source = self.steps[at].source
        if self.at[LOW] == source or source in self.inputs:
            return
        if self.at[self.end] != source or not self._may_copy(source) or self.words >= self.machine.itcm_words:
            reason = (
                f"'{source}' is read by '{self.steps[at].result}' after '{self.at[self.end]}' was written; "
                "implicit addresses reach only the previous result"
            )
            raise Inexpressible(self.steps[at], reason)
        self._copy(source, None)

    def _begin(self) -> None:
        """Starts a new segment."""
        if self.parts[-1].items:
            self.parts.append(PlacedSegment())
        self.end, self.words, self.weights = LOW, 0, 0
        self.skip_is_free = self.at[SKIP] is None or not self._is_operand(self.at[SKIP], -1)

    def _may_copy(self, buffer: str) -> bool:
        return 2 * self.sizes[buffer] <= self.machine.fmap_words and buffer not in self.wide

    def _copy(self, buffer: str, stored: str | None) -> None:
        self._load_source(buffer)
        self._write(Item(None, buffer, self.end == LOW, stored), buffer)
        self.words += 1

    def _keeps(self, source: str, at: int) -> bool:
        """Whether a loaded map is also copied to the skip DTCM, where a later step reads it."""
        return self.at[SKIP] is None and self._is_operand(source, at) and self._may_copy(source)

    def _load_source(self, source: str) -> None:
        part = self.parts[-1]
        if not part.items and self.at[LOW] != source:
            part.loads.append((source, LOW))
            self.at[LOW] = source

    def _want_operand(self, at: int) -> None:
        """Loads the operand with the segment if it comes from the host."""
        operand = self.steps[at].operand
        if operand is None or operand == self.at[SKIP]:
            return
        if not (self.skip_is_free and self._loadable(operand)):
            return
        self.parts[-1].loads.append((operand, SKIP))
        self.at[SKIP] = operand
        self.skip_is_free = False

    def _write(self, item: Item, result: str) -> None:
        """Appends an item, whose result goes to the other end."""
        self.parts[-1].items.append(item)
        self.end = HIGH if self.end == LOW else LOW
        self.at[self.end] = result
        if item.stored is not None:
            self.at[SKIP] = item.stored
            self.skip_is_free = False

    def _run(self, at: int) -> None:
        step = self.steps[at]
        self._load_source(step.source)
        if self.at[self.end] != step.source:
            raise Inexpressible(step, f"'{step.source}' is read after '{self.at[self.end]}' was written")
        self.done = at
        stored = None
        if self._is_operand(step.kept, at):
            stored = step.kept
            if self.sizes[stored] > self.machine.skip_words:
                words = self.sizes[stored]
                raise Inexpressible(step, f"the kept tensor takes {words} words", room=("skip", words))
            if self.at[SKIP] is not None and self._is_operand(self.at[SKIP], at):
                reason = f"'{stored}' and '{self.at[SKIP]}' would both be kept, and the skip DTCM keeps one tensor"
                raise Inexpressible(step, reason)
        elif self._stays_in_skip(at):
            stored = step.result
        self._write(Item(at, step.source, self.end == LOW, stored), step.result)
        self.done = at + 1
        self.words += step.words
        self.weights += step.weights
        if step.result in self.outputs:
            self.parts[-1].stores.append((step.result, SKIP if stored == step.result else self.end))
        elif step.kept in self.outputs:
            reason = f"the host reads '{step.kept}', and only '{step.result}' remains"
            raise Inexpressible(step, reason)

    def _stays_in_skip(self, at: int) -> bool:
        """Whether a result can be left in the skip DTCM, where the next run reads it."""
        step = self.steps[at]
        free = all(each.operand is None for each in self.steps[at:]) and step.kept == step.result
        return free and self.wanted.get(step.result) == SKIP and self.sizes[step.result] <= self.machine.skip_words

    def _leave_low(self) -> None:
        """Copies the last result to the low end, where the next run reads it."""
        last, stores = self.at[HIGH], self.parts[-1].stores
        if self.end != HIGH or last is None or self.wanted.get(last) != LOW or (last, HIGH) not in stores:
            return
        if self._may_copy(last) and self.words < self.machine.itcm_words:
            self._copy(last, None)
            self.parts[-1].stores = [(name, LOW if name == last else where) for name, where in stores]

    def finished(self) -> list[PlacedSegment]:
        self._leave_low()
        stored = {name for part in self.parts for name, _ in part.stores}
        missing = [name for name in self.outputs if name not in stored]
        if missing:
            raise Inexpressible(self.steps[-1], f"the host reads '{missing[0]}', which no word writes")
        return self.parts


def steps_of(run: Run) -> list[ChainUse]:
    """The steps of a run's jobs. Raises UnsupportedOperator (E204) for what implicit addresses cannot express."""
    for name, view in run.inputs.items():
        if not run.views.is_whole(view):
            raise _refusal(f"'{name}' is loaded into a part of '{view.buffer}'", run.jobs[0].stages[0].node)
    found: list[ChainUse] = []
    for job in run.jobs:
        name = job.stages[-1].node.name
        if any(stage.keeps for stage in job.stages):
            raise _refusal(f"'{name}' takes several words that keep psums", job.stages[0].node)
        for view in (*job.reads, *job.writes):
            if not run.views.leads(view):
                reason = f"'{name}' reads or writes a part of '{view.buffer}', or repeats it"
                raise _refusal(reason, job.stages[0].node)
        kept = (job.kept or job.result).buffer
        weights = sum(len(stage.block) for stage in job.stages)
        operand = None if job.operand is None else job.operand.buffer
        found.append(
            ChainUse(
                job.stages[0].node,
                job.sources[0].buffer,
                operand,
                job.result.buffer,
                kept,
                weights,
                len(job.stages),
            )
        )
        if job.kept is None and isinstance(job.stages[-1].word, Reshape):
            found[-1] = replace(found[-1], kept="")
    return found


def _refusal(reason: str, node: Node) -> UnsupportedOperator:
    return UnsupportedOperator(
        "E204",
        reason,
        node=node.name,
        op=node.op.removeprefix("Int"),
        limit="one chain, at most one tensor kept for an addition (easynpu, Storage)",
        remedy="compile with --isa extended",
    )


def implicit(run: Run, machine: Machine, following: Sequence[Crossing] = ()) -> list[Placement]:
    """The segments of a run, with their places. following: what the next run loads first.

    Raises UnsupportedOperator (E204) where the document's addresses cannot express the run, DoesNotFit (E302)
    where input and output of a job together exceed the Fmap DTCM, or a kept tensor the skip DTCM.
    """
    steps = steps_of(run)
    sizes = {name: run.words(name) for name in run.views.buffers}
    wide = {name for name, (channels, _, _) in run.views.buffers.items() if channels > FIELD_CHANNELS}
    outputs = [view.buffer for view in run.outputs.values()]
    inputs = [view.buffer for view in run.inputs.values()]
    try:
        parts = arrange_segments(steps, sizes, inputs, outputs, machine, wide, _wanted_outputs(run, following))
    except Inexpressible as error:
        if error.room is None:
            raise _refusal(error.reason, error.step.node) from None
        memory, words = error.room
        raise DoesNotFit(
            "E302",
            error.reason,
            node=error.step.node.name,
            op=error.step.node.op.removeprefix("Int"),
            tensor=error.step.result,
            limit=f"{memory}_words = {machine.capacity_words(memory)}",
            remedy=f"a machine with {memory}_words = {words} (--machine FILE)",
        ) from None
    return [_BufferPlaces(run, machine).placement(part) for part in parts]


def _wanted_outputs(run: Run, following: Sequence[Crossing]) -> dict[str, str]:
    """The outputs that the next run reads from their first row on, by buffer, and where."""
    found: dict[str, str] = {}
    for crossing in following:
        if crossing.tensor in run.outputs:
            here, there = run.windows[crossing.tensor], crossing.window
            alike = (here.channels, here.columns) == (there.channels, there.columns)
            if alike and here.rows[0] == there.rows[0]:
                buffer = run.outputs[crossing.tensor].buffer
                found[buffer] = LOW if crossing.place.memory == "fmap" else SKIP
    return found


class _BufferPlaces:
    """The places of a run's buffers: at either end of the Fmap DTCM, or in the skip DTCM."""

    def __init__(self, run: Run, machine: Machine) -> None:
        self.run, self.machine = run, machine

    def placement(self, part: PlacedSegment) -> Placement:
        jobs = tuple(self._job(item) for item in part.items)
        pairs = [
            self.run.words(each.job.sources[0].buffer) + self.run.words(each.job.result.buffer) for each in jobs
        ]
        kept = [self.run.words(view.buffer) for each in jobs for view in [each.job.operand] if view is not None]
        kept += [self.run.words(item.stored) for item in part.items if item.stored is not None]
        kept += [self.run.words(buffer) for buffer, where in part.loads if where == SKIP]
        fmap, skip = max(pairs, default=0), max(kept, default=0)
        names = {view.buffer: name for name, view in self.run.inputs.items()}
        inputs = tuple(
            Crossing(names[buffer], self.run.windows[names[buffer]], self._at(buffer, where))
            for buffer, where in part.loads
        )
        outputs = tuple(
            Crossing(name, self.run.stored[name], view.within(self._at(buffer, where)))
            for buffer, where in part.stores
            for name, view in self.run.outputs.items()
            if view.buffer == buffer
        )
        return Placement(jobs, inputs, outputs, {"fmap": Usage(fmap, fmap), "skip": Usage(skip, skip)})

    def _at(self, buffer: str, where: str) -> MapPlace:
        channels, _, width = self.run.views.buffers[buffer]
        if where == HIGH:
            return high_end("fmap", self.machine.fmap_words, channels, width)
        return low_end("fmap" if where == LOW else "skip", 0, channels, width)

    def _job(self, item: Item) -> PlacedJob:
        job = self._copying(item.source) if item.step is None else self.run.jobs[item.step]
        ends = (LOW, HIGH) if item.low else (HIGH, LOW)
        opb = None if job.operand is None else self._at(job.operand.buffer, SKIP)
        stored = None if item.stored is None else self._at(item.stored, SKIP)
        places = (self._at(item.source, ends[0]),)
        return PlacedJob(job, places, self._at(job.result.buffer, ends[1]), opb, stored, explicit=False)

    def _copying(self, buffer: str) -> Job:
        """A 1x1 max pool, which copies a map to the other end."""
        channels, height, width = self.run.views.buffers[buffer]
        view = MapView(buffer, channels, height, width)
        node = Node("MaxPool", (buffer,), (f"{buffer}/copy",), {}, f"{buffer}/copy")
        word = pointwise_word("maxpool", channels, height, width)
        return Job((Stage(word, no_words(), node, None, view),), view)
