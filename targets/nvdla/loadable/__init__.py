"""Loadables, the flatbuffers that NVDLA's stock runtime and kernel driver run: read, written and interpreted."""

from __future__ import annotations

from collections.abc import Callable

from npuc.targets.nvdla.firmware import RegisterWrite
from npuc.targets.nvdla.loadable import flatbuffer, schema
from npuc.targets.nvdla.loadable import task as tasks
from npuc.targets.nvdla.loadable.scheduling import FirmwareRun
from npuc.targets.nvdla.machine.commands import Wait
from npuc.targets.nvdla.machine.parameters import Machine


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
    found: list[list[RegisterWrite]] = []
    for task in tasks.engine_tasks(loadable):
        address = tasks.addresses(loadable, task, base)
        steps = FirmwareRun(tasks.read(loadable, task), machine, address).steps()
        found.append([step for step in steps if not isinstance(step, Wait)])
    return found
