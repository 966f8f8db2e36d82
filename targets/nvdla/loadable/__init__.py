"""Loadables, the files that NVDLA's stock runtime and kernel driver run: tasks, and how the firmware runs them.

A task has descriptors, and a list of addresses. The firmware programs operations into the two register groups of
each engine, and enables them once their dependencies are resolved: completion, programming, or enabling of another
operation. An engine's tables are not double-buffered: an operation with tables other than those in use is
programmed once the previous one has ended. The result is a register program with its waiting points.

Source: The loadable (facts), Rules the firmware follows; checked line by line against its own logs of three
loadables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.nvdla.firmware import Firmware, RegisterWrite, has_rdma, writes_of
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.structures import size, unpack
from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.loadable.schema import read, write
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import Command, Wait, Write, register_map


@frozen
class TaskDescriptors:
    """The descriptors of a task."""

    network: of.NetworkDescriptor
    common: tuple[of.Common, ...]
    operations: tuple[of.Operation, ...]
    surfaces: tuple[Any, ...]
    luts: tuple[of.Lut, ...]


def engine_tasks(loadable: schema.Loadable) -> list[schema.Task]:
    """The tasks that the engine runs; the others run on the CPU."""
    return [each for each in loadable.task_list if each.interface == schema.DLA]


def read_task(loadable: schema.Loadable, task: schema.Task) -> TaskDescriptors:
    """The descriptors of a DLA task. Raises ArtefactError (E502) for a missing or invalid one."""
    network = unpack(of.NetworkDescriptor, content(loadable, task, 0))
    count = network.operation_count
    graph = content(loadable, task, network.dependencies)
    common = tuple(unpack(of.Common, graph, each * size(of.Common)) for each in range(count))
    kinds = [_kinds(each) for each in common]
    lists = (content(loadable, task, network.operations), content(loadable, task, network.surfaces))
    operations = tuple(unpack(kind, lists[0], of.OPERATION_BYTES * at) for at, (kind, _) in enumerate(kinds))
    surfaces = tuple(unpack(kind, lists[1], of.SURFACE_BYTES * at) for at, (_, kind) in enumerate(kinds))
    tables = content(loadable, task, network.luts) if network.lut_count else b""
    luts = tuple(unpack(of.Lut, tables, each * size(of.Lut)) for each in range(network.lut_count))
    return TaskDescriptors(network, common, operations, surfaces, luts)


def _kinds(common: of.Common) -> tuple[type[of.Operation], type]:
    if common.engine not in of.OPERATIONS:
        known = ", ".join(of.ENGINES[each] for each in of.OPERATIONS)
        name = of.ENGINES[common.engine] if common.engine < len(of.ENGINES) else str(common.engine)
        raise ArtefactError("E502", f"operation {common.index} of {name}", limit=known)
    return of.OPERATIONS[common.engine]


def content(loadable: schema.Loadable, task: schema.Task, index: int) -> bytes:
    """The blob that an entry of the task's address list points to."""
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
    """Maps an index of the task's address list to an address; base: the address of a memory by its id."""

    def address(index: int) -> int:
        entry = _entry(loadable, task, index)
        return base(entry.mem_id) + entry.offset

    return address


BLOCKS: Mapping[int, tuple[str, ...]] = {
    of.CONV: ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA"),
    of.SDP: ("SDP", "SDP_RDMA"),
    of.PDP: ("PDP", "PDP_RDMA"),
    of.CDP: ("CDP", "CDP_RDMA"),
    of.RUBIK: ("RBK",),
}
"""The order in which pointers are set; the second of two blocks is the RDMA."""
PAIR = 2


@dataclass
class _Group:
    """A register group with its operation."""

    index: int
    group: int
    rdma: int
    active: bool = False
    pending: bool = False
    """Whether it waits for the engine's tables before it is programmed."""
    lut: int = of.NONE


@dataclass
class _Engine:
    """The firmware's state of an engine."""

    groups: dict[int, _Group] = field(default_factory=dict[int, _Group])
    rdma_busy: set[int] = field(default_factory=set[int])
    consumer: int = 0
    rdma_consumer: int = 0
    last: int = of.NONE
    """The operation prepared last."""
    last_group: int = 1
    """The group enabled last; the other one ends first."""


class _FirmwareRun:
    """The firmware running a task.

    Enabled operations are assumed to have ended when the next events are handled. in_order: except those that take
    their input from another operation that is not enabled yet. (The logs used for comparison are not in order.)
    """

    def __init__(
        self, task: TaskDescriptors, machine: Machine, address: Callable[[int], int], *, in_order: bool = False
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
        """All register writes, and the interrupts handled between them.

        Raises ArtefactError (E502) for a task that never ends.
        """
        for engine in BLOCKS:
            head = self._task.network.heads[engine]
            if head != of.NONE:
                self._submit(engine, head)
                self._submit_next(engine)
        done = 0
        while done < len(self._task.common):
            ended = [each.index for engine in BLOCKS for each in self._active_groups(engine)]
            if not ended:
                raise ArtefactError(
                    "E502", f"{done} of {len(self._task.common)} operations end", limit="all of them"
                )
            for index in ended:
                done += 1
                self._complete(index, last=done == len(self._task.common))
        return self._steps

    def _active_groups(self, engine: int) -> Iterator[_Group]:
        state = self._engines[engine]
        for number in (1 - state.last_group, state.last_group):
            group = state.groups.get(number)
            if group is not None and group.active and self._ends(group.index):
                yield group

    def _ends(self, index: int) -> bool:
        parent = self._task.common[index].fused_parent.index
        if not self._in_order or parent == of.NONE:
            return True
        return parent in self._enabled and self._ends(parent)

    def _submit(self, engine: int, index: int) -> None:
        """Allocates a free group and programs the operation into it.

        Raises ArtefactError (E502) for an operation of another engine, or an invalid index.
        """
        if not 0 <= index < len(self._task.common) or self._task.common[index].engine != engine:
            raise ArtefactError(
                "E502", f"operation {index} follows on engine {engine}", limit="one of that engine"
            )
        state = self._engines[engine]
        if len(state.groups) == PAIR:
            return
        group = 1 - next(iter(state.groups)) if state.groups else state.consumer
        rdma = 1 - next(iter(state.rdma_busy)) if state.rdma_busy else state.rdma_consumer
        state.groups[group] = _Group(index, group, rdma)
        state.last = index
        if self._needs_rdma(index):
            state.rdma_busy.add(rdma)
        state.groups[group].lut = getattr(self._task.operations[index], "lut", of.NONE)
        if self._tables_are_free(state, state.groups[group]):
            self._set_up(engine, state.groups[group])
        else:
            state.groups[group].pending = True

    def _tables_are_free(self, state: _Engine, group: _Group) -> bool:
        """Whether the engine's tables may be written: no other group uses different ones."""
        others = (each.lut for each in state.groups.values() if each is not group)
        return group.lut == of.NONE or all(each in (of.NONE, group.lut) for each in others)

    def _set_up(self, engine: int, group: _Group) -> None:
        """Programs the operation of a group, and enables it if it waits for nothing."""
        group.pending = False
        self._programming = group.index
        self._set_producer(engine, group)
        self._steps += self._program(group.index)
        self._notify(group.index, of.PROGRAMMED)
        self._programming = of.NONE
        if self._waiting[group.index] == 0:
            self._enable(group.index)

    def _submit_next(self, engine: int) -> None:
        """Submits the next operation of an engine, if a group is free."""
        last = self._engines[engine].last
        if last != of.NONE:
            index = self._task.common[last].consumers[engine].index
            if index != of.NONE:
                self._submit(engine, index)

    def _needs_rdma(self, index: int) -> bool:
        return has_rdma(self._task.operations[index], self._task.surfaces[index])

    def _set_producer(self, engine: int, group: _Group) -> None:
        for block in BLOCKS[engine]:
            self._steps.append((f"{block}.S_POINTER", group.rdma if block.endswith("_RDMA") else group.group))

    def _program(self, index: int) -> Iterator[RegisterWrite]:
        state = self._engines[self._task.common[index].engine]
        lut = next(each.lut for each in state.groups.values() if each.index == index)
        table = self._task.luts[lut] if 0 <= lut < len(self._task.luts) else None
        yield from writes_of(self._firmware, self._task.operations[index], self._task.surfaces[index], table)

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
        """Enables an operation that is programmed and has no dependencies left."""
        engine = self._task.common[index].engine
        groups = self._engines[engine].groups.values()
        held = [each for each in groups if each.index == index and not (each.active or each.pending)]
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
        self._engines[engine].last_group = held[0].group
        self._enabled.add(index)
        self._notify(index, of.ENABLED)

    def _complete(self, index: int, *, last: bool) -> None:
        """Frees the group of an ended operation, and continues with what waited for it."""
        engine = self._task.common[index].engine
        state = self._engines[engine]
        group = next(each for each in state.groups.values() if each.index == index)
        self._steps.append(Wait(of.ENGINES[engine] if engine == of.RUBIK else BLOCKS[engine][0], group.group))
        del state.groups[group.group]
        state.consumer = 1 - group.group
        if self._needs_rdma(index):
            state.rdma_busy.discard(group.rdma)
            state.rdma_consumer = 1 - group.rdma
        self._notify(index, of.COMPLETED)
        for each in state.groups.values():
            if each.pending:
                self._set_up(engine, each)
        if not last:
            self._submit_next(engine)


def run_of(
    loadable: schema.Loadable, task: schema.Task, machine: Machine, base: Callable[[int], int]
) -> list[Command]:
    """The firmware's run of a task, as a register program with its waiting points.

    base: the address of a memory by its id. Raises ArtefactError (E502) for invalid descriptors.
    """
    registers, address = register_map(machine.registers), addresses(loadable, task, base)
    steps = _FirmwareRun(read_task(loadable, task), machine, address, in_order=True).steps()
    return [step if isinstance(step, Wait) else Write(registers[step[0]].address, step[1]) for step in steps]


def register_writes(
    loadable: schema.Loadable, machine: Machine, base: Callable[[int], int]
) -> list[list[RegisterWrite]]:
    """The register writes of the stock firmware, for every task of the engine.

    base: the address of a memory by its id. Raises ArtefactError (E502) for invalid descriptors.
    """
    found: list[list[RegisterWrite]] = []
    for task in engine_tasks(loadable):
        address = addresses(loadable, task, base)
        steps = _FirmwareRun(read_task(loadable, task), machine, address).steps()
        found.append([step for step in steps if not isinstance(step, Wait)])
    return found


__all__ = [
    "TaskDescriptors", "addresses", "content", "engine_tasks", "read", "read_task", "register_writes", "run_of",
    "write",
]  # fmt: skip
