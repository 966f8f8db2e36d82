"""Rules of an engine's task: its lists, the dependency graph, every operation's descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.structures import size
from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.loadable.accesses import APART, Accesses, before, by_memory, cubes, ends
from npuc.targets.nvdla.loadable.task import TaskDescriptors, content
from npuc.targets.nvdla.machine.parameters import MOST_EXTENT, Machine
from npuc.targets.nvdla.model.memory import Pattern

Where = Iterator[str]
MOST_ADDRESSES = 256


@frozen
class Checked:
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


def lists_are_where_the_network_says(checked: Checked) -> Where:
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


def lists_have_their_sizes(checked: Checked) -> Where:
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


def operations_know_their_index(checked: Checked) -> Where:
    """An operation's index is its position."""
    yield from (f"{each.index}" for at, each in enumerate(checked.task.common) if each.index != at)


def heads_are_the_first(checked: Checked) -> Where:
    """The network names the first operation of each engine."""
    for engine, head in enumerate(checked.task.network.heads):
        own = [each.index for each in checked.task.common if each.engine == engine]
        if head != (own[0] if own else of.NONE):
            yield f"{of.ENGINES[engine]}: {head}"


def engines_follow_their_consumers(checked: Checked) -> Where:
    """An operation's consumer of its own engine is that engine's next operation."""
    for each in checked.task.common:
        own = [other.index for other in checked.task.common if other.engine == each.engine]
        following = [other for other in own if other > each.index]
        if each.consumers[each.engine].index != (following[0] if following else of.NONE):
            yield f"operation {each.index}"


def consumers_are_of_their_engine(checked: Checked) -> Where:
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


def dependencies_are_counted(checked: Checked) -> Where:
    """The count of dependencies is that of the edges that come in."""
    common = checked.task.common
    edges = [consumer.index for each in common for consumer in (*each.consumers, each.fused_parent)]
    for each in common:
        if each.dependency_count != edges.count(each.index):
            yield f"operation {each.index}: {each.dependency_count}, {edges.count(each.index)} edges"


def pipes_are_tied(checked: Checked) -> Where:
    """An operation fed by the pipe names the engine before it with event 3, and is named there with event 2."""
    common = checked.task.common
    for each, surfaces in zip(common, checked.task.surfaces, strict=True):
        flies = each.engine != of.CONV and surfaces.source.type == of.HARDWARE
        parent = each.fused_parent
        if flies != (parent.index != of.NONE) or (flies and not 0 <= parent.index < len(common)):
            yield f"operation {each.index}: giver {parent.index}"
        elif flies:
            giver = common[parent.index]
            taker = giver.consumers[each.engine]
            tied = (parent.event, taker.index, taker.event) == (of.ENABLED, each.index, of.PROGRAMMED)
            if not tied or giver.engine != each.engine - 1:
                yield f"operation {each.index}: giver {parent.index}, event {parent.event}"


def sharing_operations_wait(checked: Checked) -> Where:
    """An operation reads only what has been written, and writes only where no other still reads or writes."""
    common, ended, last = checked.task.common, _ended(checked), ends(checked.accesses)
    for at, needed in enumerate(before(checked.accesses)):
        chain = [other for other, end in enumerate(last) if end == last[at]]
        written = np.max([ended[other] for other in chain], axis=0)
        for wanted, sure in ((needed.to_read, ended[at]), (needed.to_write, written)):
            late = [other for other in sorted(wanted) if sure[common[other].engine] < other]
            if late:
                yield f"operation {at} does not wait for {late}"


def _ended(checked: Checked) -> list[Array]:
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


def cubes_are_in_memory(checked: Checked) -> Where:
    """Every cube lies in the memory that its address is of."""
    sizes = {each.id: each.size for each in checked.loadable.address_list}
    addresses = checked.entry.address_list
    for at, found in enumerate(checked.patterns):
        for name, place in found:
            index, offset = divmod(place.address, APART)
            room = sizes.get(addresses[index], 0) if 0 <= index < len(addresses) else 0
            if offset + place.size > room:
                yield f"operation {at}: {name} ends at {offset + place.size} of {room} bytes"


def cubes_are_aligned(checked: Checked) -> Where:
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


def cubes_are_small_enough(checked: Checked) -> Where:
    """Extents of cubes are 1 to 8,192."""
    for at, found in enumerate(checked.patterns):
        for name, _ in found:
            cube: of.DataCube = getattr(checked.task.surfaces[at], name)
            if not all(1 <= each <= MOST_EXTENT for each in (cube.width, cube.height, cube.channels)):
                yield f"operation {at}: {name}"


def accumulators_pass_unscaled(checked: Checked) -> Where:
    """The output converter of a convolution has scale 1 and offset 0."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Convolution) and (op.out_converter.scale, op.out_converter.offset) != (1, 0):
            yield f"operation {at}"


def pixels_are_packed(checked: Checked) -> Where:
    """A convolution's result of one pixel has the atom as line stride."""
    for at, (op, surfaces) in enumerate(zip(checked.task.operations, checked.task.surfaces, strict=True)):
        if isinstance(op, of.Convolution):
            result = surfaces.result
            if (result.width, result.height) == (1, 1) and result.line_stride != checked.machine.atom_bytes:
                yield f"operation {at}: {result.line_stride}"


def buffers_are_large_enough(checked: Checked) -> Where:
    """The banks of a convolution's data and weights are those of the CBUF at most, each 1 or more."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Convolution):
            banks = (op.data_bank, op.weight_bank)
            if min(banks) < 1 or sum(banks) > checked.machine.cbuf_banks:
                yield f"operation {at}: {banks}"


def windows_are_small_enough(checked: Checked) -> Where:
    """PDP has windows up to 8x8 (stored minus one), strides of 1 to 8, and up to 64 splits."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Pdp):
            strides = (op.window.stride_x, op.window.stride_y)
            small = max(op.kernel_width, op.kernel_height) < 8 and all(1 <= each <= 8 for each in strides)
            if not small or not 1 <= op.splits <= 64:
                yield f"operation {at}"


def tables_exist(checked: Checked) -> Where:
    """An operation's table is one of the task's."""
    for at, op in enumerate(checked.task.operations):
        if isinstance(op, of.Sdp | of.Cdp) and not of.NONE <= op.lut < checked.task.network.lut_count:
            yield f"operation {at}: {op.lut}"


RULES: tuple[Callable[[Checked], Where], ...] = (
    lists_are_where_the_network_says, lists_have_their_sizes, operations_know_their_index, heads_are_the_first,
    engines_follow_their_consumers, consumers_are_of_their_engine, dependencies_are_counted, pipes_are_tied,
    sharing_operations_wait, cubes_are_in_memory, cubes_are_aligned, cubes_are_small_enough,
    accumulators_pass_unscaled, pixels_are_packed, buffers_are_large_enough, windows_are_small_enough,
    tables_exist,
)  # fmt: skip
