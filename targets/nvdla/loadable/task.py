"""A DLA task of a loadable: its descriptors, and how the firmware runs them, as register writes.

The firmware programs operations into the two register groups of each engine and enables them as their dependencies
are resolved: by completion, by programming, or by the enabling of another operation. Source: The loadable (facts),
Rules the firmware follows; checked line by line against its own logs of three loadables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npuc.errors import ArtefactError
from npuc.targets.nvdla.commands import Wait
from npuc.targets.nvdla.loadable import descriptors as of
from npuc.targets.nvdla.loadable import firmware, schema
from npuc.targets.nvdla.loadable.firmware import Firmware, RegisterWrite
from npuc.targets.nvdla.loadable.structures import size, unpack
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.registers import register_map

BLOCKS: Mapping[int, tuple[str, ...]] = {
    of.CONV: ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA"),
    of.SDP: ("SDP", "SDP_RDMA"),
    of.PDP: ("PDP", "PDP_RDMA"),
    of.CDP: ("CDP", "CDP_RDMA"),
}
"""In the order in which their pointers are set; the second of two is the RDMA."""
PAIR = 2


@dataclass(frozen=True)
class Task:
    """The descriptors of a task."""

    network: of.Network
    common: tuple[of.Common, ...]
    operations: tuple[of.Operation, ...]
    surfaces: tuple[Any, ...]
    luts: tuple[of.Lut, ...]


def read(loadable: schema.Loadable, task: schema.Task) -> Task:
    """The descriptors of a DLA task. Raises ArtefactError (E502) where one is missing or makes no sense."""
    network = unpack(of.Network, _content(loadable, task, 0))
    count = network.operation_count
    graph = _content(loadable, task, network.dependencies)
    common = tuple(unpack(of.Common, graph, each * size(of.Common)) for each in range(count))
    kinds = [_kinds(each) for each in common]
    lists = (_content(loadable, task, network.operations), _content(loadable, task, network.surfaces))
    operations = tuple(unpack(kind, lists[0], of.OPERATION_BYTES * at) for at, (kind, _) in enumerate(kinds))
    surfaces = tuple(unpack(kind, lists[1], of.SURFACE_BYTES * at) for at, (_, kind) in enumerate(kinds))
    tables = _content(loadable, task, network.luts) if network.lut_count else b""
    luts = tuple(unpack(of.Lut, tables, each * size(of.Lut)) for each in range(network.lut_count))
    return Task(network, common, operations, surfaces, luts)


def _kinds(common: of.Common) -> tuple[type[of.Operation], type]:
    if common.engine not in of.OPERATIONS:
        known = ", ".join(of.ENGINES[each] for each in of.OPERATIONS)
        name = of.ENGINES[common.engine] if common.engine < len(of.ENGINES) else str(common.engine)
        raise ArtefactError("E502", f"operation {common.index} of {name}", limit=known)
    return of.OPERATIONS[common.engine]


def _content(loadable: schema.Loadable, task: schema.Task, index: int) -> bytes:
    """The blob behind an entry of the task's address list."""
    address = _entry(loadable, task, index)
    memory = _by_id(loadable.memory_list, address.mem_id, "memory")
    blobs = {each.name: each.data for each in loadable.blobs}
    for name, offset in zip(memory.contents, memory.offsets, strict=False):
        if offset == address.offset and name in blobs:
            return blobs[name]
    reason = f"memory {memory.id} has no content at {address.offset:#x}"
    raise ArtefactError("E502", reason, limit="a blob by name")


def _entry(loadable: schema.Loadable, task: schema.Task, index: int) -> schema.Address:
    """An entry of the task's address list."""
    if not 0 <= index < len(task.address_list):
        limit = f"{len(task.address_list)} addresses"
        raise ArtefactError("E502", f"address {index} of task {task.id}", limit=limit)
    return _by_id(loadable.address_list, task.address_list[index], "address")


def _by_id(entries: Sequence[Any], number: int, what: str) -> Any:
    for each in entries:
        if each.id == number:
            return each
    raise ArtefactError("E502", f"no {what} {number}", limit=", ".join(str(each.id) for each in entries))


def addresses(loadable: schema.Loadable, task: schema.Task, base: Callable[[int], int]) -> Callable[[int], int]:
    """The address of an entry of the task's address list; base: that of a memory by its id."""

    def address(index: int) -> int:
        entry = _entry(loadable, task, index)
        return base(entry.mem_id) + entry.offset

    return address


@dataclass
class _Group:
    """A register group that holds an operation."""

    index: int
    group: int
    rdma: int
    active: bool = False


@dataclass
class _Engine:
    """What the firmware keeps of an engine."""

    groups: dict[int, _Group] = field(default_factory=dict[int, _Group])
    rdma_busy: set[int] = field(default_factory=set[int])
    consumer: int = 0
    rdma_consumer: int = 0
    last: int = of.NONE
    """The operation that was prepared last."""


class Runner:
    """The firmware on a task.

    Whatever is enabled has ended when the next events are handled; in order: unless it takes its input from
    another operation, which is not enabled yet. (The logs that this is compared with are not in order.)
    """

    def __init__(
        self, task: Task, machine: Machine, address: Callable[[int], int], *, in_order: bool = False
    ) -> None:
        self._task = task
        self._in_order = in_order
        self._enabled: set[int] = set()
        self._firmware = Firmware(register_map(machine.registers), machine.atom_bytes, address)
        self._waiting = [each.dependency_count for each in task.common]
        self._engines = {each: _Engine() for each in BLOCKS}
        self._steps: list[RegisterWrite | Wait] = []
        self._programming = of.NONE

    def steps(self) -> list[RegisterWrite | Wait]:
        """All register writes, and the interrupts that are handled between them.

        Raises ArtefactError (E502) for a task that never ends.
        """
        for engine in BLOCKS:
            head = self._task.network.heads[engine]
            if head != of.NONE:
                self._submit(engine, head)
                self._submit_next(engine)
        done = 0
        while done < len(self._task.common):
            ended = [each.index for engine in BLOCKS for each in self._active(engine)]
            if not ended:
                raise ArtefactError(
                    "E502", f"{done} of {len(self._task.common)} operations end", limit="all of them"
                )
            for index in ended:
                done += 1
                self._complete(index, last=done == len(self._task.common))
        return self._steps

    def _active(self, engine: int) -> Iterator[_Group]:
        groups = self._engines[engine].groups
        return (groups[each] for each in sorted(groups) if groups[each].active and self._ends(groups[each].index))

    def _ends(self, index: int) -> bool:
        parent = self._task.common[index].fused_parent.index
        return not self._in_order or parent in (of.NONE, *self._enabled)

    def _submit(self, engine: int, index: int) -> None:
        """Takes a free group and programs the operation into it."""
        state = self._engines[engine]
        if len(state.groups) == PAIR:
            return
        group = 1 - next(iter(state.groups)) if state.groups else state.consumer
        rdma = 1 - next(iter(state.rdma_busy)) if state.rdma_busy else state.rdma_consumer
        state.groups[group] = _Group(index, group, rdma)
        state.last = index
        if self._needs_rdma(index):
            state.rdma_busy.add(rdma)
        self._programming = index
        self._set_producer(engine, state.groups[group])
        self._steps += self._program(index)
        self._notify(index, of.PROGRAMMED)
        self._programming = of.NONE
        if self._waiting[index] == 0:
            self._enable(index)

    def _submit_next(self, engine: int) -> None:
        """The next operation of the same engine, if a group is free."""
        last = self._engines[engine].last
        if last != of.NONE:
            index = self._task.common[last].consumers[engine].index
            if index != of.NONE:
                self._submit(engine, index)

    def _needs_rdma(self, index: int) -> bool:
        op, surfaces = self._task.operations[index], self._task.surfaces[index]
        if isinstance(op, of.Sdp):
            return firmware.sdp_needs_rdma(op, surfaces)
        return isinstance(op, of.Cdp) or (isinstance(op, of.Pdp) and surfaces.source.type != of.HARDWARE)

    def _set_producer(self, engine: int, group: _Group) -> None:
        for block in BLOCKS[engine]:
            self._steps.append((f"{block}.S_POINTER", group.rdma if block.endswith("_RDMA") else group.group))

    def _program(self, index: int) -> Iterator[RegisterWrite]:
        op, surfaces = self._task.operations[index], self._task.surfaces[index]
        if isinstance(op, of.Convolution):
            yield from firmware.convolution(self._firmware, op, surfaces)
            return
        yield "GLB.S_INTR_MASK", 0
        if isinstance(op, of.Pdp):
            yield from firmware.pdp(self._firmware, op, surfaces)
            return
        lut = self._task.luts[op.lut] if 0 <= op.lut < len(self._task.luts) else None
        if isinstance(op, of.Sdp):
            yield from firmware.sdp(self._firmware, op, surfaces, lut)
        else:
            yield from firmware.cdp(self._firmware, op, surfaces, lut)

    def _notify(self, index: int, event: int) -> None:
        """Resolves the dependencies on an event of an operation."""
        common = self._task.common[index]
        for consumer in (*common.consumers, common.fused_parent):
            if consumer.index == of.NONE or consumer.event != event:
                continue
            if not 0 <= consumer.index < len(self._waiting) or self._waiting[consumer.index] == 0:
                reason = f"operation {index} names the consumer {consumer.index}, which waits for nothing more"
                raise ArtefactError("E502", reason, limit="dependency_count is the number of incoming edges")
            self._waiting[consumer.index] -= 1
            if self._waiting[consumer.index] == 0:
                self._enable(consumer.index)

    def _enable(self, index: int) -> None:
        """Enables an operation that is programmed and waits for nothing."""
        engine = self._task.common[index].engine
        held = [each for each in self._engines[engine].groups.values() if each.index == index and not each.active]
        if not held or index == self._programming:
            return
        self._set_producer(engine, held[0])
        blocks = BLOCKS[engine]
        if len(blocks) == PAIR:
            blocks = (*([blocks[1]] if self._needs_rdma(index) else []), blocks[0])
        if engine == of.CDP:
            blocks = ("CDP_RDMA", "CDP")
        self._steps += [(f"{block}.D_OP_ENABLE", 1) for block in blocks]
        held[0].active = True
        self._enabled.add(index)
        self._notify(index, of.ENABLED)

    def _complete(self, index: int, *, last: bool) -> None:
        """Frees the group of an operation that has ended, and goes on with what waited for it."""
        engine = self._task.common[index].engine
        state = self._engines[engine]
        group = next(each for each in state.groups.values() if each.index == index)
        self._steps.append(Wait(BLOCKS[engine][0], group.group))
        del state.groups[group.group]
        state.consumer = 1 - group.group
        if self._needs_rdma(index):
            state.rdma_busy.discard(group.rdma)
            state.rdma_consumer = 1 - group.rdma
        self._notify(index, of.COMPLETED)
        if not last:
            self._submit_next(engine)
