"""A DLA task of a loadable: its descriptors and addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.structures import size, unpack
from npuc.targets.nvdla.loadable import schema


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


def read(loadable: schema.Loadable, task: schema.Task) -> TaskDescriptors:
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
