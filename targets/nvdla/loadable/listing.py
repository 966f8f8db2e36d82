"""A loadable as text: its contents, and the register writes that the stock firmware makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError
from npuc.system.budget import read_file
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla.formats.pixels import NAMES
from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.loadable.rules import broken_rules
from npuc.targets.nvdla.machine.parameters import FULL, SMALL, Machine
from npuc.targets.nvdla.machine.registers import register_map

SMALL_FEATURE = 37
"""The pixel format of a feature tensor in atoms of 8 bytes."""
FEATURES = {36: "feature data", SMALL_FEATURE: "feature data in atoms of 8 bytes"}
DATA_TYPES = ("unknown", "float", "half", "int16", "int8")
FLAGS = {schema.ALLOCATE: "allocated", schema.SET: "filled", schema.INPUT: "input", schema.OUTPUT: "output"}
INTERFACES = {schema.DLA: "engine", schema.EMU: "CPU"}
REMEDY = "copy the loadable again, or write it again with the compiler that it is from"
REGION = 1 << 32
"""The distance between memories in the listing's addresses: memory n begins at n times this."""


def rows(path: Path) -> list[dict[str, Any]]:
    """One entry per line, like a listing of instructions; `word`: address and value of a register write.

    Raises ArtefactError (E501) for an unreadable file, E502 for a damaged one.
    """
    data = read_file(path, "E501", REMEDY)
    try:
        found = loadables.read(data)
        lines = [*_contents(found), *_broken_rules(found), *_writes(found)]
    except ArtefactError as error:
        raise error.advising(REMEDY) from None
    return [
        {"index": index, "word": word, "text": text, "nodes": [], "tensor": None}
        for index, (word, text) in enumerate(lines)
    ]


def machine_of(loadable: schema.Loadable) -> Machine:
    """The configuration that a loadable is for, as far as the atoms of its tensors tell."""
    small = any(each.pixel_format == SMALL_FEATURE for each in loadable.tensor_desc_list)
    return SMALL if small else FULL


def _contents(loadable: schema.Loadable) -> Iterator[tuple[str, str]]:
    """Tensors, memories, tasks and events."""
    yield "", f"loadable {'.'.join(map(str, loadable.version))}"
    for tensor in loadable.tensor_desc_list:
        yield "", _tensor(tensor)
    for memory in loadable.memory_list:
        flags = ", ".join(name for flag, name in FLAGS.items() if memory.flags & flag)
        filled = ", ".join(f"{name} at {at:#x}" for name, at in zip(memory.contents, memory.offsets, strict=False))
        yield "", f"memory {memory.id}: {memory.size} bytes, {flags}{': ' if filled else ''}{filled}"
    for blob in loadable.blobs:
        yield "", f"blob {blob.name}: {blob.size} bytes"
    for task in loadable.task_list:
        where = INTERFACES.get(task.interface, f"interface {task.interface}")
        waits = f", after events {list(task.pre_actions)}" if task.pre_actions else ""
        yield "", f"task {task.id} on the {where}: addresses {list(task.address_list)}{waits}"


def _tensor(tensor: schema.TensorDesc) -> str:
    kind = DATA_TYPES[tensor.data_type] if tensor.data_type < len(DATA_TYPES) else f"type {tensor.data_type}"
    pixel = tensor.pixel_format
    form = NAMES[pixel] if pixel < len(NAMES) else FEATURES.get(pixel, f"format {pixel}")
    shape = "x".join(str(each) for each in (tensor.n, tensor.c, tensor.h, tensor.w))
    return f"tensor {tensor.id} {tensor.name}: {kind} {shape}, {form}, memory {tensor.mem_id}, {tensor.size} bytes"


def _broken_rules(loadable: schema.Loadable) -> Iterator[tuple[str, str]]:
    """The rules of the stock runtime and firmware that a loadable breaks."""
    with suppress(ArtefactError):
        for rule, where in broken_rules(loadable, machine_of(loadable)):
            yield "", f"breaks a rule: {rule.removesuffix('.')}: {where}"


def _writes(loadable: schema.Loadable) -> Iterator[tuple[str, str]]:
    """The register writes, with addresses as offsets in memories: memory n begins at n * 2^32."""
    machine = machine_of(loadable)
    registers = register_map(machine.registers)
    try:
        found = loadables.register_writes(loadable, machine, lambda memory: memory * REGION)
    except ArtefactError as error:
        yield "", f"not interpreted: {error.problems[0].reason}"
        return
    for number, writes in enumerate(found):
        yield "", f"registers of engine task {number}"
        for title, value in writes:
            address = registers[title].address
            yield f"{address:#x}={value:#x}", registers.text(address, value)
