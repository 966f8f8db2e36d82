"""The rules of the stock runtime, driver and firmware for a loadable: one function per rule, with it as docstring.

First those of its lists (memories, addresses, blobs, tasks, events, tensors), then those of an engine's task: its
lists, the dependency graph, the descriptors of every operation.

Source: The loadable (facts). Three loadables of NVDLA's own compiler keep every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.structures import size
from npuc.targets.nvdla.loadable import TaskDescriptors, content, engine_tasks, read_task, schema
from npuc.targets.nvdla.loadable.accesses import APART, Accesses, by_memory, cubes, dependencies_of, ends
from npuc.targets.nvdla.machine.parameters import MOST_EXTENT, Machine
from npuc.targets.nvdla.model.memory import Pattern

Where = Iterator[str]
MOST_ADDRESSES = 256


def version_is_known(loadable: schema.Loadable) -> Where:
    """The root's version is 0.7.0, those of the tasks' blobs 0.12.3 (engine) and 0.0.1 (CPU)."""
    if loadable.version != schema.VERSION:
        yield f"version {loadable.version}"
    for blob in loadable.blobs:
        if blob.interface in schema.VERSIONS and blob.version != schema.VERSIONS[blob.interface]:
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
    names = [each.name for each in loadable.blobs if _has_interface(each, schema.DLA, schema.DEPENDENCIES)]
    yield from (name for name in names if "dep_graph" not in name)
    tasks = sum(each.interface == schema.DLA for each in loadable.task_list)
    if len(names) != tasks:
        yield f"{len(names)} graphs, {tasks} tasks"


def _has_interface(blob: schema.Blob, interface: int, sub_interface: int) -> bool:
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


_OF_LISTS: tuple[Callable[[schema.Loadable], Where], ...] = (
    version_is_known, ids_are_positions, memory_0_is_a_dummy, weights_are_in_memory_1, memories_are_pages,
    contents_fit, blob_sizes_are_told, set_memories_have_contents, bind_ids_are_dense, tensors_have_their_memories,
    tensors_say_their_layout, addresses_are_in_memories, task_addresses_are_in_order, dependency_graphs_are_named,
    tasks_are_known, all_tasks_are_submitted, events_are_signalled_before,
)  # fmt: skip


@frozen
class _CheckedTask:
    """A task being checked."""

    loadable: schema.Loadable
    entry: schema.Task
    task: TaskDescriptors
    machine: Machine

    @cached_property
    def patterns(self) -> list[list[tuple[str, Pattern]]]:
        """The cubes of every operation, by memory."""
        return [
            list(cubes(op, surfaces, self.machine.atom_bytes, by_memory))
            for op, surfaces in zip(self.task.operations, self.task.surfaces, strict=True)
        ]

    @cached_property
    def accesses(self) -> list[Accesses]:
        """The memory that every operation accesses."""
        return [
            Accesses.of(each.engine, found, behind=each.fused_parent.index == each.index - 1 and each.index > 0)
            for each, found in zip(self.task.common, self.patterns, strict=True)
        ]


def lists_are_where_the_network_says(checked: _CheckedTask) -> Where:
    """The network's description has the positions of the lists, the number of addresses and of operations."""
    network, entry = checked.task.network, checked.entry
    if network.address_count != len(entry.address_list) or network.address_count > MOST_ADDRESSES:
        yield f"{network.address_count} addresses, {len(entry.address_list)} in the list"
    data = len(entry.address_list) - 6
    found = (network.dependencies, network.operations, network.surfaces, network.luts)
    if found != (data + 1, data + 2, data + 3, data + 4):
        yield f"lists at {found}"
    if network.roi_count != 1 or network.dynamic_roi:
        yield f"{network.roi_count} regions of interest"


def lists_have_their_sizes(checked: _CheckedTask) -> Where:
    """Lists hold an entry an operation: 36, 116 and 644 bytes; 700 a table, and one where there is none."""
    network = checked.task.network
    entries = (
        (network.dependencies, size(of.Common), network.operation_count),
        (network.operations, of.OPERATION_BYTES, network.operation_count),
        (network.surfaces, of.SURFACE_BYTES, network.operation_count),
        (network.luts, size(of.Lut), max(network.lut_count, 1)),
    )
    for index, each, count in entries:
        found = len(content(checked.loadable, checked.entry, index))
        if found != each * count:
            yield f"list {index}: {found} bytes, {count} entries of {each}"


def operations_know_their_index(checked: _CheckedTask) -> Where:
    """An operation's index is its position."""
    yield from (f"{each.index}" for at, each in enumerate(checked.task.common) if each.index != at)


def heads_are_the_first(checked: _CheckedTask) -> Where:
    """The network names the first operation of each engine."""
    for engine, head in enumerate(checked.task.network.heads):
        own = [each.index for each in checked.task.common if each.engine == engine]
        if head != (own[0] if own else of.NONE):
            yield f"{of.ENGINES[engine]}: {head}"


def engines_follow_their_consumers(checked: _CheckedTask) -> Where:
    """An operation's consumer of its own engine is that engine's next operation."""
    for each in checked.task.common:
        own = [other.index for other in checked.task.common if other.engine == each.engine]
        following = [other for other in own if other > each.index]
        if each.consumers[each.engine].index != (following[0] if following else of.NONE):
            yield f"operation {each.index}"


def consumers_are_of_their_engine(checked: _CheckedTask) -> Where:
    """A consumer is in the slot of its engine; events are 1 (ended), 2 (programmed) or 3 (enabled)."""
    common = checked.task.common
    for each in common:
        for engine, consumer in enumerate(each.consumers):
            index = consumer.index
            if index == of.NONE:
                continue
            known = 0 <= index < len(common) and common[index].engine == engine
            if not known or consumer.event not in (of.COMPLETED, of.PROGRAMMED, of.ENABLED):
                yield f"operation {each.index}: consumer {index}, event {consumer.event}"


def dependencies_are_counted(checked: _CheckedTask) -> Where:
    """The count of dependencies is that of the edges that come in."""
    common = checked.task.common
    edges = [consumer.index for each in common for consumer in (*each.consumers, each.fused_parent)]
    for each in common:
        if each.dependency_count != edges.count(each.index):
            yield f"operation {each.index}: {each.dependency_count}, {edges.count(each.index)} edges"


def pipes_are_tied(checked: _CheckedTask) -> Where:
    """An operation fed by the pipe names the engine before it with event 3, and is named there with event 2."""
    common = checked.task.common
    for each, surfaces in zip(common, checked.task.surfaces, strict=True):
        fused = each.engine != of.CONV and surfaces.source.type == of.HARDWARE
        parent = each.fused_parent
        if fused != (parent.index != of.NONE) or (fused and not 0 <= parent.index < len(common)):
            yield f"operation {each.index}: giver {parent.index}"
        elif fused:
            giver = common[parent.index]
            taker = giver.consumers[each.engine]
            tied = (parent.event, taker.index, taker.event) == (of.ENABLED, each.index, of.PROGRAMMED)
            if not tied or giver.engine != each.engine - 1:
                yield f"operation {each.index}: giver {parent.index}, event {parent.event}"


def sharing_operations_wait(checked: _CheckedTask) -> Where:
    """An operation reads only what has been written, and writes only where no other still reads or writes."""
    common, ended, last = checked.task.common, _last_ended(checked), ends(checked.accesses)
    for at, needed in enumerate(dependencies_of(checked.accesses)):
        chain = [other for other, end in enumerate(last) if end == last[at]]
        written = np.max([ended[other] for other in chain], axis=0)
        for wanted, sure in ((needed.to_read, ended[at]), (needed.to_write, written)):
            late = [other for other in sorted(wanted) if sure[common[other].engine] < other]
            if late:
                yield f"operation {at} does not wait for {late}"


def _last_ended(checked: _CheckedTask) -> list[Array]:
    """For every operation, by engine, the last one that has certainly ended when it is enabled.

    Edges of event 1 imply that the other operation has ended, with its whole pipe chain; edges of event 3 imply
    what had ended for the other one. The operation two before it in its engine has ended too, as it had the same
    registers. Engines run in order.
    """
    common, last = checked.task.common, ends(checked.accesses)
    with_it = [np.full(len(of.ENGINES), of.NONE) for _ in common]
    for at, end in enumerate(last):
        with_it[end][common[at].engine] = max(with_it[end][common[at].engine], at)
    sources: list[list[tuple[int, bool]]] = [_registers_of(common, at) for at in range(len(common))]
    for at, each in enumerate(common):
        for consumer in (*each.consumers, each.fused_parent):
            if 0 <= consumer.index < len(common) and consumer.event != of.PROGRAMMED:
                sources[consumer.index].append((at, consumer.event == of.COMPLETED))
    found = [np.full(len(of.ENGINES), of.NONE) for _ in common]
    for _ in common:
        known = [each.copy() for each in found]
        for at, edges in enumerate(sources):
            for other, ended in edges:
                np.maximum(found[at], found[other], out=found[at])
                if ended:
                    np.maximum(found[at], with_it[other], out=found[at])
        if all(np.array_equal(*pair) for pair in zip(known, found, strict=True)):
            break
    return found


def _registers_of(common: Sequence[of.Common], at: int) -> list[tuple[int, bool]]:
    """The operation that must have ended because this one uses its registers."""
    own = [other for other, each in enumerate(common[:at]) if each.engine == common[at].engine]
    return [(own[-2], True)] if len(own) > 1 else []


def cubes_are_in_memory(checked: _CheckedTask) -> Where:
    """Every cube lies in the memory that its address is of."""
    sizes = {each.id: each.size for each in checked.loadable.address_list}
    addresses = checked.entry.address_list
    for at, found in enumerate(checked.patterns):
        for name, place in found:
            index, offset = divmod(place.address, APART)
            memory_bytes = sizes.get(addresses[index], 0) if 0 <= index < len(addresses) else 0
            if offset + place.size > memory_bytes:
                yield f"operation {at}: {name} ends at {offset + place.size} of {memory_bytes} bytes"


def cubes_are_aligned(checked: _CheckedTask) -> Where:
    """Addresses and strides of cubes are multiples of the atom."""
    atom = checked.machine.atom_bytes
    for at, found in enumerate(checked.patterns):
        for name, place in found:
            strides = (
                place.line_stride if place.lines > 1 else 0,
                place.surface_stride if place.surfaces > 1 else 0,
            )
            if place.address % atom or any(each % atom for each in strides):
                yield f"operation {at}: {name}"


def cubes_are_small_enough(checked: _CheckedTask) -> Where:
    """Extents of cubes are 1 to 8,192."""
    for at, found in enumerate(checked.patterns):
        for name, _ in found:
            cube: of.DataCube = getattr(checked.task.surfaces[at], name)
            if not all(1 <= each <= MOST_EXTENT for each in (cube.width, cube.height, cube.channels)):
                yield f"operation {at}: {name}"


def accumulators_pass_unscaled(checked: _CheckedTask) -> Where:
    """The output converter of a convolution has scale 1 and offset 0."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Convolution) and (op.out_converter.scale, op.out_converter.offset) != (1, 0):
            yield f"operation {at}"


def pixels_are_packed(checked: _CheckedTask) -> Where:
    """A convolution's result of one pixel has the atom as line stride."""
    for at, (op, surfaces) in enumerate(zip(checked.task.operations, checked.task.surfaces, strict=True)):
        if isinstance(op, of.Convolution):
            result = surfaces.result
            if (result.width, result.height) == (1, 1) and result.line_stride != checked.machine.atom_bytes:
                yield f"operation {at}: {result.line_stride}"


def buffers_are_large_enough(checked: _CheckedTask) -> Where:
    """The banks of a convolution's data and weights are those of the CBUF at most, each 1 or more."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Convolution):
            banks = (op.data_bank, op.weight_bank)
            if min(banks) < 1 or sum(banks) > checked.machine.cbuf_banks:
                yield f"operation {at}: {banks}"


def windows_are_small_enough(checked: _CheckedTask) -> Where:
    """PDP has windows up to 8x8 (stored minus one), strides of 1 to 8, and up to 64 splits."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Pdp):
            strides = (op.window.stride_x, op.window.stride_y)
            small = max(op.kernel_width, op.kernel_height) < 8 and all(1 <= each <= 8 for each in strides)
            if not small or not 1 <= op.splits <= 64:
                yield f"operation {at}"


def tables_exist(checked: _CheckedTask) -> Where:
    """An operation's table is one of the task's."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Sdp | of.Cdp) and not of.NONE <= op.lut < checked.task.network.lut_count:
            yield f"operation {at}: {op.lut}"


_OF_OPERATIONS: tuple[Callable[[_CheckedTask], Where], ...] = (
    lists_are_where_the_network_says, lists_have_their_sizes, operations_know_their_index, heads_are_the_first,
    engines_follow_their_consumers, consumers_are_of_their_engine, dependencies_are_counted, pipes_are_tied,
    sharing_operations_wait, cubes_are_in_memory, cubes_are_aligned, cubes_are_small_enough,
    accumulators_pass_unscaled, pixels_are_packed, buffers_are_large_enough, windows_are_small_enough,
    tables_exist,
)  # fmt: skip


def broken_rules(loadable: schema.Loadable, machine: Machine) -> Iterator[tuple[str, str]]:
    """Every broken rule, and where. Raises ArtefactError (E502) for unreadable descriptors."""
    for rule in _OF_LISTS:
        yield from (((rule.__doc__ or "").strip(), where) for where in rule(loadable))
    for entry in engine_tasks(loadable):
        task = read_task(loadable, entry)
        found = _CheckedTask(loadable, entry, task, machine)
        for check in _OF_OPERATIONS:
            yield from (((check.__doc__ or "").strip(), f"task {entry.id}: {where}") for where in check(found))


RULES = tuple(rule.__name__ for rule in (*_OF_LISTS, *_OF_OPERATIONS))
"""The names of all rules."""
