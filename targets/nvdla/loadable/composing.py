"""A compiled program as a loadable: descriptors, memories, addresses, tasks.

Structure and order: The loadable (facts); every rule of it is checked in rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from npuc.frozen import frozen
from npuc.program import Program
from npuc.storage.records import damaged
from npuc.targets.nvdla.formats.alignment import aligned
from npuc.targets.nvdla.loadable import descriptors as of
from npuc.targets.nvdla.loadable import emulation, schema
from npuc.targets.nvdla.loadable.accesses import APART, RESULT, Accesses, by_memory, cubes
from npuc.targets.nvdla.loadable.averages import expressed
from npuc.targets.nvdla.loadable.capture import Captured, captured
from npuc.targets.nvdla.loadable.dependencies import graph
from npuc.targets.nvdla.loadable.memories import Memories
from npuc.targets.nvdla.loadable.places import MAPS, WEIGHTS, Layout, Use, placed
from npuc.targets.nvdla.loadable.ports import SOFTMAX_SCALE, Port, Ports
from npuc.targets.nvdla.loadable.structures import pack
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.program.artefact import Contents
from npuc.targets.nvdla.selection import Constants

PAGE = schema.ALIGNMENT


@frozen
class Built:
    """Operations with the addresses of their cubes, look-up tables, weights, and the size of map memory."""

    operations: tuple[Captured, ...]
    luts: tuple[of.Lut, ...]
    weights: bytes
    map_bytes: int


def composed(program: Program, ports: Ports) -> schema.Loadable:
    """The loadable of a program. Raises ArtefactError (E506) for anything that descriptors cannot express."""
    machine = Contents.of(program.manifest).machine
    built = _built(program, ports, machine)
    memories = Memories(built.weights, built.map_bytes, ports, machine)
    memories.task(schema.DLA, _engine_lists(built, machine, memories.data))
    softmax = [port for port in ports.outputs if port.softmax]
    if softmax:
        base = Contents.of(program.manifest).dram.base
        memories.task(schema.EMU, _cpu_lists(softmax, machine, memories.data, base))
    return memories.loadable()


def _built(program: Program, ports: Ports, machine: Machine) -> Built:
    contents = Contents.of(program.manifest)
    segment = ports.segment
    held = captured(contents.commands(program)[segment.start : segment.start + segment.count], machine)
    constants = _constants(program, contents)
    end = aligned(contents.dram.base + contents.dram.bytes, PAGE)
    scratch = end + APART // 2
    operations = expressed(held, machine, constants, scratch)
    maps = contents.dram.base
    layout = Layout(
        maps,
        constants.base - maps,
        tuple(port.bound(machine) for port in ports.inputs),
        tuple(port.bound(machine) for port in ports.outputs if not port.softmax),
    )
    uses = [use for at, each in enumerate(operations) for use in _uses(at, each, machine)]
    used = [use for use in uses if maps <= use.place.address < constants.base]
    places = dict(placed(used, layout))
    room = layout.map_bytes
    for use in uses:
        if use.place.address >= scratch:
            offset = layout.map_bytes + use.place.address - scratch
            places[use.operation, use.name] = MAPS, offset
            room = max(room, offset + use.place.size)
    located = [_located(at, each, places, constants.base, machine) for at, each in enumerate(operations)]
    luts = tuple(dict.fromkeys(each.lut for each in located if each.lut is not None))
    numbered = (_with_table(each, luts) for each in located)
    return Built(tuple(numbered), luts, bytes(constants.image), aligned(max(room, 1), PAGE))


def _constants(program: Program, contents: Contents) -> Constants:
    """The image of weights, which can be extended."""
    if len(contents.dram.images) != 1 or contents.dram.images[0].file not in program.files:
        raise damaged("dram.images")
    image = contents.dram.images[0]
    return Constants(contents.machine, image.address, bytearray(image.data(program.files)))


def _uses(at: int, each: Captured, machine: Machine) -> list[Use]:
    """The cubes in memory that an operation uses, those read first."""
    found = cubes(each.op, each.surfaces, machine.atom_bytes, lambda name, _: each.addresses[name])
    uses = [Use(at, name, place, name == RESULT) for name, place in found]
    return sorted(uses, key=lambda use: use.writes)


def _located(
    at: int, each: Captured, places: Mapping[tuple[int, str], tuple[int, int]], weights: int, machine: Machine
) -> Captured:
    """The operation, its cubes with sizes and with addresses by index and offset."""
    found = cubes(each.op, each.surfaces, machine.atom_bytes, lambda name, _: each.addresses[name])
    sizes = {name: place.size for name, place in found}
    changed: dict[str, of.Cube] = {}
    for name, address in each.addresses.items():
        cube: of.Cube = getattr(each.surfaces, name)
        memory, offset = places.get((at, name), (WEIGHTS, address - weights))
        if cube.address != of.NONE:
            changed[name] = replace(cube, address=memory, offset=offset, size=sizes.get(name, cube.size))
    return replace(each, surfaces=replace(each.surfaces, **changed))


def _with_table(each: Captured, luts: Sequence[of.Lut]) -> Captured:
    return each if each.lut is None else replace(each, op=replace(each.op, lut=luts.index(each.lut)))


def _engine_lists(built: Built, machine: Machine, data: int) -> list[tuple[str, int, bytes]]:
    """The lists of an engine's task in address order: name, sub-interface and bytes."""
    common = graph([_accesses(each, machine) for each in built.operations])
    heads = tuple(
        next((at for at, each in enumerate(common) if each.engine == engine), of.NONE)
        for engine in range(len(of.ENGINES))
    )
    network = of.Network(
        dependencies=data + 1, operations=data + 2, surfaces=data + 3, luts=data + 4, heads=heads,
        operation_count=len(common), lut_count=len(built.luts), address_count=data + 6,
    )  # fmt: skip
    operations = b"".join(pack(each.op).ljust(of.OPERATION_BYTES, b"\0") for each in built.operations)
    surfaces = b"".join(pack(each.surfaces).ljust(of.SURFACE_BYTES, b"\0") for each in built.operations)
    return [
        ("addr0", schema.ADDRESSES, pack(network)),
        ("dep_graph", schema.DEPENDENCIES, b"".join(map(pack, common))),
        ("op_list", schema.OPERATIONS, operations),
        ("surf_list", schema.SURFACES, surfaces),
        ("lut_list", schema.LUTS, b"".join(map(pack, built.luts or (of.Lut(),)))),
    ]


def _accesses(each: Captured, machine: Machine) -> Accesses:
    found = list(cubes(each.op, each.surfaces, machine.atom_bytes, by_memory))
    return Accesses.of(each.engine, found, behind=each.behind)


def _cpu_lists(softmax: Sequence[Port], machine: Machine, data: int, base: int) -> list[tuple[str, int, bytes]]:
    """The lists of the CPU's task: a softmax for every output that ends in one; base: start of the maps."""
    network = emulation.EmulatedNetwork(operations=data + 1, buffers=data + 2, operation_count=len(softmax))
    operations: list[bytes] = []
    buffers: list[bytes] = []
    for port in softmax:
        place = port.move.place
        floating = place.precision == "fp16"
        given, taken = (1.0, 1.0) if floating else (port.scale or 1.0, SOFTMAX_SCALE)
        operations.append(pack(emulation.EmulatedOperation(input_scale=given, output_scale=taken)))
        buffer = emulation.EmulatedBuffer(
            address=MAPS, offset=place.address - base, size=port.move.bytes(machine),
            format=emulation.FP16 if floating else emulation.FORMATS[machine.atom_bytes],
            channels=port.move.map_shape[0], line_stride=place.line_stride, surface_stride=place.surface_stride,
        )  # fmt: skip
        result = replace(buffer, address=port.memory, offset=0)
        buffers.append(pack(emulation.EmulatedBuffers(source=buffer, result=result)))
    return [
        ("addr0", schema.ADDRESSES, pack(network)),
        ("op_list", schema.OPERATIONS, b"".join(operations)),
        ("op_buf_list", schema.SURFACES, b"".join(buffers)),
    ]
