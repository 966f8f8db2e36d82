"""The tables of a loadable: tasks, memories, addresses, events, blobs, tensors, with fields in file order.

Source: The loadable (facts): what NVDLA's runtime reads.
"""

from __future__ import annotations

from npuc.frozen import frozen
from npuc.targets.nvdla.loadable.flatbuffer import TRIPLE, scalar, vector

IDENTIFIER = b"NVDA"
VERSION = (0, 7, 0)
DLA_VERSION, EMU_VERSION = (0, 12, 3), (0, 0, 1)
DLA, EMU = 1, 2
"""Interfaces of a task: the engine; emulation on the CPU."""
ALLOCATE, SET, INPUT, OUTPUT = 1, 2, 4, 8
"""Flags of a memory."""
ADDRESSES, DEPENDENCIES, OPERATIONS, SURFACES, LUTS = 1, 2, 3, 4, 5
"""Sub-interfaces of a DLA task's blobs."""
ALIGNMENT = 4096


@frozen(kw_only=True)
class Task:
    """A unit of submission: its addresses, the events it waits for and signals."""

    id: int = scalar("u16")
    interface: int = scalar("u32")
    instance: int = scalar("i16")
    address_list: tuple[int, ...] = vector("u16")
    pre_actions: tuple[int, ...] = vector("u16")
    post_actions: tuple[int, ...] = vector("u16")


@frozen(kw_only=True)
class Memory:
    """A region of memory and the blobs that fill it."""

    id: int = scalar("u16")
    domain: int = scalar("u8")
    flags: int = scalar("u16")
    size: int = scalar("u64")
    alignment: int = scalar("u32")
    contents: tuple[str, ...] = vector("string")
    offsets: tuple[int, ...] = vector("u64")
    bind_id: int = scalar("u16")
    tensor_desc_id: int = scalar("u16")


@frozen(kw_only=True)
class Address:
    """A location in a region."""

    id: int = scalar("u16")
    mem_id: int = scalar("u16")
    offset: int = scalar("u64")
    size: int = scalar("u64")


@frozen(kw_only=True)
class Event:
    """An event that tasks wait for or signal."""

    id: int = scalar("u16")
    type: int = scalar("u8")
    target: int = scalar("u16")
    val: int = scalar("u32")
    op: int = scalar("u8")


@frozen(kw_only=True)
class Blob:
    """Bytes by name."""

    name: str = scalar("string", "")
    size: int = scalar("u64")
    interface: int = scalar("u32")
    sub_interface: int = scalar("u32")
    version: tuple[int, int, int] = scalar(TRIPLE, (0, 0, 0))
    data: bytes = vector("u8")


@frozen(kw_only=True)
class TensorDesc:
    """An input or output as the user binds it."""

    name: str = scalar("string", "")
    id: int = scalar("u16")
    mem_id: int = scalar("u16")
    size: int = scalar("u64")
    offset: int = scalar("u64")
    data_format: int = scalar("u8")
    data_type: int = scalar("u8")
    data_category: int = scalar("u8")
    pixel_format: int = scalar("u8")
    pixel_mapping: int = scalar("u8")
    n: int = scalar("i32")
    c: int = scalar("i32")
    h: int = scalar("i32")
    w: int = scalar("i32")
    stride_0: int = scalar("u32")
    stride_1: int = scalar("u32")
    stride_2: int = scalar("u32")
    stride_3: int = scalar("u32")
    stride_4: int = scalar("u32")
    stride_5: int = scalar("u32")
    stride_6: int = scalar("u32")
    stride_7: int = scalar("u32")


@frozen(kw_only=True)
class Reloc:
    """A location in a blob that depends on how a tensor is bound."""

    address_id: int = scalar("u16")
    write_id: int = scalar("u16")
    offset: int = scalar("u64")
    interface: int = scalar("u32")
    sub_interface: int = scalar("u32")
    reloc_type: int = scalar("u8")


@frozen(kw_only=True)
class Submit:
    """Tasks that are submitted together."""

    id: int = scalar("u16")
    task_id: tuple[int, ...] = vector("u16")


@frozen(kw_only=True)
class Loadable:
    """The root."""

    version: tuple[int, int, int] = scalar(TRIPLE, VERSION)
    task_list: tuple[Task, ...] = vector(Task)
    memory_list: tuple[Memory, ...] = vector(Memory)
    address_list: tuple[Address, ...] = vector(Address)
    event_list: tuple[Event, ...] = vector(Event)
    blobs: tuple[Blob, ...] = vector(Blob)
    tensor_desc_list: tuple[TensorDesc, ...] = vector(TensorDesc)
    reloc_list: tuple[Reloc, ...] = vector(Reloc)
    submit_list: tuple[Submit, ...] = vector(Submit)
