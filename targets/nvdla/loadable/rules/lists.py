"""Rules of a loadable's lists: memories, addresses, blobs, tasks, events, tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from npuc.targets.nvdla.loadable import schema

Where = Iterator[str]
VERSIONS = {schema.DLA: schema.DLA_VERSION, schema.EMU: schema.EMU_VERSION}


def version_is_known(loadable: schema.Loadable) -> Where:
    """The root's version is 0.7.0, those of the tasks' blobs 0.12.3 (engine) and 0.0.1 (CPU)."""
    if loadable.version != schema.VERSION:
        yield f"version {loadable.version}"
    for blob in loadable.blobs:
        if blob.interface in VERSIONS and blob.version != VERSIONS[blob.interface]:
            yield f"blob {blob.name}: {blob.version}"


def ids_are_positions(loadable: schema.Loadable) -> Where:
    """Memories, addresses, tasks and tensors have their positions as ids."""
    for what in ("memory_list", "address_list", "task_list", "tensor_desc_list"):
        found = [each.id for each in getattr(loadable, what)]
        if found != list(range(len(found))):
            yield f"{what}: {found}"


def memory_0_is_a_dummy(loadable: schema.Loadable) -> Where:
    """Memory 0 is a page without contents."""
    first = loadable.memory_list[0] if loadable.memory_list else schema.Memory()
    if (first.flags, first.size, first.contents) != (schema.ALLOCATE, schema.ALIGNMENT, ()):
        yield f"flags {first.flags}, {first.size} bytes"


def weights_are_in_memory_1(loadable: schema.Loadable) -> Where:
    """Memory 1 is the pool of weights: allocated and set, with contents."""
    pool = loadable.memory_list[1] if len(loadable.memory_list) > 1 else schema.Memory()
    if pool.flags != schema.ALLOCATE | schema.SET or not pool.contents:
        yield f"flags {pool.flags}, contents {list(pool.contents)}"


def memories_are_pages(loadable: schema.Loadable) -> Where:
    """Memories are aligned to 4,096 bytes and lie in system memory, allocated."""
    for each in loadable.memory_list:
        if each.alignment != schema.ALIGNMENT or each.domain or not each.flags & schema.ALLOCATE or not each.size:
            yield f"memory {each.id}"


def contents_fit(loadable: schema.Loadable) -> Where:
    """Every content of a memory is a blob, which fits behind its offset without touching the next."""
    sizes = {each.name: len(each.data) for each in loadable.blobs}
    for each in loadable.memory_list:
        spans = sorted(zip(each.offsets, each.contents, strict=False))
        starts = [start for start, _ in spans[1:]] + [each.size]
        unknown = [name for name in each.contents if name not in sizes]
        if unknown or len(each.offsets) != len(each.contents):
            yield f"memory {each.id}: {', '.join(unknown) or 'offsets and contents differ in number'}"
        elif any(start + sizes[name] > end for (start, name), end in zip(spans, starts, strict=False)):
            yield f"memory {each.id}: a blob is larger than its room"


def blob_sizes_are_told(loadable: schema.Loadable) -> Where:
    """A blob's size is that of its data."""
    yield from (each.name for each in loadable.blobs if each.size != len(each.data))


def set_memories_have_contents(loadable: schema.Loadable) -> Where:
    """A memory that is set has contents, and no other has."""
    for each in loadable.memory_list:
        if bool(each.flags & schema.SET) != bool(each.contents):
            yield f"memory {each.id}"


def bind_ids_are_dense(loadable: schema.Loadable) -> Where:
    """The bind ids of inputs count from 0, and those of outputs."""
    for role, flag in (("inputs", schema.INPUT), ("outputs", schema.OUTPUT)):
        found = sorted(each.bind_id for each in loadable.memory_list if each.flags & flag)
        if found != list(range(len(found))) or not found:
            yield f"{role}: {found}"


def tensors_have_their_memories(loadable: schema.Loadable) -> Where:
    """Inputs and outputs have one tensor each, which says their memory, and fits in it."""
    memories = {each.id: each for each in loadable.memory_list}
    for each in loadable.tensor_desc_list:
        memory = memories.get(each.mem_id, schema.Memory())
        bound = bool(memory.flags & (schema.INPUT | schema.OUTPUT)) and memory.tensor_desc_id == each.id
        if not bound or each.offset + each.size > memory.size:
            yield f"tensor {each.id}: memory {each.mem_id}"


def tensors_say_their_layout(loadable: schema.Loadable) -> Where:
    """Feature data is NCxHWx (3) of pixel format 36, or 37 in atoms of 8; strides are those of elements, lines."""
    for each in loadable.tensor_desc_list:
        feature = each.pixel_format in (36, 37)
        atom = {36: 32, 37: 8}.get(each.pixel_format, 0)
        if feature != (each.data_format == 3) or (feature and each.stride_1 < each.w * atom) or each.n != 1:
            yield f"tensor {each.id}"
        elif each.stride_0 != {2: 2, 3: 2, 4: 1}.get(each.data_type, 0):
            yield f"tensor {each.id}: data type {each.data_type}, elements of {each.stride_0} bytes"


def addresses_are_in_memories(loadable: schema.Loadable) -> Where:
    """Every address lies in its memory."""
    sizes = {each.id: each.size for each in loadable.memory_list}
    for each in loadable.address_list:
        if each.offset + each.size > sizes.get(each.mem_id, 0):
            yield f"address {each.id}"


def task_addresses_are_in_order(loadable: schema.Loadable) -> Where:
    """A task's addresses: its own lists' first, the data memories from 1 on, its other lists, dummies."""
    data = _data_memories(loadable)
    expected = {
        schema.DLA: ("dep_graph", "op_list", "surf_list", "lut_list"),
        schema.EMU: ("op_list", "op_buf_list"),
    }
    for task in loadable.task_list:
        names = [_content(loadable, address) for address in task.address_list]
        ends = (f"task-{task.id}-{name}" for name in ("addr0", *expected.get(task.interface, ())))
        wanted = list(ends)
        own = [names[0], *names[1 + len(data) : len(data) + len(wanted)]] if names else []
        rest = names[len(data) + len(wanted) :]
        if list(task.address_list[1 : 1 + len(data)]) != data or own != wanted or any(rest) or not rest:
            yield f"task {task.id}: {names}"


def _data_memories(loadable: schema.Loadable) -> list[int]:
    """Memories from 1 to the last input or output."""
    bound = [each.id for each in loadable.memory_list if each.flags & (schema.INPUT | schema.OUTPUT)]
    return list(range(1, max(bound, default=0) + 1))


def _content(loadable: schema.Loadable, address: int) -> str:
    """The blob at the start of an address' memory, or nothing."""
    memories = {each.id: each for each in loadable.memory_list}
    ids = {each.id: each.mem_id for each in loadable.address_list}
    memory = memories.get(ids.get(address, -1), schema.Memory())
    return memory.contents[0] if len(memory.contents) == 1 else ""


def dependency_graphs_are_named(loadable: schema.Loadable) -> Where:
    """The content with an engine task's dependencies has "dep_graph" in its name: it is reloaded each time."""
    names = [each.name for each in loadable.blobs if _is(each, schema.DLA, schema.DEPENDENCIES)]
    yield from (name for name in names if "dep_graph" not in name)
    tasks = sum(each.interface == schema.DLA for each in loadable.task_list)
    if len(names) != tasks:
        yield f"{len(names)} graphs, {tasks} tasks"


def _is(blob: schema.Blob, interface: int, sub_interface: int) -> bool:
    return (blob.interface, blob.sub_interface) == (interface, sub_interface)


def tasks_are_known(loadable: schema.Loadable) -> Where:
    """A task is for the engine (1) or for the CPU (2), one at a time (instance -1)."""
    for each in loadable.task_list:
        if each.interface not in (schema.DLA, schema.EMU) or each.instance != -1:
            yield f"task {each.id}: interface {each.interface}, instance {each.instance}"


def all_tasks_are_submitted(loadable: schema.Loadable) -> Where:
    """Every task is submitted once, in order."""
    found = [task for each in loadable.submit_list for task in each.task_id]
    if found != [each.id for each in loadable.task_list]:
        yield f"{found}"


def events_are_signalled_before(loadable: schema.Loadable) -> Where:
    """A task waits (0) for a value that the task before it signals (1); the values count from 1."""
    events = {each.id: each for each in loadable.event_list}
    for number, task in enumerate(loadable.task_list):
        waits, signals = _values(events, task.pre_actions, 0), _values(events, task.post_actions, 1)
        if waits != ([number] if number else []) or signals != [number + 1]:
            yield f"task {task.id}: waits for {waits}, signals {signals}"


def _values(events: dict[int, schema.Event], actions: Iterable[int], kind: int) -> list[int]:
    found = [events[each] for each in actions if each in events]
    return [each.val for each in found if each.op == kind]


RULES: tuple[Callable[[schema.Loadable], Where], ...] = (
    version_is_known, ids_are_positions, memory_0_is_a_dummy, weights_are_in_memory_1, memories_are_pages,
    contents_fit, blob_sizes_are_told, set_memories_have_contents, bind_ids_are_dense, tensors_have_their_memories,
    tensors_say_their_layout, addresses_are_in_memories, task_addresses_are_in_order, dependency_graphs_are_named,
    tasks_are_known, all_tasks_are_submitted, events_are_signalled_before,
)  # fmt: skip
