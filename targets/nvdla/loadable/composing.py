"""A compiled program as a loadable: descriptors, memories, addresses, tasks, events, tensors; ids are positions.

The dependency graph of a task: which events of other operations each operation waits for. An operation can name
one consumer per engine. Engines run their operations in order, in two register groups: an operation is programmed
when the one before its predecessor has ended. So it suffices that the first operation of an engine waits for what
it needs, that each successor is enabled after its predecessor, and that neighbours of one engine wait for one
another if they share memory.

Source: The loadable (facts), its structure and order, as in three loadables of NVDLA's own compiler, and Rules the
firmware follows; every rule of it is checked in rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.program import Program
from npuc.storage.records import damage_error
from npuc.targets.nvdla.emission.describing import Described
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.descriptors import COMPLETED, ENABLED, ENGINES, NONE, PROGRAMMED, Common, Consumer
from npuc.targets.nvdla.firmware.structures import pack
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.loadable import emulation, schema
from npuc.targets.nvdla.loadable.accesses import APART, RESULT, Accesses, Needed, by_memory, cubes, dependencies_of
from npuc.targets.nvdla.loadable.averages import replace_averages
from npuc.targets.nvdla.loadable.places import (
    FIRST_BOUND,
    MAPS,
    SOFTMAX_SCALE,
    WEIGHTS,
    BoundPort,
    Layout,
    Ports,
    Use,
    place_cubes,
)
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.program.artefact import Contents
from npuc.targets.nvdla.selection import Constants

PAGE = schema.ALIGNMENT


@frozen
class Built:
    """Operations with the addresses of their cubes, look-up tables, weights, and the size of map memory."""

    operations: tuple[Described, ...]
    luts: tuple[of.Lut, ...]
    weights: bytes
    map_bytes: int


def compose(program: Program, ports: Ports) -> schema.Loadable:
    """The loadable of a program. Raises ArtefactError (E506) for anything that descriptors cannot express."""
    machine = Contents.of(program.manifest).machine
    built = _build(program, ports, machine)
    memories = _Memories(built.weights, built.map_bytes, ports, machine)
    memories.task(schema.DLA, _engine_lists(built, machine, memories.data))
    softmax = [port for port in ports.outputs if port.softmax]
    if softmax:
        base = Contents.of(program.manifest).dram.base
        memories.task(schema.EMU, _cpu_lists(softmax, machine, memories.data, base))
    return memories.loadable()


def _build(program: Program, ports: Ports, machine: Machine) -> Built:
    contents = Contents.of(program.manifest)
    segment = ports.segment
    held = _expect_expressible(contents.engines(program, segment))
    constants = _constants(program, contents)
    end = align(contents.dram.base + contents.dram.bytes, PAGE)
    scratch = end + APART // 2
    operations = replace_averages(held, machine, constants, scratch)
    maps = contents.dram.base
    layout = Layout(
        maps,
        constants.base - maps,
        tuple(port.bound(machine) for port in ports.inputs),
        tuple(port.bound(machine) for port in ports.outputs if not port.softmax),
    )
    uses = [use for at, each in enumerate(operations) for use in _uses(at, each, machine)]
    used = [use for use in uses if maps <= use.place.address < constants.base]
    places = dict(place_cubes(used, layout))
    map_bytes = layout.map_bytes
    for use in uses:
        if use.place.address >= scratch:
            offset = layout.map_bytes + use.place.address - scratch
            places[use.operation, use.name] = MAPS, offset
            map_bytes = max(map_bytes, offset + use.place.size)
    located = [_locate_cubes(at, each, places, constants.base, machine) for at, each in enumerate(operations)]
    luts = tuple(dict.fromkeys(each.lut for each in located if each.lut is not None))
    numbered = (_add_table(each, luts) for each in located)
    return Built(tuple(numbered), luts, bytes(constants.image), align(max(map_bytes, 1), PAGE))


def _expect_expressible(held: Sequence[Described]) -> Sequence[Described]:
    """The same. Raises ArtefactError (E506) for what the firmware cannot set."""
    for each in held:
        if each.mixed:
            reason = f"{each.mixed} takes one operand from memory and one from a register"
            limit = "both from the same: descriptors have one mode a unit"
            raise ArtefactError("E506", reason, op="SDP", limit=limit, remedy="export as nvdla-trace or c")
    return held


def _constants(program: Program, contents: Contents) -> Constants:
    """The image of weights, which can be extended."""
    if len(contents.dram.images) != 1 or contents.dram.images[0].file not in program.files:
        raise damage_error("dram.images")
    image = contents.dram.images[0]
    return Constants(contents.machine, image.address, bytearray(image.data(program.files)))


def _uses(at: int, each: Described, machine: Machine) -> list[Use]:
    """The cubes in memory that an operation uses, those read first."""
    found = cubes(each.op, each.surfaces, machine.atom_bytes, lambda _, cube: cube.offset)
    uses = [Use(at, name, place, name == RESULT) for name, place in found]
    return sorted(uses, key=lambda use: use.writes)


def _locate_cubes(
    at: int, each: Described, places: Mapping[tuple[int, str], tuple[int, int]], weights: int, machine: Machine
) -> Described:
    """The operation, its cubes with sizes and with addresses by index and offset."""
    found = cubes(each.op, each.surfaces, machine.atom_bytes, lambda _, cube: cube.offset)
    sizes = {name: place.size for name, place in found}
    changed: dict[str, of.DataCube] = {}
    for name, cube in each.cubes.items():
        memory, offset = places.get((at, name), (WEIGHTS, cube.offset - weights))
        changed[name] = replace(cube, address=memory, offset=offset, size=sizes.get(name, cube.size))
    return replace(each, surfaces=replace(each.surfaces, **changed))


def _add_table(each: Described, luts: Sequence[of.Lut]) -> Described:
    return each if each.lut is None else replace(each, op=replace(each.op, lut=luts.index(each.lut)))


def _engine_lists(built: Built, machine: Machine, data: int) -> list[tuple[str, int, bytes]]:
    """The lists of an engine's task in address order: name, sub-interface and bytes."""
    common = graph([_accesses(each, machine) for each in built.operations])
    heads = tuple(
        next((at for at, each in enumerate(common) if each.engine == engine), of.NONE)
        for engine in range(len(of.ENGINES))
    )
    network = of.NetworkDescriptor(
        dependencies=data + 1, operations=data + 2, surfaces=data + 3, luts=data + 4, heads=heads,
        operation_count=len(common), lut_count=len(built.luts), address_count=data + 6,
    )  # fmt: skip
    operations = b"".join(pack(each.op).ljust(of.OPERATION_BYTES, b"\0") for each in built.operations)
    surfaces = b"".join(pack(each.surfaces).ljust(of.SURFACE_BYTES, b"\0") for each in built.operations)
    return [
        ("addr0", schema.ADDRESSES, pack(network)),
        ("dep_graph", schema.DEPENDENCIES, b"".join(map(pack, common))),
        ("op_list", schema.OPERATIONS, operations),
        ("surf_list", schema.SURFACES, surfaces),
        ("lut_list", schema.LUTS, b"".join(map(pack, built.luts or (of.Lut(),)))),
    ]


def _accesses(each: Described, machine: Machine) -> Accesses:
    found = list(cubes(each.op, each.surfaces, machine.atom_bytes, by_memory))
    return Accesses.of(each.engine, found, behind=each.behind)


def _cpu_lists(
    softmax: Sequence[BoundPort], machine: Machine, data: int, base: int
) -> list[tuple[str, int, bytes]]:
    """The lists of the CPU's task: a softmax for every output that ends in one; base: start of the maps."""
    network = emulation.EmulatedNetwork(operations=data + 1, buffers=data + 2, operation_count=len(softmax))
    operations: list[bytes] = []
    buffers: list[bytes] = []
    for port in softmax:
        place = port.move.place
        floating = place.precision == "fp16"
        given, taken = (1.0, 1.0) if floating else (port.scale or 1.0, SOFTMAX_SCALE)
        operations.append(pack(emulation.EmulatedOperation(input_scale=given, output_scale=taken)))
        buffer = emulation.EmulatedBuffer(
            address=MAPS, offset=place.address - base, size=port.move.bytes(machine),
            format=emulation.FP16 if floating else emulation.FORMATS[machine.atom_bytes],
            channels=port.move.map_shape[0], line_stride=place.line_stride, surface_stride=place.surface_stride,
        )  # fmt: skip
        result = replace(buffer, address=port.memory, offset=0)
        buffers.append(pack(emulation.EmulatedBuffers(source=buffer, result=result)))
    return [
        ("addr0", schema.ADDRESSES, pack(network)),
        ("op_list", schema.OPERATIONS, b"".join(operations)),
        ("op_buf_list", schema.SURFACES, b"".join(buffers)),
    ]


def graph(operations: Sequence[Accesses]) -> list[Common]:
    """The dependencies of operations, given in an order that computes correct results."""
    edges = _Edges(operations)
    edges.chains()
    edges.hazards(dependencies_of(operations))
    edges.engines()
    return edges.result()


class _Edges:
    """Collects the edges of the graph."""

    def __init__(self, operations: Sequence[Accesses]) -> None:
        self.operations = operations
        self.consumers: list[dict[int, tuple[int, int]]] = [{} for _ in operations]
        """By operation and engine: the consumer and its event."""
        self.parents: dict[int, int] = {}
        self.waits: list[dict[int, int]] = [{} for _ in operations]
        """By operation and engine: the last operation that must have ended before it is enabled."""

    def chains(self) -> None:
        """Edges through the pipe: a consumer waits until its producer is programmed, which waits until that is
        enabled.
        """
        for at, each in enumerate(self.operations):
            if each.behind:
                self.consumers[at - 1][each.engine] = (at, PROGRAMMED)
                self.parents[at] = at - 1

    def hazards(self, needed: Sequence[Needed]) -> None:
        """Edges across engines: an operation waits for the last operation of each engine that it depends on."""
        for at, each in enumerate(self.operations):
            before = needed[at].to_read | needed[at].to_write
            for other in sorted(before):
                self.waits[at][self.operations[other].engine] = other
            for engine, other in self.waits[at].items():
                if engine != each.engine and each.engine not in self.consumers[other]:
                    self.consumers[other][each.engine] = (at, COMPLETED)

    def engines(self) -> None:
        """Edges between successive operations of each engine."""
        for engine in range(len(ENGINES)):
            own = [at for at, each in enumerate(self.operations) if each.engine == engine]
            for first, second in pairwise(own):
                self.consumers[first][engine] = (second, self._event(first, second))

    def _event(self, first: int, second: int) -> int:
        """What the second of two neighbours waits for: the first's end if they share memory, else its start.

        Waiting for the first to be programmed is not enough: the consumer of the second's result could enable the
        second first, and the firmware, which assumes that the group enabled last ends last, would then use the
        groups in another order than the hardware.
        """
        engine = self.operations[second].engine
        return COMPLETED if self.waits[second].get(engine) == first else ENABLED

    def result(self) -> list[Common]:
        """The descriptors, each with its number of incoming edges."""
        incoming = [0] * len(self.operations)
        for each in self.consumers:
            for consumer, _ in each.values():
                incoming[consumer] += 1
        for parent in self.parents.values():
            incoming[parent] += 1
        return [self._common_descriptor(at, count) for at, count in enumerate(incoming)]

    def _common_descriptor(self, at: int, count: int) -> Common:
        common = Common(index=at, engine=self.operations[at].engine, dependency_count=count)
        for engine, (consumer, event) in self.consumers[at].items():
            common = replace(common, **{ENGINES[engine].lower(): Consumer(index=consumer, event=event)})
        parent = self.parents.get(at, NONE)
        event = ENABLED if parent != NONE else COMPLETED
        return replace(common, fused_parent=Consumer(index=parent, event=event))


DUMMIES = {schema.DLA: 1, schema.EMU: 3}
"""Number of dummy memories at the end of a task's address list."""
WAIT, SIGNAL = 0, 1
"""What a task does with an event."""


class _Memories:
    """Builds a loadable: first data (a dummy, weights, maps, inputs and outputs), then the tasks' lists."""

    def __init__(self, weights: bytes, map_bytes: int, ports: Ports, machine: Machine) -> None:
        self.memories: list[schema.Memory] = []
        self.allocate(PAGE)
        self.blobs: list[schema.Blob] = []
        self.tasks: list[schema.Task] = []
        self.events: list[schema.Event] = []
        self.allocate_blob("weights", weights)
        self.allocate(map_bytes)
        for role, found in ((schema.INPUT, ports.inputs), (schema.OUTPUT, ports.outputs)):
            for number, port in enumerate(found):
                position = len(self.memories) - FIRST_BOUND
                self.allocate(port.move.bytes(machine), role, number, position)
        both = enumerate((*ports.inputs, *ports.outputs))
        self.tensors = tuple(port.tensor_desc(number, machine) for number, port in both)
        self.data = len(self.memories) - 1
        """The number of memories in every task's address list."""

    def allocate(self, size: int, role: int = 0, bind: int = 0, tensor: int = 0) -> int:
        """Adds a memory, returns its id; bind: number of the input or output; tensor: tensor list position."""
        return self._add(size, role, bind_id=bind, tensor_desc_id=tensor)

    def allocate_blob(self, name: str, data: bytes, interface: int = 0, sub_interface: int = 0) -> int:
        """Adds a memory filled with a blob and returns its id."""
        version = schema.VERSIONS.get(interface, (0, 0, 0))
        self.blobs.append(
            schema.Blob(
                name=name, size=len(data), interface=interface, sub_interface=sub_interface, version=version,
                data=data,
            )
        )  # fmt: skip
        return self._add(max(len(data), 1), schema.SET, contents=(name,), offsets=(0,))

    def _add(self, size: int, flags: int, **more: Any) -> int:
        number, flags = len(self.memories), schema.ALLOCATE | flags
        self.memories.append(schema.Memory(id=number, flags=flags, size=size, alignment=PAGE, **more))
        return number

    def task(self, interface: int, lists: Sequence[tuple[str, int, bytes]]) -> None:
        """Adds a task with its lists, the network's description first; it waits for the previous task."""
        number = len(self.tasks)
        own = [self.allocate_blob(f"task-{number}-{name}", data, interface, kind) for name, kind, data in lists]
        own += [self.allocate(PAGE) for _ in range(DUMMIES[interface])]
        waits = (self._event(number, WAIT),) if self.tasks else ()
        signals = (self._event(number + 1, SIGNAL),)
        addresses = (own[0], *range(1, self.data + 1), *own[1:])
        self.tasks.append(
            schema.Task(
                id=number, interface=interface, instance=-1, address_list=addresses,
                pre_actions=waits, post_actions=signals,
            )
        )  # fmt: skip

    def _event(self, value: int, action: int) -> int:
        number = len(self.events)
        self.events.append(schema.Event(id=number, val=value, op=action))
        return number

    def loadable(self) -> schema.Loadable:
        """The loadable; addresses are those of whole memories."""
        return schema.Loadable(
            task_list=tuple(self.tasks),
            memory_list=tuple(self.memories),
            address_list=tuple(
                schema.Address(id=each.id, mem_id=each.id, size=each.size) for each in self.memories
            ),
            event_list=tuple(self.events),
            blobs=tuple(self.blobs),
            tensor_desc_list=self.tensors,
            submit_list=tuple(schema.Submit(id=each.id, task_id=(each.id,)) for each in self.tasks),
        )
