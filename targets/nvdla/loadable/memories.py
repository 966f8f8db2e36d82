"""The lists of a loadable: memories, addresses, tasks, events, tensors. Ids are positions.

Source: The loadable (facts), as in three loadables of NVDLA's own compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.loadable.places import FIRST_BOUND
from npuc.targets.nvdla.loadable.ports import Ports
from npuc.targets.nvdla.machine.parameters import Machine

PAGE = schema.ALIGNMENT
VERSIONS = {schema.DLA: schema.DLA_VERSION, schema.EMU: schema.EMU_VERSION}
DUMMIES = {schema.DLA: 1, schema.EMU: 3}
"""Number of dummy memories at the end of a task's address list."""
WAIT, SIGNAL = 0, 1
"""What a task does with an event."""


class Memories:
    """Builds a loadable: first data (a dummy, weights, maps, inputs and outputs), then the tasks' lists."""

    def __init__(self, weights: bytes, map_bytes: int, ports: Ports, machine: Machine) -> None:
        self.memories: list[schema.Memory] = []
        self.allocated(PAGE)
        self.blobs: list[schema.Blob] = []
        self.tasks: list[schema.Task] = []
        self.events: list[schema.Event] = []
        self.filled("weights", weights)
        self.allocated(map_bytes)
        for role, found in ((schema.INPUT, ports.inputs), (schema.OUTPUT, ports.outputs)):
            for number, port in enumerate(found):
                position = len(self.memories) - FIRST_BOUND
                self.allocated(port.move.bytes(machine), role, number, position)
        both = enumerate((*ports.inputs, *ports.outputs))
        self.tensors = tuple(port.described(number, machine) for number, port in both)
        self.data = len(self.memories) - 1
        """The number of memories in every task's address list."""

    def allocated(self, size: int, role: int = 0, bind: int = 0, tensor: int = 0) -> int:
        """Adds a memory, returns its id; bind: number of the input or output; tensor: tensor list position."""
        return self._added(size, role, bind_id=bind, tensor_desc_id=tensor)

    def filled(self, name: str, data: bytes, interface: int = 0, sub_interface: int = 0) -> int:
        """Adds a memory filled with a blob and returns its id."""
        version = VERSIONS.get(interface, (0, 0, 0))
        self.blobs.append(
            schema.Blob(
                name=name, size=len(data), interface=interface, sub_interface=sub_interface, version=version,
                data=data,
            )
        )  # fmt: skip
        return self._added(max(len(data), 1), schema.SET, contents=(name,), offsets=(0,))

    def _added(self, size: int, flags: int, **more: Any) -> int:
        number, flags = len(self.memories), schema.ALLOCATE | flags
        self.memories.append(schema.Memory(id=number, flags=flags, size=size, alignment=PAGE, **more))
        return number

    def task(self, interface: int, lists: Sequence[tuple[str, int, bytes]]) -> None:
        """Adds a task with its lists, the network's description first; it waits for the previous task."""
        number = len(self.tasks)
        own = [self.filled(f"task-{number}-{name}", data, interface, kind) for name, kind, data in lists]
        own += [self.allocated(PAGE) for _ in range(DUMMIES[interface])]
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
