"""Loadables, the flatbuffers that NVDLA's stock runtime and kernel driver run: read, written and interpreted."""

from __future__ import annotations

from collections.abc import Callable

from npuc.targets.nvdla.loadable import flatbuffer, schema
from npuc.targets.nvdla.loadable import task as tasks
from npuc.targets.nvdla.loadable.firmware import RegisterWrite
from npuc.targets.nvdla.loadable.scheduling import Runner
from npuc.targets.nvdla.machine.commands import Command, Wait, Write
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import register_map


def read(data: bytes) -> schema.Loadable:
    """The tables of a loadable. Raises ArtefactError (E502) for other or damaged data."""
    return flatbuffer.read(schema.Loadable, data, schema.IDENTIFIER)


def write(loadable: schema.Loadable) -> bytes:
    """The file of a loadable."""
    return flatbuffer.write(loadable, schema.IDENTIFIER)


def register_writes(
    loadable: schema.Loadable, machine: Machine, base: Callable[[int], int]
) -> list[list[RegisterWrite]]:
    """The register writes of the stock firmware, for every task of the engine.

    base: the address of a memory by its id. Raises ArtefactError (E502) for invalid descriptors.
    """
    steps = (_steps(loadable, each, machine, base, in_order=False) for each in tasks.engine_tasks(loadable))
    return [[step for step in task if not isinstance(step, Wait)] for task in steps]


def commands(loadable: schema.Loadable, machine: Machine, base: Callable[[int], int]) -> list[Command]:
    """The stock firmware's run of all tasks of the engine, as a register program with its waiting points.

    base: the address of a memory by its id. Raises ArtefactError (E502) for invalid descriptors.
    """
    registers = register_map(machine.registers)
    return [
        step if isinstance(step, Wait) else Write(registers[step[0]].address, step[1])
        for task in tasks.engine_tasks(loadable)
        for step in _steps(loadable, task, machine, base, in_order=True)
    ]


def _steps(
    loadable: schema.Loadable, task: schema.Task, machine: Machine, base: Callable[[int], int], *, in_order: bool
) -> list[RegisterWrite | Wait]:
    address = tasks.addresses(loadable, task, base)
    return Runner(tasks.read(loadable, task), machine, address, in_order=in_order).steps()
