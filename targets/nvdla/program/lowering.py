"""Lowering of the integer graph to an NVDLA program: phases, memory placement, commands and steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby

from npuc.conditions.host import constant_steps, host_step
from npuc.frozen import frozen
from npuc.host.allocation import Buffer as Lifetime
from npuc.host.allocation import allocate, lower_bound, peak
from npuc.ir import Graph, Node
from npuc.quantize.network.construction import Quantised
from npuc.targets.nvdla.emission import Emitter, kind
from npuc.targets.nvdla.emission.describing import Described
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.formats.weights import DIRECT
from npuc.targets.nvdla.machine.parameters import SRAM_BASE, Machine
from npuc.targets.nvdla.operations.operation import Operation, Transfer
from npuc.targets.nvdla.operations.scoreboard import Admission
from npuc.targets.nvdla.operations.surfaces import BufferView, ComputedLanes, Surfaces, is_view, place
from npuc.targets.nvdla.program.artefact import CubePlace, Dram, Image, Produced, Segment, Step, TensorMove, encode
from npuc.targets.nvdla.program.frames import RawFrame, is_centre, raw_frames
from npuc.targets.nvdla.selection import (
    Choices,
    Constants,
    Context,
    FormChoice,
    Placed,
    PlannedLayer,
    choose,
    computed_lanes,
    fuses_pool,
    select,
)
from npuc.targets.nvdla.selection.context import KernelKey, Piece
from npuc.targets.nvdla.selection.copies import copy_maps, move_lanes, pack_channels
from npuc.targets.nvdla.selection.phases import (
    UNIT,
    computed_nodes,
    lifetimes_of,
    loads_of,
    phases_of,
    steps_of,
    stores_of,
)
from npuc.targets.nvdla.selection.planning import TilePlan, plan
from npuc.targets.nvdla.selection.second_memory import Prefetch, prefetch, residents

BASE = 0x8000_0000
"""Start of the program's memory, as in NVDLA's own test programs."""


@frozen
class Emitted:
    """A layer's operations and its range of commands."""

    layer: PlannedLayer
    operations: tuple[Operation, ...]
    admissions: tuple[Admission, ...]
    """When each operation is programmed and enabled."""
    start: int
    count: int
    choice: FormChoice | None
    """Of a convolution's weight form."""


@frozen
class Lowered:
    """The parts of a program."""

    quantised: Quantised
    steps: tuple[Step, ...]
    emitted: tuple[Emitted, ...]
    operations: tuple[Produced, ...]
    engines: Sequence[Sequence[Described]]
    """What they do of each operation."""
    dram: Dram
    registers: bytes
    constants: bytes
    activations: tuple[int, int]
    """Bytes of DRAM for feature maps: as allocated, and the lower bound."""
    second: tuple[int, int]
    """The same for the second memory."""


def lower(quantised: Quantised, machine: Machine, reasons: Mapping[str, str], weights: str = "auto") -> Lowered:
    """The program of an integer graph, or of an fp16 graph.

    reasons: why the host computes an operator. weights: one of weight_form.asked_forms. Raises DoesNotFit (E302)
    if not even one kernel fits the CBUF.
    """
    quantised = _with_copies(quantised, machine)
    graph = quantised.graph
    phases = list(phases_of(graph))
    choices = _choices(graph, machine, weights)
    tiled = [name for name, choice in choices.convolutions.items() if choice.form.kind == "winograd"]
    frames = raw_frames(graph, choices.images)
    surfaces = _surfaces(graph, machine, tiled).with_images(
        choices.images, {name: each.conversion for name, each in frames.items()}
    )
    trial = _trial(graph, machine, _nowhere(surfaces))
    turns = [layers(trial, part, choices.convolutions) if on_device else [] for on_device, part in phases]
    flying = {each.node.output for turn in turns for each in turn if each.pool}
    lifetimes = lifetimes_of(graph, phases, surfaces, loads_of(graph, computed_nodes(graph)), flying)
    steps = steps_of(phases, flying)
    maps, planned = _place_and_plan(graph, machine, surfaces, lifetimes, [turn for turn in turns if turn], steps)
    constants = Constants(machine, BASE + align(maps.dram[0], 4096))
    context = replace(_trial(graph, machine, maps), constants=constants, data_banks=planned.data_banks)
    program = _Program(context, choices.convolutions, planned, reasons, frames)
    for (on_device, part), turn in zip(phases, turns, strict=True):
        program.device(part, turn) if on_device else program.host(part)
    end = constants.base + align(len(constants.image), 4096)
    return Lowered(
        quantised,
        tuple(program.steps),
        tuple(program.emitted),
        tuple(program.produced),
        program.emitter.writer.described,
        Dram(BASE, max(end - BASE, 4096), (Image("weights.bin", constants.base),)),
        encode(program.emitter.writer.commands, program.emitter.writer.map),
        bytes(constants.image),
        maps.dram,
        maps.second,
    )


@frozen
class _Maps:
    """The placement of maps, and the bytes taken of each memory: as allocated, and the lower bound."""

    placed: Mapping[str, Placed]
    dram: tuple[int, int]
    second: tuple[int, int]
    copied: Mapping[KernelKey, int] = field(default_factory=dict[KernelKey, int])
    """Addresses to which BDMA copies weights."""
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict[str, "Sequence[Piece]"])

    @classmethod
    def of(
        cls,
        surfaces: Surfaces,
        lifetimes: Sequence[Lifetime],
        kept: Collection[str] = (),
        copies: Prefetch | None = None,
    ) -> _Maps:
        """kept: the buffers in the second memory; copies: weights copied to some of them."""
        bases: dict[str, int] = {}
        taken: list[tuple[int, int]] = []
        for base, second in ((BASE, False), (SRAM_BASE, True)):
            there = [each for each in lifetimes if (each.name in kept) is second]
            offsets = allocate(there)
            bases |= {name: base + UNIT * offset for name, offset in offsets.items()}
            taken.append((UNIT * peak(there, offsets), UNIT * lower_bound(there)))
        placed = {name: Placed(view, bases.get(view.buffer.name, BASE)) for name, view in surfaces.views.items()}
        maps = cls(placed, taken[0], taken[1])
        if copies is None:
            return maps
        copied = {key: bases[name] for key, name in copies.buffers.items()}
        return replace(maps, copied=copied, pieces=copies.pieces)


def _place_and_plan(
    graph: Graph,
    machine: Machine,
    surfaces: Surfaces,
    lifetimes: Sequence[Lifetime],
    turns: Sequence[Sequence[PlannedLayer]],
    steps: Mapping[str, int],
) -> tuple[_Maps, TilePlan]:
    """The placement of maps and the tiles; the second memory holds maps and weights if the program ends earlier.

    steps: the step of each layer, by the output of its node.
    """
    maps = _Maps.of(surfaces, lifetimes)
    planned = plan(_trial(graph, machine, maps), turns)
    if not machine.sram_bytes:
        return maps, planned
    nodes, layers = computed_nodes(graph), [layer for turn in turns for layer in turn]
    bound = {surfaces.views[name].buffer.name for name in (*loads_of(graph, nodes), *stores_of(graph, nodes))}
    kept = residents(_trial(graph, machine, maps), layers, planned.edges, lifetimes, bound)
    other = _Maps.of(surfaces, lifetimes, kept)
    again = plan(_trial(graph, machine, other), turns) if kept else planned
    if again.clocks < planned.clocks:
        maps, planned = other, again
    else:
        kept = frozenset[str]()
    if not machine.transfers:
        return maps, planned
    context = replace(_trial(graph, machine, maps), data_banks=planned.data_banks)
    there = [each for each in lifetimes if each.name in kept]
    copies = prefetch(context, layers, planned.edges, [steps[each.node.output] for each in layers], there)
    names = {*kept, *copies.buffers.values()}
    other = _Maps.of(surfaces, [*lifetimes, *copies.lifetimes], names, copies)
    again = plan(_trial(graph, machine, other), turns) if copies.buffers else planned
    return (other, again) if again.clocks < planned.clocks else (maps, planned)


def winograd_candidates(quantised: Quantised, machine: Machine, weights: str) -> frozenset[str]:
    """Results of float convolutions whose form would be Winograd if weights were transformed before rounding."""
    graph = _with_copies(quantised, machine).graph
    found = _choices(graph, machine, weights, inexact=True).convolutions
    weighted = (graph.producers[name].inputs[1] for name in found if found[name].form.kind == "winograd")
    return frozenset(quantised.sources[name] for name in weighted)


def reads_raw(quantised: Quantised, machine: Machine, weights: str) -> bool:
    """Whether CDMA takes the means from all centred frames."""
    graph = _with_copies(quantised, machine).graph
    replaced = [each.replaced for each in raw_frames(graph, _choices(graph, machine, weights).images).values()]
    return {node for node in graph.nodes if is_centre(node)} <= {node for nodes in replaced for node in nodes}


def _choices(graph: Graph, machine: Machine, weights: str, *, inexact: bool = False) -> Choices:
    """The cheapest weight forms; addresses do not matter."""
    nodes = computed_nodes(graph)
    trial = _trial(graph, machine, _nowhere(_surfaces(graph, machine)))
    loaded = loads_of(graph, nodes)
    return choose(trial, nodes, loaded, raw_frames(graph, loaded), weights, inexact=inexact)


def _nowhere(surfaces: Surfaces) -> _Maps:
    """A placement for uses in which addresses do not matter."""
    return _Maps({name: Placed(view, 0) for name, view in surfaces.views.items()}, (0, 0), (0, 0))


def _trial(graph: Graph, machine: Machine, maps: _Maps) -> Context:
    """A context for costing, whose constants are only counted."""
    constants = Constants(machine, 0, counted=True)
    return Context(graph, machine, maps.placed, constants, copied=maps.copied, pieces=maps.pieces)


def _surfaces(graph: Graph, machine: Machine, tiled: Sequence[str] = ()) -> Surfaces:
    nodes = computed_nodes(graph)
    return place(graph, nodes, loads_of(graph, nodes), machine, _lanes(graph, machine), tiled)


def _with_copies(quantised: Quantised, machine: Machine) -> Quantised:
    """The integer graph with copies of maps that are not laid out as their readers need them."""
    nodes = computed_nodes(quantised.graph)
    changed = copy_maps(quantised, nodes, loads_of(quantised.graph, nodes))
    nodes = computed_nodes(changed.graph)
    changed = pack_channels(changed, nodes, _surfaces(changed.graph, machine).views)
    nodes = computed_nodes(changed.graph)
    return move_lanes(changed, nodes, loads_of(changed.graph, nodes), machine)


def _lanes(graph: Graph, machine: Machine) -> ComputedLanes:
    return lambda node, known: computed_lanes(graph, machine, node, known)


def layers(context: Context, nodes: Sequence[Node], choices: Mapping[str, FormChoice]) -> list[PlannedLayer]:
    """The layers of NVDLA: nodes, with pooling fused behind them where nothing else reads the node's result."""
    found: list[PlannedLayer] = []
    taken: set[str] = set()
    inside = set(nodes)
    for node in nodes:
        if is_view(context.graph, node) or node.output in taken:
            continue
        form = choices[node.output].form if node.output in choices else DIRECT
        layer = PlannedLayer(node, form, _pool_behind(context, node, inside))
        found.append(layer if fuses_pool(context, layer) else replace(layer, pool=None))
        taken.add(found[-1].name)
    return found


def _pool_behind(context: Context, node: Node, inside: Collection[Node]) -> Node | None:
    """The pooling that is the only reader of a node's result; None if that is part of another buffer."""
    graph, readers = context.graph, context.graph.readers[node.output]
    own = context.placed[node.output].view.buffer.name == node.output
    if node.op not in ("NvConv", "NvElementwise") or len(readers) != 1 or node.output in graph.outputs or not own:
        return None
    pool = readers[0]
    return pool if pool.op in ("NvAveragePool", "MaxPool") and pool in inside else None


class _Program:
    """Collects steps and commands, phase by phase."""

    def __init__(
        self,
        context: Context,
        choices: Mapping[str, FormChoice],
        planned: TilePlan,
        reasons: Mapping[str, str],
        frames: Mapping[str, RawFrame],
    ) -> None:
        self.context = context
        self.choices = choices
        self.planned = planned
        self.reasons = reasons
        self.frames = frames
        self.replaced = {node.output for each in frames.values() for node in each.replaced}
        self.graph = context.graph
        self.placed = context.placed
        self.emitter = Emitter(context.machine)
        self.emitter.start()
        self.steps: list[Step] = []
        self.emitted: list[Emitted] = []
        self.produced: list[Produced] = []
        self.read: set[str] = set()
        self.present: set[str] = set()
        self.started = False

    def host(self, nodes: Sequence[Node]) -> None:
        """Appends steps of the host, without those that CDMA replaces."""
        nodes = [node for node in nodes if node.output not in self.replaced]
        self.steps += constant_steps(self.graph, nodes, self.read)
        for node in nodes:
            at_border = not self.started or not self._feeds_device(node)
            self.steps.append(host_step(self.graph, node, self.reasons.get(node.op, ""), at_border=at_border))

    def _feeds_device(self, node: Node) -> bool:
        """Whether NVDLA reads a tensor that depends on the node."""
        waiting = list(node.outputs)
        while waiting:
            name = waiting.pop()
            if name in self.placed:
                return True
            waiting += [output for reader in self.graph.readers[name] for output in reader.outputs]
        return False

    def device(self, nodes: Sequence[Node], turn: Sequence[PlannedLayer]) -> None:
        """Appends one segment: its nodes, and the layers that compute them."""
        begin = len(self.emitter.writer.commands) if self.started else 0
        self.started = True
        loads = [name for name in loads_of(self.graph, nodes) if name not in self.present]
        self.present.update(loads, *(node.outputs for node in nodes))
        for layer in turn:
            self._compute(layer)
        self.emitter.drain()
        self.steps.append(
            Segment(
                tuple(self._load(name) for name in loads),
                begin,
                len(self.emitter.writer.commands) - begin,
                tuple(self._move(name) for name in stores_of(self.graph, nodes)),
            )
        )

    def _compute(self, layer: PlannedLayer) -> None:
        """Emits the operations of a layer."""
        operations = select(self.context, layer, self.planned.edges[layer.name])
        sources = tuple(dict.fromkeys(source for node in layer.nodes for source in node.sources))
        begin = len(self.emitter.writer.commands)
        admissions: list[Admission] = []
        last = max(at for at, each in enumerate(operations) if not isinstance(each, Transfer))
        for position, operation in enumerate(operations):
            start = len(self.emitter.writer.commands)
            admissions.append(self.emitter.emit(operation))
            result = self._move(layer.name) if position == last else None
            count = len(self.emitter.writer.commands) - start
            self.produced.append(Produced(start, count, kind(operation), sources, result))
        count = len(self.emitter.writer.commands) - begin
        choice = self.choices.get(layer.node.output)
        self.emitted.append(Emitted(layer, tuple(operations), tuple(admissions), begin, count, choice))

    def _load(self, name: str) -> TensorMove:
        """A tensor that the host brings; of a frame its bytes."""
        move, frame = self._move(name), self.frames.get(name)
        if frame is None:
            return move
        return replace(move, tensor=frame.tensor, place=replace(move.place, precision="uint8"))

    def _move(self, name: str) -> TensorMove:
        placed = self.placed[name]
        held = placed.view.buffer
        lanes = _runs(placed.view)
        address = placed.base + placed.view.offset
        where = CubePlace(
            address, placed.view.line_stride, held.surface_stride, lanes, held.precision, held.pixels
        )
        return TensorMove(name, self.graph.shape(name), where)


def _runs(view: BufferView) -> tuple[tuple[int, int], ...]:
    """The lanes as runs (first, count) of consecutive ones."""
    groups = groupby(enumerate(view.lanes), key=lambda pair: pair[1] - pair[0])
    members = [[lane for _, lane in group] for _, group in groups]
    return tuple((lanes[0], len(lanes)) for lanes in members)
