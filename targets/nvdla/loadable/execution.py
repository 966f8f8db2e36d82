"""Runs a loadable like the stock runtime and firmware, on the functional model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.nvdla.formats.alignment import aligned
from npuc.targets.nvdla.loadable import emulation, schema
from npuc.targets.nvdla.loadable import task as tasks
from npuc.targets.nvdla.loadable.scheduling import run_of
from npuc.targets.nvdla.loadable.structures import size, unpack
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model import Memory, Nvdla

BASE = 0x8000_0000
DTYPES = {emulation.INT8: np.int8, emulation.INT8_SMALL: np.int8, emulation.FP16: np.float16}


@frozen
class Executed:
    """Memory after all tasks."""

    loadable: schema.Loadable
    memory: Memory
    bases: Mapping[int, int]

    def read(self, memory: int, offset: int, count: int) -> bytes:
        """Bytes of a memory, by its id."""
        return self.memory.read(self.bases[memory] + offset, count)

    def output(self, name: str) -> bytes:
        """An output's buffer, by the name of its tensor."""
        tensor = next(each for each in self.loadable.tensor_desc_list if each.name == name)
        return self.read(tensor.mem_id, tensor.offset, tensor.size)


def run(loadable: schema.Loadable, machine: Machine, inputs: Mapping[str, bytes]) -> Executed:
    """Runs all tasks on the inputs' buffers, given by tensor name.

    Raises ArtefactError: E502 for invalid descriptors, E503 where the hardware would hang or race.
    """
    bases = _bases(loadable)
    memory = Memory.covering((bases[each.id], max(each.size, 1)) for each in loadable.memory_list)
    blobs = {each.name: each.data for each in loadable.blobs}
    for each in loadable.memory_list:
        for name, offset in zip(each.contents, each.offsets, strict=True):
            memory.write(bases[each.id] + offset, blobs[name])
    named = {each.name: each for each in loadable.tensor_desc_list}
    for name, data in inputs.items():
        memory.write(bases[named[name].mem_id] + named[name].offset, data)
    nvdla = Nvdla(machine, memory)
    tasks_by_id = {each.id: each for each in loadable.task_list}
    for number in (number for each in loadable.submit_list for number in each.task_id):
        task = tasks_by_id[number]
        (_engine if task.interface == schema.DLA else _cpu)(loadable, task, nvdla, bases)
    return Executed(loadable, memory, bases)


def _bases(loadable: schema.Loadable) -> dict[int, int]:
    """The address of every memory, one behind the other."""
    found: dict[int, int] = {}
    at = BASE
    for each in loadable.memory_list:
        found[each.id] = at
        at += aligned(max(each.size, 1), max(each.alignment, schema.ALIGNMENT))
    return found


def _engine(loadable: schema.Loadable, task: schema.Task, nvdla: Nvdla, bases: Mapping[int, int]) -> None:
    """Runs the firmware's register writes on the functional model."""
    nvdla.execute(run_of(loadable, task, nvdla.machine, bases.__getitem__))


def _cpu(loadable: schema.Loadable, task: schema.Task, nvdla: Nvdla, bases: Mapping[int, int]) -> None:
    """Runs the runtime's emulation. Raises ArtefactError (E502) for anything but softmax."""
    address = tasks.addresses(loadable, task, bases.__getitem__)
    network = unpack(emulation.EmulatedNetwork, tasks.content(loadable, task, 0))
    operations = tasks.content(loadable, task, network.operations)
    buffers = tasks.content(loadable, task, network.buffers)
    for at in range(network.operation_count):
        operation = unpack(emulation.EmulatedOperation, operations, at * size(emulation.EmulatedOperation))
        both = unpack(emulation.EmulatedBuffers, buffers, at * size(emulation.EmulatedBuffers))
        if operation.kind != emulation.SOFTMAX or both.source.format not in DTYPES:
            raise ArtefactError("E502", f"CPU operation {operation.kind}", limit="softmax of int8 or fp16")
        dtype = np.dtype(DTYPES[both.source.format])
        place = address(both.source.address) + both.source.offset
        values = np.frombuffer(nvdla.memory.read(place, both.source.channels * dtype.itemsize), dtype)
        result = emulation.softmax(operation, values)
        nvdla.memory.write(address(both.result.address) + both.result.offset, result.tobytes())
