"""The headings of an NVDLA listing: host transfers, and register writes by operation, ping-pong group and unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from npuc.bits import shown
from npuc.host.step import HostStep
from npuc.inspect.outline import Heading, Line, Name, host_line, names_of
from npuc.program import Program
from npuc.targets.nvdla.machine.commands import Command, Write
from npuc.targets.nvdla.machine.registers import RESERVED, Register, RegisterMap
from npuc.targets.nvdla.program.artefact import Contents, Produced, TensorMove
from npuc.text.terminal import count

POINTER = "S_POINTER"
"""Its lowest bit selects the ping-pong group that writes to a unit's D_ registers go to."""
FEWEST = 3
"""The fewest consecutive writes to one unit that get a heading."""
SOURCES = ("CDMA.D_DAIN_ADDR_LOW_0", "SDP_RDMA.D_SRC_BASE_ADDR_LOW", "PDP_RDMA.D_SRC_BASE_ADDR_LOW",
           "CDP_RDMA.D_SRC_BASE_ADDR_LOW", "RBK.D_DAIN_ADDR_LOW", "BDMA.CFG_SRC_ADDR_LOW")  # fmt: skip
RESULTS = ("SDP.D_DST_BASE_ADDR_LOW", "PDP.D_DST_BASE_ADDR_LOW", "CDP.D_DST_BASE_ADDR_LOW",
           "RBK.D_DAOUT_ADDR_LOW", "BDMA.CFG_DST_ADDR_LOW")  # fmt: skip
Extents = tuple[tuple[str, str], ...]
TAKEN: tuple[Extents, ...] = (
    (("CDMA.D_DATAIN_SIZE_1", "DATAIN_CHANNEL"), ("CDMA.D_DATAIN_SIZE_0", "DATAIN_HEIGHT"),
     ("CDMA.D_DATAIN_SIZE_0", "DATAIN_WIDTH")),
    (("PDP.D_DATA_CUBE_IN_CHANNEL", "CUBE_IN_CHANNEL"), ("PDP.D_DATA_CUBE_IN_HEIGHT", "CUBE_IN_HEIGHT"),
     ("PDP.D_DATA_CUBE_IN_WIDTH", "CUBE_IN_WIDTH")),
    (("CDP_RDMA.D_DATA_CUBE_CHANNEL", "CHANNEL"), ("CDP_RDMA.D_DATA_CUBE_HEIGHT", "HEIGHT"),
     ("CDP_RDMA.D_DATA_CUBE_WIDTH", "WIDTH")),
    (("SDP_RDMA.D_DATA_CUBE_CHANNEL", "CHANNEL"), ("SDP_RDMA.D_DATA_CUBE_HEIGHT", "HEIGHT"),
     ("SDP_RDMA.D_DATA_CUBE_WIDTH", "WIDTH")),
)  # fmt: skip
"""Fields with channels, rows and columns (minus 1) of an operation's input; the first set written counts."""
GIVEN: tuple[Extents, ...] = (
    (("PDP.D_DATA_CUBE_OUT_CHANNEL", "CUBE_OUT_CHANNEL"), ("PDP.D_DATA_CUBE_OUT_HEIGHT", "CUBE_OUT_HEIGHT"),
     ("PDP.D_DATA_CUBE_OUT_WIDTH", "CUBE_OUT_WIDTH")),
    (("SDP.D_DATA_CUBE_CHANNEL", "CHANNEL"), ("SDP.D_DATA_CUBE_HEIGHT", "HEIGHT"),
     ("SDP.D_DATA_CUBE_WIDTH", "WIDTH")),
)  # fmt: skip
"""The same for its result."""


def outline(program: Program) -> list[Heading]:
    """The headings of segments, layers, operations and units, in order.

    Raises ArtefactError (E502) for a damaged artefact.
    """
    contents = Contents.of(program.manifest)
    commands = contents.commands(program)
    return [
        *_segments(program, contents, len(commands)),
        *_layers(contents, program.report["layers"]),
        *_operations(contents, commands, contents.registers),
    ]


def _segments(program: Program, contents: Contents, commands: int) -> Iterator[Heading]:
    """What the host loads before each range of commands and stores after it."""
    host: list[Line] = []
    images = [
        (f"load   {count(len(each.data(program.files))):>9} bytes  dram from {each.address:#x}  ", Name(each.file))
        for each in contents.dram.images
    ]
    number = 0
    for step in contents.steps:
        if isinstance(step, HostStep):
            host.append(host_line(step))
            continue
        run = f"run    commands {step.start}..{step.start + step.count - 1}"
        moves = [_move("load", each, contents) for each in step.loads]
        stores = [_move("store", each, contents) for each in step.stores]
        lines: list[Line] = [(f"segment {number}",), *host, *images, *moves, (run,), *stores]
        yield Heading("segment", step.start, step.count, tuple(lines))
        host, images, number = [], [], number + 1
    if host:
        yield Heading("segment", commands, 0, (("the host's last steps",), *host))


def _move(what: str, move: TensorMove, contents: Contents) -> Line:
    size = f"{count(move.bytes(contents.machine)):>9} bytes  dram from {move.place.address:#x}  "
    return (f"{what:<5}  {size}", Name(move.tensor), f" [{'x'.join(map(str, move.map_shape))}]")


def _by_layer(contents: Contents) -> Iterator[list[Produced]]:
    """Consecutive operations for the same nodes."""
    return (list(group) for _, group in groupby(contents.operations, lambda each: each.nodes))


def _layers(contents: Contents, reported: Sequence[Mapping[str, Any]]) -> Iterator[Heading]:
    """A heading per group of operations for the same nodes: their result and modelled cycles."""
    cycles = {each.get("instruction"): each.get("cycles") for each in reported}
    for members in _by_layer(contents):
        start, last = members[0].start, members[-1]
        took = cycles.get(start)
        line: Line = names_of(members[0].nodes)
        for each in members:
            if each.result:
                shape = "x".join(map(str, each.result.map_shape))
                line = (*line, " -> ", Name(each.result.tensor), f" [{shape}]")
        if isinstance(took, int):
            line = (*line, f", {count(took)} cycles")
        yield Heading("layer", start, last.start + last.count - start, (line,))


def _operations(contents: Contents, commands: Sequence[Command], registers: RegisterMap) -> Iterator[Heading]:
    pointers: dict[str, int] = {}
    for members in _by_layer(contents):
        for number, each in enumerate(members, 1):
            yield from _operation(each, (number, len(members)), commands, registers, pointers)


def _operation(
    each: Produced,
    place: tuple[int, int],
    commands: Sequence[Command],
    registers: RegisterMap,
    pointers: dict[str, int],
) -> Iterator[Heading]:
    """An operation and its runs of writes to one unit; pointers: the ping-pong group selected in each unit."""
    written: dict[str, int] = {}
    groups: dict[str, int] = {}
    units: list[Heading] = []
    numbered = enumerate(commands[each.start : each.start + each.count], each.start)
    for block, run in groupby(numbered, lambda pair: _block(pair[1], registers)):
        writes = list(run)
        for _, command in writes:
            if isinstance(command, Write):
                register = registers.at(command.address)
                written[register.title] = command.value
                if register.name == POINTER:
                    pointers[block] = command.value & 1
                elif register.of_group:
                    groups[block] = pointers.get(block, 0)
        if block and len(writes) >= FEWEST:
            group = f", group {groups[block]}" if block in groups else ""
            units.append(Heading("unit", writes[0][0], len(writes), ((f"{block}{group}",),)))
    of = "" if place[1] == 1 else " {} of {}".format(*place)
    line = f"{each.operation}{of}{_groups(groups)}{_cubes(written, registers)}"
    yield Heading("operation", each.start, each.count, ((line,),))
    yield from units


def _block(command: Command, registers: RegisterMap) -> str:
    return registers.at(command.address).block if isinstance(command, Write) else ""


def _groups(groups: Mapping[str, int]) -> str:
    """The ping-pong group of an operation's units, as text."""
    found = set(groups.values())
    if len(found) == 1:
        return f", ping-pong group {found.pop()}"
    return "".join(f", {block} group {group}" for block, group in groups.items())


def _cubes(written: Mapping[str, int], registers: RegisterMap) -> str:
    """Extents (channels x rows x columns) and addresses of input and result, as written to the registers."""
    source = next((written[each] for each in SOURCES if written.get(each)), None)
    result = next((written[each] for each in RESULTS if written.get(each)), None)
    taken, given = _extents(TAKEN, written, registers), _extents(GIVEN, written, registers)
    shapes = f": {taken or given} -> {given or taken}" if taken or given else ""
    places = [hex(each) if each is not None else "on the fly" for each in (source, result)]
    return f"{shapes}, {' -> '.join(places)}" if source is not None or result is not None else shapes


def _extents(choices: Sequence[Extents], written: Mapping[str, int], registers: RegisterMap) -> str:
    for fields in choices:
        if all(title in written for title, _ in fields):
            return "x".join(str(_field(registers, title, name, written[title]) + 1) for title, name in fields)
    return ""


def _field(registers: RegisterMap, title: str, name: str, value: int) -> int:
    place = registers[title].places[name]
    return value >> place.low & (1 << place.width) - 1


def brief(register: Register, value: int) -> str:
    """A write with its values decoded: names and decimal numbers, addresses in hexadecimal.

    Of a register with several fields those with their reset value are left out.
    """
    fields, usual = (shown(register.decoded(each)) for each in (value, register.reset))
    known = {name: each for name, each in fields.items() if not name.startswith(RESERVED)}
    told = known if len(known) == 1 else {name: each for name, each in known.items() if each != usual[name]}
    told |= {name: each for name, each in fields.items() if name.startswith(RESERVED) and each != 0}
    return " ".join([register.title, *(f"{name}={_number(register, name, each)}" for name, each in told.items())])


def _number(register: Register, name: str, value: int | str) -> str:
    """A number as text; addresses in bytes, even if their register leaves out low bits."""
    if isinstance(value, int) and "ADDR" in name:
        return hex(value << register.places[name].low)
    return str(value)
