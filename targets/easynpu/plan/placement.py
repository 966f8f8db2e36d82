"""A run of jobs in the memories: the place of every buffer, and segments that fit the ITCM and the weight DTCM.

Buffers lie in either DTCM, by lifetime; extension words hold the addresses. A segment has a stream of weights. The
taps of an average are the same for all channels: its words with equal blocks stream them from one address, which
`ctl set_weights` sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate, fits, lower_bound, peak
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.layers.tiling import is_single_tile
from npuc.targets.easynpu.layers.views import MapView, Views
from npuc.targets.easynpu.layers.windows import MapWindow
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import LANES, MapPlace, feature_words, groups, low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense, is_pointwise


@frozen
class PlacedJob:
    """A job with the places of its stages' sources, its result, its operand and the copy of its result."""

    job: Job
    sources: tuple[MapPlace, ...]
    dst: MapPlace
    opb: MapPlace | None
    stored: MapPlace | None
    explicit: bool
    """Extension words state the places."""


@frozen
class Usage:
    """Peak and lower bound of the use of one memory, in words."""

    peak: int
    lower_bound: int


@frozen
class Crossing:
    """A window of a tensor that enters or leaves a run, and its place."""

    tensor: str
    window: MapWindow
    place: MapPlace


@frozen
class Placement:
    """The placed jobs of one run, the tensors that are loaded and stored, and the memory use."""

    jobs: tuple[PlacedJob, ...]
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]
    usage: Mapping[str, Usage]


@frozen
class Run:
    """Jobs that run without the host in between, and the tensors that the host loads and stores."""

    jobs: tuple[Job, ...]
    inputs: Mapping[str, MapView]
    outputs: Mapping[str, MapView]
    views: Views
    windows: Mapping[str, MapWindow]
    """The window of every tensor that is computed or loaded."""
    stored: Mapping[str, MapWindow]
    """The window of every output that is stored."""
    fixed: Mapping[str, MapPlace] = field(default_factory=dict[str, MapPlace])
    """The places of buffers that other runs use too."""

    def words(self, buffer: str) -> int:
        """DTCM words of a buffer."""
        return feature_words(*self.views.buffers[buffer])


def expect_room(machine: Machine, memory: str, words: int, job: Job, reason: str) -> None:
    """Raises DoesNotFit (E302), with the job's node, if these words exceed the memory."""
    capacity = machine.capacity_words(memory)
    if words > capacity:
        node = job.stages[0].node
        raise DoesNotFit(
            "E302",
            reason,
            node=node.name,
            op=node.op.removeprefix("Int"),
            tensor=job.result.buffer,
            limit=f"{memory}_words = {capacity}",
            remedy=f"a machine with {memory}_words = {words} (--machine FILE)",
        )


def explicit(run: Run, machine: Machine) -> Placement:
    """The placement with an address for every buffer: operands of additions in the skip DTCM if there is room.

    The copy of a result goes there too and the result itself does not, as a DTCM takes one word a cycle. Raises
    DoesNotFit (E302) where the buffers alive together exceed both memories, or a result and its copy share one. A
    result takes the place of a map of its size that its jobs are the last to read, element by element.
    """
    replaced = _replaced(run)
    holders: dict[str, str] = {}
    for name, view in replaced.items():
        holders[name] = holders.get(view.buffer, view.buffer)
    buffers = shared(_lifetimes(run), holders)
    copied = [(job, job.kept.buffer) for job in run.jobs if job.kept is not None]
    operands = {holders.get(job.operand.buffer, job.operand.buffer) for job in run.jobs if job.operand is not None}
    operands -= {job.result.buffer for job, _ in copied}
    skip, fmap = assign(buffers, operands | {copy for _, copy in copied}, machine)
    in_fmap = {buffer.name for buffer in fmap}
    for job, copy in copied:
        if (copy in in_fmap) == (job.result.buffer in in_fmap):
            together = run.words(copy) + run.words(job.result.buffer)
            raise _not_apart(job, together)
    addresses, in_skip = allocate(fmap), allocate(skip)
    needed = peak(fmap, addresses)
    if needed > machine.fmap_words:
        step = max(range(len(run.jobs)), key=lambda at: sum(b.size for b in fmap if b.first <= at <= b.last))
        expect_room(machine, "fmap", needed, run.jobs[step], f"the maps alive together take {needed} words")
    usage = {
        "fmap": Usage(needed, lower_bound(fmap)),
        "skip": Usage(peak(skip, in_skip), lower_bound(skip)),
    }
    return _explicit_places(run, addresses, in_skip, usage, replaced)


def shared(buffers: Sequence[Buffer], holders: Mapping[str, str]) -> list[Buffer]:
    """The buffers without those that lie in another's place, which is in use as long as either."""
    found: dict[str, Buffer] = {}
    for each in buffers:
        name = holders.get(each.name, each.name)
        known = found.get(name, each)
        found[name] = Buffer(name, known.size, min(known.first, each.first), max(known.last, each.last))
    return list(found.values())


def _replaced(run: Run) -> dict[str, MapView]:
    """For every buffer that takes the place of a map that its jobs are the last to read, this map."""
    found: dict[str, MapView] = {}
    reads: dict[str, list[tuple[int, MapView]]] = {}
    writes: dict[str, list[int]] = {}
    for at, job in enumerate(run.jobs):
        for view in job.reads:
            reads.setdefault(view.buffer, []).append((at, view))
        for view in job.writes:
            writes.setdefault(view.buffer, []).append(at)
    loaded = {view.buffer for view in run.inputs.values()}
    staying = {view.buffer for view in run.outputs.values()}
    staying |= {view.buffer for job in run.jobs if job.kept is not None for view in job.writes} | {*run.fixed}
    for result, jobs in writes.items():
        if result in loaded or result in run.fixed or any(run.jobs[at].kept for at in jobs):
            continue
        first = run.jobs[jobs[0]]
        for source in (around(run.views, view, first.result) for view in replaceable_by(first)):
            if source is None:
                continue
            later = [(at, view) for at, view in reads.get(source.buffer, ()) if at >= jobs[0]]
            mine = all(at in jobs and _is_replaced(run.jobs[at], view, source) for at, view in later)
            if later and mine and source.buffer not in staying and max(writes.get(source.buffer, [-1])) < jobs[0]:
                found[result] = source
                break
    return found


def around(views: Views, view: MapView, result: MapView) -> MapView | None:
    """Where a result's buffer would lie around a view that the result replaces; None if no map surrounds it so."""
    if (view.group, view.group_step) != (result.group, result.group_step) or view.buffer == result.buffer:
        return None
    (depth, high, wide), (channels, height, width) = views.buffers[view.buffer], views.buffers[result.buffer]
    row, column = view.row - result.row, view.column - result.column
    inside = 0 <= row <= high - height and 0 <= column <= wide - width and groups(depth) == groups(channels)
    return MapView(view.buffer, channels, height, width, 0, row, column) if inside else None


def _is_replaced(job: Job, view: MapView, source: MapView) -> bool:
    """Whether a job reads a view where it writes, if its result takes the place of a map."""
    y = job.result
    here = source.window((LANES * y.group, y.row, y.column), (y.channels, y.height, y.width))
    return view in replaceable_by(job) and here == view and y.row_step == y.column_step == 1


def replaceable_by(job: Job) -> tuple[MapView, ...]:
    """The maps that a job's result may replace: a pixel of them is read before that of the result is written.

    That of a second operand, if the job does not read it otherwise, and all that a job reads which computes every
    element from the same elements.
    """
    operand = () if job.operand is None or [*job.reads].count(job.operand) > 1 else (job.operand,)
    words = [stage.word for stage in job.stages]
    if job.takes or job.leaves or not all(isinstance(word, Layer) for word in words):
        return ()
    alone = all(isinstance(word, Layer) and not is_dense(word) and is_pointwise(word) for word in words)
    return job.reads if alone else operand


def _not_apart(job: Job, words: int) -> DoesNotFit:
    node = job.stages[-1].node
    return DoesNotFit(
        "E302",
        "a result and the copy of it that is kept would lie in one DTCM, which takes a word a cycle",
        node=node.name,
        op=node.op.removeprefix("Int"),
        tensor=job.result.buffer,
        limit=f"{words} words in two DTCMs",
        remedy="a machine with larger DTCMs (--machine FILE)",
    )


def assign(buffers: Sequence[Buffer], operands: set[str], machine: Machine) -> tuple[list[Buffer], list[Buffer]]:
    """The buffers of the skip and the Fmap DTCM: operands in skip, and others if the Fmap DTCM overflows.

    The smallest others, or the largest if what remains would overflow.
    """
    skip = given = _that_fit([b for b in buffers if b.name in operands], machine.skip_words)
    fmap = rest = [b for b in buffers if b not in skip]
    for sign in (1, -1):
        if fits(fmap, machine.fmap_words):
            break
        skip = _that_fit([*given, *sorted(rest, key=lambda b: sign * b.size)], machine.skip_words)
        fmap = [b for b in buffers if b not in skip]
    return skip, fmap


def placeable(buffers: Sequence[Buffer], operands: set[str], machine: Machine) -> bool:
    """Whether `explicit` would place these buffers."""
    _, fmap = assign(buffers, operands, machine)
    return fits(fmap, machine.fmap_words)


def _explicit_places(
    run: Run,
    in_fmap: Mapping[str, int],
    in_skip: Mapping[str, int],
    usage: Mapping[str, Usage],
    replaced: Mapping[str, MapView],
) -> Placement:
    """The placement with every view at its address within its buffer."""

    def place(view: MapView) -> MapPlace:
        if view.buffer in replaced:
            return view.within(place(replaced[view.buffer]))
        if view.buffer in run.fixed:
            return view.within(run.fixed[view.buffer])
        memory, base = ("fmap", in_fmap[view.buffer]) if view.buffer in in_fmap else ("skip", in_skip[view.buffer])
        channels, _, width = run.views.buffers[view.buffer]
        return view.within(low_end(memory, base, channels, width))

    jobs = tuple(
        PlacedJob(
            job,
            tuple(place(view) for view in job.sources),
            place(job.result),
            None if job.operand is None else place(job.operand),
            None if job.kept is None else place(job.kept),
            explicit=True,
        )
        for job in run.jobs
    )
    inputs = tuple(Crossing(name, run.windows[name], place(view)) for name, view in run.inputs.items())
    outputs = tuple(Crossing(name, run.stored[name], place(view)) for name, view in run.outputs.items())
    return Placement(jobs, inputs, outputs, usage)


def _lifetimes(run: Run) -> list[Buffer]:
    """The buffers with their lifetimes in job numbers: from the first job that writes to the last that reads."""
    first = {view.buffer: 0 for view in run.inputs.values()}
    last = dict(first)
    for step, job in enumerate(run.jobs):
        for view in (*job.reads, *job.writes):
            first.setdefault(view.buffer, step)
            last[view.buffer] = step
    last.update({view.buffer: len(run.jobs) for view in run.outputs.values()})
    return [Buffer(name, run.words(name), first[name], last[name]) for name in first if name not in run.fixed]


def _that_fit(buffers: Sequence[Buffer], capacity: int) -> list[Buffer]:
    """The buffers that can be placed together within the capacity, chosen greedily in order."""
    chosen: list[Buffer] = []
    for buffer in buffers:
        together = [*chosen, buffer]
        if fits(together, capacity):
            chosen = together
    return chosen


@dataclass
class WeightStreamBuilder:
    """The weight stream of a segment, built job by job."""

    words: int = 0
    """Words of all blocks that must be loaded."""
    _next: int = 0
    """Address at which the machine continues if no word sets another."""
    _shared: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    """Blocks that may be streamed again, and their addresses."""

    def with_addresses(self, job: Job) -> Job:
        """The job appended to the stream; its stages have the addresses of their blocks and which are loaded."""
        return replace(job, stages=tuple(map(self._with_address, job.stages)))

    def copy(self) -> WeightStreamBuilder:
        """A copy of the stream, to which other jobs can be added."""
        return WeightStreamBuilder(self.words, self._next, list(self._shared))

    def _with_address(self, stage: Stage) -> Stage:
        if not len(stage.block):
            return stage
        at = self._found(stage)
        held = at is not None
        if at is None:
            at, self.words = self.words, self.words + len(stage.block)
        found = replace(stage, weights_at=None if at == self._next else at, held=held)
        self._next = at + len(stage.block)
        return found

    def _found(self, stage: Stage) -> int | None:
        """The address of a block that begins with a sharing stage's block; None if it must be loaded."""
        if not stage.shares:
            return None
        block = stage.block.tobytes()
        for known, at in self._shared:
            if known.startswith(block):
                return at
        self._shared.append((block, self.words))
        return None


def cut(jobs: Sequence[Job], machine: Machine, *, extended: bool, alone: Sequence[bool] = ()) -> list[list[Job]]:
    """The jobs in segments whose words fit the ITCM and whose weight blocks fit the weight DTCM.

    extended: count extension words. alone: the jobs that are a segment each. Raises DoesNotFit (E302) for a single
    job that exceeds either memory.
    """
    runs: list[list[Job]] = [[]]
    stream, words = WeightStreamBuilder(), 0
    for at, job in enumerate(jobs):
        longer = stream.copy()
        placed = longer.with_addresses(job)
        more = instruction_words(placed, extended=extended)
        apart = any(alone[max(at - 1, 0) : at + 1])
        if words + more > machine.itcm_words or longer.words > machine.weight_words or apart:
            if runs[-1]:
                runs.append([])
            longer, words = WeightStreamBuilder(), 0
            placed = longer.with_addresses(job)
            more = instruction_words(placed, extended=extended)
            weights = f"its weights and bias-scale blocks take {longer.words} words"
            expect_room(machine, "weight", longer.words, job, weights)
            expect_room(machine, "itcm", more, job, f"its instructions take {more} words")
        runs[-1].append(placed)
        stream, words = longer, words + more
    return runs


def pieces(job: Job, machine: Machine) -> list[Job]:
    """The job, or, if it exceeds the machine, its parts, which keep psums in between.

    Each part is loaded before it runs. Raises DoesNotFit (E302) where the psums are not those of one tile, or a
    single part exceeds the machine.
    """
    if _fits(job, machine) or not job.stages[0].keeps:
        return [job]
    layers = [stage.word for stage in job.stages if stage.source is not None and isinstance(stage.word, Layer)]
    if not all(is_single_tile(each, machine) for each in layers):
        node, positions = job.stages[0].node, machine.psum_entries * machine.pe_rows
        raise DoesNotFit(
            "E302",
            f"its weights are loaded in turn, and no tile holds its {layers[0].Ho} x {layers[0].Wo} results",
            node=node.name,
            op=node.op.removeprefix("Int"),
            limit=f"{positions} psums, {machine.ifmap_pad_entries} entries of an ifmap pad",
            remedy=f"a machine with weight_words = {weight_words(job)} (--machine FILE)",
        )
    found: list[list[Stage]] = [[]]
    for stage in job.stages:
        trial = replace(job, stages=(*found[-1], stage), takes=len(found) > 1)
        if found[-1] and found[-1][-1].keeps and not _fits(trial, machine):
            found.append([])
        found[-1].append(stage)
    return [
        replace(
            job,
            stages=tuple(stages),
            takes=stages is not found[0],
            leaves=stages is not found[-1],
            operand=job.operand if stages is found[-1] else None,
        )
        for stages in found
    ]


def _fits(job: Job, machine: Machine) -> bool:
    words = instruction_words(job, extended=True)
    return weight_words(job) <= machine.weight_words and words <= machine.itcm_words


def instruction_words(job: Job, *, extended: bool) -> int:
    """Instruction words of a job: its stages, control words and, if extended, address words."""
    controls = sum(is_controlled(job, stage) for stage in job.stages)
    operands = len(job.reads) + len(job.writes)
    return len(job.stages) + controls + (operands if extended else 0)


def is_controlled(job: Job, stage: Stage) -> bool:
    """Whether a control word precedes a stage."""
    return stage.keeps or stage.weights_at is not None or (job.takes and stage is job.stages[0])


def weight_words(job: Job) -> int:
    """Words that must be loaded into the weight DTCM for a job."""
    return sum(len(stage.loaded) for stage in job.stages)


class Streams:
    """The streams of which the weight DTCM still holds words. Each stream is loaded from word 0 on."""

    def __init__(self) -> None:
        self.held: dict[Hashable, tuple[int, int]] = {}
        """The words of a stream, and how many of its first words have been overwritten."""

    def load(self, stream: Hashable, words: int) -> int:
        """The number of first words of a stream that must be loaded before it runs."""
        _, needed = self.held.pop(stream, (words, words))
        lost = {key: (length, max(over, needed)) for key, (length, over) in self.held.items()}
        self.held = {key: (length, over) for key, (length, over) in lost.items() if over < length}
        self.held[stream] = words, 0
        return needed
